/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * vgpumgr guest driver: the interface of /dev/vgpuN.
 *
 * Only one process at a time can have the device open, and no process can open it while
 * any process has a window (-EBUSY otherwise; see /dev/vgpuN-compute below). The process maps
 * operand memory, submits descriptors of struct vgpu_desc whose guest addresses are
 * offsets in that memory, and waits for completions. Closing resets the device.
 *
 * Every call returns -ENODEV once the device is gone or the driver was unbound. Memory
 * that is mapped then stays readable, and the device no longer accesses it.
 *
 * A reset of the function by another user (reset in its sysfs directory) drops all queued
 * items. Calls wait until the reset is over. They then return -EIO with VGPU_ERROR_RING
 * until VGPU_GUEST_RESET or the next open.
 *
 * Operand memory: mmap(MAP_SHARED) of offset 0 .. VGPU_GUEST_AREA_BYTES. It is
 * made of pieces of VGPU_GUEST_PIECE_BYTES, each contiguous for the device; an
 * operand may not cross from one piece into the next.
 */
#ifndef _UAPI_VGPU_GUEST_H
#define _UAPI_VGPU_GUEST_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define VGPU_GUEST_PIECE_BYTES	0x100000u
#define VGPU_GUEST_AREA_BYTES	0x1000000u

/* Pass descriptors to the device unchanged; needs CAP_SYS_RAWIO. */
#define VGPU_GUEST_SUBMIT_RAW	0x1u
/* A new phase starts: restart the minimum of queued items. */
#define VGPU_GUEST_SUBMIT_PHASE	0x2u
#define VGPU_GUEST_SUBMIT_FLAGS	0x3u

/**
 * struct vgpu_guest_submit - queue items, all or none
 * @descs: pointer to @count struct vgpu_desc; the last descriptor of a call always gets
 *	VGPU_DESC_IRQ
 * @count: 1 .. ring entries
 * @flags: VGPU_GUEST_SUBMIT_*
 * @index: out, with -EINVAL: index of the descriptor that was refused
 * @outstanding: out: fewest items queued at the device at any moment since the
 *	previous submission (a lower bound: counted after the doorbell)
 *
 * -EAGAIN: the ring has no room for @count items. -EIO: the device is in error.
 */
struct vgpu_guest_submit {
	__u64 descs;
	__u32 count;
	__u32 flags;
	__u32 index;
	__u32 outstanding;
};

#define VGPU_GUEST_WAIT_FOREVER	0xffffffffu

/**
 * struct vgpu_guest_wait - collect completions in order
 * @completions: pointer to room for @capacity struct vgpu_completion
 * @capacity: how many completions may be stored; at least @minimum
 * @minimum: return when this many completions are there; with zero the call does not wait
 * @timeout_ms: with zero the call does not wait; with VGPU_GUEST_WAIT_FOREVER only a
 *	signal ends the wait
 * @count: out: completions stored, also when the call fails with -EIO or -ETIMEDOUT
 * @error: out: enum vgpu_error of the device
 * @error_index: out: number of the item at fault
 * @reserved: zero
 *
 * -EINVAL: @minimum exceeds the number of outstanding items. -EIO: the device stopped with
 * @error before @minimum completions. -ECANCELED: the device was reset meanwhile. -EINTR: a
 * signal; nothing was collected.
 */
struct vgpu_guest_wait {
	__u64 completions;
	__u32 capacity;
	__u32 minimum;
	__u32 timeout_ms;
	__u32 count;
	__u32 error;
	__u32 error_index;
	__u64 reserved;
};

/**
 * struct vgpu_guest_info - limits, registers and counters
 * @abi: VGPU_REG_ABI
 * @ops: VGPU_REG_OPS
 * @desc_flags: VGPU_REG_FLAGS
 * @status: VGPU_REG_STATUS
 * @error: VGPU_REG_ERROR
 * @error_index: VGPU_REG_ERROR_INDEX
 * @ring_entries: entries of the rings in use
 * @item_bytes_max: VGPU_REG_ITEM_BYTES_MAX
 * @delay_ns_max: VGPU_REG_DELAY_NS_MAX
 * @chunk_ns_max: VGPU_REG_CHUNK_NS_MAX
 * @area_bytes_max: largest mapping of operand memory
 * @piece_bytes: largest operand; no operand may cross a multiple of this
 * @fetched: VGPU_REG_FETCHED
 * @completed: VGPU_REG_COMPLETED
 * @tail: items submitted since the last reset, free running
 * @outstanding: items queued at the device now
 * @min_outstanding: fewest items queued at any moment from the start of the
 *	phase (VGPU_GUEST_SUBMIT_PHASE) to its last submission, a lower bound;
 *	0xffffffff before the second submission of the phase
 * @fact_ps: VGPU_REG_FACT_PS
 * @memory_bytes: device memory of this slice
 * @run_ns: engine time charged since the slice was assigned to its tenant
 * @submitted: items submitted since the device was opened
 * @collected: completions collected since the device was opened
 * @interrupts: completion interrupts since the driver was bound
 * @error_interrupts: error interrupts since the driver was bound
 * @resets: resets since the driver was bound
 */
struct vgpu_guest_info {
	__u32 abi;
	__u32 ops;
	__u32 desc_flags;
	__u32 status;
	__u32 error;
	__u32 error_index;
	__u32 ring_entries;
	__u32 item_bytes_max;
	__u32 delay_ns_max;
	__u32 chunk_ns_max;
	__u32 area_bytes_max;
	__u32 piece_bytes;
	__u32 fetched;
	__u32 completed;
	__u32 tail;
	__u32 outstanding;
	__u32 min_outstanding;
	__u32 fact_ps;
	__u64 memory_bytes;
	__u64 run_ns;
	__u64 submitted;
	__u64 collected;
	__u64 interrupts;
	__u64 error_interrupts;
	__u64 resets;
};

#define VGPU_GUEST_IOCTL	'v'
#define VGPU_GUEST_SUBMIT	_IOWR(VGPU_GUEST_IOCTL, 0x40, struct vgpu_guest_submit)
#define VGPU_GUEST_WAIT		_IOWR(VGPU_GUEST_IOCTL, 0x41, struct vgpu_guest_wait)
#define VGPU_GUEST_INFO		_IOR(VGPU_GUEST_IOCTL, 0x42, struct vgpu_guest_info)
/* Stop, drop every item, clear the error and enable again. */
#define VGPU_GUEST_RESET	_IO(VGPU_GUEST_IOCTL, 0x43)

/*
 * /dev/vgpuN-compute: windows of the device (VGPU_FEATURE_WINDOWS; without it the node does
 * not exist). Any number of processes may open it, mode 0666. Each open file is one window:
 * open() takes a free window. If all windows are in use but some of them are being released,
 * open() waits for up to VGPU_GUEST_WINDOW_OPEN_MS (with O_NONBLOCK not at all). -ENOSPC: all
 * windows are in use. -ENODEV: the device is gone. -EINTR: a signal. -EBUSY: /dev/vgpuN is
 * open. -EIO: the device does not open a window that is free. The window is released when the
 * last copy of the file is closed and the last mapping is gone.
 *
 * Opening and closing /dev/vgpuN resets the device, which would close all windows. So
 * /dev/vgpuN cannot be opened while a process has a window, and no window can be opened while
 * /dev/vgpuN is open.
 *
 * mmap(MAP_SHARED) takes any part of offset 0 up to the window's size. The mapping is not
 * inherited by fork(), cannot grow and cannot be executed (-EPERM). Once the device is
 * gone, or was reset, an access causes SIGBUS, and calls return -ENODEV or -EPIPE; another
 * open() after the reset gets a new window.
 *
 * poll(): EPOLLHUP once the window is lost, or the device was reset or is gone.
 */
#define VGPU_GUEST_WINDOW_OPEN_MS	5000

/**
 * struct vgpu_guest_window - description of an open window
 * @bytes: size of the window
 * @number: number of the window, for information only
 * @reserved: zero
 */
struct vgpu_guest_window {
	__u64 bytes;
	__u32 number;
	__u32 reserved;
};

/**
 * struct vgpu_guest_window_wait - sleep until a word of the window has changed
 * @offset: offset of a 32-bit word in the window, a multiple of 4
 * @value: the value that the caller has read there
 * @timeout_ns: longest sleep; UINT64_MAX for no limit
 *
 * Return 0: the word has changed, or the child has signalled since the call began: look
 * again. -ETIMEDOUT. -EINTR: a signal. -EINVAL: @offset. -EPIPE: the window is lost, or
 * the device was reset. -ENODEV: the device is gone.
 */
struct vgpu_guest_window_wait {
	__u32 offset;
	__u32 value;
	__u64 timeout_ns;
};

#define VGPU_GUEST_WINDOW_INFO	_IOR(VGPU_GUEST_IOCTL, 0x10, struct vgpu_guest_window)
#define VGPU_GUEST_WINDOW_WAIT	_IOW(VGPU_GUEST_IOCTL, 0x11, struct vgpu_guest_window_wait)
/* Wake the child, and also the threads that wait for a word of this window. */
#define VGPU_GUEST_WINDOW_RING	_IO(VGPU_GUEST_IOCTL, 0x12)

#endif /* _UAPI_VGPU_GUEST_H */
