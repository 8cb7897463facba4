// SPDX-License-Identifier: GPL-2.0
/*
 * vgpumgr guest driver: operand memory.
 *
 * The memory is made of compound pages rather than dma_alloc_coherent() buffers
 * because user mappings hold references to pages: when the driver is unbound
 * under an open file, the mappings stay valid although the driver releases its
 * own references at once. In return the platform must do coherent DMA without
 * bounce buffers, which is checked for every piece.
 */
#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/overflow.h>

#include "guest.h"

#define VGPU_PIECE_ORDER	get_order(VGPU_GUEST_PIECE_BYTES)

/**
 * vgpu_area_init - initialize an empty area
 * @area: the area
 * @dev: device that will access the memory
 */
void vgpu_area_init(struct vgpu_guest_area *area, struct device *dev)
{
	mutex_init(&area->lock);
	area->dev = dev;
}

static int vgpu_piece_alloc(struct vgpu_guest_area *area, unsigned int piece)
{
	struct page *page;
	dma_addr_t bus;

	page = alloc_pages(GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_COMP |
			   __GFP_NOWARN, VGPU_PIECE_ORDER);
	if (!page)
		return -ENOMEM;

	bus = dma_map_page(area->dev, page, 0, VGPU_GUEST_PIECE_BYTES,
			   DMA_BIDIRECTIONAL);
	if (dma_mapping_error(area->dev, bus)) {
		put_page(page);
		return -ENOMEM;
	}
	if (dma_need_sync(area->dev, bus)) {
		dev_err_once(area->dev, "operand memory needs coherent DMA without bounce buffers\n");
		dma_unmap_page(area->dev, bus, VGPU_GUEST_PIECE_BYTES,
			       DMA_BIDIRECTIONAL);
		put_page(page);
		return -EOPNOTSUPP;
	}
	area->pages[piece] = page;
	area->bus[piece] = bus;
	return 0;
}

static void vgpu_area_drop(struct vgpu_guest_area *area)
{
	unsigned int piece;

	lockdep_assert_held(&area->lock);
	for (piece = 0; piece < VGPU_GUEST_PIECES; piece++) {
		if (!area->pages[piece])
			continue;
		dma_unmap_page(area->dev, area->bus[piece],
			       VGPU_GUEST_PIECE_BYTES, DMA_BIDIRECTIONAL);
		put_page(area->pages[piece]);
		area->pages[piece] = NULL;
	}
}

/**
 * vgpu_area_free - release all pieces
 * @area: the area; its device no longer accesses the pieces
 *
 * Pages that are still mapped are freed when they are unmapped.
 */
void vgpu_area_free(struct vgpu_guest_area *area)
{
	mutex_lock(&area->lock);
	vgpu_area_drop(area);
	mutex_unlock(&area->lock);
}

/**
 * vgpu_area_unbind - free the area and refuse new mappings
 * @area: the area; its device is being removed
 */
void vgpu_area_unbind(struct vgpu_guest_area *area)
{
	mutex_lock(&area->lock);
	vgpu_area_drop(area);
	area->dev = NULL;
	mutex_unlock(&area->lock);
}

static int vgpu_area_insert(struct vgpu_guest_area *area,
			    struct vm_area_struct *vma)
{
	unsigned long addr, offset = vma->vm_pgoff << PAGE_SHIFT;
	int rc;

	for (addr = vma->vm_start; addr < vma->vm_end;
	     addr += PAGE_SIZE, offset += PAGE_SIZE) {
		unsigned int piece = offset / VGPU_GUEST_PIECE_BYTES;
		unsigned long within = offset % VGPU_GUEST_PIECE_BYTES;

		if (!area->pages[piece]) {
			rc = vgpu_piece_alloc(area, piece);
			if (rc)
				return rc;
		}
		rc = vm_insert_page(vma, addr, area->pages[piece] +
				    (within >> PAGE_SHIFT));
		if (rc)
			return rc;
	}
	return 0;
}

/**
 * vgpu_area_mmap - map operand memory, allocating missing pieces
 * @area: the area
 * @vma: range in the area
 *
 * Return: 0, -EINVAL outside the area or for a private mapping, -ENOMEM,
 * -EOPNOTSUPP without coherent DMA, -ENODEV after unbinding.
 */
int vgpu_area_mmap(struct vgpu_guest_area *area, struct vm_area_struct *vma)
{
	unsigned long end;
	int rc;

	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (check_add_overflow(vma->vm_pgoff, vma_pages(vma), &end) ||
	    end > VGPU_GUEST_AREA_BYTES >> PAGE_SHIFT)
		return -EINVAL;

	mutex_lock(&area->lock);
	rc = area->dev ? vgpu_area_insert(area, vma) : -ENODEV;
	mutex_unlock(&area->lock);
	return rc;
}

static int vgpu_operand_translate(struct vgpu_guest_area *area,
				  __le64 *address, u64 bytes)
{
	u64 offset = le64_to_cpu(*address);
	unsigned int piece;

	if (!bytes || bytes > VGPU_GUEST_PIECE_BYTES ||
	    offset >= VGPU_GUEST_AREA_BYTES)
		return -EINVAL;

	piece = offset / VGPU_GUEST_PIECE_BYTES;
	offset %= VGPU_GUEST_PIECE_BYTES;
	if (!area->pages[piece] || offset + bytes > VGPU_GUEST_PIECE_BYTES)
		return -EINVAL;

	*address = cpu_to_le64(area->bus[piece] + offset);
	return 0;
}

/* Bytes of each operand; zero if the operation has no such operand. */
static int vgpu_operand_bytes(const struct vgpu_desc *desc, u64 *dst, u64 *src,
			      u64 *src2)
{
	u32 arg[3];
	int i;

	for (i = 0; i < 3; i++)
		arg[i] = le32_to_cpu(desc->arg[i]);

	*dst = 0;
	*src = 0;
	*src2 = 0;
	switch (le16_to_cpu(desc->op)) {
	case VGPU_OP_NOP:
	case VGPU_OP_DELAY:
	case VGPU_OP_FACT:
		return 0;
	case VGPU_OP_FILL:
		*dst = arg[0];
		return 0;
	case VGPU_OP_COPY:
		*dst = arg[0];
		*src = arg[0];
		return 0;
	case VGPU_OP_CRC32C:
		*src = arg[0];
		return 0;
	case VGPU_OP_GEMM_I32:
		/* bounded first, so that the products below cannot overflow */
		for (i = 0; i < 3; i++) {
			if (!arg[i] || arg[i] > VGPU_GEMM_DIM_MAX)
				return -EINVAL;
		}
		*dst = 4ull * arg[0] * arg[1];
		*src = 4ull * arg[0] * arg[2];
		*src2 = 4ull * arg[2] * arg[1];
		return 0;
	}
	return -EINVAL;
}

/* Set an unused operand to zero; leave an operand in device memory unchanged. */
static int vgpu_operand(struct vgpu_guest_area *area, __le64 *address,
			bool used, u64 bytes, bool device)
{
	if (!used) {
		*address = 0;
		return 0;
	}
	if (device)
		return 0;
	return vgpu_operand_translate(area, address, bytes);
}

/**
 * vgpu_area_translate - check a descriptor, replace offsets by bus addresses
 * @area: the area that the offsets refer to
 * @desc: descriptor, translated in place
 *
 * Ranges in device memory are left for the device to check.
 *
 * Return: 0 or -EINVAL.
 */
int vgpu_area_translate(struct vgpu_guest_area *area, struct vgpu_desc *desc)
{
	u16 flags = le16_to_cpu(desc->flags), op = le16_to_cpu(desc->op);
	bool has_dst = op == VGPU_OP_FILL || op == VGPU_OP_COPY ||
		       op == VGPU_OP_GEMM_I32;
	bool has_src = op == VGPU_OP_COPY || op == VGPU_OP_CRC32C ||
		       op == VGPU_OP_GEMM_I32;
	u64 dst, src, src2;
	int rc;

	if (flags & ~VGPU_DESC_FLAGS || desc->reserved)
		return -EINVAL;
	rc = vgpu_operand_bytes(desc, &dst, &src, &src2);
	if (rc)
		return rc;

	mutex_lock(&area->lock);
	rc = vgpu_operand(area, &desc->dst, has_dst, dst,
			  flags & VGPU_DESC_DST_DEVICE);
	if (!rc)
		rc = vgpu_operand(area, &desc->src, has_src, src,
				  flags & VGPU_DESC_SRC_DEVICE);
	if (!rc)
		rc = vgpu_operand(area, &desc->src2, op == VGPU_OP_GEMM_I32,
				  src2, flags & VGPU_DESC_SRC2_DEVICE);
	mutex_unlock(&area->lock);
	return rc;
}
