// SPDX-License-Identifier: Apache-2.0
/*
 * Throws random calls at the scheduler core, mostly legal but senseless, to be
 * built with sanitizers.  After every call it checks the queues' definitions from
 * scratch: sums of weights, lags and charges, who is in band L, and that idle
 * means nobody could run, a hold, or a ghost's turn.  Parameters that are refused
 * must have been refused by the check, and have changed nothing.
 *
 *	random_events SEED CALLS
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "vgpu_sched.h"

#define GROUPS	12
#define SLICES	40

static struct vgpu_sched sched;
static struct vgpu_group *groups[GROUPS];
static struct vgpu_slice *slices[SLICES];
static u64 start_ns, now_ns, gone_ns, state, idles[4];

#define REQUIRE(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			abort(); \
		} \
	} while (0)

static u64 random_u64(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static u64 below(u64 limit)
{
	return random_u64() % limit;
}

static u64 some_time(void)
{
	static const u64 scales[] = { 1, 2, 1000, 100000, 1000000, 30000000, 1ull << 36 };

	return below(scales[below(below(50) ? 6 : 7)] + 1);
}

static u32 some_weight(void)
{
	static const u32 weights[] = { 1, 2, 3, 100, 1000, 10000 };

	return below(4) ? weights[below(6)] : 1 + below(10000);
}

static void some_cap(u64 *cap, u64 *period, u64 *burst)
{
	*cap = 0;
	if (below(2))
		return;
	*period = VGPU_CAP_PERIOD_MIN_NS +
		  below(below(2) ? 10000000 : VGPU_CAP_PERIOD_MAX_NS - VGPU_CAP_PERIOD_MIN_NS);
	*cap = *period / 1000 + 1 + below(*period - *period / 1000);
	*burst = below(2) ? 0 : 20000 + below(below(2) ? 5000000 : VGPU_BURST_MAX_NS - 20000);
}

static struct vgpu_group_params some_group(void)
{
	struct vgpu_group_params params = {
		.weight = some_weight(),
		.timeslice_ns = 20000 + below(below(9) ? 4000000 : 900000000),
	};

	if (sched.params.policy == VGPU_POLICY_FIXED_SHARE)
		params.mode = VGPU_MODE_STRICT;
	if (sched.params.policy)
		return params;
	some_cap(&params.cap_ns, &params.cap_period_ns, &params.burst_ns);
	if (below(2))
		return params;
	params.band = VGPU_BAND_LATENCY;
	params.reserve_period_ns = 32000000 + below(100000000);
	params.reserve_ns = 20000 + below(params.reserve_period_ns / (1 + below(50)));
	params.hold_max_ns = below(3) ? below(5000000) : 0;
	params.inversion_permille = below(2) ? below(1001) : 0;
	params.inversion_burst_ns = below(2) ? below(10000000) : 0;
	return params;
}

static struct vgpu_item_info some_item(void)
{
	return (struct vgpu_item_info){
		.kernel_id = below(below(4) ? 5 : 1000),
		.flags = below(3) ? VGPU_ITEM_MORE : 0,
		.hint_ns = below(2) ? below(8000000) : 0,
	};
}

static struct vgpu_slice_params some_slice(void)
{
	struct vgpu_slice_params params = { .weight = some_weight() };

	if (!sched.params.policy)
		some_cap(&params.cap_ns, &params.cap_period_ns, &params.burst_ns);
	return params;
}

/* sum(w) and sum(w * (v - V)) from the entities themselves */
static void check_queue(const struct vgpu_queue *queue, u64 weight, s64 sum,
			u32 ready)
{
	REQUIRE(queue->weight == weight);
	REQUIRE(queue->nr_ready == ready);
	if (weight) {
		REQUIRE(sum == (s64)queue->vtime_rem);
		REQUIRE(queue->vtime_rem < weight);
	}
}

static s64 lag_sum(const struct vgpu_queue *queue, const struct vgpu_entity *entity)
{
	return (s64)(entity->weight * (entity->node.key - queue->vtime));
}

/* Band L, and who waits for it, from the groups themselves. */
static void check_band(const struct vgpu_group *group)
{
	const struct vgpu_reserve *reserve = &group->reserve;
	bool latency = group->params.band == VGPU_BAND_LATENCY && group->entity.ready;
	struct vgpu_node **tree = reserve->budget_ns > 0 ? &sched.latency : &sched.demoted;

	REQUIRE(reserve->tree == (latency ? tree : NULL));
	REQUIRE(!latency || reserve->node.key == reserve->deadline_ns);
	REQUIRE(reserve->budget_ns <= (s64)group->params.reserve_ns);
	REQUIRE(group->inversion.credit_ns <= (s64)group->inversion.burst_ns);
}

static void check(void)
{
	u64 weight = sched.unsold.member ? sched.unsold.weight : 0;
	s64 sum = sched.unsold.member ? lag_sum(&sched.queue, &sched.unsold) : 0;
	u64 charged = gone_ns;
	u32 ready = sched.unsold.ready;

	for (int i = 0; i < GROUPS; i++) {
		const struct vgpu_group *group = groups[i];
		u64 inner_weight = 0, inner_charged = 0;
		u32 inner_ready = 0;
		s64 inner_sum = 0;

		if (!group)
			continue;
		vgpu_group_settle(groups[i]);
		charged += group->stats.run_ns;
		check_band(group);
		ready += group->entity.ready;
		REQUIRE(!group->bucket.cap_ns ||
			group->bucket.credit_ns <= (s64)group->bucket.burst_ns);
		if (group->entity.member) {
			weight += group->entity.weight;
			sum += lag_sum(&sched.queue, &group->entity);
		}
		for (int j = 0; j < SLICES; j++) {
			const struct vgpu_slice *slice = slices[j];

			if (!slice || slice->group != group)
				continue;
			vgpu_slice_settle(slices[j]);
			inner_charged += slice->stats.run_ns;
			inner_ready += slice->entity.ready;
			if (slice->entity.member) {
				inner_weight += slice->entity.weight;
				inner_sum += lag_sum(&group->queue, &slice->entity);
			}
		}
		REQUIRE(inner_charged <= group->stats.run_ns);
		check_queue(&group->queue, inner_weight, inner_sum, inner_ready);
	}
	check_queue(&sched.queue, weight, sum, ready);
	REQUIRE(sched.stats.wall_ns == now_ns - start_ns);
	REQUIRE(sched.stats.idle_ns + charged == sched.stats.wall_ns);
}

static void change_groups(int i)
{
	struct vgpu_group_params params = some_group();
	enum vgpu_sched_field fault;

	if (!groups[i]) {
		groups[i] = calloc(1, sizeof(*groups[i]));
		fault = vgpu_group_params_check(&sched, NULL, &params);
		REQUIRE(vgpu_group_add(&sched, groups[i], &params, now_ns) == fault);
		if (fault) {
			free(groups[i]);
			groups[i] = NULL;
			return;
		}
		REQUIRE(vgpu_group_add(&sched, groups[i], &params, now_ns) == VGPU_FIELD_ADDED);
	} else if (below(4)) {
		fault = vgpu_group_params_check(&sched, groups[i], &params);
		REQUIRE(vgpu_group_update(&sched, groups[i], &params, now_ns) == fault);
	} else if (!vgpu_group_remove(&sched, groups[i], now_ns)) {
		gone_ns += groups[i]->stats.run_ns;
		free(groups[i]);
		groups[i] = NULL;
	}
}

static void change_slices(int j)
{
	struct vgpu_slice_params params = some_slice();
	int i = below(GROUPS);

	if (!slices[j]) {
		if (!groups[i])
			return;
		if (sched.nr_slices == sched.params.places && sched.params.places)
			return;
		slices[j] = calloc(1, sizeof(*slices[j]));
		REQUIRE(!vgpu_slice_add(&sched, groups[i], slices[j], &params, now_ns));
	} else if (below(3)) {
		REQUIRE(!vgpu_slice_update(&sched, slices[j], &params, now_ns));
	} else {
		REQUIRE(!vgpu_slice_remove(&sched, slices[j], now_ns));
		REQUIRE(vgpu_slice_remove(&sched, slices[j], now_ns) == VGPU_FIELD_ABSENT);
		free(slices[j]);
		slices[j] = NULL;
	}
}

static void pick(void)
{
	struct vgpu_decision decision;

	REQUIRE(!vgpu_sched_pick(&sched, now_ns, &decision));
	REQUIRE(!vgpu_sched_is_urgent(&sched));
	idles[decision.slice ? 3 : decision.idle]++;
	if (decision.slice) {
		REQUIRE(decision.limit_ns >= sched.params.min_chunk_ns);
		REQUIRE(decision.limit_ns <= sched.params.max_chunk_ns);
		REQUIRE(decision.slice->has_item);
		REQUIRE(!decision.slice->bucket.throttled);
		REQUIRE(!decision.slice->group->bucket.throttled);
		if (sched.latency)
			REQUIRE(decision.band == VGPU_BAND_LATENCY);
		if (below(2))
			REQUIRE(!vgpu_sched_busy_until(&sched, now_ns + some_time()));
	} else {
		REQUIRE(!sched.latency);
		REQUIRE(decision.idle == VGPU_IDLE_HOLD || !sched.queue.nr_ready ||
			sched.params.policy);
		REQUIRE(!decision.payer || decision.idle);
		REQUIRE(vgpu_sched_busy_until(&sched, now_ns) == VGPU_FIELD_NO_OWNER);
		REQUIRE(decision.wake_at_ns == U64_MAX ||
			(s64)(decision.wake_at_ns - now_ns) > 0);
	}
}

static void one_call(void)
{
	u64 what = below(100);
	int j = below(SLICES);
	struct vgpu_item_info item = some_item();

	now_ns += some_time();
	if (!below(20))
		REQUIRE(vgpu_sched_advance(&sched, sched.now_ns - 1 - some_time()) ==
			VGPU_FIELD_TIME);
	if (what < 3)
		change_groups(below(GROUPS));
	else if (what < 8)
		change_slices(j);
	else if (what < 15 && slices[j])
		REQUIRE(!vgpu_slice_wake(&sched, slices[j], now_ns));
	else if (what < 30 && slices[j])
		REQUIRE(!vgpu_slice_announce(&sched, slices[j], &item, now_ns));
	else if (what < 35 && slices[j])
		REQUIRE(!vgpu_slice_sleep(&sched, slices[j], now_ns));
	else if (what < 36 && slices[j])
		REQUIRE(!vgpu_slice_end_request(&sched, slices[j], now_ns));
	else if (what < 60 && sched.owner && sched.owner->has_item)
		REQUIRE(!vgpu_slice_item_done(&sched, sched.owner,
					      below(2) ? &item : NULL, now_ns));
	else
		pick();
	if (sched.now_ns != now_ns)
		pick();
}

int main(int argc, char **argv)
{
	struct vgpu_sched_params params = { .max_chunk_ns = 8000000, .min_chunk_ns = 20000 };
	u64 seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	u64 calls = argc > 2 ? strtoull(argv[2], NULL, 0) : 100000;

	state = seed * 0x9e3779b97f4a7c15ull + 1;
	params.splits = below(2);
	params.policy = seed % 4 == 3 ? 1 + below(2) : 0;
	params.places = params.policy == VGPU_POLICY_FIXED_SHARE ? 1 + below(SLICES) : 0;
	params.reserve_limit_permille = params.policy ? 0 : 1 + below(750);
	start_ns = 0 - below(1ull << 40);
	now_ns = start_ns;
	REQUIRE(!vgpu_sched_init(&sched, &params, now_ns));
	for (u64 i = 0; i < calls; i++) {
		one_call();
		check();
	}
	for (int j = 0; j < SLICES; j++)
		if (slices[j])
			vgpu_slice_remove(&sched, slices[j], now_ns);
	for (int j = 0; j < SLICES; j++)
		free(slices[j]);
	for (int i = 0; i < GROUPS; i++)
		if (groups[i])
			REQUIRE(!vgpu_group_remove(&sched, groups[i], now_ns));
	for (int i = 0; i < GROUPS; i++)
		free(groups[i]);
	REQUIRE(sched.queue.weight == (sched.params.policy ? sched.params.places : 0));
	REQUIRE(!sched.throttled && !sched.latency && !sched.demoted && !sched.grants);
	REQUIRE(!sched.weight && !sched.reserved_ppm && !sched.hold.slice);
	printf("%" PRIu64 " calls, %" PRIu64 " picks, %" PRIu64 " switches, %" PRIu64
	       " holds, %" PRIu64 " ghosts\n", calls, sched.stats.picks,
	       sched.stats.switches, idles[VGPU_IDLE_HOLD], idles[VGPU_IDLE_GHOST]);
	return 0;
}
