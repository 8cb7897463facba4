/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VGPU_CHANNEL_H
#define VGPU_CHANNEL_H

#include "vgpu.h"

#define VGPU_CHANNEL_ALIGN	64
#define VGPU_PIPE_BYTES		(16U << 10)	/* a power of two */

/**
 * struct vgpu_pipe - bytes on their way between two threads
 * @in: how many were put in, free running; only its writer changes it
 * @out: how many were taken out, free running; only its reader changes it
 * @data: byte n at n modulo the size
 */
struct vgpu_pipe {
	u32 in;
	u32 out;
	u8 data[VGPU_PIPE_BYTES];
};

/**
 * struct vgpu_channel - the byte channel of one enabling of a device's rings
 * @refs: the ring, and the executor that serves it
 * @area: guest address of struct vgpu_channel_area
 * @sent: as last written by the guest; engine->lock
 * @received: as last written by the guest; engine->lock
 * @taken: bytes moved from guest memory to @to_host; worker only, read by the doorbell
 * @given: bytes moved from @to_guest to guest memory; worker only, read by the doorbell
 * @state: enum vgpu_channel_state; engine->lock
 * @told: what the guest was last told of @taken, @given and @state; worker only
 * @to_host: from the worker to the executor
 * @to_guest: from the executor to the worker
 *
 * The worker touches guest memory and the executor its own, and either may wait for its
 * memory for as long as that takes: the pipes between them have no lock.
 */
struct vgpu_channel {
	struct kref refs;
	u64 area;
	u32 sent;
	u32 received;
	u32 taken;
	u32 given;
	u32 state;
	u32 told[3];
	struct vgpu_pipe to_host;
	struct vgpu_pipe to_guest;
};

/* channel.c */
struct vgpu_channel *vgpu_channel_create(u64 area);
void vgpu_channel_put(struct vgpu_channel *channel);
void vgpu_device_channel_doorbell(struct vgpu_device *device, u32 offset, u32 count);
bool vgpu_channel_serve(struct vgpu_ring *ring);

/* The longest piece that can be written or read at once, and where. */
static inline u32 vgpu_pipe_room(struct vgpu_pipe *pipe, u8 **at)
{
	u32 start = pipe->in % VGPU_PIPE_BYTES;
	/* Pairs with vgpu_pipe_take(): what was read may be overwritten. */
	u32 used = pipe->in - smp_load_acquire(&pipe->out);

	*at = pipe->data + start;
	return min(VGPU_PIPE_BYTES - used, VGPU_PIPE_BYTES - start);
}

static inline void vgpu_pipe_put(struct vgpu_pipe *pipe, u32 bytes)
{
	/* Pairs with vgpu_pipe_ready(): the bytes are there. */
	smp_store_release(&pipe->in, pipe->in + bytes);
}

static inline u32 vgpu_pipe_ready(struct vgpu_pipe *pipe, u8 **at)
{
	u32 start = pipe->out % VGPU_PIPE_BYTES;
	/* Pairs with vgpu_pipe_put(). */
	u32 used = smp_load_acquire(&pipe->in) - pipe->out;

	*at = pipe->data + start;
	return min(used, VGPU_PIPE_BYTES - start);
}

static inline void vgpu_pipe_take(struct vgpu_pipe *pipe, u32 bytes)
{
	/* Pairs with vgpu_pipe_room(): the bytes were read. */
	smp_store_release(&pipe->out, pipe->out + bytes);
}

#endif /* VGPU_CHANNEL_H */
