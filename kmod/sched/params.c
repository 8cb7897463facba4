// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Checks of parameters, and the histogram of run lengths. */
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

/* Invariant 17: the field to change, or VGPU_FIELD_NONE. */
enum vgpu_sched_field vgpu_combination_check(enum vgpu_policy policy,
					     enum vgpu_mode mode,
					     enum vgpu_band band)
{
	static const u8 faults[3][2][2] = {
		[VGPU_POLICY_BEST_EFFORT] = {
			[VGPU_MODE_FAIR] = { VGPU_FIELD_NONE, VGPU_FIELD_NONE },
			[VGPU_MODE_STRICT] = { VGPU_FIELD_NONE, VGPU_FIELD_NONE },
		},
		[VGPU_POLICY_EQUAL_SHARE] = {
			[VGPU_MODE_FAIR] = { VGPU_FIELD_NONE, VGPU_FIELD_BAND },
			[VGPU_MODE_STRICT] = { VGPU_FIELD_MODE, VGPU_FIELD_MODE },
		},
		[VGPU_POLICY_FIXED_SHARE] = {
			[VGPU_MODE_FAIR] = { VGPU_FIELD_MODE, VGPU_FIELD_MODE },
			[VGPU_MODE_STRICT] = { VGPU_FIELD_NONE, VGPU_FIELD_BAND },
		},
	};

	if (outside(policy, VGPU_POLICY_BEST_EFFORT, VGPU_POLICY_FIXED_SHARE))
		return VGPU_FIELD_POLICY;
	if (outside(mode, VGPU_MODE_FAIR, VGPU_MODE_STRICT))
		return VGPU_FIELD_MODE;
	if (outside(band, VGPU_BAND_FAIR, VGPU_BAND_LATENCY))
		return VGPU_FIELD_BAND;
	return faults[policy][mode][band];
}

enum vgpu_sched_field
vgpu_sched_params_check(const struct vgpu_sched_params *params)
{
	bool fixed = params->policy == VGPU_POLICY_FIXED_SHARE;

	if (outside(params->max_chunk_ns, VGPU_CHUNK_MIN_NS, VGPU_CHUNK_MAX_NS))
		return VGPU_FIELD_MAX_CHUNK;
	if (outside(params->min_chunk_ns, 1, params->max_chunk_ns))
		return VGPU_FIELD_MIN_CHUNK;
	if (params->switch_cost_ns > VGPU_SWITCH_COST_MAX_NS)
		return VGPU_FIELD_SWITCH_COST;
	if (outside(params->policy, VGPU_POLICY_BEST_EFFORT, VGPU_POLICY_FIXED_SHARE))
		return VGPU_FIELD_POLICY;
	if (outside(params->places, fixed, fixed ? VGPU_PLACES_MAX : 0))
		return VGPU_FIELD_PLACES;
	if (params->reserve_limit_permille > VGPU_RESERVE_LIMIT_MAX ||
	    (params->reserve_limit_permille && params->policy))
		return VGPU_FIELD_RESERVE_LIMIT;
	return VGPU_FIELD_NONE;
}

static enum vgpu_sched_field cap_check(const struct vgpu_sched *sched,
				       u64 cap_ns, u64 period_ns, u64 burst_ns)
{
	if (!cap_ns)
		return VGPU_FIELD_NONE;
	if (outside(period_ns, VGPU_CAP_PERIOD_MIN_NS, VGPU_CAP_PERIOD_MAX_NS))
		return VGPU_FIELD_CAP_PERIOD;
	if (cap_ns > period_ns || cap_ns * VGPU_CAP_RATIO_MAX < period_ns ||
	    vgpu_has_ghosts(sched))
		return VGPU_FIELD_CAP;
	if (burst_ns && outside(burst_ns, vgpu_sched_timeslice_floor(sched),
				VGPU_BURST_MAX_NS))
		return VGPU_FIELD_BURST;
	return VGPU_FIELD_NONE;
}

static enum vgpu_sched_field
hold_check(const struct vgpu_group_params *params)
{
	bool latency = params->band == VGPU_BAND_LATENCY;

	if (params->hold_max_ns > (latency ? VGPU_HOLD_MAX_NS : 0))
		return VGPU_FIELD_HOLD;
	if (params->inversion_permille > (latency ? 1000 : 0))
		return VGPU_FIELD_INVERSION;
	if (params->inversion_burst_ns > (latency ? VGPU_BURST_MAX_NS : 0))
		return VGPU_FIELD_INVERSION_BURST;
	return VGPU_FIELD_NONE;
}

enum vgpu_sched_field
vgpu_group_params_check(const struct vgpu_sched *sched,
			const struct vgpu_group *group,
			const struct vgpu_group_params *params)
{
	enum vgpu_sched_field fault;

	if (outside(params->weight, VGPU_WEIGHT_MIN, VGPU_WEIGHT_MAX))
		return VGPU_FIELD_WEIGHT;
	if (outside(params->timeslice_ns, vgpu_sched_timeslice_floor(sched),
		    VGPU_TIMESLICE_MAX_NS))
		return VGPU_FIELD_TIMESLICE;
	fault = vgpu_combination_check(sched->params.policy, params->mode,
				       params->band);
	if (fault)
		return fault;
	if (params->mode == VGPU_MODE_STRICT && !params->cap_ns &&
	    !vgpu_has_ghosts(sched))
		return VGPU_FIELD_CAP;
	return cap_check(sched, params->cap_ns, params->cap_period_ns,
			 params->burst_ns) ?:
	       vgpu_reserve_check(sched, group, params) ?:
	       hold_check(params);
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

/* R9: the length of an item that cannot be interrupted is bounded. */
enum vgpu_sched_field vgpu_item_check(const struct vgpu_sched *sched,
				      const struct vgpu_item_info *item)
{
	if (item->flags & ~VGPU_ITEM_FLAGS)
		return VGPU_FIELD_ITEM_FLAGS;
	if (!sched->params.splits && item->hint_ns > sched->params.max_chunk_ns)
		return VGPU_FIELD_ITEM_HINT;
	return VGPU_FIELD_NONE;
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
