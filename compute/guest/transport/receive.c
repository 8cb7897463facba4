// SPDX-License-Identifier: Apache-2.0
/*
 * The consumer's side of the reply ring, and waiting.
 *
 * The thread that holds the receiving lock is the leader.  It takes replies out of the
 * ring, and sleeps on the ring's bell.  Other waiting threads are followers and sleep on
 * the connection's turn.  The turn changes when the leader has handled replies.  It also
 * changes when the leader leaves, so that another thread can lead.
 */
#include "guest/transport/connection.h"

#include <string.h>

static _Alignas(8) uint8_t copy[VGPU_MESSAGE_BYTES];	/* guarded by the receiving lock */

static void wake_followers(struct vgpu_connection *c)
{
	atomic_fetch_add(&c->turn, 1);
	if (atomic_load(&c->followers))
		vgpu_futex_wake(&c->turn);
}

/* Handles one reply.  Returns false if there is none.  Only the leader calls this. */
static bool take_one(struct vgpu_connection *c)
{
	struct vgpu_ring *ring = &c->window->reply;
	uint64_t there = atomic_load_explicit(&ring->tail, memory_order_acquire) - c->head;
	uint64_t at = c->head % VGPU_RING_BYTES;
	struct vgpu_message head;

	if (!there)
		return false;
	if (there > VGPU_RING_BYTES || there < 8)
		goto nonsense;
	/* The child may write at any time, so copy first and check the copy. */
	memcpy(&head, c->reply_data + at, 8);
	if (head.op == VGPU_OP_SKIP) {
		if (there < VGPU_RING_BYTES - at)
			goto nonsense;
		c->head += VGPU_RING_BYTES - at;
	} else {
		if (head.bytes < sizeof(head) || head.bytes > sizeof(copy) || head.bytes % VGPU_MESSAGE_ALIGN ||
		    head.bytes > there || head.bytes > VGPU_RING_BYTES - at)
			goto nonsense;
		memcpy(copy, c->reply_data + at, head.bytes);
		memcpy(copy, &head, 8);
		c->head += head.bytes;
	}
	atomic_store_explicit(&ring->head, c->head, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load_explicit(&ring->full, memory_order_relaxed)) {
		atomic_fetch_add(&ring->space, 1);
		c->carrier->wake(&ring->space);
	}
	if (head.op != VGPU_OP_SKIP) {
		const struct vgpu_message *message = (const struct vgpu_message *)copy;

		if (!vgpu_pending_reply(message, message->bytes))
			c->other(message, message->bytes);
	}
	return true;
nonsense:
	vgpu_lose();
	return false;
}

/*
 * Handles all present replies.  Returns true if anything changed.  Only the leader calls this.
 */
static bool take_all(struct vgpu_connection *c)
{
	bool any = false;

	if (!vgpu_usable()) {
		vgpu_pending_lose();
		return true;
	}
	while (take_one(c))
		any = true;
	if (any)
		wake_followers(c);
	return any;
}

/*
 * Polls for a reply, longer if polling has recently succeeded.  Returns true if there is
 * one.
 */
static bool spin(struct vgpu_connection *c)
{
	struct vgpu_ring *ring = &c->window->reply;
	uint64_t end;

	if (!c->spin_ns)
		return false;
	end = vgpu_now_ns() + c->spin_ns;
	for (unsigned int i = 1; ; i++) {
		if (atomic_load_explicit(&ring->tail, memory_order_relaxed) != c->head) {
			c->spin_ns = c->spin_ns_most;
			return true;
		}
		__builtin_ia32_pause();
		if (!(i % 32) && vgpu_now_ns() >= end)
			break;
	}
	/*
	 * Polling did not help.  Poll for less time next time, but never stop polling
	 * altogether.
	 */
	if (c->spin_ns > c->spin_ns_most / 8)
		c->spin_ns -= c->spin_ns_most / 8;
	return false;
}

static void sleep_for_reply(struct vgpu_connection *c, uint32_t turn)
{
	struct vgpu_ring *ring = &c->window->reply;
	uint32_t bell = atomic_load(&ring->bell);

	atomic_store(&ring->sleeping, 1);
	atomic_thread_fence(memory_order_seq_cst);
	/*
	 * vgpu_kick() changes the turn before it rings the bell, so this thread cannot miss it.
	 */
	if (atomic_load(&ring->tail) == c->head && atomic_load(&c->turn) == turn) {
		vgpu_sleep(&ring->bell, bell);
	}
	atomic_store(&ring->sleeping, 0);
}

bool vgpu_wait(bool (*done)(void *argument), void *argument)
{
	struct vgpu_connection *c = &vgpu_connection;

	while (!done(argument)) {
		uint32_t turn = atomic_load(&c->turn);

		if (atomic_load(&c->forked) || !c->window)
			return false;
		if (pthread_mutex_trylock(&c->receive_lock) == 0) {
			while (!done(argument)) {
				turn = atomic_load(&c->turn);
				if (take_all(c)) {
					if (vgpu_usable() || done(argument))
						continue;
					break;
				}
				if (!done(argument) && !spin(c))
					sleep_for_reply(c, turn);
			}
			pthread_mutex_unlock(&c->receive_lock);
			wake_followers(c);
			if (!vgpu_usable())
				return done(argument);
			continue;
		}
		atomic_fetch_add(&c->followers, 1);
		if (!done(argument) && atomic_load(&c->turn) == turn)
			vgpu_futex_wait(&c->turn, turn, VGPU_LOOK_NS);
		atomic_fetch_sub(&c->followers, 1);
	}
	return true;
}

void vgpu_drain(void)
{
	struct vgpu_connection *c = &vgpu_connection;

	if (atomic_load_explicit(&c->forked, memory_order_relaxed) || !c->window)
		return;
	if (vgpu_usable() && atomic_load_explicit(&c->window->reply.tail, memory_order_relaxed) ==
	    atomic_load_explicit(&c->window->reply.head, memory_order_relaxed))
		return;
	if (pthread_mutex_trylock(&c->receive_lock))
		return;
	take_all(c);
	pthread_mutex_unlock(&c->receive_lock);
	wake_followers(c);
}

void vgpu_kick(void)
{
	struct vgpu_connection *c = &vgpu_connection;

	wake_followers(c);
	atomic_thread_fence(memory_order_seq_cst);
	if (c->window && atomic_load(&c->window->reply.sleeping)) {
		atomic_fetch_add(&c->window->reply.bell, 1);
		c->carrier->wake(&c->window->reply.bell);
	}
}
