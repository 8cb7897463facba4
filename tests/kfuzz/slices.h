/* SPDX-License-Identifier: GPL-2.0 */
/* The slices of an engine that lends, and their guests' use of windows. */
#ifndef KFUZZ_SLICES_H
#define KFUZZ_SLICES_H

#include "sim.h"

#include "vgpu.h"

#define SLICES 3	/* vmm.c drives the first one, too */

struct slice_counts {
	u64 opened_windows, closed_windows, lost_windows, freed_windows, bells, mapped, raised;
	u64 checked_vectors, checked_leases;
};

extern struct slice_counts slice_counts;

void slices_begin(struct vgpu_parent *parent);	/* of one life, of the engine that lends */
void slices_end(void);
void slices_put_name(unsigned int slice, guid_t *uuid);
struct vgpu_device *slices_get(unsigned int slice);	/* NULL while there is none */
bool slices_let_go(struct vfio_device *vdev);	/* true if it is one of the others */

/* Events in the life of the first slice. */
void slices_created(struct vgpu_device *device);
void slices_opened(void);
void slices_closed(void);
void slices_removed(void);

void slices_step(void);		/* one of them does one thing */
void slices_look(void);		/* checks that hold at any time */

/* Whether this is the memory of a free window. */
bool slices_is_free(const struct inode *memory);
/* How often a slice has changed its tenant. */
extern u64 slices_moves[SLICES];

#endif /* KFUZZ_SLICES_H */
