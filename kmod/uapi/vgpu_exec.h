/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * vgpumgr executors: the interface of /dev/vgpumgr-exec.
 *
 * With engine ``lease`` the engine is lent to one slice at a time (vgpu_lease_page.h), and
 * guest processes reach the host through windows (vgpu_device.h). Each slice has one
 * executor. It binds an open file of the device to the slice, starts a child for each window
 * that its guest opens, and operates the slice's gate. Whoever may open the device (root,
 * unless its mode is changed) may bind; the file then reaches that slice and nothing else. A
 * child has nothing but the three files of its window.
 *
 * A file that is not bound has no event (-ENOTCONN), and no other command (-ENOTTY).
 *
 * read() of a bound file gives one struct vgpu_exec_event; it waits for one unless
 * O_NONBLOCK (-EAGAIN). poll(): EPOLLIN while there is one. The kernel keeps states, no
 * queue: of a window only its present state is told, and of the gate the last request. An
 * event that could not be copied (-EFAULT) is told again. One thread reads or waits at a
 * time: another one gets -EBUSY of read(), and EPOLLERR of poll().
 * At the end (the slice is removed, or another executor's duty begins) read() gives
 * -ENODEV and poll() EPOLLHUP.
 *
 * When an executor closes its file or dies, its windows are lost to their guests, and
 * windows that are closing wait for the next executor, which is told of them and kills
 * what is left of their children before it says CLOSED. So it does with windows that
 * are open when it binds: it is told of them as of new ones.
 */
#ifndef _UAPI_VGPU_EXEC_H
#define _UAPI_VGPU_EXEC_H

#include <linux/ioctl.h>
#include <linux/types.h>

/**
 * struct vgpu_exec_bind - execute for a slice whose engine lends
 * @uuid: of the slice as text, 36 characters and zeros
 * @windows: out: how many the slice has
 * @window_bytes: out: size of each
 * @memory_bytes: out: accelerator memory of the slice
 * @reserved: zero
 *
 * -EINVAL: malformed; -ENOENT: no such slice; -EOPNOTSUPP: its engine does not lend;
 * -EBUSY: it has an executor, or this file is bound; -ENODEV: it is being removed; -ENOMEM.
 */
struct vgpu_exec_bind {
	char uuid[40];
	__u32 windows;
	__u32 reserved;
	__u64 window_bytes;
	__u64 memory_bytes;
};

/**
 * enum vgpu_exec_event_kind - what an executor is told
 * @VGPU_EXEC_WINDOW_OPENED: start a child for @window; if that fails: LOST
 * @VGPU_EXEC_WINDOW_CLOSED: kill the child of @window, if it has one; then: CLOSED
 * @VGPU_EXEC_GATE_CLOSE: stop all children; then: GATE with @sequence
 * @VGPU_EXEC_GATE_OPEN: let all children go on; then: GATE with @sequence
 */
enum vgpu_exec_event_kind {
	VGPU_EXEC_WINDOW_OPENED = 1,
	VGPU_EXEC_WINDOW_CLOSED = 2,
	VGPU_EXEC_GATE_CLOSE = 3,
	VGPU_EXEC_GATE_OPEN = 4,
};

/**
 * struct vgpu_exec_event - what read() gives
 * @kind: enum vgpu_exec_event_kind
 * @window: number of the window
 * @sequence: of the request to the gate
 */
struct vgpu_exec_event {
	__u32 kind;
	__u32 window;
	__u64 sequence;
};

/**
 * struct vgpu_exec_window - the files of an open window
 * @window: its number
 * @memory: out: the window itself, as memory that cannot change its size
 * @lease: out: the slice's lease page, which can only be mapped, and only for reading
 * @stream: out: the child's stream page to map; write() takes one struct
 *	vgpu_stream_request, or rings for the guest; read() waits for a ring of the guest's
 *	or a change of the lease page's wake word, and gives how many there were as a __u64;
 *	at the window's end it gives 0. One thread waits at a time, another one gets
 *	-EBUSY, and poll() waits for nothing. All children of a slice
 *	together may ask and yield 50,000 times a second, and save up 1000. Beyond that
 *	write() waits (-EAGAIN with O_NONBLOCK) until it is allowed again, the window ends
 *	(-ENODEV), or a signal comes (-EINTR)
 * @reserved: zero
 *
 * All are close-on-exec. The stream begins here. -EINVAL: number; -ENXIO: the window is not
 * open, or has its stream already; -ENODEV; -ENOMEM; -EMFILE.
 */
struct vgpu_exec_window {
	__u32 window;
	__s32 memory;
	__s32 lease;
	__s32 stream;
	__u32 reserved;
};

/**
 * struct vgpu_exec_child - what became of a window's child
 * @window: number of the window
 * @reserved: zero
 *
 * LOST: the child has ended, or could not be started, and nothing of it is left; the guest
 * sees a lost window. CLOSED: the same, of a window that is closing: it is zeroed and free.
 * RING: the guest is to look. -EINVAL: number; -EBUSY: some process has the window's memory
 * still, so try again; -ENXIO: the window is not open (LOST, RING) or not closing (CLOSED);
 * -ENODEV.
 */
struct vgpu_exec_child {
	__u32 window;
	__u32 reserved;
};

/**
 * struct vgpu_exec_gate - answer to GATE_CLOSE or GATE_OPEN
 * @sequence: of the request; an answer to another than the last counts for @processor_ns only
 * @processor_ns: used by all children, ever; 0 if unknown
 * @done: 1: the gate is as asked; 0: it could not be
 * @reserved: zero
 */
struct vgpu_exec_gate {
	__u64 sequence;
	__u64 processor_ns;
	__u32 done;
	__u32 reserved;
};

/* 0x50 to 0x52 were the engine ``exec``'s, whose processes executed one item at a time. */
#define VGPU_EXEC_IOCTL		'v'
#define VGPU_EXEC_BIND		_IOWR(VGPU_EXEC_IOCTL, 0x58, struct vgpu_exec_bind)
#define VGPU_EXEC_WINDOW	_IOWR(VGPU_EXEC_IOCTL, 0x59, struct vgpu_exec_window)
#define VGPU_EXEC_LOST		_IOW(VGPU_EXEC_IOCTL, 0x5a, struct vgpu_exec_child)
#define VGPU_EXEC_CLOSED	_IOW(VGPU_EXEC_IOCTL, 0x5b, struct vgpu_exec_child)
#define VGPU_EXEC_RING		_IOW(VGPU_EXEC_IOCTL, 0x5c, struct vgpu_exec_child)
#define VGPU_EXEC_GATE		_IOW(VGPU_EXEC_IOCTL, 0x5d, struct vgpu_exec_gate)

#endif /* _UAPI_VGPU_EXEC_H */
