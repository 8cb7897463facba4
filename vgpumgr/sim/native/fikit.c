// SPDX-License-Identifier: Apache-2.0
/*
 * "fikit": fills the gaps between kernels, based on the gaps' means (arXiv
 * 2311.10359; the algorithm as far as abstract and summaries describe it).  The
 * task of the best priority that is in the middle of a request holds the
 * engine, and its kernels start at once.  In the gap after one of its kernels,
 * other tasks may run.  Among those of the best priority, the kernel with the
 * longest mean time that fits the rest of the mean gap is chosen.  None is
 * chosen if less than eps_ns is left.  A gap that has exceeded its mean is not
 * filled.  Between requests, the next task holds the engine.
 *
 * Before a task may share, its means are measured while it runs alone, for 20
 * requests.  Here a simulation measures them.
 */
#include <stdlib.h>

#include "schedulers.h"

#define MEASURED_REQUESTS	20u
/* Limit of a measurement, because a backlog has no requests. */
#define MEASURED_ITEMS		100000u
#define MEASURED_S		3600

struct fikit_mean {
	u64 work_ns;
	u64 gap_ns;
	u64 works;
	u64 gaps;
};

struct fikit_client {
	struct fikit_mean *kernels;	/* by index in the program */
	u32 last_kernel;
	u64 done_ns;
};

static struct fikit_client *client_of(const struct sim_slice *slice)
{
	return slice->sched;
}

static u64 mean_work_ns(const struct sim_slice *slice)
{
	const struct fikit_mean *mean =
		&client_of(slice)->kernels[sim_head(slice)->kernel];

	return mean->works ? mean->work_ns / mean->works : SIM_NEVER;
}

/* State of the measurement's scheduler, a FIFO of one client. */
struct measurement {
	struct fikit_mean *kernels;
	u32 last_kernel;
	u64 done_ns;
	u64 items;
	bool in_request;
};

static void measure_submitted(struct sim *sim, struct sim_slice *slice,
			      const struct sim_item *item)
{
	struct measurement *state = sim->sched;
	struct fikit_mean *mean;

	if (!state->in_request || slice->queued > 1)
		return;
	mean = &state->kernels[state->last_kernel];
	mean->gap_ns += item->submitted_ns - state->done_ns;
	mean->gaps++;
}

static void measure_done(struct sim *sim, struct sim_slice *slice,
			 const struct sim_item *item)
{
	struct measurement *state = sim->sched;
	struct fikit_mean *mean = &state->kernels[item->kernel];
	const struct sim_program *program = &slice->program;

	mean->work_ns += item->work_ns;
	mean->works++;
	state->last_kernel = item->kernel;
	state->done_ns = sim->now_ns;
	state->in_request = program->endless ||
		item->kernel + 1 != program->request_first[slice->variant + 1];
	state->items++;
	if (slice->queued > 1)
		mean->gaps++;
}

static void measure_pick(struct sim *sim, struct sim_decision *decision)
{
	decision->slice = sim_oldest_launch(sim, NULL);
}

static const struct sim_scheduler measurement = {
	.name = "measurement",
	.state_size = sizeof(struct measurement),
	.submitted = measure_submitted,
	.item_done = measure_done,
	.pick = measure_pick,
};

/* Run the program alone, its requests back to back without a pause. */
static int measure(const struct sim *sim, struct sim_slice *slice,
		   struct fikit_mean *kernels)
{
	struct sim_program program = slice->program;
	struct measurement *state;
	struct sim *alone;
	u64 *arrivals_ns, no_parameter = 0;
	int error, i;

	program.is_open = true;
	program.count = MEASURED_REQUESTS * (u64)program.nr_requests;
	program.start_ns = 0;
	arrivals_ns = calloc(program.count, sizeof(*arrivals_ns));
	if (!arrivals_ns)
		return SIM_NO_MEMORY;
	program.arrivals_ns = arrivals_ns;
	alone = sim_new(&sim->model, &measurement, &no_parameter, sim->seed, &error);
	if (!alone)
		goto out;
	state = alone->sched;
	state->kernels = kernels;
	error = sim_add_group(alone, &slice->group->params, 0);
	if (error >= 0)
		error = sim_add_slice(alone, 0, &slice->params, &program);
	for (i = 0; error >= 0 && i < MEASURED_S; i++) {
		error = sim_run(alone, alone->now_ns + NS_PER_S);
		if (alone->slices[0]->phase == SIM_FINISHED ||
		    state->items >= MEASURED_ITEMS)
			break;
	}
	sim_free(alone);
out:
	free(arrivals_ns);
	return min(error, 0);
}

static int fikit_add_slice(struct sim *sim, struct sim_slice *slice)
{
	struct fikit_client *client = client_of(slice);
	int error;

	client->kernels = calloc(slice->program.nr_kernels,
				 sizeof(*client->kernels));
	if (!client->kernels)
		return SIM_NO_MEMORY;
	error = measure(sim, slice, client->kernels);
	if (error)
		free(client->kernels);
	return error;
}

static void fikit_destroy(struct sim *sim)
{
	u32 i;

	for (i = 0; i < sim->nr_slices; i++)
		free(client_of(sim->slices[i])->kernels);
}

static void fikit_item_done(struct sim *sim, struct sim_slice *slice,
			    const struct sim_item *item)
{
	client_of(slice)->last_kernel = item->kernel;
	client_of(slice)->done_ns = sim->now_ns;
}

/* The scheduler knows a request from its first launch on. */
static bool is_active(const struct sim *sim, const struct sim_slice *slice)
{
	return slice->ready || (sim_is_mid_request(sim, slice) &&
				slice->request.start_ns != SIM_NEVER);
}

static bool holds(const struct sim *sim, const struct sim_slice *slice)
{
	return slice->group->priority == sim_best_priority(sim, is_active);
}

/* Return the rest of the gap that the holders are in. */
static u64 gap_left_ns(const struct sim *sim)
{
	const struct fikit_client *client, *latest = NULL;
	const struct fikit_mean *mean;
	u64 gap_ns, elapsed_ns;
	u32 i;

	for (i = 0; i < sim->nr_slices; i++) {
		client = client_of(sim->slices[i]);
		if (is_active(sim, sim->slices[i]) && holds(sim, sim->slices[i]) &&
		    (!latest || client->done_ns > latest->done_ns))
			latest = client;
	}
	if (!latest)
		return 0;
	mean = &latest->kernels[latest->last_kernel];
	gap_ns = mean->gaps ? mean->gap_ns / mean->gaps : 0;
	elapsed_ns = sim->now_ns - latest->done_ns;
	return gap_ns > elapsed_ns ? gap_ns - elapsed_ns : 0;
}

static struct sim_slice *best_fit(const struct sim *sim, u64 gap_ns)
{
	struct sim_slice *slice, *best = NULL;
	u32 i;

	for (i = 0; i < sim->nr_slices; i++) {
		slice = sim->slices[i];
		if (!slice->ready || mean_work_ns(slice) > gap_ns)
			continue;
		if (!best || slice->group->priority < best->group->priority ||
		    (slice->group->priority == best->group->priority &&
		     mean_work_ns(slice) > mean_work_ns(best)))
			best = slice;
	}
	return best;
}

static void fikit_pick(struct sim *sim, struct sim_decision *decision)
{
	u64 gap_ns;

	decision->slice = sim_oldest_launch(sim, holds);
	if (decision->slice)
		return;
	gap_ns = gap_left_ns(sim);
	if (gap_ns >= sim->parameters[0])
		decision->slice = best_fit(sim, gap_ns);
}

static const struct sim_parameter parameters[] = {
	{ "eps_ns", 100 * NS_PER_US, 1, NS_PER_S },
	{ NULL, 0, 0, 0 },
};

const struct sim_scheduler sim_fikit = {
	.name = "fikit",
	.parameters = parameters,
	.slice_size = sizeof(struct fikit_client),
	.add_slice = fikit_add_slice,
	.destroy = fikit_destroy,
	.item_done = fikit_item_done,
	.pick = fikit_pick,
};
