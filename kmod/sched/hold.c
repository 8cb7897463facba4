// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Hold and gap gate: a group of band L keeps the engine between two items of one
 * request (invariant 13), and the gate decides which items of the fair band may
 * execute meanwhile (invariant 14).  The idea is from FIKIT (Wu, arXiv 2311.10359).
 * New here is that fills are paid from a budget of measured inversion and cannot
 * exceed it.
 *
 * While the engine idles for the holder, the holder is the owner and pays like one.
 * While another group fills the gap, the holder sleeps like any slice without an
 * item.
 */
#include "internal.h"

/* Number of groups that are tried, best first, to find an item that fits. */
#define FILLERS		4u
/* A gap that is not longer than this many switches is not worth a lease. */
#define FILL_SWITCHES	2u

static bool is_over(const struct vgpu_slice *slice)
{
	const struct vgpu_group *group = slice->group;

	return !slice->more || !group->params.hold_max_ns ||
	       group->nr_with_item || group->reserve.budget_ns <= 0 ||
	       group->bucket.throttled || slice->bucket.throttled;
}

/* By default the inversion budget can save up one chunk of the present length. */
void vgpu_hold_configure(struct vgpu_sched *sched, struct vgpu_group *group)
{
	const struct vgpu_group_params *params = &group->params;

	vgpu_bucket_refill(&group->inversion, sched->now_ns);
	vgpu_bucket_configure(&group->inversion, params->inversion_permille, 1000,
			      params->inversion_burst_ns ?
				      params->inversion_burst_ns :
				      sched->params.max_chunk_ns);
}

/*
 * Begin a hold after the run of @slice's group ran dry.  A hold in progress is
 * never replaced.
 */
void vgpu_hold_begin(struct vgpu_sched *sched, struct vgpu_slice *slice)
{
	struct vgpu_group *group = slice->group;

	if (sched->hold.slice || is_over(slice))
		return;
	vgpu_hold_configure(sched, group);
	sched->hold.slice = slice;
	sched->hold.since_ns = sched->now_ns;
	group->stats.holds++;
}

/* How long the present hold can still last. */
static u64 lasts_ns(const struct vgpu_sched *sched)
{
	const struct vgpu_slice *slice = sched->hold.slice;
	const struct vgpu_group *group = slice->group;
	u64 held_ns = sched->now_ns - sched->hold.since_ns;
	u64 ns;

	if (is_over(slice) || held_ns >= group->params.hold_max_ns)
		return 0;
	ns = group->params.hold_max_ns - held_ns;
	ns = min_t(u64, ns, group->reserve.budget_ns);
	ns = min(ns, vgpu_bucket_lasts_ns(&group->bucket));
	return min(ns, vgpu_bucket_lasts_ns(&slice->bucket));
}

/* While the engine idles for the holder, the holder pays at most until this time. */
void vgpu_hold_bound(struct vgpu_sched *sched)
{
	struct vgpu_slice *slice = sched->hold.slice;

	if (!sched->holding)
		return;
	vgpu_bucket_refill(&slice->bucket, sched->now_ns);
	vgpu_bucket_refill(&slice->group->bucket, sched->now_ns);
	sched->busy_until_ns = sched->now_ns + lasts_ns(sched);
	sched->busy_bounded = true;
}

/* Called when a new decision is made: the engine no longer idles for its holder. */
void vgpu_hold_pause(struct vgpu_sched *sched)
{
	struct vgpu_slice *slice = sched->owner;

	if (!sched->holding)
		return;
	vgpu_review_caps(sched);
	sched->holding = false;
	sched->run_band = VGPU_BAND_FAIR;
	sched->owner = NULL;
	vgpu_queue_put(&slice->group->queue, &slice->entity, true);
	vgpu_queue_put(&sched->queue, &slice->group->entity, true);
}

/* Before a decision: end a hold that is over. */
void vgpu_hold_review(struct vgpu_sched *sched)
{
	struct vgpu_slice *slice = sched->hold.slice;

	if (!slice)
		return;
	vgpu_bucket_refill(&slice->group->inversion, sched->now_ns);
	if (is_over(slice) ||
	    sched->now_ns - sched->hold.since_ns >= slice->group->params.hold_max_ns)
		sched->hold.slice = NULL;
}

/* Charge @ns of execution during a hold as inversion if the holder was ready. */
void vgpu_hold_charge(struct vgpu_sched *sched, u64 ns)
{
	struct vgpu_group *group = sched->hold.slice->group;

	if (sched->run_band == VGPU_BAND_FAIR && group->entity.ready) {
		group->stats.inversion_ns += ns;
		vgpu_bucket_use(&group->inversion, ns);
	}
	vgpu_bucket_refill(&group->inversion, sched->now_ns);
}

/*
 * Length of the shortest lease with which @slice can fill a gap: the duration of
 * its first kernel.  A false hint does no harm, because the lease ends with the gap
 * and not with the kernel.
 */
static u64 least_lease_ns(const struct vgpu_sched *sched,
			  const struct vgpu_slice *slice)
{
	u64 ns = FILL_SWITCHES * sched->params.switch_cost_ns;

	ns = max(ns, sched->params.min_chunk_ns);
	if (!slice->described || !slice->item.hint_ns)
		return max(ns, sched->params.max_chunk_ns);
	return max(ns, slice->item.hint_ns);
}

/* How long the next piece of @slice is predicted to take. */
static u64 piece_ns(const struct vgpu_sched *sched,
		    const struct vgpu_slice *slice)
{
	u64 longest_ns = sched->params.max_chunk_ns;
	u64 ns = longest_ns;

	if (sched->loan.lends)
		return least_lease_ns(sched, slice);
	if (slice->described)
		ns = vgpu_predict_duration_ns(slice->group, &slice->item);
	return ns > slice->item_ns ? min(ns - slice->item_ns, longest_ns) :
				     longest_ns;
}

/* The inversion budget that @slice would need to pass the gap gate now. */
static u64 needs_ns(const struct vgpu_sched *sched,
		    const struct vgpu_slice *slice)
{
	const struct vgpu_slice *holder = sched->hold.slice;

	return vgpu_predict_inversion_ns(holder->group, holder->done_kernel_id,
					 sched->now_ns - holder->done_at_ns,
					 piece_ns(sched, slice));
}

/* The longest piece of @slice that may begin now; 0 if none may. */
u64 vgpu_hold_allows_ns(const struct vgpu_sched *sched,
			const struct vgpu_slice *slice)
{
	const struct vgpu_slice *holder = sched->hold.slice;
	u64 elapsed_ns, gap_ns, credit_ns, longest_ns;
	const struct vgpu_group *group;

	if (!holder)
		return U64_MAX;
	group = holder->group;
	if (!group->params.inversion_permille || group->inversion.credit_ns < 0)
		return 0;
	credit_ns = group->inversion.credit_ns;
	elapsed_ns = sched->now_ns - holder->done_at_ns;
	if (sched->loan.lends) {
		gap_ns = vgpu_predict_fill_ns(group, holder->done_kernel_id,
					      elapsed_ns, credit_ns);
		return gap_ns < least_lease_ns(sched, slice) ? 0 : gap_ns;
	}
	if (needs_ns(sched, slice) <= credit_ns)
		return piece_ns(sched, slice);
	gap_ns = vgpu_predict_gap_ns(group, holder->done_kernel_id, elapsed_ns,
				     &longest_ns);
	if (!sched->params.splits ||
	    gap_ns < elapsed_ns + sched->params.min_chunk_ns)
		return 0;
	return gap_ns - elapsed_ns;
}

/* The first group of the fair band with an item that passes the gate, or NULL. */
struct vgpu_group *vgpu_hold_filler(struct vgpu_sched *sched)
{
	struct vgpu_entity *entity, *refused[FILLERS];
	struct vgpu_group *filler = NULL, *group;
	struct vgpu_slice *slice;
	u32 n = 0;

	sched->hold.needs_ns = U64_MAX;

	while (n < FILLERS && (entity = vgpu_queue_pick(&sched->queue))) {
		group = container_of(entity, struct vgpu_group, entity);
		slice = vgpu_first_slice(group);
		if (vgpu_hold_allows_ns(sched, slice)) {
			filler = group;
			break;
		}
		sched->hold.needs_ns = min(sched->hold.needs_ns,
					   needs_ns(sched, slice));
		vgpu_tree_erase(&sched->queue.ready, &entity->node);
		refused[n++] = entity;
	}
	while (n)
		vgpu_tree_insert(&sched->queue.ready, &refused[--n]->node);
	return filler;
}

/* No item fits: the engine idles for its holder. */
void vgpu_hold_resume(struct vgpu_sched *sched)
{
	struct vgpu_slice *slice = sched->hold.slice;
	struct vgpu_group *group = slice->group;

	sched->holding = true;
	vgpu_hold_bound(sched);
	sched->run_band = VGPU_BAND_LATENCY;
	sched->owner = slice;
	vgpu_queue_resume(&group->queue, &slice->entity);
	vgpu_queue_resume(&sched->queue, &group->entity);
}

/* When to decide again whether to idle for the holder. */
u64 vgpu_hold_wake_at_ns(const struct vgpu_sched *sched)
{
	const struct vgpu_slice *slice = sched->hold.slice;
	const struct vgpu_bucket *inversion = &slice->group->inversion;
	u64 wake_at_ns = sched->busy_until_ns;
	u64 longest_ns, wait_ns;

	vgpu_predict_gap_ns(slice->group, slice->done_kernel_id,
			    sched->now_ns - slice->done_at_ns, &longest_ns);
	if (sched->queue.nr_ready && longest_ns < U64_MAX)
		wake_at_ns = vgpu_earlier(wake_at_ns,
					  slice->done_at_ns + longest_ns);
	if (sched->queue.nr_ready && sched->hold.needs_ns <= inversion->burst_ns) {
		wait_ns = vgpu_bucket_wait_ns(inversion, sched->hold.needs_ns);
		wait_ns = max(wait_ns, sched->params.min_chunk_ns);
		wake_at_ns = vgpu_earlier(wake_at_ns, sched->now_ns + wait_ns);
	}
	if (sched->demoted)
		wake_at_ns = vgpu_earlier(wake_at_ns,
					  vgpu_tree_first(sched->demoted)->key);
	if (sched->throttled)
		wake_at_ns = vgpu_earlier(wake_at_ns,
					  vgpu_tree_first(sched->throttled)->key);
	return wake_at_ns;
}
