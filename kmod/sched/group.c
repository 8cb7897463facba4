// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Groups and slices: adding, changing and removing them, and whether they can be
 * picked.  A slice is ready in its group's queue iff it has an item (or a ghost,
 * see ghost.c) and its cap has credit; a group is ready in the engine's queue iff
 * it has a ready slice and its own cap has credit.
 */
#include "internal.h"

static struct vgpu_group *group_of_bucket(struct vgpu_bucket *bucket)
{
	return container_of(bucket, struct vgpu_group, bucket);
}

static struct vgpu_slice *slice_of_bucket(struct vgpu_bucket *bucket)
{
	return container_of(bucket, struct vgpu_slice, bucket);
}

static void disarm(struct vgpu_sched *sched, struct vgpu_bucket *bucket)
{
	if (bucket->armed)
		vgpu_tree_erase(&sched->throttled, &bucket->timer);
	bucket->armed = false;
}

/* A throttle ends only once this much credit is there, to avoid very short runs. */
static u64 resume_credit(const struct vgpu_bucket *bucket)
{
	u64 timeslice_ns;

	if (bucket->of_group)
		timeslice_ns = container_of(bucket, struct vgpu_group,
					    bucket)->params.timeslice_ns;
	else
		timeslice_ns = container_of(bucket, struct vgpu_slice,
					    bucket)->group->params.timeslice_ns;
	return min(timeslice_ns, bucket->burst_ns);
}

/* The use or the refill has changed: the throttle ends at another time. */
static void rearm(struct vgpu_sched *sched, struct vgpu_bucket *bucket)
{
	if (!bucket->throttled)
		return;
	disarm(sched, bucket);
	bucket->timer.key = sched->now_ns +
			    vgpu_bucket_wait_ns(bucket, resume_credit(bucket));
}

/*
 * If the credit is gone, throttle until enough is back.  A party that was throttled
 * within a lease may have used more since.
 */
void vgpu_throttle(struct vgpu_sched *sched, struct vgpu_bucket *bucket)
{
	rearm(sched, bucket);
	if (bucket->throttled || !vgpu_bucket_is_empty(bucket))
		return;
	bucket->throttled = true;
	bucket->throttled_since_ns = sched->now_ns;
	bucket->timer.key = sched->now_ns +
			    vgpu_bucket_wait_ns(bucket, resume_credit(bucket));
	if (bucket->of_group)
		group_of_bucket(bucket)->stats.throttles++;
	else
		slice_of_bucket(bucket)->stats.throttles++;
}

static void unthrottle(struct vgpu_sched *sched, struct vgpu_bucket *bucket)
{
	u64 ns = bucket->timer.key - bucket->throttled_since_ns;

	disarm(sched, bucket);
	bucket->throttled = false;
	vgpu_bucket_refill(bucket, sched->now_ns);
	if (bucket->of_group)
		group_of_bucket(bucket)->stats.throttled_ns += ns;
	else
		slice_of_bucket(bucket)->stats.throttled_ns += ns;
}

/*
 * Does @bucket let its owner use the engine?  @wanted: the owner wants it.  If the
 * bucket keeps its owner waiting, it gets a timer.  Otherwise it has none, because
 * the timer would wake the host for nothing.
 */
static bool has_credit(struct vgpu_sched *sched, struct vgpu_bucket *bucket,
		       bool wanted)
{
	if (bucket->throttled &&
	    !vgpu_before(sched->now_ns, bucket->timer.key))
		unthrottle(sched, bucket);
	if (!bucket->throttled)
		return true;
	if (!wanted) {
		disarm(sched, bucket);
	} else if (!bucket->armed) {
		vgpu_tree_insert(&sched->throttled, &bucket->timer);
		bucket->armed = true;
	}
	return false;
}

static void vgpu_group_refresh(struct vgpu_sched *sched, struct vgpu_group *group)
{
	bool wanted = group->queue.nr_ready > 0;
	bool credit = has_credit(sched, &group->bucket, wanted);

	if (wanted && credit && !group->entity.ready)
		vgpu_reserve_wake(group, sched->now_ns);
	else if (!wanted || !credit)
		group->rest_ns = 0;
	if (vgpu_queue_set_ready(&sched->queue, &group->entity, wanted && credit))
		vgpu_lease_recall(sched);
	vgpu_reserve_refresh(sched, group);
}

void vgpu_slice_refresh(struct vgpu_sched *sched, struct vgpu_slice *slice)
{
	bool wanted = slice->has_item || vgpu_has_ghosts(sched);
	bool credit = has_credit(sched, &slice->bucket, wanted);

	if (vgpu_queue_set_ready(&slice->group->queue, &slice->entity,
				 wanted && credit))
		vgpu_lease_recall(sched);
	vgpu_group_refresh(sched, slice->group);
}

/* The throttle of @timer ends. */
void vgpu_throttle_over(struct vgpu_sched *sched, struct vgpu_node *timer)
{
	struct vgpu_bucket *bucket =
		container_of(timer, struct vgpu_bucket, timer);

	if (bucket->of_group)
		vgpu_group_refresh(sched, group_of_bucket(bucket));
	else
		vgpu_slice_refresh(sched, slice_of_bucket(bucket));
}

static void overdraw(struct vgpu_sched *sched, struct vgpu_bucket *bucket, u64 ns)
{
	vgpu_bucket_refill(bucket, sched->now_ns);
	vgpu_bucket_use(bucket, ns);
	vgpu_throttle(sched, bucket);
}

/* Take @ns from the caps, for use that was not charged. */
void vgpu_slice_overdraw(struct vgpu_sched *sched, struct vgpu_slice *slice,
			 u64 ns)
{
	overdraw(sched, &slice->bucket, ns);
	overdraw(sched, &slice->group->bucket, ns);
	vgpu_slice_refresh(sched, slice);
	vgpu_lease_recall(sched);
}

/* Apply new parameters of a cap from now on. */
static void set_cap(struct vgpu_sched *sched, struct vgpu_bucket *bucket,
		    u64 cap_ns, u64 period_ns, u64 burst_ns)
{
	vgpu_bucket_refill(bucket, sched->now_ns);
	vgpu_bucket_configure(bucket, cap_ns, period_ns, burst_ns);
	rearm(sched, bucket);
}

static void apply_group_params(struct vgpu_sched *sched,
			       struct vgpu_group *group,
			       const struct vgpu_group_params *params)
{
	group->params = *params;
	set_cap(sched, &group->bucket, params->cap_ns, params->cap_period_ns,
		params->burst_ns ? params->burst_ns : params->timeslice_ns);
}

static void apply_slice_params(struct vgpu_sched *sched,
			       struct vgpu_slice *slice,
			       const struct vgpu_slice_params *params)
{
	slice->params = *params;
	set_cap(sched, &slice->bucket, params->cap_ns, params->cap_period_ns,
		params->burst_ns ? params->burst_ns :
				   slice->group->params.timeslice_ns);
}

/*
 * The timeslice of a group is also the timeslice and the default burst of its
 * slices.  A slice adopts a new timeslice when it wakes or is next chosen; at the
 * same time the group's queue adopts a new overrun of the engine.
 */
void vgpu_slice_follow_group(struct vgpu_sched *sched, struct vgpu_slice *slice)
{
	slice->group->queue.overrun_ns = sched->queue.overrun_ns;
	if (slice->entity.timeslice_ns == slice->group->params.timeslice_ns)
		return;
	vgpu_queue_set_timeslice(&slice->group->queue, &slice->entity,
				 slice->group->params.timeslice_ns);
	apply_slice_params(sched, slice, &slice->params);
}

static enum vgpu_sched_field group_fault(const struct vgpu_sched *sched,
					 const struct vgpu_group *group)
{
	return group->sched == sched ? VGPU_FIELD_NONE : VGPU_FIELD_ABSENT;
}

enum vgpu_sched_field vgpu_slice_fault(const struct vgpu_sched *sched,
				       const struct vgpu_slice *slice)
{
	return slice->group ? group_fault(sched, slice->group) :
			      VGPU_FIELD_ABSENT;
}

/* Count a slice that was added (1) or removed (-1). */
static void count_slice(struct vgpu_sched *sched, struct vgpu_group *group,
			int change)
{
	vgpu_group_settle(group);
	group->nr_slices += change;
	sched->nr_slices += change;
	vgpu_lease_recall(sched);
	vgpu_ghost_weigh(sched, group);
}

enum vgpu_sched_field vgpu_group_add(struct vgpu_sched *sched,
				     struct vgpu_group *group,
				     const struct vgpu_group_params *params,
				     u64 now_ns)
{
	enum vgpu_sched_field fault;

	fault = (group->sched ? VGPU_FIELD_ADDED : VGPU_FIELD_NONE) ?:
		vgpu_group_params_check(sched, NULL, params) ?:
		vgpu_sched_advance(sched, now_ns);
	if (fault)
		return fault;
	memset(group, 0, sizeof(*group));
	group->sched = sched;
	vgpu_queue_init(&group->queue, sched->queue.overrun_ns);
	vgpu_entity_init(&sched->queue, &group->entity,
			 vgpu_has_ghosts(sched) ? 1 : params->weight,
			 params->timeslice_ns);
	vgpu_queue_add(&sched->queue, &group->entity);
	vgpu_bucket_init(&group->bucket, sched->now_ns);
	vgpu_bucket_init(&group->inversion, sched->now_ns);
	group->bucket.of_group = true;
	group->parked_mark = sched->parked_ns;
	apply_group_params(sched, group, params);
	vgpu_reserve_admit(sched, group);
	vgpu_reserve_configure(sched, group, false);
	vgpu_hold_configure(sched, group);
	sched->nr_groups++;
	return VGPU_FIELD_NONE;
}

enum vgpu_sched_field vgpu_group_update(struct vgpu_sched *sched,
					struct vgpu_group *group,
					const struct vgpu_group_params *params,
					u64 now_ns)
{
	enum vgpu_sched_field fault;
	bool had_reserve;

	fault = group_fault(sched, group) ?:
		vgpu_group_params_check(sched, group, params) ?:
		vgpu_sched_advance(sched, now_ns);
	if (fault)
		return fault;
	if (group->params.timeslice_ns != params->timeslice_ns)
		group->stats.longest_run_ns = 0;
	had_reserve = group->params.reserve_ns;
	vgpu_reserve_dismiss(sched, group);
	apply_group_params(sched, group, params);
	vgpu_reserve_admit(sched, group);
	vgpu_reserve_configure(sched, group, had_reserve);
	vgpu_hold_configure(sched, group);
	vgpu_queue_set_timeslice(&sched->queue, &group->entity,
				 params->timeslice_ns);
	if (!vgpu_has_ghosts(sched))
		vgpu_queue_set_weight(&sched->queue, &group->entity,
				      params->weight);
	vgpu_group_refresh(sched, group);
	vgpu_lease_recall(sched);
	vgpu_hold_bound(sched);
	return VGPU_FIELD_NONE;
}

enum vgpu_sched_field vgpu_group_remove(struct vgpu_sched *sched,
					struct vgpu_group *group, u64 now_ns)
{
	enum vgpu_sched_field fault = group_fault(sched, group);

	if (!fault && group->nr_slices)
		fault = VGPU_FIELD_SLICES;
	fault = fault ?: vgpu_sched_advance(sched, now_ns);
	if (fault)
		return fault;
	vgpu_group_settle(group);
	disarm(sched, &group->bucket);
	vgpu_reserve_dismiss(sched, group);
	vgpu_queue_remove(&sched->queue, &group->entity);
	sched->nr_groups--;
	if (sched->ended.group == group)
		sched->ended.valid = false;
	group->sched = NULL;
	return VGPU_FIELD_NONE;
}

enum vgpu_sched_field vgpu_slice_add(struct vgpu_sched *sched,
				     struct vgpu_group *group,
				     struct vgpu_slice *slice,
				     const struct vgpu_slice_params *params,
				     u64 now_ns)
{
	enum vgpu_sched_field fault;

	fault = group_fault(sched, group) ?:
		(slice->group ? VGPU_FIELD_ADDED : VGPU_FIELD_NONE) ?:
		vgpu_slice_params_check(sched, params) ?:
		(sched->params.places && sched->nr_slices == sched->params.places ?
			 VGPU_FIELD_PLACES : VGPU_FIELD_NONE) ?:
		vgpu_sched_advance(sched, now_ns);
	if (fault)
		return fault;
	memset(slice, 0, sizeof(*slice));
	slice->group = group;
	slice->parked_mark = sched->parked_ns;
	vgpu_entity_init(&group->queue, &slice->entity,
			 vgpu_has_ghosts(sched) ? 1 : params->weight,
			 group->params.timeslice_ns);
	vgpu_queue_add(&group->queue, &slice->entity);
	vgpu_bucket_init(&slice->bucket, sched->now_ns);
	apply_slice_params(sched, slice, params);
	count_slice(sched, group, 1);
	vgpu_slice_refresh(sched, slice);
	return VGPU_FIELD_NONE;
}

enum vgpu_sched_field vgpu_slice_update(struct vgpu_sched *sched,
					struct vgpu_slice *slice,
					const struct vgpu_slice_params *params,
					u64 now_ns)
{
	enum vgpu_sched_field fault;

	fault = vgpu_slice_fault(sched, slice) ?:
		vgpu_slice_params_check(sched, params) ?:
		vgpu_sched_advance(sched, now_ns);
	if (fault)
		return fault;
	apply_slice_params(sched, slice, params);
	if (!vgpu_has_ghosts(sched))
		vgpu_queue_set_weight(&slice->group->queue, &slice->entity,
				      params->weight);
	vgpu_slice_refresh(sched, slice);
	vgpu_lease_recall(sched);
	vgpu_hold_bound(sched);
	return VGPU_FIELD_NONE;
}

void vgpu_slice_set_item(struct vgpu_sched *sched, struct vgpu_slice *slice,
			 bool has_item)
{
	if (slice->has_item == has_item)
		return;
	slice->has_item = has_item;
	slice->described = false;
	slice->item_ns = 0;
	slice->group->nr_with_item += has_item ? 1 : -1;
	sched->nr_with_item += has_item ? 1 : -1;
	vgpu_slice_follow_group(sched, slice);
	vgpu_slice_refresh(sched, slice);
}

enum vgpu_sched_field vgpu_slice_remove(struct vgpu_sched *sched,
					struct vgpu_slice *slice, u64 now_ns)
{
	struct vgpu_group *group = slice->group;
	enum vgpu_sched_field fault;

	fault = vgpu_slice_fault(sched, slice) ?: vgpu_sched_advance(sched, now_ns);
	if (fault)
		return fault;
	if (sched->hold.slice == slice) {
		vgpu_hold_pause(sched);
		sched->hold.slice = NULL;
	}
	if (sched->owner == slice)
		vgpu_run_end(sched, VGPU_RUN_REMOVED);
	if (sched->last_owner == slice)
		sched->last_owner = NULL;
	vgpu_slice_set_item(sched, slice, false);
	vgpu_slice_settle(slice);
	disarm(sched, &slice->bucket);
	vgpu_queue_remove(&group->queue, &slice->entity);
	slice->group = NULL;
	count_slice(sched, group, -1);
	vgpu_group_refresh(sched, group);
	return VGPU_FIELD_NONE;
}

s64 vgpu_group_lag_ns(struct vgpu_sched *sched, struct vgpu_group *group,
		      u64 now_ns)
{
	if (group_fault(sched, group))
		return 0;
	vgpu_sched_advance(sched, now_ns);
	return vgpu_queue_lag_ns(&sched->queue, &group->entity);
}

s64 vgpu_slice_lag_ns(struct vgpu_sched *sched, struct vgpu_slice *slice,
		      u64 now_ns)
{
	if (vgpu_slice_fault(sched, slice))
		return 0;
	vgpu_sched_advance(sched, now_ns);
	return vgpu_queue_lag_ns(&slice->group->queue, &slice->entity);
}
