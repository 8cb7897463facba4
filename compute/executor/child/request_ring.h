/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The child's end of the request ring: the client produces, the child consumes.
 *
 * The client may write anything at any time.  So the child keeps its own head, reads each word of
 * the client once, and copies a message before it checks it.  Only the main thread calls these
 * functions.
 */
#ifndef VGPU_EXECUTOR_REQUEST_RING_H
#define VGPU_EXECUTOR_REQUEST_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol/window.h"

struct vgpu_request_ring {
	struct vgpu_ring *ring;
	void (*wake_client)(_Atomic uint32_t *word);
	const unsigned char *data;
	uint64_t head;
	uint64_t published;	/* the head as last published to the client */
	const char *broken;	/* why the ring is invalid, or NULL if it is valid */
	_Alignas(VGPU_MESSAGE_ALIGN) unsigned char copy[VGPU_MESSAGE_BYTES];
};

void vgpu_request_ring_open(struct vgpu_request_ring *requests, void *window,
			    void (*wake_client)(_Atomic uint32_t *word));

/**
 * vgpu_request_ring_next() - take the next message out of the ring
 *
 * Return: a private copy, valid until the next call, or NULL if there is no message or the ring is
 * broken.
 */
const struct vgpu_message *vgpu_request_ring_next(struct vgpu_request_ring *requests);

/* Returns the room of consumed messages to the client, and wakes the client if it waits for room. */
void vgpu_request_ring_publish(struct vgpu_request_ring *requests);

/**
 * vgpu_request_ring_sleep() - announce that the child is about to wait on the bell
 * @bell: out: value of the bell to wait on
 *
 * Return: false if a message has arrived meanwhile: do not sleep.
 */
bool vgpu_request_ring_sleep(struct vgpu_request_ring *requests, uint32_t *bell);
void vgpu_request_ring_wake(struct vgpu_request_ring *requests);
/* Checks once whether there is a message, for a loop that spins. */
bool vgpu_request_ring_has_some(const struct vgpu_request_ring *requests);

#endif /* VGPU_EXECUTOR_REQUEST_RING_H */
