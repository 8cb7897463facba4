// SPDX-License-Identifier: GPL-2.0
/* Device memory: zeroed, allocated whole or not at all, freed with its last user. */
#include <kunit/test.h>
#include <linux/mm.h>
#include <linux/string.h>

#include "engine/ring.h"

static void memory_is_zeroed_and_writable_to_its_end(struct kunit *test)
{
	struct vgpu_memory *memory = vgpu_memory_create(3 << 20);

	KUNIT_ASSERT_NOT_NULL(test, memory);
	KUNIT_EXPECT_EQ(test, memory->bytes, 3ULL << 20);
	KUNIT_EXPECT_NULL(test, memchr_inv(memory->data, 0, memory->bytes));
	memset(memory->data, 0xa5, memory->bytes);
	vgpu_memory_put(memory);
}

/* The next open may get the same pages. */
static void memory_keeps_nothing_of_who_had_it_before(struct kunit *test)
{
	unsigned int round;

	for (round = 0; round < 4; round++) {
		struct vgpu_memory *memory = vgpu_memory_create(1 << 20);

		KUNIT_ASSERT_NOT_NULL(test, memory);
		KUNIT_EXPECT_NULL(test, memchr_inv(memory->data, 0, memory->bytes));
		memset(memory->data, 0x5a, memory->bytes);
		vgpu_memory_put(memory);
	}
}

/*
 * A late item holds the ring, and the ring holds the memory: the engine may
 * still write to it.
 */
static void memory_outlives_the_device_that_put_it(struct kunit *test)
{
	struct vgpu_memory *memory = vgpu_memory_create(1 << 20);

	KUNIT_ASSERT_NOT_NULL(test, memory);
	kref_get(&memory->refs);
	vgpu_memory_put(memory);
	KUNIT_EXPECT_EQ(test, kref_read(&memory->refs), 1);
	memset(memory->data, 0xa5, memory->bytes);
	KUNIT_EXPECT_NULL(test, memchr_inv(memory->data, 0xa5, memory->bytes));
	vgpu_memory_put(memory);
}

/* Sizes that the mdev class or memory_mib can request: no warning, and nothing is left. */
static void memory_that_is_not_there_is_refused(struct kunit *test)
{
	u64 bytes = (u64)totalram_pages() << (PAGE_SHIFT + 4);

	KUNIT_EXPECT_NULL(test, vgpu_memory_create(bytes));
}

static struct kunit_case memory_cases[] = {
	KUNIT_CASE(memory_is_zeroed_and_writable_to_its_end),
	KUNIT_CASE(memory_keeps_nothing_of_who_had_it_before),
	KUNIT_CASE(memory_outlives_the_device_that_put_it),
	KUNIT_CASE(memory_that_is_not_there_is_refused),
	{}
};

static struct kunit_suite memory_suite = {
	.name = "vgpu_memory",
	.test_cases = memory_cases,
};

kunit_test_suite(memory_suite);
