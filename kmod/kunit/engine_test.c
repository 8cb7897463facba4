// SPDX-License-Identifier: GPL-2.0
/*
 * The engine's thread: how much each slice is charged, and items that end after
 * their ring.
 */
#include <linux/delay.h>
#include <linux/ktime.h>

#include "mock.h"

static bool is_parked(void *data)
{
	struct vgpu_engine *engine = data;

	return READ_ONCE(engine->parked);
}

struct ring_wait {
	struct mock *mock;
	struct list_head *list;
	unsigned int count;
};

static bool has_items(void *data)
{
	struct ring_wait *wait = data;

	return mock_count(wait->mock, wait->list) == wait->count;
}

static bool wait_items(struct mock *mock, struct list_head *list, unsigned int count)
{
	struct ring_wait wait = { .mock = mock, .list = list, .count = count };

	return mock_wait(has_items, &wait);
}

static bool is_last_reference(void *data)
{
	struct vgpu_ring *ring = data;

	return kref_read(&ring->refs) == 1;
}

/* Remove executed items from a ring, like its worker; returns the sum of their charges. */
static u64 answer(struct vgpu_ring *ring)
{
	struct vgpu_engine *engine = vgpu_ring_engine(ring);
	struct vgpu_item *item, *next;
	LIST_HEAD(done);
	u64 run_ns = 0;

	spin_lock_irq(&engine->lock);
	list_splice_init(&ring->done, &done);
	spin_unlock_irq(&engine->lock);
	list_for_each_entry_safe(item, next, &done, node) {
		run_ns += item->run_ns;
		kref_put(&ring->refs, NULL);
		kfree(item);
	}
	return run_ns;
}

static u64 charged(struct vgpu_device *device)
{
	struct vgpu_engine *engine = &device->parent->engine;
	u64 run_ns;

	spin_lock_irq(&engine->lock);
	vgpu_slice_settle(&device->slice);
	run_ns = device->slice.stats.run_ns;
	spin_unlock_irq(&engine->lock);
	return run_ns;
}

static void items_are_executed_in_order_and_charged_once(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_item *item;
	struct vgpu_ring *ring;
	u32 number = 0;
	u64 run_ns;

	mock_schedule(test, mock, &mock->device);
	ring = mock_ring(test, &mock->device);
	for (number = 0; number < 5; number++)
		mock_submit(test, ring, number);
	KUNIT_ASSERT_TRUE(test, wait_items(mock, &ring->done, 5));
	KUNIT_ASSERT_TRUE(test, mock_wait(is_parked, &mock->parent.engine));
	number = 0;
	list_for_each_entry(item, &ring->done, node)
		KUNIT_EXPECT_EQ(test, item->number, number++);
	KUNIT_EXPECT_EQ(test, mock->executed, 5);
	KUNIT_EXPECT_GT(test, mock->limit_ns, 0);
	run_ns = answer(ring);
	KUNIT_EXPECT_GT(test, run_ns, 0);
	KUNIT_EXPECT_LE(test, run_ns, charged(&mock->device));
	KUNIT_EXPECT_EQ(test, kref_read(&ring->refs), 1);
}

/* If the engine's thread does not get a processor, no tenant pays for that. */
static void an_end_that_is_noticed_late_is_charged_to_nobody(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_ring *ring;
	u64 before_ns, limit_ns;

	mock->late_us = 50 * USEC_PER_MSEC;
	mock_schedule(test, mock, &mock->device);
	ring = mock_ring(test, &mock->device);
	before_ns = ktime_get_ns();
	mock_submit(test, ring, 0);
	KUNIT_ASSERT_TRUE(test, wait_items(mock, &ring->done, 1));
	KUNIT_ASSERT_TRUE(test, mock_wait(is_parked, &mock->parent.engine));
	limit_ns = mock->until_ns - before_ns + VGPU_ENGINE_NOTICE_NS;
	KUNIT_EXPECT_LE(test, charged(&mock->device), limit_ns);
	KUNIT_EXPECT_LE(test, answer(ring), limit_ns);
}

/*
 * Time after an end that the thread itself noticed is not charged either, until
 * its next decision.
 */
static void an_end_that_nobody_announced_is_the_end_of_what_is_charged(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_engine *engine = &mock->parent.engine;
	struct vgpu_ring *ring;

	mock_schedule(test, mock, &mock->device);
	ring = mock_ring(test, &mock->device);
	mock_submit(test, ring, 0);
	KUNIT_ASSERT_TRUE(test, wait_items(mock, &ring->done, 1));
	spin_lock_irq(&engine->lock);
	KUNIT_EXPECT_LE(test, engine->stops_ns, ktime_get_ns() + VGPU_ENGINE_NOTICE_NS);
	spin_unlock_irq(&engine->lock);
	answer(ring);
}

/* A run that is over is charged for what it executed, however late the next decision is. */
static void a_decision_lengthens_no_run_that_is_over(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_engine *engine = &mock->parent.engine;
	struct vgpu_ring *ring;

	mock->waits = true;
	mock_schedule(test, mock, &mock->device);
	ring = mock_ring(test, &mock->device);
	mock_submit(test, ring, 0);
	wait_for_completion(&mock->entered);
	fsleep(2 * MOCK_TIMESLICE_US);
	complete(&mock->go);
	KUNIT_ASSERT_TRUE(test, wait_items(mock, &ring->done, 1));
	KUNIT_ASSERT_TRUE(test, mock_wait(is_parked, engine));
	KUNIT_EXPECT_EQ(test, charged(&mock->device), answer(ring));
}

/*
 * A call that charges time before the end of an item is known adds that time to
 * the item's cost and to the reported cost.
 */
static void what_was_charged_before_an_end_was_known_is_the_items(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_engine *engine = &mock->parent.engine;
	struct vgpu_ring *ring;
	u64 until_ns;

	mock->waits = true;
	mock_schedule(test, mock, &mock->device);
	ring = mock_ring(test, &mock->device);
	mock_submit(test, ring, 0);
	wait_for_completion(&mock->entered);
	until_ns = ktime_get_ns();
	fsleep(2 * MOCK_TIMESLICE_US);
	spin_lock_irq(&engine->lock);
	vgpu_sched_advance(&engine->sched, ktime_get_ns());
	spin_unlock_irq(&engine->lock);
	vgpu_engine_busy_until(engine, until_ns);
	complete(&mock->go);
	KUNIT_ASSERT_TRUE(test, wait_items(mock, &ring->done, 1));
	KUNIT_ASSERT_TRUE(test, mock_wait(is_parked, engine));
	KUNIT_EXPECT_EQ(test, charged(&mock->device), answer(ring));
}

/*
 * A late beginning does not raise the charge either: until the item begins, at
 * most the predicted time is charged.
 */
static void what_is_foreseen_bounds_what_is_charged(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_engine *engine = &mock->parent.engine;
	u64 limit_ns = NSEC_PER_MSEC + 2 * VGPU_ENGINE_NOTICE_NS;
	struct vgpu_ring *ring;

	mock->waits = true;
	mock->lasts_ns = NSEC_PER_MSEC;
	mock_schedule(test, mock, &mock->device);
	ring = mock_ring(test, &mock->device);
	mock_submit(test, ring, 0);
	wait_for_completion(&mock->entered);
	fsleep(20 * USEC_PER_MSEC);
	spin_lock_irq(&engine->lock);
	vgpu_sched_advance(&engine->sched, ktime_get_ns());
	spin_unlock_irq(&engine->lock);
	KUNIT_EXPECT_EQ(test, charged(&mock->device), limit_ns);
	KUNIT_EXPECT_EQ(test, mock->limit_ns, NSEC_PER_MSEC);

	complete(&mock->go);
	KUNIT_ASSERT_TRUE(test, wait_items(mock, &ring->done, 1));
	KUNIT_ASSERT_TRUE(test, mock_wait(is_parked, engine));
	KUNIT_EXPECT_EQ(test, charged(&mock->device), limit_ns);
	KUNIT_EXPECT_EQ(test, answer(ring), limit_ns);
}

/* Closing a device never waits for the engine; an executing item continues to its end. */
static void an_item_that_ends_after_its_ring_is_charged_and_dropped(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_ring *ring;
	u32 number;

	mock->waits = true;
	mock_schedule(test, mock, &mock->device);
	ring = mock_ring(test, &mock->device);
	for (number = 0; number < 3; number++)
		mock_submit(test, ring, number);
	wait_for_completion(&mock->entered);
	vgpu_ring_stop(ring);
	KUNIT_EXPECT_EQ(test, mock->device.stats.dropped, 3);
	KUNIT_EXPECT_EQ(test, mock_count(mock, &ring->ready), 1);
	KUNIT_EXPECT_EQ(test, kref_read(&ring->refs), 2);
	vgpu_ring_stop(ring);
	KUNIT_EXPECT_EQ(test, mock->device.stats.dropped, 3);

	complete(&mock->go);
	KUNIT_ASSERT_TRUE(test, mock_wait(is_last_reference, ring));
	KUNIT_EXPECT_EQ(test, mock_count(mock, &ring->ready), 0);
	KUNIT_EXPECT_EQ(test, mock_count(mock, &ring->done), 0);
	KUNIT_ASSERT_TRUE(test, mock_wait(is_parked, &mock->parent.engine));
	KUNIT_EXPECT_EQ(test, mock->executed, 1);
	KUNIT_EXPECT_GT(test, charged(&mock->device), 0);
}

static void a_slice_may_leave_its_tenant_while_its_item_executes(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_ring *ring;

	mock->waits = true;
	mock_schedule(test, mock, &mock->device);
	ring = mock_ring(test, &mock->device);
	mock_submit(test, ring, 0);
	mock_submit(test, ring, 1);
	wait_for_completion(&mock->entered);
	mutex_lock(&mock->parent.lock);
	vgpu_device_unassign(&mock->device);
	mutex_unlock(&mock->parent.lock);
	KUNIT_EXPECT_FALSE(test, mock->device.scheduled);

	complete(&mock->go);
	KUNIT_ASSERT_TRUE(test, wait_items(mock, &ring->done, 1));
	KUNIT_ASSERT_TRUE(test, mock_wait(is_parked, &mock->parent.engine));
	KUNIT_EXPECT_EQ(test, mock->executed, 1);
	KUNIT_EXPECT_EQ(test, mock_count(mock, &ring->ready), 1);
	vgpu_ring_stop(ring);
	answer(ring);
	KUNIT_EXPECT_EQ(test, kref_read(&ring->refs), 1);
}

static bool is_dead(void *data)
{
	struct vgpu_ring *ring = data;

	return READ_ONCE(ring->dead);
}

/* No other slice's error is lost, and nothing new begins. */
static void an_engine_that_wedges_ends_everybodys_work(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_ring *ring;

	mock->waits = true;
	mock->wedges = true;
	mock_schedule(test, mock, &mock->device);
	ring = mock_ring(test, &mock->device);
	mock_submit(test, ring, 0);
	mock_submit(test, ring, 1);
	wait_for_completion(&mock->entered);
	complete(&mock->go);
	KUNIT_ASSERT_TRUE(test, mock_wait(is_dead, ring));
	KUNIT_ASSERT_TRUE(test, mock_wait(is_last_reference, ring));
	KUNIT_EXPECT_EQ(test, mock->device.error, VGPU_ERROR_ENGINE);
	KUNIT_EXPECT_EQ(test, mock->device.stats.errors, 1);
	KUNIT_EXPECT_EQ(test, mock->executed, 1);
	KUNIT_EXPECT_TRUE(test, list_empty(&ring->node));
	KUNIT_EXPECT_FALSE(test, vgpu_ring_publish(ring));
	KUNIT_EXPECT_TRUE(test, list_empty(&ring->node));
}

static struct kunit_case engine_cases[] = {
	KUNIT_CASE(items_are_executed_in_order_and_charged_once),
	KUNIT_CASE(an_end_that_is_noticed_late_is_charged_to_nobody),
	KUNIT_CASE(an_end_that_nobody_announced_is_the_end_of_what_is_charged),
	KUNIT_CASE(a_decision_lengthens_no_run_that_is_over),
	KUNIT_CASE(what_was_charged_before_an_end_was_known_is_the_items),
	KUNIT_CASE(what_is_foreseen_bounds_what_is_charged),
	KUNIT_CASE(an_item_that_ends_after_its_ring_is_charged_and_dropped),
	KUNIT_CASE(a_slice_may_leave_its_tenant_while_its_item_executes),
	KUNIT_CASE(an_engine_that_wedges_ends_everybodys_work),
	{}
};

static struct kunit_suite engine_suite = {
	.name = "vgpu_engine",
	.init = mock_init,
	.exit = mock_exit,
	.test_cases = engine_cases,
};

kunit_test_suite(engine_suite);
