// SPDX-License-Identifier: Apache-2.0
/* The producer's side of the request ring. */
#include "guest/transport/connection.h"

/*
 * Returns whether the child has room for @bytes more.  Reads the child's index only if the known value is not
 * enough.
 */
static bool has_room(struct vgpu_connection *c, uint64_t bytes)
{
	struct vgpu_ring *ring = &c->window->request;

	if (c->tail + bytes - c->known_head <= VGPU_RING_BYTES)
		return true;
	c->known_head = atomic_load_explicit(&ring->head, memory_order_acquire);
	if (c->tail - c->known_head > VGPU_RING_BYTES) {
		vgpu_lose();
		return false;
	}
	return c->tail + bytes - c->known_head <= VGPU_RING_BYTES;
}

static bool wait_for_room(struct vgpu_connection *c, uint64_t bytes)
{
	struct vgpu_ring *ring = &c->window->request;

	while (!has_room(c, bytes)) {
		uint32_t space = atomic_load(&ring->space);

		if (!vgpu_usable())
			return false;
		atomic_store(&ring->full, 1);
		atomic_thread_fence(memory_order_seq_cst);
		if (!has_room(c, bytes)) {
			vgpu_drain();
			if (!vgpu_sleep(&ring->space, space))
				return false;
		}
		atomic_store(&ring->full, 0);
	}
	return true;
}

void *vgpu_send_begin(uint32_t bytes)
{
	struct vgpu_connection *c = &vgpu_connection;
	uint64_t at, left;

	if (!vgpu_usable())
		return NULL;
	pthread_mutex_lock(&c->send_lock);
	at = c->tail % VGPU_RING_BYTES;
	left = VGPU_RING_BYTES - at;
	if (!wait_for_room(c, left < bytes ? left + bytes : bytes)) {
		pthread_mutex_unlock(&c->send_lock);
		return NULL;
	}
	if (left < bytes) {
		struct vgpu_message *skip = (struct vgpu_message *)(c->request_data + at);

		/*
		 * The rest of the ring may be as small as 8 bytes, so write only the first 8 bytes of the
		 * header.
		 */
		skip->bytes = (uint32_t)left;
		skip->op = VGPU_OP_SKIP;
		skip->flags = 0;
		c->tail += left;
		at = 0;
	}
	c->reserved = bytes;
	return c->request_data + at;
}

void vgpu_send_commit(void)
{
	struct vgpu_connection *c = &vgpu_connection;
	struct vgpu_ring *ring = &c->window->request;

	c->tail += c->reserved;
	atomic_store_explicit(&ring->tail, c->tail, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst);
	/* Clear @sleeping, so that later messages do not wake the child again while it is waking up. */
	if (atomic_load_explicit(&ring->sleeping, memory_order_relaxed) && atomic_exchange(&ring->sleeping, 0)) {
		atomic_fetch_add(&ring->bell, 1);
		c->carrier->wake(&ring->bell);
	}
	pthread_mutex_unlock(&c->send_lock);
}

void vgpu_send_cancel(void)
{
	/* If vgpu_send_begin() has skipped the end of the ring, the end stays skipped. */
	pthread_mutex_unlock(&vgpu_connection.send_lock);
}
