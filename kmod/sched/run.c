// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The owner of the engine: charging it, ending and beginning runs, and the pick.
 *
 * sched->owner is set while some slice pays: a slice that executes, the holder
 * while the engine idles for it (->holding), or a slice whose ghost has its turn.
 * A holder is not in a run; the other two are.
 */
#include "internal.h"

/* The longest time by which a run can exceed its timeslice. */
static u64 overrun_ns(const struct vgpu_sched_params *params)
{
	return params->splits ? params->min_chunk_ns : params->max_chunk_ns;
}

enum vgpu_sched_field vgpu_sched_init(struct vgpu_sched *sched,
				      const struct vgpu_sched_params *params,
				      u64 now_ns)
{
	enum vgpu_sched_field fault = vgpu_sched_params_check(params);

	if (fault)
		return fault;
	memset(sched, 0, sizeof(*sched));
	sched->params = *params;
	sched->now_ns = now_ns;
	vgpu_queue_init(&sched->queue, overrun_ns(params));
	vgpu_ghost_init(sched);
	return VGPU_FIELD_NONE;
}

enum vgpu_sched_field vgpu_sched_set_params(struct vgpu_sched *sched,
					    const struct vgpu_sched_params *params,
					    u64 now_ns)
{
	enum vgpu_sched_field fault = vgpu_sched_params_check(params);

	if (!fault && sched->nr_groups && params->policy != sched->params.policy)
		fault = VGPU_FIELD_POLICY;
	if (!fault && params->places && params->places < sched->nr_slices)
		fault = VGPU_FIELD_PLACES;
	fault = fault ?: vgpu_reserve_check_engine(sched, params) ?:
		vgpu_sched_advance(sched, now_ns);
	if (fault)
		return fault;
	sched->params = *params;
	sched->queue.overrun_ns = overrun_ns(params);
	vgpu_queue_set_timeslice(&sched->queue, &sched->unsold,
				 vgpu_ghost_timeslice_ns(sched));
	vgpu_ghost_weigh(sched, NULL);
	vgpu_lease_recall(sched);
	return VGPU_FIELD_NONE;
}

static void charge(struct vgpu_queue *queue, struct vgpu_entity *entity,
		   struct vgpu_bucket *bucket, u64 ns, u64 now_ns)
{
	vgpu_queue_charge(queue, entity, ns);
	vgpu_bucket_use(bucket, ns);
	vgpu_bucket_refill(bucket, now_ns);
}

/* Does the engine belong to a slice (by work, hold or ghost) or to the unsold places? */
static bool is_taken(const struct vgpu_sched *sched)
{
	return sched->owner || sched->unsold.running;
}

/* Does the engine have something to execute? */
static bool is_executing(const struct vgpu_sched *sched)
{
	return sched->owner && sched->owner->has_item && !sched->holding;
}

/* How much of the time until @now_ns the engine was taken. */
static u64 busy_ns(const struct vgpu_sched *sched, u64 now_ns)
{
	if (!is_taken(sched))
		return 0;
	if (!sched->busy_bounded || vgpu_before(now_ns, sched->busy_until_ns))
		return now_ns - sched->now_ns;
	if (vgpu_before(sched->now_ns, sched->busy_until_ns))
		return sched->busy_until_ns - sched->now_ns;
	return 0;
}

static void charge_owner(struct vgpu_sched *sched, u64 ns)
{
	struct vgpu_slice *owner = sched->owner;
	struct vgpu_group *group = owner->group;

	owner->stats.run_ns += ns;
	group->stats.run_ns += ns;
	charge(&group->queue, &owner->entity, &owner->bucket, ns, sched->now_ns);
	charge(&sched->queue, &group->entity, &group->bucket, ns, sched->now_ns);
	if (owner->has_item)
		owner->item_ns += ns;
	if (sched->run_band == VGPU_BAND_LATENCY && !vgpu_lease_is_open(sched)) {
		group->stats.latency_ns += ns;
		vgpu_reserve_use(sched, group, ns);
	}
	if (sched->holding)
		group->stats.hold_ns += ns;
	else if (sched->hold.slice)
		vgpu_hold_charge(sched, ns);
	if (vgpu_has_ghosts(sched) && !owner->has_item) {
		owner->stats.ghost_ns += ns;
		group->stats.ghost_ns += ns;
	}
}

/* The only place where time passes (invariant 1). */
static void pass_time(struct vgpu_sched *sched, u64 now_ns)
{
	u64 elapsed_ns = now_ns - sched->now_ns;
	u64 ns = busy_ns(sched, now_ns);
	u64 unused_ns;

	if (!elapsed_ns)
		return;
	if (sched->loan.unused_ns) {
		unused_ns = min(ns, sched->loan.unused_ns);
		sched->loan.unused_ns -= unused_ns;
		ns -= unused_ns;
	}
	sched->now_ns = now_ns;
	sched->stats.wall_ns += elapsed_ns;
	if (sched->parked)
		sched->stats.idle_ns += vgpu_ghost_park(sched, elapsed_ns);
	else
		sched->stats.idle_ns += elapsed_ns - (sched->owner ? ns : 0);
	sched->run_charged_ns += ns;
	if (sched->owner)
		charge_owner(sched, ns);
	else if (sched->unsold.running)
		vgpu_queue_charge(&sched->queue, &sched->unsold, ns);
}

/* Charge the time until @now_ns.  No throttle ends before that; runs of a lease may. */
static void pass_runs(struct vgpu_sched *sched, u64 now_ns)
{
	u64 end_ns, runs;

	while (sched->loan.lent && (runs = vgpu_lease_runs(sched, now_ns, &end_ns))) {
		pass_time(sched, end_ns);
		vgpu_lease_renew(sched, runs);
	}
	pass_time(sched, now_ns);
}

/* Throttles end at their own time, not at the time of this call. */
enum vgpu_sched_field vgpu_sched_advance(struct vgpu_sched *sched, u64 now_ns)
{
	struct vgpu_node *timer;

	if (vgpu_before(now_ns, sched->now_ns))
		return VGPU_FIELD_TIME;
	while ((timer = vgpu_tree_first(sched->throttled)) &&
	       !vgpu_before(now_ns, timer->key)) {
		pass_runs(sched, timer->key);
		vgpu_throttle_over(sched, timer);
	}
	pass_runs(sched, now_ns);
	return VGPU_FIELD_NONE;
}

/* Throttle the owner or its group if a cap is used up. */
void vgpu_review_caps(struct vgpu_sched *sched)
{
	struct vgpu_slice *owner = sched->owner;

	vgpu_throttle(sched, &owner->bucket);
	vgpu_throttle(sched, &owner->group->bucket);
	vgpu_slice_refresh(sched, owner);
}

/* What is left of the run's timeslice. */
u64 vgpu_run_left_ns(const struct vgpu_sched *sched)
{
	return sched->run_charged_ns < sched->run_timeslice_ns ?
	       sched->run_timeslice_ns - sched->run_charged_ns : 0;
}

static void count_runs(struct vgpu_group *group, u64 runs, u64 length_ns,
		       u64 timeslice_ns, enum vgpu_run_reason reason)
{
	struct vgpu_group_stats *stats = &group->stats;

	stats->runs += runs;
	stats->histogram[vgpu_hist_bucket(length_ns)] += runs;
	if (reason == VGPU_RUN_TIMESLICE) {
		stats->uncut_runs += runs;
		if (length_ns < timeslice_ns)
			stats->short_uncut_runs += runs;
	}
	if (timeslice_ns == group->params.timeslice_ns)
		stats->longest_run_ns = max(stats->longest_run_ns, length_ns);
}

/*
 * What is left of the timeslice in the fair band.  A run in band L works on the
 * same request, so it uses up the same timeslice; otherwise the request would be
 * exceeded (see queue.c).  Only a group that stays ready continues with the rest.
 */
static u64 rest_ns(const struct vgpu_sched *sched, const struct vgpu_group *group,
		   enum vgpu_run_reason reason)
{
	u64 left_ns = group->rest_ns ? group->rest_ns : group->params.timeslice_ns;

	if (sched->run_band == VGPU_BAND_FAIR)
		return reason == VGPU_RUN_LATENCY ? vgpu_run_left_ns(sched) : 0;
	return left_ns > sched->run_charged_ns ? left_ns - sched->run_charged_ns : 0;
}

/* End the owner's run; the engine then belongs to nobody. */
void vgpu_run_end(struct vgpu_sched *sched, enum vgpu_run_reason reason)
{
	struct vgpu_slice *slice = sched->owner;
	struct vgpu_group *group = slice->group;
	u64 length_ns = sched->run_charged_ns;
	u64 left_ns = rest_ns(sched, group, reason);
	bool done = reason == VGPU_RUN_TIMESLICE;
	bool group_done = sched->run_band == VGPU_BAND_FAIR ? done : !left_ns;

	if (sched->run_cuts)
		vgpu_reserve_use(sched, group, sched->params.switch_cost_ns);
	sched->run_cuts = false;
	vgpu_review_caps(sched);
	count_runs(group, 1, length_ns, sched->run_timeslice_ns, reason);
	sched->ended = (struct vgpu_ended_run){
		.valid = true,
		.group = group,
		.start_ns = sched->run_start_ns,
		.length_ns = length_ns,
		.timeslice_ns = sched->run_timeslice_ns,
		.reason = reason,
	};
	group->rest_ns = group->entity.ready ? left_ns : 0;
	sched->owner = NULL;
	sched->run_band = VGPU_BAND_FAIR;
	sched->loan.lent = false;
	vgpu_queue_put(&group->queue, &slice->entity, done);
	vgpu_queue_put(&sched->queue, &group->entity, group_done);
}

struct vgpu_group *vgpu_first_of_latency(const struct vgpu_sched *sched)
{
	struct vgpu_node *node = vgpu_tree_first(sched->latency);

	return node ? container_of(node, struct vgpu_group, reserve.node) : NULL;
}

/* Is there a group for which the present run must be cut (invariant 11)? */
bool vgpu_run_is_due_to_others(const struct vgpu_sched *sched)
{
	const struct vgpu_group *first = vgpu_first_of_latency(sched);

	return first && (sched->run_band == VGPU_BAND_FAIR ||
			 (first != sched->owner->group &&
			  vgpu_before(first->reserve.deadline_ns,
				      sched->owner->group->reserve.deadline_ns)));
}

bool vgpu_sched_is_urgent(const struct vgpu_sched *sched)
{
	return is_executing(sched) && vgpu_run_is_due_to_others(sched);
}

/*
 * The next slice of a ready group.  Lags add up to zero, so some slice is
 * eligible.  The exception is a removed slice that left hours of debt to light
 * slices, so that lags have wrapped.
 */
struct vgpu_slice *vgpu_first_slice(const struct vgpu_group *group)
{
	struct vgpu_entity *entity = vgpu_queue_pick(&group->queue);

	if (!entity)
		entity = container_of(vgpu_tree_first(group->queue.ready),
				      struct vgpu_entity, node);
	return container_of(entity, struct vgpu_slice, entity);
}

static bool is_dry(const struct vgpu_sched *sched)
{
	return vgpu_has_ghosts(sched) ? !sched->nr_with_item :
					!sched->owner->group->nr_with_item;
}

static struct vgpu_slice *choose_slice(struct vgpu_sched *sched,
				       struct vgpu_group *group)
{
	struct vgpu_slice *slice = vgpu_first_slice(group);

	slice->entity.running = true;
	vgpu_slice_follow_group(sched, slice);
	vgpu_bucket_refill(&slice->bucket, sched->now_ns);
	slice->stats.runs++;
	return slice;
}

/* Returns whether the run must end, and why. */
static bool is_run_over(const struct vgpu_sched *sched,
			enum vgpu_run_reason *reason)
{
	const struct vgpu_group *group = sched->owner->group;

	if (!vgpu_run_left_ns(sched))
		*reason = VGPU_RUN_TIMESLICE;
	else if (is_dry(sched))
		*reason = VGPU_RUN_DRY;
	else if (!group->entity.ready)
		*reason = VGPU_RUN_CAP;
	else if (sched->run_band == VGPU_BAND_LATENCY &&
		 group->reserve.budget_ns <= 0)
		*reason = VGPU_RUN_BUDGET;
	else if (vgpu_run_is_due_to_others(sched))
		*reason = VGPU_RUN_LATENCY;
	else
		return false;
	return true;
}

/* End the run, or only the owner's part of it. */
static void review_run(struct vgpu_sched *sched)
{
	struct vgpu_slice *owner = sched->owner;
	struct vgpu_group *group = owner->group;
	enum vgpu_run_reason reason;

	vgpu_review_caps(sched);
	if (is_run_over(sched, &reason)) {
		vgpu_run_end(sched, reason);
		if (!group->nr_with_item)
			vgpu_hold_begin(sched, owner);
		return;
	}
	if (!owner->entity.ready) {
		vgpu_queue_put(&group->queue, &owner->entity, false);
		sched->owner = choose_slice(sched, group);
	}
	if (sched->run_band == VGPU_BAND_FAIR &&
	    !vgpu_hold_allows_ns(sched, sched->owner))
		vgpu_run_end(sched, VGPU_RUN_LATENCY);
}

/* Review the turn of the unsold places. */
static void review_unsold(struct vgpu_sched *sched)
{
	if (vgpu_run_left_ns(sched) && sched->nr_with_item && sched->unsold.ready)
		return;
	vgpu_queue_put(&sched->queue, &sched->unsold, !vgpu_run_left_ns(sched));
}

static void open_run(struct vgpu_sched *sched, struct vgpu_group *group,
		     enum vgpu_band band)
{
	u64 timeslice_ns = group->params.timeslice_ns;

	if (band == VGPU_BAND_FAIR && group->rest_ns)
		timeslice_ns = min(timeslice_ns, group->rest_ns);
	sched->run_start_ns = sched->now_ns;
	sched->run_charged_ns = 0;
	sched->run_timeslice_ns = timeslice_ns;
	sched->run_band = band;
	sched->run_cuts = band == VGPU_BAND_LATENCY && sched->ended.valid &&
			  sched->ended.reason == VGPU_RUN_LATENCY;
	group->entity.running = true;
	vgpu_bucket_refill(&group->bucket, sched->now_ns);
}

static struct vgpu_slice *begin_run(struct vgpu_sched *sched,
				    struct vgpu_group *group,
				    enum vgpu_band band)
{
	open_run(sched, group, band);
	return choose_slice(sched, group);
}

/*
 * End the owner's run and begin its next one, as if it had been chosen again.
 * @runs is how many runs have ended: the first by what it was charged, the others
 * after one timeslice each.
 */
void vgpu_run_renew(struct vgpu_sched *sched, enum vgpu_run_reason reason,
		    u64 runs, enum vgpu_band band)
{
	struct vgpu_slice *slice = sched->owner;
	struct vgpu_group *group = slice->group;
	struct vgpu_loan loan = sched->loan;
	u64 timeslice_ns = sched->run_timeslice_ns;

	if (runs > 1)
		sched->run_start_ns = sched->now_ns - timeslice_ns;
	sched->run_charged_ns -= (runs - 1) * timeslice_ns;
	count_runs(group, runs - 1, timeslice_ns, timeslice_ns, reason);
	vgpu_run_end(sched, reason);
	sched->loan = loan;
	open_run(sched, group, band);
	sched->run_cuts = false;
	slice->entity.running = true;
	vgpu_slice_follow_group(sched, slice);
	slice->stats.runs += runs;
	sched->owner = slice;
}

static void begin_unsold(struct vgpu_sched *sched)
{
	sched->run_charged_ns = 0;
	sched->run_timeslice_ns = sched->unsold.timeslice_ns;
	sched->unsold.running = true;
}

/* Choose the next owner of a free engine, in the order of invariants 11, 13 and 2. */
static struct vgpu_slice *choose(struct vgpu_sched *sched)
{
	struct vgpu_group *group = vgpu_first_of_latency(sched);
	struct vgpu_entity *entity;

	if (group)
		return begin_run(sched, group, VGPU_BAND_LATENCY);
	if (sched->hold.slice) {
		group = vgpu_hold_filler(sched);
		if (group)
			return begin_run(sched, group, VGPU_BAND_FAIR);
		vgpu_hold_resume(sched);
		return sched->owner;
	}
	sched->parked = vgpu_has_ghosts(sched) && !sched->nr_with_item;
	entity = sched->parked ? NULL : vgpu_queue_pick(&sched->queue);
	if (!entity)
		return NULL;
	if (entity == &sched->unsold) {
		begin_unsold(sched);
		return NULL;
	}
	group = container_of(entity, struct vgpu_group, entity);
	return begin_run(sched, group, VGPU_BAND_FAIR);
}

/* What is left of the caps and of the reservation; U64_MAX if none applies. */
u64 vgpu_funds_ns(const struct vgpu_sched *sched, const struct vgpu_slice *slice)
{
	const struct vgpu_group *group = slice->group;
	u64 left = min(vgpu_bucket_lasts_ns(&group->bucket),
		       vgpu_bucket_lasts_ns(&slice->bucket));

	if (sched->run_band != VGPU_BAND_LATENCY)
		return left;
	return group->reserve.budget_ns > 0 ? min_t(u64, left, group->reserve.budget_ns) : 0;
}

static u64 left_ns(const struct vgpu_sched *sched, const struct vgpu_slice *slice)
{
	return min(vgpu_run_left_ns(sched), vgpu_funds_ns(sched, slice));
}

u64 vgpu_sched_left_ns(const struct vgpu_sched *sched)
{
	return sched->owner && sched->executing ? left_ns(sched, sched->owner) : 0;
}

static u64 limit_ns(const struct vgpu_sched *sched, const struct vgpu_slice *slice)
{
	u64 limit = left_ns(sched, slice);

	if (sched->run_band != VGPU_BAND_LATENCY)
		limit = min(limit, vgpu_hold_allows_ns(sched, slice));
	limit = max(limit, sched->params.min_chunk_ns);
	return min(limit, sched->params.max_chunk_ns);
}

static void pass_engine(struct vgpu_sched *sched, struct vgpu_decision *out)
{
	struct vgpu_slice *slice = sched->owner;

	out->slice = slice;
	out->limit_ns = sched->loan.lends ? 0 : limit_ns(sched, slice);
	out->band = sched->run_band;
	if (slice != sched->last_owner) {
		out->switched = true;
		sched->stats.switches++;
		slice->stats.switches++;
		slice->group->stats.switches++;
	}
	sched->last_owner = slice;
	if (sched->hold.slice && sched->run_band == VGPU_BAND_FAIR)
		sched->hold.slice->group->stats.fills++;
}

/* The engine has nothing to execute: report why, which slice pays, and until when. */
static void idle(struct vgpu_sched *sched, struct vgpu_decision *out)
{
	out->payer = sched->owner;
	if (sched->holding) {
		out->idle = VGPU_IDLE_HOLD;
		out->wake_at_ns = vgpu_hold_wake_at_ns(sched);
	} else if (is_taken(sched)) {
		out->idle = VGPU_IDLE_GHOST;
		out->wake_at_ns = sched->now_ns + vgpu_run_left_ns(sched);
		sched->busy_until_ns = out->wake_at_ns;
		sched->busy_bounded = true;
	} else if (sched->throttled) {
		out->wake_at_ns = vgpu_tree_first(sched->throttled)->key;
	}
}

/* Decide who owns the engine from now on.  The time until now has been charged. */
void vgpu_decide(struct vgpu_sched *sched, struct vgpu_decision *out)
{
	memset(out, 0, sizeof(*out));
	out->wake_at_ns = U64_MAX;
	sched->busy_bounded = false;
	sched->parked = false;
	sched->stats.picks++;

	vgpu_reserve_replenish(sched);
	vgpu_hold_pause(sched);
	vgpu_hold_review(sched);
	if (sched->owner)
		review_run(sched);
	else if (sched->unsold.running)
		review_unsold(sched);

	if (!is_taken(sched))
		sched->owner = choose(sched);
	sched->executing = is_executing(sched);
	if (sched->executing)
		pass_engine(sched, out);
	else
		idle(sched, out);
	vgpu_run_report(sched, &out->ended);
}

enum vgpu_sched_field vgpu_sched_pick(struct vgpu_sched *sched, u64 now_ns,
				      struct vgpu_decision *out)
{
	enum vgpu_sched_field fault;

	fault = (sched->loan.lent ? VGPU_FIELD_LEASE : VGPU_FIELD_NONE) ?:
		vgpu_sched_advance(sched, now_ns);
	if (fault) {
		memset(out, 0, sizeof(*out));
		out->wake_at_ns = sched->now_ns;
		return fault;
	}
	sched->loan.lends = false;
	vgpu_decide(sched, out);
	return VGPU_FIELD_NONE;
}

enum vgpu_sched_field vgpu_sched_busy_until(struct vgpu_sched *sched,
					    u64 until_ns)
{
	if (!sched->owner || !sched->executing)
		return VGPU_FIELD_NO_OWNER;
	if (vgpu_before(until_ns, sched->now_ns))
		return VGPU_FIELD_TIME;
	sched->busy_until_ns = until_ns;
	sched->busy_bounded = true;
	return VGPU_FIELD_NONE;
}
