/* SPDX-License-Identifier: GPL-2.0 */
/* Checks of leases, gates and the timer of an engine that lends, which hold at any time. */
#ifndef KFUZZ_LEASES_H
#define KFUZZ_LEASES_H

#include "sim.h"

#include "vgpu.h"

/* How often a check met a wait for a lease's end, for a gate, for a turn that time brings, ... */
struct lease_counts {
	u64 ends, gates, turns, pages, confined;
};

extern struct lease_counts lease_counts;

void leases_look(struct vgpu_parent *parent);

#endif /* KFUZZ_LEASES_H */
