/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VGPU_RING_H
#define VGPU_RING_H

#include "vgpu.h"

/* memory.c */
struct vgpu_memory *vgpu_memory_create(u64 bytes);
void vgpu_memory_clear(struct vgpu_memory *memory);
void vgpu_memory_put(struct vgpu_memory *memory);

/* ring.c */
#define VGPU_STORM_ENABLE	10U	/* tokens to create a ring */
#define VGPU_STORM_RESET	1U	/* tokens to reset or pause */
int vgpu_rings_init(void);
void vgpu_rings_exit(void);
struct vgpu_ring *vgpu_ring_create(struct vgpu_device *device);
void vgpu_device_doorbell(struct vgpu_device *device, u32 tail);
void vgpu_device_throttle(struct vgpu_device *device, u32 tokens);
bool vgpu_ring_publish(struct vgpu_ring *ring);
bool vgpu_storm_take(struct vgpu_device *device, u32 tokens);
void vgpu_ring_rest(struct vgpu_ring *ring);
void vgpu_ring_stop(struct vgpu_ring *ring);
void vgpu_device_stop(struct vgpu_device *device);
void vgpu_rings_fail(struct vgpu_engine *engine, u32 error);
void vgpu_ring_release(struct vgpu_ring *ring);
bool vgpu_ring_delays_pause(struct vgpu_ring *ring);
void vgpu_ring_chunk_done(struct vgpu_ring *ring);
int vgpu_ring_pause(struct vgpu_ring *ring, unsigned long deadline);
void vgpu_ring_continue(struct vgpu_ring *ring);
void vgpu_item_free(struct vgpu_item *item);
void vgpu_item_free_late(struct vgpu_item *item);

static inline struct vgpu_engine *vgpu_ring_engine(struct vgpu_ring *ring)
{
	return &ring->device->parent->engine;
}

/* engine/dma.c */
void vgpu_dma_init(struct vgpu_ring *ring);
unsigned long vgpu_dma_deadline(void);
int vgpu_ring_dma(struct vgpu_ring *ring, u64 guest, void *data, u64 bytes, bool write);
void vgpu_ring_dma_fault(struct vgpu_ring *ring, int ret, u32 index);
void vgpu_ring_write_shadow(struct vgpu_ring *ring, u32 error, u32 index);

/* engine/staging.c */
struct vgpu_item *vgpu_ring_stage(struct vgpu_ring *ring, const struct vgpu_desc *desc,
				  u32 number);

/* engine/worker.c */
#define VGPU_FETCH_BATCH	32U
int vgpu_worker_start(struct vgpu_device *device);
void vgpu_worker_stop(struct vgpu_device *device);
void vgpu_worker_serve(struct vgpu_ring *ring);
void vgpu_worker_leave(struct vgpu_ring *ring);
void vgpu_ring_kick(struct vgpu_ring *ring);
void vgpu_worker_break_off(struct vgpu_ring *ring);	/* engine->lock held */

#endif /* VGPU_RING_H */
