// SPDX-License-Identifier: Apache-2.0
#include "executor/child/lease_client.h"

static uint64_t number_of(uint64_t lease)
{
	return lease >> VGPU_LEASE_STATE_BITS;
}

static enum vgpu_lease_state state_of(uint64_t lease)
{
	return lease & VGPU_LEASE_STATE_MASK;
}

static struct vgpu_lease_step load(enum vgpu_lease_access access)
{
	return (struct vgpu_lease_step){ .access = access };
}

static struct vgpu_lease_step store(enum vgpu_lease_access access, uint64_t value)
{
	return (struct vgpu_lease_step){ .access = access, .value = value };
}

static struct vgpu_lease_step result(struct vgpu_lease_client *client,
				     enum vgpu_lease_result result)
{
	client->halted = result == VGPU_LEASE_HALT;
	client->waiting = result == VGPU_LEASE_WAIT;
	return (struct vgpu_lease_step){ .access = VGPU_LEASE_RESULT, .result = result };
}

/*
 * A yield names the lease in the page, which may be later than the lease under which the child was
 * busy: the arbiter may have opened the gate under a new lease and recalled that lease.  The
 * arbiter then still waits for the yield of a child that it saw as busy.
 */
static struct vgpu_lease_step send(const struct vgpu_lease_client *client, uint32_t op,
				   uint32_t flags, uint64_t lease)
{
	return (struct vgpu_lease_step){
		.access = VGPU_LEASE_SEND,
		.request = {
			.op = op,
			.flags = flags,
			.lease = lease,
			.kernel_id = client->kernel_id,
			.hint_ns = client->hint_ns,
		},
	};
}

static struct vgpu_lease_step say_state(struct vgpu_lease_client *client, uint64_t lease, bool busy)
{
	client->lease = lease;
	client->busy = busy;
	return store(VGPU_LEASE_STORE_STATE,
		     lease << 1 | (busy ? VGPU_STREAM_BUSY : VGPU_STREAM_DRY));
}

/*
 * Adds the dry time to the idle time.  If the stream was dry before the lease began, the time
 * counts from the lease's beginning.
 */
static void add_idle(struct vgpu_lease_client *client, uint64_t begun_ns)
{
	uint64_t since = client->dry_since_ns > begun_ns ? client->dry_since_ns : begun_ns;

	if (client->now_ns > since)
		client->idle_ns += client->now_ns - since;
}

/*
 * Each operation's steps, in order.  A case uses the value that was loaded by the previous step,
 * and returns the access whose value the next case gets.
 */

enum start_step {
	START_LOAD_WAKE,
	START_LOAD_GENERATION,
	START_LOAD_LEASE,
	START_LOAD_EXPIRES,
	START_LOAD_BEGUN,
	START_STORE_IDLE,
	START_STORE_BUSY,
	START_BARRIER,
	START_LOAD_LEASE_AGAIN,
	START_LOAD_EXPIRES_AGAIN,
	START_GO,
	START_STORE_DRY,
	START_DRY_BARRIER,
	START_LOAD_LEASE_AFTER,
	START_AFTER,
	START_ASKED,
};

/*
 * Handles a START without a lease.  Requests a lease, unless the arbiter still has an earlier
 * request.
 */
static struct vgpu_lease_step ask(struct vgpu_lease_client *client, uint64_t lease)
{
	if (client->busy)
		return result(client, VGPU_LEASE_HALT);
	if (client->asked && client->asked_at == number_of(lease))
		return result(client, VGPU_LEASE_WAIT);
	client->asked = true;
	client->asked_at = number_of(lease);
	client->at = START_ASKED;
	return send(client, VGPU_STREAM_READY, 0, 0);
}

/* Handles a lease that ended before the stream page said BUSY. */
static struct vgpu_lease_step undo(struct vgpu_lease_client *client)
{
	if (client->was_busy)
		return result(client, VGPU_LEASE_HALT);
	client->dry_since_ns = client->now_ns;
	client->at = START_STORE_DRY;
	return store(VGPU_LEASE_STORE_DRY_SINCE, client->dry_since_ns);
}

static struct vgpu_lease_step start(struct vgpu_lease_client *client, uint64_t loaded)
{
	switch ((enum start_step)client->at++) {
	case START_LOAD_WAKE:
		return load(VGPU_LEASE_LOAD_WAKE);
	case START_LOAD_GENERATION:
		client->wake = loaded;
		return load(VGPU_LEASE_LOAD_GENERATION);
	case START_LOAD_LEASE:
		if (client->has_generation && client->generation != loaded)
			return result(client, VGPU_LEASE_RESET);
		client->has_generation = true;
		client->generation = loaded;
		return load(VGPU_LEASE_LOAD_LEASE);
	case START_LOAD_EXPIRES:
		client->candidate = loaded;
		if (state_of(loaded) != VGPU_LEASE_LENT)
			return ask(client, loaded);
		return load(VGPU_LEASE_LOAD_EXPIRES);
	case START_LOAD_BEGUN:
		if (client->now_ns >= loaded)
			return ask(client, client->candidate);
		return load(VGPU_LEASE_LOAD_BEGUN);
	case START_STORE_IDLE:
		if (!client->busy)
			add_idle(client, loaded);
		return store(VGPU_LEASE_STORE_IDLE, client->idle_ns);
	case START_STORE_BUSY:
		/*
		 * If the child is already busy, this replaces the number of the earlier lease,
		 * without a drain.
		 */
		client->was_busy = client->busy;
		return say_state(client, number_of(client->candidate), true);
	case START_BARRIER:
		return load(VGPU_LEASE_BARRIER);
	case START_LOAD_LEASE_AGAIN:
		return load(VGPU_LEASE_LOAD_LEASE);
	case START_LOAD_EXPIRES_AGAIN:
		if (loaded != client->candidate)
			return undo(client);
		return load(VGPU_LEASE_LOAD_EXPIRES);
	case START_GO:
		if (client->now_ns >= loaded)
			return undo(client);
		client->asked = false;
		return result(client, VGPU_LEASE_GO);
	case START_STORE_DRY:
		return say_state(client, client->lease, false);
	case START_DRY_BARRIER:
		return load(VGPU_LEASE_BARRIER);
	case START_LOAD_LEASE_AFTER:
		return load(VGPU_LEASE_LOAD_LEASE);
	case START_AFTER:
		/* The arbiter may have seen BUSY.  If so, it waits for a yield. */
		if (state_of(loaded) == VGPU_LEASE_NONE)
			return ask(client, loaded);
		if (number_of(loaded) != client->lease && state_of(loaded) == VGPU_LEASE_LENT)
			return result(client, VGPU_LEASE_AGAIN);
		client->asked = true;
		client->asked_at = number_of(loaded);
		return send(client, VGPU_STREAM_YIELD, VGPU_YIELD_WANT, number_of(loaded));
	case START_ASKED:
		return result(client, VGPU_LEASE_WAIT);
	}
	__builtin_unreachable();
}

static struct vgpu_lease_step check(struct vgpu_lease_client *client, uint64_t loaded)
{
	switch (client->at++) {
	case 0:
		return load(VGPU_LEASE_LOAD_LEASE);
	case 1:
		if (number_of(loaded) != client->lease ||
		    (state_of(loaded) != VGPU_LEASE_LENT && state_of(loaded) != VGPU_LEASE_RECALLED))
			return result(client, VGPU_LEASE_HALT);
		return load(VGPU_LEASE_LOAD_EXPIRES);
	case 2:
		if (client->now_ns >= loaded)
			return result(client, VGPU_LEASE_HALT);
		return load(VGPU_LEASE_LOAD_GENERATION);
	default:
		return result(client, loaded == client->generation ? VGPU_LEASE_GO : VGPU_LEASE_RESET);
	}
}

static struct vgpu_lease_step dry(struct vgpu_lease_client *client, uint64_t loaded)
{
	switch (client->at++) {
	case 0:
		client->dry_since_ns = client->now_ns;
		return store(VGPU_LEASE_STORE_DRY_SINCE, client->dry_since_ns);
	case 1:
		return say_state(client, client->lease, false);
	case 2:
		return load(VGPU_LEASE_BARRIER);
	case 3:
		return load(VGPU_LEASE_LOAD_LEASE);
	case 4:
		client->candidate = loaded;
		if (state_of(loaded) == VGPU_LEASE_NONE)
			return result(client, VGPU_LEASE_IDLE);
		return load(VGPU_LEASE_LOAD_EXPIRES);
	case 5:
		/* No other stream waits for the lease, so the next start can use this one. */
		if (state_of(client->candidate) == VGPU_LEASE_LENT && loaded == UINT64_MAX)
			return result(client, VGPU_LEASE_IDLE);
		return send(client, VGPU_STREAM_YIELD, client->flags, number_of(client->candidate));
	default:
		return result(client, VGPU_LEASE_IDLE);
	}
}

static struct vgpu_lease_step stop(struct vgpu_lease_client *client, uint64_t loaded)
{
	switch (client->at++) {
	case 0:
		return load(VGPU_LEASE_LOAD_WAKE);
	case 1:
		client->wake = loaded;
		client->dry_since_ns = client->now_ns;
		return store(VGPU_LEASE_STORE_DRY_SINCE, client->dry_since_ns);
	case 2:
		return say_state(client, client->lease, false);
	case 3:
		return load(VGPU_LEASE_BARRIER);
	case 4:
		return load(VGPU_LEASE_LOAD_LEASE);
	case 5:
		if (state_of(loaded) == VGPU_LEASE_NONE ||
		    (state_of(loaded) == VGPU_LEASE_LENT && number_of(loaded) != client->lease))
			return result(client, VGPU_LEASE_AGAIN);
		client->asked = true;
		client->asked_at = number_of(loaded);
		return send(client, VGPU_STREAM_YIELD, VGPU_YIELD_WANT, number_of(loaded));
	default:
		return result(client, VGPU_LEASE_WAIT);
	}
}

static struct vgpu_lease_step look(struct vgpu_lease_client *client, uint64_t loaded)
{
	if (!client->at++)
		return load(VGPU_LEASE_LOAD_GENERATION);
	if (!client->has_generation) {
		client->has_generation = true;
		client->generation = loaded;
	}
	return (struct vgpu_lease_step){
		.access = VGPU_LEASE_RESULT,
		.result = client->generation == loaded ? VGPU_LEASE_IDLE : VGPU_LEASE_RESET,
	};
}

void vgpu_lease_begin(struct vgpu_lease_client *client, enum vgpu_lease_operation operation,
		      uint64_t now_ns, uint32_t flags)
{
	client->operation = operation;
	client->at = 0;
	client->now_ns = now_ns;
	client->flags = flags;
}

struct vgpu_lease_step vgpu_lease_next(struct vgpu_lease_client *client, uint64_t loaded)
{
	switch (client->operation) {
	case VGPU_LEASE_START:
		return start(client, loaded);
	case VGPU_LEASE_CHECK:
		return check(client, loaded);
	case VGPU_LEASE_DRY:
		return dry(client, loaded);
	case VGPU_LEASE_STOP:
		return stop(client, loaded);
	case VGPU_LEASE_LOOK:
		return look(client, loaded);
	}
	__builtin_unreachable();
}

enum vgpu_lease_need vgpu_lease_need(const struct vgpu_lease_client *client, bool queued,
				     bool under_way, uint32_t wake)
{
	if (!client->busy) {
		if (!queued || (client->waiting && wake == client->wake))
			return VGPU_LEASE_NEED_SLEEP;
		return VGPU_LEASE_NEED_START;
	}
	if (!under_way && !queued)
		return VGPU_LEASE_NEED_DRY;
	if (!client->halted)
		return queued ? VGPU_LEASE_NEED_CHECK : VGPU_LEASE_NEED_SLEEP;
	if (!under_way)
		return VGPU_LEASE_NEED_STOP;
	return wake == client->wake ? VGPU_LEASE_NEED_SLEEP : VGPU_LEASE_NEED_START;
}
