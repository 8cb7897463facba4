// SPDX-License-Identifier: Apache-2.0
/*
 * "hami": the priority gate of HAMi (HAMi-core,
 * multiprocess_utilization_watcher.c, and cmd/vGPUmonitor/feedback.go of HAMi).
 * A monitor checks every 5 s which clients are active, which means that they
 * have launched recently.  A client is blocked while one of better priority is
 * active.  A blocked launch sleeps 1 s and checks again.  A launch sets a
 * counter to 2, each check of the monitor decrements it, and a client with a
 * counter above 0 is active.  Behind the gate the driver slices time.
 *
 * Left out: the limiter of utilization, which is that of "vcuda".
 */
#include "schedulers.h"

struct hami {
	struct sim_turns turns;
};

struct hami_client {
	int recent_kernel;
	bool active;
};

static struct hami_client *client_of(const struct sim_slice *slice)
{
	return slice->sched;
}

static bool is_active(const struct sim *sim, const struct sim_slice *slice)
{
	(void)sim;
	return !slice->removed && client_of(slice)->active;
}

static void hami_timer(struct sim *sim)
{
	struct hami_client *client;
	u32 i, best;

	for (i = 0; i < sim->nr_slices; i++) {
		client = client_of(sim->slices[i]);
		client->active = client->recent_kernel > 0;
		if (client->active)
			client->recent_kernel--;
	}
	best = sim_best_priority(sim, is_active);
	for (i = 0; i < sim->nr_slices; i++) {
		client = client_of(sim->slices[i]);
		if (sim->slices[i]->group->priority > best)
			client->recent_kernel = -1;
		else if (client->recent_kernel < 0)
			client->recent_kernel = 0;
	}
	sim->timer_ns = sim->now_ns + sim->parameters[1];
}

static u64 hami_gate(struct sim *sim, struct sim_slice *slice, u32 kernel)
{
	(void)kernel;
	if (client_of(slice)->recent_kernel < 0)
		return sim->now_ns + sim->parameters[2];
	client_of(slice)->recent_kernel = 2;
	return sim->now_ns;
}

static int hami_create(struct sim *sim)
{
	sim->timer_ns = sim->parameters[1];
	return 0;
}

static void hami_remove_slice(struct sim *sim, struct sim_slice *slice)
{
	struct hami *state = sim->sched;

	sim_turns_forget(&state->turns, slice);
}

static void hami_pick(struct sim *sim, struct sim_decision *decision)
{
	struct hami *state = sim->sched;

	sim_turns_pick(sim, &state->turns, sim->parameters[0], decision);
}

static const struct sim_parameter parameters[] = {
	{ "timeslice_ns", 2 * NS_PER_MS, 10 * NS_PER_US, NS_PER_S },
	{ "monitor_ns", 5 * NS_PER_S, NS_PER_MS, 60 * NS_PER_S },
	{ "sleep_ns", NS_PER_S, NS_PER_MS, 60 * NS_PER_S },
	{ NULL, 0, 0, 0 },
};

const struct sim_scheduler sim_hami = {
	.name = "hami",
	.parameters = parameters,
	.state_size = sizeof(struct hami),
	.slice_size = sizeof(struct hami_client),
	.create = hami_create,
	.remove_slice = hami_remove_slice,
	.gate = hami_gate,
	.timer = hami_timer,
	.pick = hami_pick,
};
