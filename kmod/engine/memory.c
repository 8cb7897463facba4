// SPDX-License-Identifier: GPL-2.0
/*
 * Device memory of a slice: allocated whole at open, freed with the last item
 * that uses it.
 */
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "engine/ring.h"

#define VGPU_CLEAR_STEP_BYTES	(64U << 10)	/* reschedule after this */

/**
 * vgpu_memory_create - device memory for one open
 * @bytes: size; allocated whole and zeroed, charged to the caller's cgroup
 *
 * Return: the memory with one reference, or NULL.
 */
struct vgpu_memory *vgpu_memory_create(u64 bytes)
{
	struct vgpu_memory *memory = kzalloc(sizeof(*memory), GFP_KERNEL_ACCOUNT);

	if (!memory)
		return NULL;
	kref_init(&memory->refs);
	memory->bytes = bytes;
	memory->data = __vmalloc(bytes, GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN);
	if (!memory->data) {
		kfree(memory);
		return NULL;
	}
	return memory;
}

/**
 * vgpu_memory_clear - zero all of it
 * @memory: the memory, not in use
 */
void vgpu_memory_clear(struct vgpu_memory *memory)
{
	u64 at;

	for (at = 0; at < memory->bytes; at += VGPU_CLEAR_STEP_BYTES) {
		memset(memory->data + at, 0,
		       min_t(u64, VGPU_CLEAR_STEP_BYTES, memory->bytes - at));
		cond_resched();
	}
}

static void vgpu_memory_free(struct kref *refs)
{
	struct vgpu_memory *memory = container_of(refs, struct vgpu_memory, refs);

	vgpu_memory_clear(memory);
	vfree(memory->data);
	kfree(memory);
}

void vgpu_memory_put(struct vgpu_memory *memory)
{
	kref_put(&memory->refs, vgpu_memory_free);
}
