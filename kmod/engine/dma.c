// SPDX-License-Identifier: GPL-2.0
/*
 * How a slice's worker reads and writes guest memory. An access may block for as long as
 * the owner of the memory likes, up to a limit: a timer interrupts an access that takes
 * longer.
 */
#include <linux/jiffies.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/overflow.h>
#include <linux/sched/signal.h>
#include <linux/timer.h>

#include "engine/engine.h"
#include "engine/processor.h"
#include "engine/ring.h"
#include "options.h"

#define VGPU_DMA_BYTES_MAX	(64U << 10)	/* the container's lock is held for one piece */
#define VGPU_PATIENCE_JIFFIES	(10 * HZ)	/* limit for an item's turns */

static struct vgpu_option vgpu_dma_timeout_ms = {
	.value = 30 * MSEC_PER_SEC,
	.min = 1,
	.max = VGPU_OPTION_MS_MAX,
};
module_param_cb(dma_timeout_ms, &vgpu_option_ops, &vgpu_dma_timeout_ms, 0644);
MODULE_PARM_DESC(dma_timeout_ms,
		 "how long guest memory may take to answer, ms (default 30000)");

/* dma_lock held. */
static int vgpu_ring_access_locked(struct vgpu_ring *ring, u64 guest, void *data, size_t bytes,
				   bool write)
{
	int ret;

	if (READ_ONCE(ring->released) || READ_ONCE(ring->device->revoked))
		return -ECANCELED;
	if (!vgpu_device_masters_bus(ring->device))
		return -EACCES;
	mod_timer(&ring->watchdog,
		  jiffies + msecs_to_jiffies(READ_ONCE(vgpu_dma_timeout_ms.value)));
	ret = vfio_dma_rw(&ring->device->vdev, guest, data, bytes, write);
	timer_delete_sync(&ring->watchdog);
	/*
	 * A fatal signal may be dropped here, because the killer has set @released or
	 * @revoked first.
	 */
	if (signal_pending(current))
		flush_signals(current);
	if (!ret)
		ring->dma_bytes += bytes;
	return ret;
}

/*
 * One access to guest memory, worker only. Returns -EACCES while the guest has bus
 * mastering off, -EFAULT if the memory is missing or does not answer, -ECANCELED if the
 * ring is released or the device revoked.
 */
static int vgpu_ring_access(struct vgpu_ring *ring, u64 guest, void *data, size_t bytes,
			    bool write)
{
	int ret;

	mutex_lock(&ring->device->dma_lock);
	ret = vgpu_ring_access_locked(ring, guest, data, bytes, write);
	mutex_unlock(&ring->device->dma_lock);
	return ret;
}

/**
 * vgpu_ring_dma - read or write guest memory
 * @ring: the ring; its worker only
 * @guest: address in guest memory
 * @data: data in host memory
 * @bytes: size; accessed in pieces that do not hold the memory's lock for long
 * @write: write to the guest; otherwise read
 *
 * A VMM that unmaps the memory gets that lock between two pieces, and the next piece fails.
 * The core does not notify the driver of that, because nothing is pinned.
 *
 * Return: 0; -EACCES while the guest has bus mastering off, -ECANCELED for a dead ring,
 * -EFAULT. Pass errors to vgpu_ring_dma_fault().
 */
int vgpu_ring_dma(struct vgpu_ring *ring, u64 guest, void *data, u64 bytes, bool write)
{
	u64 end;

	if (check_add_overflow(guest, bytes, &end))
		return -EFAULT;
	while (bytes) {
		u64 piece = min_t(u64, bytes, VGPU_DMA_BYTES_MAX);
		int ret;

		if (READ_ONCE(ring->dead))
			return -ECANCELED;
		ret = vgpu_ring_access(ring, guest, data, piece, write);
		if (ret)
			return ret;
		guest += piece;
		data += piece;
		bytes -= piece;
		if (bytes)
			vgpu_ration_use(&ring->device->ration);
		cond_resched();
	}
	return 0;
}

/**
 * vgpu_ring_write_shadow - write the slice's progress to the guest's shadow, if it has one
 * @ring: the ring; its worker only
 * @error: why the slice stopped, or VGPU_ERROR_NONE
 * @index: number of the item at fault
 */
void vgpu_ring_write_shadow(struct vgpu_ring *ring, u32 error, u32 index)
{
	struct vgpu_shadow shadow = {
		.fetched = cpu_to_le32(ring->fetched),
		.completed = cpu_to_le32(ring->completed),
		.error = cpu_to_le32(error),
		.error_index = cpu_to_le32(index),
	};

	if (ring->shadow)
		vgpu_ring_access(ring, ring->shadow, &shadow, sizeof(shadow), true);
}

/**
 * vgpu_ring_dma_fault - stop the slice after a failed access to guest memory
 * @ring: the ring; its worker only
 * @ret: return value of vgpu_ring_dma()
 * @index: number of the item at fault
 */
void vgpu_ring_dma_fault(struct vgpu_ring *ring, int ret, u32 index)
{
	enum vgpu_error error = ret == -EACCES ? VGPU_ERROR_MASTER : VGPU_ERROR_DMA;

	if (ret != -ECANCELED)
		vgpu_reports.fault(ring->device, ring, error, index);
}

/* Guest memory did not answer in time: interrupt the access, which then fails. */
static void vgpu_ring_timeout(struct timer_list *timer)
{
	struct vgpu_ring *ring = container_of(timer, struct vgpu_ring, watchdog);

	send_sig(SIGKILL, ring->worker, 1);
}

/**
 * vgpu_dma_init - prepare a ring for access to guest memory
 * @ring: the complete ring; its worker does not serve it yet
 */
void vgpu_dma_init(struct vgpu_ring *ring)
{
	timer_setup(&ring->watchdog, vgpu_ring_timeout, 0);
}

/**
 * vgpu_dma_deadline - deadline of a wait that begins now and ends when a slice is quiet
 *
 * Return: jiffies, long after any access to guest memory has ended.
 */
unsigned long vgpu_dma_deadline(void)
{
	return jiffies + msecs_to_jiffies(READ_ONCE(vgpu_dma_timeout_ms.value)) +
	       VGPU_PATIENCE_JIFFIES;
}
