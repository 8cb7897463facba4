/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Datagrams between a supervisor and its children, on a SOCK_SEQPACKET pair that
 * the child has as VGPU_FD_SUPERVISOR.  All are struct vgpu_link_message.
 *
 * A child is code of the tenant.  The supervisor checks the size, the version,
 * the operation and the number of descriptors of each datagram, and kills a child
 * that sends another.  A child may send VGPU_LINK_BURST datagrams at once.  Beyond that, all
 * children together are read at VGPU_LINK_RATE, in equal parts; a child that sends more
 * waits on its own socket.
 *
 *	child -> supervisor	descriptors	answer
 *	SERVING			none		none
 *	FAILED			none		none: the child exits
 *	RESERVE			none		ANSWER: 0 or ENOMEM
 *	RELEASE			none		none
 *	COMPILE			job		ANSWER with the result, when the compiler
 *							has ended
 *	RELAY			listener	ANSWER: a relay answers for the child's ioctl()
 *							from then on (gate/relay.h)
 *
 * A compiler is a process of its own: `vgpu-child --compile`, in a sandbox that
 * may start the linker.  It has the job as VGPU_FD_JOB and writes the result to
 * VGPU_FD_RESULT.  It has no other descriptor, and no window.
 *
 * The job is a memfd of the child; what the compiler gets is a copy where the result may
 * be kept.  The result is a memfd of the supervisor.  It is sealed when nothing of the
 * compiler is left, and the child is given a descriptor of it: a child could hold up who
 * writes into a memfd of its own.  Only children and compilers know what is in them.
 */
#ifndef VGPU_EXECUTOR_LINK_H
#define VGPU_EXECUTOR_LINK_H

#include <stdint.h>

#include "protocol/control.h"

#define VGPU_LINK_VERSION	1u

/* Datagrams per second of all children, and how many of each may come at once. */
#define VGPU_LINK_RATE		2000u
#define VGPU_LINK_BURST		64u

/* Of one job, and of one result. */
#define VGPU_JOB_BYTES_MAX	(64ull << 20)
/* Jobs of one child that wait or run; one more is answered with EAGAIN. */
#define VGPU_JOBS_MAX		64u

enum vgpu_compiler_fd {
	VGPU_FD_JOB = 3,	/* memfd to read */
	VGPU_FD_RESULT = 4,	/* memfd to write, at most VGPU_JOB_BYTES_MAX */
};

/* A compiler's exit status, besides 0: what it exits with otherwise has no result. */
#define VGPU_COMPILER_REFUSED	16	/* the result says why, and is not worth keeping */

enum vgpu_link_op {
	VGPU_LINK_SERVING = 1,	/* the sandbox is closed, requests are taken */
	VGPU_LINK_FAILED,	/* @reason says why the child cannot serve */
	VGPU_LINK_RESERVE,	/* @bytes of the slice's accelerator memory */
	VGPU_LINK_RELEASE,	/* @bytes that were reserved */
	VGPU_LINK_COMPILE,
	VGPU_LINK_ANSWER,	/* of the supervisor */
	VGPU_LINK_RELAY,	/* before SERVING, and once, of a child that was told to */
};

/**
 * struct vgpu_link_message - one datagram, either way
 * @version: VGPU_LINK_VERSION
 * @op: enum vgpu_link_op
 * @sequence: the child's number for RESERVE or COMPILE, which ANSWER repeats
 * @bytes: of RESERVE and RELEASE
 * @status: of ANSWER: 0, or a positive errno value.  RESERVE: ENOMEM.  COMPILE:
 *	EAGAIN (too many jobs), E2BIG (job too long), ETIMEDOUT, ENOMEM, EIO (the
 *	compiler ended otherwise; @exit_status says how), EINVAL (no memfd)
 * @exit_status: of ANSWER to COMPILE: as waitpid() gives it
 * @reason: of FAILED: for people; ends with NUL
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
