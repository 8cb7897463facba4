// SPDX-License-Identifier: GPL-2.0
/*
 * Nothing that is shared stays with a process that does not answer: whatever children and gates
 * report or do not report, the module looks again at some moment. The lease pages that the
 * children of a slice read have the present state of its lease.
 */
#include "leases.h"

#include "engine/binding.h"
#include "engine/engine.h"

struct lease_counts lease_counts;

/* The timer must be set for no later than this. */
static void check_alarm(const struct vgpu_engine *engine, u64 at_ns)
{
	REQUIRE(engine->lease_timer.armed && engine->lease_timer.expires_ns <= at_ns);
}

static void check_holder(const struct vgpu_engine *engine)
{
	const struct vgpu_arbiter *arbiter = &engine->arbiter;
	const struct vgpu_party *holder = vgpu_arbiter_holder(arbiter);
	u64 grace_ns = arbiter->settings.grace_ns;

	if (!holder || holder->lease.expires_ns == U64_MAX)
		return;
	lease_counts.ends++;
	if (holder->lease.state != VGPU_LEASE_EXPIRED)
		check_alarm(engine, holder->lease.expires_ns);
	else if (!arbiter->closing)
		check_alarm(engine, holder->lease.expires_ns + grace_ns);
	else
		/* The executor answers, or it is killed, and then has no child any more. */
		REQUIRE(holder->gate_pending || !sim_work_is_done());
}

/* Only an executor that exists has been asked, and the wait for its answer has a limit. */
static void check_gate(const struct vgpu_device *device)
{
	const struct vgpu_engine *engine = &device->parent->engine;
	const struct vgpu_party *party = &device->party;

	if (!party->gate_pending)
		return;
	lease_counts.gates++;
	REQUIRE(device->binding);
	REQUIRE(device->binding->gate_sequence == party->gate_sequence);
	if (party->slice)
		check_alarm(engine, party->gate_asked_ns + engine->arbiter.settings.gate_limit_ns);
}

/* If a slice has work and no slice has the engine, the slice waits because of its cap. */
static void check_turn(const struct vgpu_device *device)
{
	const struct vgpu_engine *engine = &device->parent->engine;

	if (!device->party.ready || vgpu_arbiter_holder(&engine->arbiter))
		return;
	lease_counts.turns++;
	check_alarm(engine, KTIME_MAX);
}

static void check_page(const struct vgpu_device *device)
{
	const struct vgpu_arbiter_lease *lease = &device->party.lease;
	const struct vgpu_lease_page *page;

	if (!device->binding)
		return;
	page = vgpu_binding_lease(device->binding);
	/* There is no lease until the slice gets one. */
	if (!page->lease)
		return;
	lease_counts.pages++;
	REQUIRE(page->lease == (lease->number << VGPU_LEASE_STATE_BITS | lease->state));
	REQUIRE(page->begun_ns == lease->begun_ns && page->expires_ns == lease->expires_ns);
}

void leases_look(struct vgpu_parent *parent)
{
	const struct vgpu_device *device;

	check_holder(&parent->engine);
	list_for_each_entry(device, &parent->devices, node) {
		check_gate(device);
		check_turn(device);
		check_page(device);
		lease_counts.confined += vgpu_arbiter_is_confined(&parent->engine.arbiter,
								  &device->party);
	}
}
