// SPDX-License-Identifier: Apache-2.0
#include "executor/child/request_ring.h"

#include <string.h>

void vgpu_request_ring_open(struct vgpu_request_ring *requests, void *window,
			    void (*wake_client)(_Atomic uint32_t *word))
{
	memset(requests, 0, sizeof(*requests));
	requests->wake_client = wake_client;
	requests->ring = &((struct vgpu_window *)window)->request;
	requests->data = (unsigned char *)window + VGPU_WINDOW_REQUEST;
}

static const struct vgpu_message *broken(struct vgpu_request_ring *requests, const char *why)
{
	requests->broken = why;
	return NULL;
}

const struct vgpu_message *vgpu_request_ring_next(struct vgpu_request_ring *requests)
{
	uint64_t tail = atomic_load_explicit(&requests->ring->tail, memory_order_acquire);
	struct vgpu_message *message = (struct vgpu_message *)requests->copy;

	if (requests->broken)
		return NULL;
	for (;;) {
		uint64_t there = tail - requests->head;
		uint64_t at = requests->head & (VGPU_RING_BYTES - 1);
		uint64_t to_end = VGPU_RING_BYTES - at;

		if (!there)
			return NULL;
		if (there > VGPU_RING_BYTES || tail % VGPU_MESSAGE_ALIGN)
			return broken(requests, "the tail is invalid");
		if (there < sizeof(*message) || to_end < sizeof(*message)) {
			/* A SKIP at the end of the ring may be too short for a whole header. */
			uint16_t op;

			memcpy(&op, requests->data + at + offsetof(struct vgpu_message, op),
			       sizeof(op));
			if (op != VGPU_OP_SKIP || there < to_end)
				return broken(requests, "a message is shorter than its header");
			requests->head += to_end;
			continue;
		}
		memcpy(message, requests->data + at, sizeof(*message));
		if (message->op == VGPU_OP_SKIP) {
			if (there < to_end)
				return broken(requests, "a skip goes beyond the tail");
			requests->head += to_end;
			continue;
		}
		if (message->bytes < sizeof(*message) || message->bytes > VGPU_MESSAGE_BYTES ||
		    message->bytes % VGPU_MESSAGE_ALIGN)
			return broken(requests, "a message has an invalid length");
		if (message->bytes > there || message->bytes > to_end)
			return broken(requests, "a message goes beyond the tail or the ring");
		/* Do not read the header again: its copy has been checked. */
		memcpy(message + 1, requests->data + at + sizeof(*message),
		       message->bytes - sizeof(*message));
		requests->head += message->bytes;
		return message;
	}
}

void vgpu_request_ring_publish(struct vgpu_request_ring *requests)
{
	struct vgpu_ring *ring = requests->ring;

	if (requests->published == requests->head)
		return;
	requests->published = requests->head;
	atomic_store_explicit(&ring->head, requests->head, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load_explicit(&ring->full, memory_order_relaxed)) {
		atomic_fetch_add(&ring->space, 1);
		requests->wake_client(&ring->space);
	}
}

bool vgpu_request_ring_has_some(const struct vgpu_request_ring *requests)
{
	return atomic_load_explicit(&requests->ring->tail, memory_order_relaxed) != requests->head;
}

bool vgpu_request_ring_sleep(struct vgpu_request_ring *requests, uint32_t *bell)
{
	struct vgpu_ring *ring = requests->ring;

	*bell = atomic_load(&ring->bell);
	atomic_store_explicit(&ring->sleeping, 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst);
	return !vgpu_request_ring_has_some(requests);
}

void vgpu_request_ring_wake(struct vgpu_request_ring *requests)
{
	atomic_store_explicit(&requests->ring->sleeping, 0, memory_order_relaxed);
}
