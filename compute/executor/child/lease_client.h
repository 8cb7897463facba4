/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The child's side of uapi/vgpu_lease_page.h, as a pure state machine.
 *
 * The machine accesses only its own memory, makes no system call and reads no clock.  The caller
 * begins an operation with the present time.  vgpu_lease_next() then returns one access at a time:
 * a load or store of a word of the lease or stream page, a barrier, or a datagram.  The caller
 * makes the access and passes the loaded value to the next call, until the step is
 * VGPU_LEASE_RESULT.  So a test can interleave these accesses with those of an arbiter in every
 * possible order.
 *
 * A machine is used by one thread.  Times are CLOCK_MONOTONIC in ns.
 */
#ifndef VGPU_EXECUTOR_LEASE_CLIENT_H
#define VGPU_EXECUTOR_LEASE_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "uapi/vgpu_lease_page.h"

enum vgpu_lease_operation {
	VGPU_LEASE_START,	/* there is work: become busy under the present lease */
	VGPU_LEASE_CHECK,	/* busy: may the next piece of work be submitted? */
	VGPU_LEASE_DRY,		/* busy: nothing is in progress and nothing is queued */
	VGPU_LEASE_STOP,	/* busy: nothing in progress, work queued, CHECK returned HALT */
	VGPU_LEASE_LOOK,	/* the wake word has changed: has there been a reset? */
};

enum vgpu_lease_access {
	VGPU_LEASE_LOAD_WAKE,
	VGPU_LEASE_LOAD_LEASE,
	VGPU_LEASE_LOAD_BEGUN,
	VGPU_LEASE_LOAD_EXPIRES,
	VGPU_LEASE_LOAD_GENERATION,
	VGPU_LEASE_STORE_STATE,
	VGPU_LEASE_STORE_DRY_SINCE,
	VGPU_LEASE_STORE_IDLE,
	VGPU_LEASE_BARRIER,
	VGPU_LEASE_SEND,
	VGPU_LEASE_RESULT,
};

enum vgpu_lease_result {
	VGPU_LEASE_GO,		/* busy: submit, with a CHECK before each piece */
	VGPU_LEASE_WAIT,	/* not busy: START again when the wake word differs from @wake */
	VGPU_LEASE_HALT,	/* busy, but submit nothing: STOP when nothing is in progress */
	VGPU_LEASE_AGAIN,	/* not busy, but there is a lease: START at once */
	VGPU_LEASE_IDLE,	/* not busy, and nothing to wait for */
	VGPU_LEASE_RESET,	/* the slice was reset: the child must end */
};

/**
 * struct vgpu_lease_step - what the caller must do next
 * @access: enum vgpu_lease_access
 * @value: value to store
 * @request: for SEND: the datagram
 * @result: for RESULT: the result of the operation
 */
struct vgpu_lease_step {
	enum vgpu_lease_access access;
	uint64_t value;
	struct vgpu_stream_request request;
	enum vgpu_lease_result result;
};

/**
 * struct vgpu_lease_client - the machine; its owner reads only @busy and @wake
 * @busy: work may be in progress; the stream page says BUSY
 * @wake: the wake word, loaded before all other words in the last START or STOP
 * @lease: number of the lease under which the child is busy, or was last busy
 * @generation: generation of the slice when it was first loaded
 * @halted: busy, and the last result was HALT
 * @waiting: not busy, and the last result was WAIT
 * @asked: READY, or YIELD with WANT, was sent, and no lease has arrived since
 * @asked_at: lease number in the lease page when the request was sent
 * @kernel_id: kernel that the next READY or YIELD names
 * @hint_ns: duration that the next READY or YIELD names
 */
struct vgpu_lease_client {
	bool busy;
	bool has_generation;
	bool asked;
	bool was_busy;
	bool halted;
	bool waiting;
	uint8_t at;
	enum vgpu_lease_operation operation;
	uint32_t wake;
	uint32_t flags;
	uint32_t kernel_id;
	uint64_t hint_ns;
	uint64_t now_ns;
	uint64_t lease;
	uint64_t candidate;
	uint64_t asked_at;
	uint64_t generation;
	uint64_t dry_since_ns;
	uint64_t idle_ns;
};

enum vgpu_lease_need {
	VGPU_LEASE_NEED_START,
	VGPU_LEASE_NEED_CHECK,	/* if its result is GO, submit */
	VGPU_LEASE_NEED_DRY,
	VGPU_LEASE_NEED_STOP,
	/* Sleep until more is queued, a piece ends, or the wake word differs from @wake. */
	VGPU_LEASE_NEED_SLEEP,
};

/**
 * vgpu_lease_need() - what the child has to do between operations
 * @queued: some piece of work could be submitted now
 * @under_way: some piece of work has been submitted and has not ended
 * @wake: present value of the wake word
 */
enum vgpu_lease_need vgpu_lease_need(const struct vgpu_lease_client *client, bool queued,
				     bool under_way, uint32_t wake);

/**
 * vgpu_lease_begin() - start an operation
 * @client: zeroed before its first operation
 * @operation: CHECK and STOP only while busy, LOOK at any time.  START while busy switches to the
 *	lease that is lent now, without a drain.
 * @flags: for DRY: VGPU_YIELD_MORE or VGPU_YIELD_END, to send if others wait for the lease.
 */
void vgpu_lease_begin(struct vgpu_lease_client *client, enum vgpu_lease_operation operation,
		      uint64_t now_ns, uint32_t flags);

/**
 * vgpu_lease_next() - get the next access of the operation
 * @loaded: value that the last step loaded; ignored in the first call and after other accesses
 */
struct vgpu_lease_step vgpu_lease_next(struct vgpu_lease_client *client, uint64_t loaded);

#endif /* VGPU_EXECUTOR_LEASE_CLIENT_H */
