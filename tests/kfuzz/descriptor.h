/* SPDX-License-Identifier: GPL-2.0 */
/* A second implementation of the rules for descriptors in uapi/vgpu_device.h. */
#ifndef KFUZZ_DESCRIPTOR_H
#define KFUZZ_DESCRIPTOR_H

#include "kernel.h"
#include "uapi/vgpu_device.h"

struct extent {
	u64 at, bytes;
	bool present, device;
};

struct extents {
	struct extent dst, src[2];
};

/* The location of the operands of a good descriptor. */
struct extents descriptor_extents(const struct vgpu_desc *desc);
/* Bit n: the document allows the device to stop with enum vgpu_error n; 0: it must not. */
u32 descriptor_faults(const struct vgpu_desc *desc, u64 memory_bytes);
/* A descriptor that a guest may write: most are good, some nearly good. */
void descriptor_make(struct vgpu_desc *desc, u64 memory_bytes, u64 ram_bytes);

#endif /* KFUZZ_DESCRIPTOR_H */
