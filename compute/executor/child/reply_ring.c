// SPDX-License-Identifier: Apache-2.0
#include "executor/child/reply_ring.h"

#include <stdlib.h>
#include <string.h>

void vgpu_reply_ring_open(struct vgpu_reply_ring *replies, void *window,
			  void (*wake_client)(_Atomic uint32_t *word))
{
	memset(replies, 0, sizeof(*replies));
	replies->wake_client = wake_client;
	pthread_mutex_init(&replies->lock, NULL);
	replies->ring = &((struct vgpu_window *)window)->reply;
	replies->data = (unsigned char *)window + VGPU_WINDOW_REPLY;
}

static bool broken(struct vgpu_reply_ring *replies, const char *why)
{
	atomic_store(&replies->broken, why);
	return false;
}

/* Return: free bytes, or -1 if the client's head is invalid. */
static int64_t room(const struct vgpu_reply_ring *replies)
{
	uint64_t head = atomic_load_explicit(&replies->ring->head, memory_order_acquire);

	if (head > replies->tail || replies->tail - head > VGPU_RING_BYTES ||
	    head % VGPU_MESSAGE_ALIGN)
		return -1;
	return (int64_t)(VGPU_RING_BYTES - (replies->tail - head));
}

/* Return: 1 if the message is in the ring, 0 if it does not fit now, -1 if the ring is broken. */
static int produce(struct vgpu_reply_ring *replies, const struct vgpu_message *message)
{
	uint64_t at = replies->tail & (VGPU_RING_BYTES - 1), to_end = VGPU_RING_BYTES - at;
	uint64_t skipped = to_end < message->bytes ? to_end : 0;
	int64_t free = room(replies);

	if (free < 0)
		return -1;
	if ((uint64_t)free < skipped + message->bytes)
		return 0;
	if (skipped) {
		const struct vgpu_message skip = { .bytes = (uint32_t)to_end, .op = VGPU_OP_SKIP };

		memcpy(replies->data + at, &skip, to_end < sizeof(skip) ? to_end : sizeof(skip));
		at = 0;
	}
	memcpy(replies->data + at, message, message->bytes);
	replies->tail += skipped + message->bytes;
	atomic_store_explicit(&replies->ring->tail, replies->tail, memory_order_release);
	return 1;
}

static void ring_bell(const struct vgpu_reply_ring *replies)
{
	struct vgpu_ring *ring = replies->ring;

	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load_explicit(&ring->sleeping, memory_order_relaxed)) {
		atomic_fetch_add(&ring->bell, 1);
		replies->wake_client(&ring->bell);
	}
}

static bool keep(struct vgpu_reply_ring *replies, const struct vgpu_message *message)
{
	size_t waiting = atomic_load(&replies->waiting);

	if (waiting + message->bytes > VGPU_REPLY_OVERFLOW)
		return broken(replies, "the client does not read replies");
	if (replies->overflow_from + waiting + message->bytes > replies->overflow_room) {
		size_t want = (waiting + message->bytes) * 2;
		unsigned char *larger = malloc(want);

		if (!larger)
			return broken(replies, "no memory for replies that wait");
		if (waiting)
			memcpy(larger, replies->overflow + replies->overflow_from, waiting);
		free(replies->overflow);
		replies->overflow = larger;
		replies->overflow_room = want;
		replies->overflow_from = 0;
	}
	memcpy(replies->overflow + replies->overflow_from + waiting, message, message->bytes);
	atomic_store(&replies->waiting, waiting + message->bytes);
	return true;
}

static bool flush(struct vgpu_reply_ring *replies)
{
	size_t waiting = atomic_load(&replies->waiting);
	bool moved = false;

	while (waiting) {
		const struct vgpu_message *message =
			(const void *)(replies->overflow + replies->overflow_from);
		uint32_t bytes = message->bytes;
		int produced = produce(replies, message);

		if (produced < 0)
			return broken(replies, "the head of the reply ring is invalid");
		if (!produced)
			break;
		moved = true;
		replies->overflow_from += bytes;
		waiting -= bytes;
		atomic_store(&replies->waiting, waiting);
	}
	if (!waiting) {
		free(replies->overflow);
		replies->overflow = NULL;
		replies->overflow_room = 0;
		replies->overflow_from = 0;
	}
	if (moved)
		ring_bell(replies);
	return true;
}

bool vgpu_reply_ring_put(struct vgpu_reply_ring *replies, const struct vgpu_message *message)
{
	bool fine = true;
	int produced = 0;

	pthread_mutex_lock(&replies->lock);
	if (atomic_load(&replies->broken)) {
		fine = false;
	} else if (!atomic_load(&replies->waiting) || (fine = flush(replies))) {
		if (!atomic_load(&replies->waiting))
			produced = produce(replies, message);
		if (produced < 0)
			fine = broken(replies, "the head of the reply ring is invalid");
		else if (!produced)
			fine = keep(replies, message);
	}
	pthread_mutex_unlock(&replies->lock);
	if (produced > 0)
		ring_bell(replies);
	return fine;
}

bool vgpu_reply_ring_flush(struct vgpu_reply_ring *replies)
{
	bool fine;

	if (!atomic_load(&replies->waiting))
		return !atomic_load(&replies->broken);
	pthread_mutex_lock(&replies->lock);
	fine = !atomic_load(&replies->broken) && flush(replies);
	pthread_mutex_unlock(&replies->lock);
	return fine;
}

bool vgpu_reply_ring_sleep(struct vgpu_reply_ring *replies, uint32_t *space)
{
	size_t before = atomic_load(&replies->waiting);

	if (!before)
		return false;
	*space = atomic_load(&replies->ring->space);
	atomic_store_explicit(&replies->ring->full, 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst);
	/* A broken ring is detected by the next flush, which must not wait for the client. */
	return vgpu_reply_ring_flush(replies) && atomic_load(&replies->waiting) == before;
}

void vgpu_reply_ring_wake(struct vgpu_reply_ring *replies)
{
	atomic_store_explicit(&replies->ring->full, 0, memory_order_relaxed);
}
