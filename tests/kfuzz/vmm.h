/* SPDX-License-Identifier: GPL-2.0 */
/* A VMM and its guest that do anything the file of a VFIO device allows. */
#ifndef KFUZZ_VMM_H
#define KFUZZ_VMM_H

#include "guest.h"

struct vmm_counts {
	u64 steps, enables, resets, faults[16];
};

extern struct vmm_counts vmm_counts;

void vmm_opened(struct vgpu_device *device);	/* look at it as it is after opening */
void vmm_step(void);				/* one thing, and what must hold after it */
void vmm_revoked(void);				/* it is being removed and stays off */
void vmm_look(void);				/* what holds at any time */

#endif /* KFUZZ_VMM_H */
