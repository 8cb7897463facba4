// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * EEVDF (Stoica and Abdel-Wahab, 1995; kernel/sched/fair.c) among the entities
 * of one level: groups on an engine, or slices in a group.
 *
 * The virtual runtime v of an entity grows by ns / weight.  The virtual time V
 * of the queue is the weighted mean of the v of its members.  The code does not keep
 * sums of weight * v, but V itself, rounded down, and the remainder of that rounding:
 *
 *	sum(weight_i * (v_i - vtime)) == vtime_rem,   0 <= vtime_rem < sum(weight_i)
 *
 * This is fair.c's sum relative to a moving origin, with the origin always at V.  It is
 * exact, and eligibility needs no division: v <= V iff v <= vtime.
 *
 * The members are the ready entities (tree "ready"), the sleeping or throttled entities
 * that are still in debt (tree "debtors"), and at most one entity that still runs
 * although it is no longer ready (in neither tree until vgpu_queue_put()).  Lags add up
 * to zero and debtors are above V, so a queue with members has an eligible ready entity
 * once none is running.
 *
 * A request is as large as the longest legal run, timeslice and overrun, not just the
 * timeslice, because the bound on lag (Stoica's theorem 1) requires that no run exceeds
 * its request.  With smaller requests the overruns of many light entities add up in
 * front of a heavy one: weight 100 against 50 of weight 1, with pieces up to 0.4 ms and
 * a timeslice of 1 ms, gave a lag of 4.8 ms.  For the same reason an entity that
 * becomes ready begins a new request: it may run for a whole timeslice again.  Without
 * that, 64 entities that returned to the rest of a request, all with the same deadline,
 * kept an entity with half of all weight waiting for 48 of their timeslices.
 *
 * An entity that joins with credit (v below H, the furthest V has been) pulls V back,
 * and the others wait until V is at H again.  So the total credit is bounded.  Let D =
 * sum(weight_i * (H - v_i)) over the members be the credit that they have, and P the
 * pool of credit that may still be given:
 *
 *	H advances by service		P grows by the sleeping weight times that
 *	a member leaves, v below H	D falls by its credit, P grows by it
 *	an entity joins with credit	P is cut so that D + P is at most its timeslice;
 *					it gets no more than P; D grows by that, P falls
 *	one with almost none joins	it joins with none
 *
 * Service either lowers D or moves H.  Let T be the time that members were served and W
 * the weight of all entities, asleep or not.  Then T - (D + P at its beginning) is at
 * most W * (H now - H then).  So sleepers delay nobody by more than one timeslice
 * beyond the service that they would have received awake.  When each returner had a
 * timeslice of credit, 255 that returned together kept an entity with half of all
 * weight waiting for 255 timeslices.
 */
#include "internal.h"

/* Units of virtual time per ns at weight 1; v is exact through the remainder. */
#define VTIME_SHIFT	14
/* weight * (v - V) of a debt saturates here: 78 hours. */
#define DEBT_MAX	((s64)1 << 62)
/* More credit in the pool than the longest timeslice is never useful. */
#define CREDIT_MAX	(VGPU_TIMESLICE_MAX_NS << VTIME_SHIFT)
/*
 * Credit up to this amount may be a rounding error of zero credit, so the pool is not
 * cut for it.
 */
#define NO_CREDIT	64
/* A lap of virtual time; times two laps apart can still be compared by difference. */
#define VTIME_LAP	(1ull << 62)
/* Wrap soon after the start, so that every test covers wrapping. */
#define VTIME_START	(0 - (1ull << 40))

static struct vgpu_entity *entity_of(struct vgpu_node *node)
{
	return container_of(node, struct vgpu_entity, node);
}

static u64 to_vtime(u64 ns, u32 weight)
{
	return div64_u64(ns << VTIME_SHIFT, weight);
}

/* weight * (V - v), in units of 2^-VTIME_SHIFT ns */
static s64 lag_units(const struct vgpu_queue *queue,
		     const struct vgpu_entity *entity)
{
	return (s64)(entity->weight * (queue->vtime - entity->node.key));
}

static s64 floor_div(s64 a, s64 b)
{
	s64 quotient = div64_s64(a, b);

	return a - quotient * b < 0 ? quotient - 1 : quotient;
}

static void raise_high(struct vgpu_queue *queue)
{
	if (vgpu_before(queue->vtime_high, queue->vtime))
		queue->vtime_high = queue->vtime;
}

/*
 * @weight times a distance in virtual time, saturated at CREDIT_MAX.
 */
static u64 to_credit(u64 vtime, u64 weight)
{
	u64 units;

	if (check_mul_overflow(vtime, weight, &units))
		return CREDIT_MAX;
	return min(units, CREDIT_MAX);
}

/* The pool of credit as of now. */
static u64 pool_units(const struct vgpu_queue *queue)
{
	u64 earned = to_credit(queue->vtime_high - queue->credit_mark, queue->asleep);

	return min(queue->credit + earned, CREDIT_MAX);
}

/* Call this before the sleeping weight changes. */
static void settle_credit(struct vgpu_queue *queue)
{
	queue->credit = pool_units(queue);
	queue->credit_mark = queue->vtime_high;
}

/*
 * How much credit may be added to what members have, given the timeslice of a returning
 * entity.
 */
static u64 room_units(const struct vgpu_queue *queue, u64 timeslice_ns)
{
	u64 most = timeslice_ns << VTIME_SHIFT;
	u64 behind = queue->vtime_high - queue->vtime;
	u64 out;

	if (!queue->weight || !behind)
		return most;
	if (check_mul_overflow(behind, queue->weight, &out))
		return 0;
	out -= queue->vtime_rem;
	return out < most ? most - out : 0;
}

/* sum(weight_i * (v_i - vtime)) has changed by @units: move V to the new mean. */
static void move_vtime(struct vgpu_queue *queue, s64 units)
{
	s64 sum = (s64)queue->vtime_rem + units;
	s64 step;

	if (!queue->weight) {
		queue->vtime_rem = 0;
		return;
	}
	step = floor_div(sum, queue->weight);
	queue->vtime += step;
	queue->vtime_rem = sum - step * (s64)queue->weight;
	raise_high(queue);
	while (!vgpu_before(queue->vtime, queue->vtime_mark)) {
		queue->vtime_mark += VTIME_LAP;
		queue->laps++;
	}
}

static void new_request(struct vgpu_queue *queue, struct vgpu_entity *entity)
{
	entity->node.rank = entity->node.key +
			    to_vtime(entity->timeslice_ns + queue->overrun_ns,
				     entity->weight);
	entity->node.seq = ++queue->seq;
}

/*
 * Set *least to the v at which an entity has the most credit that is allowed.  That
 * credit is measured from the furthest V has been, because a light entity with credit
 * can pull V far back while all heavy entities sleep.  If it were measured from V, an
 * entity that wakes at that moment would gain its weight times that distance over
 * entities that sleep on.
 */
static bool has_too_much_credit(const struct vgpu_queue *queue,
				const struct vgpu_entity *entity, u64 *least)
{
	*least = queue->vtime_high - to_vtime(entity->timeslice_ns, entity->weight);
	return queue->laps - entity->left_lap > 1 ||
	       vgpu_before(entity->node.key, *least);
}

/*
 * Return the v at which a sleeping entity would join; *pool is what would be left of
 * the pool of credit.
 */
static u64 joining_key(const struct vgpu_queue *queue,
		       const struct vgpu_entity *entity, u64 *pool)
{
	u64 key = entity->node.key, least, most;

	*pool = pool_units(queue);
	if (has_too_much_credit(queue, entity, &least))
		key = least;
	if (!vgpu_before(key, queue->vtime_high - NO_CREDIT))
		return vgpu_before(key, queue->vtime_high) ? queue->vtime_high : key;
	*pool = min(*pool, room_units(queue, entity->timeslice_ns));
	most = div64_u64(*pool, entity->weight);
	if (queue->vtime_high - key > most)
		key = queue->vtime_high - most;
	*pool -= entity->weight * (queue->vtime_high - key);
	return key;
}

/* Make the entity a member (invariant 4).  The caller begins a new request. */
static void join(struct vgpu_queue *queue, struct vgpu_entity *entity)
{
	settle_credit(queue);
	entity->node.key = joining_key(queue, entity, &queue->credit);
	entity->member = true;
	if (entity->added)
		queue->asleep -= entity->weight;
	queue->weight += entity->weight;
	move_vtime(queue, -lag_units(queue, entity));
}

static void leave(struct vgpu_queue *queue, struct vgpu_entity *entity)
{
	settle_credit(queue);
	if (vgpu_before(entity->node.key, queue->vtime_high))
		queue->credit += to_credit(queue->vtime_high - entity->node.key,
					   entity->weight);
	entity->member = false;
	entity->left_lap = queue->laps;
	if (entity->added)
		queue->asleep += entity->weight;
	queue->weight -= entity->weight;
	move_vtime(queue, lag_units(queue, entity));
}

/* A member that is not ready leaves unless it is in debt (invariant 3). */
static void leave_or_owe(struct vgpu_queue *queue, struct vgpu_entity *entity)
{
	if (vgpu_before(queue->vtime, entity->node.key))
		vgpu_tree_insert(&queue->debtors, &entity->node);
	else
		leave(queue, entity);
}

/* The queue's virtual time has jumped: entities whose debt it has passed leave the debtors. */
static void release_debtors(struct vgpu_queue *queue)
{
	struct vgpu_node *node;

	while ((node = vgpu_tree_first(queue->debtors)) &&
	       !vgpu_before(queue->vtime, node->key)) {
		vgpu_tree_erase(&queue->debtors, node);
		leave(queue, entity_of(node));
	}
}

static struct vgpu_node **tree_of(struct vgpu_queue *queue,
				  const struct vgpu_entity *entity)
{
	if (!entity->member || (entity->running && !entity->ready))
		return NULL;
	return entity->ready ? &queue->ready : &queue->debtors;
}

/*
 * lift() takes an entity out of its tree to change its key or rank, lower() puts it
 * back.
 */
static struct vgpu_node **lift(struct vgpu_queue *queue,
			       struct vgpu_entity *entity)
{
	struct vgpu_node **tree = tree_of(queue, entity);

	if (tree)
		vgpu_tree_erase(tree, &entity->node);
	return tree;
}

static void lower(struct vgpu_node **tree, struct vgpu_entity *entity)
{
	if (tree)
		vgpu_tree_insert(tree, &entity->node);
}

void vgpu_queue_init(struct vgpu_queue *queue, u64 overrun_ns)
{
	memset(queue, 0, sizeof(*queue));
	queue->overrun_ns = overrun_ns;
	queue->vtime = VTIME_START;
	queue->vtime_high = VTIME_START;
	queue->credit_mark = VTIME_START;
	queue->vtime_mark = VTIME_START + VTIME_LAP;
}

/* A newcomer has neither debt nor credit. */
void vgpu_entity_init(const struct vgpu_queue *queue, struct vgpu_entity *entity,
		      u32 weight, u64 timeslice_ns)
{
	memset(entity, 0, sizeof(*entity));
	entity->weight = weight;
	entity->timeslice_ns = timeslice_ns;
	entity->node.key = queue->vtime_high;
	entity->node.rank = queue->vtime_high;
	entity->left_lap = queue->laps;
}

/* Add an initialized entity to the queue, asleep. */
void vgpu_queue_add(struct vgpu_queue *queue, struct vgpu_entity *entity)
{
	settle_credit(queue);
	entity->added = true;
	queue->asleep += entity->weight;
}

/* Remove an entity that was added and does not run. */
void vgpu_queue_remove(struct vgpu_queue *queue, struct vgpu_entity *entity)
{
	vgpu_queue_set_ready(queue, entity, false);
	if (entity->member) {
		vgpu_tree_erase(&queue->debtors, &entity->node);
		leave(queue, entity);
		release_debtors(queue);
	}
	settle_credit(queue);
	queue->asleep -= entity->weight;
	entity->added = false;
}

/* Returns whether this changed anything. */
bool vgpu_queue_set_ready(struct vgpu_queue *queue, struct vgpu_entity *entity,
			  bool ready)
{
	if (entity->ready == ready)
		return false;
	lift(queue, entity);
	entity->ready = ready;
	if (ready) {
		queue->nr_ready++;
		if (!entity->member)
			join(queue, entity);
		if (!entity->running)
			new_request(queue, entity);
		vgpu_tree_insert(&queue->ready, &entity->node);
	} else {
		queue->nr_ready--;
		if (!entity->running)
			leave_or_owe(queue, entity);
	}
	release_debtors(queue);
	return true;
}

void vgpu_queue_set_weight(struct vgpu_queue *queue, struct vgpu_entity *entity,
			   u32 weight)
{
	struct vgpu_node **tree = lift(queue, entity);
	u64 origin = entity->member ? queue->vtime : queue->vtime_high;
	s64 left = (s64)(entity->node.rank - entity->node.key);
	s64 units = lag_units(queue, entity);
	s64 lag;
	u64 least;

	if (!entity->member && has_too_much_credit(queue, entity, &least)) {
		entity->node.key = least;
		entity->left_lap = queue->laps;
		left = 0;
	}
	lag = (s64)(entity->weight * (origin - entity->node.key));
	left = div64_s64(left * (s64)entity->weight, weight);
	entity->node.key = origin - floor_div(lag, weight);
	entity->node.rank = entity->node.key + left;
	settle_credit(queue);
	if (entity->member)
		queue->weight += (u64)weight - entity->weight;
	else if (entity->added)
		queue->asleep += (u64)weight - entity->weight;
	entity->weight = weight;
	if (entity->member)
		move_vtime(queue, units - lag_units(queue, entity));
	lower(tree, entity);
	release_debtors(queue);
}

/* Applies to later requests; the present request may be shortened but is not prolonged. */
void vgpu_queue_set_timeslice(struct vgpu_queue *queue,
			      struct vgpu_entity *entity, u64 timeslice_ns)
{
	struct vgpu_node **tree;
	u64 latest;

	if (entity->timeslice_ns == timeslice_ns)
		return;
	tree = lift(queue, entity);
	entity->timeslice_ns = timeslice_ns;
	latest = entity->node.key + to_vtime(timeslice_ns + queue->overrun_ns,
					     entity->weight);
	if (vgpu_before(latest, entity->node.rank))
		entity->node.rank = latest;
	lower(tree, entity);
}

/*
 * Move V by @units in total, but only up to the next debtor at a time.  A sleeping
 * debtor whose debt V has reached leaves at that point and no longer slows V.
 */
static void move_vtime_past_debtors(struct vgpu_queue *queue, u64 units)
{
	struct vgpu_node *node;
	u64 gap;

	while ((node = vgpu_tree_first(queue->debtors))) {
		gap = node->key - queue->vtime;
		if (div64_u64(units + queue->vtime_rem, queue->weight) < gap)
			break;
		units -= gap * queue->weight - queue->vtime_rem;
		queue->vtime_rem = 0;
		queue->vtime = node->key;
		raise_high(queue);
		vgpu_tree_erase(&queue->debtors, node);
		leave(queue, entity_of(node));
	}
	move_vtime(queue, (s64)units);
}

/* The entity must run, so it is a member. */
void vgpu_queue_charge(struct vgpu_queue *queue, struct vgpu_entity *entity,
		       u64 ns)
{
	struct vgpu_node **tree = lift(queue, entity);
	s64 debt = -lag_units(queue, entity);
	u64 units = min(ns, (u64)DEBT_MAX >> VTIME_SHIFT) << VTIME_SHIFT;
	u64 step;

	if (debt > 0)
		units = min(units, (u64)max(DEBT_MAX - debt, (s64)0));
	step = div64_u64_rem(units + entity->remainder, entity->weight,
			     &entity->remainder);
	entity->node.key += step;
	move_vtime_past_debtors(queue, entity->weight * step);
	lower(tree, entity);
}

/* The eligible ready entity with the earliest deadline, or NULL. */
struct vgpu_entity *vgpu_queue_pick(const struct vgpu_queue *queue)
{
	struct vgpu_node *node = vgpu_tree_best(queue->ready, queue->vtime);

	return node ? entity_of(node) : NULL;
}

/* Run an entity that is neither ready nor running, because it pays for an idle engine. */
void vgpu_queue_resume(struct vgpu_queue *queue, struct vgpu_entity *entity)
{
	if (entity->member)
		vgpu_tree_erase(&queue->debtors, &entity->node);
	else
		join(queue, entity);
	new_request(queue, entity);
	entity->running = true;
}

/* Has the entity, which runs, used all the service that its request asked for? */
static bool is_used_up(const struct vgpu_entity *entity)
{
	return !vgpu_before(entity->node.key, entity->node.rank);
}

/*
 * The entity stops running; among equal deadlines it now comes last.  Without
 * @request_done it was interrupted and keeps the rest of its request.
 */
void vgpu_queue_put(struct vgpu_queue *queue, struct vgpu_entity *entity,
		    bool request_done)
{
	struct vgpu_node **tree = lift(queue, entity);

	entity->running = false;
	entity->node.seq = ++queue->seq;
	if (request_done || is_used_up(entity))
		new_request(queue, entity);
	if (entity->ready)
		lower(tree, entity);
	else
		leave_or_owe(queue, entity);
	release_debtors(queue);
}

/* Charge the entity for time that it used without running. */
void vgpu_queue_owe(struct vgpu_queue *queue, struct vgpu_entity *entity, u64 ns)
{
	if (entity->member) {
		vgpu_queue_charge(queue, entity, ns);
		return;
	}
	vgpu_queue_resume(queue, entity);
	vgpu_queue_charge(queue, entity, ns);
	vgpu_queue_put(queue, entity, true);
}

/*
 * Would the running entity be picked again if its request were done after @ns more, and
 * nothing happened until then except that debtors leave?  If no debtor leaves, V at
 * that time is known.  If debtors leave, V is at least that value, and moves no further
 * than v.
 */
bool vgpu_queue_keeps(struct vgpu_queue *queue, struct vgpu_entity *entity, u64 ns)
{
	u64 step = div64_u64((ns << VTIME_SHIFT) + entity->remainder,
			     entity->weight);
	u64 least = queue->vtime + div64_u64(entity->weight * step + queue->vtime_rem,
					     queue->weight);
	u64 most = queue->debtors ? queue->vtime + step + 1 : least;
	u64 key = entity->node.key + step;
	u64 rank = key + to_vtime(entity->timeslice_ns + queue->overrun_ns,
				  entity->weight);
	struct vgpu_node **tree = lift(queue, entity);
	struct vgpu_node *rival = vgpu_tree_best(queue->ready, most);

	lower(tree, entity);
	return !rival ||
	       (!vgpu_before(least, key) && vgpu_before(rank, rival->rank));
}

/*
 * Would the entity, which runs, be picked again if it were put now?  Not if its request
 * is used up: it would get a later deadline, and only a pick can tell who is next.  Among
 * equal deadlines, the entity would come last.
 */
bool vgpu_queue_repicks(struct vgpu_queue *queue, struct vgpu_entity *entity)
{
	struct vgpu_node **tree = lift(queue, entity);
	const struct vgpu_node *rival = vgpu_tree_best(queue->ready, queue->vtime);

	lower(tree, entity);
	if (is_used_up(entity))
		return false;
	return !rival || (!vgpu_before(queue->vtime, entity->node.key) &&
			  vgpu_before(entity->node.rank, rival->rank));
}

s64 vgpu_queue_lag_ns(const struct vgpu_queue *queue,
		      const struct vgpu_entity *entity)
{
	u64 pool, key = entity->node.key;

	if (!entity->member)
		key = joining_key(queue, entity, &pool);
	return floor_div((s64)(entity->weight * (queue->vtime - key)),
			 1ll << VTIME_SHIFT);
}
