/* SPDX-License-Identifier: GPL-2.0 */
/* Descriptors: names, constructors, and the operands of an item. */
#ifndef VGPU_TOOL_DESCRIPTOR_H
#define VGPU_TOOL_DESCRIPTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "vgpu_device.h"

#define OPERANDS_MAX 3

/* One operand of a descriptor; @address points into the descriptor. */
struct operand {
	__le64 *address;
	uint64_t bytes;
	bool device; /* in device memory */
	bool written;
};

/*
 * Get the operands of @desc if its operation is known and its dimensions are in
 * range; returns their number.
 */
unsigned int descriptor_operands(struct vgpu_desc *desc,
				 struct operand operands[OPERANDS_MAX]);

struct vgpu_desc descriptor_nop(void);
struct vgpu_desc descriptor_fill(uint64_t dst, uint32_t bytes, uint32_t pattern);
struct vgpu_desc descriptor_copy(uint64_t dst, uint64_t src, uint32_t bytes);
struct vgpu_desc descriptor_crc32c(uint64_t src, uint32_t bytes);
struct vgpu_desc descriptor_gemm(uint64_t dst, uint64_t a, uint64_t b,
				 uint32_t m, uint32_t n, uint32_t k);
struct vgpu_desc descriptor_delay(uint32_t delay_ns);
struct vgpu_desc descriptor_fact(uint32_t n);

/* Add VGPU_DESC_* flags. */
void descriptor_flag(struct vgpu_desc *desc, uint16_t flags);

/* Number of the operation called @name, or -1. */
int op_by_name(const char *name);
const char *op_name(unsigned int op);
const char *error_name(uint32_t error);

#endif
