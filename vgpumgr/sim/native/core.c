// SPDX-License-Identifier: Apache-2.0
/*
 * "vgpumgr": the scheduler core of the kernel module itself (kmod/sched), called
 * as kmod/engine.c calls it.
 */
#include "sim.h"

struct core_slice {
	struct vgpu_slice core;
	struct sim_slice *sim;
};

static int fault(enum vgpu_sched_field field)
{
	return field ? SIM_BAD_FIELD - (int)field : 0;
}

static struct vgpu_slice *core_of(const struct sim_slice *slice)
{
	return &((struct core_slice *)slice->sched)->core;
}

static struct sim_slice *sim_slice_of(struct vgpu_slice *slice)
{
	return slice ? container_of(slice, struct core_slice, core)->sim : NULL;
}

static int core_create(struct sim *sim)
{
	struct vgpu_sched_params params = sim_core_params(&sim->model);

	return fault(vgpu_sched_init(sim->sched, &params, sim->now_ns));
}

static int core_add_group(struct sim *sim, struct sim_group *group)
{
	return fault(vgpu_group_add(sim->sched, group->sched, &group->params,
				    sim->now_ns));
}

static int core_update_group(struct sim *sim, struct sim_group *group,
			     const struct vgpu_group_params *params)
{
	return fault(vgpu_group_update(sim->sched, group->sched, params,
				       sim->now_ns));
}

static void core_remove_group(struct sim *sim, struct sim_group *group)
{
	vgpu_group_remove(sim->sched, group->sched, sim->now_ns);
}

static int core_add_slice(struct sim *sim, struct sim_slice *slice)
{
	((struct core_slice *)slice->sched)->sim = slice;
	return fault(vgpu_slice_add(sim->sched, slice->group->sched,
				    core_of(slice), &slice->params, sim->now_ns));
}

static int core_update_slice(struct sim *sim, struct sim_slice *slice,
			     const struct vgpu_slice_params *params)
{
	return fault(vgpu_slice_update(sim->sched, core_of(slice), params,
				       sim->now_ns));
}

static void core_remove_slice(struct sim *sim, struct sim_slice *slice)
{
	vgpu_slice_remove(sim->sched, core_of(slice), sim->now_ns);
}

static void core_wake(struct sim *sim, struct sim_slice *slice)
{
	vgpu_slice_wake(sim->sched, core_of(slice), sim->now_ns);
}

static void core_sleep(struct sim *sim, struct sim_slice *slice)
{
	vgpu_slice_sleep(sim->sched, core_of(slice), sim->now_ns);
}

static void core_pick(struct sim *sim, struct sim_decision *decision)
{
	struct vgpu_decision out;

	vgpu_sched_pick(sim->sched, sim->now_ns, &out);
	decision->slice = sim_slice_of(out.slice);
	decision->limit_ns = out.limit_ns;
	decision->wake_at_ns = out.wake_at_ns;
	decision->run_ended = out.ended.valid || decision->slice != sim->run_slice;
	decision->reason = out.ended.valid ? out.ended.reason : SIM_RUN_SLICE;
	if (out.slice)
		decision->timeslice_ns = out.slice->group->params.timeslice_ns;
}

const struct sim_scheduler sim_core = {
	.name = "vgpumgr",
	.state_size = sizeof(struct vgpu_sched),
	.group_size = sizeof(struct vgpu_group),
	.slice_size = sizeof(struct core_slice),
	.create = core_create,
	.add_group = core_add_group,
	.update_group = core_update_group,
	.remove_group = core_remove_group,
	.add_slice = core_add_slice,
	.update_slice = core_update_slice,
	.remove_slice = core_remove_slice,
	.wake = core_wake,
	.sleep = core_sleep,
	.pick = core_pick,
};
