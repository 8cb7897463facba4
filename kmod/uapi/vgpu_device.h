/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * vgpumgr virtual accelerator: the interface between the device and a guest.
 *
 * PCI function 1234:5647, class 0x120000. BAR0 holds four pages:
 *
 *   0x0000  registers     aligned 32-bit accesses; a 64-bit access to an
 *                         aligned pair equals two 32-bit ones, low half
 *                         first. Any other read returns ones, and any other
 *                         write is ignored.
 *   0x1000  doorbell      write: the new submission tail
 *   0x1010  window bell   write: number of a window whose child is to wake up
 *   0x2000  MSI-X table
 *   0x3000  MSI-X pending bits
 *
 * Life of an item. The guest puts a descriptor into the submission ring at
 * index ``tail & (entries - 1)``, advances its free-running 32-bit tail, and
 * writes the tail to the doorbell. The device may fetch a descriptor several times and only
 * uses its last copy. It executes the items of one slice in order, and answers item number n in
 * completion ring entry ``n & (entries - 1)`` with ``seq = n + 1``. An entry may be reused once
 * its completion was read, so ``tail - completed`` never exceeds ``entries``. All fields are
 * little endian.
 *
 * Operands in device memory are accessed in the order of the items. Operands in guest memory
 * are read at any time after the doorbell. They are written, in order, at any time before the
 * completion. So an item that reads guest memory written by an earlier item must be submitted
 * after the completion of that item.
 *
 * Requests. A guest may mark which items belong together: every item of a request except the
 * last has VGPU_DESC_MORE. If the tenant was granted holds, the engine is then held for the
 * next item, at the tenant's expense. The hold lasts until that item is there, an item without
 * the flag is done, or the tenant's limits are reached. A guest that announced more items and
 * then has none sends an item with VGPU_DESC_END, for example a VGPU_OP_NOP; that item is not
 * part of the request. @kernel_id names a kind of work that takes equally long each time, so
 * that its duration can be predicted. None of this changes the result of an item, and false
 * information only costs its sender.
 *
 * Windows. If VGPU_REG_FEATURES has VGPU_FEATURE_WINDOWS, BAR2 is memory. It consists of
 * VGPU_REG_WINDOWS windows of equal size, each shared with one process of the host, a child of
 * the slice's executor. The device does not use the contents of a window. The guest's kernel
 * gives each of its processes a separate window: it opens a free window (WINDOW_OPEN) and
 * closes it when the process is gone (WINDOW_CLOSE). The window is free again, and zeroed, when
 * the host has released it. Writing a window's number to 0x1010 wakes that window's child. When
 * the child signals the guest, or a window's state changes, the window's bit in WINDOW_EVENTS
 * is set; if no bit was set before, the completion vector is raised. A reset closes all
 * windows. Windows cost no engine time, and items do not need them.
 *
 * Errors are sticky: a malformed descriptor, address, ring or doorbell stops
 * this slice, sets VGPU_STATUS_ERROR, VGPU_REG_ERROR and VGPU_REG_ERROR_INDEX,
 * and raises the error vector. Items already completed stay valid. Only a
 * reset (VGPU_CONTROL_RESET, function level reset, VFIO reset or reopening) leaves the error
 * state. While bus mastering is off the device neither accesses guest memory nor interrupts.
 * Once the write that resets has returned, the device does not access guest memory.
 *
 * Versions. A device with the same major number in VGPU_REG_ABI has all features of older minor
 * versions, except those that VGPU_REG_FEATURES and VGPU_REG_OPS report: a driver must check
 * these registers before it uses such a feature. Up to version 1.3 there were a byte channel
 * and an operation that a process of the host executed. Their registers (0x68, 0x6c), doorbells
 * (0x1008, 0x100c), feature (bit 0), operation (7) and error (13) are never reused.
 *
 * A function that was removed reads as ones everywhere; the error vector reports the removal.
 */
#ifndef _UAPI_VGPU_DEVICE_H
#define _UAPI_VGPU_DEVICE_H

#include <linux/types.h>

#define VGPU_PCI_VENDOR_ID	0x1234
#define VGPU_PCI_DEVICE_ID	0x5647
#define VGPU_PCI_CLASS		0x120000

#define VGPU_BAR0_BYTES		0x4000
#define VGPU_BAR0_DOORBELL	0x1000
#define VGPU_BAR0_WINDOW_BELL	0x1010
#define VGPU_BAR0_MSIX_TABLE	0x2000
#define VGPU_BAR0_MSIX_PBA	0x3000

/* MSI-X vectors */
#define VGPU_VECTOR_COMPLETION	0
#define VGPU_VECTOR_ERROR	1
#define VGPU_VECTORS		2

/*
 * Registers. RO unless marked RW. Without "always", RW registers can only be changed while not
 * enabled.
 */
#define VGPU_REG_ID		0x00	/* VGPU_ID */
#define VGPU_REG_ABI		0x04	/* major << 16 | minor */
#define VGPU_REG_OPS		0x08	/* bit n: operation n exists */
#define VGPU_REG_FLAGS		0x0c	/* supported descriptor flags */
#define VGPU_REG_CONTROL	0x10	/* RW, always: VGPU_CONTROL_* */
#define VGPU_REG_STATUS		0x14	/* VGPU_STATUS_* */
#define VGPU_REG_ERROR		0x18	/* enum vgpu_error */
#define VGPU_REG_ERROR_INDEX	0x1c	/* number of the item at fault */
#define VGPU_REG_RING_LO	0x20	/* RW: submission ring, 64-byte aligned */
#define VGPU_REG_RING_HI	0x24
#define VGPU_REG_COMPLETION_LO	0x28	/* RW: completion ring, 32-byte aligned */
#define VGPU_REG_COMPLETION_HI	0x2c
#define VGPU_REG_SHADOW_LO	0x30	/* RW: struct vgpu_shadow, 64-byte aligned */
#define VGPU_REG_SHADOW_HI	0x34
#define VGPU_REG_RING_ENTRIES	0x38	/* RW: a power of two, 8 .. 4096 */
#define VGPU_REG_ITEM_BYTES_MAX	0x3c	/* largest operand in guest memory */
#define VGPU_REG_MEMORY_LO	0x40	/* device memory of this slice, bytes */
#define VGPU_REG_MEMORY_HI	0x44
#define VGPU_REG_DELAY_NS_MAX	0x48	/* longest VGPU_OP_DELAY */
#define VGPU_REG_CHUNK_NS_MAX	0x4c	/* longest item in one piece */
#define VGPU_REG_FETCHED	0x50	/* items fetched, free running */
#define VGPU_REG_COMPLETED	0x54	/* items completed, free running */
#define VGPU_REG_RUN_NS_LO	0x58	/* engine time charged to this slice; */
#define VGPU_REG_RUN_NS_HI	0x5c	/* reading LO latches HI */
#define VGPU_REG_FACT_PS	0x60	/* predicted time of each multiplication of */
					/* VGPU_OP_FACT, picoseconds */
#define VGPU_REG_FEATURES	0x64	/* VGPU_FEATURE_*; zero before ABI 1.2 */
#define VGPU_REG_WINDOWS	0x70	/* number of windows in BAR2, at most 16 */
#define VGPU_REG_WINDOW_BYTES	0x74	/* size of each window, a multiple of 4096 */
#define VGPU_REG_WINDOW_OPEN	0x78	/* write, always: number of a free window */
#define VGPU_REG_WINDOW_CLOSE	0x7c	/* write, always: number of an open or lost window */
#define VGPU_REG_WINDOW_STATES	0x80	/* bits 2n, 2n + 1: enum vgpu_window_state of window n */
#define VGPU_REG_WINDOW_EVENTS	0x84	/* bit n: event of window n; reading clears all */

#define VGPU_ID			0x55504756	/* "VGPU" */
#define VGPU_ABI_MAJOR		1
#define VGPU_ABI_MINOR		4
#define VGPU_ABI		(VGPU_ABI_MAJOR << 16 | VGPU_ABI_MINOR)

#define VGPU_FEATURE_WINDOWS	(1u << 1)	/* BAR2 has windows */

#define VGPU_CONTROL_ENABLE	(1u << 0)
#define VGPU_CONTROL_RESET	(1u << 1)	/* reads as zero */

#define VGPU_STATUS_ENABLED	(1u << 0)
#define VGPU_STATUS_ERROR	(1u << 1)
#define VGPU_STATUS_SCHEDULED	(1u << 2)	/* the tenant group is configured */

#define VGPU_RING_ENTRIES_MIN	8
#define VGPU_RING_ENTRIES_MAX	4096

#define VGPU_WINDOWS_MAX	16

/**
 * enum vgpu_window_state - state of a window, as the guest sees it
 * @VGPU_WINDOW_FREE: zeroed and unused
 * @VGPU_WINDOW_OPEN: the host has given it a child, or will; the child reports itself in the
 *	window
 * @VGPU_WINDOW_CLOSING: the guest has closed it, but the host has not released it yet
 * @VGPU_WINDOW_LOST: its child has ended, and it gets no other child: the guest must close it
 *
 * Opening a window that is not free has no effect. Closing a window that is free or closing has
 * no effect either.
 */
enum vgpu_window_state {
	VGPU_WINDOW_FREE = 0,
	VGPU_WINDOW_OPEN = 1,
	VGPU_WINDOW_CLOSING = 2,
	VGPU_WINDOW_LOST = 3,
};

/**
 * enum vgpu_error - why a slice stopped (VGPU_REG_ERROR)
 * @VGPU_ERROR_NONE: it has not stopped
 * @VGPU_ERROR_RING: ring, completion or shadow address or size invalid
 * @VGPU_ERROR_DOORBELL: tail beyond the ring, or moving backwards
 * @VGPU_ERROR_STORM: more doorbells without an item than allowed
 * @VGPU_ERROR_DMA: the ring, a descriptor or an operand cannot be accessed
 * @VGPU_ERROR_OP: an operation that is not in VGPU_REG_OPS
 * @VGPU_ERROR_FLAGS: unknown flag, or a reserved or unused field not zero
 * @VGPU_ERROR_SIZE: operand size zero, misaligned or beyond a limit
 * @VGPU_ERROR_ADDRESS: operand range overflows, leaves device memory, or overlaps in device
 *	memory where the operation forbids it
 * @VGPU_ERROR_CHUNK: predicted to take longer than CHUNK_NS_MAX, with VGPU_DESC_NOSPLIT or on
 *	an engine that executes every item in one piece
 * @VGPU_ERROR_MASTER: enabled or used while PCI bus mastering is off
 * @VGPU_ERROR_RESOURCE: the host lacks memory to enable the ring or to stage the item
 * @VGPU_ERROR_ENGINE: the accelerator stopped working; the slice cannot be enabled until the
 *	host has restarted it
 */
enum vgpu_error {
	VGPU_ERROR_NONE = 0,
	VGPU_ERROR_RING = 1,
	VGPU_ERROR_DOORBELL = 2,
	VGPU_ERROR_STORM = 3,
	VGPU_ERROR_DMA = 4,
	VGPU_ERROR_OP = 5,
	VGPU_ERROR_FLAGS = 6,
	VGPU_ERROR_SIZE = 7,
	VGPU_ERROR_ADDRESS = 8,
	VGPU_ERROR_CHUNK = 9,
	VGPU_ERROR_MASTER = 10,
	VGPU_ERROR_RESOURCE = 11,
	VGPU_ERROR_ENGINE = 12,
};

/**
 * enum vgpu_op - operation of an item
 * @VGPU_OP_NOP: nothing
 * @VGPU_OP_FILL: write pattern arg[1] to @dst; arg[0] bytes, a multiple of 4
 * @VGPU_OP_COPY: copy arg[0] bytes from @src to @dst; ranges in device memory
 *	may overlap as with memmove
 * @VGPU_OP_CRC32C: CRC-32C (Castagnoli, reflected, initial value and final
 *	inversion ~0) of arg[0] bytes at @src; the result is in the completion
 * @VGPU_OP_GEMM_I32: C = A * B, row-major int32, products and sums modulo
 *	2^32; @dst = C (m x n), @src = A (m x k), @src2 = B (k x n), arg = m, n, k;
 *	C overlaps neither A nor B
 * @VGPU_OP_DELAY: occupy the engine for arg[0] ns without computing
 * @VGPU_OP_FACT: arg[0]! modulo 2^32 in as many multiplications, each of about
 *	FACT_PS picoseconds; the result is in the completion
 */
enum vgpu_op {
	VGPU_OP_NOP = 0,
	VGPU_OP_FILL = 1,
	VGPU_OP_COPY = 2,
	VGPU_OP_CRC32C = 3,
	VGPU_OP_GEMM_I32 = 4,
	VGPU_OP_DELAY = 5,
	VGPU_OP_FACT = 6,
};

#define VGPU_GEMM_DIM_MAX	512

/* Descriptor flags. Operands are in guest memory unless marked. */
#define VGPU_DESC_DST_DEVICE	(1u << 0)	/* @dst is an offset in device memory */
#define VGPU_DESC_SRC_DEVICE	(1u << 1)
#define VGPU_DESC_SRC2_DEVICE	(1u << 2)
#define VGPU_DESC_IRQ		(1u << 3)	/* interrupt when completed */
#define VGPU_DESC_NOSPLIT	(1u << 4)	/* in one piece of at most CHUNK_NS_MAX */
#define VGPU_DESC_MORE		(1u << 5)	/* more items of the same request follow */
#define VGPU_DESC_END		(1u << 6)	/* the previous request has no more items */
#define VGPU_DESC_FLAGS		0x7fu

/**
 * struct vgpu_desc - one item in the submission ring
 * @op: enum vgpu_op
 * @flags: VGPU_DESC_*
 * @kernel_id: the guest's id for this kind of work, see Requests above
 * @cookie: returned in the completion
 * @dst: destination, a guest physical address or a device memory offset; zero, like @src and
 *	@src2, if the operation has no such operand
 * @src: first source
 * @src2: second source
 * @arg: see enum vgpu_op; unused arguments are zero
 * @reserved: zero
 */
struct vgpu_desc {
	__le16 op;
	__le16 flags;
	__le32 kernel_id;
	__le64 cookie;
	__le64 dst;
	__le64 src;
	__le64 src2;
	__le32 arg[4];
	__le64 reserved;
};

/**
 * enum vgpu_item_status - result of an item
 * @VGPU_ITEM_OK: it was executed; there is no other status
 */
enum vgpu_item_status {
	VGPU_ITEM_OK = 0,
};

/**
 * struct vgpu_completion - answer to one item
 * @cookie: cookie of the descriptor
 * @result: result of VGPU_OP_CRC32C or VGPU_OP_FACT, otherwise zero
 * @run_ns: engine time charged for the item
 * @seq: item number + 1, written with the entry; the entry is valid if @seq matches
 * @status: enum vgpu_item_status
 */
struct vgpu_completion {
	__le64 cookie;
	__le64 result;
	__le64 run_ns;
	__le32 seq;
	__le32 status;
};

/**
 * struct vgpu_shadow - copies of registers that the device writes to guest memory
 * @fetched: VGPU_REG_FETCHED
 * @completed: VGPU_REG_COMPLETED, written after the completions it counts
 * @error: VGPU_REG_ERROR
 * @error_index: VGPU_REG_ERROR_INDEX
 * @reserved: zero
 */
struct vgpu_shadow {
	__le32 fetched;
	__le32 completed;
	__le32 error;
	__le32 error_index;
	__le32 reserved[12];
};

#endif /* _UAPI_VGPU_DEVICE_H */
