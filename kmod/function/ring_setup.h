/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The addresses of a guest's rings, and whether they are valid. Plain C: user space
 * builds it, too.
 */
#ifndef VGPU_RING_SETUP_H
#define VGPU_RING_SETUP_H

#ifndef __KERNEL__
#include <stdbool.h>
#include <stddef.h>
#endif
#include <linux/types.h>

#include "uapi/vgpu_device.h"

/**
 * struct vgpu_ring_setup - the ring registers
 * @ring: guest address of the submission ring
 * @completion: guest address of the completion ring
 * @shadow: guest address of struct vgpu_shadow, 0 for none
 * @entries: number of entries of each ring
 */
struct vgpu_ring_setup {
	__u64 ring;
	__u64 completion;
	__u64 shadow;
	__u32 entries;
};

static inline bool vgpu_block_valid(__u64 address, __u64 bytes, __u64 align)
{
	return !(address & (align - 1)) && address + bytes > address;
}

/**
 * vgpu_ring_setup_fault - find what prevents a ring with these registers
 * @setup: the registers
 *
 * Return: the name of the first invalid field, or NULL.
 */
static inline const char *vgpu_ring_setup_fault(const struct vgpu_ring_setup *setup)
{
	__u64 entries = setup->entries;

	if (entries < VGPU_RING_ENTRIES_MIN || entries > VGPU_RING_ENTRIES_MAX ||
	    entries & (entries - 1))
		return "entries";
	if (!vgpu_block_valid(setup->ring, entries * sizeof(struct vgpu_desc),
			      sizeof(struct vgpu_desc)))
		return "ring";
	if (!vgpu_block_valid(setup->completion, entries * sizeof(struct vgpu_completion),
			      sizeof(struct vgpu_completion)))
		return "completion";
	if (!vgpu_block_valid(setup->shadow, sizeof(struct vgpu_shadow),
			      sizeof(struct vgpu_shadow)))
		return "shadow";
	return NULL;
}

#endif /* VGPU_RING_SETUP_H */
