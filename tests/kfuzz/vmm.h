/* SPDX-License-Identifier: GPL-2.0 */
/* A VMM and its guest that do anything that the file of a VFIO device allows. */
#ifndef KFUZZ_VMM_H
#define KFUZZ_VMM_H

#include "guest.h"

struct vmm_counts {
	u64 steps, enables, resets, storms, saved, restored, refused_streams, silent_stops;
	u64 faults[64];
};

extern struct vmm_counts vmm_counts;

/* Check its state after opening, by the first opener of its tenant or not. */
void vmm_opened(struct vgpu_device *device, bool first);
void vmm_step(void);				/* do one thing and check the result */
void vmm_revoked(void);				/* it is being removed and stays off */
void vmm_restored(u64 run_ns);			/* it has another one's state */
void vmm_reset(void);				/* reset it through VFIO */
void vmm_discarded(void);			/* check that nothing is left of a refused stream */
void vmm_doorbell(u32 tail);			/* of the present ring, if any */
void vmm_look(void);				/* checks that hold at any time */

/* migrate.c: saving and restoring, from streams of any kind */
void migrate_step(struct vgpu_device *device);
void migrate_closed(void);			/* the VMM's last file is gone, too */
enum vfio_device_mig_state migrate_state(struct vgpu_device *device);

#endif /* KFUZZ_VMM_H */
