// SPDX-License-Identifier: Apache-2.0
/*
 * The life of a lease:
 *
 *	lend ---> LENT without an end, while nobody else has work
 *	  |          | a rival has work: contend()
 *	  '------> LENT with an end, until the children that wanted it have started
 *	             | one says that it is dry: take_back()
 *	           RECALLED, until all are dry
 *	             | the end: expire()
 *	           EXPIRED, until all are dry, for grace_ns
 *	             | the gate closes: closing
 *	  finish <---'  from each of these, once all are dry or the gate is closed
 */
#include "broker/arbiter_private.h"

#include <stddef.h>

/* For how long children that are frozen outside leases are let run without having asked. */
#define POLL_LIMIT_NS	1000000ull

void lease_publish(const struct arbiter *arbiter, struct arbiter_tenant *tenant,
		   enum vgpu_lease_state state, bool wake)
{
	tenant->lease.state = state;
	arbiter->ops->publish(tenant, &tenant->lease, wake);
}

/* Charge the time until now.  To be called before anything that lets the core look at the time. */
void arbiter_settle(struct arbiter *arbiter, uint64_t now_ns)
{
	struct arbiter_tenant *holder = arbiter->holder;
	uint64_t elapsed_ns, unused = 0;

	if (now_ns > arbiter->now_ns)
		arbiter->now_ns = now_ns;
	elapsed_ns = arbiter->now_ns - arbiter->settled_ns;
	arbiter->settled_ns = arbiter->now_ns;
	if (holder) {
		if (!arbiter->contended)
			unused = children_unused_ns(arbiter, holder, elapsed_ns);
		holder->stats.leased_ns += elapsed_ns - unused;
		holder->stats.lent_ns += elapsed_ns;
	}
	turns_charge(&arbiter->turns, unused, arbiter->now_ns);
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

/* Nobody else waits: for how long the tenant may go on. */
uint64_t lease_end_by_cap_ns(const struct arbiter *arbiter, const struct arbiter_tenant *tenant)
{
	return later(arbiter->now_ns, turns_cap_lasts_ns(&tenant->party));
}

static void lend(struct arbiter *arbiter, struct arbiter_tenant *tenant, uint64_t limit_ns)
{
	struct arbiter_stream *stream;
	struct arbiter_view view;

	arbiter->holder = tenant;
	arbiter->contended = turns_has_rival(&arbiter->turns, &tenant->party);
	count_wait(arbiter, tenant);
	tenant->stats.leases++;
	tenant->lease.number++;
	tenant->lease.begun_ns = arbiter->now_ns;
	if (tenant->polled && !children_want(tenant))
		limit_ns = least(limit_ns, POLL_LIMIT_NS);
	for (stream = tenant->streams; stream; stream = stream->next) {
		arbiter->ops->read(stream, &view);
		stream->idle_seen_ns = child_idle_ns(arbiter, tenant, &view);
		stream->quit = stream->expected = stream->asked = false;
		if (stream->want || tenant->polled)
			child_offer(arbiter, stream);
	}
	tenant->polled = false;
	tenant->poll_at_ns = 0;
	tenant->lease.expires_ns = arbiter->contended ? later(arbiter->now_ns, limit_ns) :
							lease_end_by_cap_ns(arbiter, tenant);
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
	arbiter->contended = false;
	arbiter->holder = NULL;
	if (tenant->debt_ns) {
		tenant->stats.fined_ns += tenant->debt_ns;
		turns_fine(&arbiter->turns, tenant->debt_ns);
		tenant->debt_ns = 0;
	}
	tenant->ready = children_want(tenant);
	tenant->stats.dries += !tenant->ready;
	tenant->ready_since_ns = arbiter->now_ns;
	if (tenant->ready)
		turns_again(&arbiter->turns, &tenant->party, tenant->kernel_id, tenant->hint_ns,
			    arbiter->now_ns);
	else
		turns_done(&arbiter->turns, &tenant->party, tenant->more, tenant->kernel_id,
			   arbiter->now_ns);
	tenant->more = false;
	gate_review(arbiter, tenant, has_busy);
	lease_decide(arbiter);
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

	if (tenant->lease.state == VGPU_LEASE_EXPIRED)
		return;
	tenant->lease.expires_ns = least(tenant->lease.expires_ns, arbiter->now_ns);
	arbiter_settle(arbiter, arbiter->now_ns);
	lease_publish(arbiter, tenant, VGPU_LEASE_EXPIRED, false);
	if (!arbiter->contended)
		children_expect_yields(arbiter, tenant);
	/* From here on nothing is for free. */
	arbiter->contended = true;
	lease_take_back(arbiter);
}

/* Somebody else has work while the holder's lease has no end, or no end for others' sake. */
void lease_contend(struct arbiter *arbiter)
{
	struct arbiter_tenant *tenant = arbiter->holder;
	uint64_t left_ns;

	if (tenant->lease.state != VGPU_LEASE_LENT && tenant->lease.state != VGPU_LEASE_RECALLED)
		return;
	if (turns_is_urgent(&arbiter->turns)) {
		expire(arbiter);
		return;
	}
	if (arbiter->contended)
		return;
	arbiter->contended = true;
	tenant->stats.recalls++;
	left_ns = turns_left_ns(&arbiter->turns);
	tenant->lease.expires_ns = least(tenant->lease.expires_ns,
					 later(arbiter->now_ns, left_ns));
	lease_publish(arbiter, tenant, VGPU_LEASE_LENT, false);
	children_expect_yields(arbiter, tenant);
	lease_take_back(arbiter);
	if (arbiter->holder == tenant && tenant->lease.expires_ns <= arbiter->now_ns)
		expire(arbiter);
}

/* Nobody else waits any more. */
void lease_relax(struct arbiter *arbiter)
{
	struct arbiter_tenant *tenant = arbiter->holder;
	struct arbiter_stream *stream;

	if (!arbiter->contended || turns_has_rival(&arbiter->turns, &tenant->party) ||
	    (tenant->lease.state != VGPU_LEASE_LENT && tenant->lease.state != VGPU_LEASE_RECALLED))
		return;
	arbiter->contended = false;
	arbiter_settle(arbiter, arbiter->now_ns);
	for (stream = tenant->streams; stream; stream = stream->next) {
		if (stream->want)
			child_offer(arbiter, stream);
	}
	tenant->lease.expires_ns = lease_end_by_cap_ns(arbiter, tenant);
	lease_publish(arbiter, tenant, VGPU_LEASE_LENT, true);
}

/* The accelerator is nobody's. */
void lease_decide(struct arbiter *arbiter)
{
	struct turn turn;

	turns_next(&arbiter->turns, arbiter->now_ns, &turn);
	arbiter->look_at_ns = turn.look_at_ns;
	if (!turn.party)
		return;
	arbiter->look_at_ns = UINT64_MAX;
	lend(arbiter, (struct arbiter_tenant *)((char *)turn.party -
						offsetof(struct arbiter_tenant, party)),
	     turn.limit_ns);
}

void lease_review_holder(struct arbiter *arbiter)
{
	if (arbiter->holder)
		lease_contend(arbiter);
	else
		lease_decide(arbiter);
}

/* Nobody else waits, and the end is the cap's: what was not used is there to be used. */
static void prolong(struct arbiter *arbiter)
{
	struct arbiter_tenant *tenant = arbiter->holder;
	uint64_t end_ns = lease_end_by_cap_ns(arbiter, tenant);

	if (end_ns <= later(tenant->lease.expires_ns, arbiter->settings.early_ns))
		return;
	tenant->lease.expires_ns = end_ns;
	lease_publish(arbiter, tenant, tenant->lease.state, false);
}

static uint64_t early_ns(const struct arbiter *arbiter)
{
	uint64_t expires_ns = arbiter->holder->lease.expires_ns;

	return expires_ns > arbiter->settings.early_ns ? expires_ns - arbiter->settings.early_ns :
							 0;
}

bool lease_may_prolong(const struct arbiter *arbiter)
{
	return !arbiter->contended && arbiter->holder->lease.expires_ns != UINT64_MAX;
}

/* When the holder's lease is to be looked at. */
uint64_t lease_at_ns(const struct arbiter *arbiter)
{
	const struct arbiter_tenant *holder = arbiter->holder;

	if (!holder)
		return arbiter->look_at_ns;
	if (arbiter->closing)
		return UINT64_MAX;
	if (holder->lease.state == VGPU_LEASE_EXPIRED)
		return later(holder->lease.expires_ns, arbiter->settings.grace_ns);
	if (lease_may_prolong(arbiter) && early_ns(arbiter) > arbiter->now_ns)
		return early_ns(arbiter);
	return holder->lease.expires_ns;
}

void lease_look(struct arbiter *arbiter)
{
	struct arbiter_tenant *holder = arbiter->holder;

	if (lease_at_ns(arbiter) > arbiter->now_ns) {
		if (holder && lease_may_prolong(arbiter) && early_ns(arbiter) <= arbiter->now_ns)
			prolong(arbiter);
		return;
	}
	if (!holder) {
		lease_decide(arbiter);
	} else if (holder->lease.state == VGPU_LEASE_EXPIRED) {
		arbiter->closing = true;
		gate_ask(arbiter, holder, true);
	} else {
		expire(arbiter);
	}
}

/* The child asked before it saw the lease, or that its end was moved: let it look again. */
void lease_let_start(struct arbiter *arbiter, struct arbiter_stream *stream)
{
	stream->want = true;
	child_offer(arbiter, stream);
	lease_publish(arbiter, stream->tenant, VGPU_LEASE_LENT, true);
}
