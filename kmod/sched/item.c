// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A slice's items: whether it has one, how it is described, and when it is
 * done.  Predictions are learnt here (predict.c).
 */
#include "internal.h"

/* The gap after the last item of the same request is over. */
void vgpu_slice_end_gap(struct vgpu_sched *sched, struct vgpu_slice *slice)
{
	if (slice->more && !slice->has_item)
		vgpu_predict_learn_gap(slice->group, slice->done_kernel_id,
				       sched->now_ns - slice->done_at_ns);
}

/* The slice has an item with this description. */
void vgpu_slice_describe(struct vgpu_sched *sched, struct vgpu_slice *slice,
			 const struct vgpu_item_info *item)
{
	vgpu_slice_end_gap(sched, slice);
	vgpu_slice_set_item(sched, slice, true);
	slice->item = *item;
	slice->described = true;
}

enum vgpu_sched_field vgpu_slice_wake(struct vgpu_sched *sched,
				      struct vgpu_slice *slice, u64 now_ns)
{
	enum vgpu_sched_field fault;

	fault = vgpu_slice_fault(sched, slice) ?: vgpu_sched_advance(sched, now_ns);
	if (fault)
		return fault;
	vgpu_slice_end_gap(sched, slice);
	vgpu_slice_set_item(sched, slice, true);
	return VGPU_FIELD_NONE;
}

enum vgpu_sched_field vgpu_slice_announce(struct vgpu_sched *sched,
					  struct vgpu_slice *slice,
					  const struct vgpu_item_info *item,
					  u64 now_ns)
{
	enum vgpu_sched_field fault;

	fault = vgpu_slice_fault(sched, slice) ?: vgpu_item_check(sched, item) ?:
		vgpu_sched_advance(sched, now_ns);
	if (fault)
		return fault;
	vgpu_slice_describe(sched, slice, item);
	return VGPU_FIELD_NONE;
}

enum vgpu_sched_field vgpu_slice_item_done(struct vgpu_sched *sched,
					   struct vgpu_slice *slice,
					   const struct vgpu_item_info *next,
					   u64 now_ns)
{
	enum vgpu_sched_field fault = vgpu_slice_fault(sched, slice);

	if (!fault && !slice->has_item)
		fault = VGPU_FIELD_NO_ITEM;
	if (!fault && next)
		fault = vgpu_item_check(sched, next);
	fault = fault ?: vgpu_sched_advance(sched, now_ns);
	if (fault)
		return fault;
	slice->more = slice->described && slice->item.flags & VGPU_ITEM_MORE;
	slice->done_kernel_id = slice->item.kernel_id;
	slice->done_at_ns = sched->now_ns;
	if (slice->described)
		vgpu_predict_learn_duration(slice->group, slice->item.kernel_id,
					    slice->item_ns);
	if (!next) {
		vgpu_slice_set_item(sched, slice, false);
		return VGPU_FIELD_NONE;
	}
	if (slice->more)
		vgpu_predict_learn_gap(slice->group, slice->done_kernel_id, 0);
	slice->item_ns = 0;
	vgpu_slice_describe(sched, slice, next);
	return VGPU_FIELD_NONE;
}

enum vgpu_sched_field vgpu_slice_end_request(struct vgpu_sched *sched,
					     struct vgpu_slice *slice,
					     u64 now_ns)
{
	enum vgpu_sched_field fault;

	fault = vgpu_slice_fault(sched, slice) ?: vgpu_sched_advance(sched, now_ns);
	if (fault)
		return fault;
	slice->more = false;
	vgpu_hold_bound(sched);
	return VGPU_FIELD_NONE;
}

enum vgpu_sched_field vgpu_slice_sleep(struct vgpu_sched *sched,
				       struct vgpu_slice *slice, u64 now_ns)
{
	enum vgpu_sched_field fault;

	fault = vgpu_slice_fault(sched, slice) ?: vgpu_sched_advance(sched, now_ns);
	if (fault)
		return fault;
	if (slice->has_item)
		slice->more = false;
	vgpu_slice_set_item(sched, slice, false);
	return VGPU_FIELD_NONE;
}
