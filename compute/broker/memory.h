/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that the broker shares with clients and children.
 *
 * Each piece is a memfd.  Nobody can change its size.  If the kernel supports the seal against
 * execution, nobody can execute it.  Descriptors are close-on-exec.  The caller owns descriptors
 * and mappings, and unmaps with memory_unmap().
 */
#ifndef VGPU_BROKER_MEMORY_H
#define VGPU_BROKER_MEMORY_H

#include <stdint.h>

#include "protocol/window.h"
#include "uapi/vgpu_lease_page.h"

/**
 * memory_window() - create a window, with its first page filled and mapped
 * @bytes: whole pages, within VGPU_WINDOW_BYTES_MIN..VGPU_WINDOW_BYTES_MAX
 *
 * Return: the descriptor or -errno.
 */
int memory_window(uint64_t bytes, struct vgpu_window **header);

/*
 * Create a lease page.  Nobody else can ever map the page writable, or write to it.  Return: like
 * memory_window().
 */
int memory_lease(struct vgpu_lease_page **page);

/* Create a stream page, which the child writes.  Return: like memory_window(). */
int memory_stream(struct vgpu_stream_page **page);

/* Unmap a page that one of these functions has mapped; NULL is allowed. */
void memory_unmap(void *page);

/* Mark a window's child as gone, and wake all waiters in the window. */
void memory_window_lost(struct vgpu_window *header);

/* Change the wake word of a lease page, and wake its waiters. */
void memory_lease_wake(struct vgpu_lease_page *page);

#endif /* VGPU_BROKER_MEMORY_H */
