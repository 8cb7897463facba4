// SPDX-License-Identifier: GPL-2.0
/*
 * What the module's threads take of the host's processors, and at which priority, so
 * that a slice whose items are over at once does not keep them from the others'.
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
 * After so long of brief items an engine's thread rests, and charges it; later if nobody
 * else wants the processor, before the kernel takes it from all that is in real time.
 */
#define VGPU_ENGINE_BUSY_NS	(200 * NSEC_PER_USEC)
#define VGPU_ENGINE_ALONE_NS	(500 * NSEC_PER_USEC)
#define VGPU_ENGINE_REST_NS	VGPU_ENGINE_NOTICE_NS

/* Above an engine's thread that is at brief items, which has the lowest. */
#define VGPU_WORKER_PRIORITY	2

/* Workers of an engine have real-time priority for one in so many ns of one processor's time. */
#define VGPU_RATION_PART	20
/* Saved by all of them together, where each may save enough to begin. */
#define VGPU_RATION_MOST_NS	(200LL * NSEC_PER_USEC)
#define VGPU_RATION_LEAST_NS	(50LL * NSEC_PER_USEC)
/*
 * Guest memory that takes long to answer in real time costs no more. Who worked much as any
 * task owes one sharer's part of it at most: 200 ms without work, and 1 ms for each sharer.
 */
#define VGPU_RATION_DEBT_NS	(10LL * NSEC_PER_MSEC)

/**
 * vgpu_engine_slept - others could have the processor
 * @engine: the engine; its thread only
 * @since_ns: from then until now
 */
void vgpu_engine_slept(struct vgpu_engine *engine, u64 since_ns)
{
	u64 slept_ns = ktime_get_ns() - since_ns;
	u64 paid_ns = slept_ns * (VGPU_ENGINE_BUSY_NS / VGPU_ENGINE_REST_NS);

	engine->slept_ns += slept_ns;
	engine->busy_ns -= min(engine->busy_ns, paid_ns);
}

/**
 * vgpu_engine_sleep - sleep, in the state that the caller has set
 * @engine: the engine; its thread only
 * @until_ns: at the latest until then, U64_MAX: until woken
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

/* For how long its thread has had a processor for the present item, or wanted one. */
static u64 vgpu_engine_awake_ns(const struct vgpu_engine *engine)
{
	return ktime_get_ns() - engine->began_ns - engine->slept_ns;
}

/**
 * vgpu_engine_set_pace - choose the priority of what follows
 * @engine: the engine; its thread only
 * @pace: what that is
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
 * vgpu_engine_rest - let others have the processor, if brief items keep it from them
 * @engine: the engine; its thread only, which has just executed one
 *
 * Hundreds of items that are over at once may be ready. An item that computes for longer
 * does not count: there the processor is the accelerator.
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
 * What the calling worker has used of processors. Exact after it slept or changed its
 * priority to another, else of the last tick.
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
 * vgpu_ration_start - a worker starts, which runs as any task
 * @ration: its slice's, which no other worker has any more
 *
 * What its predecessor earned or owes stays.
 */
void vgpu_ration_start(struct vgpu_ration *ration)
{
	ration->realtime = false;
	ration->used_ns = vgpu_ration_used_ns();
}

/* What was earned since it was last counted, less what the worker used as any task. */
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
 * vgpu_ration_begin - the calling worker has something to do
 * @ration: its slice's
 * @sharers: how many slices earn at the same time
 *
 * Whose worker has little to do gets a processor at once, however much those of others
 * have to do, behind which it would wait for milliseconds. Whoever uses more than a
 * VGPU_RATION_PARTth of a processor, as any task, has much to do.
 */
void vgpu_ration_begin(struct vgpu_ration *ration, u32 sharers)
{
	vgpu_ration_count(ration, sharers);
	if (!ration->realtime && ration->credit_ns >= VGPU_RATION_LEAST_NS)
		vgpu_ration_become_realtime(ration);
}

/**
 * vgpu_ration_end - the calling worker ends; its successor begins with what it owes
 * @ration: its slice's
 * @sharers: how many slices earn at the same time
 */
void vgpu_ration_end(struct vgpu_ration *ration, u32 sharers)
{
	if (!ration->realtime)
		sched_set_normal(current, 1);	/* for vgpu_ration_used_ns() to be exact */
	vgpu_ration_count(ration, sharers);
}

/**
 * vgpu_ration_use - the calling worker has worked, or waited for guest memory
 * @ration: its slice's; without credit it goes on as any task
 *
 * For after every piece of work: only here real time ends, and where the worker leaves it.
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
 * vgpu_ration_leave - the calling worker is about to do what may take long
 * @ration: its slice's; it goes on as any task, and without credit, so that it is in real time
 *	again only after a while
 */
void vgpu_ration_leave(struct vgpu_ration *ration)
{
	ration->credit_ns = min_t(s64, ration->credit_ns, 0);
	vgpu_ration_use(ration);
}
