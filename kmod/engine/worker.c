// SPDX-License-Identifier: GPL-2.0
/*
 * The worker of a slice: the only place where guest memory is touched.
 *
 * It answers finished items, fetches new descriptors, of which it looks at one copy,
 * stages what they read and hands them to the engine. Guest memory may block for as long as
 * its owner likes, up to a limit: only this slice waits.
 */
#include <linux/cgroup.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/memcontrol.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/timer.h>

#include "engine/engine.h"
#include "engine/item.h"
#include "engine/processor.h"
#include "engine/ring.h"
#include "options.h"

#define VGPU_DMA_BYTES_MAX	(64U << 10)	/* the container's lock is held so long */
#define VGPU_PATIENCE_JIFFIES	(10 * HZ)	/* for an item's turns on the engine */

static struct vgpu_option vgpu_dma_timeout_ms = {
	.value = 30 * MSEC_PER_SEC,
	.min = 1,
	.max = VGPU_OPTION_MS_MAX,
};
module_param_cb(dma_timeout_ms, &vgpu_option_ops, &vgpu_dma_timeout_ms, 0644);
MODULE_PARM_DESC(dma_timeout_ms,
		 "how long guest memory may take to answer, ms (default 30000)");

/* dma_lock held. */
static int vgpu_ring_access_locked(struct vgpu_ring *ring, u64 guest, void *data, size_t bytes,
				   bool write)
{
	int ret;

	if (READ_ONCE(ring->released) || READ_ONCE(ring->device->revoked))
		return -ECANCELED;
	if (!vgpu_device_masters_bus(ring->device))
		return -EACCES;
	mod_timer(&ring->watchdog,
		  jiffies + msecs_to_jiffies(READ_ONCE(vgpu_dma_timeout_ms.value)));
	ret = vfio_dma_rw(&ring->device->vdev, guest, data, bytes, write);
	timer_delete_sync(&ring->watchdog);
	/* A lost kill does no harm: @released or @revoked was set before it. */
	if (signal_pending(current))
		flush_signals(current);
	if (!ret)
		ring->dma_bytes += bytes;
	return ret;
}

/*
 * One access to guest memory, worker only. -EACCES while the guest has bus
 * mastering off, -EFAULT when the memory is not there or does not answer, -ECANCELED
 * when the ring is released or the device revoked.
 */
static int vgpu_ring_access(struct vgpu_ring *ring, u64 guest, void *data, size_t bytes,
			    bool write)
{
	int ret;

	mutex_lock(&ring->device->dma_lock);
	ret = vgpu_ring_access_locked(ring, guest, data, bytes, write);
	mutex_unlock(&ring->device->dma_lock);
	return ret;
}

/**
 * vgpu_ring_dma - read or write guest memory
 * @ring: its worker only
 * @guest: guest address
 * @data: in host memory
 * @bytes: how much; in pieces that do not hold the memory's lock for long
 * @write: to the guest
 *
 * A VMM that unmaps it gets that lock between two pieces, and the next one fails: the
 * core calls nobody then, because nothing is pinned.
 *
 * Return: 0; -EACCES while the guest has bus mastering off, -ECANCELED for a ring that
 * is dead, -EFAULT. For vgpu_ring_dma_fault().
 */
int vgpu_ring_dma(struct vgpu_ring *ring, u64 guest, void *data, u64 bytes, bool write)
{
	u64 end;

	if (check_add_overflow(guest, bytes, &end))
		return -EFAULT;
	while (bytes) {
		u64 piece = min_t(u64, bytes, VGPU_DMA_BYTES_MAX);
		int ret;

		if (READ_ONCE(ring->dead))
			return -ECANCELED;
		ret = vgpu_ring_access(ring, guest, data, piece, write);
		if (ret)
			return ret;
		guest += piece;
		data += piece;
		bytes -= piece;
		if (bytes)
			vgpu_ration_use(&ring->device->ration);
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
		vgpu_ring_access(ring, ring->shadow, &shadow, sizeof(shadow), true);
}

/**
 * vgpu_ring_dma_fault - stop the slice for what an access to guest memory returned
 * @ring: its worker only
 * @ret: what vgpu_ring_dma() returned
 * @index: number of the item at fault
 */
void vgpu_ring_dma_fault(struct vgpu_ring *ring, int ret, u32 index)
{
	enum vgpu_error error = ret == -EACCES ? VGPU_ERROR_MASTER : VGPU_ERROR_DMA;

	if (ret != -ECANCELED)
		vgpu_reports.fault(ring->device, ring, error, index);
}

/*
 * Memory for an item. At the limit of a VMM's cgroup others must be made to let go of some, which
 * may take long: a worker does not do that in real time, where it would keep the processor from
 * all other tasks.
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

/* Get the operands of a parsed item into host memory. */
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

/* Executed in one piece, because the guest says so or the engine cannot else. */
static bool vgpu_item_is_whole(const struct vgpu_engine *engine,
			       const struct vgpu_desc *desc)
{
	return engine->ops->whole_items || le16_to_cpu(desc->flags) & VGPU_DESC_NOSPLIT;
}

/* Check and stage one fetched descriptor. NULL after a fault or when dead. */
static struct vgpu_item *vgpu_ring_stage(struct vgpu_ring *ring,
					 const struct vgpu_desc *desc, u32 number)
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

/* Hand a staged item to the engine. False when the ring died meanwhile. */
static bool vgpu_ring_submit(struct vgpu_ring *ring, struct vgpu_item *item)
{
	struct vgpu_engine *engine = vgpu_ring_engine(ring);
	bool dead;

	spin_lock_irq(&engine->lock);
	dead = ring->dead;
	if (!dead) {
		list_add_tail(&item->node, &ring->ready);
		if (list_is_singular(&ring->ready))
			vgpu_engine_resume(engine, ring, ktime_get_ns());
	}
	spin_unlock_irq(&engine->lock);
	if (dead)
		vgpu_item_free(item);
	return !dead;
}

static bool vgpu_ring_may_fetch(const struct vgpu_ring *ring)
{
	return !READ_ONCE(ring->dead) && !READ_ONCE(ring->paused) &&
	       READ_ONCE(ring->device->scheduled) &&
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
	int ret;

	if (!vgpu_ring_may_fetch(ring))
		return false;
	count = min3(READ_ONCE(ring->tail) - ring->fetched, ring->entries - at,
		     VGPU_FETCH_BATCH);
	count = min(count, VGPU_INFLIGHT_ITEMS - ring->inflight);
	ret = vgpu_ring_dma(ring, ring->base + (u64)at * sizeof(*batch), batch,
			    count * sizeof(*batch), false);
	if (ret) {
		vgpu_ring_dma_fault(ring, ret, ring->fetched);
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
		vgpu_ration_use(&ring->device->ration);
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
		.status = cpu_to_le32(VGPU_ITEM_OK),
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

/* Add what was moved to the slice's counters. */
static void vgpu_ring_count_dma(struct vgpu_ring *ring)
{
	lockdep_assert_held(&vgpu_ring_engine(ring)->lock);
	ring->device->stats.dma_bytes += ring->dma_bytes;
	ring->dma_bytes = 0;
}

/* Answer what the engine has finished. True if it answered anything. */
static bool vgpu_ring_answer(struct vgpu_ring *ring)
{
	struct vgpu_engine *engine = vgpu_ring_engine(ring);
	struct vgpu_device *device = ring->device;
	struct vgpu_item *item, *next;
	bool interrupt = false;
	u32 answered = 0;
	u32 dropped = 0;
	LIST_HEAD(done);
	int ret = 0;

	spin_lock_irq(&engine->lock);
	vgpu_ring_count_dma(ring);
	list_splice_init(&ring->done, &done);
	spin_unlock_irq(&engine->lock);
	if (list_empty(&done))
		return false;

	list_for_each_entry_safe(item, next, &done, node) {
		u32 number = item->number;

		if (!ret) {
			ret = vgpu_ring_write_back(ring, item);
			if (ret)
				vgpu_ring_dma_fault(ring, ret, number);
		}
		if (!ret) {
			interrupt |= le16_to_cpu(item->desc.flags) & VGPU_DESC_IRQ;
			WRITE_ONCE(ring->completed, number + 1);
			answered++;
		} else {
			dropped++;
		}
		ring->inflight--;
		ring->inflight_bytes -= item->staging_bytes;
		list_del(&item->node);
		vgpu_item_free(item);
		vgpu_ration_use(&device->ration);
	}
	spin_lock_irq(&engine->lock);
	device->stats.items += answered;
	device->stats.dropped += dropped;
	vgpu_ring_count_dma(ring);
	spin_unlock_irq(&engine->lock);
	if (!answered || READ_ONCE(ring->dead))
		return false;
	vgpu_ring_write_shadow(ring, VGPU_ERROR_NONE, 0);
	if (interrupt)
		vgpu_reports.raise(device, VGPU_VECTOR_COMPLETION);
	return true;
}

/* Tell the guest why its slice stopped, once. */
static void vgpu_ring_report(struct vgpu_ring *ring)
{
	u32 error = READ_ONCE(ring->device->error);

	if (!error || ring->reported || READ_ONCE(ring->paused))
		return;
	ring->reported = true;
	vgpu_ring_write_shadow(ring, error, READ_ONCE(ring->device->error_index));
	vgpu_reports.raise(ring->device, VGPU_VECTOR_ERROR);
}

static void vgpu_ring_serve(struct vgpu_ring *ring)
{
	bool progress = true;

	while (progress && !READ_ONCE(ring->dead)) {
		progress = vgpu_ring_answer(ring);
		progress |= vgpu_ring_fetch(ring);
		vgpu_ration_use(&ring->device->ration);
		cond_resched();
	}
	vgpu_ring_report(ring);
}

/*
 * Nothing is left to do, or the ring is dead: count what was moved since the last answer,
 * and let who paused the ring know once nothing of it is under way.
 */
static void vgpu_ring_served(struct vgpu_ring *ring)
{
	struct vgpu_engine *engine = vgpu_ring_engine(ring);

	spin_lock_irq(&engine->lock);
	vgpu_ring_count_dma(ring);
	if (ring->paused &&
	    (ring->dead || (list_empty(&ring->done) && !vgpu_ring_delays_pause(ring))))
		complete_all(&ring->quiet);
	spin_unlock_irq(&engine->lock);
}

/* Of about now. */
static u32 vgpu_ring_sharers(struct vgpu_ring *ring)
{
	return READ_ONCE(vgpu_ring_engine(ring)->sched.nr_slices);
}

/* Serve a ring until it is released. */
static void vgpu_worker_work(struct vgpu_ring *ring)
{
	set_active_memcg(ring->memcg);
	for (;;) {
		set_current_state(TASK_IDLE);
		if (READ_ONCE(ring->released))
			break;
		if (!xchg(&ring->pending, false)) {
			schedule();
			continue;
		}
		__set_current_state(TASK_RUNNING);
		vgpu_ration_begin(&ring->device->ration, vgpu_ring_sharers(ring));
		vgpu_ring_serve(ring);
		vgpu_ring_served(ring);
		vgpu_ration_use(&ring->device->ration);
	}
	__set_current_state(TASK_RUNNING);
	set_active_memcg(NULL);
}

/*
 * A thread of its own, because guest memory may never answer: a fault on it can
 * only be ended by a fatal signal, which work queues do not take.
 */
static int vgpu_worker_thread(void *data)
{
	struct vgpu_device *device = data;
	struct vgpu_engine *engine = &device->parent->engine;
	struct vgpu_ring *ring;

	vgpu_ration_start(&device->ration);
	allow_kernel_signal(SIGKILL);
	for (;;) {
		set_current_state(TASK_IDLE);
		if (kthread_should_stop())
			break;
		/* Pairs with vgpu_worker_serve(): the ring is complete. */
		ring = smp_load_acquire(&device->served);
		if (!ring) {
			schedule();
			continue;
		}
		__set_current_state(TASK_RUNNING);
		/* Of the kill that ended the service of the ring before this one. */
		flush_signals(current);
		vgpu_worker_work(ring);
		WRITE_ONCE(device->served, NULL);
		complete(&ring->left);
	}
	__set_current_state(TASK_RUNNING);
	vgpu_ration_end(&device->ration, READ_ONCE(engine->sched.nr_slices));
	return 0;
}

/* Guest memory did not answer in time: the access fails. */
static void vgpu_ring_timeout(struct timer_list *timer)
{
	struct vgpu_ring *ring = container_of(timer, struct vgpu_ring, watchdog);

	send_sig(SIGKILL, ring->worker, 1);
}

/**
 * vgpu_worker_deadline - when whoever begins to wait now, for a slice to be quiet, gives up
 *
 * Return: jiffies; an access to guest memory has ended long before.
 */
unsigned long vgpu_worker_deadline(void)
{
	return jiffies + msecs_to_jiffies(READ_ONCE(vgpu_dma_timeout_ms.value)) +
	       VGPU_PATIENCE_JIFFIES;
}

/**
 * vgpu_worker_start - create the worker of a slice
 * @device: being opened by the caller, in whose cgroups the worker's time is counted
 *
 * Once for all its rings: to enter cgroups takes long, and others wait for that meanwhile.
 *
 * Return: 0 or a negative errno.
 */
int vgpu_worker_start(struct vgpu_device *device)
{
	struct task_struct *worker;
	int ret;

	worker = kthread_create(vgpu_worker_thread, device, "vgpu-%pUl", &device->uuid);
	if (IS_ERR(worker))
		return PTR_ERR(worker);
	ret = cgroup_attach_task_all(current, worker);
	if (ret) {
		kthread_stop(worker);
		return ret;
	}
	device->worker = worker;
	wake_up_process(worker);
	return 0;
}

/**
 * vgpu_worker_stop - end the worker of a slice
 * @device: being closed, without a ring
 */
void vgpu_worker_stop(struct vgpu_device *device)
{
	kthread_stop(device->worker);
	device->worker = NULL;
}

/**
 * vgpu_worker_serve - let the worker serve a ring
 * @ring: complete, of a slice that has no other
 */
void vgpu_worker_serve(struct vgpu_ring *ring)
{
	struct vgpu_device *device = ring->device;

	timer_setup(&ring->watchdog, vgpu_ring_timeout, 0);
	ring->worker = device->worker;
	/* Pairs with vgpu_worker_thread(). */
	smp_store_release(&device->served, ring);
	wake_up_process(device->worker);
}

/**
 * vgpu_ring_kick - let the worker look for something to do
 * @ring: not released yet
 */
void vgpu_ring_kick(struct vgpu_ring *ring)
{
	WRITE_ONCE(ring->pending, true);
	wake_up_process(ring->worker);
}

/**
 * vgpu_worker_break_off - end the access to guest memory that is under way, if there is one
 * @ring: of a device that is revoked, engine->lock held
 *
 * Waits for nobody.
 */
void vgpu_worker_break_off(struct vgpu_ring *ring)
{
	lockdep_assert_held(&vgpu_ring_engine(ring)->lock);
	send_sig(SIGKILL, ring->worker, 1);
}

/**
 * vgpu_worker_leave - wait until the worker has let go of a ring
 * @ring: dead
 *
 * Ends even a fault on memory that does not answer.
 */
void vgpu_worker_leave(struct vgpu_ring *ring)
{
	WRITE_ONCE(ring->released, true);
	send_sig(SIGKILL, ring->worker, 1);
	wake_up_process(ring->worker);
	wait_for_completion(&ring->left);
}
