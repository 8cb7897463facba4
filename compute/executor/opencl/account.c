/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slice's accelerator memory.  All children of a slice share its limit, which the supervisor
 * enforces.  Each request to the supervisor takes a round trip.  So the child reserves more than it
 * needs, and keeps a part of the memory that it does not need any more.
 */
#include "backend_private.h"

#define CHUNK_BYTES	(4ull << 20)
#define KEPT_BYTES_MAX	(16ull << 20)

/* Limited, so that the slice's other children do not run out of memory for long. */
static uint64_t kept_bytes(const struct vgpu_backend *backend)
{
	return backend->memory_bytes / 16 < KEPT_BYTES_MAX ? backend->memory_bytes / 16 :
							      KEPT_BYTES_MAX;
}

bool opencl_reserve(struct vgpu_backend *backend, uint64_t bytes)
{
	struct vgpu_child_services *services = &backend->services;
	uint64_t unused = backend->held_bytes - backend->used_bytes;
	uint64_t missing, rounded;

	if (bytes > backend->memory_bytes)
		return false;
	if (bytes > unused) {
		missing = bytes - unused;
		rounded = (missing + CHUNK_BYTES - 1) / CHUNK_BYTES * CHUNK_BYTES;
		if (!services->reserve(services->child, rounded))
			backend->held_bytes += rounded;
		else if (!services->reserve(services->child, missing))
			backend->held_bytes += missing;
		else
			return false;
	}
	backend->used_bytes += bytes;
	return true;
}

void opencl_free_reserved(struct vgpu_backend *backend, uint64_t bytes)
{
	struct vgpu_child_services *services = &backend->services;
	uint64_t unused;

	backend->used_bytes -= bytes;
	unused = backend->held_bytes - backend->used_bytes;
	if (unused > kept_bytes(backend) || (!backend->used_bytes && unused)) {
		backend->held_bytes -= unused;
		services->release(services->child, unused);
	}
}

bool opencl_stall(struct vgpu_backend *backend)
{
	backend->stall = backend->released_bytes && !backend->quiet &&
			 (backend->under_way || backend->ready_first);
	return backend->stall;
}
