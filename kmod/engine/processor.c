// SPDX-License-Identifier: GPL-2.0
/*
 * How much the module's threads use the host's processors, and at which priority. A slice with
 * many very short items must not keep the processors from other slices.
 */
#include <linux/hrtimer.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/sched.h>
#include <linux/sched/stat.h>
#include <uapi/linux/sched/types.h>

#include "engine/engine.h"
#include "engine/processor.h"

/*
 * After this much time at brief items an engine's thread sleeps for VGPU_ENGINE_REST_NS, and
 * that sleep is charged to the slice. If no other task wants the processor, the thread sleeps
 * only after VGPU_ENGINE_ALONE_NS, which is still before the kernel throttles all real-time
 * tasks.
 */
#define VGPU_ENGINE_BUSY_NS	(200 * NSEC_PER_USEC)
#define VGPU_ENGINE_ALONE_NS	(500 * NSEC_PER_USEC)
#define VGPU_ENGINE_REST_NS	VGPU_ENGINE_NOTICE_NS

/*
 * Higher than the priority of an engine's thread at brief items, which is the lowest real-time
 * priority.
 */
#define VGPU_WORKER_PRIORITY	2

/* The workers of an engine may use this fraction of one processor at real-time priority. */
#define VGPU_RATION_PART	20
/*
 * The most that all workers together can save up. However many workers share it, each can save
 * up the least credit with which a worker becomes real time.
 */
#define VGPU_RATION_MOST_NS	(200LL * NSEC_PER_USEC)
#define VGPU_RATION_LEAST_NS	(50LL * NSEC_PER_USEC)
/*
 * The most that a worker can owe for time at real-time priority, for example while guest
 * memory takes long to answer. For work as a normal task, the worker owes at most this debt
 * divided by the number of sharers. To earn that back takes 200 ms without work, and 1 ms more
 * for each sharer.
 */
#define VGPU_RATION_DEBT_NS	(10LL * NSEC_PER_MSEC)

/**
 * vgpu_engine_slept - account for time in which other tasks could have the processor
 * @engine: the engine; its thread only
 * @since_ns: beginning of that time, which ends now
 */
void vgpu_engine_slept(struct vgpu_engine *engine, u64 since_ns)
{
	u64 slept_ns = ktime_get_ns() - since_ns;
	u64 paid_ns = slept_ns * (VGPU_ENGINE_BUSY_NS / VGPU_ENGINE_REST_NS);

	engine->slept_ns += slept_ns;
	engine->busy_ns -= min(engine->busy_ns, paid_ns);
}

/**
 * vgpu_engine_sleep - sleep, in the task state that the caller has set
 * @engine: the engine; its thread only
 * @until_ns: sleep at most until then, U64_MAX: until woken
 */
void vgpu_engine_sleep(struct vgpu_engine *engine, u64 until_ns)
{
	ktime_t until = ns_to_ktime(until_ns);
	u64 since_ns = ktime_get_ns();

	if (until_ns == U64_MAX)
		schedule();
	else
		schedule_hrtimeout_range(&until, 0, HRTIMER_MODE_ABS);
	vgpu_engine_slept(engine, since_ns);
}

/* How long the engine's thread has had, or wanted, a processor for the present item. */
static u64 vgpu_engine_awake_ns(const struct vgpu_engine *engine)
{
	return ktime_get_ns() - engine->began_ns - engine->slept_ns;
}

/**
 * vgpu_engine_set_pace - set the priority for what follows
 * @engine: the engine; its thread only
 * @pace: kind of work that follows
 */
void vgpu_engine_set_pace(struct vgpu_engine *engine, enum vgpu_engine_pace pace)
{
	enum vgpu_engine_pace before = engine->pace;

	if (before == pace)
		return;
	engine->pace = pace;
	if (before == VGPU_ENGINE_BRIEF && pace == VGPU_ENGINE_COMPUTES)
		engine->busy_ns += vgpu_engine_awake_ns(engine);
	switch (pace) {
	case VGPU_ENGINE_COMPUTES:
		sched_set_normal(current, MIN_NICE);
		return;
	case VGPU_ENGINE_BRIEF:
		sched_set_fifo_low(current);
		return;
	case VGPU_ENGINE_WAITS:
		sched_set_fifo(current);
		return;
	}
}

/**
 * vgpu_engine_rest - give other tasks the processor, if brief items have kept it for too long
 * @engine: the engine; its thread only, which has just executed an item
 *
 * Hundreds of very short items may be ready. The time of an item that computes for longer does
 * not count, because in that case the processor is the accelerator.
 */
void vgpu_engine_rest(struct vgpu_engine *engine)
{
	if (engine->pace == VGPU_ENGINE_WAITS)
		return;
	if (engine->pace == VGPU_ENGINE_BRIEF)
		engine->busy_ns += vgpu_engine_awake_ns(engine);
	if (engine->busy_ns < (single_task_running() ? VGPU_ENGINE_ALONE_NS : VGPU_ENGINE_BUSY_NS))
		return;
	engine->busy_ns = 0;
	vgpu_engine_set_pace(engine, VGPU_ENGINE_WAITS);
	set_current_state(TASK_IDLE);
	if (!kthread_should_stop())
		vgpu_engine_sleep(engine, ktime_get_ns() + VGPU_ENGINE_REST_NS);
	__set_current_state(TASK_RUNNING);
}

/*
 * Processor time that the calling worker has used. It is exact after the worker slept or
 * changed its priority; otherwise it is as of the last tick.
 */
static u64 vgpu_ration_used_ns(void)
{
	return READ_ONCE(current->se.sum_exec_runtime);
}

static void vgpu_ration_become_realtime(struct vgpu_ration *ration)
{
	const struct sched_attr attr = {
		.size = sizeof(attr),
		.sched_policy = SCHED_FIFO,
		.sched_priority = VGPU_WORKER_PRIORITY,
	};

	ration->realtime = true;
	sched_setattr_nocheck(current, &attr);
}

static void vgpu_ration_become_normal(struct vgpu_ration *ration)
{
	ration->realtime = false;
	sched_set_normal(current, 0);
	ration->used_ns = vgpu_ration_used_ns();
}

/**
 * vgpu_ration_start - begin a worker, as a normal task
 * @ration: ration of the worker's slice; no other worker uses it any more
 *
 * The credit or debt of its predecessor stays.
 */
void vgpu_ration_start(struct vgpu_ration *ration)
{
	ration->realtime = false;
	ration->used_ns = vgpu_ration_used_ns();
}

/* Add what was earned since the last count, less what the worker used as a normal task. */
static void vgpu_ration_count(struct vgpu_ration *ration, u32 sharers)
{
	u64 now_ns = ktime_get_ns();
	s64 earned_ns, most_ns, least_ns;

	sharers = max(sharers, 1U);
	earned_ns = (now_ns - ration->counted_ns) / VGPU_RATION_PART;
	ration->counted_ns = now_ns;
	if (!ration->realtime) {
		u64 used_ns = vgpu_ration_used_ns();

		earned_ns -= used_ns - ration->used_ns;
		ration->used_ns = used_ns;
	}
	most_ns = max(VGPU_RATION_MOST_NS / sharers, VGPU_RATION_LEAST_NS);
	least_ns = min(ration->credit_ns, -VGPU_RATION_DEBT_NS / sharers);
	ration->credit_ns = clamp(ration->credit_ns + div64_s64(earned_ns, sharers),
				  least_ns, most_ns);
}

/**
 * vgpu_ration_begin - begin work of the calling worker
 * @ration: ration of the worker's slice
 * @sharers: how many slices earn at the same time
 *
 * A worker with little to do runs at once at real-time priority; otherwise it would wait
 * milliseconds behind busy workers. A worker that uses more than 1/VGPU_RATION_PART of a
 * processor as a normal task counts as busy.
 */
void vgpu_ration_begin(struct vgpu_ration *ration, u32 sharers)
{
	vgpu_ration_count(ration, sharers);
	if (!ration->realtime && ration->credit_ns >= VGPU_RATION_LEAST_NS)
		vgpu_ration_become_realtime(ration);
}

/**
 * vgpu_ration_end - end the calling worker; its successor inherits credit and debt
 * @ration: ration of the worker's slice
 * @sharers: how many slices earn at the same time
 */
void vgpu_ration_end(struct vgpu_ration *ration, u32 sharers)
{
	if (!ration->realtime)
		sched_set_normal(current, 1);	/* for vgpu_ration_used_ns() to be exact */
	vgpu_ration_count(ration, sharers);
}

/**
 * vgpu_ration_use - charge the calling worker, which has worked or waited for guest memory
 * @ration: ration of the worker's slice; without credit the worker continues as a normal task
 *
 * Call this after every piece of work: real-time priority ends only here and in
 * vgpu_ration_leave().
 */
void vgpu_ration_use(struct vgpu_ration *ration)
{
	u64 now_ns;

	if (!ration->realtime)
		return;
	now_ns = ktime_get_ns();
	ration->credit_ns = max(ration->credit_ns - (s64)(now_ns - ration->counted_ns),
				-VGPU_RATION_DEBT_NS);
	ration->counted_ns = now_ns;
	if (ration->credit_ns <= 0)
		vgpu_ration_become_normal(ration);
}

/**
 * vgpu_ration_leave - leave real-time priority before something that may take long
 * @ration: ration of the worker's slice; the worker continues as a normal task without credit,
 *	so that it returns to real-time priority only after a while
 */
void vgpu_ration_leave(struct vgpu_ration *ration)
{
	ration->credit_ns = min_t(s64, ration->credit_ns, 0);
	vgpu_ration_use(ration);
}
