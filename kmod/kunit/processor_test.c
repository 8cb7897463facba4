// SPDX-License-Identifier: GPL-2.0
/*
 * How long an engine's thread and a worker may use a processor before other
 * tasks get it.
 */
#include <kunit/test.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/sched/task.h>
#include <linux/smp.h>

#include "engine/engine.h"
#include "engine/processor.h"

static void expect_realtime(struct kunit *test, const struct vgpu_ration *ration, bool realtime)
{
	unsigned int policy = realtime ? SCHED_FIFO : SCHED_NORMAL;

	KUNIT_EXPECT_EQ(test, ration->realtime, realtime);
	KUNIT_EXPECT_EQ(test, current->policy, policy);
	KUNIT_EXPECT_EQ(test, current->rt_priority, realtime ? 2 : 0);
}

/*
 * Begin with @credit_ns. With so many sharers the worker earns nothing more,
 * even if the machine stops meanwhile.
 */
static void begin(struct vgpu_ration *ration, s64 credit_ns)
{
	ration->credit_ns = credit_ns;
	ration->counted_ns = ktime_get_ns();
	vgpu_ration_begin(ration, U32_MAX);
}

/*
 * Uses the clock of the code under test and not mdelay(), which ends early if
 * its loops were calibrated under load.
 */
static void let_pass(u64 ns)
{
	u64 began_ns = ktime_get_ns();

	while (ktime_get_ns() - began_ns < ns)
		cpu_relax();
}

/* Run until the kernel has charged the time to this task, which it does at a tick. */
static void use_processor(u64 ns)
{
	u64 before_ns = READ_ONCE(current->se.sum_exec_runtime);

	while (READ_ONCE(current->se.sum_exec_runtime) - before_ns < ns)
		cond_resched();
}

static void a_worker_has_real_time_priority_until_its_credit_is_used_up(struct kunit *test)
{
	struct vgpu_ration ration = {};

	vgpu_ration_start(&ration);
	begin(&ration, -1);
	expect_realtime(test, &ration, false);
	begin(&ration, 49 * NSEC_PER_USEC);
	expect_realtime(test, &ration, false);
	begin(&ration, 50 * NSEC_PER_USEC);
	expect_realtime(test, &ration, true);

	let_pass(NSEC_PER_MSEC);
	vgpu_ration_use(&ration);
	expect_realtime(test, &ration, false);
	KUNIT_EXPECT_LE(test, ration.credit_ns, -900 * (s64)NSEC_PER_USEC);
	vgpu_ration_use(&ration);
	begin(&ration, 0);
	expect_realtime(test, &ration, false);
}

static void a_worker_that_leaves_real_time_has_to_earn_it_again(struct kunit *test)
{
	struct vgpu_ration ration = {};

	vgpu_ration_start(&ration);
	begin(&ration, 200 * NSEC_PER_USEC);
	expect_realtime(test, &ration, true);
	vgpu_ration_leave(&ration);
	expect_realtime(test, &ration, false);
	KUNIT_EXPECT_LE(test, ration.credit_ns, 0);
	begin(&ration, 0);
	expect_realtime(test, &ration, false);

	/* A worker without real-time priority keeps its credit when it leaves. */
	ration.credit_ns = -1;
	vgpu_ration_leave(&ration);
	KUNIT_EXPECT_EQ(test, ration.credit_ns, -1);
}

static void credit_is_earned_shared_and_bounded(struct kunit *test)
{
	struct vgpu_ration ration = {};
	u64 used_ns;

	vgpu_ration_start(&ration);
	do {
		used_ns = READ_ONCE(current->se.sum_exec_runtime);
		ration.credit_ns = 0;
		ration.used_ns = used_ns;
		ration.counted_ns = ktime_get_ns() - NSEC_PER_SEC;
		vgpu_ration_begin(&ration, 1000000);
	} while (ration.used_ns != used_ns);
	KUNIT_EXPECT_GE(test, ration.credit_ns, 50);
	KUNIT_EXPECT_LT(test, ration.credit_ns, 50 * (s64)NSEC_PER_USEC);
	expect_realtime(test, &ration, false);

	ration.counted_ns -= NSEC_PER_SEC;
	vgpu_ration_begin(&ration, 2);
	KUNIT_EXPECT_EQ(test, ration.credit_ns, 100 * NSEC_PER_USEC);
	expect_realtime(test, &ration, true);
	ration.counted_ns -= NSEC_PER_SEC;
	vgpu_ration_begin(&ration, 0);
	KUNIT_EXPECT_EQ(test, ration.credit_ns, 200 * NSEC_PER_USEC);

	ration.counted_ns -= NSEC_PER_SEC;
	vgpu_ration_use(&ration);
	KUNIT_EXPECT_EQ(test, ration.credit_ns, -10 * (s64)NSEC_PER_MSEC);
	expect_realtime(test, &ration, false);
}

static void what_a_worker_uses_as_any_task_is_charged_too(struct kunit *test)
{
	u64 before_ns = READ_ONCE(current->se.sum_exec_runtime);
	struct vgpu_ration ration = {};

	vgpu_ration_start(&ration);
	use_processor(20 * NSEC_PER_MSEC);
	ration.credit_ns = 200 * NSEC_PER_USEC;
	ration.counted_ns = ktime_get_ns();
	vgpu_ration_begin(&ration, 2);
	expect_realtime(test, &ration, false);
	KUNIT_EXPECT_EQ(test, ration.credit_ns, -5 * (s64)NSEC_PER_MSEC);
	KUNIT_EXPECT_GE(test, ration.used_ns - before_ns, 20 * NSEC_PER_MSEC);

	ration.counted_ns -= NSEC_PER_SEC;	/* 25 ms for each of two sharers */
	vgpu_ration_begin(&ration, 2);
	expect_realtime(test, &ration, true);
}

static void a_worker_that_ends_leaves_its_successor_what_it_owes(struct kunit *test)
{
	struct vgpu_ration ration = {};
	u64 before_ns;

	vgpu_ration_start(&ration);
	begin(&ration, 0);
	use_processor(20 * NSEC_PER_MSEC);
	before_ns = READ_ONCE(current->se.sum_exec_runtime);
	ration.credit_ns = 200 * NSEC_PER_USEC;
	ration.counted_ns = ktime_get_ns();
	vgpu_ration_end(&ration, 1);
	KUNIT_EXPECT_GT(test, ration.used_ns, before_ns);	/* no tick since */
	vgpu_ration_start(&ration);
	KUNIT_EXPECT_EQ(test, ration.credit_ns, -10 * (s64)NSEC_PER_MSEC);
}

static void debt_of_real_time_is_not_forgiven(struct kunit *test)
{
	struct vgpu_ration ration = {};

	vgpu_ration_start(&ration);
	use_processor(20 * NSEC_PER_MSEC);
	ration.credit_ns = -8 * (s64)NSEC_PER_MSEC;
	ration.counted_ns = ktime_get_ns();
	vgpu_ration_begin(&ration, 2);
	KUNIT_EXPECT_EQ(test, ration.credit_ns, -8 * (s64)NSEC_PER_MSEC);
}

static void what_a_worker_uses_in_real_time_is_charged_once(struct kunit *test)
{
	struct vgpu_ration ration = {};
	u64 before_ns;

	vgpu_ration_start(&ration);
	begin(&ration, 200 * NSEC_PER_USEC);
	expect_realtime(test, &ration, true);
	use_processor(2 * NSEC_PER_MSEC);
	ration.credit_ns = 200 * NSEC_PER_USEC;
	ration.counted_ns = ktime_get_ns();
	vgpu_ration_begin(&ration, 1);
	KUNIT_EXPECT_EQ(test, ration.credit_ns, 200 * NSEC_PER_USEC);

	before_ns = READ_ONCE(current->se.sum_exec_runtime);
	let_pass(NSEC_PER_MSEC);
	vgpu_ration_use(&ration);
	expect_realtime(test, &ration, false);
	KUNIT_EXPECT_GT(test, ration.used_ns, before_ns);
}

static void an_engine_has_its_priority_by_its_pace(struct kunit *test)
{
	struct vgpu_engine *engine = kunit_kzalloc(test, sizeof(*engine), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, engine);
	vgpu_engine_set_pace(engine, VGPU_ENGINE_BRIEF);
	KUNIT_EXPECT_EQ(test, current->policy, SCHED_FIFO);
	KUNIT_EXPECT_EQ(test, current->rt_priority, 1);
	vgpu_engine_set_pace(engine, VGPU_ENGINE_WAITS);
	KUNIT_EXPECT_EQ(test, current->policy, SCHED_FIFO);
	KUNIT_EXPECT_EQ(test, current->rt_priority, 50);
	vgpu_engine_set_pace(engine, VGPU_ENGINE_COMPUTES);
	KUNIT_EXPECT_EQ(test, current->policy, SCHED_NORMAL);
	KUNIT_EXPECT_EQ(test, task_nice(current), MIN_NICE);
}

static struct vgpu_engine *brief_engine(struct kunit *test)
{
	struct vgpu_engine *engine = kunit_kzalloc(test, sizeof(*engine), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, engine);
	vgpu_engine_set_pace(engine, VGPU_ENGINE_BRIEF);
	return engine;
}

/* End an item that the thread began @ns ago. */
static void end_item(struct vgpu_engine *engine, u64 ns)
{
	engine->slept_ns = 0;
	engine->began_ns = ktime_get_ns() - ns;
	vgpu_engine_rest(engine);
}

static void an_engine_that_is_alone_rests_late(struct kunit *test)
{
	struct vgpu_engine *engine = brief_engine(test);
	int tries;

	for (tries = 0; tries < 1000 && !engine->busy_ns; tries++) {
		vgpu_engine_set_pace(engine, VGPU_ENGINE_BRIEF);
		end_item(engine, 250 * NSEC_PER_USEC);
	}
	KUNIT_EXPECT_GE(test, engine->busy_ns, 250 * NSEC_PER_USEC);
	KUNIT_EXPECT_EQ(test, engine->pace, VGPU_ENGINE_BRIEF);

	end_item(engine, 250 * NSEC_PER_USEC);
	KUNIT_EXPECT_EQ(test, engine->busy_ns, 0);
	KUNIT_EXPECT_EQ(test, engine->pace, VGPU_ENGINE_WAITS);
}

static int do_nothing(void *data)
{
	return 0;
}

static void an_engine_rests_early_for_another_task(struct kunit *test)
{
	struct task_struct *other = kthread_create(do_nothing, NULL, "vgpu-kunit");
	struct vgpu_engine *engine;

	KUNIT_ASSERT_NOT_ERR_OR_NULL(test, other);
	get_task_struct(other);
	engine = brief_engine(test);
	migrate_disable();
	kthread_bind(other, smp_processor_id());
	wake_up_process(other);		/* does not preempt real time */
	end_item(engine, 20 * NSEC_PER_USEC);
	KUNIT_EXPECT_EQ(test, engine->pace, VGPU_ENGINE_BRIEF);
	end_item(engine, 180 * NSEC_PER_USEC);
	KUNIT_EXPECT_EQ(test, engine->busy_ns, 0);
	KUNIT_EXPECT_EQ(test, engine->pace, VGPU_ENGINE_WAITS);
	migrate_enable();
	kthread_stop(other);
	put_task_struct(other);
}

static void an_item_that_was_not_brief_counts_until_that_shows(struct kunit *test)
{
	struct vgpu_engine *engine = brief_engine(test);
	u64 began_ns = ktime_get_ns() - 30 * NSEC_PER_USEC;
	u64 busy_ns;

	engine->began_ns = began_ns;
	vgpu_engine_set_pace(engine, VGPU_ENGINE_COMPUTES);
	busy_ns = engine->busy_ns;
	KUNIT_EXPECT_GE(test, busy_ns, 30 * NSEC_PER_USEC);
	KUNIT_EXPECT_LE(test, busy_ns, ktime_get_ns() - began_ns);

	/* From then on the item does not count. */
	engine->busy_ns = 30 * NSEC_PER_USEC;
	end_item(engine, NSEC_PER_SEC);
	KUNIT_EXPECT_EQ(test, engine->busy_ns, 30 * NSEC_PER_USEC);
	KUNIT_EXPECT_EQ(test, engine->pace, VGPU_ENGINE_COMPUTES);
}

static void sleep_pays_for_brief_items_and_is_none(struct kunit *test)
{
	struct vgpu_engine *engine = brief_engine(test);
	int tries;

	engine->busy_ns = NSEC_PER_SEC;
	engine->began_ns = ktime_get_ns();
	set_current_state(TASK_IDLE);
	vgpu_engine_sleep(engine, ktime_get_ns() + 100 * NSEC_PER_MSEC);
	KUNIT_EXPECT_GE(test, engine->slept_ns, 100 * NSEC_PER_MSEC);
	KUNIT_EXPECT_LE(test, engine->busy_ns, 600 * NSEC_PER_MSEC);

	/*
	 * An item during which the thread slept did not keep the processor from
	 * other tasks.
	 */
	for (tries = 0; tries < 1000; tries++) {
		vgpu_engine_set_pace(engine, VGPU_ENGINE_BRIEF);
		engine->busy_ns = 0;
		engine->began_ns = ktime_get_ns() - NSEC_PER_SEC;
		engine->slept_ns = NSEC_PER_SEC;
		vgpu_engine_rest(engine);
		if (engine->pace == VGPU_ENGINE_BRIEF)
			break;
	}
	KUNIT_EXPECT_EQ(test, engine->pace, VGPU_ENGINE_BRIEF);
}

static struct kunit_case processor_cases[] = {
	KUNIT_CASE(an_engine_has_its_priority_by_its_pace),
	KUNIT_CASE(an_engine_that_is_alone_rests_late),
	KUNIT_CASE(an_engine_rests_early_for_another_task),
	KUNIT_CASE(an_item_that_was_not_brief_counts_until_that_shows),
	KUNIT_CASE(sleep_pays_for_brief_items_and_is_none),
	KUNIT_CASE(a_worker_has_real_time_priority_until_its_credit_is_used_up),
	KUNIT_CASE(a_worker_that_leaves_real_time_has_to_earn_it_again),
	KUNIT_CASE(credit_is_earned_shared_and_bounded),
	KUNIT_CASE(what_a_worker_uses_as_any_task_is_charged_too),
	KUNIT_CASE(a_worker_that_ends_leaves_its_successor_what_it_owes),
	KUNIT_CASE(debt_of_real_time_is_not_forgiven),
	KUNIT_CASE(what_a_worker_uses_in_real_time_is_charged_once),
	{}
};

static struct kunit_suite processor_suite = {
	.name = "vgpu_processor",
	.test_cases = processor_cases,
};

kunit_test_suite(processor_suite);
