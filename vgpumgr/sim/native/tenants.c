// SPDX-License-Identifier: Apache-2.0
/* Creation and removal of simulations, groups and slices. */
#include <stdlib.h>

#include "sim.h"

static int fault(enum vgpu_sched_field field)
{
	return field ? SIM_BAD_FIELD - (int)field : 0;
}

/* The highest cost of starting a piece. */
static u64 overhead_ns(const struct sim_model *model)
{
	return model->switch_cost_ns + model->split_cost_ns +
	       model->preempt_latency_ns;
}

/*
 * The engine as the core sees it.  For the core, a piece includes the cost of
 * starting it, so that no piece exceeds a limit of the core.  The shortest piece
 * is longer than this cost; otherwise it would not be worth starting.
 */
struct vgpu_sched_params sim_core_params(const struct sim_model *model)
{
	return (struct vgpu_sched_params){
		.max_chunk_ns = model->max_chunk_ns + overhead_ns(model),
		.min_chunk_ns = model->min_chunk_ns + overhead_ns(model),
		.switch_cost_ns = model->switch_cost_ns,
		.splits = model->kind != SIM_NON_PREEMPTIBLE,
	};
}

static void free_group(struct sim_group *group)
{
	free(group->sched);
	free(group);
}

static void free_slice(struct sim_slice *slice)
{
	sim_log_free(&slice->requests);
	free(slice->ring);
	free(slice->sched);
	free(slice);
}

void sim_free(struct sim *sim)
{
	u32 i;

	if (sim->scheduler->destroy)
		sim->scheduler->destroy(sim);
	for (i = 0; i < sim->nr_slices; i++)
		free_slice(sim->slices[i]);
	for (i = 0; i < sim->nr_groups; i++)
		free_group(sim->groups[i]);
	sim_log_free(&sim->runs);
	sim_log_free(&sim->items);
	free(sim->slices);
	free(sim->groups);
	free(sim->heap);
	free(sim->sched);
	free(sim);
}

struct sim *sim_new(const struct sim_model *model,
		    const struct sim_scheduler *scheduler,
		    const u64 *parameters, u64 seed, int *error)
{
	struct vgpu_sched_params core_params = sim_core_params(model);
	struct sim *sim = calloc(1, sizeof(*sim));
	int i;

	*error = SIM_NO_MEMORY;
	if (!sim)
		return NULL;
	sim->model = *model;
	sim->scheduler = scheduler;
	sim->seed = seed;
	sim->wake_at_ns = SIM_NEVER;
	sim->timer_ns = SIM_NEVER;
	sim_log_init(&sim->runs, sizeof(struct sim_run));
	sim_log_init(&sim->items, sizeof(struct sim_item_record));
	for (i = 0; scheduler->parameters && scheduler->parameters[i].name; i++)
		sim->parameters[i] = parameters[i];
	if (scheduler->state_size) {
		sim->sched = calloc(1, scheduler->state_size);
		if (!sim->sched)
			goto err_free;
	}
	*error = fault(vgpu_sched_init(&sim->checks, &core_params, 0));
	if (!*error && scheduler->create)
		*error = scheduler->create(sim);
	if (*error)
		goto err_free;
	return sim;

err_free:
	free(sim->sched);
	free(sim);
	return NULL;
}

/* Return @array with room for @nr pointers, or NULL with nothing changed. */
static void *grown(void *array, u32 nr)
{
	/* The allocated size is a power of two. */
	if (nr > 1 && (nr - 1) & (nr - 2))
		return array;
	return realloc(array, sizeof(void *) * (nr > 1 ? 2 * (u64)(nr - 1) : 1));
}

/*
 * Baselines accept the parameters of the core and refuse the same values.  They
 * ignore bands, modes and reservations, which they do not have.
 */
static int check_group(const struct sim *sim,
		       const struct vgpu_group_params *params)
{
	struct vgpu_group_params plain = {
		.weight = params->weight,
		.timeslice_ns = params->timeslice_ns,
		.cap_ns = params->cap_ns,
		.cap_period_ns = params->cap_period_ns,
		.burst_ns = params->burst_ns,
	};

	return fault(vgpu_group_params_check(&sim->checks, NULL, &plain));
}

/* Allocate a group that is not linked anywhere yet; or return NULL. */
static struct sim_group *make_group(struct sim *sim)
{
	struct sim_group *group = calloc(1, sizeof(*group));

	if (group && sim->scheduler->group_size) {
		group->sched = calloc(1, sim->scheduler->group_size);
		if (!group->sched) {
			free_group(group);
			return NULL;
		}
	}
	return group;
}

int sim_add_group(struct sim *sim, const struct vgpu_group_params *params,
		  u32 priority)
{
	struct sim_group **groups, *group;
	int error;

	groups = grown(sim->groups, sim->nr_groups + 1);
	if (!groups)
		return SIM_NO_MEMORY;
	sim->groups = groups;
	group = make_group(sim);
	if (!group)
		return SIM_NO_MEMORY;
	group->index = sim->nr_groups;
	group->params = *params;
	group->priority = priority;
	error = sim->scheduler->add_group ? sim->scheduler->add_group(sim, group) :
					    check_group(sim, params);
	if (error) {
		free_group(group);
		return error;
	}
	sim->groups[sim->nr_groups++] = group;
	return (int)group->index;
}

int sim_update_group(struct sim *sim, u32 index,
		     const struct vgpu_group_params *params, u32 priority)
{
	struct sim_group *group = sim->groups[index];
	int error;

	error = sim->scheduler->update_group ?
		sim->scheduler->update_group(sim, group, params) :
		check_group(sim, params);
	if (error)
		return error;
	group->params = *params;
	group->priority = priority;
	sim->dirty = true;
	return 0;
}

int sim_remove_group(struct sim *sim, u32 index)
{
	struct sim_group *group = sim->groups[index];

	if (group->nr_slices)
		return SIM_HAS_SLICES;
	if (sim->scheduler->remove_group)
		sim->scheduler->remove_group(sim, group);
	group->removed = true;
	return 0;
}

static bool is_too_long(const struct sim *sim, const struct sim_program *program)
{
	u32 i;

	if (sim->model.kind != SIM_NON_PREEMPTIBLE)
		return false;
	for (i = 0; i < program->nr_kernels; i++)
		if (program->work_ns[i] > sim->model.max_chunk_ns)
			return true;
	return false;
}

/* Allocate a slice that is not linked anywhere yet; or return NULL. */
static struct sim_slice *make_slice(struct sim *sim,
				    const struct sim_program *program)
{
	struct sim_slice *slice = calloc(1, sizeof(*slice));
	u32 room = 1;

	if (!slice)
		return NULL;
	while (room < program->queue_depth)
		room *= 2;
	slice->ring_mask = room - 1;
	slice->ring = malloc(sizeof(*slice->ring) * room);
	if (sim->scheduler->slice_size)
		slice->sched = calloc(1, sim->scheduler->slice_size);
	if (!slice->ring || (sim->scheduler->slice_size && !slice->sched)) {
		free_slice(slice);
		return NULL;
	}
	sim_log_init(&slice->requests, sizeof(struct sim_request));
	slice->program = *program;
	return slice;
}

int sim_add_slice(struct sim *sim, u32 group,
		  const struct vgpu_slice_params *params,
		  const struct sim_program *program)
{
	struct sim_slice **slices, **heap, *slice;
	int error = fault(vgpu_slice_params_check(&sim->checks, params));

	if (error)
		return error;
	if (is_too_long(sim, program))
		return SIM_TOO_LONG;
	slices = grown(sim->slices, sim->nr_slices + 1);
	if (!slices)
		return SIM_NO_MEMORY;
	sim->slices = slices;
	heap = grown(sim->heap, sim->nr_slices + 2);
	if (!heap)
		return SIM_NO_MEMORY;
	sim->heap = heap;
	slice = make_slice(sim, program);
	if (!slice)
		return SIM_NO_MEMORY;
	slice->index = sim->nr_slices;
	slice->group = sim->groups[group];
	slice->params = *params;
	error = sim->scheduler->add_slice ? sim->scheduler->add_slice(sim, slice) : 0;
	if (error) {
		free_slice(slice);
		return error;
	}
	sim->slices[sim->nr_slices++] = slice;
	slice->group->nr_slices++;
	sim_host_begin(sim, slice);
	return (int)slice->index;
}

int sim_update_slice(struct sim *sim, u32 index,
		     const struct vgpu_slice_params *params)
{
	struct sim_slice *slice = sim->slices[index];
	int error = fault(vgpu_slice_params_check(&sim->checks, params));

	if (error)
		return error;
	error = sim->scheduler->update_slice ?
		sim->scheduler->update_slice(sim, slice, params) : 0;
	if (error)
		return error;
	slice->params = *params;
	sim->dirty = true;
	return 0;
}

void sim_remove_slice(struct sim *sim, u32 index)
{
	struct sim_slice *slice = sim->slices[index];

	if (sim->running == slice)
		sim_drop_piece(sim);
	if (sim->run_slice == slice)
		sim_end_run(sim, VGPU_RUN_REMOVED);
	if (sim->holder == slice)
		sim->holder = NULL;
	if (sim->last == slice)
		sim->last = NULL;
	sim_cancel_event(sim, slice);
	slice->phase = SIM_FINISHED;
	slice->wait = SIM_WAIT_NOTHING;
	slice->queued = 0;
	slice->ready = false;
	if (sim->scheduler->remove_slice)
		sim->scheduler->remove_slice(sim, slice);
	slice->removed = true;
	slice->group->nr_slices--;
	sim->dirty = true;
}

void sim_park_slice(struct sim *sim, u32 index, bool parked)
{
	struct sim_slice *slice = sim->slices[index];

	slice->parked = parked;
	sim_settle(sim, slice);
}
