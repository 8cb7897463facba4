// SPDX-License-Identifier: GPL-2.0
/*
 * vgpumgr guest driver: the byte channel, read and written as /dev/vgpuN.
 *
 * What the device says of it is not trusted: a count that cannot be is an error of the
 * device (-EIO), and bytes are copied before their user sees them.
 */
#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/poll.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "guest.h"

/* What is copied at once. */
#define VGPU_CHANNEL_PIECE	0x1000u

/**
 * vgpu_channel_alloc - allocate memory for the channel if the device has one
 * @guest: bound function
 *
 * Return: 0 or -ENOMEM.
 */
int vgpu_channel_alloc(struct vgpu_guest *guest)
{
	if (!(readl(guest->bar + VGPU_REG_FEATURES) & VGPU_FEATURE_CHANNEL))
		return 0;
	guest->channel = dma_alloc_coherent(&guest->pdev->dev, sizeof(*guest->channel),
					    &guest->channel_bus, GFP_KERNEL);
	return guest->channel ? 0 : -ENOMEM;
}

/**
 * vgpu_channel_free - undo vgpu_channel_alloc()
 * @guest: whose device no longer accesses the memory
 */
void vgpu_channel_free(struct vgpu_guest *guest)
{
	if (guest->channel)
		dma_free_coherent(&guest->pdev->dev, sizeof(*guest->channel), guest->channel,
				  guest->channel_bus);
	guest->channel = NULL;
}

/* How many bytes can be moved now: -EPIPE or 0 with @closed at the end. */
static int vgpu_channel_ready(struct vgpu_guest *guest, bool write, u32 *ready)
{
	struct vgpu_channel_area *channel = guest->channel;
	bool closed;

	if (guest->gone)
		return -ENODEV;
	if (!channel)
		return -EOPNOTSUPP;
	if (guest->error)
		return -EIO;
	/* Nothing is given after the end was told. */
	closed = le32_to_cpu(READ_ONCE(channel->state)) == VGPU_CHANNEL_CLOSED;
	dma_rmb();
	if (write)
		*ready = VGPU_CHANNEL_BYTES -
			 (guest->sent - le32_to_cpu(READ_ONCE(channel->taken)));
	else
		*ready = le32_to_cpu(READ_ONCE(channel->given)) - guest->received;
	if (*ready > VGPU_CHANNEL_BYTES)
		return -EIO;
	return closed && (write || !*ready) ? -EPIPE : 0;
}

/* Copy between the ring and @piece, @at a count of bytes; whole before the doorbell. */
static void vgpu_channel_copy(u8 *ring, u32 at, u8 *piece, u32 bytes, bool write)
{
	u32 start = at % VGPU_CHANNEL_BYTES;
	u32 first = min(bytes, VGPU_CHANNEL_BYTES - start);

	if (write) {
		memcpy(ring + start, piece, first);
		memcpy(ring, piece + first, bytes - first);
	} else {
		memcpy(piece, ring + start, first);
		memcpy(piece + first, ring, bytes - first);
	}
}

/* Move up to @count bytes without waiting. How many, or a negative errno. */
static int vgpu_channel_move(struct vgpu_guest *guest, u8 *piece, u32 count, bool write)
{
	u32 ready;
	int rc;

	mutex_lock(&guest->lock);
	rc = vgpu_channel_ready(guest, write, &ready);
	if (!rc) {
		rc = min(ready, count);
		dma_rmb(); /* bytes are read after the count that covers them */
	}
	if (rc > 0 && write) {
		vgpu_channel_copy(guest->channel->to_host, guest->sent, piece, rc, true);
		guest->sent += rc;
		writel(guest->sent, guest->bar + VGPU_BAR0_SENT);
	} else if (rc > 0) {
		vgpu_channel_copy(guest->channel->to_guest, guest->received, piece, rc, false);
		guest->received += rc;
		writel(guest->received, guest->bar + VGPU_BAR0_RECEIVED);
	}
	mutex_unlock(&guest->lock);
	return rc;
}

/* Move some bytes, waiting for the first of them if the file does. */
static int vgpu_channel_some(struct file *file, u8 *piece, u32 count, bool write)
{
	struct vgpu_guest *guest = file->private_data;
	u64 resets = READ_ONCE(guest->resets);
	int rc;

	for (;;) {
		long left = MAX_SCHEDULE_TIMEOUT;
		u64 wakeups = vgpu_wakeups(guest);

		rc = vgpu_channel_move(guest, piece, count, write);
		if (rc)
			return rc;
		if (file->f_flags & O_NONBLOCK)
			return -EAGAIN;
		rc = vgpu_sleep(guest, wakeups, resets, &left);
		if (rc)
			return rc;
		if (READ_ONCE(guest->resets) != resets)
			return -ECANCELED;
		/* silence: ask the device itself */
		mutex_lock(&guest->lock);
		if (!guest->gone && vgpu_wakeups(guest) == wakeups)
			vgpu_ring_check(guest);
		mutex_unlock(&guest->lock);
	}
}

ssize_t vgpu_channel_read(struct file *file, char __user *to, size_t count, loff_t *position)
{
	u8 *piece;
	int rc;

	if (!count)
		return 0;
	piece = kmalloc(VGPU_CHANNEL_PIECE, GFP_KERNEL);
	if (!piece)
		return -ENOMEM;
	rc = vgpu_channel_some(file, piece, min_t(size_t, count, VGPU_CHANNEL_PIECE), false);
	if (rc == -EPIPE)
		rc = 0;
	else if (rc > 0 && copy_to_user(to, piece, rc))
		rc = -EFAULT;
	kfree(piece);
	return rc;
}

ssize_t vgpu_channel_write(struct file *file, const char __user *from, size_t count,
			   loff_t *position)
{
	u8 *piece;
	int rc;

	if (!count)
		return 0;
	count = min_t(size_t, count, VGPU_CHANNEL_PIECE);
	piece = memdup_user(from, count);
	if (IS_ERR(piece))
		return PTR_ERR(piece);
	rc = vgpu_channel_some(file, piece, count, true);
	kfree(piece);
	return rc;
}

__poll_t vgpu_channel_poll(struct file *file, poll_table *wait)
{
	struct vgpu_guest *guest = file->private_data;
	__poll_t events = 0;
	int rc = 0;
	u32 ready;

	poll_wait(file, &guest->wait, wait);
	mutex_lock(&guest->lock);
	if (guest->gone || guest->error)
		events |= EPOLLERR;
	if (guest->channel) {
		rc = vgpu_channel_ready(guest, false, &ready);
		if (rc || ready)
			events |= EPOLLIN | EPOLLRDNORM;
		rc = vgpu_channel_ready(guest, true, &ready);
		if (rc || ready)
			events |= EPOLLOUT | EPOLLWRNORM;
	}
	mutex_unlock(&guest->lock);
	return events;
}
