// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The arbiter's entry points: parties and streams, requests, and the timer. */
#include "arbiter_private.h"

void vgpu_arbiter_arm(struct vgpu_arbiter *arbiter)
{
	const struct vgpu_party *party;
	u64 at_ns = vgpu_arbiter_lease_at_ns(arbiter);
	bool others = false;

	for (party = arbiter->parties; party; party = party->next) {
		if (party->gate_pending)
			at_ns = min(at_ns, later(party->gate_asked_ns,
						 arbiter->settings.gate_limit_ns));
		if (party->poll_at_ns)
			at_ns = min(at_ns, party->poll_at_ns);
		others = others || (party->streams && party != arbiter->holder);
	}
	/* A party that is alone and has no cap is not watched. */
	if (vgpu_gate_is_watching(arbiter) && (others || has_end(arbiter->holder)))
		at_ns = min(at_ns, max(arbiter->watch_at_ns, arbiter->now_ns));
	arbiter->ops->arm(arbiter, at_ns);
}

void vgpu_arbiter_timer(struct vgpu_arbiter *arbiter, u64 now_ns)
{
	u64 due_ns = vgpu_arbiter_lease_at_ns(arbiter);
	struct vgpu_party *party;

	vgpu_arbiter_settle(arbiter, now_ns);
	vgpu_arbiter_lease_look(arbiter, due_ns);
	for (party = arbiter->parties; party; party = party->next)
		vgpu_gate_review_party(arbiter, party);
	if (vgpu_gate_is_watching(arbiter) && arbiter->watch_at_ns <= arbiter->now_ns)
		vgpu_gate_look_at_processors(arbiter);
	vgpu_arbiter_arm(arbiter);
}

static void yielded(struct vgpu_arbiter *arbiter, struct vgpu_stream *stream,
		    const struct vgpu_stream_request *request)
{
	struct vgpu_party *party = stream->party;

	stream->expected = false;
	stream->want = request->flags & VGPU_YIELD_WANT;
	stream->quit = true;
	party->flags = request->flags & ~VGPU_YIELD_WANT;
	if (arbiter->closing)
		return;
	if (has_end(party))
		vgpu_arbiter_take_back(arbiter);
	else if (stream->want)
		vgpu_arbiter_let_start(arbiter, stream);
}

/* The child has work, and knows of no lease under which it may start. */
static void ready(struct vgpu_arbiter *arbiter, struct vgpu_stream *stream)
{
	struct vgpu_party *party = stream->party;

	if (arbiter->holder == party && party->lease.state == VGPU_LEASE_LENT &&
	    party->lease.expires_ns > arbiter->now_ns) {
		vgpu_arbiter_let_start(arbiter, stream);
		return;
	}
	stream->want = true;
	stream->expected = false;
	if (arbiter->holder == party) {
		if (!arbiter->closing)
			vgpu_arbiter_take_back(arbiter);
		return;
	}
	if (party->ready)
		return;
	vgpu_arbiter_make_ready(arbiter, party);
	vgpu_arbiter_review_holder(arbiter);
}

static bool is_sensible(const struct vgpu_stream_request *request)
{
	if (request->reserved)
		return false;
	if (request->op == VGPU_STREAM_READY)
		return !request->flags;
	return request->op == VGPU_STREAM_YIELD &&
	       !(request->flags & ~(VGPU_YIELD_WANT | VGPU_YIELD_MORE | VGPU_YIELD_END));
}

static bool has_work(const struct vgpu_stream_request *request)
{
	return request->op == VGPU_STREAM_READY || request->flags & VGPU_YIELD_WANT;
}

bool vgpu_arbiter_request(struct vgpu_arbiter *arbiter, struct vgpu_stream *stream,
			  const struct vgpu_stream_request *request, u64 now_ns)
{
	struct vgpu_party *party = stream->party;

	if (!is_sensible(request))
		return false;
	if (!party) {
		stream->want = has_work(request);
		return true;
	}
	vgpu_arbiter_settle(arbiter, now_ns);
	party->kernel_id = request->kernel_id;
	party->hint_ns = request->hint_ns;
	if (request->op == VGPU_STREAM_YIELD && arbiter->holder == party &&
	    request->lease == party->lease.number)
		yielded(arbiter, stream, request);
	else if (has_work(request))
		ready(arbiter, stream);
	vgpu_arbiter_arm(arbiter);
	return true;
}

void vgpu_arbiter_init(struct vgpu_arbiter *arbiter, struct vgpu_sched *sched,
		       const struct vgpu_arbiter_ops *ops,
		       const struct vgpu_arbiter_settings *settings, u64 now_ns)
{
	*arbiter = (struct vgpu_arbiter){
		.settings = *settings,
		.sched = sched,
		.ops = ops,
		.now_ns = now_ns,
		.settled_ns = now_ns,
		.look_at_ns = U64_MAX,
		.poll_until_ns = U64_MAX,
	};
}

void vgpu_arbiter_configure(struct vgpu_arbiter *arbiter,
			    const struct vgpu_arbiter_settings *settings, u64 now_ns)
{
	vgpu_arbiter_settle(arbiter, now_ns);
	arbiter->settings = *settings;
	vgpu_arbiter_arm(arbiter);
}

void vgpu_arbiter_changed(struct vgpu_arbiter *arbiter, u64 now_ns)
{
	vgpu_arbiter_settle(arbiter, now_ns);
	vgpu_arbiter_review_holder(arbiter);
	vgpu_arbiter_arm(arbiter);
}

void vgpu_arbiter_party_add(struct vgpu_arbiter *arbiter, struct vgpu_party *party,
			    struct vgpu_slice *slice, u64 now_ns)
{
	vgpu_arbiter_settle(arbiter, now_ns);
	party->slice = slice;
	party->next = arbiter->parties;
	arbiter->parties = party;
	/*
	 * Forget the processor time seen before, because it belongs to another
	 * slice's account.
	 */
	vgpu_watch_reset(&party->watch);
	vgpu_arbiter_publish(arbiter, party, VGPU_LEASE_NONE, false);
}

void vgpu_arbiter_party_remove(struct vgpu_arbiter *arbiter,
			       struct vgpu_party *party, u64 now_ns)
{
	struct vgpu_party **link = &arbiter->parties;

	vgpu_arbiter_settle(arbiter, now_ns);
	if (arbiter->holder == party)
		vgpu_arbiter_revoke(arbiter);
	else if (party->ready)
		vgpu_arbiter_sleep(arbiter, party);
	vgpu_children_detach(party);
	while (*link != party)
		link = &(*link)->next;
	*link = party->next;
	party->slice = NULL;
	party->poll_at_ns = 0;
	party->kernel_id = 0;
	party->hint_ns = 0;
	vgpu_arbiter_review_holder(arbiter);
	vgpu_arbiter_arm(arbiter);
}

/*
 * Review the gate of a party whose streams are added again.  Children that the
 * gate has stopped stay stopped, but the other children must be able to ask for
 * a lease.
 */
static void review_gate_of(struct vgpu_arbiter *arbiter, struct vgpu_party *party, bool busy)
{
	if (party == arbiter->holder || party->poll_at_ns)
		return;
	if (busy || (party->gate_closed && !party->ready))
		vgpu_gate_review(arbiter, party, busy);
}

void vgpu_arbiter_stream_add(struct vgpu_arbiter *arbiter, struct vgpu_party *party,
			     struct vgpu_stream *stream, bool want, u64 now_ns)
{
	struct vgpu_stream_view view;
	bool busy;

	vgpu_arbiter_settle(arbiter, now_ns);
	*stream = (struct vgpu_stream){ .party = party, .next = party->streams };
	party->streams = stream;
	arbiter->ops->read(stream, &view);
	stream->idle_seen_ns = vgpu_child_idle_ns(arbiter, party, &view);
	busy = vgpu_child_is_busy(&view);
	if (want || busy)
		ready(arbiter, stream);
	review_gate_of(arbiter, party, busy);
	vgpu_arbiter_arm(arbiter);
}

void vgpu_arbiter_stream_remove(struct vgpu_arbiter *arbiter,
				struct vgpu_stream *stream, u64 now_ns)
{
	struct vgpu_party *party = stream->party;
	struct vgpu_stream **link;

	if (!party)
		return;
	vgpu_arbiter_settle(arbiter, now_ns);
	link = &party->streams;
	while (*link != stream)
		link = &(*link)->next;
	*link = stream->next;
	stream->party = NULL;
	if (arbiter->holder == party) {
		if (!party->streams)
			vgpu_arbiter_finish(arbiter);
		else if (has_end(party) && !arbiter->closing)
			vgpu_arbiter_take_back(arbiter);
	} else if (party->ready && !vgpu_children_want(party)) {
		vgpu_arbiter_sleep(arbiter, party);
		vgpu_arbiter_review_holder(arbiter);
	}
	if (!party->streams && party->gate_closed && arbiter->holder != party)
		vgpu_gate_ask(arbiter, party, false);
	vgpu_arbiter_arm(arbiter);
}
