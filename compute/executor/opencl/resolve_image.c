/* SPDX-License-Identifier: Apache-2.0 */
/* Checks commands on images when they arrive: see resolve.c. */
#include "resolve.h"

static bool resolve_read_image(struct vgpu_backend *backend, struct command *command,
			       const uint32_t **waits, cl_int *error)
{
	struct memory *memory;
	uint64_t bytes;

	DECODE(read_image);
	command->payload = opencl_pointer(backend, m->target_offset, NULL);
	memory = opencl_use_memory(backend, command, 0, m->memory, true, error);
	if (memory && (!opencl_product(m->region, memory->element_bytes, &bytes) || !bytes ||
		       bytes != m->target_bytes))
		*error = CL_INVALID_VALUE;
	opencl_expect_copy(backend, command, m->target_bytes);
	return true;
}

static bool resolve_write_image(struct vgpu_backend *backend, struct command *command,
				const uint32_t **waits, cl_int *error)
{
	struct memory *memory;
	uint64_t bytes;

	DECODE(write_image);
	command->payload = opencl_pointer(backend, m->source_offset, view.source);
	memory = opencl_use_memory(backend, command, 0, m->memory, true, error);
	if (memory && (!opencl_product(m->region, memory->element_bytes, &bytes) || !bytes ||
		       bytes != m->source_bytes))
		*error = CL_INVALID_VALUE;
	opencl_expect_copy(backend, command, m->source_bytes);
	return true;
}

static bool resolve_copy_image(struct vgpu_backend *backend, struct command *command,
			       const uint32_t **waits, cl_int *error)
{
	struct memory *source;
	uint64_t bytes = 0;

	DECODE(copy_image);
	source = opencl_use_memory(backend, command, 0, m->source, true, error);
	if (source && opencl_use_memory(backend, command, 1, m->target, true, error) &&
	    (!opencl_product(m->region, source->element_bytes, &bytes) || !bytes))
		*error = CL_INVALID_VALUE;
	opencl_expect_copy(backend, command, bytes);
	return true;
}

static bool resolve_copy_image_to_buffer(struct vgpu_backend *backend, struct command *command,
					 const uint32_t **waits, cl_int *error)
{
	struct memory *source, *target = NULL;
	uint64_t bytes = 0;

	DECODE(copy_image_to_buffer);
	source = opencl_use_memory(backend, command, 0, m->source, true, error);
	if (source)
		target = opencl_use_memory(backend, command, 1, m->target, false, error);
	if (target && (!opencl_product(m->region, source->element_bytes, &bytes) || !bytes ||
		       !opencl_within(target, m->offset, bytes)))
		*error = CL_INVALID_VALUE;
	opencl_expect_copy(backend, command, bytes);
	return true;
}

static bool resolve_copy_buffer_to_image(struct vgpu_backend *backend, struct command *command,
					 const uint32_t **waits, cl_int *error)
{
	struct memory *source, *target = NULL;
	uint64_t bytes = 0;

	DECODE(copy_buffer_to_image);
	source = opencl_use_memory(backend, command, 0, m->source, false, error);
	if (source)
		target = opencl_use_memory(backend, command, 1, m->target, true, error);
	if (target && (!opencl_product(m->region, target->element_bytes, &bytes) || !bytes ||
		       !opencl_within(source, m->offset, bytes)))
		*error = CL_INVALID_VALUE;
	opencl_expect_copy(backend, command, bytes);
	return true;
}

static bool resolve_fill_image(struct vgpu_backend *backend, struct command *command,
			       const uint32_t **waits, cl_int *error)
{
	struct memory *memory;
	uint64_t bytes = 0;

	DECODE(fill_image);
	memory = opencl_use_memory(backend, command, 0, m->memory, true, error);
	if (memory && (!opencl_product(m->region, memory->element_bytes, &bytes) || !bytes))
		*error = CL_INVALID_VALUE;
	opencl_expect_copy(backend, command, bytes);
	return true;
}

bool opencl_resolve_image(struct vgpu_backend *backend, struct command *command,
			  const uint32_t **waits, cl_int *error)
{
	switch (command->op) {
	case VGPU_CL_READ_IMAGE:
		return resolve_read_image(backend, command, waits, error);
	case VGPU_CL_WRITE_IMAGE:
		return resolve_write_image(backend, command, waits, error);
	case VGPU_CL_COPY_IMAGE:
		return resolve_copy_image(backend, command, waits, error);
	case VGPU_CL_COPY_IMAGE_TO_BUFFER:
		return resolve_copy_image_to_buffer(backend, command, waits, error);
	case VGPU_CL_COPY_BUFFER_TO_IMAGE:
		return resolve_copy_buffer_to_image(backend, command, waits, error);
	case VGPU_CL_FILL_IMAGE:
		return resolve_fill_image(backend, command, waits, error);
	}
	return false;
}
