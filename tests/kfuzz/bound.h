/* SPDX-License-Identifier: GPL-2.0 */
/* Executors that are bound to slices of an engine that lends, and their children. */
#ifndef KFUZZ_BOUND_H
#define KFUZZ_BOUND_H

#include "sim.h"

#include "engine/binding.h"
#include "vgpu.h"

struct bound_counts {
	u64 bound, refused, events, gates, windows, lost, closed, busy, killed, ended, moved;
	u64 blocked, news, asked, nonsense, held_up, recalled, expired;
};

extern struct bound_counts bound_counts;

void bound_begin(void);
void bound_end(void);		/* all processes end */
void bound_step(void);		/* some of them act, at any time from now on */
void bound_look(void);		/* checks that hold at any time */
bool bound_is_quiet(void);	/* no thread is in the middle of a call that changes something */

/* A slice has a lease page other than @said only if that page says that there is no lease. */
void bound_check_leases(const struct vgpu_lease_page *said);

/* A guest rings: the child of its window must be notified. */
struct bound_bell { int child; u64 reads; };
void bound_before_bell(struct vgpu_device *device, u32 number, struct bound_bell *bell);
void bound_after_bell(const struct bound_bell *bell);

#endif /* KFUZZ_BOUND_H */
