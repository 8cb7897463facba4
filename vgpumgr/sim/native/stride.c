// SPDX-License-Identifier: Apache-2.0
/*
 * "stride": stride scheduling (Waldspurger and Weihl, MIT/LCS/TM-528, 1995).  A
 * client's pass grows by the time it ran over its weight; the client with the
 * least pass runs next, for a quantum.  The global pass grows by the elapsed
 * time over all active weight.  A client that leaves keeps its distance to the
 * global pass, and joins again at that distance.
 */
#include "schedulers.h"

#define STRIDE_SHIFT	20

struct stride {
	u64 global_pass;
	u64 weight;
	struct sim_slice *current;
	u64 used_ns;
};

struct stride_client {
	u64 pass;
	s64 remain;
	u32 weight;
	bool active;
};

static void join(struct stride *state, struct sim_slice *slice)
{
	struct stride_client *client = slice->sched;

	client->pass = state->global_pass + (u64)client->remain;
	client->weight = slice->group->params.weight;
	client->active = true;
	state->weight += client->weight;
}

static void leave(struct stride *state, struct sim_slice *slice)
{
	struct stride_client *client = slice->sched;

	if (!client->active)
		return;
	client->remain = (s64)(client->pass - state->global_pass);
	client->active = false;
	state->weight -= client->weight;
	if (state->current == slice)
		state->current = NULL;
}

static void stride_wake(struct sim *sim, struct sim_slice *slice)
{
	join(sim->sched, slice);
}

static void stride_sleep(struct sim *sim, struct sim_slice *slice)
{
	leave(sim->sched, slice);
}

static void stride_ran(struct sim *sim, struct sim_slice *slice, u64 ns)
{
	struct stride *state = sim->sched;
	struct stride_client *client = slice->sched;

	state->used_ns += ns;
	client->pass += (ns << STRIDE_SHIFT) / client->weight;
	state->global_pass += (ns << STRIDE_SHIFT) / state->weight;
	/* A new weight applies from the next quantum on. */
	if (client->weight != slice->group->params.weight) {
		leave(state, slice);
		client->remain = client->remain * client->weight /
				 (s64)slice->group->params.weight;
		join(state, slice);
	}
}

static void stride_pick(struct sim *sim, struct sim_decision *decision)
{
	struct stride *state = sim->sched;
	struct sim_slice *slice, *first = NULL;
	u64 quantum_ns = sim->parameters[0];
	u32 i;

	if (!state->current || state->used_ns >= quantum_ns) {
		for (i = 0; i < sim->nr_slices; i++) {
			slice = sim->slices[i];
			if (!slice->ready)
				continue;
			if (!first || (s64)(((struct stride_client *)slice->sched)->pass -
					    ((struct stride_client *)first->sched)->pass) < 0)
				first = slice;
		}
		state->current = first;
		state->used_ns = 0;
		decision->run_ended = first && first == sim->run_slice;
	}
	decision->slice = state->current;
	decision->limit_ns = quantum_ns - state->used_ns;
	decision->timeslice_ns = quantum_ns;
}

static const struct sim_parameter parameters[] = {
	{ "quantum_ns", NS_PER_MS, 10 * NS_PER_US, NS_PER_S },
	{ NULL, 0, 0, 0 },
};

const struct sim_scheduler sim_stride = {
	.name = "stride",
	.parameters = parameters,
	.state_size = sizeof(struct stride),
	.slice_size = sizeof(struct stride_client),
	.remove_slice = stride_sleep,
	.wake = stride_wake,
	.sleep = stride_sleep,
	.ran = stride_ran,
	.pick = stride_pick,
};
