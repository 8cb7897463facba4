/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * vgpumgr executors: the interface of /dev/vgpumgr-exec.
 *
 * With engine ``lease`` the engine is lent to one slice at a time (vgpu_lease_page.h), and
 * guest processes communicate with the host through windows (vgpu_device.h). Each slice has
 * one executor. The executor binds an open file of this device to the slice, starts a child
 * for each window that the guest opens, and operates the slice's gate. Any process that may
 * open the device (root, unless its mode is changed) may bind. The bound file then gives
 * access to that slice only. A child only gets the three files of its window.
 *
 * A file that is not bound has no events (-ENOTCONN), and only the command BIND (-ENOTTY for
 * others).
 *
 * read() of a bound file returns one struct vgpu_exec_event; it waits for an event unless
 * O_NONBLOCK is set (-EAGAIN). poll() returns EPOLLIN while there is an event. The kernel
 * keeps states and no queue: an event reports the present state of a window, or the last
 * request to the gate. An event that could not be copied (-EFAULT) is reported again. One
 * thread reads or waits at a time: for another thread read() returns -EBUSY and poll()
 * EPOLLERR. When the binding ends (the slice is removed or gets another tenant, or its gate
 * has failed), read() returns -ENODEV and poll() EPOLLHUP.
 *
 * When an executor closes its file or dies, its windows are lost to their guests. Windows
 * that are closing wait for the next executor, which is informed of them. That executor must
 * kill what is left of their children before it reports CLOSED. Windows that are open when an
 * executor binds are reported to it like new ones.
 */
#ifndef _UAPI_VGPU_EXEC_H
#define _UAPI_VGPU_EXEC_H

#include <linux/ioctl.h>
#include <linux/types.h>

/**
 * struct vgpu_exec_bind - become the executor of a slice whose engine lends
 * @uuid: UUID of the slice as text, 36 characters and zeros
 * @windows: out: number of windows of the slice
 * @window_bytes: out: size of each window
 * @memory_bytes: out: accelerator memory of the slice
 * @reserved: zero
 *
 * -EINVAL: malformed; -ENOENT: no such slice; -EOPNOTSUPP: the slice's engine does not lend;
 * -EBUSY: the slice has an executor, or this file is already bound; -ENODEV: the slice is
 * being removed; -ENOMEM.
 */
struct vgpu_exec_bind {
	char uuid[40];
	__u32 windows;
	__u32 reserved;
	__u64 window_bytes;
	__u64 memory_bytes;
};

/**
 * enum vgpu_exec_event_kind - event for an executor
 * @VGPU_EXEC_WINDOW_OPENED: start a child for @window; if that fails, report LOST
 * @VGPU_EXEC_WINDOW_CLOSED: kill the child of @window, if it has one; then report CLOSED
 * @VGPU_EXEC_GATE_CLOSE: stop all children; then answer GATE with @sequence
 * @VGPU_EXEC_GATE_OPEN: continue all children; then answer GATE with @sequence
 */
enum vgpu_exec_event_kind {
	VGPU_EXEC_WINDOW_OPENED = 1,
	VGPU_EXEC_WINDOW_CLOSED = 2,
	VGPU_EXEC_GATE_CLOSE = 3,
	VGPU_EXEC_GATE_OPEN = 4,
};

/**
 * struct vgpu_exec_event - result of read()
 * @kind: enum vgpu_exec_event_kind
 * @window: number of the window
 * @sequence: number of the request to the gate
 */
struct vgpu_exec_event {
	__u32 kind;
	__u32 window;
	__u64 sequence;
};

/**
 * struct vgpu_exec_window - the files of an open window
 * @window: number of the window
 * @memory: out: the window itself, as memory of fixed size
 * @lease: out: the slice's lease page, which can only be mapped, and only for reading
 * @stream: out: maps the child's stream page. write() takes one struct vgpu_stream_request,
 *	which may also signal the guest. read() waits for a signal of the guest or a change of
 *	the lease page's wake word, and returns the number of these events as a __u64; when
 *	the window ends it returns 0. One thread reads at a time: another thread gets -EBUSY,
 *	and poll() does not wait. All children of a slice together may send 50,000 requests a
 *	second, and can save up 1000. Beyond that write() waits (-EAGAIN with O_NONBLOCK)
 *	until another request is allowed, the window ends (-ENODEV), or a signal arrives
 *	(-EINTR)
 * @reserved: zero
 *
 * All files are close-on-exec. The command adds the child's stream to the arbiter. -EINVAL:
 * number; -ENXIO: the window is not open, or has its stream already; -ENODEV; -ENOMEM;
 * -EMFILE.
 */
struct vgpu_exec_window {
	__u32 window;
	__s32 memory;
	__s32 lease;
	__s32 stream;
	__u32 reserved;
};

/**
 * struct vgpu_exec_child - report about a window's child
 * @window: number of the window
 * @reserved: zero
 *
 * LOST: the child has ended or could not be started, and nothing of it is left; the window
 * becomes lost for the guest. CLOSED: the same for a window that is closing; the window is
 * then zeroed and becomes free. RING: signal the guest to look at the window. -EINVAL:
 * number; -EBUSY: some process still has the window's memory, so try again; -ENXIO: the
 * window is not open (LOST, RING) or not closing (CLOSED); -ENODEV.
 */
struct vgpu_exec_child {
	__u32 window;
	__u32 reserved;
};

/**
 * struct vgpu_exec_gate - answer to GATE_CLOSE or GATE_OPEN
 * @sequence: number of the request; if it is not the last request, only @processor_ns is used
 * @processor_ns: processor time that all children have ever used; 0 if unknown
 * @done: 1: the gate is in the requested state; 0: that failed
 * @reserved: zero
 */
struct vgpu_exec_gate {
	__u64 sequence;
	__u64 processor_ns;
	__u32 done;
	__u32 reserved;
};

/*
 * 0x50 to 0x52 belonged to the engine ``exec``, whose processes executed one item at a time.
 */
#define VGPU_EXEC_IOCTL		'v'
#define VGPU_EXEC_BIND		_IOWR(VGPU_EXEC_IOCTL, 0x58, struct vgpu_exec_bind)
#define VGPU_EXEC_WINDOW	_IOWR(VGPU_EXEC_IOCTL, 0x59, struct vgpu_exec_window)
#define VGPU_EXEC_LOST		_IOW(VGPU_EXEC_IOCTL, 0x5a, struct vgpu_exec_child)
#define VGPU_EXEC_CLOSED	_IOW(VGPU_EXEC_IOCTL, 0x5b, struct vgpu_exec_child)
#define VGPU_EXEC_RING		_IOW(VGPU_EXEC_IOCTL, 0x5c, struct vgpu_exec_child)
#define VGPU_EXEC_GATE		_IOW(VGPU_EXEC_IOCTL, 0x5d, struct vgpu_exec_gate)

#endif /* _UAPI_VGPU_EXEC_H */
