// SPDX-License-Identifier: Apache-2.0
/*
 * "timeslice": the behaviour of a GPU's driver when several processes use it.
 * Each process's context in turn has the engine for one timeslice, or until it
 * has no work.  NVIDIA's default is about 2 ms (nvidia-smi compute-policy calls
 * 2 ms "default").  NVIDIA's driver switches in the middle of a kernel, so use
 * a preemptible engine for it.  Other drivers wait for the end of the kernel.
 * No weights.
 */
#include "schedulers.h"

void sim_turns_pick(struct sim *sim, struct sim_turns *turns, u64 timeslice_ns,
		    struct sim_decision *decision)
{
	u64 used_ns = sim->now_ns - turns->since_ns;

	if (!turns->current || !turns->current->ready || used_ns >= timeslice_ns) {
		turns->current = sim_next_in_circle(sim, turns->current);
		turns->since_ns = sim->now_ns;
		used_ns = 0;
		decision->run_ended = turns->current == sim->run_slice;
	}
	decision->slice = turns->current;
	decision->limit_ns = timeslice_ns - used_ns;
	decision->timeslice_ns = timeslice_ns;
}

void sim_turns_forget(struct sim_turns *turns, const struct sim_slice *slice)
{
	if (turns->current == slice)
		turns->current = NULL;
}

static void timeslice_pick(struct sim *sim, struct sim_decision *decision)
{
	sim_turns_pick(sim, sim->sched, sim->parameters[0], decision);
}

static void timeslice_remove_slice(struct sim *sim, struct sim_slice *slice)
{
	sim_turns_forget(sim->sched, slice);
}

static const struct sim_parameter parameters[] = {
	{ "timeslice_ns", 2 * NS_PER_MS, 10 * NS_PER_US, NS_PER_S },
	{ NULL, 0, 0, 0 },
};

const struct sim_scheduler sim_timeslice = {
	.name = "timeslice",
	.parameters = parameters,
	.state_size = sizeof(struct sim_turns),
	.remove_slice = timeslice_remove_slice,
	.pick = timeslice_pick,
};
