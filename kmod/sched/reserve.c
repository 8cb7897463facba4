// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Reservations: which ones are admitted (the tree sched->grants), and the constant
 * bandwidth server behind each (the trees sched->latency and ->demoted).
 */
#include "internal.h"

/* Q / P in millionths, rounded up. */
static u64 bandwidth_ppm(const struct vgpu_group_params *params)
{
	if (!params->reserve_ns)
		return 0;
	return div64_u64(params->reserve_ns * 1000000 +
			 params->reserve_period_ns - 1,
			 params->reserve_period_ns);
}

/* Deadlines in 10^15 ns, rounded up. */
static u64 deadlines(const struct vgpu_group_params *params)
{
	if (!params->reserve_ns)
		return 0;
	return div64_u64(1000000000000000ull + params->reserve_period_ns - 1,
			 params->reserve_period_ns);
}

/* Overdraft that admission assumes: how far a piece may exceed the budget. */
static u64 overdraft_ns(const struct vgpu_sched_params *params)
{
	return params->splits ? 0 : params->max_chunk_ns;
}

/* Is the sum of (Q + overdraft) / P, given as two sums, within @permille? */
static bool is_within(u32 permille, u64 ppm, u64 ends, u64 overdraft)
{
	u64 limit_ppm = permille * 1000ull;

	if (ppm > limit_ppm)
		return false;
	return !ends ||
	       overdraft <= div64_u64((limit_ppm - ppm) * 1000000000, ends);
}

/* The largest sum of all weights at which Q / P is at most the group's share. */
static u64 most_weight(const struct vgpu_group_params *params)
{
	return div64_u64(params->weight * params->reserve_period_ns,
			 params->reserve_ns);
}

/* The least most_weight() over all groups with a reservation, except @group. */
static u64 most_weight_of_others(const struct vgpu_sched *sched,
				 const struct vgpu_group *group)
{
	struct vgpu_node *node = vgpu_tree_first(sched->grants);

	if (node && group && node == &group->reserve.grant)
		node = node->right ? vgpu_tree_first(node->right) : node->parent;
	return node ? node->key : U64_MAX;
}

static bool exceeds_cap(const struct vgpu_group_params *params)
{
	return params->cap_ns && params->reserve_ns * params->cap_period_ns >
				 params->cap_ns * params->reserve_period_ns;
}

/* Invariant 12: can @params be kept together with all admitted reservations? */
enum vgpu_sched_field vgpu_reserve_check(const struct vgpu_sched *sched,
					 const struct vgpu_group *group,
					 const struct vgpu_group_params *params)
{
	u64 period_ns = params->reserve_period_ns;
	u64 ppm = sched->reserved_ppm - (group ? bandwidth_ppm(&group->params) : 0);
	u64 ends = sched->deadlines - (group ? deadlines(&group->params) : 0);
	u64 weight = sched->weight - (group ? group->params.weight : 0) +
		     params->weight;

	if (weight > most_weight_of_others(sched, group))
		return VGPU_FIELD_WEIGHT;
	if (params->band == VGPU_BAND_FAIR)
		return params->reserve_ns || period_ns ? VGPU_FIELD_RESERVE :
							 VGPU_FIELD_NONE;
	if (period_ns < VGPU_RESERVE_PERIOD_MIN_NS ||
	    period_ns > VGPU_RESERVE_PERIOD_MAX_NS ||
	    period_ns < VGPU_RESERVE_CHUNKS * sched->params.max_chunk_ns)
		return VGPU_FIELD_RESERVE_PERIOD;
	if (!params->reserve_ns || params->reserve_ns > period_ns ||
	    exceeds_cap(params) || weight > most_weight(params) ||
	    !is_within(sched->params.reserve_limit_permille,
		       ppm + bandwidth_ppm(params), ends + deadlines(params),
		       overdraft_ns(&sched->params)))
		return VGPU_FIELD_RESERVE;
	return VGPU_FIELD_NONE;
}

/* Would @params break an admitted reservation? */
enum vgpu_sched_field
vgpu_reserve_check_engine(const struct vgpu_sched *sched,
			  const struct vgpu_sched_params *params)
{
	u64 shortest_ns = sched->grants ? sched->grants->best->rank : U64_MAX;
	u32 permille = params->reserve_limit_permille;

	if (VGPU_RESERVE_CHUNKS * params->max_chunk_ns > shortest_ns)
		return VGPU_FIELD_MAX_CHUNK;
	if (is_within(permille, sched->reserved_ppm, sched->deadlines,
		      overdraft_ns(params)))
		return VGPU_FIELD_NONE;
	return is_within(permille, sched->reserved_ppm, sched->deadlines,
			 overdraft_ns(&sched->params)) ?
	       VGPU_FIELD_MAX_CHUNK : VGPU_FIELD_RESERVE_LIMIT;
}

/*
 * vgpu_reserve_admit() counts the weight and reservation of @group;
 * vgpu_reserve_dismiss() undoes that.
 */
void vgpu_reserve_admit(struct vgpu_sched *sched, struct vgpu_group *group)
{
	sched->weight += group->params.weight;
	if (!group->params.reserve_ns)
		return;
	sched->reserved_ppm += bandwidth_ppm(&group->params);
	sched->deadlines += deadlines(&group->params);
	group->reserve.grant.key = most_weight(&group->params);
	group->reserve.grant.rank = group->params.reserve_period_ns;
	vgpu_tree_insert(&sched->grants, &group->reserve.grant);
}

/* Add the budget that was due at deadlines that have passed. */
static void replenish(struct vgpu_group *group, u64 now_ns)
{
	const struct vgpu_group_params *params = &group->params;
	struct vgpu_reserve *reserve = &group->reserve;
	u64 periods, due_ns;

	if (vgpu_before(now_ns, reserve->deadline_ns))
		return;
	periods = 1 + div64_u64(now_ns - reserve->deadline_ns,
				params->reserve_period_ns);
	due_ns = periods * params->reserve_ns;
	reserve->deadline_ns += periods * params->reserve_period_ns;
	if (due_ns >= params->reserve_ns - (u64)reserve->budget_ns)
		reserve->budget_ns = params->reserve_ns;
	else
		reserve->budget_ns += due_ns;
}

/* Budget that was due until now is computed with the old parameters. */
void vgpu_reserve_dismiss(struct vgpu_sched *sched, struct vgpu_group *group)
{
	sched->weight -= group->params.weight;
	if (!group->params.reserve_ns)
		return;
	sched->reserved_ppm -= bandwidth_ppm(&group->params);
	sched->deadlines -= deadlines(&group->params);
	vgpu_tree_erase(&sched->grants, &group->reserve.grant);
	if (group->reserve.budget_ns <= 0)
		replenish(group, sched->now_ns);
}

/* @group is about to become ready. */
void vgpu_reserve_wake(struct vgpu_group *group, u64 now_ns)
{
	const struct vgpu_group_params *params = &group->params;
	struct vgpu_reserve *reserve = &group->reserve;

	if (params->band != VGPU_BAND_LATENCY)
		return;
	replenish(group, now_ns);
	if (reserve->budget_ns > 0 &&
	    (u64)reserve->budget_ns * params->reserve_period_ns >
		    (reserve->deadline_ns - now_ns) * params->reserve_ns) {
		reserve->deadline_ns = now_ns + params->reserve_period_ns;
		reserve->budget_ns = params->reserve_ns;
	}
}

/* When @group will have budget again: at the first deadline that leaves it some. */
static u64 return_ns(const struct vgpu_group *group)
{
	const struct vgpu_group_params *params = &group->params;
	u64 periods = div64_u64(-(u64)group->reserve.budget_ns, params->reserve_ns);
	u64 most = div64_u64(1ull << 62, params->reserve_period_ns);

	return group->reserve.deadline_ns +
	       min(periods, most) * params->reserve_period_ns;
}

/* Readiness, budget or deadline may have changed: move @group to the tree it belongs to. */
void vgpu_reserve_refresh(struct vgpu_sched *sched, struct vgpu_group *group)
{
	struct vgpu_reserve *reserve = &group->reserve;
	struct vgpu_node **tree = NULL;
	u64 key = reserve->deadline_ns;

	if (group->params.band == VGPU_BAND_LATENCY && group->entity.ready)
		tree = reserve->budget_ns > 0 ? &sched->latency :
						&sched->demoted;
	if (tree == &sched->demoted)
		key = return_ns(group);
	if (tree == reserve->tree && (!tree || reserve->node.key == key))
		return;
	if (reserve->tree)
		vgpu_tree_erase(reserve->tree, &reserve->node);
	reserve->tree = tree;
	reserve->node.key = key;
	if (tree)
		vgpu_tree_insert(tree, &reserve->node);
}

/* Replenish groups that have budget again. */
void vgpu_reserve_replenish(struct vgpu_sched *sched)
{
	struct vgpu_node *node;
	struct vgpu_group *group;

	while ((node = vgpu_tree_first(sched->demoted)) &&
	       !vgpu_before(sched->now_ns, node->key)) {
		group = container_of(node, struct vgpu_group, reserve.node);
		replenish(group, sched->now_ns);
		vgpu_reserve_refresh(sched, group);
	}
}

/*
 * @group has used @ns of its budget until now.  Budget that was due before that use is
 * added first: it is limited to Q at that time, so it does not pay for use that came
 * later.  This matters because a lease may last for many periods.
 */
void vgpu_reserve_use(struct vgpu_sched *sched, struct vgpu_group *group, u64 ns)
{
	s64 before_ns;

	ns = min(ns, OVERDRAFT_MAX_NS);
	if (group->params.reserve_ns && group->reserve.budget_ns <= 0)
		replenish(group, sched->now_ns - ns);
	before_ns = group->reserve.budget_ns;
	group->reserve.budget_ns = max(before_ns - (s64)ns,
				       -(s64)OVERDRAFT_MAX_NS);
	if (before_ns > 0 && group->reserve.budget_ns <= 0)
		group->stats.demotions++;
	vgpu_reserve_refresh(sched, group);
}

/* The parameters of @group are new; it had a reservation iff @kept. */
void vgpu_reserve_configure(struct vgpu_sched *sched, struct vgpu_group *group,
			    bool kept)
{
	const struct vgpu_group_params *params = &group->params;
	struct vgpu_reserve *reserve = &group->reserve;
	u64 latest_ns = sched->now_ns + params->reserve_period_ns;

	if (!kept || (s64)params->reserve_ns < reserve->budget_ns)
		reserve->budget_ns = params->reserve_ns;
	if (!kept || vgpu_before(latest_ns, reserve->deadline_ns))
		reserve->deadline_ns = latest_ns;
	vgpu_reserve_refresh(sched, group);
}
