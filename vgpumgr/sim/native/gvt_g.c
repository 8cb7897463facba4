// SPDX-License-Identifier: Apache-2.0
/*
 * "gvt_g": the time-based scheduler of Intel GVT-g, the closest public relative
 * of our scheduler (linux, drivers/gpu/drm/i915/gvt/sched_policy.c).  A tick of
 * 1 ms chooses the first client in LRU order that has work and time left.  The
 * engine changes hands when its present kernel is done.  The engine idles if no
 * client qualifies, so a weight is also a cap.  Every 100 ticks each client gets
 * 100 ms * weight / sum of weights more.  Debts and savings are kept, except
 * that every tenth balancing resets them.  Between ticks, an engine whose client
 * has no more work is not handed over, and that client pays.
 *
 * A client that arrives between two resets has no time until the next reset, as
 * in GVT-g.  Left out: several engines, and the idle client's context.
 */
#include "schedulers.h"

#define TICKS_PER_BALANCE	100u
#define BALANCES_PER_RESET	10u

struct gvt {
	struct sim_slice *current;
	struct sim_slice *next;
	bool has_target;		/* @next is valid; NULL means idle */
	u64 since_ns;
	u64 ticks;
	u64 balances;
	u64 lru_seq;
};

struct gvt_client {
	s64 left_ns;
	s64 allocated_ns;
	u64 last_chosen;
};

static struct gvt_client *client_of(const struct sim_slice *slice)
{
	return slice->sched;
}

static void balance(struct sim *sim, struct gvt *state)
{
	bool reset = state->balances++ % BALANCES_PER_RESET == 0;
	u64 period_ns = TICKS_PER_BALANCE * sim->parameters[0];
	u64 total = sim_total_weight(sim);
	struct gvt_client *client;
	u32 i;

	for (i = 0; i < sim->nr_slices; i++) {
		if (sim->slices[i]->removed)
			continue;
		client = client_of(sim->slices[i]);
		if (reset) {
			client->allocated_ns = period_ns / total *
				sim->slices[i]->group->params.weight;
			client->left_ns = 0;
		}
		client->left_ns += client->allocated_ns;
	}
}

static struct sim_slice *least_recently_chosen(const struct sim *sim)
{
	struct sim_slice *slice, *found = NULL;
	u32 i;

	for (i = 0; i < sim->nr_slices; i++) {
		slice = sim->slices[i];
		if (!slice->ready || client_of(slice)->left_ns <= 0)
			continue;
		if (!found ||
		    client_of(slice)->last_chosen < client_of(found)->last_chosen)
			found = slice;
	}
	return found;
}

/* Hand over the engine, which must not be executing. */
static void change_hands(struct sim *sim, struct gvt *state)
{
	if (state->current)
		client_of(state->current)->left_ns -=
			(s64)(sim->now_ns - state->since_ns);
	state->since_ns = sim->now_ns;
	state->current = state->next;
	state->has_target = false;
}

static void gvt_timer(struct sim *sim)
{
	struct gvt *state = sim->sched;

	sim->timer_ns = sim->now_ns + sim->parameters[0];
	if (!sim_total_weight(sim))
		return;
	if (state->ticks++ % TICKS_PER_BALANCE == 0)
		balance(sim, state);
	if (state->has_target)
		return;
	state->next = least_recently_chosen(sim);
	state->has_target = true;
	if (state->next)
		client_of(state->next)->last_chosen = ++state->lru_seq;
}

static void gvt_pick(struct sim *sim, struct sim_decision *decision)
{
	struct gvt *state = sim->sched;

	if (state->has_target) {
		change_hands(sim, state);
		decision->run_ended = state->current == sim->run_slice;
	}
	if (state->current && state->current->ready)
		decision->slice = state->current;
	decision->timeslice_ns = sim->parameters[0];
}

static int gvt_create(struct sim *sim)
{
	sim->timer_ns = sim->parameters[0];
	return 0;
}

static void gvt_remove_slice(struct sim *sim, struct sim_slice *slice)
{
	struct gvt *state = sim->sched;

	if (state->current == slice)
		state->current = NULL;
	if (state->next == slice)
		state->next = NULL;
}

static const struct sim_parameter parameters[] = {
	{ "tick_ns", NS_PER_MS, 10 * NS_PER_US, NS_PER_S },
	{ NULL, 0, 0, 0 },
};

const struct sim_scheduler sim_gvt_g = {
	.name = "gvt_g",
	.parameters = parameters,
	.state_size = sizeof(struct gvt),
	.slice_size = sizeof(struct gvt_client),
	.create = gvt_create,
	.remove_slice = gvt_remove_slice,
	.timer = gvt_timer,
	.pick = gvt_pick,
};
