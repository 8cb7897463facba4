/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints of the scheduler: every run of every tenant, so that an observer
 * can recompute all shares on its own.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM vgpu

#if !defined(VGPU_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define VGPU_TRACE_H

#include <linux/tracepoint.h>

#include "compat.h"
#include "sched/vgpu_sched.h"

TRACE_EVENT(vgpu_run_begin,
	TP_PROTO(const char *gpu, const char *tenant, u64 start_ns),
	TP_ARGS(gpu, tenant, start_ns),
	TP_STRUCT__entry(
		__string(gpu, gpu)
		__string(tenant, tenant)
		__field(u64, start_ns)
	),
	TP_fast_assign(
		vgpu_assign_str(gpu, gpu);
		vgpu_assign_str(tenant, tenant);
		__entry->start_ns = start_ns;
	),
	TP_printk("gpu=%s tenant=%s start_ns=%llu",
		  __get_str(gpu), __get_str(tenant), __entry->start_ns)
);

TRACE_EVENT(vgpu_run_end,
	TP_PROTO(const char *gpu, const char *tenant, u64 start_ns, u64 length_ns,
		 int reason),
	TP_ARGS(gpu, tenant, start_ns, length_ns, reason),
	TP_STRUCT__entry(
		__string(gpu, gpu)
		__string(tenant, tenant)
		__field(u64, start_ns)
		__field(u64, length_ns)
		__field(int, reason)
	),
	TP_fast_assign(
		vgpu_assign_str(gpu, gpu);
		vgpu_assign_str(tenant, tenant);
		__entry->start_ns = start_ns;
		__entry->length_ns = length_ns;
		__entry->reason = reason;
	),
	TP_printk("gpu=%s tenant=%s start_ns=%llu length_ns=%llu reason=%s",
		  __get_str(gpu), __get_str(tenant), __entry->start_ns,
		  __entry->length_ns,
		  __print_symbolic(__entry->reason,
				   { VGPU_RUN_TIMESLICE, "timeslice" },
				   { VGPU_RUN_DRY, "dry" },
				   { VGPU_RUN_CAP, "cap" },
				   { VGPU_RUN_REMOVED, "removed" },
				   { VGPU_RUN_LATENCY, "latency" },
				   { VGPU_RUN_BUDGET, "budget" }))
);

#endif /* VGPU_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
