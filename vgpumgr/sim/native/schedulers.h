/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code that the schedulers share.  The baselines re-implement published
 * schedulers on our engine and workloads; each says what it leaves out.  They
 * have no tenants: a client is a slice with the weight, cap and priority of its
 * group, unless said otherwise.  They search all slices, because they need not
 * be fast.
 */
#ifndef SIM_SCHEDULERS_H
#define SIM_SCHEDULERS_H

#include "sim.h"

#define NS_PER_US	1000ull
#define NS_PER_MS	1000000ull
#define NS_PER_S	1000000000ull

typedef bool (*sim_filter)(const struct sim *sim, const struct sim_slice *slice);

/* The ready slice, among those that pass @filter, whose head was launched first. */
struct sim_slice *sim_oldest_launch(const struct sim *sim, sim_filter filter);

/* The ready slice after @slice in a circle, @slice itself last; or NULL. */
struct sim_slice *sim_next_in_circle(const struct sim *sim,
				     const struct sim_slice *slice);

/* The sum of the weights of all slices. */
u64 sim_total_weight(const struct sim *sim);

/* The best priority (a small number) of the slices that pass @filter. */
u32 sim_best_priority(const struct sim *sim, sim_filter filter);

static inline bool sim_is_ready(const struct sim *sim,
				const struct sim_slice *slice)
{
	(void)sim;
	return slice->ready;
}

/* Whether the host is in the middle of a request. */
static inline bool sim_is_mid_request(const struct sim *sim,
				      const struct sim_slice *slice)
{
	(void)sim;
	return slice->phase == SIM_LAUNCH || slice->phase == SIM_DRAINED;
}

/* The cap of a slice's group in permille of the engine; 1000 without a cap. */
u32 sim_cap_permille(const struct sim_slice *slice);

/**
 * struct sim_turns - time slicing, which some schedulers extend; timeslice.c
 *
 * @current: the slice whose turn it is or was
 * @since_ns: when its turn began
 */
struct sim_turns {
	struct sim_slice *current;
	u64 since_ns;
};

void sim_turns_pick(struct sim *sim, struct sim_turns *turns, u64 timeslice_ns,
		    struct sim_decision *decision);
void sim_turns_forget(struct sim_turns *turns, const struct sim_slice *slice);

/* Return the simulator's error for a refusal of the core. */
int sim_core_fault(enum vgpu_sched_field field);

extern const struct sim_scheduler sim_core, sim_drr, sim_exclusive, sim_fifo,
	sim_fikit, sim_gemini, sim_gvt_g, sim_hami, sim_kernel_rr, sim_lease, sim_nvshare,
	sim_stride, sim_strict_priority, sim_tgs, sim_timeslice, sim_vcuda;

#endif /* SIM_SCHEDULERS_H */
