// SPDX-License-Identifier: GPL-2.0
/*
 * BAR0 of the virtual function: registers, doorbell, MSI-X table. uapi/vgpu_device.h
 * describes them.
 */
#include "engine/engine.h"
#include "engine/ring.h"

static u32 vgpu_status(struct vgpu_device *device)
{
	u32 status = 0;

	if (device->ring)
		status |= VGPU_STATUS_ENABLED;
	if (READ_ONCE(device->error))
		status |= VGPU_STATUS_ERROR;
	if (READ_ONCE(device->scheduled))
		status |= VGPU_STATUS_SCHEDULED;
	return status;
}

/**
 * vgpu_device_run_ns - engine time of a slice as its guest sees it
 * @device: the slice, state_lock held
 *
 * A guest may read this often, and other slices need the engine's lock. So the lock
 * is only taken if, since the last read, time was charged to this slice or to all
 * slices of a parked engine.
 */
u64 vgpu_device_run_ns(struct vgpu_device *device)
{
	struct vgpu_engine *engine = &device->parent->engine;

	if (READ_ONCE(device->slice.stats.run_ns) != device->run_ns_settled ||
	    READ_ONCE(engine->sched.parked_ns) != device->parked_ns_settled) {
		spin_lock_irq(&engine->lock);
		vgpu_slice_settle(&device->slice);
		device->run_ns_settled = device->slice.stats.run_ns;
		device->parked_ns_settled = engine->sched.parked_ns;
		spin_unlock_irq(&engine->lock);
	}
	return device->run_ns_before + device->run_ns_settled;
}

static u32 vgpu_register_read(struct vgpu_device *device, u32 offset)
{
	struct vgpu_engine *engine = &device->parent->engine;
	u64 run_ns;

	switch (offset) {
	case VGPU_REG_ID:
		return VGPU_ID;
	case VGPU_REG_ABI:
		return VGPU_ABI;
	case VGPU_REG_OPS:
		return engine->ops->operations;
	case VGPU_REG_FLAGS:
		return VGPU_DESC_FLAGS;
	case VGPU_REG_CONTROL:
		return device->ring ? VGPU_CONTROL_ENABLE : 0;
	case VGPU_REG_STATUS:
		return vgpu_status(device);
	case VGPU_REG_ERROR:
		return READ_ONCE(device->error);
	case VGPU_REG_ERROR_INDEX:
		return READ_ONCE(device->error_index);
	case VGPU_REG_RING_LO:
		return lower_32_bits(device->setup.ring);
	case VGPU_REG_RING_HI:
		return upper_32_bits(device->setup.ring);
	case VGPU_REG_COMPLETION_LO:
		return lower_32_bits(device->setup.completion);
	case VGPU_REG_COMPLETION_HI:
		return upper_32_bits(device->setup.completion);
	case VGPU_REG_SHADOW_LO:
		return lower_32_bits(device->setup.shadow);
	case VGPU_REG_SHADOW_HI:
		return upper_32_bits(device->setup.shadow);
	case VGPU_REG_RING_ENTRIES:
		return device->setup.entries;
	case VGPU_REG_ITEM_BYTES_MAX:
		return VGPU_ITEM_BYTES_MAX;
	case VGPU_REG_MEMORY_LO:
		return lower_32_bits(device->memory_bytes);
	case VGPU_REG_MEMORY_HI:
		return upper_32_bits(device->memory_bytes);
	case VGPU_REG_DELAY_NS_MAX:
		return VGPU_DELAY_NS_MAX;
	case VGPU_REG_CHUNK_NS_MAX:
		return min_t(u64, READ_ONCE(engine->sched.params.max_chunk_ns), U32_MAX);
	case VGPU_REG_FACT_PS:
		return engine->fact_ps;
	case VGPU_REG_FEATURES:
		return engine->ops->lends ? VGPU_FEATURE_WINDOWS : 0;
	case VGPU_REG_WINDOWS:
		return engine->ops->lends ? VGPU_WINDOWS_MAX : 0;
	case VGPU_REG_WINDOW_BYTES:
		return engine->ops->lends ? VGPU_WINDOW_BYTES : 0;
	case VGPU_REG_WINDOW_STATES:
		return vgpu_windows_states(device);
	case VGPU_REG_WINDOW_EVENTS:
		return vgpu_windows_take_events(device);
	case VGPU_REG_FETCHED:
		return device->ring ? READ_ONCE(device->ring->fetched) : 0;
	case VGPU_REG_COMPLETED:
		return device->ring ? READ_ONCE(device->ring->completed) : 0;
	case VGPU_REG_RUN_NS_LO:
		run_ns = vgpu_device_run_ns(device);
		device->run_ns_hi = upper_32_bits(run_ns);
		return lower_32_bits(run_ns);
	case VGPU_REG_RUN_NS_HI:
		return device->run_ns_hi;
	default:
		return 0;
	}
}

static void vgpu_enable(struct vgpu_device *device)
{
	const char *fault = vgpu_ring_setup_fault(&device->setup);
	struct vgpu_ring *ring = NULL;
	u32 error = VGPU_ERROR_NONE;

	if (device->ring || READ_ONCE(device->error))
		return;
	if (!vgpu_device_masters_bus(device))
		error = VGPU_ERROR_MASTER;
	else if (fault)
		error = VGPU_ERROR_RING;
	else if (READ_ONCE(device->parent->engine.wedged))
		error = VGPU_ERROR_ENGINE;
	vgpu_device_throttle(device, VGPU_STORM_ENABLE);
	if (!error) {
		ring = vgpu_ring_create(device);
		error = ring ? VGPU_ERROR_NONE : VGPU_ERROR_RESOURCE;
	}
	if (ring && !vgpu_ring_publish(ring)) {
		vgpu_ring_release(ring);
		error = VGPU_ERROR_ENGINE;
	}
	if (error) {
		vgpu_device_fault_of(device, NULL, error, 0,
				     error == VGPU_ERROR_RING ? fault : NULL);
		vgpu_device_raise(device, VGPU_VECTOR_ERROR);
	}
}

static void vgpu_set_half(u64 *address, bool high, u32 value)
{
	if (high)
		*address = (u64)value << 32 | lower_32_bits(*address);
	else
		*address = (*address & ~(u64)U32_MAX) | value;
}

static void vgpu_register_write(struct vgpu_device *device, u32 offset, u32 value)
{
	if (offset == VGPU_REG_CONTROL) {
		if (value & VGPU_CONTROL_RESET)
			vgpu_device_reset(device);
		else if (value & VGPU_CONTROL_ENABLE)
			vgpu_enable(device);
		return;
	}
	if (offset == VGPU_REG_WINDOW_OPEN || offset == VGPU_REG_WINDOW_CLOSE) {
		if (offset == VGPU_REG_WINDOW_OPEN)
			vgpu_window_open(device, value);
		else
			vgpu_window_close(device, value);
		return;
	}
	if (device->ring)
		return;
	switch (offset) {
	case VGPU_REG_RING_LO:
	case VGPU_REG_RING_HI:
		vgpu_set_half(&device->setup.ring, offset == VGPU_REG_RING_HI, value);
		return;
	case VGPU_REG_COMPLETION_LO:
	case VGPU_REG_COMPLETION_HI:
		vgpu_set_half(&device->setup.completion,
			      offset == VGPU_REG_COMPLETION_HI, value);
		return;
	case VGPU_REG_SHADOW_LO:
	case VGPU_REG_SHADOW_HI:
		vgpu_set_half(&device->setup.shadow, offset == VGPU_REG_SHADOW_HI,
			      value);
		return;
	case VGPU_REG_RING_ENTRIES:
		device->setup.entries = value;
		return;
	}
}

static void vgpu_msix_power_on(u8 *table)
{
	unsigned int vector;

	memset(table, 0, PCI_MSIX_ENTRY_SIZE * VGPU_VECTORS);
	for (vector = 0; vector < VGPU_VECTORS; vector++)
		table[vector * PCI_MSIX_ENTRY_SIZE + PCI_MSIX_ENTRY_VECTOR_CTRL] =
			PCI_MSIX_ENTRY_CTRL_MASKBIT;
}

/**
 * vgpu_registers_reset - set the state after power on
 * @device: the slice, state_lock held, not enabled
 */
void vgpu_registers_reset(struct vgpu_device *device)
{
	memset(&device->setup, 0, sizeof(device->setup));
	device->run_ns_hi = 0;
	vgpu_msix_power_on(device->msix_table);
}

/* Bits of one byte of the MSI-X table that a write may change. */
static u8 vgpu_msix_write_mask(u32 at)
{
	switch (at % PCI_MSIX_ENTRY_SIZE) {
	case PCI_MSIX_ENTRY_LOWER_ADDR:
		return 0xfc;
	case PCI_MSIX_ENTRY_VECTOR_CTRL:
		return PCI_MSIX_ENTRY_CTRL_MASKBIT;
	case PCI_MSIX_ENTRY_VECTOR_CTRL + 1 ... PCI_MSIX_ENTRY_SIZE - 1:
		return 0;
	default:
		return 0xff;
	}
}

/**
 * vgpu_msix_describe - the possible contents of the MSI-X table
 * @table: out: after power on
 * @writable: out: bits that a write may change
 */
void vgpu_msix_describe(u8 *table, u8 *writable)
{
	u32 i;

	vgpu_msix_power_on(table);
	for (i = 0; i < PCI_MSIX_ENTRY_SIZE * VGPU_VECTORS; i++)
		writable[i] = vgpu_msix_write_mask(i);
}

/* The part of an access that lies in the MSI-X table; the rest reads as zero. */
static u8 *vgpu_msix_bytes(struct vgpu_device *device, u32 offset, u32 bytes)
{
	u32 at = offset - VGPU_BAR0_MSIX_TABLE;

	if (offset < VGPU_BAR0_MSIX_TABLE || at + bytes > sizeof(device->msix_table))
		return NULL;
	return device->msix_table + at;
}

static void vgpu_msix_write(struct vgpu_device *device, u32 offset, const u8 *data, u32 bytes)
{
	u8 *table = vgpu_msix_bytes(device, offset, bytes);
	u32 i;

	for (i = 0; table && i < bytes; i++) {
		u8 mask = vgpu_msix_write_mask(offset - VGPU_BAR0_MSIX_TABLE + i);

		table[i] = (table[i] & ~mask) | (data[i] & mask);
	}
}

static bool vgpu_access_valid(u32 offset, u32 bytes)
{
	return (bytes == 4 || bytes == 8) && IS_ALIGNED(offset, bytes);
}

void vgpu_bar0_read(struct vgpu_device *device, u32 offset, void *data, u32 bytes)
{
	u32 i;

	if (offset >= VGPU_BAR0_MSIX_TABLE) {
		u8 *table = vgpu_msix_bytes(device, offset, bytes);

		if (table)
			memcpy(data, table, bytes);
		else
			memset(data, 0, bytes);
		return;
	}
	if (!vgpu_access_valid(offset, bytes)) {
		memset(data, 0xff, bytes);
		return;
	}
	for (i = 0; i < bytes; i += sizeof(u32))
		put_unaligned_le32(vgpu_register_read(device, offset + i), data + i);
}

void vgpu_bar0_write(struct vgpu_device *device, u32 offset, const void *data, u32 bytes)
{
	u32 i;

	if (offset >= VGPU_BAR0_MSIX_TABLE) {
		vgpu_msix_write(device, offset, data, bytes);
		return;
	}
	if (!vgpu_access_valid(offset, bytes))
		return;
	for (i = 0; i < bytes; i += sizeof(u32)) {
		u32 value = get_unaligned_le32(data + i);

		if (offset + i == VGPU_BAR0_DOORBELL)
			vgpu_device_doorbell(device, value);
		else if (offset + i == VGPU_BAR0_WINDOW_BELL)
			vgpu_window_bell(device, value);
		else if (offset + i < VGPU_BAR0_DOORBELL)
			vgpu_register_write(device, offset + i, value);
	}
}
