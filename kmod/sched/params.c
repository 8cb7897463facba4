// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Which parameters are good, and the histogram of run lengths. */
#include "internal.h"

static bool outside(u64 value, u64 least, u64 most)
{
	return value < least || value > most;
}

u64 vgpu_sched_timeslice_floor(const struct vgpu_sched *sched)
{
	return max(VGPU_TIMESLICE_SWITCHES * sched->params.switch_cost_ns,
		   (u64)VGPU_TIMESLICE_MIN_NS);
}

enum vgpu_sched_field
vgpu_sched_params_check(const struct vgpu_sched_params *params)
{
	if (outside(params->max_chunk_ns, VGPU_CHUNK_MIN_NS, VGPU_CHUNK_MAX_NS))
		return VGPU_FIELD_MAX_CHUNK;
	if (outside(params->min_chunk_ns, 1, params->max_chunk_ns))
		return VGPU_FIELD_MIN_CHUNK;
	if (params->switch_cost_ns > VGPU_SWITCH_COST_MAX_NS)
		return VGPU_FIELD_SWITCH_COST;
	return VGPU_FIELD_NONE;
}

static enum vgpu_sched_field cap_check(const struct vgpu_sched *sched,
				       u64 cap_ns, u64 period_ns, u64 burst_ns)
{
	if (!cap_ns)
		return VGPU_FIELD_NONE;
	if (outside(period_ns, VGPU_CAP_PERIOD_MIN_NS, VGPU_CAP_PERIOD_MAX_NS))
		return VGPU_FIELD_CAP_PERIOD;
	if (cap_ns > period_ns || cap_ns * VGPU_CAP_RATIO_MAX < period_ns)
		return VGPU_FIELD_CAP;
	if (burst_ns && outside(burst_ns, vgpu_sched_timeslice_floor(sched),
				VGPU_BURST_MAX_NS))
		return VGPU_FIELD_BURST;
	return VGPU_FIELD_NONE;
}

enum vgpu_sched_field
vgpu_group_params_check(const struct vgpu_sched *sched,
			const struct vgpu_group_params *params)
{
	if (outside(params->weight, VGPU_WEIGHT_MIN, VGPU_WEIGHT_MAX))
		return VGPU_FIELD_WEIGHT;
	if (outside(params->timeslice_ns, vgpu_sched_timeslice_floor(sched),
		    VGPU_TIMESLICE_MAX_NS))
		return VGPU_FIELD_TIMESLICE;
	return cap_check(sched, params->cap_ns, params->cap_period_ns,
			 params->burst_ns);
}

enum vgpu_sched_field
vgpu_slice_params_check(const struct vgpu_sched *sched,
			const struct vgpu_slice_params *params)
{
	if (outside(params->weight, VGPU_WEIGHT_MIN, VGPU_WEIGHT_MAX))
		return VGPU_FIELD_WEIGHT;
	return cap_check(sched, params->cap_ns, params->cap_period_ns,
			 params->burst_ns);
}

u32 vgpu_hist_bucket(u64 length_ns)
{
	u32 log2;

	if (length_ns >> VGPU_HIST_LAST_LOG2)
		return VGPU_HIST_BUCKETS - 1;
	if (!(length_ns >> VGPU_HIST_FIRST_LOG2))
		return 0;
	log2 = ilog2(length_ns);
	return 1 + 4 * (log2 - VGPU_HIST_FIRST_LOG2) +
	       ((length_ns >> (log2 - 2)) & 3);
}

u64 vgpu_hist_bucket_start_ns(u32 bucket)
{
	u32 octave = (bucket - 1) / 4, quarter = (bucket - 1) % 4;

	if (!bucket)
		return 0;
	return (4ull + quarter) << (octave + VGPU_HIST_FIRST_LOG2 - 2);
}
