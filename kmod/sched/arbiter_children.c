// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The state that the children of a party publish in their pages, and what it means for
 * a lease.
 */
#include "arbiter_private.h"

bool vgpu_child_is_busy(const struct vgpu_stream_view *view)
{
	return (view->state & 1) == VGPU_STREAM_BUSY;
}

/*
 * Was the child busy since it was offered the lease, or is it busy now, under any
 * lease number?
 */
bool vgpu_child_has_started(const struct vgpu_party *party, const struct vgpu_stream *stream,
			    const struct vgpu_stream_view *view)
{
	return vgpu_child_is_busy(view) ||
	       (view->state >> 1 == party->lease.number &&
		view->dry_since_ns >= stream->offered_ns);
}

/*
 * Must the child still send its yield?  Its page shows DRY earlier than the yield
 * arrives, and only the yield says whether the child has more work.  If the arbiter
 * did not wait for the yield, the party would look like one that went to sleep, and
 * would lose its place in the queue.
 */
bool vgpu_child_owes_yield(const struct vgpu_party *party, const struct vgpu_stream *stream,
			   const struct vgpu_stream_view *view)
{
	return vgpu_child_is_busy(view) ||
	       (vgpu_child_has_started(party, stream, view) && !stream->quit);
}

/*
 * The lease has an end from now on.  Children that are already dry will not send a
 * yield.
 */
void vgpu_children_expect_yields(struct vgpu_arbiter *arbiter, struct vgpu_party *party)
{
	struct vgpu_stream *stream;
	struct vgpu_stream_view view;

	for (stream = party->streams; stream; stream = stream->next) {
		arbiter->ops->read(stream, &view);
		stream->quit = !vgpu_child_is_busy(&view);
	}
}

/*
 * How long the child was dry since the lease began.  The child adds a span to idle_ns
 * when the span ends; a span that began before the lease counts from the beginning of
 * the lease.
 */
u64 vgpu_child_idle_ns(const struct vgpu_arbiter *arbiter, const struct vgpu_party *party,
		       const struct vgpu_stream_view *view)
{
	u64 since_ns = view->dry_since_ns;

	if (vgpu_child_is_busy(view))
		return view->idle_ns;
	if (since_ns < party->lease.begun_ns)
		since_ns = party->lease.begun_ns;
	return since_ns < arbiter->now_ns ? view->idle_ns + arbiter->now_ns - since_ns :
					    view->idle_ns;
}

/*
 * How much of the last @elapsed_ns all children were dry at the same time.  Each child
 * only reports the length of its dry time; with several children, this is the smallest
 * possible overlap.
 */
u64 vgpu_children_unused_ns(struct vgpu_arbiter *arbiter, struct vgpu_party *party,
			    u64 elapsed_ns)
{
	u64 all_ns = elapsed_ns;
	struct vgpu_stream *stream;
	struct vgpu_stream_view view;
	u64 idle, span_ns;

	for (stream = party->streams; stream; stream = stream->next) {
		arbiter->ops->read(stream, &view);
		idle = vgpu_child_idle_ns(arbiter, party, &view);
		span_ns = idle > stream->idle_seen_ns ? idle - stream->idle_seen_ns : 0;
		stream->idle_seen_ns = idle;
		span_ns = min(span_ns, elapsed_ns);
		all_ns = all_ns > elapsed_ns - span_ns ? all_ns - (elapsed_ns - span_ns) : 0;
	}
	return all_ns;
}

/* Does any child of the party have work that waits for a lease? */
bool vgpu_children_want(const struct vgpu_party *party)
{
	const struct vgpu_stream *stream;

	for (stream = party->streams; stream; stream = stream->next)
		if (stream->want)
			return true;
	return false;
}

/*
 * Offer the lease to the child, which may start if it has work.  The caller publishes
 * LENT and wakes the child.
 */
void vgpu_child_offer(const struct vgpu_arbiter *arbiter, struct vgpu_stream *stream)
{
	stream->asked = stream->want;
	stream->expected = true;
	stream->want = false;
	stream->offered_ns = arbiter->now_ns;
}

/* Has a child started?  Then the party has work after all. */
bool vgpu_children_have_begun(const struct vgpu_arbiter *arbiter, const struct vgpu_party *party)
{
	struct vgpu_stream *stream;
	struct vgpu_stream_view view;

	for (stream = party->streams; stream; stream = stream->next) {
		arbiter->ops->read(stream, &view);
		if (vgpu_child_is_busy(&view))
			return true;
	}
	return false;
}

/* Detach all streams.  They only keep whether they want a lease. */
void vgpu_children_detach(struct vgpu_party *party)
{
	struct vgpu_stream *stream;

	while (party->streams) {
		stream = party->streams;
		party->streams = stream->next;
		*stream = (struct vgpu_stream){ .want = stream->want };
	}
}
