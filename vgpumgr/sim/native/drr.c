// SPDX-License-Identifier: Apache-2.0
/*
 * "drr": deficit round robin (Shreedhar and Varghese, SIGCOMM 1995).  Each turn
 * adds a quantum to a client's deficit counter.  The client executes kernels
 * while they fit into the counter.  A client without kernels loses its counter.
 * The least weight gets quantum_ns per turn, others in proportion.  Like a router
 * that sees packet lengths, this scheduler knows how long kernels take, which
 * no GPU does.
 */
#include "schedulers.h"

struct drr {
	struct sim_slice *turn;
};

struct drr_client {
	u64 deficit_ns;
};

static u64 quantum_ns(const struct sim *sim, const struct sim_slice *slice)
{
	u32 i, least = UINT32_MAX;

	for (i = 0; i < sim->nr_slices; i++)
		if (!sim->slices[i]->removed)
			least = min(least, sim->slices[i]->group->params.weight);
	return sim->parameters[0] * slice->group->params.weight / least;
}

static void drr_pick(struct sim *sim, struct sim_decision *decision)
{
	struct drr *state = sim->sched;
	struct drr_client *client;

	if (!sim_next_in_circle(sim, NULL))
		return;
	while (!state->turn || !state->turn->ready ||
	       ((struct drr_client *)state->turn->sched)->deficit_ns <
	       sim_head(state->turn)->left_ns) {
		state->turn = sim_next_in_circle(sim, state->turn);
		client = state->turn->sched;
		client->deficit_ns += quantum_ns(sim, state->turn);
		decision->run_ended = state->turn == sim->run_slice;
	}
	decision->slice = state->turn;
}

static void drr_ran(struct sim *sim, struct sim_slice *slice, u64 ns)
{
	struct drr_client *client = slice->sched;

	(void)sim;
	client->deficit_ns -= min(client->deficit_ns, ns);
}

static void drr_sleep(struct sim *sim, struct sim_slice *slice)
{
	(void)sim;
	((struct drr_client *)slice->sched)->deficit_ns = 0;
}

static void drr_remove_slice(struct sim *sim, struct sim_slice *slice)
{
	struct drr *state = sim->sched;

	if (state->turn == slice)
		state->turn = NULL;
}

static const struct sim_parameter parameters[] = {
	{ "quantum_ns", NS_PER_MS, 10 * NS_PER_US, NS_PER_S },
	{ NULL, 0, 0, 0 },
};

const struct sim_scheduler sim_drr = {
	.name = "drr",
	.parameters = parameters,
	.state_size = sizeof(struct drr),
	.slice_size = sizeof(struct drr_client),
	.remove_slice = drr_remove_slice,
	.sleep = drr_sleep,
	.ran = drr_ran,
	.pick = drr_pick,
};
