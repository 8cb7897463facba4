// SPDX-License-Identifier: GPL-2.0
/*
 * One thread per accelerator: it asks the scheduler which slice has its turn, executes a
 * chunk of that slice's first item, and reports the result.
 *
 * The thread never touches guest memory and never waits for anything except the engine
 * itself. It parks without a timer when nothing is ready. It parks with a timer when
 * only throttled slices have work, when the engine is held for an item that follows, or
 * during the turn of a slice without work under a policy that keeps its turn.
 */
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/sched.h>

#include "engine/engine.h"
#include "engine/item.h"
#include "engine/processor.h"
#include "engine/ring.h"
#include "trace.h"

#define VGPU_ENGINE_CHUNK_MIN_NS	(10 * NSEC_PER_USEC)
#define VGPU_ENGINE_CHUNK_MAX_NS	(400 * NSEC_PER_USEC)

/**
 * vgpu_engine_trace_hold - trace that a holder stops paying for the idle engine
 * @engine: the engine, engine->lock held; the time until now is charged
 */
void vgpu_engine_trace_hold(struct vgpu_engine *engine)
{
	const struct vgpu_slice *holder = engine->holder;
	u64 length_ns;

	lockdep_assert_held(&engine->lock);
	if (!holder)
		return;
	engine->holder = NULL;
	length_ns = holder->group->stats.hold_ns - engine->held_ns;
	if (length_ns)
		trace_vgpu_hold(engine, holder, length_ns);
}

/**
 * vgpu_engine_advance - charge the time until now
 * @engine: the engine, engine->lock held
 * @now_ns: the present
 *
 * Call this before any call of the scheduler.
 *
 * Return: the present, as it must be passed to the scheduler.
 */
u64 vgpu_engine_advance(struct vgpu_engine *engine, u64 now_ns)
{
	if (engine->ops->lends)
		now_ns = vgpu_arbiter_settle(&engine->arbiter, now_ns);
	vgpu_sched_advance(&engine->sched, now_ns);
	return now_ns;
}

/**
 * vgpu_engine_settle - bring the counters of a group up to date
 * @engine: the engine, engine->lock held
 * @group: a group of this engine
 * @now_ns: the present
 *
 * Call this before the counters are read, and before any call that would update them
 * without a trace.
 *
 * Return: the present, as it must be passed to the scheduler.
 */
u64 vgpu_engine_settle(struct vgpu_engine *engine, struct vgpu_group *group, u64 now_ns)
{
	u64 before_ns;

	lockdep_assert_held(&engine->lock);
	now_ns = vgpu_engine_advance(engine, now_ns);
	before_ns = group->stats.ghost_ns;
	vgpu_group_settle(group);
	if (group->stats.ghost_ns != before_ns)
		trace_vgpu_parked(engine, group, group->stats.ghost_ns - before_ns);
	return now_ns;
}

/*
 * @before: the owner of the engine until the decision, or NULL
 */
static void vgpu_engine_trace(struct vgpu_engine *engine, const struct vgpu_slice *before,
			      const struct vgpu_decision *decision)
{
	const struct vgpu_slice *owner = decision->slice;

	vgpu_engine_trace_hold(engine);
	if (decision->ended.valid)
		trace_vgpu_run_end(engine, before, &decision->ended);
	if (decision->idle == VGPU_IDLE_HOLD) {
		engine->holder = decision->payer;
		engine->held_since_ns = engine->sched.now_ns;
		engine->held_ns = decision->payer->group->stats.hold_ns;
	} else if (decision->idle == VGPU_IDLE_GHOST) {
		owner = decision->payer;
	}
	if (owner && engine->sched.run_start_ns == engine->sched.now_ns) {
		vgpu_engine_settle(engine, owner->group, engine->sched.now_ns);
		trace_vgpu_run_begin(engine, owner, decision->switched);
	}
}

/**
 * vgpu_engine_stops - like vgpu_engine_busy_until(), with the engine's lock held
 * @engine: the engine, engine->lock held; its thread waits for the item
 * @until_ns: when the engine is done; if that is in the past, time charged already stays
 *	charged
 */
void vgpu_engine_stops(struct vgpu_engine *engine, u64 until_ns)
{
	lockdep_assert_held(&engine->lock);
	engine->stops_ns = max(until_ns + VGPU_ENGINE_NOTICE_NS,
			       min(engine->stops_ns, engine->sched.now_ns));
	vgpu_sched_busy_until(&engine->sched, max(engine->stops_ns, engine->sched.now_ns));
}

/**
 * vgpu_engine_busy_until - set when the executing item will stop
 * @engine: the engine; called by its thread, or by an interrupt while the thread waits
 * @until_ns: when the engine is done, however late the thread notices
 *
 * The thread may get the processor late because of an interrupt, or because the kernel
 * rarely preempts itself. That delay costs engine time, but no tenant is charged for it.
 */
void vgpu_engine_busy_until(struct vgpu_engine *engine, u64 until_ns)
{
	unsigned long flags;

	spin_lock_irqsave(&engine->lock, flags);
	vgpu_engine_stops(engine, until_ns);
	spin_unlock_irqrestore(&engine->lock, flags);
}

/**
 * vgpu_engine_wedge - record that the hardware does not answer any more
 * @engine: the engine; its thread only
 *
 * No ring can be enabled from now on, and all work ends once @execute has returned.
 */
void vgpu_engine_wedge(struct vgpu_engine *engine)
{
	spin_lock_irq(&engine->lock);
	WRITE_ONCE(engine->wedged, true);
	spin_unlock_irq(&engine->lock);
}

/* Wait until there may be something to execute. Releases engine->lock. */
static void vgpu_engine_park(struct vgpu_engine *engine, u64 wake_at_ns)
	__releases(&engine->lock)
{
	set_current_state(TASK_IDLE);
	engine->parked = true;
	spin_unlock_irq(&engine->lock);
	vgpu_engine_set_pace(engine, VGPU_ENGINE_WAITS);
	if (kthread_should_stop())
		__set_current_state(TASK_RUNNING);
	else
		vgpu_engine_sleep(engine, wake_at_ns);
}

/*
 * If the engine knows how long @item will last, set the bound of the charge before
 * anybody else can take the lock, because the thread may begin late.
 */
static void vgpu_engine_foresee(struct vgpu_engine *engine, const struct vgpu_item *item,
				u64 *limit_ns)
{
	u64 ns = U64_MAX;

	if (engine->ops->lasts_ns)
		ns = engine->ops->lasts_ns(engine, item, *limit_ns);
	if (ns == U64_MAX)
		return;
	*limit_ns = ns;
	vgpu_engine_stops(engine, engine->began_ns + VGPU_ENGINE_NOTICE_NS + ns);
}

/*
 * Ask the scheduler. Returns the item to execute for at most *limit_ns, or NULL after
 * having waited. The item stays first in its ring meanwhile; it and its slice are
 * charged from engine->began_ns.
 */
static struct vgpu_item *vgpu_engine_next(struct vgpu_engine *engine, u64 *limit_ns)
{
	struct vgpu_decision decision;
	struct vgpu_slice *before;
	struct vgpu_device *device;
	struct vgpu_item *item;

	spin_lock_irq(&engine->lock);
	if (engine->ops->lends) {
		vgpu_engine_park(engine, U64_MAX);
		return NULL;
	}
	engine->parked = false;
	before = engine->sched.owner;
	vgpu_sched_pick(&engine->sched, ktime_get_ns(), &decision);
	vgpu_engine_trace(engine, before, &decision);
	vgpu_reports.decided(engine, before, &decision);
	if (!decision.slice) {
		vgpu_engine_park(engine, decision.wake_at_ns);
		return NULL;
	}
	device = vgpu_slice_to_device(decision.slice);
	item = list_first_entry(&device->ring->ready, struct vgpu_item, node);
	engine->executing = item;
	engine->stops_ns = U64_MAX;
	*limit_ns = decision.limit_ns;
	engine->began_ns = engine->sched.now_ns;
	engine->slept_ns = 0;
	vgpu_engine_foresee(engine, item, limit_ns);
	spin_unlock_irq(&engine->lock);
	return item;
}

/*
 * Remove the first item of @ring, which is complete. Its successor becomes the first
 * item if it may begin.
 */
static void vgpu_engine_item_done(struct vgpu_engine *engine, struct vgpu_ring *ring, u64 now_ns)
{
	struct vgpu_slice *slice = &ring->device->slice;
	const struct vgpu_item *next = NULL;
	struct vgpu_item_info info;

	if (!ring->paused)
		next = list_first_entry_or_null(&ring->ready, struct vgpu_item, node);
	if (next)
		info = vgpu_item_info(next);
	vgpu_slice_item_done(&engine->sched, slice, next ? &info : NULL, now_ns);
	if (ring->paused)
		vgpu_slice_end_request(&engine->sched, slice, now_ns);
}

/*
 * Charge a chunk that has just ended: until now, even if another end was predicted. The
 * owner also pays for the next decision, but only within its timeslice and its caps.
 * Charge before the chunk's ring is released, because a caller that waits for the
 * release then reads the counters.
 */
static void vgpu_engine_stopped(struct vgpu_engine *engine, u64 now_ns)
{
	u64 until_ns = max(now_ns, min(engine->stops_ns, now_ns + VGPU_ENGINE_NOTICE_NS));

	vgpu_sched_advance(&engine->sched, now_ns);
	engine->stops_ns = min(until_ns, now_ns + vgpu_sched_left_ns(&engine->sched));
	vgpu_sched_busy_until(&engine->sched, engine->stops_ns);
}

/* Account for a chunk of @item; hand a finished item to its worker. */
static void vgpu_engine_account(struct vgpu_engine *engine, struct vgpu_item *item,
				bool finished)
{
	struct vgpu_ring *ring = item->ring;
	u64 now_ns;

	spin_lock_irq(&engine->lock);
	now_ns = ktime_get_ns();
	engine->executing = NULL;
	item->run_ns += min(now_ns, engine->stops_ns) - engine->began_ns;
	vgpu_engine_stopped(engine, now_ns);
	if (ring->dead) {
		list_del(&item->node);
		vgpu_item_free_late(item);
		if (engine->leaving)
			vgpu_device_unschedule(engine->leaving, now_ns);
	} else if (finished) {
		list_move_tail(&item->node, &ring->done);
		vgpu_ring_kick(ring);
		if (ring->device->scheduled)
			vgpu_engine_item_done(engine, ring, now_ns);
	} else {
		vgpu_ring_chunk_done(ring);
	}
	spin_unlock_irq(&engine->lock);
}

static int vgpu_engine_thread(void *data)
{
	struct vgpu_engine *engine = data;

	sched_set_normal(current, MIN_NICE);
	while (!kthread_should_stop()) {
		struct vgpu_item *item;
		bool finished;
		u64 limit_ns;

		item = vgpu_engine_next(engine, &limit_ns);
		if (!item)
			continue;
		finished = engine->ops->execute(engine, item, limit_ns);
		vgpu_engine_account(engine, item, finished);
		vgpu_engine_rest(engine);
		if (engine->wedged)
			vgpu_rings_fail(engine, VGPU_ERROR_ENGINE);
		cond_resched();
	}
	return 0;
}

/**
 * vgpu_engine_kick - have the engine decide again
 * @engine: the engine, engine->lock held
 */
void vgpu_engine_kick(struct vgpu_engine *engine)
{
	lockdep_assert_held(&engine->lock);
	if (engine->ops->lends)
		vgpu_arbiter_changed(&engine->arbiter, ktime_get_ns());
	if (!engine->parked || engine->ops->lends)
		return;
	engine->parked = false;
	wake_up_process(engine->thread);
}

/*
 * Announce the first item of @ring to the scheduler. The ring has an item, and the item
 * may run.
 */
static void vgpu_engine_announce(struct vgpu_engine *engine, struct vgpu_ring *ring, u64 now_ns)
{
	const struct vgpu_item *item = list_first_entry(&ring->ready, struct vgpu_item, node);
	struct vgpu_item_info info = vgpu_item_info(item);
	struct vgpu_slice *slice = &ring->device->slice;

	/*
	 * End the request first, so that the gap since the last item is not learnt as a
	 * gap after that item's kernel.
	 */
	if (le16_to_cpu(item->desc.flags) & VGPU_DESC_END)
		vgpu_slice_end_request(&engine->sched, slice, now_ns);
	vgpu_slice_announce(&engine->sched, slice, &info, now_ns);
	trace_vgpu_ready(engine, slice, now_ns);
	vgpu_engine_kick(engine);
}

/**
 * vgpu_engine_resume - announce the first item of a ring, if it has one that may run
 * @engine: the engine, engine->lock held
 * @ring: any ring; announcing twice is harmless
 * @now_ns: the present
 */
void vgpu_engine_resume(struct vgpu_engine *engine, struct vgpu_ring *ring, u64 now_ns)
{
	struct vgpu_device *device = ring->device;

	lockdep_assert_held(&engine->lock);
	if (!ring->dead && !ring->paused && device->scheduled && !list_empty(&ring->ready))
		vgpu_engine_announce(engine, ring, now_ns);
}

/**
 * vgpu_engine_params - read the parameters in force, consistently
 * @engine: the engine
 */
struct vgpu_sched_params vgpu_engine_params(struct vgpu_engine *engine)
{
	struct vgpu_sched_params params;

	spin_lock_irq(&engine->lock);
	params = engine->sched.params;
	spin_unlock_irq(&engine->lock);
	return params;
}

/**
 * vgpu_engine_configure - change how an engine is shared
 * @engine: the engine
 * @params: all parameters; the caller serializes changes
 *
 * Return: VGPU_FIELD_NONE, or what the scheduler refused.
 */
enum vgpu_sched_field vgpu_engine_configure(struct vgpu_engine *engine,
					    const struct vgpu_sched_params *params)
{
	enum vgpu_sched_field fault;

	spin_lock_irq(&engine->lock);
	fault = vgpu_sched_set_params(&engine->sched, params,
				      vgpu_engine_advance(engine, ktime_get_ns()));
	/* The engine may be sleeping for the turn of a place that is gone. */
	if (!fault)
		vgpu_engine_kick(engine);
	spin_unlock_irq(&engine->lock);
	return fault;
}

/**
 * vgpu_engine_start - start an engine and its thread
 * @engine: zeroed storage for the engine
 * @ops: the implementation; it drives @pdev
 * @pdev: the accelerator
 * @name: name of the accelerator
 *
 * Return: 0; -ERANGE if a switch takes longer than the scheduler allows; or another
 * negative errno. On error nothing is left behind.
 */
int vgpu_engine_start(struct vgpu_engine *engine, const struct vgpu_engine_ops *ops,
		      struct pci_dev *pdev, const char *name)
{
	struct vgpu_sched_params params = {
		.max_chunk_ns = VGPU_ENGINE_CHUNK_MAX_NS,
		.min_chunk_ns = VGPU_ENGINE_CHUNK_MIN_NS,
		.reserve_limit_permille = VGPU_RESERVE_LIMIT_MAX,
	};
	struct vgpu_calibration calibration = {};
	struct task_struct *thread;
	int ret = -ERANGE;

	engine->ops = ops;
	engine->name = name;
	spin_lock_init(&engine->lock);
	INIT_LIST_HEAD(&engine->rings);
	vgpu_lending_init(engine);
	engine->state = ops->start(engine, pdev, &calibration);
	if (IS_ERR(engine->state))
		return PTR_ERR(engine->state);
	engine->fact_ps = calibration.fact_ps;
	params.switch_cost_ns = calibration.switch_cost_ns;
	params.max_chunk_ns = calibration.max_chunk_ns ?: params.max_chunk_ns;
	if (vgpu_sched_init(&engine->sched, &params, ktime_get_ns()))
		goto stop;
	vgpu_lending_begin(engine, ktime_get_ns());
	ret = vgpu_reports.start(engine);
	if (ret)
		goto stop;
	thread = kthread_create(vgpu_engine_thread, engine, "vgpu/%s", name);
	ret = PTR_ERR_OR_ZERO(thread);
	if (ret)
		goto events;
	engine->thread = thread;
	wake_up_process(thread);
	return 0;

events:
	vgpu_reports.stop(engine);
stop:
	ops->stop(engine->state);
	return ret;
}

static bool vgpu_engine_is_executing(struct vgpu_engine *engine)
{
	bool executing;

	spin_lock_irq(&engine->lock);
	executing = engine->executing;
	spin_unlock_irq(&engine->lock);
	return executing;
}

/**
 * vgpu_engine_change - replace the implementation that executes
 * @engine: a started engine; the caller keeps slices and tenants away
 * @ops: the implementation; it drives @pdev
 * @pdev: the accelerator
 *
 * Return: 0; -EBUSY while the last item of a slice that is gone executes; -ERANGE if a
 * switch takes longer than the scheduler allows; or another negative errno. On error
 * nothing has changed.
 */
int vgpu_engine_change(struct vgpu_engine *engine, const struct vgpu_engine_ops *ops,
		       struct pci_dev *pdev)
{
	struct vgpu_calibration calibration = {};
	struct vgpu_sched_params params;
	enum vgpu_sched_field fault;
	void *state;

	if (ops == engine->ops)
		return 0;
	if (vgpu_engine_is_executing(engine))
		return -EBUSY;
	state = ops->start(engine, pdev, &calibration);
	if (IS_ERR(state))
		return PTR_ERR(state);
	spin_lock_irq(&engine->lock);
	params = engine->sched.params;
	params.switch_cost_ns = calibration.switch_cost_ns;
	params.max_chunk_ns = calibration.max_chunk_ns ?: params.max_chunk_ns;
	fault = vgpu_sched_set_params(&engine->sched, &params,
				      vgpu_engine_advance(engine, ktime_get_ns()));
	if (!fault) {
		swap(engine->state, state);
		swap(engine->ops, ops);
		vgpu_lending_begin(engine, ktime_get_ns());
		engine->fact_ps = calibration.fact_ps;
		WRITE_ONCE(engine->wedged, false);
	}
	/* The thread parked for the old implementation; the new one may have work. */
	wake_up_process(engine->thread);
	spin_unlock_irq(&engine->lock);
	ops->stop(state);
	return fault ? -ERANGE : 0;
}

/**
 * vgpu_engine_stop - end the thread
 * @engine: a started engine without any scheduled slice
 *
 * Waits for at most one chunk.
 */
void vgpu_engine_stop(struct vgpu_engine *engine)
{
	kthread_stop(engine->thread);
	hrtimer_cancel(&engine->lease_timer);
	vgpu_reports.stop(engine);
	engine->ops->stop(engine->state);
}
