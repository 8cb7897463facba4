/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Datagrams between client and broker, and between arbiter and supervisor.
 *
 * All are on SOCK_SEQPACKET unix sockets, of fixed size, with file descriptors
 * as SCM_RIGHTS.  A datagram of another size, or with other descriptors than
 * its kind says, ends the connection.
 *
 * A client connects to its tenant's socket and sends HELLO.  The broker answers
 * WELCOME with the window's memfd, or REFUSED.  The connection stays open for
 * the client's life: its end ends the child.
 *
 * A native program, which has the vendor's device itself, is started by a launcher
 * (native/launch.c).  That says NATIVE in place of HELLO, with the descriptor by which
 * the kernel tells of its ioctl() calls, and then makes the call VGPU_FENCE_HELLO.  When
 * that call succeeds it has been taken; else REFUSED says why.  The end of its connection
 * means nothing once it has been taken.
 *
 * A supervisor has one socket, which it gets at its start.  The arbiter tells it
 * to START a child, with four descriptors, or START_NATIVE a native program, with one,
 * and to KILL, FREEZE and THAW them; it answers each with DONE or FAILED, and reports
 * EXITED when one has ended and nothing of it is left.
 */
#ifndef VGPU_CONTROL_H
#define VGPU_CONTROL_H

#include <stdint.h>

#define VGPU_CONTROL_VERSION	1u
#define VGPU_REASON_BYTES	192u

enum vgpu_client_op {
	VGPU_CLIENT_HELLO = 1,
	VGPU_CLIENT_WELCOME,	/* one descriptor: the window */
	VGPU_CLIENT_REFUSED,
	VGPU_CLIENT_NATIVE,	/* one descriptor: a listener of seccomp */
};

/* Why a client is refused, or its child has ended; the values are frozen. */
enum vgpu_refusal {
	VGPU_REFUSED_NOTHING = 0,
	VGPU_REFUSED_VERSION,
	VGPU_REFUSED_MESSAGE,	/* malformed */
	VGPU_REFUSED_PROCESSES,	/* the tenant has max_processes already */
	VGPU_REFUSED_RATE,	/* too many new processes of late */
	VGPU_REFUSED_MEMORY,	/* no memory for a window */
	VGPU_REFUSED_EXECUTOR,	/* the supervisor or the child did not start */
	VGPU_REFUSED_STOPPING,
	VGPU_REFUSED_NATIVE,	/* the tenant's programs may not be native, or may not be anything else */
	VGPU_REFUSED_LAST = VGPU_REFUSED_NATIVE,
};

struct vgpu_client_message {
	uint32_t version;
	uint32_t op;
	uint32_t refusal;	/* of REFUSED */
	uint32_t reserved;
	uint64_t window_bytes;	/* of WELCOME */
	char reason[VGPU_REASON_BYTES];	/* of REFUSED: for people; ends with NUL */
};

enum vgpu_supervisor_op {
	VGPU_SUPERVISOR_START = 1,
	VGPU_SUPERVISOR_KILL,
	VGPU_SUPERVISOR_FREEZE,	/* all children: the gate closes */
	VGPU_SUPERVISOR_THAW,	/* all children: the gate opens */
	VGPU_SUPERVISOR_DONE,
	VGPU_SUPERVISOR_FAILED,
	VGPU_SUPERVISOR_EXITED,
	VGPU_SUPERVISOR_MEMORY,	/* how much children have reserved; now and then, unasked */
	VGPU_SUPERVISOR_START_NATIVE,
	VGPU_SUPERVISOR_TIMESLICE,	/* of all native programs together, by the driver's own scheduler */
	VGPU_SUPERVISOR_WORKS,	/* a native program has channels now, or has none any more; unasked */
};

/* Whoever ends a lease that a child does not give back. */
enum vgpu_enforced {
	VGPU_ENFORCED_UNKNOWN = 0,
	VGPU_ENFORCED_EXECUTOR,	/* nobody: the gate stops children, and not what they have under way */
	VGPU_ENFORCED_GATE,	/* the gate: it stops both */
};

/* START's descriptors, in this order; the child has them from 3 on. */
enum vgpu_child_fd {
	VGPU_FD_WINDOW = 3,	/* read and write */
	VGPU_FD_LEASE = 4,	/* the lease page, read only */
	VGPU_FD_STREAM = 5,	/* the stream page, read and write */
	VGPU_FD_ARBITER = 6,	/* socket for struct vgpu_stream_request */
	VGPU_FD_SUPERVISOR = 7,	/* socket to the supervisor, which adds it */
};

struct vgpu_supervisor_message {
	uint32_t version;
	uint32_t op;
	uint64_t sequence;	/* of the request; DONE and FAILED repeat it */
	uint64_t child;	/* the arbiter's number for it */
	uint64_t window_bytes;	/* of START */
	uint64_t memory_bytes;	/* of START, START_NATIVE: the slice's accelerator memory; of MEMORY: reserved */
	uint64_t processor_ns;	/* of DONE, EXITED: used by all children, ever */
	uint64_t compilers;	/* of DONE, EXITED: started ever */
	uint64_t compile_hits;	/* of DONE, EXITED: jobs that needed none */
	uint64_t compile_kept_bytes;	/* of DONE, EXITED: results that are kept, and their jobs */
	uint64_t gate_ns;	/* of DONE, EXITED: what 99 of 100 closings of late took at most */
	uint64_t native_bytes;	/* of DONE, EXITED, MEMORY: accelerator memory of native programs */
	uint64_t timeslice_us;	/* of TIMESLICE, START_NATIVE */
	int32_t status;	/* of EXITED: as waitpid() gives it; of WORKS: has it channels?  Of START_NATIVE: does it wait for a THAW? */
	uint32_t enforced;	/* of DONE, EXITED: enum vgpu_enforced */
	char reason[VGPU_REASON_BYTES];	/* of KILL, FAILED, EXITED; ends with NUL */
};

#endif /* VGPU_CONTROL_H */
