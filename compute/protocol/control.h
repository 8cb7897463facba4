/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Datagrams between client and broker, and between arbiter and supervisor.
 *
 * All datagrams use SOCK_SEQPACKET unix sockets and have a fixed size.  File descriptors are sent as SCM_RIGHTS.  A
 * datagram of another size, or with other descriptors than its kind has, ends the connection.
 *
 * A client connects to its tenant's socket and sends HELLO.  The broker answers WELCOME with the window's memfd, or
 * REFUSED.  The connection stays open for the client's life: when it ends, the child is ended.
 *
 * A native program, which uses the vendor's device itself, is started by a launcher (native/launch.c).  The launcher
 * sends NATIVE in place of HELLO, with the seccomp listener for its ioctl() calls, and then makes the call
 * VGPU_FENCE_HELLO.  If the call succeeds, the supervisor has taken the program.  Otherwise REFUSED gives the reason.
 * Once the program has been taken, the end of its connection has no meaning.
 *
 * A supervisor has one socket, which it gets at its start.  The arbiter sends START for a child, with four
 * descriptors; START_NATIVE for a native program, with one; and KILL, FREEZE and THAW.  The supervisor answers each
 * of these with DONE or FAILED.  It sends EXITED when a child or program has ended and is completely gone.
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
	VGPU_CLIENT_NATIVE,	/* one descriptor: a seccomp listener */
};

/* Why a client is refused, or why its child has ended; the values are frozen. */
enum vgpu_refusal {
	VGPU_REFUSED_NOTHING = 0,
	VGPU_REFUSED_VERSION,
	VGPU_REFUSED_MESSAGE,	/* malformed */
	VGPU_REFUSED_PROCESSES,	/* the tenant has max_processes already */
	VGPU_REFUSED_RATE,	/* too many new processes recently */
	VGPU_REFUSED_MEMORY,	/* no memory for a window */
	VGPU_REFUSED_EXECUTOR,	/* the supervisor or the child did not start */
	VGPU_REFUSED_STOPPING,
	VGPU_REFUSED_NATIVE,	/* the tenant's programs may not be native, or must be native */
	VGPU_REFUSED_LAST = VGPU_REFUSED_NATIVE,
};

struct vgpu_client_message {
	uint32_t version;
	uint32_t op;
	uint32_t refusal;	/* of REFUSED: enum vgpu_refusal */
	uint32_t reserved;
	uint64_t window_bytes;	/* of WELCOME: size of the window */
	char reason[VGPU_REASON_BYTES];	/* of REFUSED: text for people; ends with NUL */
};

enum vgpu_supervisor_op {
	VGPU_SUPERVISOR_START = 1,
	VGPU_SUPERVISOR_KILL,
	VGPU_SUPERVISOR_FREEZE,	/* closes the gate for all children */
	VGPU_SUPERVISOR_THAW,	/* opens the gate for all children */
	VGPU_SUPERVISOR_DONE,
	VGPU_SUPERVISOR_FAILED,
	VGPU_SUPERVISOR_EXITED,
	VGPU_SUPERVISOR_MEMORY,	/* reserved memory of the children; sent from time to time, unasked */
	VGPU_SUPERVISOR_START_NATIVE,
	VGPU_SUPERVISOR_TIMESLICE,	/* timeslice and memory limit of all native programs together; has no answer */
	VGPU_SUPERVISOR_WORKS,	/* a native program has got its first channel, or has lost its last; sent unasked */
};

/* What ends a lease that a child does not give back. */
enum vgpu_enforced {
	VGPU_ENFORCED_UNKNOWN = 0,
	VGPU_ENFORCED_EXECUTOR,	/* nothing: the gate stops children, but not their submitted work */
	VGPU_ENFORCED_GATE,	/* the gate: it stops children and their submitted work */
};

/* START's descriptors, in this order; in the child they are numbered from 3. */
enum vgpu_child_fd {
	VGPU_FD_WINDOW = 3,	/* read and write */
	VGPU_FD_LEASE = 4,	/* the lease page, read only */
	VGPU_FD_STREAM = 5,	/* the stream page, read and write */
	VGPU_FD_ARBITER = 6,	/* socket for struct vgpu_stream_request */
	VGPU_FD_SUPERVISOR = 7,	/* socket to the supervisor; the supervisor adds it */
};

struct vgpu_supervisor_message {
	uint32_t version;
	uint32_t op;
	uint64_t sequence;	/* number of the request; DONE and FAILED repeat it */
	uint64_t child;	/* the arbiter's number for the child */
	uint64_t window_bytes;	/* of START: size of the window */
	uint64_t memory_bytes;	/* of START, START_NATIVE, TIMESLICE: accelerator memory limit; of MEMORY: reserved */
	uint64_t processor_ns;	/* of DONE, EXITED: processor time of all children so far */
	uint64_t compilers;	/* of DONE, EXITED: compilers started so far */
	uint64_t compile_hits;	/* of DONE, EXITED: jobs that needed no compiler */
	uint64_t compile_kept_bytes;	/* of DONE, EXITED: size of kept results, with their jobs */
	uint64_t gate_ns;	/* of DONE, EXITED: 99th percentile of recent closings of the gate */
	uint64_t native_bytes;	/* of DONE, EXITED, MEMORY: accelerator memory of native programs */
	uint64_t timeslice_us;	/* of TIMESLICE, START_NATIVE: of all native programs, for the driver's scheduler */
	int32_t status;	/* of EXITED: from waitpid(); of WORKS: has channels; of START_NATIVE: waits for THAW */
	uint32_t enforced;	/* of DONE, EXITED: enum vgpu_enforced */
	char reason[VGPU_REASON_BYTES];	/* of KILL, FAILED, EXITED; ends with NUL */
};

#endif /* VGPU_CONTROL_H */
