// SPDX-License-Identifier: Apache-2.0
#include "broker/firmware.h"

#include <stddef.h>
#include <syslog.h>

#include "broker/supervisor.h"
#include "executor/log.h"

#define SEQUENCE	(1ull << 62)

static void terms_of(struct tenant *tenant)
{
	const struct vgpu_group_params *terms = &tenant->settings.terms;

	tenant->native.duty.weight = terms->weight;
	tenant->native.duty.cap_ns = terms->cap_ns;
	tenant->native.duty.cap_period_ns = terms->cap_period_ns;
	tenant->native.duty.burst_ns = terms->burst_ns;
}

/* Send the supervisor the tenant's timeslice and memory limit, if they have changed. */
static void tell_terms(struct tenant *tenant)
{
	struct vgpu_supervisor_message message = {
		.op = VGPU_SUPERVISOR_TIMESLICE,
		.timeslice_us = duty_timeslice_us(&tenant->broker->duties, &tenant->native.duty),
		.memory_bytes = tenant->settings.memory_bytes,
	};

	if (!tenant->native.programs || !tenant->settings.native ||
	    (tenant->native.timeslice_us == message.timeslice_us &&
	     tenant->native.memory_bytes == message.memory_bytes))
		return;
	if (!supervisor_send(&tenant->supervisor, &message, NULL, 0))
		return;
	tenant->native.timeslice_us = message.timeslice_us;
	tenant->native.memory_bytes = message.memory_bytes;
}

static void ask_gate(struct tenant *tenant, bool open, uint64_t now_ns)
{
	struct vgpu_supervisor_message message = {
		.op = open ? VGPU_SUPERVISOR_THAW : VGPU_SUPERVISOR_FREEZE,
		.sequence = ++tenant->native.sequence | SEQUENCE,
	};

	tenant->native.asked = true;
	tenant->native.opening = open;
	tenant->native.asked_ns = now_ns;
	/*
	 * A failure to send needs no handling here: the broker will notice that the supervisor has
	 * ended or that the answer is missing.
	 */
	supervisor_send(&tenant->supervisor, &message, NULL, 0);
}

static uint64_t review_tenant(struct tenant *tenant, uint64_t now_ns)
{
	struct broker *broker = tenant->broker;
	struct native_turns *native = &tenant->native;
	uint64_t limit_ns = native->asked_ns + broker->settings.arbiter.gate_limit_ns;
	bool may = duty_may_run(&broker->duties, &native->duty);

	if (native->asked && now_ns >= limit_ns) {
		vgpu_log(LOG_ERR, "tenant=%s event=gate.lost", tenant->settings.name);
		native->asked = false;
		supervisor_kill(&tenant->supervisor);
	}
	if (native->asked)
		return limit_ns;
	/* Close a gate only if programs work, because otherwise there is nothing to stop. */
	if (supervisor_is_up(&tenant->supervisor) && native->duty.open != may && (may || native->duty.works))
		ask_gate(tenant, may, now_ns);
	return UINT64_MAX;
}

static void review(struct broker *broker, uint64_t now_ns)
{
	uint64_t next_ns = UINT64_MAX, due_ns;
	struct tenant *tenant;

	for (tenant = broker->tenants; tenant; tenant = tenant->next) {
		due_ns = review_tenant(tenant, now_ns);
		next_ns = due_ns < next_ns ? due_ns : next_ns;
		tell_terms(tenant);
	}
	due_ns = duties_next_ns(&broker->duties);
	loop_arm(&broker->loop, &broker->firmware_timer, due_ns < next_ns ? due_ns : next_ns);
}

void firmware_settle(struct broker *broker, uint64_t now_ns)
{
	if (firmware_shares(broker))
		duties_settle(&broker->duties, now_ns);
}

void firmware_due(struct loop_timer *timer, uint64_t now_ns)
{
	struct broker *broker = (struct broker *)((char *)timer - offsetof(struct broker, firmware_timer));

	duties_settle(&broker->duties, now_ns);
	review(broker, now_ns);
}

void firmware_configure(struct broker *broker)
{
	uint64_t now_ns = loop_now_ns();

	if (!firmware_shares(broker))
		return;
	if (broker->duties.period_ns)
		duties_settle(&broker->duties, now_ns);
	duties_configure(&broker->duties, broker->settings.native_period_ns, now_ns);
}

void firmware_join(struct tenant *tenant)
{
	tenant->native.duty.open = true;
	terms_of(tenant);
	if (firmware_shares(tenant->broker))
		duties_add(&tenant->broker->duties, &tenant->native.duty);
}

void firmware_leave(struct tenant *tenant)
{
	firmware_settle(tenant->broker, loop_now_ns());
	duties_remove(&tenant->broker->duties, &tenant->native.duty);
}

void firmware_terms(struct tenant *tenant)
{
	struct broker *broker = tenant->broker;
	uint64_t now_ns = loop_now_ns();

	if (!firmware_shares(broker)) {
		tell_terms(tenant);
		return;
	}
	duties_settle(&broker->duties, now_ns);
	terms_of(tenant);
	review(broker, now_ns);
}

void firmware_works(struct tenant *tenant)
{
	struct broker *broker = tenant->broker;
	const struct client *client;
	uint64_t now_ns = loop_now_ns();
	bool works = false;

	if (!firmware_shares(broker))
		return;
	for (client = tenant->clients; client; client = client->next)
		works = works || (client->native && client->works && client->state != CLIENT_ENDING);
	duties_settle(&broker->duties, now_ns);
	tenant->native.duty.works = works;
	review(broker, now_ns);
}

void firmware_supervisor_lost(struct tenant *tenant)
{
	struct broker *broker = tenant->broker;
	uint64_t now_ns = loop_now_ns();

	tenant->native.timeslice_us = tenant->native.memory_bytes = tenant->native.used_bytes = 0;
	tenant->native.asked = false;
	if (!firmware_shares(broker))
		return;
	duties_settle(&broker->duties, now_ns);
	/* The gate of the next supervisor starts open. */
	tenant->native.duty.open = true;
	tenant->native.duty.works = false;
	review(broker, now_ns);
}

void firmware_gate_answered(struct tenant *tenant, uint64_t sequence, bool done)
{
	struct broker *broker = tenant->broker;
	struct native_turns *native = &tenant->native;
	uint64_t now_ns = loop_now_ns();

	if (!native->asked || sequence != (native->sequence | SEQUENCE))
		return;
	duties_settle(&broker->duties, now_ns);
	native->asked = false;
	if (done) {
		native->gates += native->duty.open && !native->opening;
		native->duty.open = native->opening;
	} else {
		vgpu_log(LOG_ERR, "tenant=%s event=gate.lost", tenant->settings.name);
		supervisor_kill(&tenant->supervisor);
	}
	review(broker, now_ns);
}
