// SPDX-License-Identifier: Apache-2.0
/*
 * "kernel_rr": one kernel of each client in turn, like round robin between
 * hardware queues.  Fair in launches, not in time: a client with longer kernels
 * gets more of the engine.
 */
#include "schedulers.h"

struct kernel_rr {
	struct sim_slice *last;
};

static void kernel_rr_pick(struct sim *sim, struct sim_decision *decision)
{
	struct kernel_rr *state = sim->sched;

	decision->slice = sim_next_in_circle(sim, state->last);
	if (decision->slice)
		state->last = decision->slice;
}

static void kernel_rr_remove_slice(struct sim *sim, struct sim_slice *slice)
{
	struct kernel_rr *state = sim->sched;

	if (state->last == slice)
		state->last = NULL;
}

const struct sim_scheduler sim_kernel_rr = {
	.name = "kernel_rr",
	.state_size = sizeof(struct kernel_rr),
	.remove_slice = kernel_rr_remove_slice,
	.pick = kernel_rr_pick,
};
