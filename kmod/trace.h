/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints of the scheduler: every run of every tenant, so that an observer can
 * recompute all shares independently.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM vgpu

#if !defined(VGPU_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define VGPU_TRACE_H

#include <linux/tracepoint.h>

#include "compat.h"
#include "engine/engine.h"

/*
 * @run: counts the group's runs, including this one; @run_ns: engine time charged to the
 *	group before this run
 */
TRACE_EVENT(vgpu_run_begin,
	TP_PROTO(const struct vgpu_engine *engine, const struct vgpu_slice *slice, bool switched),
	TP_ARGS(engine, slice, switched),
	TP_STRUCT__entry(
		__string(gpu, engine->name)
		__string(tenant, vgpu_group_to_tenant(slice->group)->name)
		__array(u8, slice, UUID_SIZE)
		__field(u64, start_ns)
		__field(u64, run)
		__field(u64, run_ns)
		__field(int, band)
		__field(bool, switched)
	),
	TP_fast_assign(
		vgpu_assign_str(gpu, engine->name);
		vgpu_assign_str(tenant, vgpu_group_to_tenant(slice->group)->name);
		memcpy(__entry->slice, &vgpu_slice_to_device(slice)->uuid, UUID_SIZE);
		__entry->start_ns = engine->sched.run_start_ns;
		__entry->run = slice->group->stats.runs + 1;
		__entry->run_ns = slice->group->stats.run_ns;
		__entry->band = engine->sched.run_band;
		__entry->switched = switched;
	),
	TP_printk("gpu=%s tenant=%s slice=%pUl start_ns=%llu run=%llu run_ns=%llu band=%s switched=%d",
		  __get_str(gpu), __get_str(tenant), __entry->slice, __entry->start_ns,
		  __entry->run, __entry->run_ns,
		  __print_symbolic(__entry->band,
				   { VGPU_BAND_FAIR, "fair" },
				   { VGPU_BAND_LATENCY, "latency" }),
		  __entry->switched)
);

/*
 * @slice: the last slice of the run, all zero if it was removed; @run and @run_ns: the
 *	group's counters, including this run.
 */
TRACE_EVENT(vgpu_run_end,
	TP_PROTO(const struct vgpu_engine *engine, const struct vgpu_slice *slice,
		 const struct vgpu_ended_run *ended),
	TP_ARGS(engine, slice, ended),
	TP_STRUCT__entry(
		__string(gpu, engine->name)
		__string(tenant, vgpu_group_to_tenant(ended->group)->name)
		__array(u8, slice, UUID_SIZE)
		__field(u64, start_ns)
		__field(u64, length_ns)
		__field(u64, timeslice_ns)
		__field(u64, run)
		__field(u64, run_ns)
		__field(int, reason)
	),
	TP_fast_assign(
		vgpu_assign_str(gpu, engine->name);
		vgpu_assign_str(tenant, vgpu_group_to_tenant(ended->group)->name);
		memcpy(__entry->slice, slice ? &vgpu_slice_to_device(slice)->uuid : &guid_null,
		       UUID_SIZE);
		__entry->start_ns = ended->start_ns;
		__entry->length_ns = ended->length_ns;
		__entry->timeslice_ns = ended->timeslice_ns;
		__entry->run = ended->group->stats.runs;
		__entry->run_ns = ended->group->stats.run_ns;
		__entry->reason = ended->reason;
	),
	TP_printk("gpu=%s tenant=%s slice=%pUl start_ns=%llu length_ns=%llu timeslice_ns=%llu run=%llu run_ns=%llu reason=%s",
		  __get_str(gpu), __get_str(tenant), __entry->slice, __entry->start_ns,
		  __entry->length_ns, __entry->timeslice_ns, __entry->run, __entry->run_ns,
		  __print_symbolic(__entry->reason,
				   { VGPU_RUN_TIMESLICE, "timeslice" },
				   { VGPU_RUN_DRY, "dry" },
				   { VGPU_RUN_CAP, "cap" },
				   { VGPU_RUN_REMOVED, "removed" },
				   { VGPU_RUN_LATENCY, "latency" },
				   { VGPU_RUN_BUDGET, "budget" }))
);

/*
 * The engine idled for a tenant that held it between two runs; the tenant paid for that
 * time.
 */
TRACE_EVENT(vgpu_hold,
	TP_PROTO(const struct vgpu_engine *engine, const struct vgpu_slice *holder, u64 length_ns),
	TP_ARGS(engine, holder, length_ns),
	TP_STRUCT__entry(
		__string(gpu, engine->name)
		__string(tenant, vgpu_group_to_tenant(holder->group)->name)
		__field(u64, start_ns)
		__field(u64, length_ns)
	),
	TP_fast_assign(
		vgpu_assign_str(gpu, engine->name);
		vgpu_assign_str(tenant, vgpu_group_to_tenant(holder->group)->name);
		__entry->start_ns = engine->held_since_ns;
		__entry->length_ns = length_ns;
	),
	TP_printk("gpu=%s tenant=%s start_ns=%llu length_ns=%llu",
		  __get_str(gpu), __get_str(tenant), __entry->start_ns,
		  __entry->length_ns)
);

/*
 * Idle time charged to a tenant: time in which no slice of the engine had work, but the
 * tenant's slices kept their turns.  Only the policies in which a slice keeps its turn
 * charge such time.  It is divided among all slices, and this is the sum over the tenant's.
 */
TRACE_EVENT(vgpu_parked,
	TP_PROTO(const struct vgpu_engine *engine, struct vgpu_group *group, u64 length_ns),
	TP_ARGS(engine, group, length_ns),
	TP_STRUCT__entry(
		__string(gpu, engine->name)
		__string(tenant, vgpu_group_to_tenant(group)->name)
		__field(u64, length_ns)
		__field(u64, run_ns)
	),
	TP_fast_assign(
		vgpu_assign_str(gpu, engine->name);
		vgpu_assign_str(tenant, vgpu_group_to_tenant(group)->name);
		__entry->length_ns = length_ns;
		__entry->run_ns = group->stats.run_ns;
	),
	TP_printk("gpu=%s tenant=%s length_ns=%llu run_ns=%llu",
		  __get_str(gpu), __get_str(tenant), __entry->length_ns, __entry->run_ns)
);

/* A slice without work for the engine has an item again. */
TRACE_EVENT(vgpu_ready,
	TP_PROTO(const struct vgpu_engine *engine, const struct vgpu_slice *slice, u64 time_ns),
	TP_ARGS(engine, slice, time_ns),
	TP_STRUCT__entry(
		__string(gpu, engine->name)
		__string(tenant, vgpu_group_to_tenant(slice->group)->name)
		__array(u8, slice, UUID_SIZE)
		__field(u64, time_ns)
	),
	TP_fast_assign(
		vgpu_assign_str(gpu, engine->name);
		vgpu_assign_str(tenant, vgpu_group_to_tenant(slice->group)->name);
		memcpy(__entry->slice, &vgpu_slice_to_device(slice)->uuid, UUID_SIZE);
		__entry->time_ns = time_ns;
	),
	TP_printk("gpu=%s tenant=%s slice=%pUl time_ns=%llu",
		  __get_str(gpu), __get_str(tenant), __entry->slice, __entry->time_ns)
);

#endif /* VGPU_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
