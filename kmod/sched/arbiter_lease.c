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

#include <stddef.h>

/* For how long children that are frozen outside leases are let run without having asked. */
#define POLL_LIMIT_NS	1000000ull

static void decide(struct arbiter *arbiter);

void lease_publish(const struct arbiter *arbiter, struct arbiter_tenant *tenant,
		   enum vgpu_lease_state state, bool wake)
{
	tenant->lease.state = state;
	arbiter->ops->publish(tenant, &tenant->lease, wake);
}

/* Let the time until now pass.  To be called before anything that lets the core look at the time. */
void arbiter_settle(struct arbiter *arbiter, uint64_t now_ns)
{
	struct arbiter_tenant *holder = arbiter->holder;
	uint64_t elapsed_ns, unused = 0;

	if (now_ns > arbiter->now_ns)
		arbiter->now_ns = now_ns;
	elapsed_ns = arbiter->now_ns - arbiter->settled_ns;
	arbiter->settled_ns = arbiter->now_ns;
	if (holder) {
		if (!has_end(holder))
			unused = children_unused_ns(arbiter, holder, elapsed_ns);
		holder->stats.lent_ns += elapsed_ns;
	}
	turns_pass(&arbiter->turns, unused, arbiter->now_ns);
}

static void count_wait(struct arbiter *arbiter, struct arbiter_tenant *tenant)
{
	uint64_t waited_ns = arbiter->now_ns - tenant->ready_since_ns;

	tenant->stats.waits++;
	tenant->stats.waited_ns += waited_ns;
	if (waited_ns > tenant->stats.longest_wait_ns)
		tenant->stats.longest_wait_ns = waited_ns;
}

void lease_become_ready(struct arbiter *arbiter, struct arbiter_tenant *tenant)
{
	if (!tenant->ready)
		tenant->ready_since_ns = arbiter->now_ns;
	tenant->ready = true;
	turns_ready(&arbiter->turns, &tenant->party, tenant->kernel_id, tenant->hint_ns,
		    arbiter->now_ns);
}

/* A tenant that was not asked for its work gets no more than the time to say that it has some. */
static uint64_t end_ns(const struct arbiter *arbiter, const struct turn *turn)
{
	return least(turn->expires_ns, arbiter->poll_until_ns);
}

static void lend(struct arbiter *arbiter, struct arbiter_tenant *tenant, const struct turn *turn)
{
	struct arbiter_stream *stream;
	struct arbiter_view view;

	arbiter->holder = tenant;
	arbiter->poll_until_ns = tenant->polled && !children_want(tenant) ?
				 arbiter->now_ns + POLL_LIMIT_NS : UINT64_MAX;
	count_wait(arbiter, tenant);
	tenant->stats.leases++;
	tenant->lease.number++;
	tenant->lease.begun_ns = arbiter->now_ns;
	for (stream = tenant->streams; stream; stream = stream->next) {
		arbiter->ops->read(stream, &view);
		stream->idle_seen_ns = child_idle_ns(arbiter, tenant, &view);
		stream->quit = stream->expected = stream->asked = false;
		if (stream->want || tenant->polled)
			child_offer(arbiter, stream);
	}
	tenant->polled = false;
	tenant->poll_at_ns = 0;
	tenant->lease.expires_ns = end_ns(arbiter, turn);
	lease_publish(arbiter, tenant, VGPU_LEASE_LENT, true);
	if (tenant->gate_closed)
		gate_ask(arbiter, tenant, false);
}

/* The accelerator is drained, or the gate is closed. */
void lease_finish(struct arbiter *arbiter)
{
	struct arbiter_tenant *tenant = arbiter->holder;
	struct arbiter_stream *stream;
	struct arbiter_view view;
	bool has_busy = false;
	bool stopped;

	arbiter_settle(arbiter, arbiter->now_ns);
	lease_publish(arbiter, tenant, VGPU_LEASE_NONE, false);
	for (stream = tenant->streams; stream; stream = stream->next) {
		arbiter->ops->read(stream, &view);
		/* One that was stopped goes on later, and one that woke up too late still has its work. */
		stopped = arbiter->closing && child_is_busy(&view);
		stream->want = stream->want || stopped ||
			       (stream->asked && stream->expected && !child_has_started(tenant, stream, &view));
		has_busy = has_busy || stopped;
	}
	arbiter->closing = false;
	arbiter->holder = NULL;
	tenant->ready = children_want(tenant);
	tenant->stats.dries += !tenant->ready;
	tenant->ready_since_ns = arbiter->now_ns;
	turns_yield(&arbiter->turns, &tenant->party,
		    tenant->ready ? VGPU_YIELD_WANT : tenant->flags, tenant->kernel_id,
		    tenant->hint_ns, arbiter->now_ns);
	tenant->flags = 0;
	gate_review(arbiter, tenant, has_busy);
	decide(arbiter);
}

/* Take a lease that others wait for back, if all children are dry. */
void lease_take_back(struct arbiter *arbiter)
{
	struct arbiter_tenant *tenant = arbiter->holder;
	struct arbiter_stream *stream;
	struct arbiter_view view;

	if (tenant->lease.state == VGPU_LEASE_LENT) {
		for (stream = tenant->streams; stream; stream = stream->next) {
			arbiter->ops->read(stream, &view);
			if (stream->expected && !child_has_started(tenant, stream, &view))
				return;
			stream->expected = false;
		}
		lease_publish(arbiter, tenant, VGPU_LEASE_RECALLED, false);
	}
	for (stream = tenant->streams; stream; stream = stream->next) {
		arbiter->ops->read(stream, &view);
		stream->quit = stream->quit && !child_is_busy(&view);
		if (child_owes_yield(tenant, stream, &view))
			return;
	}
	lease_finish(arbiter);
}

/* Children submit no more; what is under way is waited for a little. */
static void expire(struct arbiter *arbiter)
{
	struct arbiter_tenant *tenant = arbiter->holder;

	tenant->lease.expires_ns = least(tenant->lease.expires_ns, arbiter->now_ns);
	lease_publish(arbiter, tenant, VGPU_LEASE_EXPIRED, false);
	lease_take_back(arbiter);
}

/* Nobody waits any more: all children may start again. */
static void relax(struct arbiter *arbiter, struct arbiter_tenant *tenant)
{
	struct arbiter_stream *stream;
	struct arbiter_view view;

	for (stream = tenant->streams; stream; stream = stream->next) {
		arbiter->ops->read(stream, &view);
		stream->idle_seen_ns = child_idle_ns(arbiter, tenant, &view);
		if (stream->want)
			child_offer(arbiter, stream);
	}
	lease_publish(arbiter, tenant, VGPU_LEASE_LENT, true);
}

/* Something has changed, or time has passed: the lease may end earlier or later. */
void lease_review(struct arbiter *arbiter)
{
	struct arbiter_tenant *tenant = arbiter->holder;
	uint64_t old_ns = tenant->lease.expires_ns;
	bool had_end = has_end(tenant);
	struct turn turn;

	if (tenant->lease.state == VGPU_LEASE_EXPIRED)
		return;
	turns_review(&arbiter->turns, arbiter->now_ns, &turn);
	/* What is due now was looked at now. */
	arbiter->look_at_ns = turn.look_at_ns > arbiter->now_ns ? turn.look_at_ns : UINT64_MAX;
	tenant->lease.expires_ns = end_ns(arbiter, &turn);
	if (had_end && !has_end(tenant)) {
		relax(arbiter, tenant);
		return;
	}
	/* Children that saw it expire wait for a sign. */
	lease_publish(arbiter, tenant, tenant->lease.state,
		      old_ns <= arbiter->now_ns && tenant->lease.expires_ns > arbiter->now_ns);
	if (!had_end && has_end(tenant)) {
		tenant->stats.recalls++;
		children_expect_yields(arbiter, tenant);
		lease_take_back(arbiter);
	}
	if (arbiter->holder == tenant && tenant->lease.state != VGPU_LEASE_EXPIRED &&
	    tenant->lease.expires_ns <= arbiter->now_ns)
		expire(arbiter);
}

/* The accelerator is nobody's. */
static void decide(struct arbiter *arbiter)
{
	struct turn turn;

	turns_lend(&arbiter->turns, arbiter->now_ns, &turn);
	arbiter->look_at_ns = turn.look_at_ns;
	if (turn.party)
		lend(arbiter, (struct arbiter_tenant *)((char *)turn.party -
							offsetof(struct arbiter_tenant, party)),
		     &turn);
}

void lease_review_holder(struct arbiter *arbiter)
{
	if (arbiter->holder)
		lease_review(arbiter);
	else
		decide(arbiter);
}

/* A little before a lease ends it is looked at again: perhaps nobody else would get the next one. */
static uint64_t early_ns(const struct arbiter *arbiter)
{
	uint64_t expires_ns = arbiter->holder->lease.expires_ns;

	return has_end(arbiter->holder) && expires_ns > arbiter->settings.early_ns ?
	       expires_ns - arbiter->settings.early_ns : UINT64_MAX;
}

/* When the holder's lease is to be looked at. */
uint64_t lease_at_ns(const struct arbiter *arbiter)
{
	const struct arbiter_tenant *holder = arbiter->holder;
	uint64_t at_ns = arbiter->look_at_ns;

	if (!holder)
		return at_ns;
	if (arbiter->closing)
		return UINT64_MAX;
	if (holder->lease.state == VGPU_LEASE_EXPIRED)
		return later(holder->lease.expires_ns, arbiter->settings.grace_ns);
	if (early_ns(arbiter) > arbiter->now_ns)
		at_ns = least(at_ns, early_ns(arbiter));
	return least(at_ns, holder->lease.expires_ns);
}

void lease_look(struct arbiter *arbiter, uint64_t due_ns)
{
	struct arbiter_tenant *holder = arbiter->holder;

	if (due_ns > arbiter->now_ns)
		return;
	if (!holder) {
		decide(arbiter);
	} else if (holder->lease.state == VGPU_LEASE_EXPIRED) {
		arbiter->closing = true;
		gate_ask(arbiter, holder, true);
	} else {
		if (arbiter->poll_until_ns <= arbiter->now_ns && children_have_begun(arbiter, holder))
			arbiter->poll_until_ns = UINT64_MAX;
		lease_review(arbiter);
	}
}

/* The child asked before it saw the lease, or that its end was moved: let it look again. */
void lease_let_start(struct arbiter *arbiter, struct arbiter_stream *stream)
{
	stream->want = true;
	child_offer(arbiter, stream);
	lease_publish(arbiter, stream->tenant, VGPU_LEASE_LENT, true);
}
