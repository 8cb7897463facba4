// SPDX-License-Identifier: Apache-2.0
/*
 * Host programs: when a slice's next kernel is launched.  The rules are in
 * vgpumgr/sim/sources.py.
 *
 * A host performs all steps of one moment together: steps that take no time are
 * no events.  Events of equal time happen in the order in which they were set.
 */
#include "sim.h"

static bool comes_before(const struct sim_slice *a, const struct sim_slice *b)
{
	if (a->event_ns != b->event_ns)
		return a->event_ns < b->event_ns;
	return a->event_seq < b->event_seq;
}

/* Heap indexes count from 1; the parent of index i is i / 2. */
static void put_at(struct sim *sim, struct sim_slice *slice, u32 place)
{
	sim->heap[place] = slice;
	slice->heap_place = place;
}

static void sift_up(struct sim *sim, struct sim_slice *slice, u32 place)
{
	while (place > 1 && comes_before(slice, sim->heap[place / 2])) {
		put_at(sim, sim->heap[place / 2], place);
		place /= 2;
	}
	put_at(sim, slice, place);
}

static void sift_down(struct sim *sim, struct sim_slice *slice, u32 place)
{
	u32 child;

	while ((child = 2 * place) <= sim->nr_events) {
		if (child < sim->nr_events &&
		    comes_before(sim->heap[child + 1], sim->heap[child]))
			child++;
		if (!comes_before(sim->heap[child], slice))
			break;
		put_at(sim, sim->heap[child], place);
		place = child;
	}
	put_at(sim, slice, place);
}

struct sim_slice *sim_first_event(const struct sim *sim)
{
	return sim->nr_events ? sim->heap[1] : NULL;
}

void sim_cancel_event(struct sim *sim, struct sim_slice *slice)
{
	u32 place = slice->heap_place;
	struct sim_slice *last;

	if (!place)
		return;
	slice->heap_place = 0;
	last = sim->heap[sim->nr_events--];
	if (last == slice)
		return;
	if (place > 1 && comes_before(last, sim->heap[place / 2]))
		sift_up(sim, last, place);
	else
		sift_down(sim, last, place);
}

static void wait_until(struct sim *sim, struct sim_slice *slice, u64 at_ns)
{
	slice->wait = SIM_WAIT_TIME;
	slice->event_ns = at_ns;
	slice->event_seq = sim->event_seq++;
	sift_up(sim, slice, ++sim->nr_events);
}

/* splitmix64 (Steele, Lea, Flood, 2014) */
static u64 random_u64(u64 *state)
{
	u64 z = *state += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

/*
 * Return @ns with a bell-shaped variation, whose standard deviation is
 * @permille of @ns.  It uses the sum of four uniform 16-bit numbers, which has
 * mean 131070 and deviation 37837.
 */
static u64 varied(struct sim_slice *slice, u64 ns, u32 permille)
{
	s64 sum = 0, ppm;
	u64 bits;
	int i;

	if (!permille || !ns)
		return ns;
	bits = random_u64(&slice->random);
	for (i = 0; i < 4; i++)
		sum += (bits >> (16 * i)) & 0xffff;
	ppm = (sum - 131070) * (s64)permille * 1000 / 37837;
	ns += (s64)(ns / 1000000) * ppm + (s64)(ns % 1000000) * ppm / 1000000;
	return max(ns, (u64)1);
}

/* Wait for host time; return false if there is none to wait for. */
static bool pause_for(struct sim *sim, struct sim_slice *slice, u64 ns)
{
	ns = varied(slice, ns, slice->program.host_jitter_permille);
	if (ns)
		wait_until(sim, slice, sim->now_ns + ns);
	return ns;
}

static void begin_request(struct sim_slice *slice, u64 arrival_ns)
{
	const struct sim_program *program = &slice->program;

	slice->variant = slice->counters.requests_begun++ % program->nr_requests;
	slice->kernel = program->request_first[slice->variant];
	slice->request = (struct sim_request){
		.arrival_ns = arrival_ns,
		.start_ns = SIM_NEVER,
	};
}

static void launch(struct sim *sim, struct sim_slice *slice)
{
	const struct sim_program *program = &slice->program;
	struct sim_item *item = &slice->ring[(slice->head + slice->queued) &
					     slice->ring_mask];
	u64 work_ns = varied(slice, program->work_ns[slice->kernel],
			     program->work_jitter_permille);

	if (sim->model.kind == SIM_NON_PREEMPTIBLE)
		work_ns = min(work_ns, sim->model.max_chunk_ns);
	*item = (struct sim_item){
		.submitted_ns = sim->now_ns,
		.seq = sim->submit_seq++,
		.ready_ns = sim->now_ns,
		.start_ns = SIM_NEVER,
		.work_ns = work_ns,
		.left_ns = work_ns,
		.kernel = slice->kernel,
	};
	slice->queued++;
	if (sim->scheduler->submitted)
		sim->scheduler->submitted(sim, slice, item);
}

static bool is_last_of_request(const struct sim_slice *slice)
{
	const struct sim_program *program = &slice->program;

	return !program->endless &&
	       slice->kernel + 1 == program->request_first[slice->variant + 1];
}

static void next_kernel(struct sim_slice *slice)
{
	if (++slice->kernel == slice->program.nr_kernels)
		slice->kernel = 0;
}

static void finish_request(struct sim *sim, struct sim_slice *slice)
{
	struct sim_request *record = sim_log_add(sim, &slice->requests);

	slice->counters.requests_done++;
	slice->request.end_ns = sim->now_ns;
	if (record)
		*record = slice->request;
}

/* Return whether the host has to wait before it can launch the kernel. */
static bool must_wait(struct sim *sim, struct sim_slice *slice)
{
	u64 again_ns;

	if (slice->queued == slice->program.queue_depth) {
		slice->wait = SIM_WAIT_ROOM;
		return true;
	}
	if (!sim->scheduler->gate)
		return false;
	again_ns = sim->scheduler->gate(sim, slice, slice->kernel);
	if (again_ns <= sim->now_ns)
		return false;
	if (again_ns == SIM_NEVER)
		slice->wait = SIM_WAIT_GATE;
	else
		wait_until(sim, slice, again_ns);
	return true;
}

/* Take one step; return false if the host now waits for something. */
static bool step(struct sim *sim, struct sim_slice *slice)
{
	const struct sim_program *program = &slice->program;
	u64 at_ns = sim->now_ns, ns;

	switch (slice->phase) {
	case SIM_BEGIN_REQUEST:
		if (slice->counters.requests_begun == program->count) {
			slice->phase = SIM_FINISHED;
			sim->dirty = true;
			break;
		}
		if (program->is_open)
			at_ns = program->arrivals_ns[slice->counters.requests_begun];
		if (at_ns > sim->now_ns) {
			wait_until(sim, slice, at_ns);
			return false;
		}
		begin_request(slice, at_ns);
		slice->phase = SIM_LAUNCH;
		return !pause_for(sim, slice, program->launch_ns[slice->kernel]);
	case SIM_LAUNCH:
		if (must_wait(sim, slice))
			return false;
		launch(sim, slice);
		if (program->sync[slice->kernel] || is_last_of_request(slice)) {
			slice->phase = SIM_DRAINED;
			slice->wait = SIM_WAIT_DRAIN;
			return false;
		}
		next_kernel(slice);
		return !pause_for(sim, slice, program->launch_ns[slice->kernel]);
	case SIM_DRAINED:
		ns = program->sync_ns[slice->kernel];
		if (is_last_of_request(slice)) {
			finish_request(sim, slice);
			slice->phase = SIM_BEGIN_REQUEST;
			ns += program->is_open ? 0 : program->think_ns[slice->variant];
		} else {
			next_kernel(slice);
			slice->phase = SIM_LAUNCH;
			ns += program->launch_ns[slice->kernel];
		}
		return !pause_for(sim, slice, ns);
	case SIM_FINISHED:
		break;
	}
	slice->wait = SIM_WAIT_NOTHING;
	return false;
}

void sim_host_go_on(struct sim *sim, struct sim_slice *slice)
{
	sim->counters.events++;
	while (step(sim, slice))
		;
}

/* Called when a kernel of the slice is done and has left the queue. */
void sim_host_after_item(struct sim *sim, struct sim_slice *slice)
{
	if (slice->wait == SIM_WAIT_ROOM ||
	    (slice->wait == SIM_WAIT_DRAIN && !slice->queued))
		sim_host_go_on(sim, slice);
}

void sim_host_begin(struct sim *sim, struct sim_slice *slice)
{
	u64 start_ns = max(slice->program.start_ns, sim->now_ns);
	u64 state = sim->seed;

	slice->random = random_u64(&state) ^ slice->index;
	slice->phase = SIM_BEGIN_REQUEST;
	wait_until(sim, slice, start_ns);
}

/* Called by a scheduler whose gate returned SIM_NEVER. */
void sim_open_gate(struct sim *sim, struct sim_slice *slice)
{
	if (slice->wait == SIM_WAIT_GATE)
		wait_until(sim, slice, sim->now_ns);
}
