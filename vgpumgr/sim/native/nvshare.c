// SPDX-License-Identifier: Apache-2.0
/*
 * "nvshare": one lock on the whole GPU, granted in the order of requests
 * (grgalex/nvshare, src/scheduler.c and src/client.c).  Its holder keeps it for
 * a time quantum of 30 s, or until it has launched nothing for 5 s, and then
 * queues again.  Work launched before the end of the quantum still runs: one
 * kernel here, a whole window of launches in nvshare.  Left out: paging of
 * memory, which is the reason for the long quantum.
 */
#include "schedulers.h"

struct nvshare {
	struct sim_slice *holder;
	u64 since_ns;
	u64 idle_since_ns;
	u64 seq;
};

struct nvshare_client {
	u64 asked;			/* position in the queue; 0: none */
};

static struct nvshare_client *client_of(const struct sim_slice *slice)
{
	return slice->sched;
}

static struct sim_slice *first_in_queue(const struct sim *sim)
{
	struct sim_slice *found = NULL;
	u64 asked;
	u32 i;

	for (i = 0; i < sim->nr_slices; i++) {
		asked = client_of(sim->slices[i])->asked;
		if (asked && (!found || asked < client_of(found)->asked))
			found = sim->slices[i];
	}
	return found;
}

static void nvshare_wake(struct sim *sim, struct sim_slice *slice)
{
	struct nvshare *state = sim->sched;

	if (slice != state->holder && !client_of(slice)->asked)
		client_of(slice)->asked = ++state->seq;
}

static void nvshare_sleep(struct sim *sim, struct sim_slice *slice)
{
	struct nvshare *state = sim->sched;

	if (slice == state->holder)
		state->idle_since_ns = sim->now_ns;
}

/* Return when the holder has to release the lock. */
static u64 release_ns(const struct sim *sim, const struct nvshare *state)
{
	u64 end_ns = state->since_ns + sim->parameters[0];

	if (!state->holder->ready)
		end_ns = min(end_ns, state->idle_since_ns + sim->parameters[1]);
	return end_ns;
}

static void nvshare_pick(struct sim *sim, struct sim_decision *decision)
{
	struct nvshare *state = sim->sched;

	if (state->holder && release_ns(sim, state) <= sim->now_ns) {
		if (state->holder->ready)
			client_of(state->holder)->asked = ++state->seq;
		state->holder = NULL;
	}
	if (!state->holder) {
		state->holder = first_in_queue(sim);
		if (!state->holder)
			return;
		client_of(state->holder)->asked = 0;
		state->since_ns = sim->now_ns;
		state->idle_since_ns = sim->now_ns;
		decision->run_ended = state->holder == sim->run_slice;
	}
	decision->timeslice_ns = sim->parameters[0];
	if (state->holder->ready)
		decision->slice = state->holder;
	else
		decision->wake_at_ns = release_ns(sim, state);
}

static void nvshare_remove_slice(struct sim *sim, struct sim_slice *slice)
{
	struct nvshare *state = sim->sched;

	client_of(slice)->asked = 0;
	if (state->holder == slice)
		state->holder = NULL;
}

static const struct sim_parameter parameters[] = {
	{ "quantum_ns", 30 * NS_PER_S, NS_PER_MS, 3600 * NS_PER_S },
	{ "idle_release_ns", 5 * NS_PER_S, NS_PER_MS, 3600 * NS_PER_S },
	{ NULL, 0, 0, 0 },
};

const struct sim_scheduler sim_nvshare = {
	.name = "nvshare",
	.parameters = parameters,
	.state_size = sizeof(struct nvshare),
	.slice_size = sizeof(struct nvshare_client),
	.remove_slice = nvshare_remove_slice,
	.wake = nvshare_wake,
	.sleep = nvshare_sleep,
	.pick = nvshare_pick,
};
