// SPDX-License-Identifier: Apache-2.0
/*
 * "vgpumgr_lease": the scheduler core (kmod/sched), which lends the engine
 * instead of deciding about each kernel (vgpu_lease.h).  The slice that has the
 * lease executes kernel after kernel.  A kernel under way when the lease
 * expires runs to its end.  On an engine that splits or preempts, it stops
 * when the gate closes, which takes max_chunk.  A slice that has run dry under a
 * lease with an end yields at once.
 *
 * A lease is reviewed whenever a kernel is done, not a margin before its end.
 */
#include "schedulers.h"
#include "vgpu_lease.h"

struct lease_slice {
	struct vgpu_slice core;
	struct sim_slice *sim;
	u32 kernel_id;			/* the kernel that ran last */
	bool more;			/* more kernels in its request */
};

/* @sched must be first: sim_core_group() casts the struct to it. */
struct lease_state {
	struct vgpu_sched sched;
	struct vgpu_lease lease;
	u64 dry_since_ns;		/* SIM_NEVER: the lease is in use */
};

static struct lease_slice *lease_slice(const struct sim_slice *slice)
{
	return slice->sched;
}

static struct sim_slice *sim_slice_of(struct vgpu_slice *slice)
{
	return slice ? container_of(slice, struct lease_slice, core)->sim : NULL;
}

/* The slice that has the lease, or NULL. */
static struct sim_slice *lessee(const struct sim *sim)
{
	const struct lease_state *state = sim->sched;

	return sim_slice_of(state->lease.slice);
}

/* Report unused lease time.  Call this before any other call of the core. */
static void settle(struct sim *sim)
{
	struct lease_state *state = sim->sched;

	if (!state->lease.slice || state->dry_since_ns == SIM_NEVER)
		return;
	vgpu_sched_unused(&state->sched, sim->now_ns - state->dry_since_ns, sim->now_ns);
	state->dry_since_ns = sim->now_ns;
}

static int lease_create(struct sim *sim)
{
	struct vgpu_sched_params params = sim_core_params(&sim->model);
	struct lease_state *state = sim->sched;

	/*
	 * Closing the gate takes a chunk on any engine.  A kernel that the gate
	 * stops continues later.
	 */
	params.splits = false;
	params.policy = sim->parameters[0];
	params.places = sim->parameters[1];
	params.reserve_limit_permille = sim->parameters[2];
	state->dry_since_ns = SIM_NEVER;
	return sim_core_fault(vgpu_sched_init(&state->sched, &params, sim->now_ns));
}

static int lease_add_group(struct sim *sim, struct sim_group *group)
{
	settle(sim);
	return sim_core_fault(vgpu_group_add(sim->sched, group->sched, &group->params,
					     sim->now_ns));
}

static int lease_update_group(struct sim *sim, struct sim_group *group,
			      const struct vgpu_group_params *params)
{
	settle(sim);
	return sim_core_fault(vgpu_group_update(sim->sched, group->sched, params,
						sim->now_ns));
}

static void lease_remove_group(struct sim *sim, struct sim_group *group)
{
	settle(sim);
	vgpu_group_remove(sim->sched, group->sched, sim->now_ns);
}

static int lease_add_slice(struct sim *sim, struct sim_slice *slice)
{
	settle(sim);
	lease_slice(slice)->sim = slice;
	return sim_core_fault(vgpu_slice_add(sim->sched, slice->group->sched,
					     &lease_slice(slice)->core, &slice->params,
					     sim->now_ns));
}

static int lease_update_slice(struct sim *sim, struct sim_slice *slice,
			      const struct vgpu_slice_params *params)
{
	settle(sim);
	return sim_core_fault(vgpu_slice_update(sim->sched, &lease_slice(slice)->core,
						params, sim->now_ns));
}

static void lease_remove_slice(struct sim *sim, struct sim_slice *slice)
{
	struct lease_state *state = sim->sched;

	settle(sim);
	if (lessee(sim) == slice)
		state->lease.slice = NULL;
	vgpu_slice_remove(&state->sched, &lease_slice(slice)->core, sim->now_ns);
}

/* A slice that has the lease starts again without a call of the core. */
static void lease_wake(struct sim *sim, struct sim_slice *slice)
{
	const struct sim_program *program = &slice->program;
	u32 kernel = sim_head(slice)->kernel;
	struct vgpu_item_info first = {
		.kernel_id = program->kernel_id[kernel],
		.hint_ns = program->hint_ns[kernel] ? program->hint_ns[kernel] :
						      program->work_ns[kernel],
	};

	settle(sim);
	if (lessee(sim) != slice)
		vgpu_slice_ready(sim->sched, &lease_slice(slice)->core, &first,
				 sim->now_ns);
}

/* Called when the slice's work was withdrawn. */
static void lease_sleep(struct sim *sim, struct sim_slice *slice)
{
	settle(sim);
	if (lessee(sim) != slice)
		vgpu_slice_sleep(sim->sched, &lease_slice(slice)->core, sim->now_ns);
}

static void lease_item_done(struct sim *sim, struct sim_slice *slice,
			    const struct sim_item *item)
{
	u32 claims = slice->program.claims[item->kernel];

	(void)sim;
	lease_slice(slice)->kernel_id = slice->program.kernel_id[item->kernel];
	lease_slice(slice)->more = claims & SIM_CLAIM_MORE && !(claims & SIM_CLAIM_END);
}

static void yield(struct sim *sim, struct sim_slice *slice)
{
	struct lease_state *state = sim->sched;
	struct lease_slice *own = lease_slice(slice);
	struct vgpu_yield how = { .kernel_id = own->kernel_id };
	u32 kernel;

	if (slice->ready) {
		kernel = sim_head(slice)->kernel;
		how.flags = VGPU_YIELD_WANT;
		how.kernel_id = slice->program.kernel_id[kernel];
		how.hint_ns = sim_head(slice)->left_ns;
	} else if (own->more) {
		how.flags = VGPU_YIELD_MORE;
	}
	vgpu_slice_yield(&state->sched, &own->core, &how, sim->now_ns);
	state->lease.slice = NULL;
}

static bool is_expired(const struct sim *sim)
{
	const struct lease_state *state = sim->sched;

	return state->lease.expires_ns <= sim->now_ns;
}

/* Return whether the lease goes on; otherwise it is over now. */
static bool goes_on(struct sim *sim)
{
	struct lease_state *state = sim->sched;
	struct sim_slice *slice = lessee(sim);

	if (!slice)
		return false;
	settle(sim);
	vgpu_sched_review(&state->sched, sim->now_ns, &state->lease);
	state->dry_since_ns = slice->ready ? SIM_NEVER : sim->now_ns;
	if (!is_expired(sim) && (slice->ready || state->lease.expires_ns == U64_MAX))
		return true;
	yield(sim, slice);
	state->dry_since_ns = SIM_NEVER;
	return false;
}

static void lease_pick(struct sim *sim, struct sim_decision *decision)
{
	struct lease_state *state = sim->sched;
	struct vgpu_lease *lease = &state->lease;
	bool kept = goes_on(sim);

	if (!kept)
		vgpu_sched_lend(&state->sched, sim->now_ns, lease);
	decision->wake_at_ns = lease->review_at_ns;
	decision->holder = sim_slice_of(lease->payer);
	decision->run_ended = lease->ended.valid;
	decision->reason = lease->ended.valid ? lease->ended.reason : SIM_RUN_SLICE;
	if (!lease->slice || !lessee(sim)->ready)
		return;
	decision->slice = lessee(sim);
	decision->run_ended |= decision->slice != sim->run_slice;
	decision->timeslice_ns = decision->slice->group->params.timeslice_ns;
	if (lease->expires_ns != U64_MAX)
		decision->limit_ns = lease->expires_ns - sim->now_ns +
				     sim->model.max_chunk_ns - sim->model.min_chunk_ns;
}

/* A lease that ends early for band L ends in the same way as an expired lease. */
static bool lease_preempts(struct sim *sim)
{
	struct lease_state *state = sim->sched;

	if (!state->lease.slice)
		return false;
	vgpu_sched_review(&state->sched, sim->now_ns, &state->lease);
	return is_expired(sim);
}

static const struct sim_parameter parameters[] = {
	{ "policy", VGPU_POLICY_BEST_EFFORT, VGPU_POLICY_BEST_EFFORT,
	  VGPU_POLICY_FIXED_SHARE },
	{ "places", 0, 0, VGPU_PLACES_MAX },
	{ "reserve_limit_permille", 0, 0, VGPU_RESERVE_LIMIT_MAX },
	{ NULL, 0, 0, 0 },
};

const struct sim_scheduler sim_lease = {
	.name = "vgpumgr_lease",
	.parameters = parameters,
	.state_size = sizeof(struct lease_state),
	.group_size = sizeof(struct vgpu_group),
	.slice_size = sizeof(struct lease_slice),
	.create = lease_create,
	.add_group = lease_add_group,
	.update_group = lease_update_group,
	.remove_group = lease_remove_group,
	.add_slice = lease_add_slice,
	.update_slice = lease_update_slice,
	.remove_slice = lease_remove_slice,
	.wake = lease_wake,
	.sleep = lease_sleep,
	.item_done = lease_item_done,
	.pick = lease_pick,
	.preempts = lease_preempts,
};
