// SPDX-License-Identifier: GPL-2.0
/* A slice's place in its accelerator: the quota of memory, permits, doorbell storms. */
#include <linux/jiffies.h>

#include "mock.h"

#define SLICES	4	/* of 16 MiB fill the mock */

static struct vgpu_device *more_devices(struct kunit *test, struct mock *mock, unsigned int count)
{
	struct vgpu_device *devices;
	unsigned int i;

	devices = kunit_kcalloc(test, count, sizeof(*devices), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, devices);
	for (i = 0; i < count; i++)
		mock_device_init(mock, &devices[i]);
	return devices;
}

static void quota_ends_with_the_memory(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_device *devices = more_devices(test, mock, SLICES + 1);
	unsigned int i;

	for (i = 0; i < SLICES; i++)
		KUNIT_EXPECT_EQ(test, vgpu_device_publish(&devices[i]), 0);
	KUNIT_EXPECT_EQ(test, mock->parent.memory_reserved, mock->parent.memory_total);
	KUNIT_EXPECT_EQ(test, vgpu_device_publish(&devices[SLICES]), -ENOSPC);
	KUNIT_EXPECT_TRUE(test, list_empty(&devices[SLICES].node));
	KUNIT_EXPECT_EQ(test, mock_count(mock, &mock->parent.devices), SLICES);

	vgpu_device_withdraw(&devices[1]);
	KUNIT_EXPECT_EQ(test, vgpu_device_publish(&devices[SLICES]), 0);
	for (i = 0; i <= SLICES; i++)
		if (i != 1)
			vgpu_device_withdraw(&devices[i]);
	KUNIT_EXPECT_EQ(test, mock->parent.memory_reserved, 0);
	KUNIT_EXPECT_TRUE(test, list_empty(&mock->parent.devices));
}

/* Sums of sizes must not wrap. */
static void quota_refuses_a_slice_larger_than_everything(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_device *devices = more_devices(test, mock, 2);

	KUNIT_EXPECT_EQ(test, vgpu_device_publish(&devices[0]), 0);
	devices[1].memory_bytes = U64_MAX;
	KUNIT_EXPECT_EQ(test, vgpu_device_publish(&devices[1]), -ENOSPC);
	KUNIT_EXPECT_EQ(test, mock->parent.memory_reserved, devices[0].memory_bytes);
	vgpu_device_withdraw(&devices[0]);
}

static void nothing_comes_to_an_accelerator_that_goes(struct kunit *test)
{
	struct mock *mock = test->priv;

	mock->parent.removed = true;
	KUNIT_EXPECT_EQ(test, vgpu_device_publish(&mock->device), -ENODEV);
	KUNIT_EXPECT_EQ(test, mock->parent.memory_reserved, 0);
	KUNIT_EXPECT_TRUE(test, list_empty(&mock->parent.devices));
}

static void a_permit_opens_once(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_device *device = &mock->device;

	mock->parent.attach_permit = true;
	KUNIT_EXPECT_FALSE(test, vgpu_device_take(device));
	KUNIT_EXPECT_FALSE(test, device->open);
	device->permit_until = (jiffies + HZ * 60) ?: 1;
	KUNIT_EXPECT_TRUE(test, vgpu_device_take(device));
	KUNIT_EXPECT_TRUE(test, device->open);
	KUNIT_EXPECT_EQ(test, device->opener_pid, task_tgid_nr(current));
	KUNIT_EXPECT_FALSE(test, vgpu_device_take(device));
}

static void a_permit_that_is_too_old_opens_nothing(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_device *device = &mock->device;

	mock->parent.attach_permit = true;
	device->permit_until = (jiffies - 1) ?: 1;
	KUNIT_EXPECT_FALSE(test, vgpu_device_take(device));
	KUNIT_EXPECT_FALSE(test, device->open);
}

/*
 * A storm stops the slice when its tokens are used up: it takes as many
 * doorbells as there were tokens and refills, and one more.
 */
static void a_storm_ends_with_its_tokens(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_device *device = &mock->device;
	u64 before_ns, refills;

	device->storm_tokens = 100;
	before_ns = ktime_get_ns();
	device->storm_refill_ns = before_ns;
	while (!device->error && device->stats.doorbells < 1000000)
		vgpu_device_doorbell(device, 0);
	refills = div_u64(device->storm_refill_ns - before_ns, NSEC_PER_MSEC);
	KUNIT_EXPECT_EQ(test, device->error, VGPU_ERROR_STORM);
	KUNIT_EXPECT_EQ(test, device->stats.doorbells, 100 + refills + 1);
	KUNIT_EXPECT_EQ(test, device->stats.errors, 1);
}

/* The number of tokens is bounded, however long there was no doorbell. */
static void tokens_of_a_storm_are_bounded(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_device *device = &mock->device;

	device->storm_refill_ns = ktime_get_ns() - 3600 * NSEC_PER_SEC;
	vgpu_device_doorbell(device, 0);
	KUNIT_EXPECT_EQ(test, device->error, VGPU_ERROR_NONE);
	KUNIT_EXPECT_EQ(test, device->storm_tokens, 999);
}

static void the_first_fault_stays(struct kunit *test)
{
	struct mock *mock = test->priv;
	struct vgpu_device *device = &mock->device;

	vgpu_device_fault(device, NULL, VGPU_ERROR_DMA, 3);
	vgpu_device_fault(device, NULL, VGPU_ERROR_OP, 4);
	KUNIT_EXPECT_EQ(test, device->error, VGPU_ERROR_DMA);
	KUNIT_EXPECT_EQ(test, device->error_index, 3);
	KUNIT_EXPECT_EQ(test, device->stats.errors, 1);
}

static struct kunit_case device_cases[] = {
	KUNIT_CASE(quota_ends_with_the_memory),
	KUNIT_CASE(quota_refuses_a_slice_larger_than_everything),
	KUNIT_CASE(nothing_comes_to_an_accelerator_that_goes),
	KUNIT_CASE(a_permit_opens_once),
	KUNIT_CASE(a_permit_that_is_too_old_opens_nothing),
	KUNIT_CASE(a_storm_ends_with_its_tokens),
	KUNIT_CASE(tokens_of_a_storm_are_bounded),
	KUNIT_CASE(the_first_fault_stays),
	{}
};

static struct kunit_suite device_suite = {
	.name = "vgpu_device",
	.init = mock_init,
	.exit = mock_exit,
	.test_cases = device_cases,
};

kunit_test_suite(device_suite);
