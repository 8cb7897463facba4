/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Datagrams between a supervisor and its children, on a SOCK_SEQPACKET pair.  The child's end is
 * descriptor VGPU_FD_SUPERVISOR.  Each datagram is a struct vgpu_link_message.
 *
 * A child runs code of the tenant.  The supervisor checks the size, the version, the operation and
 * the number of descriptors of each datagram, and kills a child that sends an invalid one.  A child
 * may send VGPU_LINK_BURST datagrams at once.  Beyond that, the supervisor reads VGPU_LINK_RATE
 * datagrams per second from all children together, in equal shares; a child that sends more blocks
 * on its own socket.
 *
 *	child -> supervisor	descriptors	answer
 *	SERVING			none		none
 *	FAILED			none		none: the child exits
 *	RESERVE			none		ANSWER: 0 or ENOMEM
 *	RELEASE			none		none
 *	COMPILE			job		ANSWER with the result, when the compiler
 *							has ended
 *	RELAY			listener	ANSWER: from then on a relay answers the
 *							child's ioctl() calls (gate/relay.h)
 *
 * A compiler is a separate process, `vgpu-child --compile`, in a sandbox that permits starting the
 * linker.  It reads the job from VGPU_FD_JOB and writes the result to VGPU_FD_RESULT.  It has no
 * other descriptor, and no window.
 *
 * The job is a memfd of the child.  If the result may be kept, the compiler gets a copy of the job.
 * The result is a memfd of the supervisor, because a child could block a process that writes to a
 * memfd of the child.  The supervisor seals the result when no process of the compiler is left, and
 * then sends the child a descriptor of it.  Only children and compilers know the format of jobs and
 * results.
 */
#ifndef VGPU_EXECUTOR_LINK_H
#define VGPU_EXECUTOR_LINK_H

#include <stdint.h>

#include "protocol/control.h"

#define VGPU_LINK_VERSION	1u

/* Datagrams per second of all children together, and the burst of each child. */
#define VGPU_LINK_RATE		2000u
#define VGPU_LINK_BURST		64u

/* Maximum size of one job, and of one result. */
#define VGPU_JOB_BYTES_MAX	(64ull << 20)
/* Jobs of one child that wait or run.  A further job is answered with EAGAIN. */
#define VGPU_JOBS_MAX		64u

enum vgpu_compiler_fd {
	VGPU_FD_JOB = 3,	/* memfd to read */
	VGPU_FD_RESULT = 4,	/* memfd to write, at most VGPU_JOB_BYTES_MAX */
};

/* A compiler's exit status, if it is not 0.  With any other status there is no result. */
#define VGPU_COMPILER_REFUSED	16	/* the result says why; do not keep it */

enum vgpu_link_op {
	VGPU_LINK_SERVING = 1,	/* the sandbox is closed, and the child accepts requests */
	VGPU_LINK_FAILED,	/* @reason says why the child cannot serve */
	VGPU_LINK_RESERVE,	/* @bytes of the slice's accelerator memory */
	VGPU_LINK_RELEASE,	/* @bytes that were reserved */
	VGPU_LINK_COMPILE,
	VGPU_LINK_ANSWER,	/* sent by the supervisor */
	VGPU_LINK_RELAY,	/* before SERVING, once, from a child with --nvidia */
};

/**
 * struct vgpu_link_message - one datagram, in either direction
 * @version: VGPU_LINK_VERSION
 * @op: enum vgpu_link_op
 * @sequence: the child's number of a RESERVE or COMPILE, which ANSWER repeats
 * @bytes: for RESERVE and RELEASE
 * @status: for ANSWER: 0, or a positive errno value.  RESERVE: ENOMEM.  COMPILE: EAGAIN (too many
 *	jobs), E2BIG (job too long), ETIMEDOUT, ENOMEM, EIO (the compiler ended otherwise;
 *	@exit_status says how), EINVAL (no memfd)
 * @exit_status: for ANSWER to COMPILE: as in waitpid()
 * @reason: for FAILED: message, terminated by NUL
 */
struct vgpu_link_message {
	uint32_t version;
	uint32_t op;
	uint64_t sequence;
	uint64_t bytes;
	int32_t status;
	int32_t exit_status;
	char reason[VGPU_REASON_BYTES];
};

#endif /* VGPU_EXECUTOR_LINK_H */
