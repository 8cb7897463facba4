/* SPDX-License-Identifier: GPL-2.0 */
/* Leases, gates and the timer of an engine that lends, as they must be at any time. */
#ifndef KFUZZ_LEASES_H
#define KFUZZ_LEASES_H

#include "sim.h"

#include "vgpu.h"

/* How often somebody waited for a lease's end, a gate, or a turn that comes with time, ... */
struct lease_counts {
	u64 ends, gates, turns, pages, confined;
};

extern struct lease_counts lease_counts;

void leases_look(struct vgpu_parent *parent);

#endif /* KFUZZ_LEASES_H */
