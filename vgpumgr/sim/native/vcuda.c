// SPDX-License-Identifier: Apache-2.0
/*
 * "vcuda": the limiter of GaiaGPU (ISPA 2018) as in tkestack/vcuda-controller,
 * src/hijack_call.c.  A launch takes as many tokens from its client's pool as
 * the kernel has thread blocks, and sleeps 10 ms at a time while the pool is
 * negative.  Every 120 ms the pool gets a share.  The share grows or shrinks
 * with the distance between the limit (the cap of the group, in percent) and
 * the measured use.  Behind the limiters the driver slices time.
 *
 * The constants are those of a V100, 80 multiprocessors of 2048 threads.  Our
 * kernels have no blocks: they count as work_ns * blocks_per_ms.  NVML's
 * utilization of the last second is the engine time of the last eight ticks.
 * Left out: elastic limits, which vgpumgr/policy has, and several processes per
 * container.
 */
#include "schedulers.h"

#define TICK_NS		(120 * NS_PER_MS)
#define SLEEP_NS	(10 * NS_PER_MS)
#define SMS		80
#define TOTAL		(2048ll * SMS * 32)
#define SAMPLES		8

struct vcuda {
	struct sim_turns turns;
	u64 ticks;
};

struct vcuda_client {
	s64 pool;
	s64 share;
	u64 ran_ns[SAMPLES];
};

static s64 next_share(s64 limit, s64 use, s64 share)
{
	s64 diff = max(limit > use ? limit - use : use - limit, (s64)5);
	s64 step = SMS * SMS * 2048ll / 256 * diff / 10;

	if (diff > limit / 2)
		step = step * diff * 2 / (limit + 1);
	if (use <= limit)
		return min(TOTAL, share + step);
	return max((s64)0, share - step);
}

static u64 blocks_of(const struct sim *sim, u64 work_ns)
{
	return max(work_ns * sim->parameters[1] / NS_PER_MS, (u64)1);
}

static void vcuda_timer(struct sim *sim)
{
	struct vcuda *state = sim->sched;
	struct vcuda_client *client;
	struct sim_slice *slice;
	u64 ran_ns, *oldest;
	s64 use;
	u32 i;

	for (i = 0; i < sim->nr_slices; i++) {
		slice = sim->slices[i];
		client = slice->sched;
		ran_ns = slice->counters.work_ns + slice->counters.overhead_ns;
		oldest = &client->ran_ns[state->ticks % SAMPLES];
		use = (s64)(100 * (ran_ns - *oldest) / (SAMPLES * TICK_NS));
		*oldest = ran_ns;
		client->share = next_share(sim_cap_permille(slice) / 10, use,
					   client->share);
		client->pool = min(TOTAL, client->pool + client->share);
	}
	state->ticks++;
	sim->timer_ns = sim->now_ns + TICK_NS;
}

static u64 vcuda_gate(struct sim *sim, struct sim_slice *slice, u32 kernel)
{
	struct vcuda_client *client = slice->sched;

	if (sim_cap_permille(slice) >= 1000)
		return sim->now_ns;
	if (client->pool < 0)
		return sim->now_ns + SLEEP_NS;
	client->pool -= (s64)blocks_of(sim, slice->program.work_ns[kernel]);
	return sim->now_ns;
}

static int vcuda_create(struct sim *sim)
{
	sim->timer_ns = TICK_NS;
	return 0;
}

static void vcuda_remove_slice(struct sim *sim, struct sim_slice *slice)
{
	struct vcuda *state = sim->sched;

	sim_turns_forget(&state->turns, slice);
}

static void vcuda_pick(struct sim *sim, struct sim_decision *decision)
{
	struct vcuda *state = sim->sched;

	sim_turns_pick(sim, &state->turns, sim->parameters[0], decision);
}

static const struct sim_parameter parameters[] = {
	{ "timeslice_ns", 2 * NS_PER_MS, 10 * NS_PER_US, NS_PER_S },
	{ "blocks_per_ms", 40000, 1, 1000000 },
	{ NULL, 0, 0, 0 },
};

const struct sim_scheduler sim_vcuda = {
	.name = "vcuda",
	.parameters = parameters,
	.state_size = sizeof(struct vcuda),
	.slice_size = sizeof(struct vcuda_client),
	.create = vcuda_create,
	.remove_slice = vcuda_remove_slice,
	.gate = vcuda_gate,
	.timer = vcuda_timer,
	.pick = vcuda_pick,
};
