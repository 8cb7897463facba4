// SPDX-License-Identifier: GPL-2.0
/*
 * One enabling of a slice's rings, and the worker that serves it.
 *
 * The worker is the only place where guest memory is touched. It answers
 * finished items, fetches new descriptors exactly once, stages what they read
 * and hands them to the engine. Guest memory may block for as long as its
 * owner likes: only this slice waits.
 */
#include <linux/ktime.h>
#include <linux/llist.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "engine.h"
#include "item.h"
#include "ring.h"

#define VGPU_FETCH_BATCH	32U
#define VGPU_DMA_BYTES_MAX	(64U << 10)	/* the container's lock is held so long */
#define VGPU_STORM_BURST	1000U
#define VGPU_STORM_REFILL_NS	NSEC_PER_MSEC

/**
 * vgpu_memory_create - device memory for one open
 * @bytes: size; allocated whole and zeroed, charged to the caller's cgroup
 *
 * Return: the memory with one reference, or NULL.
 */
struct vgpu_memory *vgpu_memory_create(u64 bytes)
{
	struct vgpu_memory *memory = kzalloc(sizeof(*memory), GFP_KERNEL_ACCOUNT);

	if (!memory)
		return NULL;
	kref_init(&memory->refs);
	memory->bytes = bytes;
	memory->data = __vmalloc(bytes, GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN);
	if (!memory->data) {
		kfree(memory);
		return NULL;
	}
	return memory;
}

static void vgpu_memory_free(struct kref *refs)
{
	struct vgpu_memory *memory = container_of(refs, struct vgpu_memory, refs);

	memset(memory->data, 0, memory->bytes);
	vfree(memory->data);
	kfree(memory);
}

void vgpu_memory_put(struct vgpu_memory *memory)
{
	kref_put(&memory->refs, vgpu_memory_free);
}

static void vgpu_ring_free(struct kref *refs)
{
	struct vgpu_ring *ring = container_of(refs, struct vgpu_ring, refs);

	vgpu_memory_put(ring->memory);
	kfree(ring);
}

static struct vgpu_engine *vgpu_ring_engine(struct vgpu_ring *ring)
{
	return &ring->device->parent->engine;
}

/* Staging buffers held guest data: they are cleared before they are freed. */
static void vgpu_operand_free(struct vgpu_operand *operand)
{
	if (operand->staged && operand->data)
		kvfree_sensitive(operand->data, operand->bytes);
}

/**
 * vgpu_item_free - drop an item and its reference to the ring
 * @item: in no list
 */
void vgpu_item_free(struct vgpu_item *item)
{
	struct vgpu_ring *ring = item->ring;

	vgpu_operand_free(&item->dst);
	vgpu_operand_free(&item->src[0]);
	vgpu_operand_free(&item->src[1]);
	kfree(item);
	kref_put(&ring->refs, vgpu_ring_free);
}

/*
 * Items that were executed for a dead ring. Freeing one may clear a gigabyte of
 * device memory, which must not delay the engine.
 */
static LLIST_HEAD(vgpu_late_items);
static struct workqueue_struct *vgpu_reaper;

static void vgpu_reap(struct work_struct *work)
{
	struct vgpu_item *item, *next;

	llist_for_each_entry_safe(item, next, llist_del_all(&vgpu_late_items), late) {
		vgpu_item_free(item);
		cond_resched();
	}
}

static DECLARE_WORK(vgpu_reap_work, vgpu_reap);

/**
 * vgpu_item_free_late - drop an item soon, from any context
 * @item: in no list
 */
void vgpu_item_free_late(struct vgpu_item *item)
{
	llist_add(&item->late, &vgpu_late_items);
	queue_work(vgpu_reaper, &vgpu_reap_work);
}

int vgpu_rings_init(void)
{
	vgpu_reaper = alloc_workqueue("vgpu-reaper", WQ_UNBOUND, 0);
	return vgpu_reaper ? 0 : -ENOMEM;
}

/* After the last engine has stopped. */
void vgpu_rings_exit(void)
{
	destroy_workqueue(vgpu_reaper);
}

/* Read or write guest memory in pieces that do not hold its lock for long. */
static int vgpu_ring_dma(struct vgpu_ring *ring, u64 guest, void *data, u64 bytes,
			 bool write)
{
	u64 end;

	if (check_add_overflow(guest, bytes, &end))
		return -EFAULT;
	while (bytes) {
		u64 piece = min_t(u64, bytes, VGPU_DMA_BYTES_MAX);
		int ret;

		if (READ_ONCE(ring->dead))
			return -ECANCELED;
		ret = vfio_dma_rw(&ring->device->vdev, guest, data, piece, write);
		if (ret)
			return ret;
		ring->dma_bytes += piece;
		guest += piece;
		data += piece;
		bytes -= piece;
		cond_resched();
	}
	return 0;
}

static void vgpu_ring_write_shadow(struct vgpu_ring *ring, u32 error, u32 index)
{
	struct vgpu_shadow shadow = {
		.fetched = cpu_to_le32(ring->fetched),
		.completed = cpu_to_le32(ring->completed),
		.error = cpu_to_le32(error),
		.error_index = cpu_to_le32(index),
	};

	if (ring->shadow)
		vfio_dma_rw(&ring->device->vdev, ring->shadow, &shadow,
			    sizeof(shadow), true);
}

/* Worker only: stop the slice, tell the guest. */
static void vgpu_ring_fault(struct vgpu_ring *ring, enum vgpu_error error, u32 index)
{
	vgpu_device_fault(ring->device, ring, error, index);
	vgpu_ring_write_shadow(ring, error, index);
	vgpu_device_raise(ring->device, VGPU_VECTOR_ERROR);
}

static int vgpu_operand_stage(struct vgpu_ring *ring, struct vgpu_item *item,
			      struct vgpu_operand *operand, bool read)
{
	if (!operand->staged)
		return 0;
	operand->data = kvmalloc(operand->bytes, GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!operand->data)
		return -ENOMEM;
	item->staging_bytes += operand->bytes;
	return read ? vgpu_ring_dma(ring, operand->guest, operand->data,
				    operand->bytes, false) : 0;
}

/* Check and stage one fetched descriptor. NULL after a fault or when dead. */
static struct vgpu_item *vgpu_ring_stage(struct vgpu_ring *ring,
					 const struct vgpu_desc *desc, u32 number)
{
	struct vgpu_engine *engine = vgpu_ring_engine(ring);
	struct vgpu_item *item;
	u32 error;
	int ret;

	item = kzalloc(sizeof(*item), GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!item) {
		vgpu_ring_fault(ring, VGPU_ERROR_RESOURCE, number);
		return NULL;
	}
	kref_get(&ring->refs);
	item->ring = ring;
	item->desc = *desc;
	item->number = number;
	error = vgpu_item_parse(item, ring->memory);
	if (!error && le16_to_cpu(desc->flags) & VGPU_DESC_NOSPLIT &&
	    engine->ops->estimate_ns(engine, item) >
	    READ_ONCE(engine->sched.params.max_chunk_ns))
		error = VGPU_ERROR_CHUNK;
	if (error)
		goto fault;
	ret = vgpu_operand_stage(ring, item, &item->src[0], true);
	if (!ret)
		ret = vgpu_operand_stage(ring, item, &item->src[1], true);
	if (!ret)
		ret = vgpu_operand_stage(ring, item, &item->dst, false);
	if (!ret)
		return item;
	error = ret == -ENOMEM ? VGPU_ERROR_RESOURCE : VGPU_ERROR_DMA;
	if (ret == -ECANCELED)
		error = VGPU_ERROR_NONE;
fault:
	vgpu_item_free(item);
	if (error)
		vgpu_ring_fault(ring, error, number);
	return NULL;
}

/* Hand a staged item to the engine. False when the ring died meanwhile. */
static bool vgpu_ring_submit(struct vgpu_ring *ring, struct vgpu_item *item)
{
	struct vgpu_engine *engine = vgpu_ring_engine(ring);
	struct vgpu_device *device = ring->device;
	bool dead;

	spin_lock_irq(&engine->lock);
	dead = ring->dead;
	if (!dead) {
		list_add_tail(&item->node, &ring->ready);
		if (device->scheduled && list_is_singular(&ring->ready)) {
			vgpu_slice_wake(&engine->sched, &device->slice, ktime_get_ns());
			vgpu_engine_kick(engine);
		}
	}
	spin_unlock_irq(&engine->lock);
	if (dead)
		vgpu_item_free(item);
	return !dead;
}

static bool vgpu_ring_may_fetch(const struct vgpu_ring *ring)
{
	return !READ_ONCE(ring->dead) &&
	       ring->fetched != READ_ONCE(ring->tail) &&
	       ring->inflight < VGPU_INFLIGHT_ITEMS &&
	       ring->inflight_bytes < VGPU_INFLIGHT_BYTES;
}

/* Fetch and stage up to one batch of descriptors. True if there may be more. */
static bool vgpu_ring_fetch(struct vgpu_ring *ring)
{
	u32 at = ring->fetched & (ring->entries - 1);
	struct vgpu_desc *batch = ring->batch;
	u32 count, i;

	if (!vgpu_ring_may_fetch(ring))
		return false;
	if (!vgpu_device_masters_bus(ring->device)) {
		vgpu_ring_fault(ring, VGPU_ERROR_MASTER, ring->fetched);
		return false;
	}
	count = min3(READ_ONCE(ring->tail) - ring->fetched, ring->entries - at,
		     VGPU_FETCH_BATCH);
	if (vgpu_ring_dma(ring, ring->base + (u64)at * sizeof(*batch), batch,
			  count * sizeof(*batch), false)) {
		if (!READ_ONCE(ring->dead))
			vgpu_ring_fault(ring, VGPU_ERROR_DMA, ring->fetched);
		return false;
	}
	for (i = 0; i < count && vgpu_ring_may_fetch(ring); i++) {
		struct vgpu_item *item = vgpu_ring_stage(ring, &batch[i],
							 ring->fetched);
		u32 bytes;

		if (!item)
			return false;
		bytes = item->staging_bytes;
		if (!vgpu_ring_submit(ring, item))
			return false;
		ring->inflight++;
		ring->inflight_bytes += bytes;
		WRITE_ONCE(ring->fetched, ring->fetched + 1);
	}
	return true;
}

/* Write the results of one finished item into guest memory. */
static int vgpu_ring_write_back(struct vgpu_ring *ring, struct vgpu_item *item)
{
	struct vgpu_completion completion = {
		.cookie = item->desc.cookie,
		.result = cpu_to_le64(item->result),
		.run_ns = cpu_to_le64(item->run_ns),
		.seq = cpu_to_le32(item->number + 1),
	};
	u32 at = item->number & (ring->entries - 1);
	int ret = 0;

	if (item->dst.staged)
		ret = vgpu_ring_dma(ring, item->dst.guest, item->dst.data,
				    item->dst.bytes, true);
	if (!ret)
		ret = vgpu_ring_dma(ring, ring->completion + (u64)at * sizeof(completion),
				    &completion, sizeof(completion), true);
	return ret;
}

/* Answer what the engine has finished. True if it answered anything. */
static bool vgpu_ring_answer(struct vgpu_ring *ring)
{
	struct vgpu_engine *engine = vgpu_ring_engine(ring);
	struct vgpu_device *device = ring->device;
	struct vgpu_item *item, *next;
	bool interrupt = false;
	u32 answered = 0;
	LIST_HEAD(done);
	int ret = 0;

	spin_lock_irq(&engine->lock);
	list_splice_init(&ring->done, &done);
	spin_unlock_irq(&engine->lock);
	if (list_empty(&done))
		return false;

	list_for_each_entry_safe(item, next, &done, node) {
		u32 number = item->number;

		if (!ret) {
			ret = vgpu_ring_write_back(ring, item);
			if (ret && !READ_ONCE(ring->dead))
				vgpu_ring_fault(ring, VGPU_ERROR_DMA, number);
		}
		if (!ret) {
			interrupt |= le16_to_cpu(item->desc.flags) & VGPU_DESC_IRQ;
			WRITE_ONCE(ring->completed, number + 1);
			answered++;
		}
		ring->inflight--;
		ring->inflight_bytes -= item->staging_bytes;
		list_del(&item->node);
		vgpu_item_free(item);
	}
	spin_lock_irq(&engine->lock);
	device->stats.items += answered;
	device->stats.dma_bytes += ring->dma_bytes;
	ring->dma_bytes = 0;
	spin_unlock_irq(&engine->lock);
	if (!answered || READ_ONCE(ring->dead))
		return false;
	vgpu_ring_write_shadow(ring, VGPU_ERROR_NONE, 0);
	if (interrupt)
		vgpu_device_raise(device, VGPU_VECTOR_COMPLETION);
	return true;
}

static void vgpu_ring_work(struct work_struct *work)
{
	struct vgpu_ring *ring = container_of(work, struct vgpu_ring, work);
	bool progress;

	do {
		progress = vgpu_ring_answer(ring);
		progress |= vgpu_ring_fetch(ring);
		cond_resched();
	} while (progress && !READ_ONCE(ring->dead));
}

/**
 * vgpu_ring_create - a ring from the device's ring registers
 * @device: state_lock held, registers checked, memory allocated
 *
 * Return: the ring with the device's reference, or NULL without memory.
 */
struct vgpu_ring *vgpu_ring_create(struct vgpu_device *device)
{
	struct vgpu_ring *ring;

	ring = kzalloc(struct_size(ring, batch, VGPU_FETCH_BATCH), GFP_KERNEL_ACCOUNT);
	if (!ring)
		return NULL;
	kref_init(&ring->refs);
	kref_get(&device->memory->refs);
	ring->memory = device->memory;
	ring->device = device;
	ring->base = device->ring_address;
	ring->completion = device->completion_address;
	ring->shadow = device->shadow_address;
	ring->entries = device->ring_entries;
	INIT_LIST_HEAD(&ring->ready);
	INIT_LIST_HEAD(&ring->done);
	INIT_WORK(&ring->work, vgpu_ring_work);
	return ring;
}

/* Doorbells that bring nothing are tolerated at a bounded rate. */
static bool vgpu_doorbell_storm(struct vgpu_device *device, u64 now_ns)
{
	u64 refill = (now_ns - device->storm_refill_ns) / VGPU_STORM_REFILL_NS;

	if (refill) {
		device->storm_tokens = min_t(u64, device->storm_tokens + refill,
					     VGPU_STORM_BURST);
		device->storm_refill_ns += refill * VGPU_STORM_REFILL_NS;
	}
	if (!device->storm_tokens)
		return true;
	device->storm_tokens--;
	return false;
}

/**
 * vgpu_device_doorbell - the guest wrote its doorbell
 * @device: state_lock held
 * @tail: what it wrote
 */
void vgpu_device_doorbell(struct vgpu_device *device, u32 tail)
{
	struct vgpu_engine *engine = &device->parent->engine;
	struct vgpu_ring *ring = device->ring;
	u32 error = VGPU_ERROR_NONE;

	spin_lock_irq(&engine->lock);
	device->stats.doorbells++;
	if (!ring || ring->dead || tail == ring->tail) {
		if (vgpu_doorbell_storm(device, ktime_get_ns()))
			error = VGPU_ERROR_STORM;
		tail = ring ? ring->tail : 0;
	} else if (tail - READ_ONCE(ring->completed) > ring->entries ||
		   (s32)(tail - ring->tail) < 0) {
		error = VGPU_ERROR_DOORBELL;
		tail = ring->tail;
	} else {
		WRITE_ONCE(ring->tail, tail);
	}
	spin_unlock_irq(&engine->lock);
	if (error) {
		vgpu_device_fault(device, ring, error, tail);
		vgpu_device_raise(device, VGPU_VECTOR_ERROR);
	} else if (ring) {
		queue_work(device->workers, &ring->work);
	}
}

/**
 * vgpu_ring_stop - nothing more is fetched, executed or answered
 * @ring: any ring; stopping twice is harmless
 *
 * Does not wait: the item under execution is charged and dropped when its
 * chunk ends. The caller holds no engine->lock.
 */
void vgpu_ring_stop(struct vgpu_ring *ring)
{
	struct vgpu_engine *engine = vgpu_ring_engine(ring);
	struct vgpu_device *device = ring->device;
	struct vgpu_item *item, *next;
	LIST_HEAD(dropped);

	spin_lock_irq(&engine->lock);
	if (!ring->dead) {
		WRITE_ONCE(ring->dead, true);
		list_splice_init(&ring->done, &dropped);
		list_for_each_entry_safe(item, next, &ring->ready, node) {
			device->stats.dropped++;
			if (item != engine->executing)
				list_move_tail(&item->node, &dropped);
		}
		if (device->scheduled)
			vgpu_slice_sleep(&engine->sched, &device->slice, ktime_get_ns());
	}
	spin_unlock_irq(&engine->lock);
	list_for_each_entry_safe(item, next, &dropped, node) {
		list_del(&item->node);
		vgpu_item_free(item);
	}
}

/**
 * vgpu_ring_release - stop a ring and give up the device's reference
 * @ring: no longer reachable through device->ring
 *
 * Waits for the slice's own worker, never for the engine.
 */
void vgpu_ring_release(struct vgpu_ring *ring)
{
	vgpu_ring_stop(ring);
	cancel_work_sync(&ring->work);
	kref_put(&ring->refs, vgpu_ring_free);
}
