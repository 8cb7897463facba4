// SPDX-License-Identifier: GPL-2.0 OR MIT
/* What the children of a tenant say in their pages, and what that means for a lease. */
#include "arbiter_private.h"

bool child_is_busy(const struct arbiter_view *view)
{
	return (view->state & 1) == VGPU_STREAM_BUSY;
}

/* Has the child been busy since the lease was offered to it, or is it now under whichever? */
bool child_has_started(const struct arbiter_tenant *tenant, const struct arbiter_stream *stream,
		       const struct arbiter_view *view)
{
	return child_is_busy(view) || (view->state >> 1 == tenant->lease.number &&
				       view->dry_since_ns >= stream->offered_ns);
}

/*
 * Does the child still have to say that it is dry?  Its page says so earlier than its
 * yield, which also says if it has more work: without that its tenant would look like
 * one that went to sleep, and lose its place.
 */
bool child_owes_yield(const struct arbiter_tenant *tenant, const struct arbiter_stream *stream,
		      const struct arbiter_view *view)
{
	return child_is_busy(view) || (child_has_started(tenant, stream, view) && !stream->quit);
}

/* The lease has an end from now on; children that are dry already say nothing any more. */
void children_expect_yields(struct arbiter *arbiter, struct arbiter_tenant *tenant)
{
	struct arbiter_stream *stream;
	struct arbiter_view view;

	for (stream = tenant->streams; stream; stream = stream->next) {
		arbiter->ops->read(stream, &view);
		stream->quit = !child_is_busy(&view);
	}
}

/*
 * How long the child was dry since the lease began.  It adds a span to idle_ns when
 * the span ends; a span that began before the lease counts from the lease's beginning.
 */
uint64_t child_idle_ns(const struct arbiter *arbiter, const struct arbiter_tenant *tenant,
		       const struct arbiter_view *view)
{
	uint64_t since_ns = view->dry_since_ns;

	if (child_is_busy(view))
		return view->idle_ns;
	if (since_ns < tenant->lease.begun_ns)
		since_ns = tenant->lease.begun_ns;
	return since_ns < arbiter->now_ns ? view->idle_ns + arbiter->now_ns - since_ns :
					    view->idle_ns;
}

/*
 * For how much of the last @elapsed_ns all children were dry.  Each says only how
 * long it was; with several, this is the least that it can have been.
 */
uint64_t children_unused_ns(struct arbiter *arbiter, struct arbiter_tenant *tenant,
			    uint64_t elapsed_ns)
{
	uint64_t all_ns = elapsed_ns;
	struct arbiter_stream *stream;
	struct arbiter_view view;
	uint64_t idle, span_ns;

	for (stream = tenant->streams; stream; stream = stream->next) {
		arbiter->ops->read(stream, &view);
		idle = child_idle_ns(arbiter, tenant, &view);
		span_ns = idle > stream->idle_seen_ns ? idle - stream->idle_seen_ns : 0;
		stream->idle_seen_ns = idle;
		span_ns = least(span_ns, elapsed_ns);
		all_ns = all_ns > elapsed_ns - span_ns ? all_ns - (elapsed_ns - span_ns) : 0;
	}
	return all_ns;
}

/* Has any child of the tenant work that waits for a lease? */
bool children_want(const struct arbiter_tenant *tenant)
{
	const struct arbiter_stream *stream;

	for (stream = tenant->streams; stream; stream = stream->next)
		if (stream->want)
			return true;
	return false;
}

/* The child may start, if it has work: the lease is LENT, or about to be, and it is to be woken. */
void child_offer(const struct arbiter *arbiter, struct arbiter_stream *stream)
{
	stream->asked = stream->want;
	stream->expected = true;
	stream->want = false;
	stream->offered_ns = arbiter->now_ns;
}

/* A child has started, so that its tenant has work after all. */
bool children_have_begun(const struct arbiter *arbiter, const struct arbiter_tenant *tenant)
{
	struct arbiter_stream *stream;
	struct arbiter_view view;

	for (stream = tenant->streams; stream; stream = stream->next) {
		arbiter->ops->read(stream, &view);
		if (child_is_busy(&view))
			return true;
	}
	return false;
}
