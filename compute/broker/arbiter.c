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
 *
 * A tenant is confined after an offence (watch.h): its gate is open during its
 * leases only.  Frozen children cannot say that they have work, so a confined
 * tenant gets a short lease now and then without having asked.
 */
#include "broker/arbiter.h"

#include <stddef.h>

/* How often children that are frozen are let run, and for how long, to say if they have work. */
#define POLL_EVERY_NS	20000000ull
#define POLL_LIMIT_NS	1000000ull

static void decide(struct arbiter *arbiter);

static uint64_t later(uint64_t at_ns, uint64_t by_ns)
{
	return by_ns > UINT64_MAX - at_ns ? UINT64_MAX : at_ns + by_ns;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static void publish(const struct arbiter *arbiter, struct arbiter_tenant *tenant,
		    enum vgpu_lease_state state, bool wake)
{
	tenant->lease.state = state;
	arbiter->ops->publish(tenant, &tenant->lease, wake);
}

/* ---- what children say */

static bool is_busy(const struct arbiter_view *view)
{
	return (view->state & 1) == VGPU_STREAM_BUSY;
}

/* Has the child been busy since the lease was offered to it, or is it now under whichever? */
static bool has_started(const struct arbiter_tenant *tenant, const struct arbiter_stream *stream,
			const struct arbiter_view *view)
{
	return is_busy(view) || (view->state >> 1 == tenant->lease.number &&
				 view->dry_since_ns >= stream->offered_ns);
}

/*
 * Does the child still have to say that it is dry?  Its page says so earlier than its
 * yield, which also says if it has more work: without that its tenant would look like
 * one that went to sleep, and lose its place.
 */
static bool owes_yield(const struct arbiter_tenant *tenant, const struct arbiter_stream *stream,
		       const struct arbiter_view *view)
{
	return is_busy(view) || (has_started(tenant, stream, view) && !stream->quit);
}

/* The lease has an end from now on; children that are dry already say nothing any more. */
static void expect_yields(struct arbiter *arbiter, struct arbiter_tenant *tenant)
{
	struct arbiter_stream *stream;
	struct arbiter_view view;

	for (stream = tenant->streams; stream; stream = stream->next) {
		arbiter->ops->read(stream, &view);
		stream->quit = !is_busy(&view);
	}
}

/*
 * How long the child was dry since the lease began.  It adds a span to idle_ns when
 * the span ends; a span that began before the lease counts from the lease's beginning.
 */
static uint64_t idle_ns(const struct arbiter *arbiter, const struct arbiter_tenant *tenant,
			const struct arbiter_view *view)
{
	uint64_t since_ns = view->dry_since_ns;

	if (is_busy(view))
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
static uint64_t unused_ns(struct arbiter *arbiter, struct arbiter_tenant *tenant,
			  uint64_t elapsed_ns)
{
	uint64_t all_ns = elapsed_ns;
	struct arbiter_stream *stream;
	struct arbiter_view view;
	uint64_t idle, span_ns;

	for (stream = tenant->streams; stream; stream = stream->next) {
		arbiter->ops->read(stream, &view);
		idle = idle_ns(arbiter, tenant, &view);
		span_ns = idle > stream->idle_seen_ns ? idle - stream->idle_seen_ns : 0;
		stream->idle_seen_ns = idle;
		span_ns = least(span_ns, elapsed_ns);
		all_ns = all_ns > elapsed_ns - span_ns ? all_ns - (elapsed_ns - span_ns) : 0;
	}
	return all_ns;
}

/* Charge the time until now.  To be called before anything that lets the core look at the time. */
static void settle(struct arbiter *arbiter, uint64_t now_ns)
{
	struct arbiter_tenant *holder = arbiter->holder;
	uint64_t elapsed_ns, unused = 0;

	if (now_ns > arbiter->now_ns)
		arbiter->now_ns = now_ns;
	elapsed_ns = arbiter->now_ns - arbiter->settled_ns;
	arbiter->settled_ns = arbiter->now_ns;
	if (holder) {
		if (!arbiter->contended)
			unused = unused_ns(arbiter, holder, elapsed_ns);
		holder->stats.leased_ns += elapsed_ns - unused;
		holder->stats.lent_ns += elapsed_ns;
	}
	turns_charge(&arbiter->turns, unused, arbiter->now_ns);
}

/* ---- gate */

static void ask_gate(struct arbiter *arbiter, struct arbiter_tenant *tenant, bool close)
{
	tenant->gate_closed = close;
	tenant->gate_pending = true;
	tenant->gate_asked_ns = arbiter->now_ns;
	arbiter->ops->gate(tenant, close, ++tenant->gate_sequence);
}

bool arbiter_is_confined(const struct arbiter *arbiter, const struct arbiter_tenant *tenant)
{
	return tenant->watch.until_ns > arbiter->now_ns;
}

/* What the gate of a tenant without a lease ought to be, when nobody is to be stopped any more. */
static void review_gate(struct arbiter *arbiter, struct arbiter_tenant *tenant, bool has_busy)
{
	bool confined = arbiter_is_confined(arbiter, tenant);
	bool close = tenant->streams && (has_busy || confined);

	if (close != tenant->gate_closed)
		ask_gate(arbiter, tenant, close);
	if (close && confined && !tenant->ready)
		tenant->poll_at_ns = arbiter->now_ns + POLL_EVERY_NS;
}

/* ---- leases */

/* Has any child of the tenant work that waits for a lease? */
static bool wants(const struct arbiter_tenant *tenant)
{
	const struct arbiter_stream *stream;

	for (stream = tenant->streams; stream; stream = stream->next)
		if (stream->want)
			return true;
	return false;
}

static void count_wait(struct arbiter *arbiter, struct arbiter_tenant *tenant)
{
	uint64_t waited_ns = arbiter->now_ns - tenant->ready_since_ns;

	tenant->stats.waits++;
	tenant->stats.waited_ns += waited_ns;
	if (waited_ns > tenant->stats.longest_wait_ns)
		tenant->stats.longest_wait_ns = waited_ns;
}

static void become_ready(struct arbiter *arbiter, struct arbiter_tenant *tenant)
{
	if (!tenant->ready)
		tenant->ready_since_ns = arbiter->now_ns;
	tenant->ready = true;
	turns_ready(&arbiter->turns, &tenant->party, tenant->kernel_id, tenant->hint_ns,
		    arbiter->now_ns);
}

/* Nobody else waits: for how long the tenant may go on. */
static uint64_t end_by_cap_ns(const struct arbiter *arbiter, const struct arbiter_tenant *tenant)
{
	return later(arbiter->now_ns, turns_cap_lasts_ns(&tenant->party));
}

/* The child may start, if it has work: the lease is LENT, or about to be, and it is to be woken. */
static void offer(const struct arbiter *arbiter, struct arbiter_stream *stream)
{
	stream->asked = stream->want;
	stream->expected = true;
	stream->want = false;
	stream->offered_ns = arbiter->now_ns;
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
	if (tenant->polled && !wants(tenant))
		limit_ns = least(limit_ns, POLL_LIMIT_NS);
	for (stream = tenant->streams; stream; stream = stream->next) {
		arbiter->ops->read(stream, &view);
		stream->idle_seen_ns = idle_ns(arbiter, tenant, &view);
		stream->quit = stream->expected = stream->asked = false;
		if (stream->want || tenant->polled)
			offer(arbiter, stream);
	}
	tenant->polled = false;
	tenant->poll_at_ns = 0;
	tenant->lease.expires_ns = arbiter->contended ? later(arbiter->now_ns, limit_ns) :
							end_by_cap_ns(arbiter, tenant);
	publish(arbiter, tenant, VGPU_LEASE_LENT, true);
	if (tenant->gate_closed)
		ask_gate(arbiter, tenant, false);
}

/* The accelerator is drained, or the gate is closed. */
static void finish(struct arbiter *arbiter)
{
	struct arbiter_tenant *tenant = arbiter->holder;
	struct arbiter_stream *stream;
	struct arbiter_view view;
	bool has_busy = false;
	bool stopped;

	settle(arbiter, arbiter->now_ns);
	publish(arbiter, tenant, VGPU_LEASE_NONE, false);
	for (stream = tenant->streams; stream; stream = stream->next) {
		arbiter->ops->read(stream, &view);
		/* One that was stopped goes on later, and one that woke up too late still has its work. */
		stopped = arbiter->closing && is_busy(&view);
		stream->want = stream->want || stopped ||
			       (stream->asked && stream->expected && !has_started(tenant, stream, &view));
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
	tenant->ready = wants(tenant);
	tenant->stats.dries += !tenant->ready;
	tenant->ready_since_ns = arbiter->now_ns;
	if (tenant->ready)
		turns_again(&arbiter->turns, &tenant->party, tenant->kernel_id, tenant->hint_ns,
			    arbiter->now_ns);
	else
		turns_done(&arbiter->turns, &tenant->party, tenant->more, tenant->kernel_id,
			   arbiter->now_ns);
	tenant->more = false;
	review_gate(arbiter, tenant, has_busy);
	decide(arbiter);
}

/* Take a lease that others wait for back, if all children are dry. */
static void take_back(struct arbiter *arbiter)
{
	struct arbiter_tenant *tenant = arbiter->holder;
	struct arbiter_stream *stream;
	struct arbiter_view view;

	if (tenant->lease.state == VGPU_LEASE_LENT) {
		for (stream = tenant->streams; stream; stream = stream->next) {
			arbiter->ops->read(stream, &view);
			if (stream->expected && !has_started(tenant, stream, &view))
				return;
			stream->expected = false;
		}
		publish(arbiter, tenant, VGPU_LEASE_RECALLED, false);
	}
	for (stream = tenant->streams; stream; stream = stream->next) {
		arbiter->ops->read(stream, &view);
		stream->quit = stream->quit && !is_busy(&view);
		if (owes_yield(tenant, stream, &view))
			return;
	}
	finish(arbiter);
}

/* Children submit no more; what is under way is waited for a little. */
static void expire(struct arbiter *arbiter)
{
	struct arbiter_tenant *tenant = arbiter->holder;

	if (tenant->lease.state == VGPU_LEASE_EXPIRED)
		return;
	tenant->lease.expires_ns = least(tenant->lease.expires_ns, arbiter->now_ns);
	settle(arbiter, arbiter->now_ns);
	publish(arbiter, tenant, VGPU_LEASE_EXPIRED, false);
	if (!arbiter->contended)
		expect_yields(arbiter, tenant);
	/* From here on nothing is for free. */
	arbiter->contended = true;
	take_back(arbiter);
}

/* Somebody else has work while the holder's lease has no end, or no end for others' sake. */
static void contend(struct arbiter *arbiter)
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
	publish(arbiter, tenant, VGPU_LEASE_LENT, false);
	expect_yields(arbiter, tenant);
	take_back(arbiter);
	if (arbiter->holder == tenant && tenant->lease.expires_ns <= arbiter->now_ns)
		expire(arbiter);
}

/* Nobody else waits any more. */
static void relax(struct arbiter *arbiter)
{
	struct arbiter_tenant *tenant = arbiter->holder;
	struct arbiter_stream *stream;

	if (!arbiter->contended || turns_has_rival(&arbiter->turns, &tenant->party) ||
	    (tenant->lease.state != VGPU_LEASE_LENT && tenant->lease.state != VGPU_LEASE_RECALLED))
		return;
	arbiter->contended = false;
	settle(arbiter, arbiter->now_ns);
	for (stream = tenant->streams; stream; stream = stream->next) {
		if (stream->want)
			offer(arbiter, stream);
	}
	tenant->lease.expires_ns = end_by_cap_ns(arbiter, tenant);
	publish(arbiter, tenant, VGPU_LEASE_LENT, true);
}

/* The accelerator is nobody's. */
static void decide(struct arbiter *arbiter)
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

static void review_holder(struct arbiter *arbiter)
{
	if (arbiter->holder)
		contend(arbiter);
	else
		decide(arbiter);
}

/* ---- time */

/* Nobody else waits, and the end is the cap's: what was not used is there to be used. */
static void prolong(struct arbiter *arbiter)
{
	struct arbiter_tenant *tenant = arbiter->holder;
	uint64_t end_ns = end_by_cap_ns(arbiter, tenant);

	if (end_ns <= later(tenant->lease.expires_ns, arbiter->settings.early_ns))
		return;
	tenant->lease.expires_ns = end_ns;
	publish(arbiter, tenant, tenant->lease.state, false);
}

static uint64_t early_ns(const struct arbiter *arbiter)
{
	uint64_t expires_ns = arbiter->holder->lease.expires_ns;

	return expires_ns > arbiter->settings.early_ns ? expires_ns - arbiter->settings.early_ns :
							 0;
}

static bool may_prolong(const struct arbiter *arbiter)
{
	return !arbiter->contended && arbiter->holder->lease.expires_ns != UINT64_MAX;
}

/* When the holder's lease is to be looked at. */
static uint64_t lease_at_ns(const struct arbiter *arbiter)
{
	const struct arbiter_tenant *holder = arbiter->holder;

	if (!holder)
		return arbiter->look_at_ns;
	if (arbiter->closing)
		return UINT64_MAX;
	if (holder->lease.state == VGPU_LEASE_EXPIRED)
		return later(holder->lease.expires_ns, arbiter->settings.grace_ns);
	if (may_prolong(arbiter) && early_ns(arbiter) > arbiter->now_ns)
		return early_ns(arbiter);
	return holder->lease.expires_ns;
}

static void review_lease(struct arbiter *arbiter)
{
	struct arbiter_tenant *holder = arbiter->holder;

	if (lease_at_ns(arbiter) > arbiter->now_ns) {
		if (holder && may_prolong(arbiter) && early_ns(arbiter) <= arbiter->now_ns)
			prolong(arbiter);
		return;
	}
	if (!holder) {
		decide(arbiter);
	} else if (holder->lease.state == VGPU_LEASE_EXPIRED) {
		arbiter->closing = true;
		ask_gate(arbiter, holder, true);
	} else {
		expire(arbiter);
	}
}

/* Somebody may be harmed by what is computed without a lease. */
static bool is_watching(const struct arbiter *arbiter)
{
	return arbiter->settings.watch.processors && arbiter->holder;
}

static void look_at_processors(struct arbiter *arbiter)
{
	struct arbiter_tenant *tenant;

	arbiter->watch_at_ns = arbiter->now_ns + arbiter->settings.watch.every_ns;
	for (tenant = arbiter->tenants; tenant; tenant = tenant->next)
		if (tenant->streams && !tenant->gate_pending &&
		    (tenant != arbiter->holder || arbiter->contended || may_prolong(arbiter)))
			ask_gate(arbiter, tenant, tenant->gate_closed);
}

static void review_tenant(struct arbiter *arbiter, struct arbiter_tenant *tenant)
{
	if (tenant->gate_pending &&
	    later(tenant->gate_asked_ns, arbiter->settings.gate_limit_ns) <= arbiter->now_ns) {
		tenant->gate_pending = false;
		arbiter->ops->gate_lost(tenant);
	}
	if (!tenant->poll_at_ns || tenant->poll_at_ns > arbiter->now_ns)
		return;
	tenant->poll_at_ns = 0;
	if (tenant == arbiter->holder || tenant->ready)
		return;
	if (!arbiter_is_confined(arbiter, tenant)) {
		review_gate(arbiter, tenant, false);
		return;
	}
	tenant->polled = true;
	become_ready(arbiter, tenant);
	review_holder(arbiter);
}

static void arm(struct arbiter *arbiter)
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
	if (is_watching(arbiter) && (others || may_prolong(arbiter)))
		at_ns = least(at_ns, arbiter->watch_at_ns > arbiter->now_ns ?
				     arbiter->watch_at_ns : arbiter->now_ns);
	arbiter->ops->arm(arbiter, at_ns);
}

void arbiter_timer(struct arbiter *arbiter, uint64_t now_ns)
{
	struct arbiter_tenant *tenant;

	settle(arbiter, now_ns);
	review_lease(arbiter);
	for (tenant = arbiter->tenants; tenant; tenant = tenant->next)
		review_tenant(arbiter, tenant);
	if (is_watching(arbiter) && arbiter->watch_at_ns <= arbiter->now_ns)
		look_at_processors(arbiter);
	arm(arbiter);
}

void arbiter_settle(struct arbiter *arbiter, uint64_t now_ns)
{
	settle(arbiter, now_ns);
}

/* ---- what is said to the arbiter */

/* The child asked before it saw the lease, or that its end was moved: let it look again. */
static void let_start(struct arbiter *arbiter, struct arbiter_stream *stream)
{
	stream->want = true;
	offer(arbiter, stream);
	publish(arbiter, stream->tenant, VGPU_LEASE_LENT, true);
}

static void yield(struct arbiter *arbiter, struct arbiter_stream *stream,
		  const struct vgpu_stream_request *request)
{
	struct arbiter_tenant *tenant = stream->tenant;
	bool want = request->flags & VGPU_YIELD_WANT;

	stream->expected = false;
	stream->want = want;
	stream->quit = true;
	tenant->more = arbiter->contended && request->flags & VGPU_YIELD_MORE;
	if (request->flags & VGPU_YIELD_END)
		turns_end_request(&arbiter->turns, &tenant->party, arbiter->now_ns);
	if (arbiter->closing)
		return;
	if (arbiter->contended)
		take_back(arbiter);
	else if (want)
		let_start(arbiter, stream);
}

/* The child has work, and no lease that it knows of. */
static void ready(struct arbiter *arbiter, struct arbiter_stream *stream)
{
	struct arbiter_tenant *tenant = stream->tenant;

	if (arbiter->holder == tenant && tenant->lease.state == VGPU_LEASE_LENT &&
	    tenant->lease.expires_ns > arbiter->now_ns) {
		let_start(arbiter, stream);
		return;
	}
	stream->want = true;
	stream->expected = false;
	if (arbiter->holder == tenant) {
		if (!arbiter->closing)
			take_back(arbiter);
		return;
	}
	if (tenant->ready)
		return;
	become_ready(arbiter, tenant);
	review_holder(arbiter);
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
	settle(arbiter, now_ns);
	tenant->kernel_id = request->kernel_id;
	tenant->hint_ns = request->hint_ns;
	if (request->op == VGPU_STREAM_YIELD && arbiter->holder == tenant &&
	    request->lease == tenant->lease.number)
		yield(arbiter, stream, request);
	else if (request->op == VGPU_STREAM_READY || request->flags & VGPU_YIELD_WANT)
		ready(arbiter, stream);
	arm(arbiter);
	return true;
}

static void look(struct arbiter *arbiter, struct arbiter_tenant *tenant, uint64_t processor_ns)
{
	bool again = arbiter_is_confined(arbiter, tenant);
	uint64_t fine_ns = watch_look(&tenant->watch, &arbiter->settings.watch, processor_ns,
				      tenant->stats.leased_ns, arbiter->now_ns);

	if (!fine_ns)
		return;
	tenant->stats.offences += !again;
	tenant->debt_ns += fine_ns;
	if (tenant != arbiter->holder)
		review_gate(arbiter, tenant, tenant->gate_closed);
}

void arbiter_gate_answer(struct arbiter *arbiter, struct arbiter_tenant *tenant, uint64_t sequence,
			 bool done, uint64_t processor_ns, uint64_t now_ns)
{
	uint64_t took_ns;

	settle(arbiter, now_ns);
	if (done)
		look(arbiter, tenant, processor_ns);
	if (!tenant->gate_pending || sequence != tenant->gate_sequence) {
		arm(arbiter);
		return;
	}
	tenant->gate_pending = false;
	if (!done) {
		arbiter->ops->gate_lost(tenant);
	} else if (arbiter->holder == tenant && arbiter->closing) {
		took_ns = arbiter->now_ns - tenant->gate_asked_ns;
		tenant->stats.gates++;
		tenant->stats.gate_ns += took_ns;
		if (took_ns > tenant->stats.longest_gate_ns)
			tenant->stats.longest_gate_ns = took_ns;
		finish(arbiter);
	}
	arm(arbiter);
}

void arbiter_gate_reset(struct arbiter *arbiter, struct arbiter_tenant *tenant, uint64_t now_ns)
{
	settle(arbiter, now_ns);
	tenant->gate_pending = false;
	tenant->gate_closed = false;
	if (arbiter->holder == tenant)
		arbiter->closing = false;
	watch_reset(&tenant->watch);
	arm(arbiter);
}

/* ---- who is there */

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
	};
	return turns_init(&arbiter->turns, params, now_ns);
}

enum vgpu_sched_field arbiter_set(struct arbiter *arbiter, const struct arbiter_settings *settings,
				  const struct vgpu_sched_params *params, uint64_t now_ns)
{
	enum vgpu_sched_field fault;

	settle(arbiter, now_ns);
	fault = turns_set(&arbiter->turns, params, arbiter->now_ns);
	if (!fault)
		arbiter->settings = *settings;
	arm(arbiter);
	return fault;
}

enum vgpu_sched_field arbiter_tenant_add(struct arbiter *arbiter, struct arbiter_tenant *tenant,
					 const struct vgpu_group_params *params, uint64_t now_ns)
{
	enum vgpu_sched_field fault;

	settle(arbiter, now_ns);
	fault = turns_add(&arbiter->turns, &tenant->party, params, arbiter->now_ns);
	if (fault)
		return fault;
	tenant->next = arbiter->tenants;
	arbiter->tenants = tenant;
	publish(arbiter, tenant, VGPU_LEASE_NONE, false);
	return VGPU_FIELD_NONE;
}

enum vgpu_sched_field arbiter_tenant_update(struct arbiter *arbiter, struct arbiter_tenant *tenant,
					    const struct vgpu_group_params *params,
					    uint64_t now_ns)
{
	struct arbiter_tenant *holder = arbiter->holder;
	enum vgpu_sched_field fault;

	settle(arbiter, now_ns);
	fault = turns_update(&arbiter->turns, &tenant->party, params, arbiter->now_ns);
	if (fault)
		return fault;
	if (!holder) {
		decide(arbiter);
	} else if (arbiter->contended) {
		contend(arbiter);
	} else if (holder == tenant) {
		holder->lease.expires_ns = end_by_cap_ns(arbiter, holder);
		publish(arbiter, holder, holder->lease.state, false);
	}
	arm(arbiter);
	return VGPU_FIELD_NONE;
}

void arbiter_tenant_remove(struct arbiter *arbiter, struct arbiter_tenant *tenant, uint64_t now_ns)
{
	struct arbiter_tenant **link = &arbiter->tenants;
	bool was_holder = arbiter->holder == tenant;

	settle(arbiter, now_ns);
	if (was_holder) {
		publish(arbiter, tenant, VGPU_LEASE_NONE, false);
		arbiter->holder = NULL;
		arbiter->contended = false;
		arbiter->closing = false;
	}
	turns_remove(&arbiter->turns, &tenant->party, arbiter->now_ns);
	while (*link != tenant)
		link = &(*link)->next;
	*link = tenant->next;
	if (!arbiter->holder)
		decide(arbiter);
	else
		relax(arbiter);
	arm(arbiter);
}

void arbiter_stream_add(struct arbiter *arbiter, struct arbiter_tenant *tenant,
			struct arbiter_stream *stream, uint64_t now_ns)
{
	settle(arbiter, now_ns);
	*stream = (struct arbiter_stream){ .tenant = tenant, .next = tenant->streams };
	tenant->streams = stream;
	arm(arbiter);
}

void arbiter_stream_remove(struct arbiter *arbiter, struct arbiter_stream *stream, uint64_t now_ns)
{
	struct arbiter_tenant *tenant = stream->tenant;
	struct arbiter_stream **link = &tenant->streams;

	settle(arbiter, now_ns);
	while (*link != stream)
		link = &(*link)->next;
	*link = stream->next;
	if (arbiter->holder == tenant) {
		if (!tenant->streams)
			finish(arbiter);
		else if (arbiter->contended && !arbiter->closing)
			take_back(arbiter);
	} else if (tenant->ready && !wants(tenant)) {
		tenant->ready = false;
		tenant->polled = false;
		turns_sleep(&arbiter->turns, &tenant->party, arbiter->now_ns);
		if (arbiter->holder)
			relax(arbiter);
		else
			decide(arbiter);
	}
	if (!tenant->streams && tenant->gate_closed && arbiter->holder != tenant)
		ask_gate(arbiter, tenant, false);
	arm(arbiter);
}
