// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The gate of a tenant: when it is to be open, and whose children must not run outside
 * leases.
 *
 * A tenant is confined after an offence (watch.h): its gate is open during its leases
 * only.  Frozen children cannot say that they have work, so a confined tenant gets a
 * short lease now and then without having asked.
 */
#include "arbiter_private.h"

/* How often children that are frozen are let run to say if they have work. */
#define POLL_EVERY_NS	20000000ull

void gate_ask(struct arbiter *arbiter, struct arbiter_tenant *tenant, bool close)
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
void gate_review(struct arbiter *arbiter, struct arbiter_tenant *tenant, bool has_busy)
{
	bool confined = arbiter_is_confined(arbiter, tenant);
	bool close = tenant->streams && (has_busy || confined);

	if (close != tenant->gate_closed)
		gate_ask(arbiter, tenant, close);
	if (close && confined && !tenant->ready)
		tenant->poll_at_ns = arbiter->now_ns + POLL_EVERY_NS;
}

/* May somebody be harmed by what @tenant computes without a lease, or its cap? */
static bool is_watched(const struct arbiter *arbiter, const struct arbiter_tenant *tenant)
{
	return tenant->streams && (arbiter->holder || tenant->party.group.params.cap_ns);
}

bool gate_is_watching(const struct arbiter *arbiter)
{
	const struct arbiter_tenant *tenant;

	for (tenant = arbiter->tenants; tenant; tenant = tenant->next)
		if (is_watched(arbiter, tenant))
			return arbiter->settings.watch.processors;
	return false;
}

void gate_look_at_processors(struct arbiter *arbiter)
{
	struct arbiter_tenant *tenant;

	arbiter->watch_at_ns = arbiter->now_ns + arbiter->settings.watch.every_ns;
	for (tenant = arbiter->tenants; tenant; tenant = tenant->next)
		if (is_watched(arbiter, tenant) && !tenant->gate_pending &&
		    (tenant != arbiter->holder || has_end(tenant)))
			gate_ask(arbiter, tenant, tenant->gate_closed);
}

void gate_review_tenant(struct arbiter *arbiter, struct arbiter_tenant *tenant)
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
		gate_review(arbiter, tenant, false);
		return;
	}
	tenant->polled = true;
	lease_become_ready(arbiter, tenant);
	lease_review_holder(arbiter);
}

static void look(struct arbiter *arbiter, struct arbiter_tenant *tenant, uint64_t processor_ns)
{
	bool again = arbiter_is_confined(arbiter, tenant);
	uint64_t fine_ns = watch_look(&tenant->watch, &arbiter->settings.watch, processor_ns,
				      turns_had_ns(&tenant->party), arbiter->now_ns);
	bool offended = !again && tenant->watch.until_ns >= arbiter->now_ns;

	if (!fine_ns && !offended)
		return;
	tenant->stats.offences += offended;
	tenant->stats.fined_ns += fine_ns;
	turns_owe(&arbiter->turns, &tenant->party, fine_ns, arbiter->now_ns);
	if (tenant != arbiter->holder && arbiter_is_confined(arbiter, tenant))
		gate_review(arbiter, tenant, tenant->gate_closed);
	if (arbiter->holder)
		lease_review(arbiter);
}

void arbiter_gate_answer(struct arbiter *arbiter, struct arbiter_tenant *tenant, uint64_t sequence,
			 bool done, uint64_t processor_ns, uint64_t now_ns)
{
	uint64_t took_ns;

	arbiter_settle(arbiter, now_ns);
	if (done)
		look(arbiter, tenant, processor_ns);
	if (!tenant->gate_pending || sequence != tenant->gate_sequence) {
		arbiter_arm(arbiter);
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
		lease_finish(arbiter);
	}
	arbiter_arm(arbiter);
}

void arbiter_gate_reset(struct arbiter *arbiter, struct arbiter_tenant *tenant, uint64_t now_ns)
{
	arbiter_settle(arbiter, now_ns);
	tenant->gate_pending = false;
	tenant->gate_closed = false;
	if (arbiter->holder == tenant)
		arbiter->closing = false;
	watch_reset(&tenant->watch);
	arbiter_arm(arbiter);
}
