// SPDX-License-Identifier: GPL-2.0
/*
 * The worker of a slice: the only thread that touches guest memory, through engine/dma.c.
 *
 * It answers finished items, fetches new descriptors and only uses its one copy of them,
 * stages their sources (engine/staging.c) and hands the items to the engine. If guest
 * memory blocks, only this slice waits.
 */
#include <linux/cgroup.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/memcontrol.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>

#include "engine/engine.h"
#include "engine/item.h"
#include "engine/processor.h"
#include "engine/ring.h"

/* Hand a staged item to the engine. False if the ring has died meanwhile. */
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

/* Add the bytes transferred to the slice's counters. */
static void vgpu_ring_count_dma(struct vgpu_ring *ring)
{
	lockdep_assert_held(&vgpu_ring_engine(ring)->lock);
	ring->device->stats.dma_bytes += ring->dma_bytes;
	ring->dma_bytes = 0;
}

/* Answer items that the engine has finished. True if it answered any. */
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

/* Report to the guest, once, why its slice stopped. */
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
 * Nothing is left to do, or the ring is dead: count the bytes transferred since the last
 * answer, and wake the caller that paused the ring once none of its work is in progress.
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

/* The number is approximate, because slices come and go meanwhile. */
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
 * This is a thread and not a work queue, because guest memory may never answer. Only a
 * fatal signal ends a page fault on such memory, and work queues take no signals.
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
		/* Drop the signal that ended the service of the previous ring. */
		flush_signals(current);
		vgpu_worker_work(ring);
		WRITE_ONCE(device->served, NULL);
		complete(&ring->left);
	}
	__set_current_state(TASK_RUNNING);
	vgpu_ration_end(&device->ration, READ_ONCE(engine->sched.nr_slices));
	return 0;
}

/**
 * vgpu_worker_start - create the worker of a slice
 * @device: the slice, being opened; the worker's time is counted in the caller's cgroups
 *
 * One worker serves all rings that are enabled while the device is open, because entering
 * cgroups takes long and makes other tasks wait.
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
 * @device: the slice, being closed, without a ring
 */
void vgpu_worker_stop(struct vgpu_device *device)
{
	kthread_stop(device->worker);
	device->worker = NULL;
}

/**
 * vgpu_worker_serve - assign a ring to the worker
 * @ring: the complete ring of a slice that has no other ring
 */
void vgpu_worker_serve(struct vgpu_ring *ring)
{
	struct vgpu_device *device = ring->device;

	vgpu_dma_init(ring);
	ring->worker = device->worker;
	/* Pairs with vgpu_worker_thread(). */
	smp_store_release(&device->served, ring);
	wake_up_process(device->worker);
}

/**
 * vgpu_ring_kick - wake the worker to look for something to do
 * @ring: the ring, not released yet
 */
void vgpu_ring_kick(struct vgpu_ring *ring)
{
	WRITE_ONCE(ring->pending, true);
	wake_up_process(ring->worker);
}

/**
 * vgpu_worker_break_off - interrupt an access to guest memory in progress, if there is one
 * @ring: a ring of a revoked device, engine->lock held
 *
 * Does not wait.
 */
void vgpu_worker_break_off(struct vgpu_ring *ring)
{
	lockdep_assert_held(&vgpu_ring_engine(ring)->lock);
	send_sig(SIGKILL, ring->worker, 1);
}

/**
 * vgpu_worker_leave - wait until the worker no longer uses a ring
 * @ring: the ring, which is dead
 *
 * Interrupts even a fault on memory that does not answer.
 */
void vgpu_worker_leave(struct vgpu_ring *ring)
{
	WRITE_ONCE(ring->released, true);
	send_sig(SIGKILL, ring->worker, 1);
	wake_up_process(ring->worker);
	wait_for_completion(&ring->left);
}
