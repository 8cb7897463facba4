/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * vgpumgr executors: the interface of /dev/vgpumgr-exec.
 *
 * With engine ``exec`` the items of a slice are executed by a process of the host, its
 * executor. Whoever may open the device (root, unless its mode is changed) attaches an
 * open file to one slice and may then hand the file to a process that may do nothing
 * else. One executor per slice.
 *
 * Grants. The engine is lent for one VGPU_OP_LAUNCH at a time: TAKE tells which, COMPLETE
 * gives it back. Both return at once. Time is measured by the kernel, from the offer until
 * COMPLETE, and charged to the slice. At @deadline_ns the grant is revoked: the item ends
 * with VGPU_ITEM_REVOKED, the engine goes on with other slices, and the executor must stop
 * what it does and say so with COMPLETE, which then fails with -ECANCELED. Before that its
 * slice gets no other grant.
 *
 * Bytes. read() and write() are the other end of the slice's byte channel (see
 * vgpu_device.h), in order and without message borders. Nothing of that is scheduled.
 *
 * Who waits is woken by a thread of the kernel's: with the policy and priority that who
 * attached had then if that was in real time (SCHED_DEADLINE: SCHED_FIFO 50), else with its
 * nice value. It rests when waking takes more than half of a processor.
 *
 * poll(): EPOLLPRI when a grant is offered or revoked and that was not yet answered,
 * EPOLLIN and EPOLLOUT for bytes, EPOLLHUP at the end.
 *
 * End. An executor serves one enabling of the slice's ring at most: the present one, or the
 * next. When that ends, by a reset, an error or close, or the slice is removed or gets
 * another tenant, every call fails with -ENODEV; who wants to serve the slice again opens the
 * device anew. A reset or close without an enabled ring ends nothing, because its executor
 * has seen nothing. When an executor closes its file or dies, a grant it has ends with
 * VGPU_ITEM_LOST; other items wait for the next executor.
 */
#ifndef _UAPI_VGPU_EXEC_H
#define _UAPI_VGPU_EXEC_H

#include <linux/ioctl.h>
#include <linux/types.h>

/**
 * struct vgpu_exec_attach - which slice to execute for
 * @uuid: its UUID as text, 36 characters and zeros
 *
 * -EINVAL: malformed; -ENOENT: no such slice; -EOPNOTSUPP: its engine is not ``exec``;
 * -EBUSY: it has an executor, or this file is attached; -ENODEV: it is being removed;
 * -ENOMEM; -EAGAIN or -EINTR: there could be no thread for it.
 */
struct vgpu_exec_attach {
	char uuid[40];
};

#define VGPU_EXEC_REVOKED	(1u << 0)

/**
 * struct vgpu_exec_grant - the engine, lent for one item
 * @number: of the grant
 * @deadline_ns: when it is revoked, CLOCK_MONOTONIC
 * @cookie: of the descriptor
 * @arg: of the descriptor
 * @kernel_id: of the descriptor
 * @flags: VGPU_EXEC_REVOKED or zero
 *
 * -EAGAIN: there is none. Taking it again gives the same; after -EFAULT it is not taken.
 */
struct vgpu_exec_grant {
	__u64 number;
	__u64 deadline_ns;
	__u64 cookie;
	__u32 arg[4];
	__u32 kernel_id;
	__u32 flags;
};

/**
 * struct vgpu_exec_complete - the engine is given back
 * @number: of the grant
 * @result: for the item's completion
 * @status: VGPU_ITEM_OK or VGPU_ITEM_FAILED
 * @reserved: zero
 *
 * -EINVAL: another status, or not the grant that was taken; -ECANCELED: it had been
 * revoked, the result is dropped.
 */
struct vgpu_exec_complete {
	__u64 number;
	__u64 result;
	__u32 status;
	__u32 reserved;
};

#define VGPU_EXEC_IOCTL		'v'
#define VGPU_EXEC_ATTACH	_IOW(VGPU_EXEC_IOCTL, 0x50, struct vgpu_exec_attach)
#define VGPU_EXEC_TAKE		_IOR(VGPU_EXEC_IOCTL, 0x51, struct vgpu_exec_grant)
#define VGPU_EXEC_COMPLETE	_IOW(VGPU_EXEC_IOCTL, 0x52, struct vgpu_exec_complete)

#endif /* _UAPI_VGPU_EXEC_H */
