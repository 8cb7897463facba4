// SPDX-License-Identifier: Apache-2.0
/*
 * Bytes become calls of the whole interface of the scheduler core. Most of them are legal but make
 * no sense; the others are wrong in every possible way: parameters out of range, objects that are
 * unknown, removed, already added or another engine's, calls out of order, time that steps back.
 * The expected result of each call is computed here. A refused call must change no byte.  After
 * each call the rules are checked from scratch: sums of weights, lags and charges (invariants 1 to
 * 5), caps, reservations and inversion over any window (7, 12, 14), admission (12), which group may
 * be picked and which may hold (11, 13), lengths of runs (6), shapes of trees (8).
 *
 * To be built with sanitizers: by clang -fsanitize=fuzzer -DLIBFUZZER, or by any
 * compiler, with random bytes:
 *
 *	fuzz_events SEED BYTES
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "vgpu_lease.h"

#define GROUPS	6
#define SLICES	12

/* Use over any window T is at most T * rate / per + allowance + the last piece. */
struct window {
	u64 rate, per, allowance, used;
	__int128 least;
};

struct seen_slice {
	struct window cap;
	u64 piece_ns;
	bool described, more_announced, more;
};

struct seen_group {
	struct window cap, reserve, inversion;
	u64 piece_ns, reserve_piece_ns, inversion_piece_ns, holds, hold_start_ns;
	bool was_late;
};

static struct vgpu_sched sched, other;
static struct vgpu_group *groups[GROUPS], foreign_group, removed_group;
static struct vgpu_slice *slices[SLICES], foreign_slice, removed_slice;
static struct seen_group seen_groups[GROUPS];
static struct seen_slice seen_slices[SLICES];
static u64 start_ns, last_pick_ns, gone_ns, calls, refused, idles[4], leases, unlimited;
static bool new_piece, executes, lends;
static const u8 *input;
static size_t input_left;

#define REQUIRE(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: call %" PRIu64 ": %s\n", __FILE__, \
				__LINE__, calls, #condition); \
			abort(); \
		} \
	} while (0)

/* ---- what the bytes mean */

static u64 below(u64 limit)
{
	u64 value = 0;

	for (u64 most = limit - 1; most && input_left; most >>= 8) {
		value = value << 8 | *input++;
		input_left--;
	}
	return value % limit;
}

static u64 some_time(void)
{
	static const u64 scales[] = { 1, 2, 1000, 100000, 1000000, 30000000, 1ull << 36 };

	return below(scales[below(below(50) ? 6 : 7)] + 1);
}

/* Sometimes time steps back. */
static u64 when(void)
{
	return below(24) ? sched.now_ns + some_time() : sched.now_ns - 1 - some_time();
}

static u64 anything(void)
{
	static const u64 edges[] = { 0, 1, 2, 19999, 1ull << 31, U32_MAX, 1ull << 32,
				     1ull << 62, 1ull << 63, U64_MAX - 1, U64_MAX };

	return below(3) ? edges[below(11)] : below(U64_MAX);
}

static u32 some_weight(void)
{
	static const u32 weights[] = { 1, 2, 3, 100, 1000, 10000 };

	return below(4) ? weights[below(6)] : 1 + below(10000);
}

static void some_cap(u64 *cap, u64 *period, u64 *burst)
{
	if (below(2))
		return;
	*period = VGPU_CAP_PERIOD_MIN_NS +
		  below(below(2) ? 10000000 : VGPU_CAP_PERIOD_MAX_NS - VGPU_CAP_PERIOD_MIN_NS);
	*cap = *period / 1000 + 1 + below(*period - *period / 1000);
	*burst = below(2) ? 0 : 20000 + below(below(2) ? 5000000 : VGPU_BURST_MAX_NS - 20000);
}

static struct vgpu_group_params some_group_params(void)
{
	struct vgpu_group_params params = {
		.weight = some_weight(),
		.timeslice_ns = 20000 + below(below(9) ? 4000000 : 900000000),
	};

	if (sched.params.policy == VGPU_POLICY_FIXED_SHARE)
		params.mode = VGPU_MODE_STRICT;
	else if (!sched.params.policy)
		some_cap(&params.cap_ns, &params.cap_period_ns, &params.burst_ns);
	if (!sched.params.policy && below(2)) {
		params.band = VGPU_BAND_LATENCY;
		params.reserve_period_ns = 4 * sched.params.max_chunk_ns + below(100000000);
		params.reserve_ns = 1 +
				    below(params.reserve_period_ns / (1 + below(50)));
		params.hold_max_ns = below(3) ? below(5000000) : 0;
		params.inversion_permille = below(2) ? below(1001) : 0;
		params.inversion_burst_ns = below(2) ? below(10000000) : 0;
	}
	switch (below(64)) {
	case 0: params.weight = anything(); break;
	case 1: params.timeslice_ns = anything(); break;
	case 2: params.cap_ns = anything(); break;
	case 3: params.cap_period_ns = anything(); break;
	case 4: params.burst_ns = anything(); break;
	case 5: params.mode = below(4); break;
	case 6: params.band = below(4); break;
	case 7: params.reserve_ns = anything(); break;
	case 8: params.reserve_period_ns = anything(); break;
	case 9: params.hold_max_ns = anything(); break;
	case 10: params.inversion_permille = anything(); break;
	case 11: params.inversion_burst_ns = anything(); break;
	}
	return params;
}

static struct vgpu_slice_params some_slice_params(void)
{
	struct vgpu_slice_params params = { .weight = some_weight() };

	if (!sched.params.policy)
		some_cap(&params.cap_ns, &params.cap_period_ns, &params.burst_ns);
	switch (below(32)) {
	case 0: params.weight = anything(); break;
	case 1: params.cap_ns = anything(); break;
	case 2: params.cap_period_ns = anything(); break;
	case 3: params.burst_ns = anything(); break;
	}
	return params;
}

static struct vgpu_sched_params some_engine(void)
{
	struct vgpu_sched_params params = {
		.max_chunk_ns = below(3) ? 8000000 : 400000,
		.min_chunk_ns = 20000,
		.switch_cost_ns = below(3) ? 0 : below(20000),
		.splits = below(2),
		.policy = below(2) ? 0 : below(3),
	};

	params.places = params.policy == VGPU_POLICY_FIXED_SHARE ? 1 + below(SLICES + 4) : 0;
	params.reserve_limit_permille = params.policy ? 0 : below(751);
	switch (below(24)) {
	case 0: params.max_chunk_ns = anything(); break;
	case 1: params.min_chunk_ns = anything(); break;
	case 2: params.switch_cost_ns = anything(); break;
	case 3: params.policy = below(5); break;
	case 4: params.places = anything(); break;
	case 5: params.reserve_limit_permille = anything(); break;
	}
	return params;
}

static struct vgpu_item_info some_item(void)
{
	struct vgpu_item_info item = {
		.kernel_id = below(below(4) ? 5 : 1000),
		.flags = below(3) ? VGPU_ITEM_MORE : 0,
		.hint_ns = below(2) ? below(400001) : 0,
	};

	switch (below(32)) {
	case 0: item.flags = anything(); break;
	case 1: item.hint_ns = anything(); break;
	case 2: item.kernel_id = anything(); break;
	}
	return item;
}

/* Usually one of this engine, or a free entry for a new one. */
static struct vgpu_group *some_group(int i)
{
	return groups[i] ? groups[i] : below(2) ? &removed_group : &foreign_group;
}

static struct vgpu_slice *some_slice(int j)
{
	return slices[j] ? slices[j] : below(2) ? &removed_slice : &foreign_slice;
}

/* ---- what a call must return, and that refused ones change nothing */

static struct {
	struct vgpu_sched sched, other;
	struct vgpu_group groups[GROUPS], foreign_group, removed_group;
	struct vgpu_slice slices[SLICES], foreign_slice, removed_slice;
} before;

static void remember(void)
{
	memcpy(&before.sched, &sched, sizeof(sched));
	memcpy(&before.other, &other, sizeof(other));
	memcpy(&before.foreign_group, &foreign_group, sizeof(foreign_group));
	memcpy(&before.foreign_slice, &foreign_slice, sizeof(foreign_slice));
	memcpy(&before.removed_group, &removed_group, sizeof(removed_group));
	memcpy(&before.removed_slice, &removed_slice, sizeof(removed_slice));
	for (int i = 0; i < GROUPS; i++)
		if (groups[i])
			memcpy(&before.groups[i], groups[i], sizeof(*groups[i]));
	for (int j = 0; j < SLICES; j++)
		if (slices[j])
			memcpy(&before.slices[j], slices[j], sizeof(*slices[j]));
}

static void require_unchanged(void)
{
	REQUIRE(!memcmp(&before.sched, &sched, sizeof(sched)));
	REQUIRE(!memcmp(&before.other, &other, sizeof(other)));
	REQUIRE(!memcmp(&before.foreign_group, &foreign_group, sizeof(foreign_group)));
	REQUIRE(!memcmp(&before.foreign_slice, &foreign_slice, sizeof(foreign_slice)));
	REQUIRE(!memcmp(&before.removed_group, &removed_group, sizeof(removed_group)));
	REQUIRE(!memcmp(&before.removed_slice, &removed_slice, sizeof(removed_slice)));
	for (int i = 0; i < GROUPS; i++)
		REQUIRE(!groups[i] ||
			!memcmp(&before.groups[i], groups[i], sizeof(*groups[i])));
	for (int j = 0; j < SLICES; j++)
		REQUIRE(!slices[j] ||
			!memcmp(&before.slices[j], slices[j], sizeof(*slices[j])));
}

/* Make a call that must return @expected. */
#define CALL(call, expected) \
	({ \
		enum vgpu_sched_field must = (expected); \
		if (must) \
			remember(); \
		REQUIRE((call) == must); \
		if (must) \
			require_unchanged(); \
		refused += must != VGPU_FIELD_NONE; \
		must; \
	})

static enum vgpu_sched_field time_fault(u64 at_ns)
{
	return (s64)(at_ns - sched.now_ns) < 0 ? VGPU_FIELD_TIME : VGPU_FIELD_NONE;
}

static enum vgpu_sched_field group_fault(const struct vgpu_group *group)
{
	return group == &removed_group || group == &foreign_group ?
	       VGPU_FIELD_ABSENT : VGPU_FIELD_NONE;
}

static enum vgpu_sched_field slice_fault(const struct vgpu_slice *slice)
{
	return slice == &removed_slice || slice == &foreign_slice ?
	       VGPU_FIELD_ABSENT : VGPU_FIELD_NONE;
}

static u64 ppm_of(const struct vgpu_group *group)
{
	const struct vgpu_group_params *params = &group->params;

	if (!params->reserve_ns)
		return 0;
	return (params->reserve_ns * 1000000 + params->reserve_period_ns - 1) /
	       params->reserve_period_ns;
}

/* Is the sum of (Q + overdraft) / P, rounded, at most this much? */
static bool is_within(u32 permille, u64 overdraft_ns)
{
	unsigned __int128 quotas = 0, ends = 0;

	for (int i = 0; i < GROUPS; i++) {
		if (!groups[i] || !groups[i]->params.reserve_ns)
			continue;
		quotas += ppm_of(groups[i]);
		ends += (1000000000000000 + groups[i]->params.reserve_period_ns - 1) /
			groups[i]->params.reserve_period_ns;
	}
	return quotas * 1000000000 + ends * overdraft_ns <=
	       (unsigned __int128)permille * 1000000000000;
}

static u64 overdraft_of(const struct vgpu_sched_params *params)
{
	return params->splits ? 0 : params->max_chunk_ns;
}

static enum vgpu_sched_field engine_fault(const struct vgpu_sched_params *params)
{
	enum vgpu_sched_field fault = vgpu_sched_params_check(params);
	u32 permille = params->reserve_limit_permille;
	u64 shortest_ns = U64_MAX;

	for (int i = 0; i < GROUPS; i++)
		if (groups[i] && groups[i]->params.reserve_ns)
			shortest_ns = min(shortest_ns, groups[i]->params.reserve_period_ns);
	if (!fault && sched.nr_groups && params->policy != sched.params.policy)
		fault = VGPU_FIELD_POLICY;
	if (!fault && params->places && params->places < sched.nr_slices)
		fault = VGPU_FIELD_PLACES;
	if (!fault && 4 * params->max_chunk_ns > shortest_ns)
		fault = VGPU_FIELD_MAX_CHUNK;
	if (!fault && !is_within(permille, overdraft_of(params)))
		fault = is_within(permille, overdraft_of(&sched.params)) ?
			VGPU_FIELD_MAX_CHUNK : VGPU_FIELD_RESERVE_LIMIT;
	return fault;
}

/* ---- the calls */

static void add_group(int i, struct vgpu_group_params *params, u64 at_ns)
{
	struct vgpu_group *group = calloc(1, sizeof(*group));
	enum vgpu_sched_field fault =
		CALL(vgpu_group_add(&sched, group, params, at_ns),
		     vgpu_group_params_check(&sched, NULL, params) ?: time_fault(at_ns));

	if (fault) {
		free(group);
		return;
	}
	groups[i] = group;
	seen_groups[i] = (struct seen_group){ 0 };
}

static void change_groups(void)
{
	struct vgpu_group_params params = some_group_params();
	int i = below(GROUPS);
	u64 at_ns = when();
	struct vgpu_group *group = groups[i];

	if (!group && below(8)) {
		add_group(i, &params, at_ns);
		return;
	}
	group = some_group(i);
	switch (below(8)) {
	case 0:
		if (group != &removed_group)
			CALL(vgpu_group_add(&sched, group, &params, at_ns), VGPU_FIELD_ADDED);
		break;
	case 1:
		if (CALL(vgpu_group_remove(&sched, group, at_ns),
			 group_fault(group) ?:
			 (group->nr_slices ? VGPU_FIELD_SLICES : VGPU_FIELD_NONE) ?:
			 time_fault(at_ns)))
			break;
		gone_ns += group->stats.run_ns;
		removed_group = *group;
		free(group);
		groups[i] = NULL;
		break;
	default:
		CALL(vgpu_group_update(&sched, group, &params, at_ns),
		     group_fault(group) ?:
		     vgpu_group_params_check(&sched, group, &params) ?: time_fault(at_ns));
	}
}

static void add_slice(int j, struct vgpu_slice_params *params, u64 at_ns)
{
	struct vgpu_group *group = some_group(below(GROUPS));
	struct vgpu_slice *slice = calloc(1, sizeof(*slice));
	bool full = sched.params.places && sched.params.places == sched.nr_slices;

	if (CALL(vgpu_slice_add(&sched, group, slice, params, at_ns),
		 group_fault(group) ?: vgpu_slice_params_check(&sched, params) ?:
		 (full ? VGPU_FIELD_PLACES : VGPU_FIELD_NONE) ?: time_fault(at_ns))) {
		free(slice);
		return;
	}
	slices[j] = slice;
	seen_slices[j] = (struct seen_slice){ 0 };
}

static void change_slices(void)
{
	struct vgpu_slice_params params = some_slice_params();
	int j = below(SLICES);
	u64 at_ns = when();
	struct vgpu_slice *slice = slices[j];

	if (!slice && below(8)) {
		add_slice(j, &params, at_ns);
		return;
	}
	slice = some_slice(j);
	switch (below(6)) {
	case 0:
		if (slice != &removed_slice)
			CALL(vgpu_slice_add(&sched, slice->group, slice, &params, at_ns),
			     group_fault(slice->group) ?: VGPU_FIELD_ADDED);
		break;
	case 1:
	case 2:
		if (CALL(vgpu_slice_remove(&sched, slice, at_ns),
			 slice_fault(slice) ?: time_fault(at_ns)))
			break;
		removed_slice = *slice;
		free(slice);
		slices[j] = NULL;
		break;
	default:
		CALL(vgpu_slice_update(&sched, slice, &params, at_ns),
		     slice_fault(slice) ?: vgpu_slice_params_check(&sched, &params) ?:
		     time_fault(at_ns));
	}
}

static void take_item(struct seen_slice *seen, const struct vgpu_item_info *item)
{
	seen->described = item;
	seen->more_announced = item && item->flags & VGPU_ITEM_MORE;
}

static void change_items(void)
{
	struct vgpu_item_info item = some_item();
	int j = below(SLICES);
	u64 what = below(16), at_ns = when();
	struct seen_slice *seen = &seen_slices[j];
	struct vgpu_slice *slice = some_slice(j);
	enum vgpu_sched_field fault = slice_fault(slice);
	bool had_item = !fault && slice->has_item;

	if (lends && what < 12) {
		bool said = what >= 4;

		if (below(8))
			item.flags = 0;
		if (!CALL(vgpu_slice_ready(&sched, slice, said ? &item : NULL, at_ns),
			  fault ?: (said && item.flags ? VGPU_FIELD_ITEM_FLAGS : VGPU_FIELD_NONE) ?:
			  time_fault(at_ns)) && (said || !had_item))
			take_item(seen, said ? &item : NULL);
	} else if (what < 4) {
		if (!CALL(vgpu_slice_wake(&sched, slice, at_ns), fault ?: time_fault(at_ns)) &&
		    !had_item)
			take_item(seen, NULL);
	} else if (what < 13) {
		if (!CALL(vgpu_slice_announce(&sched, slice, &item, at_ns),
			  fault ?: vgpu_item_check(&sched, &item) ?: time_fault(at_ns)))
			take_item(seen, &item);
	} else if (what < 15) {
		if (!CALL(vgpu_slice_sleep(&sched, slice, at_ns), fault ?: time_fault(at_ns))) {
			take_item(seen, NULL);
			seen->more &= !had_item;
		}
	} else {
		if (!CALL(vgpu_slice_end_request(&sched, slice, at_ns),
			  fault ?: time_fault(at_ns)))
			seen->more = false;
	}
}

static void complete(void)
{
	struct vgpu_item_info item = some_item(), *next = below(2) ? &item : NULL;
	int j = below(SLICES);
	u64 at_ns = when();
	struct vgpu_slice *slice;
	struct seen_slice *seen;

	for (int owner = 0; owner < SLICES; owner++)
		if (slices[owner] && slices[owner] == sched.owner && below(16))
			j = owner;
	slice = some_slice(j);
	seen = &seen_slices[j];
	if (CALL(vgpu_slice_item_done(&sched, slice, next, at_ns),
		 slice_fault(slice) ?:
		 (slice->has_item ? VGPU_FIELD_NONE : VGPU_FIELD_NO_ITEM) ?:
		 (next ? vgpu_item_check(&sched, next) : VGPU_FIELD_NONE) ?: time_fault(at_ns)))
		return;
	seen->more = seen->described && seen->more_announced;
	take_item(seen, next);
}

static void change_engine(void)
{
	struct vgpu_sched_params params = some_engine();
	u64 at_ns = when();

	CALL(vgpu_sched_set_params(&sched, &params, at_ns),
	     engine_fault(&params) ?: time_fault(at_ns));
}

/* Calls that only read accept any object and time. */
static void look(void)
{
	u64 at_ns = when();
	struct vgpu_group *group = some_group(below(GROUPS));
	struct vgpu_slice *slice = some_slice(below(SLICES));
	bool idle;

	switch (below(4)) {
	case 0:
		CALL((vgpu_group_lag_ns(&sched, group, at_ns),
		      group_fault(group) ?: time_fault(at_ns)),
		     group_fault(group) ?: time_fault(at_ns));
		break;
	case 1:
		CALL((vgpu_slice_lag_ns(&sched, slice, at_ns),
		      slice_fault(slice) ?: time_fault(at_ns)),
		     slice_fault(slice) ?: time_fault(at_ns));
		break;
	case 2:
		idle = !sched.owner || !executes;
		CALL(vgpu_sched_busy_until(&sched, at_ns),
		     (idle ? VGPU_FIELD_NO_OWNER : VGPU_FIELD_NONE) ?: time_fault(at_ns));
		break;
	default:
		CALL(vgpu_sched_advance(&sched, at_ns), time_fault(at_ns));
	}
}

/* ---- decisions */

static void check_holder(const struct vgpu_decision *decision)
{
	const struct vgpu_group *group = decision->payer->group;
	u64 wake_at_ns = decision->wake_at_ns;
	u64 held_ns;

	REQUIRE(group->params.band == VGPU_BAND_LATENCY && group->params.hold_max_ns);
	REQUIRE(group->reserve.budget_ns > 0);
	REQUIRE(!group->bucket.throttled && !decision->payer->bucket.throttled);
	REQUIRE((s64)(wake_at_ns - sched.now_ns) > 0);
	REQUIRE(wake_at_ns - sched.now_ns <= (u64)group->reserve.budget_ns);
	for (int j = 0; j < SLICES; j++) {
		REQUIRE(!slices[j] || slices[j]->group != group || !slices[j]->has_item);
		if (slices[j] == decision->payer)
			REQUIRE(seen_slices[j].more);
	}
	for (int i = 0; i < GROUPS; i++) {
		if (groups[i] != group)
			continue;
		held_ns = wake_at_ns - seen_groups[i].hold_start_ns;
		REQUIRE(held_ns <= group->params.hold_max_ns);
	}
}

static void check_band(const struct vgpu_decision *decision)
{
	const struct vgpu_group *group = decision->slice->group;

	if (sched.latency)
		REQUIRE(decision->band == VGPU_BAND_LATENCY);
	if (decision->band == VGPU_BAND_FAIR)
		return;
	REQUIRE(group->reserve.budget_ns > 0);
	for (int i = 0; i < GROUPS; i++)
		if (groups[i] && groups[i]->reserve.tree == &sched.latency)
			REQUIRE((s64)(groups[i]->reserve.deadline_ns -
				      group->reserve.deadline_ns) >= 0);
}

static void check_ended(const struct vgpu_ended_run *ended, u64 since_pick_ns)
{
	if (!ended->valid)
		return;
	REQUIRE(ended->group->sched == &sched);
	REQUIRE(ended->length_ns <= ended->timeslice_ns + since_pick_ns);
	if (ended->reason == VGPU_RUN_TIMESLICE)
		REQUIRE(ended->length_ns >= ended->timeslice_ns);
	else
		REQUIRE(ended->length_ns < ended->timeslice_ns ||
			ended->reason == VGPU_RUN_REMOVED);
}

static void check_decision(const struct vgpu_decision *decision)
{
	REQUIRE(!vgpu_sched_is_urgent(&sched));
	check_ended(&decision->ended, sched.now_ns - last_pick_ns);
	idles[decision->slice ? 3 : decision->idle]++;
	if (decision->slice) {
		REQUIRE(decision->limit_ns >= sched.params.min_chunk_ns);
		REQUIRE(decision->limit_ns <= sched.params.max_chunk_ns);
		REQUIRE(decision->slice->has_item);
		REQUIRE(!decision->slice->bucket.throttled);
		REQUIRE(!decision->slice->group->bucket.throttled);
		check_band(decision);
		return;
	}
	REQUIRE(!sched.latency);
	REQUIRE(decision->idle != VGPU_IDLE_EMPTY || !sched.queue.nr_ready ||
		(sched.params.policy && !sched.nr_with_item));
	REQUIRE((decision->idle == VGPU_IDLE_GHOST) <= (sched.params.policy != 0));
	REQUIRE(!decision->payer || decision->idle);
	REQUIRE(decision->wake_at_ns == U64_MAX ||
		(s64)(decision->wake_at_ns - sched.now_ns) > 0);
	if (decision->idle == VGPU_IDLE_HOLD)
		check_holder(decision);
}

static void note_holds(void)
{
	for (int i = 0; i < GROUPS; i++) {
		if (!groups[i] || groups[i]->stats.holds == seen_groups[i].holds)
			continue;
		seen_groups[i].holds = groups[i]->stats.holds;
		seen_groups[i].hold_start_ns = sched.now_ns;
	}
}

static void pick(u64 at_ns)
{
	struct vgpu_decision decision;

	if (CALL(vgpu_sched_pick(&sched, at_ns, &decision),
		 (sched.loan.lent ? VGPU_FIELD_LEASE : VGPU_FIELD_NONE) ?: time_fault(at_ns))) {
		REQUIRE(!decision.slice && decision.wake_at_ns == sched.now_ns);
		return;
	}
	note_holds();
	check_decision(&decision);
	last_pick_ns = sched.now_ns;
	new_piece = true;
	executes = decision.slice;
}

/* ---- leases */

static void check_lease(const struct vgpu_lease *lease)
{
	const struct vgpu_slice *slice = lease->slice;
	const struct vgpu_group *group = slice->group;
	bool alone = sched.queue.nr_ready == 1 && group->queue.nr_ready == 1;
	u64 most_ns = 2 * sched.run_timeslice_ns + group->params.timeslice_ns;

	REQUIRE(slice == sched.owner && sched.loan.lent && lease->number == sched.loan.number);
	REQUIRE((s64)(lease->begun_ns - sched.now_ns) <= 0);
	if (lease->expires_ns == U64_MAX) {
		REQUIRE(alone && !lease->contended && slice->has_item && !sched.hold.slice);
		REQUIRE(!slice->bucket.throttled && !group->bucket.throttled);
		return;
	}
	if ((s64)(lease->expires_ns - sched.now_ns) <= 0)
		return;
	REQUIRE(lease->expires_ns - sched.now_ns <=
		max(most_ns, sched.params.min_chunk_ns));
	if (lease->band == VGPU_BAND_FAIR && sched.latency)
		REQUIRE(lease->expires_ns == sched.now_ns);
}

static void lend(u64 at_ns)
{
	struct vgpu_decision decision = { 0 };
	struct vgpu_lease lease;

	if (CALL(vgpu_sched_lend(&sched, at_ns, &lease),
		 (sched.loan.lent ? VGPU_FIELD_LEASE : VGPU_FIELD_NONE) ?: time_fault(at_ns))) {
		REQUIRE(!lease.slice && lease.review_at_ns == sched.now_ns);
		return;
	}
	note_holds();
	if (lease.slice) {
		REQUIRE(lease.begun_ns == sched.now_ns && lease.slice->has_item);
		REQUIRE(lease.expires_ns == U64_MAX ||
			lease.expires_ns - sched.now_ns >= sched.params.min_chunk_ns);
		check_lease(&lease);
		check_ended(&lease.ended, sched.now_ns - last_pick_ns);
		leases++;
		unlimited += lease.expires_ns == U64_MAX;
	} else {
		decision.wake_at_ns = lease.review_at_ns;
		decision.idle = lease.idle;
		decision.payer = lease.payer;
		decision.ended = lease.ended;
		check_decision(&decision);
	}
	last_pick_ns = sched.now_ns;
	new_piece = true;
	executes = lease.slice;
}

static void review(u64 at_ns)
{
	struct vgpu_lease lease;

	if (CALL(vgpu_sched_review(&sched, at_ns, &lease),
		 (sched.loan.lent ? VGPU_FIELD_NONE : VGPU_FIELD_LEASE) ?: time_fault(at_ns)))
		return;
	check_lease(&lease);
	check_ended(&lease.ended, sched.now_ns - last_pick_ns);
}

static void yield(u64 at_ns)
{
	struct vgpu_yield yield = {
		.flags = below(16) ? below(8) : anything(),
		.kernel_id = below(5),
		.hint_ns = below(4) ? below(400001) : anything(),
	};
	int j = below(SLICES);
	struct vgpu_slice *slice;
	bool has_lease;

	for (int owner = 0; owner < SLICES; owner++)
		if (slices[owner] && slices[owner] == sched.owner && below(16))
			j = owner;
	slice = some_slice(j);
	has_lease = sched.loan.lent && sched.owner == slice;
	if (CALL(vgpu_slice_yield(&sched, slice, &yield, at_ns),
		 slice_fault(slice) ?: (has_lease ? VGPU_FIELD_NONE : VGPU_FIELD_LEASE) ?:
		 (yield.flags & ~7u ? VGPU_FIELD_ITEM_FLAGS : VGPU_FIELD_NONE) ?: time_fault(at_ns)))
		return;
	seen_slices[j].more = yield.flags == VGPU_YIELD_MORE;
	take_item(&seen_slices[j], NULL);
	seen_slices[j].described = yield.flags & VGPU_YIELD_WANT;
	executes = false;
}

static void use_leases(void)
{
	struct vgpu_slice *slice = some_slice(below(SLICES));
	u64 what = below(16), at_ns = when(), ns = some_time();

	if (what < 6)
		lend(at_ns);
	else if (what < 9)
		review(at_ns);
	else if (what < 14)
		yield(at_ns);
	else if (what < 15)
		CALL(vgpu_sched_unused(&sched, below(8) ? ns : anything(), at_ns),
		     time_fault(at_ns));
	else
		CALL(vgpu_slice_owe(&sched, slice, ns, at_ns),
		     slice_fault(slice) ?: time_fault(at_ns));
}

/* ---- what always holds */

/*
 * A piece begins only with credit, so all use that exceeds the rate by more than the
 * allowance is from after the last pick.
 */
static void check_window(struct window *window, u64 rate, u64 per, u64 used,
			 u64 allowance, u64 *piece_ns)
{
	u64 ns = used - window->used;
	__int128 excess = (__int128)used * per - (__int128)(sched.now_ns - start_ns) * rate;

	window->used = used;
	*piece_ns += ns;
	if (rate != window->rate || per != window->per || allowance != window->allowance) {
		window->rate = rate;
		window->per = per;
		window->allowance = allowance;
		window->least = excess;
		return;
	}
	if (rate && ns)
		REQUIRE(excess - window->least <=
			(__int128)per * ((__int128)allowance + *piece_ns));
	if (excess < window->least)
		window->least = excess;
}

static void check_cap(struct window *window, const struct vgpu_bucket *bucket, u64 used,
		      u64 *piece_ns)
{
	check_window(window, bucket->cap_ns, bucket->period_ns, used, bucket->burst_ns, piece_ns);
	REQUIRE(!bucket->cap_ns || bucket->credit_ns <= (s64)bucket->burst_ns);
}

static void check_windows(int i)
{
	const struct vgpu_group *group = groups[i];
	const struct vgpu_group_params *params = &group->params;
	struct seen_group *seen = &seen_groups[i];
	bool is_late;

	/* Pieces here may be so long that a deadline is missed; the overdue time stays due. */
	is_late = (s64)(sched.now_ns - group->reserve.deadline_ns) > 0 &&
		  (seen->was_late || (group->entity.ready && group->reserve.budget_ns > 0));
	if (is_late || seen->was_late)
		seen->reserve.per = 0;
	seen->was_late = is_late;
	check_window(&seen->reserve, params->reserve_ns, params->reserve_period_ns,
		     group->stats.latency_ns, 2 * params->reserve_ns,
		     &seen->reserve_piece_ns);
	check_window(&seen->inversion, group->inversion.cap_ns, 1000,
		     group->stats.inversion_ns, group->inversion.burst_ns,
		     &seen->inversion_piece_ns);
	check_cap(&seen->cap, &group->bucket, group->stats.run_ns, &seen->piece_ns);
}

/* Invariant 8: ordered, balanced, and each subtree records its best member. */
static int check_tree(const struct vgpu_node *node, const struct vgpu_node *parent)
{
	const struct vgpu_node *best = node;
	int left, right;

	if (!node)
		return 0;
	REQUIRE(node->parent == parent);
	left = check_tree(node->left, node);
	right = check_tree(node->right, node);
	REQUIRE(abs(left - right) <= 1 && node->height == 1 + max(left, right));
	REQUIRE(!node->left || (s64)(node->key - node->left->key) >= 0);
	REQUIRE(!node->right || (s64)(node->right->key - node->key) >= 0);
	for (int side = 0; side < 2; side++) {
		const struct vgpu_node *child = side ? node->right : node->left;

		if (child && ((s64)(child->best->rank - best->rank) < 0 ||
			      (child->best->rank == best->rank &&
			       (s64)(child->best->seq - best->seq) < 0)))
			best = child->best;
	}
	REQUIRE(node->best->rank == best->rank && node->best->seq == best->seq);
	return node->height;
}

/* sum(w) and sum(w * (v - V)) from the entities themselves */
static void check_queue(const struct vgpu_queue *queue, u64 weight, s64 sum, u32 ready,
			u64 asleep)
{
	REQUIRE(queue->asleep == asleep);
	REQUIRE((s64)(queue->vtime_high - queue->vtime) >= 0);
	REQUIRE(queue->weight == weight);
	REQUIRE(queue->nr_ready == ready);
	check_tree(queue->ready, NULL);
	check_tree(queue->debtors, NULL);
	if (weight) {
		REQUIRE(sum == (s64)queue->vtime_rem);
		REQUIRE(queue->vtime_rem < weight);
	}
}

static s64 lag_sum(const struct vgpu_queue *queue, const struct vgpu_entity *entity)
{
	return (s64)(entity->weight * (entity->node.key - queue->vtime));
}

static void check_group(int i)
{
	struct vgpu_group *group = groups[i];
	u64 weight = 0, charged = 0, asleep = 0;
	u32 ready = 0;
	s64 sum = 0;

	vgpu_group_settle(group);
	for (int j = 0; j < SLICES; j++) {
		struct vgpu_slice *slice = slices[j];

		if (!slice || slice->group != group)
			continue;
		vgpu_slice_settle(slice);
		check_cap(&seen_slices[j].cap, &slice->bucket, slice->stats.run_ns,
			  &seen_slices[j].piece_ns);
		charged += slice->stats.run_ns;
		ready += slice->entity.ready;
		if (slice->entity.member) {
			weight += slice->entity.weight;
			sum += lag_sum(&group->queue, &slice->entity);
		} else {
			asleep += slice->entity.weight;
		}
	}
	REQUIRE(charged <= group->stats.run_ns);
	REQUIRE(group->stats.latency_ns <= group->stats.run_ns);
	REQUIRE(group->stats.hold_ns <= group->stats.latency_ns);
	REQUIRE(!group->stats.short_uncut_runs);
	check_queue(&group->queue, weight, sum, ready, asleep);
	check_windows(i);
}

/* Invariants 11 and 12: which groups are in band L, and that every promise to them can be kept. */
static void check_reservation(const struct vgpu_group *group, u64 weight)
{
	const struct vgpu_group_params *params = &group->params;
	const struct vgpu_reserve *reserve = &group->reserve;
	bool latency = params->band == VGPU_BAND_LATENCY && group->entity.ready;
	struct vgpu_node **tree = reserve->budget_ns > 0 ? &sched.latency : &sched.demoted;
	unsigned __int128 q = params->reserve_ns, p = params->reserve_period_ns;

	REQUIRE(reserve->tree == (latency ? tree : NULL));
	if (latency && reserve->budget_ns > 0)
		REQUIRE(reserve->node.key == reserve->deadline_ns);
	else if (latency)
		REQUIRE(reserve->budget_ns + (__int128)(reserve->node.key - reserve->deadline_ns) /
			(u64)p * (u64)q <= 0);
	REQUIRE(reserve->budget_ns <= (s64)params->reserve_ns);
	REQUIRE(group->inversion.credit_ns <= (s64)group->inversion.burst_ns);
	if (params->band == VGPU_BAND_FAIR) {
		REQUIRE(!q && !p && !params->hold_max_ns && !params->inversion_permille);
		return;
	}
	REQUIRE(q && p >= 4 * (unsigned __int128)sched.params.max_chunk_ns);
	REQUIRE(q * weight <= p * params->weight);
	REQUIRE(!params->cap_ns || q * params->cap_period_ns <= p * params->cap_ns);
}

/* Time used before a pick belongs to the piece before it. */
static void forget_pieces(void)
{
	for (int i = 0; i < GROUPS; i++) {
		seen_groups[i].piece_ns = 0;
		seen_groups[i].reserve_piece_ns = 0;
		seen_groups[i].inversion_piece_ns = 0;
	}
	for (int j = 0; j < SLICES; j++)
		seen_slices[j].piece_ns = 0;
	new_piece = false;
}

static void check(void)
{
	u64 weight = sched.unsold.member ? sched.unsold.weight : 0;
	s64 sum = sched.unsold.member ? lag_sum(&sched.queue, &sched.unsold) : 0;
	u64 charged = gone_ns, total = 0, asleep = 0;
	u32 ready = sched.unsold.ready;

	for (int i = 0; i < GROUPS; i++)
		total += groups[i] ? groups[i]->params.weight : 0;
	for (int i = 0; i < GROUPS; i++) {
		if (!groups[i])
			continue;
		check_group(i);
		check_reservation(groups[i], total);
		REQUIRE(!vgpu_group_params_check(&sched, groups[i], &groups[i]->params) ||
			groups[i]->params.timeslice_ns < vgpu_sched_timeslice_floor(&sched) ||
			groups[i]->params.burst_ns < vgpu_sched_timeslice_floor(&sched));
		charged += groups[i]->stats.run_ns;
		ready += groups[i]->entity.ready;
		if (groups[i]->entity.member) {
			weight += groups[i]->entity.weight;
			sum += lag_sum(&sched.queue, &groups[i]->entity);
		} else {
			asleep += groups[i]->entity.weight;
		}
	}
	if (new_piece)
		forget_pieces();
	REQUIRE(is_within(sched.params.reserve_limit_permille, overdraft_of(&sched.params)));
	REQUIRE(sched.unsold.ready == (sched.params.places > sched.nr_slices));
	check_queue(&sched.queue, weight, sum, ready, asleep);
	check_tree(sched.throttled, NULL);
	check_tree(sched.latency, NULL);
	check_tree(sched.demoted, NULL);
	check_tree(sched.grants, NULL);
	REQUIRE(sched.stats.wall_ns == sched.now_ns - start_ns);
	REQUIRE(sched.stats.idle_ns + charged == sched.stats.wall_ns);
}

/* ---- one life of an engine */

static void one_call(void)
{
	u64 what = below(64);

	calls++;
	if (what < 4)
		change_groups();
	else if (what < 10)
		change_slices();
	else if (what < 26)
		change_items();
	else if (what < 38)
		complete();
	else if (what < 39)
		change_engine();
	else if (what < 44)
		look();
	else if (lends && below(16))
		use_leases();
	else
		pick(when());
}

static void begin(void)
{
	static const struct vgpu_sched_params plain = { .max_chunk_ns = 8000000, .min_chunk_ns = 20000 };
	static const struct vgpu_group_params group = { .weight = 1, .timeslice_ns = 1000000 };
	static const struct vgpu_slice_params slice = { .weight = 1 };
	struct vgpu_sched_params params = some_engine();

	start_ns = 0 - below(1ull << 40);
	if (vgpu_sched_init(&sched, &params, start_ns)) {
		REQUIRE(vgpu_sched_params_check(&params));
		REQUIRE(!vgpu_sched_init(&sched, &plain, start_ns));
	}
	last_pick_ns = start_ns;
	executes = false;
	lends = below(2);
	gone_ns = 0;
	memset(&removed_group, 0, sizeof(removed_group));
	memset(&removed_slice, 0, sizeof(removed_slice));
	memset(&foreign_group, 0, sizeof(foreign_group));
	memset(&foreign_slice, 0, sizeof(foreign_slice));
	REQUIRE(!vgpu_sched_init(&other, &plain, start_ns));
	REQUIRE(!vgpu_group_add(&other, &foreign_group, &group, start_ns));
	REQUIRE(!vgpu_slice_add(&other, &foreign_group, &foreign_slice, &slice, start_ns));
	REQUIRE(!vgpu_slice_wake(&other, &foreign_slice, start_ns));
}

static void end(void)
{
	for (int j = 0; j < SLICES; j++) {
		if (slices[j])
			REQUIRE(!vgpu_slice_remove(&sched, slices[j], sched.now_ns));
		free(slices[j]);
		slices[j] = NULL;
	}
	for (int i = 0; i < GROUPS; i++) {
		if (groups[i])
			REQUIRE(!vgpu_group_remove(&sched, groups[i], sched.now_ns));
		free(groups[i]);
		groups[i] = NULL;
	}
	REQUIRE(sched.queue.weight == sched.params.places);
	REQUIRE(!sched.throttled && !sched.latency && !sched.demoted && !sched.grants);
	REQUIRE(!sched.weight && !sched.reserved_ppm && !sched.deadlines && !sched.hold.slice);
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size);

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	input = data;
	input_left = size;
	begin();
	while (input_left) {
		one_call();
		check();
	}
	end();
	return 0;
}

#ifndef LIBFUZZER
int main(int argc, char **argv)
{
	u64 state = (argc > 1 ? strtoull(argv[1], NULL, 0) : 1) * 0x9e3779b97f4a7c15ull + 1;
	size_t size = argc > 2 ? strtoull(argv[2], NULL, 0) : 1000000;
	u8 *bytes = malloc(size);

	for (size_t i = 0; i < size; i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		bytes[i] = state >> 32;
	}
	LLVMFuzzerTestOneInput(bytes, size);
	free(bytes);
	printf("%" PRIu64 " calls, %" PRIu64 " refused, %" PRIu64 " ran, %" PRIu64
	       " idle, %" PRIu64 " held, %" PRIu64 " ghosts, %" PRIu64 " leases, %" PRIu64
	       " of them unlimited\n", calls, refused, idles[3], idles[VGPU_IDLE_EMPTY],
	       idles[VGPU_IDLE_HOLD], idles[VGPU_IDLE_GHOST], leases, unlimited);
	return 0;
}
#endif
