// SPDX-License-Identifier: Apache-2.0
/* The list of schedulers, and code that they share. */
#include "schedulers.h"

const struct sim_scheduler *const sim_schedulers[] = {
	&sim_core,
	&sim_lease,
	&sim_exclusive,
	&sim_fifo,
	&sim_timeslice,
	&sim_kernel_rr,
	&sim_strict_priority,
	&sim_drr,
	&sim_stride,
	&sim_gvt_g,
	&sim_vcuda,
	&sim_gemini,
	&sim_tgs,
	&sim_hami,
	&sim_nvshare,
	&sim_fikit,
	NULL,
};

struct sim_slice *sim_oldest_launch(const struct sim *sim, sim_filter filter)
{
	struct sim_slice *slice, *oldest = NULL;
	u32 i;

	for (i = 0; i < sim->nr_slices; i++) {
		slice = sim->slices[i];
		if (!slice->ready || (filter && !filter(sim, slice)))
			continue;
		if (!oldest || sim_head(slice)->seq < sim_head(oldest)->seq)
			oldest = slice;
	}
	return oldest;
}

struct sim_slice *sim_next_in_circle(const struct sim *sim,
				     const struct sim_slice *slice)
{
	u32 first = slice ? slice->index + 1 : 0;
	u32 i;

	for (i = 0; i < sim->nr_slices; i++)
		if (sim->slices[(first + i) % sim->nr_slices]->ready)
			return sim->slices[(first + i) % sim->nr_slices];
	return NULL;
}

u64 sim_total_weight(const struct sim *sim)
{
	u64 total = 0;
	u32 i;

	for (i = 0; i < sim->nr_slices; i++)
		if (!sim->slices[i]->removed)
			total += sim->slices[i]->group->params.weight;
	return total;
}

u32 sim_best_priority(const struct sim *sim, sim_filter filter)
{
	u32 i, best = UINT32_MAX;

	for (i = 0; i < sim->nr_slices; i++)
		if (filter(sim, sim->slices[i]))
			best = min(best, sim->slices[i]->group->priority);
	return best;
}

u32 sim_cap_permille(const struct sim_slice *slice)
{
	const struct vgpu_group_params *params = &slice->group->params;

	if (!params->cap_ns)
		return 1000;
	return 1000 * params->cap_ns / params->cap_period_ns;
}
