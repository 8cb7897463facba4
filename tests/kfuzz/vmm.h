/* SPDX-License-Identifier: GPL-2.0 */
/* A VMM and its guest that do anything the file of a VFIO device allows. */
#ifndef KFUZZ_VMM_H
#define KFUZZ_VMM_H

#include "guest.h"

struct vmm_counts {
	u64 steps, enables, resets, storms, saved, restored, refused_streams, silent_stops;
	u64 faults[64];
};

extern struct vmm_counts vmm_counts;

/* Look at it as it is after opening, by the first of its tenant or not. */
void vmm_opened(struct vgpu_device *device, bool first);
void vmm_step(void);				/* one thing, and what must hold after it */
void vmm_revoked(void);				/* it is being removed and stays off */
void vmm_restored(u64 run_ns);			/* it has the state of another one */
void vmm_reset(void);				/* as VFIO resets */
void vmm_discarded(void);			/* nothing is left of a stream that was refused */
void vmm_doorbell(u32 tail);			/* of whatever ring there is */
void vmm_look(void);				/* what holds at any time */

/* migrate.c: saving and restoring, from streams of any kind */
void migrate_step(struct vgpu_device *device);
void migrate_closed(void);			/* the VMM's last file is gone, too */
enum vfio_device_mig_state migrate_state(struct vgpu_device *device);

#endif /* KFUZZ_VMM_H */
