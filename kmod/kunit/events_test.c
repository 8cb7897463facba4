// SPDX-License-Identifier: GPL-2.0
/*
 * Queued events: their order, a full queue, and the notes of a source that must
 * be quiet.
 */
#include <linux/ktime.h>
#include <linux/net.h>
#include <linux/netlink.h>
#include <net/net_namespace.h>
#include <net/sock.h>

#include "control/netlink.h"
#include "mock.h"

#define EXTRA	7

/* Queue @count events while none can be sent; returns how many fit. */
static unsigned int add(struct vgpu_engine *engine, unsigned int count)
{
	unsigned int placed = 0;
	unsigned int i;

	lockdep_assert_held(&engine->lock);
	for (i = 0; i < count; i++) {
		struct vgpu_event *event = vgpu_event_add(engine, VGPUMGR_CMD_CREATED_NTF);

		if (event) {
			event->detail[0] = i;
			placed++;
		}
	}
	return placed;
}

static void what_finds_no_place_is_counted(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_engine *engine = &mock->parent.engine;

	spin_lock_irq(&engine->lock);
	KUNIT_EXPECT_EQ(test, add(engine, VGPU_EVENTS_QUEUED + EXTRA), VGPU_EVENTS_QUEUED);
	KUNIT_EXPECT_EQ(test, engine->events.queued, VGPU_EVENTS_QUEUED);
	KUNIT_EXPECT_EQ(test, engine->events.dropped, EXTRA);
	/*
	 * Check before the lock is released, because the events are sent
	 * afterwards.
	 */
	KUNIT_EXPECT_EQ(test, engine->events.queue[engine->events.first].detail[0], 0);
	spin_unlock_irq(&engine->lock);
}

static bool all_sent(void *data)
{
	struct vgpu_engine *engine = data;
	bool sent;

	spin_lock_irq(&engine->lock);
	sent = !engine->events.queued && !engine->events.dropped;
	spin_unlock_irq(&engine->lock);
	return sent;
}

/*
 * Each event sent has a number, and each event lost leaves a gap in the
 * numbers. The report of the loss also has a number.
 */
static void what_is_lost_is_a_hole_in_the_numbers(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_engine *engine = &mock->parent.engine;
	u64 before = vgpu_events_sequence();

	spin_lock_irq(&engine->lock);
	add(engine, VGPU_EVENTS_QUEUED + EXTRA);
	spin_unlock_irq(&engine->lock);
	KUNIT_ASSERT_TRUE(test, mock_wait(all_sent, engine));
	flush_work(&engine->events.send);
	KUNIT_EXPECT_EQ(test, vgpu_events_sequence() - before, VGPU_EVENTS_QUEUED + EXTRA + 1);
}

static void places_are_used_again_in_order(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_events *events = &mock->parent.engine.events;
	unsigned int i;

	/* The ring may begin at any index. */
	spin_lock_irq(&mock->parent.engine.lock);
	events->first = VGPU_EVENTS_QUEUED - 3;
	KUNIT_EXPECT_EQ(test, add(&mock->parent.engine, 8), 8);
	for (i = 0; i < 8; i++)
		KUNIT_EXPECT_EQ(test,
				events->queue[(events->first + i) % VGPU_EVENTS_QUEUED].detail[0],
				i);
	spin_unlock_irq(&mock->parent.engine.lock);
	KUNIT_EXPECT_TRUE(test, mock_wait(all_sent, &mock->parent.engine));
	flush_work(&mock->parent.engine.events.send);
	KUNIT_EXPECT_EQ(test, events->first, 5);
}

static void stopping_sends_what_is_queued(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_engine *engine = &mock->parent.engine;
	u64 before = vgpu_events_sequence();

	spin_lock_irq(&engine->lock);
	add(engine, 3);
	spin_unlock_irq(&engine->lock);
	vgpu_engine_stop(engine);
	engine->thread = NULL;
	kthread_stop(mock->worker);
	KUNIT_EXPECT_EQ(test, vgpu_events_sequence() - before, 3);
	KUNIT_EXPECT_NULL(test, engine->events.queue);
}

/* Nothing is noted without a listener. */
static struct socket *listen(struct kunit *test)
{
	int group = vgpu_family.mcgrp_offset + VGPU_GROUP_EVENTS;
	struct socket *socket;

	KUNIT_ASSERT_EQ(test, sock_create_kern(&init_net, PF_NETLINK, SOCK_RAW,
					       NETLINK_GENERIC, &socket), 0);
	KUNIT_EXPECT_EQ(test, socket->ops->setsockopt(socket, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP,
						      KERNEL_SOCKPTR(&group), sizeof(group)), 0);
	return socket;
}

static void note(struct vgpu_engine *engine, struct vgpu_event_source *source, u64 detail)
{
	spin_lock_irq(&engine->lock);
	vgpu_event_note(engine, source, VGPU_EVENT_FAULT, detail, 0);
	spin_unlock_irq(&engine->lock);
}

static bool is_told(void *data)
{
	struct vgpu_device *device = data;
	struct vgpu_engine *engine = &device->parent->engine;
	bool told;

	spin_lock_irq(&engine->lock);
	told = list_empty(&device->events.node) && !device->events.notes[VGPU_EVENT_FAULT].count;
	spin_unlock_irq(&engine->lock);
	return told && all_sent(engine);
}

static void a_quiet_source_is_collected_and_told_once(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_engine *engine = &mock->parent.engine;
	struct vgpu_event_source *source = &mock->device.events;
	struct socket *socket = listen(test);
	u64 before = vgpu_events_sequence();

	source->quiet_until_ns = U64_MAX;
	note(engine, source, 1);
	note(engine, source, 2);
	note(engine, source, 3);
	KUNIT_EXPECT_EQ(test, source->notes[VGPU_EVENT_FAULT].count, 3);
	KUNIT_EXPECT_EQ(test, source->notes[VGPU_EVENT_FAULT].detail[0], 3);

	spin_lock_irq(&engine->lock);
	source->quiet_until_ns = 0;
	spin_unlock_irq(&engine->lock);
	KUNIT_ASSERT_TRUE(test, mock_wait(is_told, &mock->device));
	flush_delayed_work(&engine->events.later);
	KUNIT_EXPECT_EQ(test, vgpu_events_sequence() - before, 1);
	KUNIT_EXPECT_GT(test, source->quiet_until_ns, 0);
	sock_release(socket);
}

/* A source is reported in time, however late another source is due. */
static void a_source_is_told_once_it_need_not_be_quiet(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_engine *engine = &mock->parent.engine;
	struct vgpu_event_source *source = &mock->device.events;
	struct vgpu_event_source *other = kunit_kzalloc(test, sizeof(*other), GFP_KERNEL);
	struct socket *socket = listen(test);
	u64 until_ns = ktime_get_ns() + 100 * NSEC_PER_MSEC;

	KUNIT_ASSERT_NOT_NULL(test, other);
	vgpu_event_source_init(other, false);
	other->quiet_until_ns = U64_MAX;
	source->quiet_until_ns = until_ns;
	spin_lock_irq(&engine->lock);
	vgpu_event_note(engine, other, VGPU_EVENT_FAULT, 1, 0);
	vgpu_event_note(engine, source, VGPU_EVENT_FAULT, 1, 0);
	KUNIT_EXPECT_EQ(test, engine->events.look_at_ns, until_ns);
	vgpu_event_source_forget(other);
	spin_unlock_irq(&engine->lock);
	KUNIT_ASSERT_TRUE(test, mock_wait(is_told, &mock->device));
	sock_release(socket);
}

static void removed(struct mock *mock, struct vgpu_tenant *tenant)
{
	mutex_lock(&mock->parent.lock);
	if (tenant)
		vgpu_event_tenant(tenant, VGPUMGR_CMD_REMOVED_NTF);
	else
		vgpu_event_slice(&mock->device, VGPUMGR_CMD_REMOVED_NTF);
	mutex_unlock(&mock->parent.lock);
}

/*
 * The collected notes of a removed source are one event, and its removal is
 * another.
 */
static void what_is_removed_tells_first_what_was_collected(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_engine *engine = &mock->parent.engine;
	struct vgpu_tenant *tenant = kunit_kzalloc(test, sizeof(*tenant), GFP_KERNEL);
	struct vgpu_event_source *sources[2];
	struct socket *socket = listen(test);
	unsigned int i;

	KUNIT_ASSERT_NOT_NULL(test, tenant);
	sources[0] = &mock->device.events;
	sources[1] = &tenant->events;
	tenant->parent = &mock->parent;
	vgpu_event_source_init(&tenant->events, false);
	for (i = 0; i < ARRAY_SIZE(sources); i++) {
		u64 before = vgpu_events_sequence();

		sources[i]->quiet_until_ns = U64_MAX;
		note(engine, sources[i], 1);
		note(engine, sources[i], 2);
		removed(mock, i ? tenant : NULL);
		KUNIT_EXPECT_EQ(test, sources[i]->notes[VGPU_EVENT_FAULT].count, 0);
		flush_work(&engine->events.send);
		KUNIT_EXPECT_EQ(test, vgpu_events_sequence() - before, 2);
		spin_lock_irq(&engine->lock);
		vgpu_event_source_forget(sources[i]);
		spin_unlock_irq(&engine->lock);
	}
	sock_release(socket);
}

/* A source whose storage is freed is in no list, even while its notes wait. */
static void a_source_that_goes_is_not_looked_at(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_engine *engine = &mock->parent.engine;
	struct vgpu_event_source *source = &mock->device.events;
	struct socket *socket = listen(test);
	u64 before = vgpu_events_sequence();

	source->quiet_until_ns = U64_MAX;
	note(engine, source, 1);
	spin_lock_irq(&engine->lock);
	vgpu_event_source_forget(source);
	KUNIT_EXPECT_TRUE(test, list_empty(&engine->events.late));
	spin_unlock_irq(&engine->lock);
	KUNIT_EXPECT_TRUE(test, source->of_slice);
	flush_delayed_work(&engine->events.later);
	KUNIT_EXPECT_EQ(test, vgpu_events_sequence(), before);
	sock_release(socket);
}

static struct kunit_case events_cases[] = {
	KUNIT_CASE(what_finds_no_place_is_counted),
	KUNIT_CASE(what_is_lost_is_a_hole_in_the_numbers),
	KUNIT_CASE(places_are_used_again_in_order),
	KUNIT_CASE(stopping_sends_what_is_queued),
	KUNIT_CASE(a_quiet_source_is_collected_and_told_once),
	KUNIT_CASE(a_source_is_told_once_it_need_not_be_quiet),
	KUNIT_CASE(what_is_removed_tells_first_what_was_collected),
	KUNIT_CASE(a_source_that_goes_is_not_looked_at),
	{}
};

static struct kunit_suite events_suite = {
	.name = "vgpu_events",
	.init = mock_init,
	.exit = mock_exit,
	.test_cases = events_cases,
};

kunit_test_suite(events_suite);
