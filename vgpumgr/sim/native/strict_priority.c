// SPDX-License-Identifier: Apache-2.0
/*
 * "strict_priority": the kernel of the best priority first; among equal
 * priorities the kernel launched first.  This is the "highest priority first"
 * policy of XSched (OSDI 2025), and the priority queues of FIKIT without its
 * filling.  A preemptible engine is taken away from a worse priority at once.
 */
#include "schedulers.h"

static bool is_best(const struct sim *sim, const struct sim_slice *slice)
{
	return slice->group->priority == sim_best_priority(sim, sim_is_ready);
}

static void priority_pick(struct sim *sim, struct sim_decision *decision)
{
	decision->slice = sim_oldest_launch(sim, is_best);
}

static bool priority_preempts(struct sim *sim)
{
	return sim->running->group->priority >
	       sim_best_priority(sim, sim_is_ready);
}

const struct sim_scheduler sim_strict_priority = {
	.name = "strict_priority",
	.pick = priority_pick,
	.preempts = priority_preempts,
};
