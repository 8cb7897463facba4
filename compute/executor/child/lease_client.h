/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The child's side of uapi/vgpu_lease_page.h, as a pure state machine.
 *
 * The machine touches no memory but its own, makes no system call and reads no
 * clock.  An operation is begun with the present time; vgpu_lease_next() then
 * names one access at a time: a load or store of a word of the lease or stream
 * page, a barrier, or a datagram.  The caller makes the access and passes the
 * value that it loaded to the next call, until the step is VGPU_LEASE_RESULT.
 * So a test can interleave the accesses with those of an arbiter in every way.
 *
 * One thread uses a machine.  Times are CLOCK_MONOTONIC in ns.
 */
#ifndef VGPU_EXECUTOR_LEASE_CLIENT_H
#define VGPU_EXECUTOR_LEASE_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "uapi/vgpu_lease_page.h"

enum vgpu_lease_operation {
	VGPU_LEASE_START,	/* there is work: become busy under the present lease */
	VGPU_LEASE_CHECK,	/* busy: may the next piece of work be submitted? */
	VGPU_LEASE_DRY,		/* busy: nothing is under way and nothing is queued */
	VGPU_LEASE_STOP,	/* busy: nothing is under way, work is queued, and CHECK said no */
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
	VGPU_LEASE_HALT,	/* busy, but submit nothing: STOP when nothing is under way */
	VGPU_LEASE_AGAIN,	/* not busy, but a lease is there: START at once */
	VGPU_LEASE_IDLE,	/* not busy, and nothing to wait for */
	VGPU_LEASE_RESET,	/* the slice was reset: the child's time is over */
};

/**
 * struct vgpu_lease_step - what the caller does next
 * @access: enum vgpu_lease_access
 * @value: of a store
 * @request: of SEND
 * @result: of RESULT
 */
struct vgpu_lease_step {
	enum vgpu_lease_access access;
	uint64_t value;
	struct vgpu_stream_request request;
	enum vgpu_lease_result result;
};

/**
 * struct vgpu_lease_client - the machine; its owner reads @busy and @wake only
 * @busy: work may be under way; the stream page says BUSY
 * @wake: the wake word, loaded before anything else of the last START or STOP
 * @lease: number under which the child is busy, or was last
 * @generation: of the slice at the first look
 * @halted: busy, and the last answer was HALT
 * @waiting: not busy, and the last answer was WAIT
 * @asked: READY was sent or WANT said, and no lease has come since
 * @asked_at: number of the lease page at that time
 * @kernel_id: of the next READY or YIELD
 * @hint_ns: of the next READY or YIELD
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
	VGPU_LEASE_NEED_CHECK,	/* and then submit, if the answer is GO */
	VGPU_LEASE_NEED_DRY,
	VGPU_LEASE_NEED_STOP,
	/* Until more is queued, something ends, or the wake word differs from @wake. */
	VGPU_LEASE_NEED_SLEEP,
};

/**
 * vgpu_lease_need() - what the child has to do between operations
 * @queued: some piece of work could be submitted now
 * @under_way: some piece of work has been submitted and has not ended
 * @wake: the wake word now
 */
enum vgpu_lease_need vgpu_lease_need(const struct vgpu_lease_client *client, bool queued,
				     bool under_way, uint32_t wake);

/**
 * vgpu_lease_begin() - start an operation
 * @client: zeroed before its first operation
 * @operation: CHECK and STOP while busy only, LOOK at any time.  START while busy
 *	moves to the lease that is lent now, without a drain.
 * @flags: of DRY: VGPU_YIELD_MORE or VGPU_YIELD_END, which is said if others wait
 *	for the lease.
 */
void vgpu_lease_begin(struct vgpu_lease_client *client, enum vgpu_lease_operation operation,
		      uint64_t now_ns, uint32_t flags);

/**
 * vgpu_lease_next() - the next access of the operation
 * @loaded: what the last step loaded; anything for the first call and after other
 *	accesses
 */
struct vgpu_lease_step vgpu_lease_next(struct vgpu_lease_client *client, uint64_t loaded);

#endif /* VGPU_EXECUTOR_LEASE_CLIENT_H */
