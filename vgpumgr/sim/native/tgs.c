// SPDX-License-Identifier: Apache-2.0
/*
 * "tgs": the rate control of TGS (NSDI 2023),
 * hijack/src/low_priority_hijack_call.c of pkusys/TGS.  Every 50 ms the launch
 * rate of the production job (priority 0) is compared with its best rate.  The
 * harm is the part by which it is lower.  If the harm is at most 3 %, the limit
 * of the opportunistic jobs (all others together) grows; otherwise it shrinks.
 * Slow start multiplies the limit by 1.5 until the harm is larger than 3 % for
 * the first time.  After that, 0.025 % of the production rate (at least 1000) is
 * added to the limit, or 8 % of the limit is taken away.  At 9 % harm the limit
 * falls to a tenth and slow start begins again.  After twenty intervals in a row
 * with 12 % harm, the best rate is multiplied by 0.8.  While the production job
 * launches nothing, there is no limit.  Launches within the limit are
 * time-sliced by the driver.
 *
 * A rate is a number of thread blocks per 50 ms; here that is work_ns *
 * blocks_per_ms.  The best rate is the largest mean of two adjacent intervals,
 * from the first five intervals of a job's activity on.  Slow start begins at a
 * limit of 1000.  Left out: repeated profiling when that rate changes by a
 * fifth, unified memory, and its transfer when a job ends.
 */
#include "schedulers.h"

#define INTERVAL_NS	(50 * NS_PER_MS)
#define RETRY_NS	NS_PER_MS
#define PROFILE		5u
#define RATE_MIN	1000ull
#define IDLE_BELOW	1000ull
#define HARMS		20u

enum tgs_mode { TGS_PROFILE, TGS_SLOW_START, TGS_AVOIDANCE };

struct tgs {
	struct sim_turns turns;
	enum tgs_mode mode;
	u32 intervals;
	u32 harms;
	u64 production;			/* launched in this interval */
	u64 last;			/* in the interval before */
	u64 best;
	u64 opportunistic;
	u64 limit;
};

static void adapt(struct tgs *state, u64 rate)
{
	u64 away = rate > state->best ? rate - state->best : state->best - rate;
	u64 harm = 1000 * away / state->best;

	if (state->mode == TGS_SLOW_START) {
		if (harm <= 30) {
			state->limit += state->limit / 2 + 1;
		} else {
			state->limit = state->limit * 2 / 3;
			state->mode = TGS_AVOIDANCE;
		}
	} else if (harm <= 30) {
		state->limit += max(state->best / 4000, RATE_MIN);
	} else {
		state->limit -= min(state->limit,
				    max(state->limit * 8 / 100, RATE_MIN));
		if (harm >= 90) {
			state->mode = TGS_SLOW_START;
			state->limit /= 10;
		}
	}
	state->limit = min(state->limit, 1ull << 40);
	state->harms = harm >= 120 ? state->harms + 1 : 0;
	if (state->harms == HARMS) {
		state->harms = 0;
		state->best = state->best * 8 / 10;
		state->mode = TGS_SLOW_START;
		state->limit /= 2;
	}
}

static void tgs_timer(struct sim *sim)
{
	struct tgs *state = sim->sched;
	u64 rate = state->production;

	if (rate < IDLE_BELOW && state->last < IDLE_BELOW) {
		state->mode = TGS_PROFILE;
		state->intervals = 0;
		state->best = 0;
		state->limit = SIM_NO_LIMIT;
	} else {
		state->best = max(state->best, (rate + state->last) / 2);
		state->intervals++;
		if (state->mode != TGS_PROFILE) {
			adapt(state, rate);
		} else if (state->intervals >= PROFILE) {
			state->mode = TGS_SLOW_START;
			state->limit = RATE_MIN;
		} else {
			state->limit = 0;
		}
	}
	state->last = rate;
	state->production = 0;
	state->opportunistic = 0;
	sim->timer_ns = sim->now_ns + INTERVAL_NS;
}

static u64 tgs_gate(struct sim *sim, struct sim_slice *slice, u32 kernel)
{
	struct tgs *state = sim->sched;
	u64 blocks = max(slice->program.work_ns[kernel] * sim->parameters[1] /
			 NS_PER_MS, (u64)1);

	if (!slice->group->priority) {
		state->production += blocks;
		return sim->now_ns;
	}
	if (state->opportunistic > state->limit)
		return sim->now_ns + RETRY_NS;
	state->opportunistic += blocks;
	return sim->now_ns;
}

static int tgs_create(struct sim *sim)
{
	struct tgs *state = sim->sched;

	state->limit = SIM_NO_LIMIT;
	sim->timer_ns = INTERVAL_NS;
	return 0;
}

static void tgs_remove_slice(struct sim *sim, struct sim_slice *slice)
{
	struct tgs *state = sim->sched;

	sim_turns_forget(&state->turns, slice);
}

static void tgs_pick(struct sim *sim, struct sim_decision *decision)
{
	struct tgs *state = sim->sched;

	sim_turns_pick(sim, &state->turns, sim->parameters[0], decision);
}

static const struct sim_parameter parameters[] = {
	{ "timeslice_ns", 2 * NS_PER_MS, 10 * NS_PER_US, NS_PER_S },
	{ "blocks_per_ms", 40000, 1, 1000000 },
	{ NULL, 0, 0, 0 },
};

const struct sim_scheduler sim_tgs = {
	.name = "tgs",
	.parameters = parameters,
	.state_size = sizeof(struct tgs),
	.create = tgs_create,
	.remove_slice = tgs_remove_slice,
	.gate = tgs_gate,
	.timer = tgs_timer,
	.pick = tgs_pick,
};
