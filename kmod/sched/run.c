// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Who owns the engine: charging the owner, ending and beginning runs, the pick.
 */
#include "internal.h"

/* How much longer than its timeslice a run can get. */
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
	return VGPU_FIELD_NONE;
}

enum vgpu_sched_field vgpu_sched_set_params(struct vgpu_sched *sched,
					    const struct vgpu_sched_params *params,
					    u64 now_ns)
{
	enum vgpu_sched_field fault = vgpu_sched_params_check(params);

	if (!fault && sched->nr_groups && params->policy != sched->params.policy)
		fault = VGPU_FIELD_POLICY;
	if (!fault && params->places < min(sched->nr_slices, sched->params.places))
		fault = VGPU_FIELD_PLACES;
	fault = fault ?: vgpu_reserve_check_engine(sched, params) ?:
		vgpu_sched_advance(sched, now_ns);
	if (fault)
		return fault;
	sched->params = *params;
	sched->queue.overrun_ns = overrun_ns(params);
	return VGPU_FIELD_NONE;
}

static void charge(struct vgpu_queue *queue, struct vgpu_entity *entity,
		   struct vgpu_bucket *bucket, u64 ns, u64 now_ns)
{
	vgpu_queue_charge(queue, entity, ns);
	vgpu_bucket_use(bucket, ns);
	vgpu_bucket_refill(bucket, now_ns);
}

/* How much of the time until @now_ns the engine works for its owner. */
static u64 busy_ns(const struct vgpu_sched *sched, u64 now_ns)
{
	if (!sched->owner)
		return 0;
	if (!sched->busy_bounded || vgpu_before(now_ns, sched->busy_until_ns))
		return now_ns - sched->now_ns;
	if (vgpu_before(sched->now_ns, sched->busy_until_ns))
		return sched->busy_until_ns - sched->now_ns;
	return 0;
}

/* Invariant 1: the one place where time passes. */
static void pass_time(struct vgpu_sched *sched, u64 now_ns)
{
	struct vgpu_slice *owner = sched->owner;
	u64 ns;

	if (!vgpu_before(sched->now_ns, now_ns))
		return;
	ns = busy_ns(sched, now_ns);
	sched->stats.wall_ns += now_ns - sched->now_ns;
	sched->stats.idle_ns += now_ns - sched->now_ns - ns;
	sched->now_ns = now_ns;
	if (!owner)
		return;
	sched->run_charged_ns += ns;
	owner->stats.run_ns += ns;
	owner->group->stats.run_ns += ns;
	charge(&owner->group->queue, &owner->entity, &owner->bucket, ns, now_ns);
	charge(&sched->queue, &owner->group->entity, &owner->group->bucket, ns,
	       now_ns);
}

/* Throttles end at their own time, not when somebody looks. */
enum vgpu_sched_field vgpu_sched_advance(struct vgpu_sched *sched, u64 now_ns)
{
	struct vgpu_node *timer;

	if (vgpu_before(now_ns, sched->now_ns))
		return VGPU_FIELD_TIME;

	while ((timer = vgpu_tree_first(sched->throttled)) &&
	       !vgpu_before(now_ns, timer->key)) {
		pass_time(sched, timer->key);
		vgpu_throttle_over(sched, timer);
	}
	pass_time(sched, now_ns);
	return VGPU_FIELD_NONE;
}

/* The owner may have used up a cap. */
static void review_caps(struct vgpu_sched *sched)
{
	struct vgpu_slice *owner = sched->owner;

	vgpu_throttle(sched, &owner->bucket);
	vgpu_throttle(sched, &owner->group->bucket);
	vgpu_slice_refresh(sched, owner);
}

static u64 run_left_ns(const struct vgpu_sched *sched)
{
	return sched->run_charged_ns < sched->run_timeslice_ns ?
	       sched->run_timeslice_ns - sched->run_charged_ns : 0;
}

static void count_run(struct vgpu_group *group, u64 length_ns,
		      u64 timeslice_ns, enum vgpu_run_reason reason)
{
	struct vgpu_group_stats *stats = &group->stats;

	stats->runs++;
	stats->histogram[vgpu_hist_bucket(length_ns)]++;
	if (reason == VGPU_RUN_TIMESLICE) {
		stats->uncut_runs++;
		if (length_ns < timeslice_ns)
			stats->short_uncut_runs++;
	}
	if (timeslice_ns == group->params.timeslice_ns)
		stats->longest_run_ns = max(stats->longest_run_ns, length_ns);
}

/* The engine belongs to nobody. */
void vgpu_run_end(struct vgpu_sched *sched, enum vgpu_run_reason reason)
{
	struct vgpu_slice *slice = sched->owner;
	struct vgpu_group *group = slice->group;
	u64 length_ns = sched->run_charged_ns;

	review_caps(sched);
	count_run(group, length_ns, sched->run_timeslice_ns, reason);
	sched->ended = (struct vgpu_ended_run){
		.valid = true,
		.group = group,
		.start_ns = sched->run_start_ns,
		.length_ns = length_ns,
		.timeslice_ns = sched->run_timeslice_ns,
		.reason = reason,
	};
	sched->owner = NULL;
	vgpu_queue_put(&group->queue, &slice->entity,
		       reason == VGPU_RUN_TIMESLICE);
	vgpu_queue_put(&sched->queue, &group->entity,
		       reason == VGPU_RUN_TIMESLICE);
}

/* End the run, or the owner's stay within it, if it cannot or must not go on. */
static void review_run(struct vgpu_sched *sched)
{
	const struct vgpu_group *group = sched->owner->group;

	review_caps(sched);
	if (!run_left_ns(sched))
		vgpu_run_end(sched, VGPU_RUN_TIMESLICE);
	else if (!group->nr_with_item)
		vgpu_run_end(sched, VGPU_RUN_DRY);
	else if (!group->entity.ready)
		vgpu_run_end(sched, VGPU_RUN_CAP);
}

/* Which group runs next: the place where bands take precedence over another. */
static struct vgpu_group *choose_group(struct vgpu_sched *sched)
{
	struct vgpu_entity *entity = vgpu_queue_pick(&sched->queue);

	return entity ? container_of(entity, struct vgpu_group, entity) : NULL;
}

static struct vgpu_slice *choose_slice(struct vgpu_sched *sched,
				       struct vgpu_group *group)
{
	struct vgpu_entity *entity = vgpu_queue_pick(&group->queue);
	struct vgpu_slice *slice = container_of(entity, struct vgpu_slice, entity);

	vgpu_slice_follow_group(sched, slice);
	vgpu_bucket_refill(&slice->bucket, sched->now_ns);
	slice->stats.runs++;
	return slice;
}

static struct vgpu_slice *begin_run(struct vgpu_sched *sched)
{
	struct vgpu_group *group = choose_group(sched);

	if (!group)
		return NULL;
	sched->run_start_ns = sched->now_ns;
	sched->run_charged_ns = 0;
	sched->run_timeslice_ns = group->params.timeslice_ns;
	group->queue.overrun_ns = sched->queue.overrun_ns;
	vgpu_bucket_refill(&group->bucket, sched->now_ns);
	return choose_slice(sched, group);
}

static u64 limit_ns(const struct vgpu_sched *sched,
		    const struct vgpu_slice *slice)
{
	u64 limit = run_left_ns(sched);

	limit = min(limit, vgpu_bucket_lasts_ns(&slice->group->bucket));
	limit = min(limit, vgpu_bucket_lasts_ns(&slice->bucket));
	limit = max(limit, sched->params.min_chunk_ns);
	return min(limit, sched->params.max_chunk_ns);
}

static void pass_engine(struct vgpu_sched *sched, struct vgpu_slice *slice,
			struct vgpu_decision *out)
{
	sched->owner = slice;
	if (slice != sched->last_owner) {
		out->switched = true;
		sched->stats.switches++;
		slice->stats.switches++;
		slice->group->stats.switches++;
	}
	sched->last_owner = slice;
}

enum vgpu_sched_field vgpu_sched_pick(struct vgpu_sched *sched, u64 now_ns,
				      struct vgpu_decision *out)
{
	enum vgpu_sched_field fault = vgpu_sched_advance(sched, now_ns);
	struct vgpu_slice *slice;

	memset(out, 0, sizeof(*out));
	out->wake_at_ns = fault ? sched->now_ns : U64_MAX;
	if (fault)
		return fault;
	sched->busy_bounded = false;
	sched->stats.picks++;

	if (sched->owner)
		review_run(sched);
	slice = sched->owner;
	if (!slice) {
		slice = begin_run(sched);
	} else if (!slice->entity.ready) {
		vgpu_queue_put(&slice->group->queue, &slice->entity, false);
		slice = choose_slice(sched, slice->group);
	}

	if (slice) {
		pass_engine(sched, slice, out);
		out->slice = slice;
		out->limit_ns = limit_ns(sched, slice);
	} else if (sched->throttled) {
		out->wake_at_ns = vgpu_tree_first(sched->throttled)->key;
	}
	out->ended = sched->ended;
	sched->ended.valid = false;
	return VGPU_FIELD_NONE;
}

enum vgpu_sched_field vgpu_sched_busy_until(struct vgpu_sched *sched,
					    u64 until_ns)
{
	if (!sched->owner)
		return VGPU_FIELD_NO_OWNER;
	if (vgpu_before(until_ns, sched->now_ns))
		return VGPU_FIELD_TIME;
	sched->busy_until_ns = until_ns;
	sched->busy_bounded = true;
	return VGPU_FIELD_NONE;
}
