/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * Leases: how an arbiter lends the accelerator to the children of a slice.
 *
 * The arbiter is the kernel module, or the broker where there is no VM. Both run the
 * same code (kmod/sched/vgpu_arbiter.h). For the scheduler a slice is one party, and
 * its children are its streams. All streams of a slice share one lease.
 *
 * The arbiter writes a lease page, which the slice's children map read-only. Each
 * child has its own stream page, which the child writes and the arbiter reads. Each
 * child also has a SOCK_SEQPACKET socket (in a VM: a file of the module) for struct
 * vgpu_stream_request.
 *
 * A child submits work only while it is busy under the present lease:
 *
 *	start:	state = BUSY(number); full barrier; read the lease page; if it
 *		is still LENT with that number and not past expires_ns: submit.
 *		Otherwise state = DRY; send READY; wait for @wake to change.
 *	dry:	all work done and none queued: dry_since_ns = now;
 *		state = DRY; full barrier; read the lease page. Under LENT
 *		without an end (expires_ns is UINT64_MAX) send nothing: the
 *		child may start again by itself. Otherwise send YIELD.
 *	expiry:	at expires_ns, or when EXPIRED is seen, stop submitting; when
 *		all submitted work is done, state = DRY and send YIELD, with
 *		VGPU_YIELD_WANT if work is queued.
 *
 * So a slice that is alone makes no system call per lease. When another slice becomes
 * ready, the arbiter changes LENT to RECALLED, executes a full barrier, and reads the
 * stream pages. If all are DRY it ends the lease at once. Otherwise it waits for the
 * yields until expiry, and then for the gate. A child that is DRY when the lease is
 * RECALLED must not start; a child that is BUSY continues until it is dry or the
 * lease expires.
 *
 * A lease that begins while others wait is LENT with an end. It is not RECALLED
 * before the children that asked for it have started, because a child takes time to
 * wake up. If it were RECALLED earlier, the child would lose each lease to a rival
 * that asks meanwhile.
 *
 * tests/compute/lease_model.c runs both sides in every order. It shows what else an
 * arbiter must do:
 *
 * - count a stream as busy whatever the number beside BUSY, because a child that was
 *   frozen continues under a later lease without having been dry;
 * - keep WANT of a yield that comes too late;
 * - on a yield of a lease that is still LENT, recall it and read the stream pages
 *   before ending it;
 * - change @wake when an expired lease is prolonged.
 *
 * The arbiter does not trust these pages where they matter to other tenants. The gate
 * stops a child that did not yield in time. Processor time (on PoCL) or channel state
 * (on a GPU) reveals work after a yield.
 */
#ifndef _UAPI_VGPU_LEASE_PAGE_H
#define _UAPI_VGPU_LEASE_PAGE_H

#include <linux/types.h>

/*
 * Words that one side accesses while the other may write them. In the kernel these
 * words have plain types, and are accessed by READ_ONCE(), WRITE_ONCE() and
 * smp_store_release().
 */
#ifdef __KERNEL__
#define VGPU_SHARED
#else
#include <stdatomic.h>
#define VGPU_SHARED	_Atomic
#endif

#define VGPU_LEASE_MAGIC	0x6c767067u
#define VGPU_LEASE_VERSION	1u
#define VGPU_LEASE_PAGE_BYTES	4096u

/* Low bits of vgpu_lease_page.lease; the other bits are the lease's number. */
enum vgpu_lease_state {
	VGPU_LEASE_NONE = 0,	/* no child of this slice may submit */
	VGPU_LEASE_LENT = 1,
	VGPU_LEASE_RECALLED = 2,	/* others wait: yield when dry */
	VGPU_LEASE_EXPIRED = 3,	/* stop and yield */
};

#define VGPU_LEASE_STATE_BITS	2u
#define VGPU_LEASE_STATE_MASK	3ull

/**
 * struct vgpu_lease_page - written by the arbiter
 * @magic: VGPU_LEASE_MAGIC
 * @version: VGPU_LEASE_VERSION
 * @wake: futex word, changed and woken whenever @lease changes in a way that a child
 *	may wait for
 * @lease: number << VGPU_LEASE_STATE_BITS | enum vgpu_lease_state
 * @begun_ns: CLOCK_MONOTONIC when it was lent
 * @expires_ns: submit nothing from this time on; UINT64_MAX while no other slice
 *	wants the accelerator; may move in either direction while the lease lasts
 * @generation: changes with each reset of the slice
 */
struct vgpu_lease_page {
	__u32 magic;
	__u32 version;
	VGPU_SHARED __u32 wake;
	__u32 reserved;
	VGPU_SHARED __u64 lease;
	VGPU_SHARED __u64 begun_ns;
	VGPU_SHARED __u64 expires_ns;
	VGPU_SHARED __u64 generation;
};

enum vgpu_stream_state {
	VGPU_STREAM_DRY = 0,
	VGPU_STREAM_BUSY = 1,
};

/**
 * struct vgpu_stream_page - written by one child
 * @state: number of the lease << 1 | enum vgpu_stream_state
 * @dry_since_ns: CLOCK_MONOTONIC of the last change to DRY
 * @idle_ns: sum of all spans in which this stream was DRY under a lease of the
 *	slice, up to the last change to BUSY
 * @submitted: kernels and copies ever passed to the library
 * @finished: submitted kernels and copies that have ended
 * @failed: submitted kernels and copies that ended with an error
 * @memory_bytes: the part of the slice's accelerator memory that the child has
 *	reserved; for information only, the supervisor counts by itself
 */
struct vgpu_stream_page {
	VGPU_SHARED __u64 state;
	VGPU_SHARED __u64 dry_since_ns;
	VGPU_SHARED __u64 idle_ns;
	VGPU_SHARED __u64 submitted;
	VGPU_SHARED __u64 finished;
	VGPU_SHARED __u64 failed;
	VGPU_SHARED __u64 memory_bytes;
};

enum vgpu_stream_op {
	VGPU_STREAM_READY = 1,	/* work is queued and there is no lease */
	VGPU_STREAM_YIELD = 2,
	/*
	 * For the kernel module only, all other fields 0: the guest is to look at its
	 * window.
	 */
	VGPU_STREAM_RING = 3,
};

/* Flags of YIELD. */
#define VGPU_YIELD_WANT	(1u << 0)	/* work is queued: ready again at once */
#define VGPU_YIELD_MORE	(1u << 1)	/* more follows soon (R5: a gap) */
#define VGPU_YIELD_END	(1u << 2)	/* the request is over */

/**
 * struct vgpu_stream_request - one datagram from a child to the arbiter
 * @op: enum vgpu_stream_op
 * @flags: VGPU_YIELD_*; for READY 0
 * @lease: number that is yielded, as read from the lease page; if that lease is over
 *	already, only WANT is used
 * @kernel_id: id of the first kernel in the queue (READY), or of the kernel that ran
 *	last (YIELD with MORE)
 * @hint_ns: expected duration of the first piece of work, 0 for unknown
 */
struct vgpu_stream_request {
	__u32 op;
	__u32 flags;
	__u64 lease;
	__u32 kernel_id;
	__u32 reserved;
	__u64 hint_ns;
};

#endif /* _UAPI_VGPU_LEASE_PAGE_H */
