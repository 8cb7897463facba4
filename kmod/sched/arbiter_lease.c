// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The life of a lease:
 *
 *	lend ---> LENT without an end, while nobody else has work
 *	  |          | a rival has work: review()
 *	  '------> LENT with an end, until the children that wanted it have started
 *	             | one says that it is dry: take_back()
 *	           RECALLED, until all are dry
 *	             | the end: expire()
 *	           EXPIRED, until all are dry, for grace_ns
 *	             | the gate closes: closing
 *	  finish <---'  from each of these, once all are dry or the gate is closed
 */
#include "arbiter_private.h"

/* Length of a lease that confined children get without having asked for it. */
#define POLL_LIMIT_NS	1000000ull

void vgpu_arbiter_publish(const struct vgpu_arbiter *arbiter, struct vgpu_party *party,
			  enum vgpu_lease_state state, bool wake)
{
	party->lease.state = state;
	arbiter->ops->publish(party, &party->lease, wake);
}

/* Call this before any call of the scheduler that depends on the time. */
u64 vgpu_arbiter_settle(struct vgpu_arbiter *arbiter, u64 now_ns)
{
	struct vgpu_party *holder = arbiter->holder;
	u64 elapsed_ns, unused = 0;

	if (now_ns > arbiter->now_ns)
		arbiter->now_ns = now_ns;
	elapsed_ns = arbiter->now_ns - arbiter->settled_ns;
	arbiter->settled_ns = arbiter->now_ns;
	if (holder) {
		if (!has_end(holder))
			unused = vgpu_children_unused_ns(arbiter, holder, elapsed_ns);
		holder->stats.lent_ns += elapsed_ns;
	}
	vgpu_sched_unused(arbiter->sched, unused, arbiter->now_ns);
	return arbiter->now_ns;
}

static void count_wait(struct vgpu_arbiter *arbiter, struct vgpu_party *party)
{
	u64 waited_ns = arbiter->now_ns - party->ready_since_ns;

	party->stats.waits++;
	party->stats.waited_ns += waited_ns;
	if (waited_ns > party->stats.longest_wait_ns)
		party->stats.longest_wait_ns = waited_ns;
}

void vgpu_arbiter_make_ready(struct vgpu_arbiter *arbiter, struct vgpu_party *party)
{
	const struct vgpu_item_info first = {
		.kernel_id = party->kernel_id,
		.hint_ns = party->hint_ns,
	};

	if (!party->ready)
		party->ready_since_ns = arbiter->now_ns;
	party->ready = true;
	vgpu_slice_ready(arbiter->sched, party->slice, party->kernel_id ? &first : NULL,
			 arbiter->now_ns);
}

/* A party that waited for a lease has no work any more. */
void vgpu_arbiter_sleep(struct vgpu_arbiter *arbiter, struct vgpu_party *party)
{
	party->ready = false;
	party->polled = false;
	vgpu_slice_sleep(arbiter->sched, party->slice, arbiter->now_ns);
}

/* A party that did not ask for its lease only gets the time to report that it has work. */
static u64 end_ns(const struct vgpu_arbiter *arbiter, const struct vgpu_lease *lease)
{
	return min(lease->expires_ns, arbiter->poll_until_ns);
}

static void lend(struct vgpu_arbiter *arbiter, struct vgpu_party *party,
		 const struct vgpu_lease *lease)
{
	struct vgpu_stream *stream;
	struct vgpu_stream_view view;

	arbiter->holder = party;
	arbiter->poll_until_ns = party->polled && !vgpu_children_want(party) ?
				 arbiter->now_ns + POLL_LIMIT_NS : U64_MAX;
	count_wait(arbiter, party);
	party->stats.leases++;
	party->lease.number++;
	party->lease.begun_ns = arbiter->now_ns;
	for (stream = party->streams; stream; stream = stream->next) {
		arbiter->ops->read(stream, &view);
		stream->idle_seen_ns = vgpu_child_idle_ns(arbiter, party, &view);
		stream->quit = false;
		stream->expected = false;
		stream->asked = false;
		if (stream->want || party->polled)
			vgpu_child_offer(arbiter, stream);
	}
	party->polled = false;
	party->poll_at_ns = 0;
	party->lease.expires_ns = end_ns(arbiter, lease);
	vgpu_arbiter_publish(arbiter, party, VGPU_LEASE_LENT, true);
	if (party->gate_closed)
		vgpu_gate_ask(arbiter, party, false);
}

/* The engine is free: ask the scheduler and lend it. */
static void decide(struct vgpu_arbiter *arbiter)
{
	struct vgpu_lease lease;

	vgpu_sched_lend(arbiter->sched, arbiter->now_ns, &lease);
	arbiter->look_at_ns = lease.review_at_ns;
	if (lease.slice)
		lend(arbiter, arbiter->ops->party(lease.slice), &lease);
}

static void end_lease(struct vgpu_arbiter *arbiter, struct vgpu_party *party, u32 flags)
{
	const struct vgpu_yield yield = {
		.flags = flags,
		.kernel_id = party->kernel_id,
		.hint_ns = party->hint_ns,
	};

	arbiter->closing = false;
	arbiter->holder = NULL;
	party->flags = 0;
	vgpu_slice_yield(arbiter->sched, party->slice, &yield, arbiter->now_ns);
}

/* Did a child wake up too late for its lease?  If so, it still has its work. */
static bool has_missed(const struct vgpu_party *party, const struct vgpu_stream *stream,
		       const struct vgpu_stream_view *view)
{
	return stream->asked && stream->expected &&
	       !vgpu_child_has_started(party, stream, view);
}

/*
 * Withdraw the lease: no child starts under it any more.  @stops: the gate stops
 * children that are busy, and they continue in a later lease.  Returns whether the
 * gate stops any child.
 */
static bool withdraw(struct vgpu_arbiter *arbiter, struct vgpu_party *party, bool stops)
{
	struct vgpu_stream *stream;
	struct vgpu_stream_view view;
	bool has_busy = false;
	bool stopped;

	vgpu_arbiter_publish(arbiter, party, VGPU_LEASE_NONE, false);
	for (stream = party->streams; stream; stream = stream->next) {
		arbiter->ops->read(stream, &view);
		stopped = stops && vgpu_child_is_busy(&view);
		stream->want = stream->want || stopped || has_missed(party, stream, &view);
		has_busy = has_busy || stopped;
	}
	return has_busy;
}

/* End the party's lease at once, whatever its children do. */
void vgpu_arbiter_revoke(struct vgpu_arbiter *arbiter)
{
	struct vgpu_party *party = arbiter->holder;

	if (withdraw(arbiter, party, true) && !party->gate_closed)
		vgpu_gate_ask(arbiter, party, true);
	party->ready = false;
	end_lease(arbiter, party, 0);
}

/* End the lease: all children are dry, or the gate is closed. */
void vgpu_arbiter_finish(struct vgpu_arbiter *arbiter)
{
	struct vgpu_party *party = arbiter->holder;
	bool has_busy;

	vgpu_arbiter_settle(arbiter, arbiter->now_ns);
	has_busy = withdraw(arbiter, party, arbiter->closing);
	party->ready = vgpu_children_want(party);
	party->stats.dries += !party->ready;
	party->ready_since_ns = arbiter->now_ns;
	end_lease(arbiter, party, party->ready ? VGPU_YIELD_WANT : party->flags);
	vgpu_gate_review(arbiter, party, has_busy);
	decide(arbiter);
}

/* End a lease that others wait for, if all children are dry. */
void vgpu_arbiter_take_back(struct vgpu_arbiter *arbiter)
{
	struct vgpu_party *party = arbiter->holder;
	struct vgpu_stream *stream;
	struct vgpu_stream_view view;

	if (party->lease.state == VGPU_LEASE_LENT) {
		for (stream = party->streams; stream; stream = stream->next) {
			arbiter->ops->read(stream, &view);
			if (stream->expected && !vgpu_child_has_started(party, stream, &view))
				return;
			stream->expected = false;
		}
		vgpu_arbiter_publish(arbiter, party, VGPU_LEASE_RECALLED, false);
	}
	for (stream = party->streams; stream; stream = stream->next) {
		arbiter->ops->read(stream, &view);
		stream->quit = stream->quit && !vgpu_child_is_busy(&view);
		if (vgpu_child_owes_yield(party, stream, &view))
			return;
	}
	vgpu_arbiter_finish(arbiter);
}

/*
 * The lease has expired: children submit no more, and what they have submitted gets a
 * grace period.
 */
static void expire(struct vgpu_arbiter *arbiter)
{
	struct vgpu_party *party = arbiter->holder;

	party->lease.expires_ns = min(party->lease.expires_ns, arbiter->now_ns);
	vgpu_arbiter_publish(arbiter, party, VGPU_LEASE_EXPIRED, false);
	vgpu_arbiter_take_back(arbiter);
}

/* No other party waits any more: all children may start again. */
static void relax(struct vgpu_arbiter *arbiter, struct vgpu_party *party)
{
	struct vgpu_stream *stream;
	struct vgpu_stream_view view;

	for (stream = party->streams; stream; stream = stream->next) {
		arbiter->ops->read(stream, &view);
		stream->idle_seen_ns = vgpu_child_idle_ns(arbiter, party, &view);
		if (stream->want)
			vgpu_child_offer(arbiter, stream);
	}
	vgpu_arbiter_publish(arbiter, party, VGPU_LEASE_LENT, true);
}

/* Something has changed or time has passed: the lease may end earlier or later. */
void vgpu_arbiter_review(struct vgpu_arbiter *arbiter)
{
	struct vgpu_party *party = arbiter->holder;
	u64 old_ns = party->lease.expires_ns;
	bool had_end = has_end(party);
	struct vgpu_lease lease;
	bool revived;

	if (party->lease.state == VGPU_LEASE_EXPIRED)
		return;
	vgpu_sched_review(arbiter->sched, arbiter->now_ns, &lease);
	/* A review that is due now has just been made. */
	arbiter->look_at_ns = lease.review_at_ns > arbiter->now_ns ?
			      lease.review_at_ns : U64_MAX;
	party->lease.expires_ns = end_ns(arbiter, &lease);
	if (had_end && !has_end(party)) {
		relax(arbiter, party);
		return;
	}
	/* Children that saw that the lease expired wait for a wakeup. */
	revived = old_ns <= arbiter->now_ns && party->lease.expires_ns > arbiter->now_ns;
	vgpu_arbiter_publish(arbiter, party, party->lease.state, revived);
	if (!had_end && has_end(party)) {
		party->stats.recalls++;
		vgpu_children_expect_yields(arbiter, party);
		vgpu_arbiter_take_back(arbiter);
	}
	if (arbiter->holder == party && party->lease.state != VGPU_LEASE_EXPIRED &&
	    party->lease.expires_ns <= arbiter->now_ns)
		expire(arbiter);
}

void vgpu_arbiter_review_holder(struct vgpu_arbiter *arbiter)
{
	if (arbiter->holder)
		vgpu_arbiter_review(arbiter);
	else
		decide(arbiter);
}

/*
 * Review a lease shortly before its end: if no other party would get the next lease,
 * this one is prolonged.
 */
static u64 early_ns(const struct vgpu_arbiter *arbiter)
{
	u64 expires_ns = arbiter->holder->lease.expires_ns;

	return has_end(arbiter->holder) && expires_ns > arbiter->settings.early_ns ?
	       expires_ns - arbiter->settings.early_ns : U64_MAX;
}

/*
 * When to review the holder's lease or, without a holder, to ask the scheduler again.
 */
u64 vgpu_arbiter_lease_at_ns(const struct vgpu_arbiter *arbiter)
{
	const struct vgpu_party *holder = arbiter->holder;
	u64 at_ns = arbiter->look_at_ns;

	if (!holder)
		return at_ns;
	if (arbiter->closing)
		return U64_MAX;
	if (holder->lease.state == VGPU_LEASE_EXPIRED)
		return later(holder->lease.expires_ns, arbiter->settings.grace_ns);
	if (early_ns(arbiter) > arbiter->now_ns)
		at_ns = min(at_ns, early_ns(arbiter));
	return min(at_ns, holder->lease.expires_ns);
}

void vgpu_arbiter_lease_look(struct vgpu_arbiter *arbiter, u64 due_ns)
{
	struct vgpu_party *holder = arbiter->holder;

	if (due_ns > arbiter->now_ns)
		return;
	if (!holder) {
		decide(arbiter);
	} else if (holder->lease.state == VGPU_LEASE_EXPIRED) {
		arbiter->closing = true;
		vgpu_gate_ask(arbiter, holder, true);
	} else {
		if (arbiter->poll_until_ns <= arbiter->now_ns &&
		    vgpu_children_have_begun(arbiter, holder))
			arbiter->poll_until_ns = U64_MAX;
		vgpu_arbiter_review(arbiter);
	}
}

/*
 * The child asked before it saw the lease, or before it saw that the end had moved:
 * wake it to look again.
 */
void vgpu_arbiter_let_start(struct vgpu_arbiter *arbiter, struct vgpu_stream *stream)
{
	stream->want = true;
	vgpu_child_offer(arbiter, stream);
	vgpu_arbiter_publish(arbiter, stream->party, VGPU_LEASE_LENT, true);
}
