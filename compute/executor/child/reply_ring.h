/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The child's end of the reply ring, with a private overflow buffer behind it.
 *
 * A client that does not read costs the child at most VGPU_REPLY_OVERFLOW bytes: messages for which
 * the ring has no room wait in private memory, in order.  While messages wait there, the main loop
 * accepts no requests.
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
 * struct vgpu_reply_ring - may be used by any thread
 * @tail: the child's own copy; the tail in the ring is never read back
 * @broken: why the ring is invalid, or NULL if it is valid
 * @waiting: bytes in @overflow; may be read without the lock
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
 * @message: a whole message with a length that vgpu_message permits
 *
 * Return: false if the overflow is full or the ring is broken; @broken then has the reason, and the
 * child has to end.
 */
bool vgpu_reply_ring_put(struct vgpu_reply_ring *replies, const struct vgpu_message *message);

/* Moves waiting messages into the ring while there is room.  Return: like vgpu_reply_ring_put(). */
bool vgpu_reply_ring_flush(struct vgpu_reply_ring *replies);

/**
 * vgpu_reply_ring_sleep() - announce that the child waits for room
 * @space: out: value of the ring's word to wait on
 *
 * Return: false if there is room now, or no message waits: do not sleep.
 */
bool vgpu_reply_ring_sleep(struct vgpu_reply_ring *replies, uint32_t *space);
void vgpu_reply_ring_wake(struct vgpu_reply_ring *replies);

#endif /* VGPU_EXECUTOR_REPLY_RING_H */
