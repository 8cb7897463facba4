/* SPDX-License-Identifier: GPL-2.0 */
/* Guest memory that changes at every read, and the accesses that the device is allowed. */
#ifndef KFUZZ_GUEST_H
#define KFUZZ_GUEST_H

#include "sim.h"
#include "vgpu.h"

#define RAM_BYTES (1u << 20)

/* The rings that the guest programmed, while the device is enabled. */
struct rings {
	u64 submission, completion, shadow;
	u32 entries;
};

struct guest_counts {
	u64 descriptors, good, completions, checked_results, shadows, refused_accesses;
};

extern struct guest_counts guest_counts;
extern bool guest_mapped;	/* unmap storms clear it */
extern bool guest_quiet;	/* the device is stopped for migration: no access */
extern bool guest_silent;	/* accessed memory does not answer */

void guest_begin(struct vgpu_device *device);	/* a device was opened; NULL: it is gone */
void guest_enabled(struct vgpu_ring *ring);
void guest_disabled(void);			/* no access from here on; each one is counted */
/* Is @error right for the descriptor @number? */
bool guest_deserves(u32 number, u32 error);

#endif /* KFUZZ_GUEST_H */
