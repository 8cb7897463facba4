// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The gate of a party: when it is open, and which parties' children must not run
 * outside leases.
 *
 * After an offence (watch.h) a party is confined: its gate is open during its leases
 * only.  Frozen children cannot report that they have work, so a confined party gets
 * a short lease from time to time without having asked for it.
 */
#include "arbiter_private.h"

/* How often frozen children get a short lease in which they can report work. */
#define POLL_EVERY_NS	20000000ull

void vgpu_gate_ask(struct vgpu_arbiter *arbiter, struct vgpu_party *party, bool close)
{
	party->gate_closed = close;
	party->gate_pending = true;
	party->gate_asked_ns = arbiter->now_ns;
	arbiter->ops->gate(party, close, ++party->gate_sequence);
}

bool vgpu_arbiter_is_confined(const struct vgpu_arbiter *arbiter, const struct vgpu_party *party)
{
	return party->watch.until_ns > arbiter->now_ns;
}

/* Set the gate of a party without a lease, once no child has to be stopped any more. */
void vgpu_gate_review(struct vgpu_arbiter *arbiter, struct vgpu_party *party, bool has_busy)
{
	bool confined = vgpu_arbiter_is_confined(arbiter, party);
	bool close = party->streams && (has_busy || confined);

	if (close != party->gate_closed)
		vgpu_gate_ask(arbiter, party, close);
	if (close && confined && !party->ready)
		party->poll_at_ns = arbiter->now_ns + POLL_EVERY_NS;
}

/* Can @party harm another party, or exceed its own cap, by computing without a lease? */
static bool is_watched(const struct vgpu_arbiter *arbiter, const struct vgpu_party *party)
{
	const struct vgpu_slice *slice = party->slice;

	return party->streams && (arbiter->holder || slice->params.cap_ns ||
				  slice->group->params.cap_ns);
}

bool vgpu_gate_is_watching(const struct vgpu_arbiter *arbiter)
{
	const struct vgpu_party *party;

	for (party = arbiter->parties; party; party = party->next)
		if (is_watched(arbiter, party))
			return arbiter->settings.watch.processors;
	return false;
}

void vgpu_gate_look_at_processors(struct vgpu_arbiter *arbiter)
{
	struct vgpu_party *party;

	arbiter->watch_at_ns = arbiter->now_ns + arbiter->settings.watch.every_ns;
	for (party = arbiter->parties; party; party = party->next)
		if (is_watched(arbiter, party) && !party->gate_pending &&
		    (party != arbiter->holder || has_end(party)))
			vgpu_gate_ask(arbiter, party, party->gate_closed);
}

void vgpu_gate_review_party(struct vgpu_arbiter *arbiter, struct vgpu_party *party)
{
	if (party->gate_pending &&
	    later(party->gate_asked_ns, arbiter->settings.gate_limit_ns) <= arbiter->now_ns) {
		party->gate_pending = false;
		arbiter->ops->gate_lost(party);
	}
	if (!party->poll_at_ns || party->poll_at_ns > arbiter->now_ns)
		return;
	party->poll_at_ns = 0;
	if (party == arbiter->holder || party->ready)
		return;
	if (!vgpu_arbiter_is_confined(arbiter, party)) {
		vgpu_gate_review(arbiter, party, false);
		return;
	}
	party->polled = true;
	vgpu_arbiter_make_ready(arbiter, party);
	vgpu_arbiter_review_holder(arbiter);
}

static void look(struct vgpu_arbiter *arbiter, struct vgpu_party *party, u64 processor_ns)
{
	bool again = vgpu_arbiter_is_confined(arbiter, party);
	u64 fine_ns = vgpu_watch_look(&party->watch, &arbiter->settings.watch, processor_ns,
				      party->slice->stats.run_ns, arbiter->now_ns);
	bool offended = !again && party->watch.until_ns >= arbiter->now_ns;

	if (!fine_ns && !offended)
		return;
	party->stats.offences += offended;
	party->stats.fined_ns += fine_ns;
	vgpu_slice_owe(arbiter->sched, party->slice, fine_ns, arbiter->now_ns);
	if (party != arbiter->holder && vgpu_arbiter_is_confined(arbiter, party))
		vgpu_gate_review(arbiter, party, party->gate_closed);
	if (arbiter->holder)
		vgpu_arbiter_review(arbiter);
}

void vgpu_arbiter_gate_answer(struct vgpu_arbiter *arbiter, struct vgpu_party *party, u64 sequence,
			      bool done, u64 processor_ns, u64 now_ns)
{
	u64 took_ns;

	vgpu_arbiter_settle(arbiter, now_ns);
	if (done && party->slice)
		look(arbiter, party, processor_ns);
	if (!party->gate_pending || sequence != party->gate_sequence) {
		vgpu_arbiter_arm(arbiter);
		return;
	}
	party->gate_pending = false;
	if (!done) {
		arbiter->ops->gate_lost(party);
	} else if (arbiter->holder == party && arbiter->closing) {
		took_ns = arbiter->now_ns - party->gate_asked_ns;
		party->stats.gates++;
		party->stats.gate_ns += took_ns;
		if (took_ns > party->stats.longest_gate_ns)
			party->stats.longest_gate_ns = took_ns;
		vgpu_arbiter_finish(arbiter);
	}
	vgpu_arbiter_arm(arbiter);
}

void vgpu_arbiter_gate_reset(struct vgpu_arbiter *arbiter, struct vgpu_party *party, u64 now_ns)
{
	vgpu_arbiter_settle(arbiter, now_ns);
	party->gate_pending = false;
	party->gate_closed = false;
	party->poll_at_ns = 0;
	vgpu_watch_reset(&party->watch);
	/*
	 * Detach all streams at once, so that no request is sent to this gate, which
	 * is gone, or to the gate of the next executor.
	 */
	vgpu_children_detach(party);
	if (arbiter->holder == party) {
		arbiter->closing = false;
		vgpu_arbiter_finish(arbiter);
	} else if (party->ready) {
		vgpu_arbiter_sleep(arbiter, party);
		vgpu_arbiter_review_holder(arbiter);
	}
	vgpu_arbiter_arm(arbiter);
}
