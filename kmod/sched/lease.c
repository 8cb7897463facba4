// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Leases: see vgpu_lease.h for the interface and invariant 18 for the rules.
 *
 * A lease is a run whose end the arbiter knows beforehand.  The end is a time,
 * ->until_ns, or the lease is ->open.  A ->kept or ->open lease ends later than the
 * present run, because the owner would be chosen again at the run's end.  When time
 * passes the run's end, vgpu_lease_renew() ends the run and begins the next one
 * without a call of the arbiter.  Runs of a lease without an end are counted all at
 * once.
 *
 * That the owner would be chosen again holds only until the readiness, weight or debt
 * of any slice changes.  Then vgpu_lease_recall() moves the lease's end back to the
 * end of the present run.
 */
#include "internal.h"

/* Does no other slice, not even a ghost, have anything to execute now? */
static bool is_alone(const struct vgpu_sched *sched)
{
	const struct vgpu_slice *owner = sched->owner;

	return sched->queue.nr_ready == 1 && owner->group->queue.nr_ready == 1 &&
	       owner->entity.ready && owner->group->entity.ready &&
	       !sched->hold.slice;
}

/* When the present run will have lasted its timeslice. */
static u64 run_end_ns(const struct vgpu_sched *sched)
{
	return sched->now_ns + sched->loan.unused_ns + vgpu_run_left_ns(sched);
}

/*
 * For a lease that continues: how many runs end within it until @now_ns, and when the
 * last of them ends.  There is more than one run only if all of them last the same
 * timeslice.
 */
u64 vgpu_lease_runs(const struct vgpu_sched *sched, u64 now_ns, u64 *end_ns)
{
	const struct vgpu_loan *loan = &sched->loan;
	u64 timeslice_ns = sched->run_timeslice_ns;

	if (sched->busy_bounded)
		return 0;
	*end_ns = run_end_ns(sched);
	if (vgpu_before(now_ns, *end_ns))
		return 0;
	if (!loan->open)
		return loan->kept;
	if (!is_alone(sched))
		return 0;
	if (timeslice_ns != sched->owner->group->params.timeslice_ns)
		return 1;
	timeslice_ns = div64_u64(now_ns - *end_ns, timeslice_ns);
	*end_ns += timeslice_ns * sched->run_timeslice_ns;
	return 1 + timeslice_ns;
}

/* End this many runs now. */
void vgpu_lease_renew(struct vgpu_sched *sched, u64 runs)
{
	struct vgpu_slice *owner = sched->owner;

	sched->loan.kept = false;
	vgpu_review_caps(sched);
	if (!owner->entity.ready || !owner->group->entity.ready) {
		sched->loan.open = false;
		sched->loan.until_ns = sched->now_ns;
		return;
	}
	vgpu_run_renew(sched, VGPU_RUN_TIMESLICE, runs, sched->run_band);
}

/* Extend an end that would make the lease too short to be worth lending. */
static u64 least_end_ns(const struct vgpu_sched *sched, u64 end_ns)
{
	u64 least_ns = sched->loan.begun_ns + sched->params.min_chunk_ns;

	return vgpu_before(end_ns, least_ns) ? least_ns : end_ns;
}

/* Something has changed: it is no longer known which slice is chosen after this run. */
void vgpu_lease_recall(struct vgpu_sched *sched)
{
	struct vgpu_loan *loan = &sched->loan;

	if (!loan->lent || !loan->kept)
		return;
	loan->kept = false;
	loan->until_ns = least_end_ns(sched, run_end_ns(sched));
}

/* Will the owner be chosen again at the end of its run, if nothing changes? */
static bool is_kept(struct vgpu_sched *sched)
{
	struct vgpu_slice *owner = sched->owner;
	struct vgpu_group *group = owner->group;
	u64 left_ns = vgpu_run_left_ns(sched);
	const struct vgpu_group *first = vgpu_first_of_latency(sched);

	if (sched->hold.slice || !owner->entity.ready || !group->entity.ready)
		return false;
	if (!vgpu_queue_keeps(&group->queue, &owner->entity, left_ns))
		return false;
	if (sched->run_band == VGPU_BAND_LATENCY)
		return first == group;
	return !first && vgpu_queue_keeps(&sched->queue, &group->entity, left_ns);
}

/*
 * Give a lease without an end an end.  Until now the lease has used no reservation of
 * the owner's group; the reservation is brought up to date here.
 */
static void end_open(struct vgpu_sched *sched)
{
	struct vgpu_group *group = sched->owner->group;

	if (!sched->loan.open)
		return;
	sched->loan.open = false;
	vgpu_reserve_wake(group, sched->now_ns);
	vgpu_reserve_refresh(sched, group);
}

/*
 * Set the end of the lease from the present state, unless another group cuts the
 * lease.
 */
static void set_end(struct vgpu_sched *sched)
{
	struct vgpu_loan *loan = &sched->loan;
	u64 timeslice_ns = sched->owner->group->params.timeslice_ns;
	u64 left_ns = vgpu_run_left_ns(sched);
	u64 funds_ns = vgpu_funds_ns(sched, sched->owner);
	u64 end_ns = sched->now_ns + min(left_ns, funds_ns);
	u64 later_ns;

	if (sched->hold.slice && sched->run_band == VGPU_BAND_FAIR)
		end_ns = vgpu_earlier(end_ns, loan->gap_end_ns);
	loan->until_ns = least_end_ns(sched, end_ns);
	if (funds_ns <= left_ns || !is_kept(sched))
		return;
	later_ns = sched->now_ns + min(left_ns + timeslice_ns, funds_ns);
	if (!vgpu_before(loan->until_ns, later_ns))
		return;
	loan->until_ns = later_ns;
	loan->kept = true;
}

/*
 * Does the owner continue in band L because its group has budget again?  Its present
 * run then ends and the next one begins, as if the owner had been picked again.
 */
static bool is_promoted(struct vgpu_sched *sched)
{
	struct vgpu_slice *owner = sched->owner;

	if (sched->run_band == VGPU_BAND_LATENCY || !vgpu_run_left_ns(sched) ||
	    vgpu_first_of_latency(sched) != owner->group)
		return false;
	vgpu_review_caps(sched);
	return owner->entity.ready && owner->group->entity.ready &&
	       vgpu_queue_repicks(&owner->group->queue, &owner->entity);
}

/* Set the end of a lease that has not expired. */
static void renew(struct vgpu_sched *sched)
{
	struct vgpu_slice *owner = sched->owner;
	struct vgpu_group *group = owner->group;

	sched->loan.kept = false;
	vgpu_bucket_refill(&owner->bucket, sched->now_ns);
	vgpu_bucket_refill(&group->bucket, sched->now_ns);
	if (owner->has_item && is_alone(sched) &&
	    vgpu_bucket_lasts_ns(&owner->bucket) == U64_MAX &&
	    vgpu_bucket_lasts_ns(&group->bucket) == U64_MAX) {
		sched->loan.open = true;
		return;
	}
	end_open(sched);
	if (is_promoted(sched))
		vgpu_run_renew(sched, VGPU_RUN_LATENCY, 1, VGPU_BAND_LATENCY);
	if (vgpu_run_is_due_to_others(sched))
		sched->loan.until_ns = sched->now_ns;
	else
		set_end(sched);
}

static u64 earlier_of(u64 at_ns, const struct vgpu_node *first)
{
	if (!first)
		return at_ns;
	return at_ns == U64_MAX ? first->key : vgpu_earlier(at_ns, first->key);
}

/*
 * When to review the end of the lease if nothing happens before: when another slice
 * may use the engine again, or may go first again.
 */
static u64 review_at_ns(const struct vgpu_sched *sched)
{
	u64 at_ns = earlier_of(U64_MAX, vgpu_tree_first(sched->throttled));

	if (sched->loan.open)
		return at_ns;
	return earlier_of(at_ns, vgpu_tree_first(sched->demoted));
}

static void describe(struct vgpu_sched *sched, struct vgpu_lease *out)
{
	const struct vgpu_loan *loan = &sched->loan;

	out->slice = sched->owner;
	out->number = loan->number;
	out->begun_ns = loan->begun_ns;
	out->expires_ns = loan->open ? U64_MAX : loan->until_ns;
	out->review_at_ns = review_at_ns(sched);
	out->contended = !is_alone(sched);
	out->band = sched->run_band;
}

enum vgpu_sched_field vgpu_slice_ready(struct vgpu_sched *sched,
				       struct vgpu_slice *slice,
				       const struct vgpu_item_info *first,
				       u64 now_ns)
{
	enum vgpu_sched_field fault = vgpu_slice_fault(sched, slice);

	if (!fault && first && first->flags)
		fault = VGPU_FIELD_ITEM_FLAGS;
	fault = fault ?: vgpu_sched_advance(sched, now_ns);
	if (fault)
		return fault;
	if (first) {
		vgpu_slice_describe(sched, slice, first);
		return VGPU_FIELD_NONE;
	}
	vgpu_slice_end_gap(sched, slice);
	vgpu_slice_set_item(sched, slice, true);
	return VGPU_FIELD_NONE;
}

enum vgpu_sched_field vgpu_sched_lend(struct vgpu_sched *sched, u64 now_ns,
				      struct vgpu_lease *out)
{
	struct vgpu_loan *loan = &sched->loan;
	struct vgpu_decision decision;
	enum vgpu_sched_field fault;
	u64 ns;

	fault = (loan->lent ? VGPU_FIELD_LEASE : VGPU_FIELD_NONE) ?:
		vgpu_sched_advance(sched, now_ns);
	memset(out, 0, sizeof(*out));
	out->review_at_ns = sched->now_ns;
	if (fault)
		return fault;
	loan->lends = true;
	vgpu_decide(sched, &decision);
	if (decision.slice) {
		ns = vgpu_hold_allows_ns(sched, decision.slice);
		loan->number++;
		loan->begun_ns = sched->now_ns;
		loan->gap_end_ns = sched->now_ns + min(ns, VGPU_HOLD_MAX_NS);
		loan->lent = true;
		loan->open = false;
		renew(sched);
		describe(sched, out);
	} else {
		out->review_at_ns = decision.wake_at_ns;
		out->idle = decision.idle;
		out->payer = decision.payer;
	}
	out->switched = decision.switched;
	out->ended = decision.ended;
	return VGPU_FIELD_NONE;
}

enum vgpu_sched_field vgpu_sched_review(struct vgpu_sched *sched, u64 now_ns,
					struct vgpu_lease *out)
{
	struct vgpu_loan *loan = &sched->loan;
	enum vgpu_sched_field fault;

	fault = (loan->lent ? VGPU_FIELD_NONE : VGPU_FIELD_LEASE) ?:
		vgpu_sched_advance(sched, now_ns);
	memset(out, 0, sizeof(*out));
	out->review_at_ns = sched->now_ns;
	if (fault)
		return fault;
	vgpu_reserve_replenish(sched);
	if (!vgpu_run_is_due_to_others(sched))
		vgpu_hold_review(sched);
	if (loan->open || vgpu_before(sched->now_ns, loan->until_ns))
		renew(sched);
	describe(sched, out);
	vgpu_run_report(sched, &out->ended);
	return VGPU_FIELD_NONE;
}

static void take_back(struct vgpu_sched *sched)
{
	end_open(sched);
	sched->loan.lent = false;
	sched->executing = false;
	sched->busy_until_ns = sched->now_ns;
	sched->busy_bounded = true;
}

enum vgpu_sched_field vgpu_slice_yield(struct vgpu_sched *sched,
				       struct vgpu_slice *slice,
				       const struct vgpu_yield *yield,
				       u64 now_ns)
{
	const struct vgpu_item_info next = {
		.kernel_id = yield->kernel_id,
		.hint_ns = yield->hint_ns,
	};
	enum vgpu_sched_field fault = vgpu_slice_fault(sched, slice);

	if (!fault && !(sched->loan.lent && sched->owner == slice))
		fault = VGPU_FIELD_LEASE;
	if (!fault && yield->flags & ~VGPU_YIELD_FLAGS)
		fault = VGPU_FIELD_ITEM_FLAGS;
	fault = fault ?: vgpu_sched_advance(sched, now_ns);
	if (fault)
		return fault;
	take_back(sched);
	slice->more = yield->flags == VGPU_YIELD_MORE;
	slice->done_kernel_id = yield->kernel_id;
	slice->done_at_ns = sched->now_ns;
	if (yield->flags & VGPU_YIELD_WANT)
		vgpu_slice_describe(sched, slice, &next);
	else
		vgpu_slice_set_item(sched, slice, false);
	return VGPU_FIELD_NONE;
}

enum vgpu_sched_field vgpu_sched_unused(struct vgpu_sched *sched, u64 unused_ns,
					u64 now_ns)
{
	if (vgpu_before(now_ns, sched->now_ns))
		return VGPU_FIELD_TIME;
	if (vgpu_lease_is_open(sched) && !vgpu_has_ghosts(sched))
		sched->loan.unused_ns = min(unused_ns, now_ns - sched->now_ns);
	vgpu_sched_advance(sched, now_ns);
	sched->loan.unused_ns = 0;
	return VGPU_FIELD_NONE;
}

enum vgpu_sched_field vgpu_slice_owe(struct vgpu_sched *sched,
				     struct vgpu_slice *slice, u64 ns,
				     u64 now_ns)
{
	struct vgpu_group *group = slice->group;
	enum vgpu_sched_field fault;

	fault = vgpu_slice_fault(sched, slice) ?: vgpu_sched_advance(sched, now_ns);
	if (fault)
		return fault;
	slice->stats.debt_ns += ns;
	group->stats.debt_ns += ns;
	vgpu_queue_owe(&group->queue, &slice->entity, ns);
	vgpu_queue_owe(&sched->queue, &group->entity, ns);
	if (group->params.band == VGPU_BAND_LATENCY)
		vgpu_reserve_use(sched, group, ns);
	vgpu_slice_overdraw(sched, slice, ns);
	return VGPU_FIELD_NONE;
}
