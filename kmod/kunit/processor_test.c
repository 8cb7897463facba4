// SPDX-License-Identifier: GPL-2.0
/* What a worker may take of a processor before others get it. */
#include <kunit/test.h>
#include <linux/delay.h>
#include <linux/ktime.h>
#include <linux/sched.h>

#include "processor.h"

static void expect_realtime(struct kunit *test, const struct vgpu_ration *ration, bool realtime)
{
	unsigned int policy = realtime ? SCHED_FIFO : SCHED_NORMAL;

	KUNIT_EXPECT_EQ(test, ration->realtime, realtime);
	KUNIT_EXPECT_EQ(test, current->policy, policy);
}

/* However long the machine stands still meanwhile, nothing more is earned. */
static void begin(struct vgpu_ration *ration, s64 credit_ns)
{
	ration->credit_ns = credit_ns;
	ration->counted_ns = ktime_get_ns();
	vgpu_ration_begin(ration, U32_MAX);
}

static void a_worker_has_real_time_priority_until_its_credit_is_used_up(struct kunit *test)
{
	struct vgpu_ration ration = {};

	vgpu_ration_start(&ration);
	begin(&ration, 49 * NSEC_PER_USEC);
	expect_realtime(test, &ration, false);
	begin(&ration, 50 * NSEC_PER_USEC);
	expect_realtime(test, &ration, true);

	mdelay(1);
	vgpu_ration_use(&ration);
	expect_realtime(test, &ration, false);
	KUNIT_EXPECT_LE(test, ration.credit_ns, -900 * (s64)NSEC_PER_USEC);
	vgpu_ration_use(&ration);
	begin(&ration, 0);
	expect_realtime(test, &ration, false);
}

static void credit_is_earned_shared_and_bounded(struct kunit *test)
{
	struct vgpu_ration ration = { .counted_ns = ktime_get_ns() - NSEC_PER_SEC };

	vgpu_ration_begin(&ration, 1000000);
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

static struct kunit_case processor_cases[] = {
	KUNIT_CASE(a_worker_has_real_time_priority_until_its_credit_is_used_up),
	KUNIT_CASE(credit_is_earned_shared_and_bounded),
	{}
};

static struct kunit_suite processor_suite = {
	.name = "vgpu_processor",
	.test_cases = processor_cases,
};

kunit_test_suite(processor_suite);
