// SPDX-License-Identifier: GPL-2.0
/*
 * Numbers that are used only once: ids of tenants, generations of tenants and GPUs. They
 * grow, starting with the time at which the module was loaded, in ns. So numbers of an
 * earlier load are smaller, unless the clock was set back.
 */
#include <linux/atomic.h>
#include <linux/ktime.h>

#include "vgpu.h"

static atomic64_t vgpu_ids;
static atomic64_t vgpu_generations;

void __init vgpu_numbers_init(void)
{
	u64 now_ns = ktime_get_real_ns();

	atomic64_set(&vgpu_ids, now_ns);
	atomic64_set(&vgpu_generations, now_ns);
}

/**
 * vgpu_id_next - get an id that no tenant has had
 *
 * Return: the id, larger than 0 and than all earlier ids.
 */
u64 vgpu_id_next(void)
{
	return atomic64_inc_return(&vgpu_ids);
}

/**
 * vgpu_generation_next - get a generation that no tenant and no GPU has had
 *
 * Return: the generation, larger than 0 and than all earlier generations.
 */
u64 vgpu_generation_next(void)
{
	return atomic64_inc_return(&vgpu_generations);
}
