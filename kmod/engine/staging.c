// SPDX-License-Identifier: GPL-2.0
/* Turns a fetched descriptor into an item whose operands are in host memory. */
#include <linux/mm.h>
#include <linux/slab.h>

#include "engine/engine.h"
#include "engine/item.h"
#include "engine/processor.h"
#include "engine/ring.h"

/*
 * Allocate memory for an item. At the limit of a VMM's cgroup the kernel has to reclaim memory,
 * which may take long. A worker leaves real-time priority for that, because otherwise it would
 * keep the processor from all other tasks.
 */
static void *vgpu_worker_alloc(struct vgpu_ring *ring, size_t bytes, gfp_t flags)
{
	struct vgpu_ration *ration = &ring->device->ration;
	void *memory;

	if (ration->realtime) {
		memory = kvmalloc(bytes, GFP_NOWAIT | __GFP_ACCOUNT | __GFP_NOWARN | flags);
		if (memory)
			return memory;
		vgpu_ration_leave(ration);
	}
	return kvmalloc(bytes, GFP_KERNEL_ACCOUNT | __GFP_NOWARN | flags);
}

static int vgpu_operand_stage(struct vgpu_ring *ring, struct vgpu_item *item,
			      struct vgpu_operand *operand, bool read)
{
	if (!operand->staged)
		return 0;
	operand->data = vgpu_worker_alloc(ring, operand->bytes, 0);
	if (!operand->data)
		return -ENOMEM;
	item->staging_bytes += operand->bytes;
	return read ? vgpu_ring_dma(ring, operand->guest, operand->data,
				    operand->bytes, false) : 0;
}

/* Read the operands of a parsed item into host memory. */
static int vgpu_item_stage(struct vgpu_ring *ring, struct vgpu_item *item)
{
	int ret;

	ret = vgpu_operand_stage(ring, item, &item->src[0], true);
	if (!ret)
		ret = vgpu_operand_stage(ring, item, &item->src[1], true);
	if (!ret)
		ret = vgpu_operand_stage(ring, item, &item->dst, false);
	return ret;
}

/* Must the item be executed in one piece, because the guest or the engine requires it? */
static bool vgpu_item_is_whole(const struct vgpu_engine *engine,
			       const struct vgpu_desc *desc)
{
	return engine->ops->whole_items || le16_to_cpu(desc->flags) & VGPU_DESC_NOSPLIT;
}

/**
 * vgpu_ring_stage - check a descriptor and read its operands into host memory
 * @ring: the ring; its worker only
 * @desc: a copy that the guest cannot change
 * @number: number of the item
 *
 * Return: an item for the engine; NULL after a fault, or if the ring is dead.
 */
struct vgpu_item *vgpu_ring_stage(struct vgpu_ring *ring, const struct vgpu_desc *desc,
				  u32 number)
{
	struct vgpu_engine *engine = vgpu_ring_engine(ring);
	struct vgpu_item *item;
	enum vgpu_error error;
	int ret;

	item = vgpu_worker_alloc(ring, sizeof(*item), __GFP_ZERO);
	if (!item) {
		vgpu_reports.fault(ring->device, ring, VGPU_ERROR_RESOURCE, number);
		return NULL;
	}
	kref_get(&ring->refs);
	item->ring = ring;
	item->desc = *desc;
	item->number = number;
	error = vgpu_engine_executes(engine, le16_to_cpu(desc->op)) ?
		vgpu_item_parse(item, ring->memory) : VGPU_ERROR_OP;
	if (!error && vgpu_item_is_whole(engine, desc) &&
	    engine->ops->estimate_ns(engine, item) >
	    READ_ONCE(engine->sched.params.max_chunk_ns))
		error = VGPU_ERROR_CHUNK;
	ret = error ? 0 : vgpu_item_stage(ring, item);
	if (!error && !ret)
		return item;
	vgpu_item_free(item);
	if (ret == -ENOMEM)
		error = VGPU_ERROR_RESOURCE;
	if (error)
		vgpu_reports.fault(ring->device, ring, error, number);
	else
		vgpu_ring_dma_fault(ring, ret, number);
	return NULL;
}
