// SPDX-License-Identifier: GPL-2.0 OR MIT
/* What the children of a party say in their pages, and what that means for a lease. */
#include "arbiter_private.h"

bool vgpu_child_is_busy(const struct vgpu_stream_view *view)
{
	return (view->state & 1) == VGPU_STREAM_BUSY;
}

/* Has the child been busy since the lease was offered to it, or is it now under whichever? */
bool vgpu_child_has_started(const struct vgpu_party *party, const struct vgpu_stream *stream,
			    const struct vgpu_stream_view *view)
{
	return vgpu_child_is_busy(view) ||
	       (view->state >> 1 == party->lease.number &&
		view->dry_since_ns >= stream->offered_ns);
}

/*
 * Does the child still have to say that it is dry?  Its page says so earlier than its
 * yield, which also says if it has more work: without that its party would look like
 * one that went to sleep, and lose its place.
 */
bool vgpu_child_owes_yield(const struct vgpu_party *party, const struct vgpu_stream *stream,
			   const struct vgpu_stream_view *view)
{
	return vgpu_child_is_busy(view) ||
	       (vgpu_child_has_started(party, stream, view) && !stream->quit);
}

/* The lease has an end from now on; children that are dry already say nothing any more. */
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
 * How long the child was dry since the lease began.  It adds a span to idle_ns when
 * the span ends; a span that began before the lease counts from the lease's beginning.
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
 * For how much of the last @elapsed_ns all children were dry.  Each says only how
 * long it was; with several, this is the least that it can have been.
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

/* Has any child of the party work that waits for a lease? */
bool vgpu_children_want(const struct vgpu_party *party)
{
	const struct vgpu_stream *stream;

	for (stream = party->streams; stream; stream = stream->next)
		if (stream->want)
			return true;
	return false;
}

/* The child may start, if it has work: the lease is LENT, or about to be, and it is to be woken. */
void vgpu_child_offer(const struct vgpu_arbiter *arbiter, struct vgpu_stream *stream)
{
	stream->asked = stream->want;
	stream->expected = true;
	stream->want = false;
	stream->offered_ns = arbiter->now_ns;
}

/* A child has started, so that its party has work after all. */
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

/* Nothing is kept of them but what they want. */
void vgpu_children_detach(struct vgpu_party *party)
{
	struct vgpu_stream *stream;

	while (party->streams) {
		stream = party->streams;
		party->streams = stream->next;
		*stream = (struct vgpu_stream){ .want = stream->want };
	}
}
