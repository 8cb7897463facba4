// SPDX-License-Identifier: GPL-2.0
#include "descriptor.h"

#include <endian.h>
#include <stddef.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const char *const op_names[] = {
	[VGPU_OP_NOP] = "nop",	     [VGPU_OP_FILL] = "fill",
	[VGPU_OP_COPY] = "copy",     [VGPU_OP_CRC32C] = "crc32c",
	[VGPU_OP_GEMM_I32] = "gemm", [VGPU_OP_DELAY] = "delay",
	[VGPU_OP_FACT] = "fact",
};

static const char *const error_names[] = {
	[VGPU_ERROR_NONE] = "none",
	[VGPU_ERROR_RING] = "ring",
	[VGPU_ERROR_DOORBELL] = "doorbell",
	[VGPU_ERROR_STORM] = "storm",
	[VGPU_ERROR_DMA] = "dma",
	[VGPU_ERROR_OP] = "op",
	[VGPU_ERROR_FLAGS] = "flags",
	[VGPU_ERROR_SIZE] = "size",
	[VGPU_ERROR_ADDRESS] = "address",
	[VGPU_ERROR_CHUNK] = "chunk",
	[VGPU_ERROR_MASTER] = "master",
	[VGPU_ERROR_RESOURCE] = "resource",
	[VGPU_ERROR_ENGINE] = "engine",
};

int op_by_name(const char *name)
{
	for (size_t op = 0; op < COUNT(op_names); op++)
		if (!strcmp(name, op_names[op]))
			return op;
	return -1;
}

const char *op_name(unsigned int op)
{
	return op < COUNT(op_names) ? op_names[op] : "unknown";
}

const char *error_name(uint32_t error)
{
	return error < COUNT(error_names) ? error_names[error] : "unknown";
}

static void operand_add(struct operand operands[], unsigned int *count,
			__le64 *address, uint64_t bytes, bool device,
			bool written)
{
	operands[(*count)++] = (struct operand){
		.address = address,
		.bytes = bytes,
		.device = device,
		.written = written,
	};
}

unsigned int descriptor_operands(struct vgpu_desc *desc,
				 struct operand operands[OPERANDS_MAX])
{
	uint16_t flags = le16toh(desc->flags);
	bool dst_device = flags & VGPU_DESC_DST_DEVICE;
	bool src_device = flags & VGPU_DESC_SRC_DEVICE;
	bool src2_device = flags & VGPU_DESC_SRC2_DEVICE;
	uint64_t arg[3];
	unsigned int count = 0;

	for (int i = 0; i < 3; i++)
		arg[i] = le32toh(desc->arg[i]);

	switch (le16toh(desc->op)) {
	case VGPU_OP_FILL:
		operand_add(operands, &count, &desc->dst, arg[0], dst_device, true);
		break;
	case VGPU_OP_COPY:
		operand_add(operands, &count, &desc->dst, arg[0], dst_device, true);
		operand_add(operands, &count, &desc->src, arg[0], src_device, false);
		break;
	case VGPU_OP_CRC32C:
		operand_add(operands, &count, &desc->src, arg[0], src_device, false);
		break;
	case VGPU_OP_GEMM_I32:
		operand_add(operands, &count, &desc->dst, 4 * arg[0] * arg[1],
			    dst_device, true);
		operand_add(operands, &count, &desc->src, 4 * arg[0] * arg[2],
			    src_device, false);
		operand_add(operands, &count, &desc->src2, 4 * arg[2] * arg[1],
			    src2_device, false);
		break;
	}
	return count;
}

struct vgpu_desc descriptor_nop(void)
{
	return (struct vgpu_desc){ .op = htole16(VGPU_OP_NOP) };
}

struct vgpu_desc descriptor_fill(uint64_t dst, uint32_t bytes, uint32_t pattern)
{
	return (struct vgpu_desc){
		.op = htole16(VGPU_OP_FILL),
		.dst = htole64(dst),
		.arg = { htole32(bytes), htole32(pattern) },
	};
}

struct vgpu_desc descriptor_copy(uint64_t dst, uint64_t src, uint32_t bytes)
{
	return (struct vgpu_desc){
		.op = htole16(VGPU_OP_COPY),
		.dst = htole64(dst),
		.src = htole64(src),
		.arg = { htole32(bytes) },
	};
}

struct vgpu_desc descriptor_crc32c(uint64_t src, uint32_t bytes)
{
	return (struct vgpu_desc){
		.op = htole16(VGPU_OP_CRC32C),
		.src = htole64(src),
		.arg = { htole32(bytes) },
	};
}

struct vgpu_desc descriptor_gemm(uint64_t dst, uint64_t a, uint64_t b,
				 uint32_t m, uint32_t n, uint32_t k)
{
	return (struct vgpu_desc){
		.op = htole16(VGPU_OP_GEMM_I32),
		.dst = htole64(dst),
		.src = htole64(a),
		.src2 = htole64(b),
		.arg = { htole32(m), htole32(n), htole32(k) },
	};
}

struct vgpu_desc descriptor_delay(uint32_t delay_ns)
{
	return (struct vgpu_desc){
		.op = htole16(VGPU_OP_DELAY),
		.arg = { htole32(delay_ns) },
	};
}

struct vgpu_desc descriptor_fact(uint32_t n)
{
	return (struct vgpu_desc){
		.op = htole16(VGPU_OP_FACT),
		.arg = { htole32(n) },
	};
}

void descriptor_flag(struct vgpu_desc *desc, uint16_t flags)
{
	desc->flags |= htole16(flags);
}
