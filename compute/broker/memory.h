/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that the broker shares with clients and children.
 *
 * Each piece is a memfd of which nobody can change the size or execute anything
 * (the latter where the kernel can say so).  Descriptors are close-on-exec and the
 * caller's; so are the mappings, which memory_unmap() ends.
 */
#ifndef VGPU_BROKER_MEMORY_H
#define VGPU_BROKER_MEMORY_H

#include <stdint.h>

#include "protocol/window.h"
#include "uapi/vgpu_lease_page.h"

/**
 * memory_window() - a window, of which the first page is filled and mapped
 * @bytes: whole pages, within VGPU_WINDOW_BYTES_MIN..VGPU_WINDOW_BYTES_MAX
 *
 * Return: the descriptor or -errno.
 */
int memory_window(uint64_t bytes, struct vgpu_window **header);

/* A lease page.  Nobody else can map it writable, or write to it, ever.  Return: as above. */
int memory_lease(struct vgpu_lease_page **page);

/* A stream page, which its child writes.  Return: as above. */
int memory_stream(struct vgpu_stream_page **page);

/* One page of the above; NULL is fine. */
void memory_unmap(void *page);

/* The child of a window is gone: wake whoever waits in it.  Return: nothing. */
void memory_window_lost(struct vgpu_window *header);

/* Change and wake the wake word of a lease page. */
void memory_lease_wake(struct vgpu_lease_page *page);

#endif /* VGPU_BROKER_MEMORY_H */
