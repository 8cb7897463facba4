// SPDX-License-Identifier: Apache-2.0
/*
 * The event loop and the engine.  The order at one moment is: hosts take their
 * steps, the scheduler's timer runs, the engine finishes its piece or is
 * preempted, and a free engine is offered to the scheduler.
 */
#include "sim.h"

static u32 decided_reason(const struct sim *sim, const struct sim_decision *decision)
{
	if (decision->run_ended)
		return decision->reason;
	return sim->run_slice->ready ? decision->reason : VGPU_RUN_DRY;
}

static void mix(struct sim *sim, u64 value)
{
	sim->hash = (sim->hash ^ value) * 0x9e3779b97f4a7c15ull;
	sim->hash ^= sim->hash >> 29;
}

void sim_present_run(const struct sim *sim, struct sim_run *run)
{
	memset(run, 0, sizeof(*run));
	if (!sim->run_slice)
		return;
	*run = (struct sim_run){
		.start_ns = sim->run_start_ns,
		.length_ns = sim->now_ns - sim->run_start_ns,
		.group = sim->run_slice->group->index,
		.slice = sim->run_slice->index,
		.reason = SIM_RUN_STILL,
		.timeslice_ns = sim->run_timeslice_ns,
	};
}

void sim_end_run(struct sim *sim, u32 reason)
{
	struct sim_run *run;

	if (sim->run_slice && sim->record_runs) {
		run = sim_log_add(sim, &sim->runs);
		if (run) {
			sim_present_run(sim, run);
			run->reason = reason;
		}
	}
	sim->run_slice = NULL;
}

/* Advance the clock, and charge the time to the running slice or the holder. */
static void advance(struct sim *sim, u64 to_ns)
{
	u64 ns = to_ns - sim->now_ns, overhead_ns = 0;
	u64 overhead_end_ns = sim->piece_start_ns + sim->piece_overhead_ns;

	if (sim->running) {
		if (sim->now_ns < overhead_end_ns)
			overhead_ns = min(to_ns, overhead_end_ns) - sim->now_ns;
		sim->running->counters.overhead_ns += overhead_ns;
		sim->running->counters.work_ns += ns - overhead_ns;
	} else if (sim->holder) {
		sim->holder->counters.hold_ns += ns;
	} else {
		sim->counters.idle_ns += ns;
	}
	sim->now_ns = to_ns;
}

/*
 * Tell the scheduler if the slice has become ready, or is no longer ready.
 * The parking of a running slice takes effect when its piece ends.
 */
void sim_settle(struct sim *sim, struct sim_slice *slice)
{
	bool parked = slice->parked && sim->running != slice;
	bool wants = slice->queued && !parked;

	if (wants == slice->ready)
		return;
	slice->ready = wants;
	if (wants) {
		sim->dirty = true;
		if (sim->scheduler->wake)
			sim->scheduler->wake(sim, slice);
	} else if (sim->scheduler->sleep) {
		sim->scheduler->sleep(sim, slice);
	}
}

static void record_item(struct sim *sim, struct sim_slice *slice,
			const struct sim_item *item)
{
	struct sim_item_record *record = sim_log_add(sim, &sim->items);

	if (record)
		*record = (struct sim_item_record){
			.submitted_ns = item->submitted_ns,
			.ready_ns = item->ready_ns,
			.start_ns = item->start_ns,
			.end_ns = sim->now_ns,
			.work_ns = item->work_ns,
			.kernel_id = slice->program.kernel_id[item->kernel],
			.slice = slice->index,
		};
}

static void finish_item(struct sim *sim, struct sim_slice *slice)
{
	struct sim_item *item = sim_head(slice);

	slice->counters.items++;
	slice->request.work_ns += item->work_ns;
	if (sim->scheduler->item_done)
		sim->scheduler->item_done(sim, slice, item);
	if (sim->record_items)
		record_item(sim, slice, item);
	slice->head++;
	slice->queued--;
	if (slice->queued)
		sim_head(slice)->ready_ns = sim->now_ns;
	sim_host_after_item(sim, slice);
	if (sim->scheduler->next)
		sim->scheduler->next(sim, slice, slice->queued && !slice->parked ?
				     sim_head(slice) : NULL);
}

/* Stop executing now.  An unfinished kernel stays at the head of its queue. */
static void stop_piece(struct sim *sim)
{
	struct sim_slice *slice = sim->running;
	struct sim_item *item = sim_head(slice);
	u64 ns = sim->now_ns - sim->piece_start_ns;

	if (ns > sim->piece_overhead_ns)
		item->left_ns -= ns - sim->piece_overhead_ns;
	sim->running = NULL;
	sim->interrupted = item->left_ns;
	if (sim->scheduler->ran)
		sim->scheduler->ran(sim, slice, ns);
	if (!item->left_ns)
		finish_item(sim, slice);
	sim_settle(sim, slice);
}

/* Stop executing, and discard the kernel. */
void sim_drop_piece(struct sim *sim)
{
	struct sim_slice *slice = sim->running;

	sim->running = NULL;
	sim->interrupted = false;
	if (sim->scheduler->ran)
		sim->scheduler->ran(sim, slice, sim->now_ns - sim->piece_start_ns);
}

static u64 switch_cost_ns(const struct sim *sim)
{
	u64 ns = sim->model.switch_cost_ns;

	if (sim->interrupted && sim->model.kind == SIM_PREEMPTIBLE)
		ns += sim->model.preempt_latency_ns;
	return ns;
}

/* Return how much of @item fits; add the cost of a split to *@overhead_ns. */
static u64 piece_of(const struct sim *sim, const struct sim_item *item,
		    u64 limit_ns, u64 *overhead_ns)
{
	u64 cost_ns = *overhead_ns, room_ns;

	if (sim->model.kind == SIM_NON_PREEMPTIBLE || limit_ns == SIM_NO_LIMIT)
		return item->left_ns;
	room_ns = limit_ns > cost_ns ? limit_ns - cost_ns : 0;
	room_ns = min(room_ns, sim->model.max_chunk_ns);
	if (item->left_ns <= room_ns)
		return item->left_ns;
	cost_ns += sim->model.split_cost_ns;
	room_ns = limit_ns > cost_ns ? limit_ns - cost_ns : 0;
	room_ns = min(room_ns, sim->model.max_chunk_ns);
	room_ns = max(room_ns, sim->model.min_chunk_ns);
	if (item->left_ns <= room_ns)
		return item->left_ns;
	*overhead_ns = cost_ns;
	return room_ns;
}

static void start_piece(struct sim *sim, struct sim_slice *slice, u64 limit_ns)
{
	struct sim_item *item = sim_head(slice);
	u64 overhead_ns = 0, wait_ns;

	if (slice != sim->last) {
		overhead_ns = switch_cost_ns(sim);
		sim->counters.switches++;
		slice->counters.switches++;
		sim->last = slice;
	}
	if (item->start_ns == SIM_NEVER) {
		item->start_ns = sim->now_ns;
		wait_ns = sim->now_ns - item->ready_ns;
		slice->counters.wait_ns += wait_ns;
		slice->counters.max_wait_ns = max(slice->counters.max_wait_ns, wait_ns);
		if (slice->request.start_ns == SIM_NEVER)
			slice->request.start_ns = sim->now_ns;
	}
	sim->counters.decisions++;
	sim->piece_end_ns = sim->now_ns + piece_of(sim, item, limit_ns, &overhead_ns);
	sim->piece_end_ns += overhead_ns;
	sim->piece_start_ns = sim->now_ns;
	sim->piece_overhead_ns = overhead_ns;
	sim->running = slice;
	mix(sim, sim->now_ns);
	mix(sim, sim->piece_end_ns);
	mix(sim, slice->index);
}

static void offer_engine(struct sim *sim, u32 reason)
{
	struct sim_decision decision = {
		.limit_ns = SIM_NO_LIMIT,
		.wake_at_ns = SIM_NEVER,
		.reason = reason,
	};

	sim->dirty = false;
	sim->counters.picks++;
	sim->scheduler->pick(sim, &decision);
	if (sim->run_slice &&
	    (decision.run_ended || decision.slice != sim->run_slice))
		sim_end_run(sim, decided_reason(sim, &decision));
	if (!sim->run_slice && decision.slice) {
		sim->run_slice = decision.slice;
		sim->run_start_ns = sim->now_ns;
		sim->run_timeslice_ns = decision.timeslice_ns;
	}
	sim->holder = decision.holder;
	sim->wake_at_ns = SIM_NEVER;
	if (decision.slice)
		start_piece(sim, decision.slice, decision.limit_ns);
	else if (decision.wake_at_ns != SIM_NEVER)
		sim->wake_at_ns = max(decision.wake_at_ns, sim->now_ns + 1);
}

static u64 next_event_ns(const struct sim *sim)
{
	const struct sim_slice *first = sim_first_event(sim);
	u64 at_ns = sim->running ? sim->piece_end_ns : sim->wake_at_ns;

	at_ns = min(at_ns, sim->timer_ns);
	if (first)
		at_ns = min(at_ns, first->event_ns);
	if (!sim->running && sim->dirty)
		at_ns = sim->now_ns;
	return max(at_ns, sim->now_ns);
}

static void run_hosts(struct sim *sim)
{
	struct sim_slice *slice;

	while ((slice = sim_first_event(sim)) && slice->event_ns <= sim->now_ns) {
		sim_cancel_event(sim, slice);
		sim_host_go_on(sim, slice);
		sim_settle(sim, slice);
	}
}

static void run_timer(struct sim *sim)
{
	if (sim->timer_ns > sim->now_ns)
		return;
	sim->timer_ns = SIM_NEVER;
	sim->dirty = true;
	sim->scheduler->timer(sim);
}

static bool is_preempted(struct sim *sim)
{
	return sim->dirty && sim->model.kind == SIM_PREEMPTIBLE &&
	       sim->scheduler->preempts && sim->scheduler->preempts(sim);
}

/* Process everything that happens at sim->now_ns. */
static void happen(struct sim *sim)
{
	u32 reason = VGPU_RUN_TIMESLICE;
	bool ended = false;

	run_hosts(sim);
	run_timer(sim);
	if (sim->running) {
		ended = sim->piece_end_ns == sim->now_ns;
		if (!ended && is_preempted(sim)) {
			sim->counters.preemptions++;
			reason = SIM_RUN_PREEMPTED;
			ended = true;
		}
		if (ended)
			stop_piece(sim);
		sim->dirty = sim->dirty && !sim->running;
	}
	if (!sim->running &&
	    (ended || sim->dirty || sim->wake_at_ns <= sim->now_ns))
		offer_engine(sim, reason);
}

int sim_run(struct sim *sim, u64 until_ns)
{
	u64 at_ns;

	while (!sim->error && (at_ns = next_event_ns(sim)) < until_ns) {
		advance(sim, at_ns);
		happen(sim);
	}
	if (!sim->error)
		advance(sim, until_ns);
	return sim->error;
}
