// SPDX-License-Identifier: Apache-2.0
/*
 * "vgpumgr": the scheduler core of the kernel module itself (kmod/sched).  It
 * is told when a kernel becomes the first in its queue, and when a kernel is
 * done.  When the core ends a parking, it charges idle time to slices (its
 * invariant 16); here that time counts as idle.
 */
#include "schedulers.h"

struct core_slice {
	struct vgpu_slice core;
	struct sim_slice *sim;
};

int sim_core_fault(enum vgpu_sched_field field)
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

	params.policy = sim->parameters[0];
	params.places = sim->parameters[1];
	params.reserve_limit_permille = sim->parameters[2];
	return sim_core_fault(vgpu_sched_init(sim->sched, &params, sim->now_ns));
}

static int core_add_group(struct sim *sim, struct sim_group *group)
{
	return sim_core_fault(vgpu_group_add(sim->sched, group->sched, &group->params,
				    sim->now_ns));
}

static int core_update_group(struct sim *sim, struct sim_group *group,
			     const struct vgpu_group_params *params)
{
	return sim_core_fault(vgpu_group_update(sim->sched, group->sched, params,
				       sim->now_ns));
}

static void core_remove_group(struct sim *sim, struct sim_group *group)
{
	vgpu_group_remove(sim->sched, group->sched, sim->now_ns);
}

static int core_add_slice(struct sim *sim, struct sim_slice *slice)
{
	((struct core_slice *)slice->sched)->sim = slice;
	return sim_core_fault(vgpu_slice_add(sim->sched, slice->group->sched,
				    core_of(slice), &slice->params, sim->now_ns));
}

static int core_update_slice(struct sim *sim, struct sim_slice *slice,
			     const struct vgpu_slice_params *params)
{
	return sim_core_fault(vgpu_slice_update(sim->sched, core_of(slice), params,
				       sim->now_ns));
}

static void core_remove_slice(struct sim *sim, struct sim_slice *slice)
{
	vgpu_slice_remove(sim->sched, core_of(slice), sim->now_ns);
}

/*
 * The host's statements about a kernel.  On a non-preemptible engine the
 * core would refuse a hint above the chunk, so the hint is limited.
 */
static struct vgpu_item_info info_of(const struct sim *sim,
				     const struct sim_slice *slice,
				     const struct sim_item *item)
{
	const struct sim_program *program = &slice->program;
	u64 hint_ns = program->hint_ns[item->kernel];
	u32 claims = program->claims[item->kernel];
	bool more = claims & SIM_CLAIM_MORE && !(claims & SIM_CLAIM_END);

	if (sim->model.kind == SIM_NON_PREEMPTIBLE)
		hint_ns = min(hint_ns, sim->model.max_chunk_ns);
	return (struct vgpu_item_info){
		.kernel_id = program->kernel_id[item->kernel],
		.flags = more ? VGPU_ITEM_MORE : 0,
		.hint_ns = hint_ns,
	};
}

static void core_wake(struct sim *sim, struct sim_slice *slice)
{
	struct vgpu_item_info info = info_of(sim, slice, sim_head(slice));

	vgpu_slice_announce(sim->sched, core_of(slice), &info, sim->now_ns);
}

static void core_next(struct sim *sim, struct sim_slice *slice,
		      const struct sim_item *item)
{
	struct vgpu_item_info info;

	if (item)
		info = info_of(sim, slice, item);
	vgpu_slice_item_done(sim->sched, core_of(slice), item ? &info : NULL,
			     sim->now_ns);
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
	decision->holder = sim_slice_of(out.payer);
	decision->run_ended = out.ended.valid || decision->slice != sim->run_slice;
	decision->reason = out.ended.valid ? out.ended.reason : SIM_RUN_SLICE;
	if (out.slice)
		decision->timeslice_ns = out.slice->group->params.timeslice_ns;
}

static bool core_preempts(struct sim *sim)
{
	return vgpu_sched_is_urgent(sim->sched);
}

struct vgpu_group *sim_core_group(struct sim *sim, u32 index)
{
	struct vgpu_group *group = sim->groups[index]->sched;

	if ((sim->scheduler != &sim_core && sim->scheduler != &sim_lease) ||
	    sim->groups[index]->removed)
		return NULL;
	vgpu_sched_advance(sim->sched, sim->now_ns);
	vgpu_group_settle(group);
	return group;
}

static const struct sim_parameter parameters[] = {
	{ "policy", VGPU_POLICY_BEST_EFFORT, VGPU_POLICY_BEST_EFFORT,
	  VGPU_POLICY_FIXED_SHARE },
	{ "places", 0, 0, VGPU_PLACES_MAX },
	{ "reserve_limit_permille", 0, 0, VGPU_RESERVE_LIMIT_MAX },
	{ NULL, 0, 0, 0 },
};

const struct sim_scheduler sim_core = {
	.name = "vgpumgr",
	.parameters = parameters,
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
	.next = core_next,
	.pick = core_pick,
	.preempts = core_preempts,
};
