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

#include "engine.h"
#include "processor.h"

/* After so long of items that are over at once an engine's thread rests, and charges it. */
#define VGPU_ENGINE_BUSY_NS	(200 * NSEC_PER_USEC)
#define VGPU_ENGINE_REST_NS	VGPU_ENGINE_NOTICE_NS

/* Workers of an engine have real-time priority for one in so many ns of one processor's time. */
#define VGPU_RATION_PART	20
/* Saved by all of them together, where each may save enough to begin. */
#define VGPU_RATION_MOST_NS	(200LL * NSEC_PER_USEC)
#define VGPU_RATION_LEAST_NS	(50LL * NSEC_PER_USEC)
/*
 * Guest memory that takes long to answer in real time costs no more. Who worked much as any
 * task owes one sharer's part of it at most, and so has real time again 200 ms later.
 */
#define VGPU_RATION_DEBT_NS	(10LL * NSEC_PER_MSEC)

/**
 * vgpu_engine_set_realtime - choose the priority of what follows
 * @engine: the engine; its thread only
 * @realtime: for sleeping with a deadline, which must not wait for another task's
 *	turn to end; not for work that uses a processor, nor for what a guest can ask
 *	for that is over before VGPU_ENGINE_REALTIME_NS: one after the other of those
 *	would keep a processor from all other tasks
 *
 * Above the real time of workers: what comes after a decision is for all slices.
 */
void vgpu_engine_set_realtime(struct vgpu_engine *engine, bool realtime)
{
	if (engine->realtime == realtime)
		return;
	engine->realtime = realtime;
	if (realtime) {
		sched_set_fifo(current);
	} else {
		sched_set_normal(current, MIN_NICE);
		engine->busy_ns = 0;
	}
}

/**
 * vgpu_engine_rest - let others have the processor, if items keep it from them
 * @engine: the engine; its thread only, which has just executed one
 *
 * Hundreds of items that are over at once may be ready, and a thread of lowest nice value
 * that never sleeps loses its processor to nobody for milliseconds. An item that computes
 * for longer does not count: there the processor is the accelerator.
 */
void vgpu_engine_rest(struct vgpu_engine *engine)
{
	u64 now_ns, took_ns;
	ktime_t until;

	if (engine->realtime)
		return;
	now_ns = ktime_get_ns();
	took_ns = now_ns - engine->began_ns;
	if (took_ns >= VGPU_ENGINE_REALTIME_NS)
		return;
	engine->busy_ns += took_ns;
	if (engine->busy_ns < VGPU_ENGINE_BUSY_NS)
		return;
	engine->busy_ns = 0;
	if (single_task_running())
		return;
	vgpu_engine_set_realtime(engine, true);
	until = ns_to_ktime(now_ns + VGPU_ENGINE_REST_NS);
	set_current_state(TASK_IDLE);
	if (!kthread_should_stop())
		schedule_hrtimeout_range(&until, 0, HRTIMER_MODE_ABS);
	__set_current_state(TASK_RUNNING);
}

/*
 * What the calling worker has used of processors. Exact after it slept or changed its
 * priority, else of the last tick.
 */
static u64 vgpu_ration_used_ns(void)
{
	return READ_ONCE(current->se.sum_exec_runtime);
}

static void vgpu_ration_become_realtime(struct vgpu_ration *ration)
{
	ration->realtime = true;
	sched_set_fifo_low(current);
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
 * What its predecessor earned or owes stays, but for what it used since it last began.
 */
void vgpu_ration_start(struct vgpu_ration *ration)
{
	ration->realtime = false;
	ration->used_ns = vgpu_ration_used_ns();
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
	if (!ration->realtime && ration->credit_ns >= VGPU_RATION_LEAST_NS)
		vgpu_ration_become_realtime(ration);
}

/**
 * vgpu_ration_use - the calling worker has worked, or waited for guest memory
 * @ration: its slice's; without credit it goes on as any task
 *
 * For after every piece of work: only here real time ends.
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
