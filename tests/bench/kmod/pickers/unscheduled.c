// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * An engine without a scheduler executes items in the order in which they reach
 * the front of their rings.  This is round_robin.c with runs of one item.
 * Replaces vgpu_slice_item_done() of item.c.
 */
#include "internal.h"

enum vgpu_sched_field core_slice_item_done(struct vgpu_sched *sched, struct vgpu_slice *slice,
					   const struct vgpu_item_info *next, u64 now_ns);

enum vgpu_sched_field vgpu_slice_item_done(struct vgpu_sched *sched, struct vgpu_slice *slice,
					   const struct vgpu_item_info *next, u64 now_ns)
{
	enum vgpu_sched_field fault = core_slice_item_done(sched, slice, next, now_ns);

	if (!fault && sched->owner == slice)
		sched->run_timeslice_ns = sched->run_charged_ns;
	return fault;
}
