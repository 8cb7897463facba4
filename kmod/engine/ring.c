// SPDX-License-Identifier: GPL-2.0
/*
 * One enabling of a slice's submission ring: its beginning, its doorbell and its end. In
 * between, the worker (engine/worker.c) and the engine handle its items.
 */
#include <linux/ktime.h>
#include <linux/llist.h>
#include <linux/memcontrol.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "engine/binding.h"
#include "engine/engine.h"
#include "engine/item.h"
#include "engine/ring.h"

#define VGPU_STORM_BURST	1000U
#define VGPU_STORM_REFILL_NS	NSEC_PER_MSEC

static void vgpu_ring_free(struct kref *refs)
{
	struct vgpu_ring *ring = container_of(refs, struct vgpu_ring, refs);

	vgpu_memory_put(ring->memory);
	mem_cgroup_put(ring->memcg);
	kfree_sensitive(ring);
}

/* Guest data in operands, items and rings is cleared before it is freed. */
static void vgpu_operand_free(struct vgpu_operand *operand)
{
	if (operand->staged && operand->data)
		kvfree_sensitive(operand->data, operand->bytes);
}

/**
 * vgpu_item_free - drop an item and its reference to the ring
 * @item: the item, in no list
 */
void vgpu_item_free(struct vgpu_item *item)
{
	struct vgpu_ring *ring = item->ring;

	vgpu_operand_free(&item->dst);
	vgpu_operand_free(&item->src[0]);
	vgpu_operand_free(&item->src[1]);
	kvfree_sensitive(item, sizeof(*item));
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
 * @item: the item, in no list
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

/* Call this after the last engine has stopped. */
void vgpu_rings_exit(void)
{
	destroy_workqueue(vgpu_reaper);
}

/**
 * vgpu_ring_create - create a ring from the device's ring registers
 * @device: the slice, state_lock held, registers checked, memory allocated
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
	INIT_LIST_HEAD(&ring->node);
	kref_get(&device->memory->refs);
	ring->memory = device->memory;
	ring->device = device;
	ring->memcg = get_mem_cgroup_from_mm(current->mm);
	ring->base = device->setup.ring;
	ring->completion = device->setup.completion;
	ring->shadow = device->setup.shadow;
	ring->entries = device->setup.entries;
	ring->paused = device->migration_state != VFIO_DEVICE_STATE_RUNNING;
	init_completion(&ring->quiet);
	INIT_LIST_HEAD(&ring->ready);
	INIT_LIST_HEAD(&ring->done);
	init_completion(&ring->left);
	vgpu_worker_serve(ring);
	return ring;
}

/**
 * vgpu_ring_publish - put a ring into use by its device
 * @ring: the ring, just created, state_lock held
 *
 * Return: false if the engine cannot execute anything, or not for this slice.
 */
bool vgpu_ring_publish(struct vgpu_ring *ring)
{
	struct vgpu_engine *engine = vgpu_ring_engine(ring);
	bool published;

	spin_lock_irq(&engine->lock);
	published = !engine->wedged && !ring->device->revoked;
	if (published) {
		ring->device->ring = ring;
		list_add_tail(&ring->node, &engine->rings);
	}
	spin_unlock_irq(&engine->lock);
	return published;
}

/**
 * vgpu_storm_take - take tokens for an action that brings no work
 * @device: the slice, engine->lock held
 * @tokens: cost of the action
 *
 * Return: false if too few are left: such actions are only accepted at a bounded rate.
 */
bool vgpu_storm_take(struct vgpu_device *device, u32 tokens)
{
	u64 now_ns = ktime_get_ns();
	u64 refill = (now_ns - device->storm_refill_ns) / VGPU_STORM_REFILL_NS;

	if (refill) {
		device->storm_tokens = min_t(u64, device->storm_tokens + refill,
					     VGPU_STORM_BURST);
		device->storm_refill_ns += refill * VGPU_STORM_REFILL_NS;
	}
	if (device->storm_tokens < tokens)
		return false;
	device->storm_tokens -= tokens;
	return true;
}

/**
 * vgpu_device_throttle - delay a caller that enables, resets or pauses again and again
 * @device: the slice, state_lock held
 * @tokens: VGPU_STORM_ENABLE or VGPU_STORM_RESET
 *
 * The action is never refused. Beyond a bounded rate the caller, which is a virtual processor
 * of the guest, waits until there are enough tokens. No other caller takes tokens meanwhile.
 */
void vgpu_device_throttle(struct vgpu_device *device, u32 tokens)
{
	struct vgpu_engine *engine = &device->parent->engine;
	bool taken;

	for (;;) {
		spin_lock_irq(&engine->lock);
		taken = vgpu_storm_take(device, tokens);
		spin_unlock_irq(&engine->lock);
		if (taken || fatal_signal_pending(current))
			return;
		/*
		 * The sleep may end early because of a wakeup that was meant for something
		 * else.
		 */
		schedule_timeout_killable(msecs_to_jiffies(10));
	}
}

/**
 * vgpu_device_doorbell - handle a guest's write to its doorbell
 * @device: the slice, state_lock held
 * @tail: the value written
 *
 * A doorbell of a slice that has stopped is only counted. It does not take the engine's lock,
 * because other slices need that lock.
 */
void vgpu_device_doorbell(struct vgpu_device *device, u32 tail)
{
	struct vgpu_engine *engine = &device->parent->engine;
	struct vgpu_ring *ring = device->ring;
	u32 error = VGPU_ERROR_NONE;

	WRITE_ONCE(device->stats.doorbells, device->stats.doorbells + 1);
	if (ring ? READ_ONCE(ring->dead) : READ_ONCE(device->error))
		return;
	spin_lock_irq(&engine->lock);
	if (!ring || ring->dead || tail == ring->tail) {
		if (!vgpu_storm_take(device, 1))
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
	if (error)
		vgpu_reports.fault(device, ring, error, tail);
	if (ring)
		vgpu_ring_kick(ring);
	else if (error)
		vgpu_reports.raise(device, VGPU_VECTOR_ERROR);
}

/**
 * vgpu_ring_rest - record that the slice has no item that may run, and that none follows soon
 * @ring: a ring of a slice that is scheduled, engine->lock held
 */
void vgpu_ring_rest(struct vgpu_ring *ring)
{
	struct vgpu_engine *engine = vgpu_ring_engine(ring);
	struct vgpu_slice *slice = &ring->device->slice;
	u64 now_ns = ktime_get_ns();

	/*
	 * On an engine that lends, the slice's rings do not show whether it has work: the
	 * children of its executor do.
	 */
	if (engine->ops->lends)
		return;
	vgpu_slice_sleep(&engine->sched, slice, now_ns);
	vgpu_slice_end_request(&engine->sched, slice, now_ns);
	/* The slice may have held the engine. */
	vgpu_engine_kick(engine);
}

/* engine->lock held. Items that must be freed without the lock are moved to @dropped. */
static void vgpu_ring_kill(struct vgpu_ring *ring, struct list_head *dropped)
{
	struct vgpu_engine *engine = vgpu_ring_engine(ring);
	struct vgpu_device *device = ring->device;
	struct vgpu_item *item, *next;

	lockdep_assert_held(&engine->lock);
	WRITE_ONCE(ring->dead, true);
	list_del_init(&ring->node);
	list_for_each_entry(item, &ring->done, node)
		device->stats.dropped++;
	list_splice_init(&ring->done, dropped);
	list_for_each_entry_safe(item, next, &ring->ready, node) {
		device->stats.dropped++;
		if (item != engine->executing)
			list_move_tail(&item->node, dropped);
	}
	if (device->scheduled)
		vgpu_ring_rest(ring);
}

static void vgpu_items_free(struct list_head *items)
{
	struct vgpu_item *item, *next;

	list_for_each_entry_safe(item, next, items, node) {
		list_del(&item->node);
		vgpu_item_free(item);
	}
}

/**
 * vgpu_ring_stop - stop fetching, executing and answering
 * @ring: any ring; stopping twice is harmless
 *
 * Does not wait: the item under execution is charged and dropped when its chunk ends. The
 * caller does not hold engine->lock.
 */
void vgpu_ring_stop(struct vgpu_ring *ring)
{
	struct vgpu_engine *engine = vgpu_ring_engine(ring);
	LIST_HEAD(dropped);

	spin_lock_irq(&engine->lock);
	if (!ring->dead)
		vgpu_ring_kill(ring, &dropped);
	spin_unlock_irq(&engine->lock);
	vgpu_items_free(&dropped);
}

/*
 * Take a slice that is being removed out of the scheduler, even if its VMM keeps it open for
 * long. If one of its items is executing, the slice leaves after that item is charged. A slice
 * without a tenant does not wait for its item: it is not in the scheduler, and may be freed
 * before the item ends.
 */
static void vgpu_device_leave(struct vgpu_device *device)
{
	struct vgpu_engine *engine = &device->parent->engine;
	const struct vgpu_item *item = engine->executing;

	if (device->scheduled && item && item->ring->device == device)
		engine->leaving = device;
	else
		vgpu_device_unschedule(device, ktime_get_ns());
}

/**
 * vgpu_device_stop - stop all work for a slice, for good
 * @device: the slice, parent->lock held; afterwards it is revoked
 *
 * Does not wait: an access to guest memory in progress is interrupted. That access may last
 * until another process releases the memory.
 */
void vgpu_device_stop(struct vgpu_device *device)
{
	struct vgpu_engine *engine = &device->parent->engine;
	struct vgpu_ring *ring;
	LIST_HEAD(dropped);

	spin_lock_irq(&engine->lock);
	WRITE_ONCE(device->revoked, true);
	ring = device->ring;
	if (ring) {
		complete_all(&ring->quiet);
		if (!ring->dead)
			vgpu_ring_kill(ring, &dropped);
		vgpu_worker_break_off(ring);
	}
	/* The guest reads all ones from now on, so it needs no interrupt. */
	vgpu_binding_end(device);
	vgpu_device_leave(device);
	spin_unlock_irq(&engine->lock);
	vgpu_items_free(&dropped);
}

/*
 * Stop the ring that is first in the engine's list, for a reason outside the ring. Returns
 * false if the list is empty.
 */
static bool vgpu_ring_fail_first(struct vgpu_engine *engine, u32 error,
				 struct list_head *dropped)
{
	struct vgpu_ring *ring;

	lockdep_assert_held(&engine->lock);
	ring = list_first_entry_or_null(&engine->rings, struct vgpu_ring, node);
	if (!ring)
		return false;
	vgpu_reports.note_error(ring->device, error, READ_ONCE(ring->completed));
	vgpu_ring_kill(ring, dropped);
	vgpu_ring_kick(ring);
	return true;
}

/**
 * vgpu_rings_fail - put every enabled slice into its sticky error state
 * @engine: the engine, which executes nothing; its thread only
 * @error: enum vgpu_error
 */
void vgpu_rings_fail(struct vgpu_engine *engine, u32 error)
{
	LIST_HEAD(dropped);
	bool more;

	do {
		spin_lock_irq(&engine->lock);
		more = vgpu_ring_fail_first(engine, error, &dropped);
		spin_unlock_irq(&engine->lock);
		vgpu_items_free(&dropped);
	} while (more);
}

/**
 * vgpu_ring_delays_pause - check whether there is an item that a pause waits for
 * @ring: the ring, not dead; engine->lock held
 *
 * A pause waits for an item that is on the engine, and for an item that has begun and cannot be
 * begun again elsewhere. It waits for no other item: the guest chooses how long an item takes,
 * and the slice's share may be small.
 */
bool vgpu_ring_delays_pause(struct vgpu_ring *ring)
{
	const struct vgpu_item *item;

	item = list_first_entry_or_null(&ring->ready, struct vgpu_item, node);
	return item && (item == vgpu_ring_engine(ring)->executing ||
			(item->run_ns && !vgpu_item_restarts(item)));
}

/**
 * vgpu_ring_chunk_done - handle an item that has left the engine before its end
 * @ring: the ring, not dead; engine->lock held
 */
void vgpu_ring_chunk_done(struct vgpu_ring *ring)
{
	if (!ring->paused || vgpu_ring_delays_pause(ring))
		return;
	if (ring->device->scheduled)
		vgpu_ring_rest(ring);
	vgpu_ring_kick(ring);
}

/**
 * vgpu_ring_continue - end a pause
 * @ring: the paused ring
 */
void vgpu_ring_continue(struct vgpu_ring *ring)
{
	struct vgpu_engine *engine = vgpu_ring_engine(ring);

	spin_lock_irq(&engine->lock);
	ring->paused = false;
	vgpu_engine_resume(engine, ring, ktime_get_ns());
	spin_unlock_irq(&engine->lock);
	vgpu_ring_kick(ring);
}

/**
 * vgpu_ring_pause - begin nothing new and wait for what has begun
 * @ring: a ring of a device, not paused
 * @deadline: jiffies, vgpu_dma_deadline() of the caller
 *
 * Afterwards neither engine nor guest memory is used for this slice. The caller waits until all
 * finished items are answered. It also waits for the items of vgpu_ring_delays_pause(); such an
 * item waits for its turns on the engine as usual.
 *
 * Return: 0; or, without a pause, -EBUSY after the deadline, -EINTR when killed, -ENODEV when
 * the device is revoked meanwhile.
 */
int vgpu_ring_pause(struct vgpu_ring *ring, unsigned long deadline)
{
	struct vgpu_engine *engine = vgpu_ring_engine(ring);
	struct vgpu_device *device = ring->device;
	long left;

	spin_lock_irq(&engine->lock);
	reinit_completion(&ring->quiet);
	WRITE_ONCE(ring->paused, true);
	if (device->revoked)
		complete_all(&ring->quiet);
	if (!ring->dead && device->scheduled && !vgpu_ring_delays_pause(ring))
		vgpu_ring_rest(ring);
	spin_unlock_irq(&engine->lock);
	vgpu_ring_kick(ring);
	left = wait_for_completion_killable_timeout(&ring->quiet,
						    max_t(long, deadline - jiffies, 0));
	if (left > 0 && !READ_ONCE(device->revoked))
		return 0;
	vgpu_ring_continue(ring);
	if (READ_ONCE(device->revoked))
		return -ENODEV;
	return left ? -EINTR : -EBUSY;
}

/**
 * vgpu_ring_release - stop a ring and release the device's reference
 * @ring: the ring, no longer reachable through device->ring
 *
 * Waits for the slice's own worker, but never for the engine. The worker releases the ring even
 * during a page fault on memory that does not answer.
 */
void vgpu_ring_release(struct vgpu_ring *ring)
{
	vgpu_ring_stop(ring);
	vgpu_worker_leave(ring);
	kref_put(&ring->refs, vgpu_ring_free);
}
