// SPDX-License-Identifier: GPL-2.0
/*
 * vgpumgr guest driver: rings and registers.
 *
 * Every function here is called with vgpu_guest.lock held. Data that the device
 * writes is not trusted: counters are compared with the number of items
 * submitted, and every completion with its number.
 */
#include <linux/dma-mapping.h>
#include <linux/io-64-nonatomic-lo-hi.h>
#include <linux/iopoll.h>

#include "guest.h"

#define VGPU_GONE		0xffffffffu
#define VGPU_RESET_TIMEOUT_US	(5 * USEC_PER_SEC)
#define VGPU_RESET_POLL_US	100

static u32 vgpu_read(struct vgpu_guest *guest, u32 reg)
{
	return readl(guest->bar + reg);
}

static void vgpu_write(struct vgpu_guest *guest, u32 reg, u32 value)
{
	writel(value, guest->bar + reg);
}

static void vgpu_write_address(struct vgpu_guest *guest, u32 reg, u64 value)
{
	vgpu_write(guest, reg, lower_32_bits(value));
	vgpu_write(guest, reg + 4, upper_32_bits(value));
}

/* The low half is read first: it latches the high half. */
static u64 vgpu_read_pair(struct vgpu_guest *guest, u32 reg)
{
	u32 low = vgpu_read(guest, reg);

	return low | (u64)vgpu_read(guest, reg + 4) << 32;
}

/**
 * vgpu_ring_alloc - allocate rings and shadow block
 * @guest: bound function
 * @entries: a power of two
 *
 * Return: 0 or -ENOMEM.
 */
int vgpu_ring_alloc(struct vgpu_guest *guest, u32 entries)
{
	struct device *dev = &guest->pdev->dev;

	guest->entries = entries;
	guest->ring = dma_alloc_coherent(dev, entries * sizeof(*guest->ring),
					 &guest->ring_bus, GFP_KERNEL);
	guest->completions =
		dma_alloc_coherent(dev, entries * sizeof(*guest->completions),
				   &guest->completions_bus, GFP_KERNEL);
	guest->shadow = dma_alloc_coherent(dev, sizeof(*guest->shadow),
					   &guest->shadow_bus, GFP_KERNEL);
	if (guest->ring && guest->completions && guest->shadow)
		return 0;
	vgpu_ring_free(guest);
	return -ENOMEM;
}

/**
 * vgpu_ring_free - undo vgpu_ring_alloc()
 * @guest: bound function, whose device no longer accesses the memory
 */
void vgpu_ring_free(struct vgpu_guest *guest)
{
	struct device *dev = &guest->pdev->dev;

	if (guest->shadow)
		dma_free_coherent(dev, sizeof(*guest->shadow), guest->shadow,
				  guest->shadow_bus);
	if (guest->completions)
		dma_free_coherent(dev,
				  guest->entries * sizeof(*guest->completions),
				  guest->completions, guest->completions_bus);
	if (guest->ring)
		dma_free_coherent(dev, guest->entries * sizeof(*guest->ring),
				  guest->ring, guest->ring_bus);
	guest->shadow = NULL;
	guest->completions = NULL;
	guest->ring = NULL;
}

/**
 * vgpu_ring_lost - record that the device does not answer, and wake all waiters
 * @guest: bound function, not gone
 *
 * Return: -ENODEV.
 */
int vgpu_ring_lost(struct vgpu_guest *guest)
{
	guest->gone = true;
	vgpu_windows_end(guest, -ENODEV);
	wake_up_all(&guest->wait);
	pci_err(guest->pdev, "device is gone\n");
	return -ENODEV;
}

/**
 * vgpu_ring_stop - reset the device
 * @guest: bound function, not gone
 *
 * Afterwards the device does not access this driver's memory, because either it
 * is reset or its bus mastering is off.
 *
 * Return: 0, or -ENODEV if the device is gone or does not stop.
 */
int vgpu_ring_stop(struct vgpu_guest *guest)
{
	const u32 busy = VGPU_STATUS_ENABLED | VGPU_STATUS_ERROR;
	u32 status;
	int rc;

	vgpu_write(guest, VGPU_REG_CONTROL, VGPU_CONTROL_RESET);
	rc = readl_poll_timeout(guest->bar + VGPU_REG_STATUS, status,
				status == VGPU_GONE || !(status & busy),
				VGPU_RESET_POLL_US, VGPU_RESET_TIMEOUT_US);
	if (!rc && status != VGPU_GONE)
		return 0;

	if (rc)
		pci_err(guest->pdev, "device does not reset (status %#x)\n",
			status);
	pci_clear_master(guest->pdev);
	return vgpu_ring_lost(guest);
}

/**
 * vgpu_ring_start - reset the device and enable it with empty rings
 * @guest: bound function, not gone
 *
 * Return: 0, -ENODEV if the device is gone, -EIO if it does not become enabled.
 */
int vgpu_ring_start(struct vgpu_guest *guest)
{
	int rc;

	rc = vgpu_ring_stop(guest);
	if (rc)
		return rc;

	memset(guest->ring, 0, guest->entries * sizeof(*guest->ring));
	memset(guest->completions, 0,
	       guest->entries * sizeof(*guest->completions));
	memset(guest->shadow, 0, sizeof(*guest->shadow));
	guest->tail = 0;
	guest->read = 0;
	guest->error = VGPU_ERROR_NONE;
	guest->error_index = 0;
	guest->min_outstanding = U32_MAX;
	guest->phase_started = false;
	guest->resets++;
	wake_up_all(&guest->wait);

	vgpu_write_address(guest, VGPU_REG_RING_LO, guest->ring_bus);
	vgpu_write_address(guest, VGPU_REG_COMPLETION_LO,
			   guest->completions_bus);
	vgpu_write_address(guest, VGPU_REG_SHADOW_LO, guest->shadow_bus);
	vgpu_write(guest, VGPU_REG_RING_ENTRIES, guest->entries);
	vgpu_write(guest, VGPU_REG_CONTROL, VGPU_CONTROL_ENABLE);
	rc = vgpu_ring_check(guest);
	if (rc)
		return rc;
	return guest->error ? -EIO : 0;
}

/**
 * vgpu_ring_check - check the status register
 * @guest: bound function, not gone
 *
 * Detects surprise removal, and an error whose interrupt or shadow copy did not
 * arrive.
 *
 * Return: 0 or -ENODEV.
 */
int vgpu_ring_check(struct vgpu_guest *guest)
{
	u32 status = vgpu_read(guest, VGPU_REG_STATUS);

	if (status == VGPU_GONE)
		return vgpu_ring_lost(guest);
	if ((status & VGPU_STATUS_ERROR) && !guest->error) {
		guest->error_index = vgpu_read(guest, VGPU_REG_ERROR_INDEX);
		guest->error = vgpu_read(guest, VGPU_REG_ERROR);
	} else if (!(status & VGPU_STATUS_ENABLED) && !guest->error) {
		/* another user has reset the device: it has no rings now */
		guest->error = VGPU_ERROR_RING;
	}
	return 0;
}

/**
 * vgpu_ring_ready - count completions that can be collected
 * @guest: bound function, not gone
 * @ready: out
 *
 * Return: 0, or -EIO when the device counts items that were never submitted.
 */
int vgpu_ring_ready(struct vgpu_guest *guest, u32 *ready)
{
	u32 completed = le32_to_cpu(READ_ONCE(guest->shadow->completed));

	*ready = completed - guest->read;
	if (*ready > guest->tail - guest->read) {
		*ready = 0;
		return -EIO;
	}
	if (!guest->error && READ_ONCE(guest->shadow->error)) {
		dma_rmb(); /* the index belongs to the error just seen */
		guest->error_index = le32_to_cpu(guest->shadow->error_index);
		guest->error = le32_to_cpu(guest->shadow->error);
	}
	return 0;
}

/**
 * vgpu_ring_submit - queue translated descriptors
 * @guest: bound function, not gone
 * @descs: @count descriptors
 * @count: 1 .. entries
 * @phase: a new phase starts
 * @outstanding: out, see struct vgpu_guest_submit
 *
 * Return: 0, -EAGAIN if the ring has no room, -EIO if the device is in error.
 */
int vgpu_ring_submit(struct vgpu_guest *guest, const struct vgpu_desc *descs,
		     u32 count, bool phase, u32 *outstanding)
{
	u32 before = guest->tail, ready, i;
	int rc;

	rc = vgpu_ring_ready(guest, &ready);
	if (rc)
		return rc;
	if (guest->error)
		return -EIO;
	if (count > guest->entries - (guest->tail - guest->read))
		return -EAGAIN;

	for (i = 0; i < count; i++, guest->tail++)
		guest->ring[guest->tail & (guest->entries - 1)] = descs[i];
	guest->ring[(guest->tail - 1) & (guest->entries - 1)].flags |=
		cpu_to_le16(VGPU_DESC_IRQ);
	guest->submitted += count;
	vgpu_write(guest, VGPU_BAR0_DOORBELL, guest->tail);

	/*
	 * Count after the doorbell. Items may have completed since the new ones
	 * arrived, so the number is a lower bound of the items that were queued
	 * until then.
	 */
	rc = vgpu_ring_ready(guest, &ready);
	if (rc)
		return rc;
	*outstanding = before - guest->read > ready ?
		       before - guest->read - ready : 0;
	if (phase || !guest->phase_started) {
		guest->min_outstanding = U32_MAX;
		guest->phase_started = true;
	} else {
		guest->min_outstanding = min(guest->min_outstanding,
					     *outstanding);
	}
	return 0;
}

/**
 * vgpu_ring_collect - take completions out of the ring
 * @guest: bound function, not gone
 * @into: room for @count
 * @count: number of completions, at most that from vgpu_ring_ready()
 *
 * Return: 0, or -EIO if a completion has a wrong sequence number.
 */
int vgpu_ring_collect(struct vgpu_guest *guest, struct vgpu_completion *into,
		      u32 count)
{
	u32 i;

	dma_rmb(); /* completions are read after the counter that covers them */
	for (i = 0; i < count; i++) {
		into[i] = guest->completions[guest->read & (guest->entries - 1)];
		if (le32_to_cpu(into[i].seq) != guest->read + 1) {
			dev_err_ratelimited(&guest->pdev->dev,
					    "completion %u carries number %u\n",
					    guest->read,
					    le32_to_cpu(into[i].seq));
			return -EIO;
		}
		guest->read++;
		guest->collected++;
	}
	return 0;
}

/**
 * vgpu_ring_info - read limits, registers and counters
 * @guest: bound function, not gone
 * @info: out
 *
 * Return: 0 or -ENODEV.
 */
int vgpu_ring_info(struct vgpu_guest *guest, struct vgpu_guest_info *info)
{
	u32 completed;
	u64 run_ns;

	if (vgpu_read(guest, VGPU_REG_ID) != VGPU_ID)
		return vgpu_ring_lost(guest);

	/*
	 * Each read may exit to the host. So make these two without another
	 * read between them, because their values must be consistent.
	 */
	run_ns = vgpu_read_pair(guest, VGPU_REG_RUN_NS_LO);
	completed = vgpu_read(guest, VGPU_REG_COMPLETED);
	*info = (struct vgpu_guest_info) {
		.abi = vgpu_read(guest, VGPU_REG_ABI),
		.ops = vgpu_read(guest, VGPU_REG_OPS),
		.desc_flags = vgpu_read(guest, VGPU_REG_FLAGS),
		.status = vgpu_read(guest, VGPU_REG_STATUS),
		.error = vgpu_read(guest, VGPU_REG_ERROR),
		.error_index = vgpu_read(guest, VGPU_REG_ERROR_INDEX),
		.ring_entries = guest->entries,
		.item_bytes_max = vgpu_read(guest, VGPU_REG_ITEM_BYTES_MAX),
		.delay_ns_max = vgpu_read(guest, VGPU_REG_DELAY_NS_MAX),
		.chunk_ns_max = vgpu_read(guest, VGPU_REG_CHUNK_NS_MAX),
		.area_bytes_max = VGPU_GUEST_AREA_BYTES,
		.piece_bytes = VGPU_GUEST_PIECE_BYTES,
		.fetched = vgpu_read(guest, VGPU_REG_FETCHED),
		.completed = completed,
		.tail = guest->tail,
		.outstanding = guest->tail - completed,
		.min_outstanding = guest->min_outstanding,
		.fact_ps = vgpu_read(guest, VGPU_REG_FACT_PS),
		.memory_bytes = vgpu_read_pair(guest, VGPU_REG_MEMORY_LO),
		.run_ns = run_ns,
		.submitted = guest->submitted,
		.collected = guest->collected,
		.interrupts = atomic64_read(&guest->interrupts),
		.error_interrupts = atomic64_read(&guest->error_interrupts),
		.resets = guest->resets,
	};
	return 0;
}
