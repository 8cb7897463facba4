// SPDX-License-Identifier: Apache-2.0
/*
 * "exclusive": the whole engine for one client at a time, in the order of their
 * first launches, until the client's host program has ended.  Clusters that
 * allocate whole accelerators do this (Kubernetes' device plugins).  To learn how
 * long a request takes on an engine of its own, simulate a single slice
 * instead.
 */
#include "schedulers.h"

struct exclusive {
	struct sim_slice *owner;
};

static void exclusive_pick(struct sim *sim, struct sim_decision *decision)
{
	struct exclusive *state = sim->sched;
	struct sim_slice *owner = state->owner;

	if (!owner || (owner->phase == SIM_FINISHED && !owner->queued))
		state->owner = sim_oldest_launch(sim, NULL);
	if (state->owner && state->owner->ready)
		decision->slice = state->owner;
}

static void exclusive_remove_slice(struct sim *sim, struct sim_slice *slice)
{
	struct exclusive *state = sim->sched;

	if (state->owner == slice)
		state->owner = NULL;
}

const struct sim_scheduler sim_exclusive = {
	.name = "exclusive",
	.state_size = sizeof(struct exclusive),
	.remove_slice = exclusive_remove_slice,
	.pick = exclusive_pick,
};
