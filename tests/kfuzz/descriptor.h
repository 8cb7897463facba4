/* SPDX-License-Identifier: GPL-2.0 */
/* What uapi/vgpu_device.h says a descriptor may be, in words of its own. */
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

/* Where the operands of a good descriptor lie. */
struct extents descriptor_extents(const struct vgpu_desc *desc);
/* Bit n: the document allows the device to stop with enum vgpu_error n; 0: it must not. */
u32 descriptor_faults(const struct vgpu_desc *desc, u64 memory_bytes);
/* A descriptor as a guest may write it: most are good, some nearly. */
void descriptor_make(struct vgpu_desc *desc, u64 memory_bytes, u64 ram_bytes);

#endif /* KFUZZ_DESCRIPTOR_H */
