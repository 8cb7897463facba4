// SPDX-License-Identifier: GPL-2.0
/*
 * The guest's end of a byte channel: what its doorbells say, and the slice's worker that
 * moves bytes between guest memory and two pipes. The host's end is the executor's
 * (executor_file.c).
 *
 * Counts of the guest come by registers, so that each has one value; those of the host
 * are kept here and only shown to the guest. Bytes are copied once.
 */
#include <linux/slab.h>

#include "channel.h"
#include "engine.h"
#include "executor.h"
#include "ring.h"

/**
 * vgpu_channel_create - an empty channel
 * @area: guest address of struct vgpu_channel_area, checked
 *
 * Return: the channel with one reference, or NULL without memory.
 */
struct vgpu_channel *vgpu_channel_create(u64 area)
{
	struct vgpu_channel *channel;

	channel = kvzalloc(sizeof(*channel), GFP_KERNEL_ACCOUNT);
	if (!channel)
		return NULL;
	kref_init(&channel->refs);
	channel->area = area;
	return channel;
}

static void vgpu_channel_free(struct kref *refs)
{
	struct vgpu_channel *channel = container_of(refs, struct vgpu_channel, refs);

	kvfree_sensitive(channel, sizeof(*channel));
}

/**
 * vgpu_channel_put - give up a reference
 * @channel: may be NULL
 */
void vgpu_channel_put(struct vgpu_channel *channel)
{
	if (channel)
		kref_put(&channel->refs, vgpu_channel_free);
}

/* Is @count, so far @before, one that lies between that and @limit? */
static bool vgpu_channel_count_valid(u32 before, u32 count, u32 limit)
{
	return count - before <= limit - before;
}

/**
 * vgpu_device_channel_doorbell - the guest has written one of its counts
 * @device: state_lock held
 * @offset: VGPU_BAR0_SENT or VGPU_BAR0_RECEIVED
 * @count: what it wrote
 */
void vgpu_device_channel_doorbell(struct vgpu_device *device, u32 offset, u32 count)
{
	struct vgpu_engine *engine = &device->parent->engine;
	struct vgpu_ring *ring = device->ring;
	u32 error = VGPU_ERROR_NONE;
	struct vgpu_channel *channel;
	u32 limit;
	u32 *is;

	if (!ring || !ring->channel || READ_ONCE(ring->dead))
		return;
	channel = ring->channel;
	spin_lock_irq(&engine->lock);
	is = offset == VGPU_BAR0_SENT ? &channel->sent : &channel->received;
	limit = offset == VGPU_BAR0_SENT ? READ_ONCE(channel->taken) + VGPU_CHANNEL_BYTES :
					   READ_ONCE(channel->given);
	if (count == *is) {
		if (!vgpu_storm_take(device, 1))
			error = VGPU_ERROR_STORM;
	} else if (!vgpu_channel_count_valid(*is, count, limit)) {
		error = VGPU_ERROR_CHANNEL;
	} else {
		WRITE_ONCE(*is, count);
	}
	spin_unlock_irq(&engine->lock);
	if (error)
		vgpu_device_fault(device, ring, error, READ_ONCE(ring->completed));
	vgpu_ring_kick(ring);
}

/* Move a piece from guest memory. How much, or a negative errno. */
static int vgpu_channel_take(struct vgpu_ring *ring)
{
	struct vgpu_channel *channel = ring->channel;
	u32 at = channel->taken % VGPU_CHANNEL_BYTES;
	u32 bytes, room;
	u8 *to;
	int ret;

	room = vgpu_pipe_room(&channel->to_host, &to);
	bytes = min3(READ_ONCE(channel->sent) - channel->taken, VGPU_CHANNEL_BYTES - at, room);
	if (!bytes)
		return 0;
	ret = vgpu_ring_dma(ring, channel->area + offsetof(struct vgpu_channel_area, to_host) +
			    at, to, bytes, false);
	if (ret)
		return ret;
	vgpu_pipe_put(&channel->to_host, bytes);
	WRITE_ONCE(channel->taken, channel->taken + bytes);
	return bytes;
}

/* Move a piece to guest memory. How much, or a negative errno. */
static int vgpu_channel_give(struct vgpu_ring *ring)
{
	struct vgpu_channel *channel = ring->channel;
	u32 at = channel->given % VGPU_CHANNEL_BYTES;
	u32 room = VGPU_CHANNEL_BYTES - (channel->given - READ_ONCE(channel->received));
	u32 bytes;
	u8 *from;
	int ret;

	bytes = min3(vgpu_pipe_ready(&channel->to_guest, &from), VGPU_CHANNEL_BYTES - at, room);
	if (!bytes)
		return 0;
	ret = vgpu_ring_dma(ring, channel->area + offsetof(struct vgpu_channel_area, to_guest) +
			    at, from, bytes, true);
	if (ret)
		return ret;
	vgpu_pipe_take(&channel->to_guest, bytes);
	WRITE_ONCE(channel->given, channel->given + bytes);
	return bytes;
}

/* The guest learns of the end when it has been given all there was before. */
static u32 vgpu_channel_state(struct vgpu_channel *channel)
{
	u32 state = READ_ONCE(channel->state);
	u8 *rest;

	if (state == VGPU_CHANNEL_CLOSED && vgpu_pipe_ready(&channel->to_guest, &rest))
		return VGPU_CHANNEL_OPEN;
	return state;
}

/* Show the guest what has changed, after the bytes that it is about. */
static int vgpu_channel_tell(struct vgpu_ring *ring)
{
	struct vgpu_channel *channel = ring->channel;
	u32 now[] = { channel->taken, channel->given, vgpu_channel_state(channel) };
	__le32 counts[ARRAY_SIZE(now)];
	unsigned int i;
	int ret;

	if (!memcmp(now, channel->told, sizeof(now)))
		return 0;
	for (i = 0; i < ARRAY_SIZE(now); i++)
		counts[i] = cpu_to_le32(now[i]);
	ret = vgpu_ring_dma(ring, channel->area, counts, sizeof(counts), true);
	if (ret)
		return ret;
	memcpy(channel->told, now, sizeof(now));
	vgpu_device_raise(ring->device, VGPU_VECTOR_COMPLETION);
	return 0;
}

/**
 * vgpu_channel_serve - move what can be moved, a piece in each direction
 * @ring: its worker only
 *
 * Return: true if there may be more.
 */
bool vgpu_channel_serve(struct vgpu_ring *ring)
{
	struct vgpu_channel *channel = ring->channel;
	int taken = 0, given = 0;
	int ret;

	if (!channel || READ_ONCE(ring->dead) || !READ_ONCE(ring->device->scheduled))
		return false;
	if (READ_ONCE(channel->state) != VGPU_CHANNEL_CLOSED)
		taken = vgpu_channel_take(ring);
	if (taken >= 0)
		given = vgpu_channel_give(ring);
	ret = min(taken, given);
	if (ret >= 0)
		ret = vgpu_channel_tell(ring);
	if (ret < 0) {
		vgpu_ring_dma_fault(ring, ret, ring->completed);
		return false;
	}
	if (taken || given)
		vgpu_executor_wake(ring->device);
	return taken || given;
}
