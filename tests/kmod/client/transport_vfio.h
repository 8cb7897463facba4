/* SPDX-License-Identifier: GPL-2.0 */
/* Transport over VFIO, with all its parts accessible to hostile clients. */
#ifndef VGPU_CLIENT_TRANSPORT_VFIO_H
#define VGPU_CLIENT_TRANSPORT_VFIO_H

#include "transport.h"
#include "vfio.h"

#define VFIO_RING_IOVA 0x100000ull
#define VFIO_COMPLETION_IOVA 0x200000ull
#define VFIO_SHADOW_IOVA 0x300000ull
#define VFIO_AREA_IOVA 0x100000000ull
#define VFIO_UNMAPPED_IOVA 0x40000000000ull

struct transport_vfio {
	struct transport base;
	struct vfio vfio;
	int eventfds[2];
	uint32_t entries;
	struct vgpu_desc *ring;
	struct vgpu_completion *completions;
	struct vgpu_shadow *shadow;
	uint32_t tail;
	uint32_t read;
	uint64_t interrupts;
};

static inline struct transport_vfio *to_vfio(struct transport *transport)
{
	return (struct transport_vfio *)transport;
}

/*
 * Open the mdev called @uuid and enable it with rings of @entries; NULL with
 * @message filled on failure.
 */
struct transport *transport_vfio_open(const char *uuid, uint32_t entries,
				      char *message, size_t message_bytes);

/* The ring registers that a normal start uses; hostile clients change one. */
struct ring_registers {
	uint64_t ring;
	uint64_t completion;
	uint64_t shadow;
	uint32_t entries;
};

struct ring_registers transport_vfio_registers(struct transport_vfio *vfio);
/* Reset, forget all items, program the registers; does not enable. */
void transport_vfio_program(struct transport_vfio *vfio,
			    const struct ring_registers *registers);
/* Wait for the sticky error and its interrupt: -EIO, or the reason why there was none. */
int transport_vfio_await_error(struct transport_vfio *vfio, uint64_t timeout_ns);
/* Mapped at @iova, page aligned, zeroed. */
void *transport_vfio_memory(struct transport_vfio *vfio, uint64_t iova,
			    size_t bytes);

#endif
