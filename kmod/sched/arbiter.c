// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The arbiter's entry points: who is there, what is said to it, and when it looks again. */
#include "arbiter_private.h"

void arbiter_arm(struct arbiter *arbiter)
{
	const struct arbiter_tenant *tenant;
	uint64_t at_ns = lease_at_ns(arbiter);
	bool others = false;

	for (tenant = arbiter->tenants; tenant; tenant = tenant->next) {
		if (tenant->gate_pending)
			at_ns = least(at_ns, later(tenant->gate_asked_ns,
						   arbiter->settings.gate_limit_ns));
		if (tenant->poll_at_ns)
			at_ns = least(at_ns, tenant->poll_at_ns);
		others = others || (tenant->streams && tenant != arbiter->holder);
	}
	/* A tenant that is by itself and has no cap is not looked at. */
	if (gate_is_watching(arbiter) && (others || has_end(arbiter->holder)))
		at_ns = least(at_ns, arbiter->watch_at_ns > arbiter->now_ns ?
			      arbiter->watch_at_ns : arbiter->now_ns);
	arbiter->ops->arm(arbiter, at_ns);
}

void arbiter_timer(struct arbiter *arbiter, uint64_t now_ns)
{
	uint64_t due_ns = lease_at_ns(arbiter);
	struct arbiter_tenant *tenant;

	arbiter_settle(arbiter, now_ns);
	lease_look(arbiter, due_ns);
	for (tenant = arbiter->tenants; tenant; tenant = tenant->next)
		gate_review_tenant(arbiter, tenant);
	if (gate_is_watching(arbiter) && arbiter->watch_at_ns <= arbiter->now_ns)
		gate_look_at_processors(arbiter);
	arbiter_arm(arbiter);
}

static void yield(struct arbiter *arbiter, struct arbiter_stream *stream,
		  const struct vgpu_stream_request *request)
{
	struct arbiter_tenant *tenant = stream->tenant;

	stream->expected = false;
	stream->want = request->flags & VGPU_YIELD_WANT;
	stream->quit = true;
	tenant->flags = request->flags & ~VGPU_YIELD_WANT;
	if (arbiter->closing)
		return;
	if (has_end(tenant))
		lease_take_back(arbiter);
	else if (stream->want)
		lease_let_start(arbiter, stream);
}

/* The child has work, and no lease that it knows of. */
static void ready(struct arbiter *arbiter, struct arbiter_stream *stream)
{
	struct arbiter_tenant *tenant = stream->tenant;

	if (arbiter->holder == tenant && tenant->lease.state == VGPU_LEASE_LENT &&
	    tenant->lease.expires_ns > arbiter->now_ns) {
		lease_let_start(arbiter, stream);
		return;
	}
	stream->want = true;
	stream->expected = false;
	if (arbiter->holder == tenant) {
		if (!arbiter->closing)
			lease_take_back(arbiter);
		return;
	}
	if (tenant->ready)
		return;
	lease_become_ready(arbiter, tenant);
	lease_review_holder(arbiter);
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

bool arbiter_request(struct arbiter *arbiter, struct arbiter_stream *stream,
		     const struct vgpu_stream_request *request, uint64_t now_ns)
{
	struct arbiter_tenant *tenant = stream->tenant;

	if (!is_sensible(request))
		return false;
	arbiter_settle(arbiter, now_ns);
	tenant->kernel_id = request->kernel_id;
	tenant->hint_ns = request->hint_ns;
	if (request->op == VGPU_STREAM_YIELD && arbiter->holder == tenant &&
	    request->lease == tenant->lease.number)
		yield(arbiter, stream, request);
	else if (request->op == VGPU_STREAM_READY || request->flags & VGPU_YIELD_WANT)
		ready(arbiter, stream);
	arbiter_arm(arbiter);
	return true;
}

enum vgpu_sched_field arbiter_init(struct arbiter *arbiter, const struct arbiter_ops *ops,
				   const struct arbiter_settings *settings,
				   const struct vgpu_sched_params *params, uint64_t now_ns)
{
	*arbiter = (struct arbiter){
		.settings = *settings,
		.ops = ops,
		.now_ns = now_ns,
		.settled_ns = now_ns,
		.look_at_ns = UINT64_MAX,
		.poll_until_ns = UINT64_MAX,
	};
	return turns_init(&arbiter->turns, params, now_ns);
}

enum vgpu_sched_field arbiter_set(struct arbiter *arbiter, const struct arbiter_settings *settings,
				  const struct vgpu_sched_params *params, uint64_t now_ns)
{
	enum vgpu_sched_field fault;

	arbiter_settle(arbiter, now_ns);
	fault = turns_set(&arbiter->turns, params, arbiter->now_ns);
	if (!fault) {
		arbiter->settings = *settings;
		lease_review_holder(arbiter);
	}
	arbiter_arm(arbiter);
	return fault;
}

enum vgpu_sched_field arbiter_tenant_add(struct arbiter *arbiter, struct arbiter_tenant *tenant,
					 const struct vgpu_group_params *params, uint64_t now_ns)
{
	enum vgpu_sched_field fault;

	arbiter_settle(arbiter, now_ns);
	fault = turns_add(&arbiter->turns, &tenant->party, params, arbiter->now_ns);
	if (fault)
		return fault;
	tenant->next = arbiter->tenants;
	arbiter->tenants = tenant;
	lease_publish(arbiter, tenant, VGPU_LEASE_NONE, false);
	return VGPU_FIELD_NONE;
}

enum vgpu_sched_field arbiter_tenant_update(struct arbiter *arbiter, struct arbiter_tenant *tenant,
					    const struct vgpu_group_params *params,
					    uint64_t now_ns)
{
	enum vgpu_sched_field fault;

	arbiter_settle(arbiter, now_ns);
	fault = turns_update(&arbiter->turns, &tenant->party, params, arbiter->now_ns);
	if (!fault)
		lease_review_holder(arbiter);
	arbiter_arm(arbiter);
	return fault;
}

void arbiter_tenant_remove(struct arbiter *arbiter, struct arbiter_tenant *tenant, uint64_t now_ns)
{
	struct arbiter_tenant **link = &arbiter->tenants;

	arbiter_settle(arbiter, now_ns);
	if (arbiter->holder == tenant) {
		lease_publish(arbiter, tenant, VGPU_LEASE_NONE, false);
		arbiter->holder = NULL;
		arbiter->closing = false;
	}
	turns_remove(&arbiter->turns, &tenant->party, arbiter->now_ns);
	while (*link != tenant)
		link = &(*link)->next;
	*link = tenant->next;
	lease_review_holder(arbiter);
	arbiter_arm(arbiter);
}

void arbiter_stream_add(struct arbiter *arbiter, struct arbiter_tenant *tenant,
			struct arbiter_stream *stream, uint64_t now_ns)
{
	arbiter_settle(arbiter, now_ns);
	*stream = (struct arbiter_stream){ .tenant = tenant, .next = tenant->streams };
	tenant->streams = stream;
	arbiter_arm(arbiter);
}

void arbiter_stream_remove(struct arbiter *arbiter, struct arbiter_stream *stream, uint64_t now_ns)
{
	struct arbiter_tenant *tenant = stream->tenant;
	struct arbiter_stream **link = &tenant->streams;

	arbiter_settle(arbiter, now_ns);
	while (*link != stream)
		link = &(*link)->next;
	*link = stream->next;
	if (arbiter->holder == tenant) {
		if (!tenant->streams)
			lease_finish(arbiter);
		else if (has_end(tenant) && !arbiter->closing)
			lease_take_back(arbiter);
	} else if (tenant->ready && !children_want(tenant)) {
		tenant->ready = false;
		tenant->polled = false;
		turns_sleep(&arbiter->turns, &tenant->party, arbiter->now_ns);
		lease_review_holder(arbiter);
	}
	if (!tenant->streams && tenant->gate_closed && arbiter->holder != tenant)
		gate_ask(arbiter, tenant, false);
	arbiter_arm(arbiter);
}
