/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The child's end of the reply ring, with a private overflow behind it.
 *
 * A client that does not read costs the child at most VGPU_REPLY_OVERFLOW bytes:
 * what the ring has no room for waits in private memory, in order.  While
 * something waits there the main loop takes no requests.
 */
#ifndef VGPU_EXECUTOR_REPLY_RING_H
#define VGPU_EXECUTOR_REPLY_RING_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol/window.h"

#define VGPU_REPLY_OVERFLOW	(16u << 20)

/**
 * struct vgpu_reply_ring - any thread
 * @tail: the child's own; what the ring says is never read back
 * @broken: why the ring makes no sense, NULL while it does
 * @waiting: bytes in @overflow; read without the lock
 */
struct vgpu_reply_ring {
	pthread_mutex_t lock;
	struct vgpu_ring *ring;
	void (*wake_client)(_Atomic uint32_t *word);
	unsigned char *data;
	uint64_t tail;
	_Atomic(const char *) broken;
	unsigned char *overflow;
	size_t overflow_room;
	size_t overflow_from;
	_Atomic size_t waiting;
};

void vgpu_reply_ring_open(struct vgpu_reply_ring *replies, void *window,
			  void (*wake_client)(_Atomic uint32_t *word));

/**
 * vgpu_reply_ring_put() - send a message, or keep it until there is room
 * @message: whole, with a length that vgpu_message allows
 *
 * Return: false if the overflow is full or the ring is broken; @broken then says
 * which, and the child has to end.
 */
bool vgpu_reply_ring_put(struct vgpu_reply_ring *replies, const struct vgpu_message *message);

/* Moves what waits into the ring as far as there is room; false as for put(). */
bool vgpu_reply_ring_flush(struct vgpu_reply_ring *replies);

/**
 * vgpu_reply_ring_sleep() - say that the child waits for room
 * @space: the value to wait on
 *
 * Return: false if there is room now, or nothing waits: do not sleep on it.
 */
bool vgpu_reply_ring_sleep(struct vgpu_reply_ring *replies, uint32_t *space);
void vgpu_reply_ring_wake(struct vgpu_reply_ring *replies);

#endif /* VGPU_EXECUTOR_REPLY_RING_H */
