// SPDX-License-Identifier: GPL-2.0
/*
 * The thread of an executor: wakes who waits for grants, bytes and the end.
 *
 * As many may wait as like, in any number of epoll instances, for which others may wait in
 * turn. To wake them all can take long, with interrupts off on that processor. So it is done
 * without engine->lock, by a thread that no other slice waits for, and that has half of a
 * processor at most.
 */
#include <linux/hrtimer.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/sched.h>
#include <linux/wait.h>
#include <uapi/linux/sched/types.h>

#include "executor.h"

/* For less time than the first nobody rests; after the second another time is looked at. */
#define EXEC_WAKING_NS		(100 * NSEC_PER_USEC)
#define EXEC_USAGE_NS		(10 * NSEC_PER_MSEC)

/* What a thread had of a processor since when. */
struct vgpu_executor_usage {
	u64 since_ns;
	u64 ran_ns;
};

/* Whatever happens meanwhile, but the end. */
static void vgpu_executor_sleep(u64 until_ns)
{
	ktime_t until = ns_to_ktime(until_ns);

	for (;;) {
		set_current_state(TASK_IDLE);
		if (kthread_should_stop() || ktime_get_ns() >= until_ns)
			break;
		schedule_hrtimeout_range(&until, 0, HRTIMER_MODE_ABS);
	}
	__set_current_state(TASK_RUNNING);
}

/* Half of a processor at most is for waking: who has more woken than that is told late. */
static void vgpu_executor_rest(struct vgpu_executor_usage *usage)
{
	/* Of the time until it was last interrupted by the tick, or slept. */
	u64 ran_ns = READ_ONCE(current->se.sum_exec_runtime);
	u64 used_ns = ran_ns - usage->ran_ns;
	u64 passed_ns = ktime_get_ns() - usage->since_ns;

	if (used_ns > EXEC_WAKING_NS && 2 * used_ns > passed_ns)
		vgpu_executor_sleep(usage->since_ns + 2 * used_ns);
	else if (passed_ns < EXEC_USAGE_NS)
		return;
	usage->since_ns = ktime_get_ns();
	usage->ran_ns = ran_ns;
}

/* Wakes who waits, whenever there is something to be told. */
static int vgpu_executor_notifier(void *data)
{
	struct vgpu_executor_usage usage = {};
	struct vgpu_executor *executor = data;

	for (;;) {
		set_current_state(TASK_IDLE);
		if (kthread_should_stop())
			break;
		if (!xchg(&executor->pending, false)) {
			schedule();
			continue;
		}
		__set_current_state(TASK_RUNNING);
		wake_up_all(&executor->wait);
		vgpu_executor_rest(&usage);
		cond_resched();
	}
	__set_current_state(TASK_RUNNING);
	return 0;
}

/**
 * vgpu_executor_notify - wake who waits for a change just made
 * @executor: attached and not released; engine->lock held
 */
void vgpu_executor_notify(struct vgpu_executor *executor)
{
	if (!xchg(&executor->pending, true))
		wake_up_process(executor->notifier);
}

/* As the present task is, which attaches: it decides how soon it is told. */
static void vgpu_executor_prioritize(struct task_struct *notifier)
{
	struct sched_attr attr = { .size = sizeof(attr) };

	/* Others may change both meanwhile. */
	attr.sched_policy = READ_ONCE(current->policy);
	attr.sched_priority = READ_ONCE(current->rt_priority);
	if (attr.sched_policy == SCHED_DEADLINE) {
		attr.sched_policy = SCHED_FIFO;
		attr.sched_priority = MAX_RT_PRIO / 2;
	} else if ((attr.sched_policy != SCHED_FIFO && attr.sched_policy != SCHED_RR) ||
		   !attr.sched_priority) {
		attr.sched_policy = SCHED_NORMAL;
		attr.sched_priority = 0;
		attr.sched_nice = task_nice(current);
	}
	sched_setattr_nocheck(notifier, &attr);
}

/**
 * vgpu_executor_start - start the thread that wakes who waits for an executor
 * @executor: there until the thread is stopped
 * @uuid: of the slice, for the thread's name
 *
 * Return: the thread, for kthread_stop(), or a negative errno.
 */
struct task_struct *vgpu_executor_start(struct vgpu_executor *executor, const guid_t *uuid)
{
	struct task_struct *notifier;

	notifier = kthread_create(vgpu_executor_notifier, executor, "vgpu-exec-%pUl", uuid);
	if (IS_ERR(notifier))
		return notifier;
	vgpu_executor_prioritize(notifier);
	wake_up_process(notifier);
	return notifier;
}
