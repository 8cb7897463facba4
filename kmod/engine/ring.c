// SPDX-License-Identifier: GPL-2.0
/*
 * One enabling of a slice's submission ring: its beginning, its doorbell and its
 * end. What happens in between is the worker's (engine/worker.c) and the engine's.
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

/* What operands, items and rings hold of a guest is cleared before it is freed. */
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
 * vgpu_ring_publish - make a ring the one that its device uses
 * @ring: just created, state_lock held
 *
 * Return: false if nothing can be executed, or not for this slice.
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
 * vgpu_storm_take - take what an action costs that brings no work
 * @device: engine->lock held
 * @tokens: how much
 *
 * Return: false when there is none left: such actions are tolerated at a bounded rate.
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
 * vgpu_device_throttle - hold up whoever enables, resets or pauses again and again
 * @device: state_lock held
 * @tokens: VGPU_STORM_ENABLE or VGPU_STORM_RESET
 *
 * None of these is refused: beyond a bounded rate the caller, the guest's own processor,
 * waits until there are so many tokens, which nobody else takes meanwhile.
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
		/* May end early: a wake-up that was meant for something else. */
		schedule_timeout_killable(msecs_to_jiffies(10));
	}
}

/**
 * vgpu_device_doorbell - the guest wrote its doorbell
 * @device: state_lock held
 * @tail: what it wrote
 *
 * That of a slice which has stopped is only counted: others need the engine's lock.
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
 * vgpu_ring_rest - the slice has no item that may run, and none will follow soon
 * @ring: of a slice that is scheduled, engine->lock held
 */
void vgpu_ring_rest(struct vgpu_ring *ring)
{
	struct vgpu_engine *engine = vgpu_ring_engine(ring);
	struct vgpu_slice *slice = &ring->device->slice;
	u64 now_ns = ktime_get_ns();

	/* Its executor's children have work or not, whatever becomes of its rings. */
	if (engine->ops->lends)
		return;
	vgpu_slice_sleep(&engine->sched, slice, now_ns);
	vgpu_slice_end_request(&engine->sched, slice, now_ns);
	/* It may have held the engine. */
	vgpu_engine_kick(engine);
}

/* engine->lock held. What must be freed without it goes to @dropped. */
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
 * vgpu_ring_stop - nothing more is fetched, executed or answered
 * @ring: any ring; stopping twice is harmless
 *
 * Does not wait: the item under execution is charged and dropped when its
 * chunk ends. The caller holds no engine->lock.
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
 * A slice that is being removed has no turn and no place any more, however long its VMM
 * keeps it; but while that has it open, what executes for it is charged until its end. A
 * slice without a tenant may be gone by then.
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
 * vgpu_device_stop - stop whatever works for a slice, for good
 * @device: the slice, parent->lock held; afterwards it is revoked
 *
 * Waits for nobody: an access to guest memory that is under way is broken off, which may
 * take until somebody else lets go of that memory.
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
	/* Its guest sees ones everywhere: nobody looks at what it is told. */
	vgpu_binding_end(device);
	vgpu_device_leave(device);
	spin_unlock_irq(&engine->lock);
	vgpu_items_free(&dropped);
}

/* The first ring's work ends for a reason that is not its own. False if there is none. */
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
 * vgpu_rings_fail - put every slice that is enabled into its sticky error state
 * @engine: executes nothing; its thread
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
 * vgpu_ring_delays_pause - is there an item that a pause waits for
 * @ring: not dead; engine->lock held
 *
 * For one that is on the engine, and for one that has begun and cannot begin anew
 * elsewhere. For no other: a guest chooses how long it takes, in turns of a share that may
 * be small.
 */
bool vgpu_ring_delays_pause(struct vgpu_ring *ring)
{
	const struct vgpu_item *item;

	item = list_first_entry_or_null(&ring->ready, struct vgpu_item, node);
	return item && (item == vgpu_ring_engine(ring)->executing ||
			(item->run_ns && !vgpu_item_restarts(item)));
}

/**
 * vgpu_ring_chunk_done - an item of a ring has left the engine before its end
 * @ring: not dead; engine->lock held
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
 * @ring: paused
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
 * vgpu_ring_pause - let nothing new begin and wait for what has begun
 * @ring: of a device, not paused
 * @deadline: jiffies, vgpu_dma_deadline() of the caller
 *
 * Afterwards neither engine nor guest memory is used for this slice. The caller waits for
 * the items that have ended to be answered, and for one of vgpu_ring_delays_pause(), which waits
 * for its turns on the engine as ever.
 *
 * Return: 0; -EBUSY after the deadline, -EINTR when killed, -ENODEV when the device is
 * revoked meanwhile, all without a pause.
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
 * vgpu_ring_release - stop a ring and give up the device's reference
 * @ring: no longer reachable through device->ring
 *
 * Waits for the slice's own worker, which lets go even in the middle of a fault on memory
 * that does not answer; never waits for the engine.
 */
void vgpu_ring_release(struct vgpu_ring *ring)
{
	vgpu_ring_stop(ring);
	vgpu_worker_leave(ring);
	kref_put(&ring->refs, vgpu_ring_free);
}
