// SPDX-License-Identifier: GPL-2.0
/*
 * Checks one descriptor of a guest against every limit.
 *
 * This only works on a private copy of the descriptor and touches nothing else, so a guest
 * gains nothing by changing its ring meanwhile.
 */
#include <linux/nospec.h>
#include <linux/overflow.h>

#include "engine/item.h"

/* Which operands an operation has, and which of its arguments it uses. */
struct vgpu_op_shape {
	u8 dst : 1;
	u8 src : 1;
	u8 src2 : 1;
	u8 args : 3;
	u8 align;
};

static const struct vgpu_op_shape vgpu_op_shapes[] = {
	[VGPU_OP_NOP] = { .align = 1 },
	[VGPU_OP_FILL] = { .dst = 1, .args = 2, .align = 4 },
	[VGPU_OP_COPY] = { .dst = 1, .src = 1, .args = 1, .align = 1 },
	[VGPU_OP_CRC32C] = { .src = 1, .args = 1, .align = 1 },
	[VGPU_OP_GEMM_I32] = { .dst = 1, .src = 1, .src2 = 1, .args = 3, .align = 4 },
	[VGPU_OP_DELAY] = { .args = 1, .align = 1 },
	[VGPU_OP_FACT] = { .args = 1, .align = 1 },
};

/**
 * vgpu_item_info - describe an item to the scheduler
 * @item: the parsed item
 *
 * No hint is given, because no item executes for longer at a time than the engine's longest
 * piece. The scheduler assumes that length until it knows the kernel id.
 */
struct vgpu_item_info vgpu_item_info(const struct vgpu_item *item)
{
	bool more = le16_to_cpu(item->desc.flags) & VGPU_DESC_MORE;

	return (struct vgpu_item_info) {
		.kernel_id = le32_to_cpu(item->desc.kernel_id),
		.flags = more ? VGPU_ITEM_MORE : 0,
	};
}

static bool vgpu_item_unused_clear(const struct vgpu_desc *desc,
				   const struct vgpu_op_shape *shape)
{
	u16 flags = le16_to_cpu(desc->flags);
	unsigned int i;

	if (desc->reserved)
		return false;
	for (i = shape->args; i < ARRAY_SIZE(desc->arg); i++)
		if (desc->arg[i])
			return false;
	if (!shape->dst && (desc->dst || flags & VGPU_DESC_DST_DEVICE))
		return false;
	if (!shape->src && (desc->src || flags & VGPU_DESC_SRC_DEVICE))
		return false;
	if (!shape->src2 && (desc->src2 || flags & VGPU_DESC_SRC2_DEVICE))
		return false;
	return true;
}

static enum vgpu_error vgpu_operand_check(struct vgpu_operand *operand,
					  u64 address, u64 bytes, bool device,
					  u8 align, struct vgpu_memory *memory)
{
	u64 end;

	if (!bytes || bytes % align)
		return VGPU_ERROR_SIZE;
	if (check_add_overflow(address, bytes, &end))
		return VGPU_ERROR_ADDRESS;
	if (device) {
		if (end > memory->bytes || address % align)
			return VGPU_ERROR_ADDRESS;
		operand->data = memory->data + address;
	} else {
		if (bytes > VGPU_ITEM_BYTES_MAX)
			return VGPU_ERROR_SIZE;
		operand->guest = address;
		operand->staged = true;
	}
	operand->bytes = bytes;
	return VGPU_ERROR_NONE;
}

static bool vgpu_operands_overlap(const struct vgpu_operand *a,
				  const struct vgpu_operand *b)
{
	if (a->staged || b->staged)
		return false;
	return a->data < b->data + b->bytes && b->data < a->data + a->bytes;
}

/**
 * vgpu_item_restarts - check whether an item that was executed in part can be begun again
 * @item: the parsed item
 *
 * An item that has overwritten its sources cannot be begun again. Copies from and to guest
 * memory do not matter, because they happen before the item begins or after its end.
 */
bool vgpu_item_restarts(const struct vgpu_item *item)
{
	return !vgpu_operands_overlap(&item->dst, &item->src[0]) &&
	       !vgpu_operands_overlap(&item->dst, &item->src[1]);
}

/**
 * vgpu_item_parse - check a descriptor and find its operands
 * @item: the item, with @desc filled in and all else zero; on success the operands have a
 *	size and either device memory or a guest address that is still to be staged
 * @memory: device memory of the slice
 *
 * Return: VGPU_ERROR_NONE, or why the slice must stop.
 */
enum vgpu_error vgpu_item_parse(struct vgpu_item *item, struct vgpu_memory *memory)
{
	const struct vgpu_desc *desc = &item->desc;
	u16 op = le16_to_cpu(desc->op);
	u16 flags = le16_to_cpu(desc->flags);
	const struct vgpu_op_shape *shape;
	u64 bytes[3] = {};	/* dst, src, src2 */
	enum vgpu_error error;
	u32 m, n, k;

	if (op >= ARRAY_SIZE(vgpu_op_shapes))
		return VGPU_ERROR_OP;
	shape = &vgpu_op_shapes[array_index_nospec(op, ARRAY_SIZE(vgpu_op_shapes))];
	if (flags & ~VGPU_DESC_FLAGS || !vgpu_item_unused_clear(desc, shape))
		return VGPU_ERROR_FLAGS;

	m = le32_to_cpu(desc->arg[0]);
	n = le32_to_cpu(desc->arg[1]);
	k = le32_to_cpu(desc->arg[2]);
	switch (op) {
	case VGPU_OP_DELAY:
		if (!m || m > VGPU_DELAY_NS_MAX)
			return VGPU_ERROR_SIZE;
		break;
	case VGPU_OP_GEMM_I32:
		if (!m || !n || !k || m > VGPU_GEMM_DIM_MAX ||
		    n > VGPU_GEMM_DIM_MAX || k > VGPU_GEMM_DIM_MAX)
			return VGPU_ERROR_SIZE;
		bytes[0] = sizeof(u32) * m * n;
		bytes[1] = sizeof(u32) * m * k;
		bytes[2] = sizeof(u32) * k * n;
		break;
	default:
		bytes[0] = m;
		bytes[1] = m;
	}
	if (shape->dst) {
		error = vgpu_operand_check(&item->dst, le64_to_cpu(desc->dst), bytes[0],
					   flags & VGPU_DESC_DST_DEVICE, shape->align,
					   memory);
		if (error)
			return error;
	}
	if (shape->src) {
		error = vgpu_operand_check(&item->src[0], le64_to_cpu(desc->src), bytes[1],
					   flags & VGPU_DESC_SRC_DEVICE, shape->align,
					   memory);
		if (error)
			return error;
	}
	if (shape->src2) {
		error = vgpu_operand_check(&item->src[1], le64_to_cpu(desc->src2), bytes[2],
					   flags & VGPU_DESC_SRC2_DEVICE, shape->align,
					   memory);
		if (error)
			return error;
	}
	if (op == VGPU_OP_GEMM_I32 &&
	    (vgpu_operands_overlap(&item->dst, &item->src[0]) ||
	     vgpu_operands_overlap(&item->dst, &item->src[1])))
		return VGPU_ERROR_ADDRESS;
	return VGPU_ERROR_NONE;
}
