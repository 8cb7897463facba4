// SPDX-License-Identifier: Apache-2.0
/*
 * "gemini": the token of Gemini (TCC 2021) and KubeShare (HPDC 2020), after
 * src/scheduler.cpp of NTHU-LSALAB/Gemini.  One client at a time holds a token
 * and executes.  The token is valid for a quota of 250 ms, used or not.  A
 * client is eligible if its tokens of the last 10 s are less than its limit
 * (the cap of the group).  The next token goes to the client that lacks the
 * largest part of its request (its weight over the sum of weights), then to the
 * one that used least.  If all clients are at their limit, they wait until the
 * oldest token leaves the window.  Time that a kernel takes beyond the quota is
 * added to the client's use.
 *
 * Left out: the adaptation of the quota to bursts of launches.  (The published
 * repository replaces all of it by quotas of 6 s in hook.cpp.)
 */
#include "schedulers.h"

/* More tokens than fit a window; the extreme parameters give 1000. */
#define HISTORY		1024u

struct token {
	struct sim_slice *slice;
	u64 start_ns;
	u64 end_ns;
};

struct gemini {
	struct sim_slice *holder;
	u64 nr;
	struct token history[HISTORY];
};

static struct token *nth(struct gemini *state, u64 i)
{
	return &state->history[i % HISTORY];
}

static u64 oldest(const struct gemini *state)
{
	return state->nr > HISTORY ? state->nr - HISTORY : 0;
}

static u64 window_start(const struct sim *sim)
{
	return sim->now_ns > sim->parameters[1] ?
	       sim->now_ns - sim->parameters[1] : 0;
}

static u64 used_ns(const struct sim *sim, struct gemini *state,
		   const struct sim_slice *slice)
{
	u64 i, used = 0, start_ns = window_start(sim);
	const struct token *token;

	for (i = oldest(state); i < state->nr; i++) {
		token = nth(state, i);
		if (token->slice == slice && token->end_ns > start_ns)
			used += token->end_ns - max(token->start_ns, start_ns);
	}
	return used;
}

/* The lacking part of the request in permille; 0 if the request is met. */
static u64 lacking_permille(const struct sim *sim, const struct sim_slice *slice,
			    u64 used, u64 window_ns)
{
	u64 requested = window_ns / sim_total_weight(sim) *
			slice->group->params.weight;

	if (used >= requested)
		return 0;
	return 1000 * ((requested - used) / NS_PER_US) /
	       max(requested / NS_PER_US, (u64)1);
}

static struct sim_slice *select(const struct sim *sim, struct gemini *state)
{
	u64 window_ns = sim->now_ns - window_start(sim);
	u64 used, lacking, best_used = 0, best_lacking = 0;
	struct sim_slice *slice, *best = NULL;
	u32 i;

	for (i = 0; i < sim->nr_slices; i++) {
		slice = sim->slices[i];
		if (!slice->ready)
			continue;
		used = used_ns(sim, state, slice);
		if (used && used >= window_ns / 1000 * sim_cap_permille(slice))
			continue;
		lacking = lacking_permille(sim, slice, used, window_ns);
		if (best && (lacking < best_lacking ||
			     (lacking == best_lacking && used >= best_used)))
			continue;
		best = slice;
		best_used = used;
		best_lacking = lacking;
	}
	return best;
}

/* Return when the oldest token that counts leaves the window. */
static u64 window_moves_ns(const struct sim *sim, struct gemini *state)
{
	u64 i, start_ns = window_start(sim);

	for (i = oldest(state); i < state->nr; i++)
		if (nth(state, i)->end_ns > start_ns)
			return nth(state, i)->end_ns + sim->parameters[1];
	return SIM_NEVER;
}

static void gemini_pick(struct sim *sim, struct sim_decision *decision)
{
	struct gemini *state = sim->sched;
	struct token *token = state->nr ? nth(state, state->nr - 1) : NULL;

	if (state->holder && token->end_ns <= sim->now_ns) {
		if (sim->run_slice == state->holder)
			token->end_ns = sim->now_ns;
		state->holder = NULL;
	}
	if (!state->holder) {
		state->holder = select(sim, state);
		if (!state->holder) {
			decision->wake_at_ns = window_moves_ns(sim, state);
			return;
		}
		token = nth(state, state->nr++);
		*token = (struct token){
			.slice = state->holder,
			.start_ns = sim->now_ns,
			.end_ns = sim->now_ns + sim->parameters[0],
		};
		decision->run_ended = state->holder == sim->run_slice;
	}
	decision->timeslice_ns = sim->parameters[0];
	if (state->holder->ready) {
		decision->slice = state->holder;
		decision->limit_ns = token->end_ns - sim->now_ns;
	} else {
		decision->wake_at_ns = token->end_ns;
	}
}

static void gemini_remove_slice(struct sim *sim, struct sim_slice *slice)
{
	struct gemini *state = sim->sched;

	if (state->holder == slice)
		state->holder = NULL;
}

static const struct sim_parameter parameters[] = {
	{ "quota_ns", 250 * NS_PER_MS, 100 * NS_PER_MS, 10 * NS_PER_S },
	{ "window_ns", 10 * NS_PER_S, 100 * NS_PER_MS, 100 * NS_PER_S },
	{ NULL, 0, 0, 0 },
};

const struct sim_scheduler sim_gemini = {
	.name = "gemini",
	.parameters = parameters,
	.state_size = sizeof(struct gemini),
	.remove_slice = gemini_remove_slice,
	.pick = gemini_pick,
};
