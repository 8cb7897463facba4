// SPDX-License-Identifier: GPL-2.0
#include "hostile_registers.h"

#include <errno.h>

#include "clock.h"
#include "descriptor.h"
#include "single.h"
#include "transport_vfio.h"

#define TIMEOUT_NS (10 * NS_PER_S)
#define STORM_DOORBELLS 200000

static int enable_with(struct transport_vfio *vfio,
		       const struct ring_registers *registers)
{
	transport_vfio_program(vfio, registers);
	vfio_write32(&vfio->vfio, VGPU_REG_CONTROL, VGPU_CONTROL_ENABLE);
	return transport_vfio_await_error(vfio, TIMEOUT_NS);
}

static int with_entries(struct transport *transport, uint32_t entries)
{
	struct ring_registers registers =
		transport_vfio_registers(to_vfio(transport));

	registers.entries = entries;
	return enable_with(to_vfio(transport), &registers);
}

static int entries_zero(struct transport *transport)
{
	return with_entries(transport, 0);
}

static int entries_few(struct transport *transport)
{
	return with_entries(transport, VGPU_RING_ENTRIES_MIN / 2);
}

static int entries_odd(struct transport *transport)
{
	return with_entries(transport, 1000);
}

static int entries_many(struct transport *transport)
{
	return with_entries(transport, 2 * VGPU_RING_ENTRIES_MAX);
}

static int entries_huge(struct transport *transport)
{
	return with_entries(transport, 0x80000000);
}

static int with_ring(struct transport *transport, uint64_t address)
{
	struct ring_registers registers =
		transport_vfio_registers(to_vfio(transport));

	registers.ring = address;
	return enable_with(to_vfio(transport), &registers);
}

static int ring_misaligned(struct transport *transport)
{
	return with_ring(transport, VFIO_RING_IOVA + 8);
}

static int ring_overflow(struct transport *transport)
{
	return with_ring(transport, UINT64_MAX - 63);
}

static int with_completion(struct transport *transport, uint64_t address)
{
	struct ring_registers registers =
		transport_vfio_registers(to_vfio(transport));

	registers.completion = address;
	return enable_with(to_vfio(transport), &registers);
}

static int completion_misaligned(struct transport *transport)
{
	return with_completion(transport, VFIO_COMPLETION_IOVA + 16);
}

static int completion_overflow(struct transport *transport)
{
	return with_completion(transport, UINT64_MAX - 31);
}

static int shadow_misaligned(struct transport *transport)
{
	struct ring_registers registers =
		transport_vfio_registers(to_vfio(transport));

	registers.shadow += 32;
	return enable_with(to_vfio(transport), &registers);
}

/* Enable with rings that look valid, then queue one item. */
static int submit_with(struct transport_vfio *vfio,
		       const struct ring_registers *registers)
{
	vfio->ring[0] = descriptor_nop();
	transport_vfio_program(vfio, registers);
	vfio_write32(&vfio->vfio, VGPU_REG_CONTROL, VGPU_CONTROL_ENABLE);
	vfio_write32(&vfio->vfio, VGPU_BAR0_DOORBELL, 1);
	return transport_vfio_await_error(vfio, TIMEOUT_NS);
}

static int ring_unmapped(struct transport *transport)
{
	struct ring_registers registers =
		transport_vfio_registers(to_vfio(transport));

	registers.ring = VFIO_UNMAPPED_IOVA;
	return submit_with(to_vfio(transport), &registers);
}

static int completion_unmapped(struct transport *transport)
{
	struct ring_registers registers =
		transport_vfio_registers(to_vfio(transport));

	registers.completion = VFIO_UNMAPPED_IOVA;
	return submit_with(to_vfio(transport), &registers);
}

static int ring_tail(struct transport *transport, uint32_t tail)
{
	vfio_write32(&to_vfio(transport)->vfio, VGPU_BAR0_DOORBELL, tail);
	return transport_vfio_await_error(to_vfio(transport), TIMEOUT_NS);
}

static int doorbell_beyond(struct transport *transport)
{
	return ring_tail(transport, to_vfio(transport)->entries + 1);
}

static int doorbell_huge(struct transport *transport)
{
	return ring_tail(transport, 0x80000000);
}

static int doorbell_backwards(struct transport *transport)
{
	struct vgpu_desc descs[] = { descriptor_nop(), descriptor_nop(),
				     descriptor_nop() };
	int rc = single_run(transport, descs, 3, 0, TIMEOUT_NS, NULL);

	return rc ? rc : ring_tail(transport, 2);
}

static int doorbell_storm(struct transport *transport)
{
	struct transport_vfio *vfio = to_vfio(transport);

	for (uint32_t i = 0; i < STORM_DOORBELLS; i++) {
		vfio_write32(&vfio->vfio, VGPU_BAR0_DOORBELL, 0);
		if (i % 256 == 0 && vfio_read32(&vfio->vfio, VGPU_REG_ERROR))
			break;
	}
	return transport_vfio_await_error(vfio, TIMEOUT_NS);
}

static int master_off_enable(struct transport *transport)
{
	struct transport_vfio *vfio = to_vfio(transport);
	struct ring_registers registers = transport_vfio_registers(vfio);

	vfio_master(&vfio->vfio, false);
	return enable_with(vfio, &registers);
}

static int master_off_doorbell(struct transport *transport)
{
	struct transport_vfio *vfio = to_vfio(transport);

	vfio_master(&vfio->vfio, false);
	vfio->ring[0] = descriptor_nop();
	return ring_tail(transport, 1);
}

const struct hostile_case hostile_registers[] = {
	{ "entries-zero", VGPU_ERROR_RING, entries_zero, NULL },
	{ "entries-few", VGPU_ERROR_RING, entries_few, NULL },
	{ "entries-odd", VGPU_ERROR_RING, entries_odd, NULL },
	{ "entries-many", VGPU_ERROR_RING, entries_many, NULL },
	{ "entries-huge", VGPU_ERROR_RING, entries_huge, NULL },
	{ "ring-misaligned", VGPU_ERROR_RING, ring_misaligned, NULL },
	{ "ring-overflow", VGPU_ERROR_RING, ring_overflow, NULL },
	{ "completion-misaligned", VGPU_ERROR_RING, completion_misaligned, NULL },
	{ "completion-overflow", VGPU_ERROR_RING, completion_overflow, NULL },
	{ "shadow-misaligned", VGPU_ERROR_RING, shadow_misaligned, NULL },
	{ "ring-unmapped", VGPU_ERROR_DMA, ring_unmapped, NULL },
	{ "completion-unmapped", VGPU_ERROR_DMA, completion_unmapped, NULL },
	{ "doorbell-beyond", VGPU_ERROR_DOORBELL, doorbell_beyond, NULL },
	{ "doorbell-huge", VGPU_ERROR_DOORBELL, doorbell_huge, NULL },
	{ "doorbell-backwards", VGPU_ERROR_DOORBELL, doorbell_backwards, NULL },
	{ "doorbell-storm", VGPU_ERROR_STORM, doorbell_storm, NULL },
	{ "master-off-enable", VGPU_ERROR_MASTER, master_off_enable, NULL },
	{ "master-off-doorbell", VGPU_ERROR_MASTER, master_off_doorbell, NULL },
};
const size_t hostile_register_count =
	sizeof(hostile_registers) / sizeof(hostile_registers[0]);
