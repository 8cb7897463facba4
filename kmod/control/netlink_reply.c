// SPDX-License-Identifier: GPL-2.0
/*
 * GPUs, tenants and slices as netlink attributes. The counters of one object
 * are copied together under engine->lock, and written out without it.
 *
 * Every function expects parent->lock and returns 0 or -EMSGSIZE.
 */
#include <linux/ktime.h>
#include <linux/math64.h>

#include "control/netlink.h"
#include "engine/engine.h"

static u32 vgpu_ns_to_us(u64 ns)
{
	return div_u64(ns, NSEC_PER_USEC);
}

static int vgpu_put_flag(struct sk_buff *skb, int type, bool value)
{
	return value ? nla_put_flag(skb, type) : 0;
}

/**
 * vgpu_put_gpu - add all attributes of a GPU
 * @skb: reply
 * @parent: the GPU
 */
int vgpu_put_gpu(struct sk_buff *skb, struct vgpu_parent *parent)
{
	struct vgpu_engine *engine = &parent->engine;
	struct vgpu_sched_params params;
	struct vgpu_sched_stats stats;
	struct list_head *node;
	u64 event_seq = vgpu_events_sequence();
	u64 timeslice_min_ns;
	bool wedged;
	u32 tenants = 0;
	u32 slices = 0;

	lockdep_assert_held(&parent->lock);
	list_for_each(node, &parent->tenants)
		tenants++;
	list_for_each(node, &parent->devices)
		slices++;
	spin_lock_irq(&engine->lock);
	vgpu_engine_advance(engine, ktime_get_ns());
	params = engine->sched.params;
	stats = engine->sched.stats;
	wedged = engine->wedged;
	timeslice_min_ns = vgpu_sched_timeslice_floor(&engine->sched);
	spin_unlock_irq(&engine->lock);

	if (nla_put_string(skb, VGPUMGR_A_GPU_NAME, parent->name) ||
	    nla_put_string(skb, VGPUMGR_A_GPU_ENGINE, engine->ops->name) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_GPU_MEMORY_TOTAL, parent->memory_total,
			      VGPUMGR_A_GPU_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_GPU_MEMORY_RESERVED,
			      parent->memory_reserved, VGPUMGR_A_GPU_PAD) ||
	    nla_put_u32(skb, VGPUMGR_A_GPU_ATTACH,
			parent->attach_permit ? VGPUMGR_ATTACH_PERMIT :
						VGPUMGR_ATTACH_ANY) ||
	    nla_put_u32(skb, VGPUMGR_A_GPU_TIMESLICE_MIN_US,
			DIV_ROUND_UP_ULL(timeslice_min_ns, NSEC_PER_USEC)) ||
	    nla_put_u32(skb, VGPUMGR_A_GPU_MAX_CHUNK_US,
			vgpu_ns_to_us(params.max_chunk_ns)) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_GPU_WALL_NS, stats.wall_ns,
			      VGPUMGR_A_GPU_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_GPU_IDLE_NS, stats.idle_ns,
			      VGPUMGR_A_GPU_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_GPU_SWITCHES, stats.switches,
			      VGPUMGR_A_GPU_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_GPU_PICKS, stats.picks,
			      VGPUMGR_A_GPU_PAD) ||
	    nla_put_u32(skb, VGPUMGR_A_GPU_SLICES, slices) ||
	    nla_put_u32(skb, VGPUMGR_A_GPU_TENANTS, tenants) ||
	    nla_put_u32(skb, VGPUMGR_A_GPU_POLICY, params.policy) ||
	    nla_put_u32(skb, VGPUMGR_A_GPU_PLACES, params.places) ||
	    nla_put_u32(skb, VGPUMGR_A_GPU_RESERVE_LIMIT_PERMILLE,
			params.reserve_limit_permille) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_GPU_GENERATION, parent->generation,
			      VGPUMGR_A_GPU_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_GPU_EVENT_SEQ, event_seq, VGPUMGR_A_GPU_PAD) ||
	    vgpu_put_flag(skb, VGPUMGR_A_GPU_WEDGED, wedged) ||
	    nla_put_string(skb, VGPUMGR_A_GPU_DRIVER, parent->driver) ||
	    vgpu_put_flag(skb, VGPUMGR_A_GPU_ADOPTED, parent->adopted))
		return -EMSGSIZE;
	return 0;
}

static int vgpu_put_run_lengths(struct sk_buff *skb, const u64 *histogram)
{
	u32 i;

	for (i = 0; i < VGPU_HIST_BUCKETS; i++) {
		struct nlattr *bucket;

		if (!histogram[i])
			continue;
		bucket = nla_nest_start(skb, VGPUMGR_A_TENANT_RUN_LENGTH);
		if (!bucket ||
		    nla_put_u64_64bit(skb, VGPUMGR_A_RUN_LENGTH_START_NS,
				      vgpu_hist_bucket_start_ns(i),
				      VGPUMGR_A_RUN_LENGTH_PAD) ||
		    nla_put_u64_64bit(skb, VGPUMGR_A_RUN_LENGTH_COUNT, histogram[i],
				      VGPUMGR_A_RUN_LENGTH_PAD))
			return -EMSGSIZE;
		nla_nest_end(skb, bucket);
	}
	return 0;
}

static int vgpu_put_tenant_params(struct sk_buff *skb, const struct vgpu_tenant *tenant)
{
	const struct vgpu_group_params *params = &tenant->params;

	if (nla_put_u32(skb, VGPUMGR_A_TENANT_WEIGHT, params->weight) ||
	    nla_put_u32(skb, VGPUMGR_A_TENANT_TIMESLICE_US,
			vgpu_ns_to_us(params->timeslice_ns)) ||
	    nla_put_u32(skb, VGPUMGR_A_TENANT_CAP_US, vgpu_ns_to_us(params->cap_ns)) ||
	    nla_put_u32(skb, VGPUMGR_A_TENANT_CAP_PERIOD_US,
			vgpu_ns_to_us(params->cap_period_ns)) ||
	    nla_put_u32(skb, VGPUMGR_A_TENANT_BURST_US, vgpu_ns_to_us(params->burst_ns)) ||
	    nla_put_u32(skb, VGPUMGR_A_TENANT_MODE, params->mode) ||
	    nla_put_u32(skb, VGPUMGR_A_TENANT_BAND, params->band) ||
	    nla_put_u32(skb, VGPUMGR_A_TENANT_RESERVE_US,
			vgpu_ns_to_us(params->reserve_ns)) ||
	    nla_put_u32(skb, VGPUMGR_A_TENANT_RESERVE_PERIOD_US,
			vgpu_ns_to_us(params->reserve_period_ns)) ||
	    nla_put_u32(skb, VGPUMGR_A_TENANT_HOLD_MAX_US,
			vgpu_ns_to_us(params->hold_max_ns)) ||
	    nla_put_u32(skb, VGPUMGR_A_TENANT_INVERSION_PERMILLE,
			params->inversion_permille) ||
	    nla_put_u32(skb, VGPUMGR_A_TENANT_INVERSION_BURST_US,
			vgpu_ns_to_us(params->inversion_burst_ns)))
		return -EMSGSIZE;
	return 0;
}

/* Counters of a tenant's reservation, holds and ghosts. */
static int vgpu_put_tenant_band(struct sk_buff *skb, const struct vgpu_group_stats *stats)
{
	if (nla_put_u64_64bit(skb, VGPUMGR_A_TENANT_LATENCY_NS, stats->latency_ns,
			      VGPUMGR_A_TENANT_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_TENANT_DEMOTIONS, stats->demotions,
			      VGPUMGR_A_TENANT_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_TENANT_HOLDS, stats->holds,
			      VGPUMGR_A_TENANT_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_TENANT_HOLD_NS, stats->hold_ns,
			      VGPUMGR_A_TENANT_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_TENANT_FILLS, stats->fills,
			      VGPUMGR_A_TENANT_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_TENANT_INVERSION_NS, stats->inversion_ns,
			      VGPUMGR_A_TENANT_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_TENANT_GHOST_NS, stats->ghost_ns,
			      VGPUMGR_A_TENANT_PAD))
		return -EMSGSIZE;
	return 0;
}

/**
 * vgpu_put_tenant - add all attributes of a tenant
 * @skb: reply
 * @tenant: the tenant; if it is not configured, it only has names and slices
 */
int vgpu_put_tenant(struct sk_buff *skb, struct vgpu_tenant *tenant)
{
	struct vgpu_engine *engine = &tenant->parent->engine;
	struct vgpu_group_stats stats;
	bool throttled;
	u64 now_ns;
	s64 lag_ns;

	lockdep_assert_held(&tenant->parent->lock);
	if (nla_put_string(skb, VGPUMGR_A_TENANT_GPU, tenant->parent->name) ||
	    nla_put_string(skb, VGPUMGR_A_TENANT_TENANT, tenant->name) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_TENANT_GENERATION, tenant->generation,
			      VGPUMGR_A_TENANT_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_TENANT_ID, tenant->id, VGPUMGR_A_TENANT_PAD) ||
	    vgpu_put_flag(skb, VGPUMGR_A_TENANT_CONFIGURED, tenant->configured) ||
	    nla_put_u32(skb, VGPUMGR_A_TENANT_SLICES, tenant->devices))
		return -EMSGSIZE;
	if (!tenant->configured)
		return 0;

	spin_lock_irq(&engine->lock);
	/*
	 * Read the lag first, because that charges the time until now and so
	 * changes the counters.
	 */
	now_ns = vgpu_engine_advance(engine, ktime_get_ns());
	lag_ns = vgpu_group_lag_ns(&engine->sched, &tenant->group, now_ns);
	vgpu_engine_settle(engine, &tenant->group, now_ns);
	stats = tenant->group.stats;
	throttled = vgpu_bucket_is_throttled(&tenant->group.bucket, now_ns);
	spin_unlock_irq(&engine->lock);

	if (vgpu_put_tenant_params(skb, tenant) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_TENANT_RUN_NS, stats.run_ns,
			      VGPUMGR_A_TENANT_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_TENANT_RUNS, stats.runs,
			      VGPUMGR_A_TENANT_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_TENANT_UNCUT_RUNS, stats.uncut_runs,
			      VGPUMGR_A_TENANT_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_TENANT_SHORT_UNCUT_RUNS,
			      stats.short_uncut_runs, VGPUMGR_A_TENANT_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_TENANT_LONGEST_RUN_NS, stats.longest_run_ns,
			      VGPUMGR_A_TENANT_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_TENANT_THROTTLES, stats.throttles,
			      VGPUMGR_A_TENANT_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_TENANT_THROTTLED_NS, stats.throttled_ns,
			      VGPUMGR_A_TENANT_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_TENANT_SWITCHES, stats.switches,
			      VGPUMGR_A_TENANT_PAD) ||
	    nla_put_s64(skb, VGPUMGR_A_TENANT_LAG_NS, lag_ns, VGPUMGR_A_TENANT_PAD) ||
	    vgpu_put_tenant_band(skb, &stats) ||
	    vgpu_put_flag(skb, VGPUMGR_A_TENANT_THROTTLED, throttled))
		return -EMSGSIZE;
	return vgpu_put_run_lengths(skb, stats.histogram);
}

static int vgpu_put_slice_params(struct sk_buff *skb, const struct vgpu_device *device)
{
	const struct vgpu_slice_params *params = &device->params;

	if (nla_put_u32(skb, VGPUMGR_A_SLICE_WEIGHT, params->weight) ||
	    nla_put_u32(skb, VGPUMGR_A_SLICE_CAP_US, vgpu_ns_to_us(params->cap_ns)) ||
	    nla_put_u32(skb, VGPUMGR_A_SLICE_CAP_PERIOD_US,
			vgpu_ns_to_us(params->cap_period_ns)) ||
	    nla_put_u32(skb, VGPUMGR_A_SLICE_BURST_US, vgpu_ns_to_us(params->burst_ns)))
		return -EMSGSIZE;
	return 0;
}

/**
 * vgpu_put_slice - add all attributes of a slice
 * @skb: reply
 * @device: the slice
 */
int vgpu_put_slice(struct sk_buff *skb, struct vgpu_device *device)
{
	const char *tenant = device->tenant ? device->tenant->name : "";
	struct vgpu_engine *engine = &device->parent->engine;
	struct vgpu_device_stats stats;
	const struct vgpu_ring *ring;
	char uuid[UUID_STRING_LEN + 1];
	bool throttled = false;
	bool scheduled;
	u32 error_index;
	u32 queued = 0;
	u64 ghost_ns;
	u64 run_ns;
	u64 now_ns;
	u32 error;

	lockdep_assert_held(&device->parent->lock);
	snprintf(uuid, sizeof(uuid), "%pUl", &device->uuid);
	spin_lock_irq(&engine->lock);
	now_ns = vgpu_engine_advance(engine, ktime_get_ns());
	scheduled = device->scheduled;
	if (scheduled) { /* charges the time until now */
		vgpu_slice_lag_ns(&engine->sched, &device->slice, now_ns);
		throttled = vgpu_bucket_is_throttled(&device->slice.bucket, now_ns);
	}
	stats = device->stats;
	vgpu_slice_settle(&device->slice);
	run_ns = device->slice.stats.run_ns;
	ghost_ns = device->slice.stats.ghost_ns;
	error = device->error;
	error_index = device->error_index;
	ring = device->ring;
	if (ring && !ring->dead)
		queued = ring->tail - READ_ONCE(ring->completed);
	spin_unlock_irq(&engine->lock);

	if (nla_put_string(skb, VGPUMGR_A_SLICE_GPU, device->parent->name) ||
	    nla_put_string(skb, VGPUMGR_A_SLICE_UUID, uuid) ||
	    nla_put_string(skb, VGPUMGR_A_SLICE_TENANT, tenant) ||
	    vgpu_put_slice_params(skb, device) ||
	    vgpu_put_flag(skb, VGPUMGR_A_SLICE_OPEN, READ_ONCE(device->open)) ||
	    vgpu_put_flag(skb, VGPUMGR_A_SLICE_SCHEDULED, scheduled) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_SLICE_MEMORY_BYTES, device->memory_bytes,
			      VGPUMGR_A_SLICE_PAD) ||
	    nla_put_u32(skb, VGPUMGR_A_SLICE_ERROR, error) ||
	    nla_put_u32(skb, VGPUMGR_A_SLICE_ERROR_INDEX, error_index) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_SLICE_RUN_NS, run_ns, VGPUMGR_A_SLICE_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_SLICE_ITEMS, stats.items,
			      VGPUMGR_A_SLICE_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_SLICE_DMA_BYTES, stats.dma_bytes,
			      VGPUMGR_A_SLICE_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_SLICE_DOORBELLS, stats.doorbells,
			      VGPUMGR_A_SLICE_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_SLICE_ERRORS, stats.errors,
			      VGPUMGR_A_SLICE_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_SLICE_RESETS, stats.resets,
			      VGPUMGR_A_SLICE_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_SLICE_DROPPED, stats.dropped,
			      VGPUMGR_A_SLICE_PAD) ||
	    nla_put_u32(skb, VGPUMGR_A_SLICE_QUEUED, queued) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_SLICE_GHOST_NS, ghost_ns, VGPUMGR_A_SLICE_PAD) ||
	    vgpu_put_flag(skb, VGPUMGR_A_SLICE_THROTTLED, throttled))
		return -EMSGSIZE;
	return 0;
}
