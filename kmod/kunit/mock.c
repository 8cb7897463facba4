// SPDX-License-Identifier: GPL-2.0
/* See mock.h. */
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "mock.h"

#define MOCK_SWITCH_COST_NS	NSEC_PER_USEC
#define MOCK_WAIT_MS		60000

static struct mock *mock_of(struct vgpu_engine *engine)
{
	return container_of(engine, struct mock, parent.engine);
}

/* Every item is one piece. */
static bool mock_execute(struct vgpu_engine *engine, struct vgpu_item *item, u64 limit_ns)
{
	struct mock *mock = mock_of(engine);

	mock->executed++;
	mock->limit_ns = limit_ns;
	complete(&mock->entered);
	if (mock->waits)
		wait_for_completion(&mock->go);
	if (mock->wedges)
		vgpu_engine_wedge(engine);
	if (mock->late_us) {
		mock->until_ns = ktime_get_ns();
		vgpu_engine_busy_until(engine, mock->until_ns);
		fsleep(mock->late_us);
	}
	return true;
}

static u64 mock_lasts_ns(const struct vgpu_engine *engine, const struct vgpu_item *item,
			 u64 limit_ns)
{
	const struct mock *mock = container_of(engine, struct mock, parent.engine);

	return mock->lasts_ns ?: U64_MAX;
}

static u64 mock_estimate_ns(struct vgpu_engine *engine, const struct vgpu_item *item)
{
	return NSEC_PER_USEC;
}

static bool mock_drives(struct pci_dev *pdev)
{
	return true;
}

static void *mock_start(struct vgpu_engine *engine, struct pci_dev *pdev,
			struct vgpu_calibration *calibration)
{
	calibration->switch_cost_ns = MOCK_SWITCH_COST_NS;
	return engine;
}

static void mock_stop(void *state)
{
}

static const struct vgpu_engine_ops mock_engine = {
	.name = "mock",
	.operations = BIT(VGPU_OP_NOP),
	.drives = mock_drives,
	.start = mock_start,
	.stop = mock_stop,
	.lasts_ns = mock_lasts_ns,
	.execute = mock_execute,
	.estimate_ns = mock_estimate_ns,
};

static int mock_worker(void *data)
{
	while (!kthread_should_stop()) {
		set_current_state(TASK_IDLE);
		if (!kthread_should_stop())
			schedule();
		__set_current_state(TASK_RUNNING);
	}
	return 0;
}

/* The same state as after vgpu_vfio_init(). */
void mock_device_init(struct mock *mock, struct vgpu_device *device)
{
	device->parent = &mock->parent;
	device->memory_bytes = 16 << 20;
	device->params.weight = 1;
	device->migration_state = VFIO_DEVICE_STATE_RUNNING;
	device->storm_refill_ns = ktime_get_ns();
	mutex_init(&device->dma_lock);
	mutex_init(&device->state_lock);
	spin_lock_init(&device->irq_lock);
	INIT_LIST_HEAD(&device->node);
	guid_gen(&device->uuid);
	vgpu_event_source_init(&device->events, true);
}

int mock_init(struct kunit *test)
{
	struct mock *mock = kunit_kzalloc(test, sizeof(*mock), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, mock);
	test->priv = mock;
	mutex_init(&mock->parent.lock);
	INIT_LIST_HEAD(&mock->parent.tenants);
	INIT_LIST_HEAD(&mock->parent.devices);
	strscpy(mock->parent.name, "mock", sizeof(mock->parent.name));
	mock->parent.memory_total = 64 << 20;
	init_completion(&mock->entered);
	init_completion(&mock->go);
	mock_device_init(mock, &mock->device);
	mock->worker = kthread_run(mock_worker, mock, "vgpu-mock");
	KUNIT_ASSERT_FALSE(test, IS_ERR(mock->worker));
	KUNIT_ASSERT_EQ(test, vgpu_engine_start(&mock->parent.engine, &mock_engine, NULL, "mock"),
			0);
	return 0;
}

void mock_exit(struct kunit *test)
{
	struct mock *mock = test->priv;

	if (!mock || !mock->parent.engine.thread)
		return;
	complete_all(&mock->go);
	mutex_lock(&mock->parent.lock);
	vgpu_device_unassign(&mock->device);
	vgpu_tenants_free(&mock->parent);
	mutex_unlock(&mock->parent.lock);
	vgpu_engine_stop(&mock->parent.engine);
	kthread_stop(mock->worker);
}

/* Put a slice into the scheduler. */
void mock_schedule(struct kunit *test, struct mock *mock, struct vgpu_device *device)
{
	const struct vgpu_group_params group = {
		.weight = 100,
		.timeslice_ns = MOCK_TIMESLICE_US * NSEC_PER_USEC,
	};
	enum vgpu_sched_field fault;

	mutex_lock(&mock->parent.lock);
	list_add_tail(&device->node, &mock->parent.devices);
	KUNIT_EXPECT_EQ(test, vgpu_tenant_configure(&mock->parent, "mock", &group, &fault), 0);
	KUNIT_EXPECT_EQ(test, vgpu_device_assign(device, "mock", &device->params, &fault), 0);
	mutex_unlock(&mock->parent.lock);
	KUNIT_ASSERT_TRUE(test, device->scheduled);
}

/*
 * The only ring of a slice, with its worker asleep; the test's reference is
 * never released.
 */
struct vgpu_ring *mock_ring(struct kunit *test, struct vgpu_device *device)
{
	struct mock *mock = test->priv;
	struct vgpu_ring *ring;

	ring = kunit_kzalloc(test, sizeof(*ring), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, ring);
	kref_init(&ring->refs);
	ring->device = device;
	ring->entries = 8;
	ring->worker = mock->worker;
	INIT_LIST_HEAD(&ring->node);
	INIT_LIST_HEAD(&ring->ready);
	INIT_LIST_HEAD(&ring->done);
	init_completion(&ring->quiet);
	KUNIT_ASSERT_TRUE(test, vgpu_ring_publish(ring));
	return ring;
}

/* Submit an item like the worker after staging; the ring must not be dead. */
void mock_submit(struct kunit *test, struct vgpu_ring *ring, u32 number)
{
	struct vgpu_engine *engine = vgpu_ring_engine(ring);
	struct vgpu_item *item = kzalloc(sizeof(*item), GFP_KERNEL);
	bool dead;

	KUNIT_ASSERT_NOT_NULL(test, item);
	kref_get(&ring->refs);
	item->ring = ring;
	item->number = number;
	spin_lock_irq(&engine->lock);
	dead = ring->dead;
	if (!dead) {
		list_add_tail(&item->node, &ring->ready);
		if (list_is_singular(&ring->ready))
			vgpu_engine_resume(engine, ring, ktime_get_ns());
	}
	spin_unlock_irq(&engine->lock);
	KUNIT_ASSERT_FALSE(test, dead);
}

unsigned int mock_count(struct mock *mock, const struct list_head *list)
{
	const struct list_head *at;
	unsigned int count = 0;

	spin_lock_irq(&mock->parent.engine.lock);
	list_for_each(at, list)
		count++;
	spin_unlock_irq(&mock->parent.engine.lock);
	return count;
}

/* Wait for the condition; false if it does not become true, even on a slow machine. */
bool mock_wait(bool (*condition)(void *data), void *data)
{
	unsigned int ms;

	for (ms = 0; ms < MOCK_WAIT_MS; ms++) {
		if (condition(data))
			return true;
		fsleep(USEC_PER_MSEC);
	}
	return false;
}

MODULE_DESCRIPTION("KUnit tests of vgpumgr");
MODULE_LICENSE("GPL");
