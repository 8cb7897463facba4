/* SPDX-License-Identifier: Apache-2.0 */
/* Gives all commands except launches to the library; resolve.c has checked them. */
#include <string.h>

#include "backend_private.h"

static cl_mem memory_of(const struct command *command, unsigned int at)
{
	return ((struct memory *)command->objects[at])->library;
}

static cl_int give_buffer(const cl_icd_dispatch *library, struct command *command,
			  const struct call_waits *waits)
{
	cl_command_queue queue = command->queue->library;

	switch (command->op) {
	case VGPU_CL_READ_BUFFER: {
		const struct vgpu_cl_read_buffer *m = (const void *)command->message;

		return library->clEnqueueReadBuffer(queue, memory_of(command, 0), CL_FALSE,
						    m->offset, m->target_bytes, command->payload,
						    waits->count, waits->list, waits->event);
	}
	case VGPU_CL_WRITE_BUFFER: {
		const struct vgpu_cl_write_buffer *m = (const void *)command->message;

		return library->clEnqueueWriteBuffer(queue, memory_of(command, 0), CL_FALSE,
						     m->offset, m->source_bytes, command->payload,
						     waits->count, waits->list, waits->event);
	}
	case VGPU_CL_COPY_BUFFER: {
		const struct vgpu_cl_copy_buffer *m = (const void *)command->message;

		return library->clEnqueueCopyBuffer(queue, memory_of(command, 0),
						    memory_of(command, 1), m->source_offset,
						    m->target_offset, m->bytes, waits->count,
						    waits->list, waits->event);
	}
	case VGPU_CL_FILL_BUFFER: {
		const struct vgpu_cl_fill_buffer *m = (const void *)command->message;

		return library->clEnqueueFillBuffer(queue, memory_of(command, 0), command->payload,
						    m->pattern_bytes, m->offset, m->bytes,
						    waits->count, waits->list, waits->event);
	}
	}
	return CL_INVALID_OPERATION;
}

/*
 * Return: the buffer that contains the storage of @memory; adds the start of @memory in that buffer
 * to *offset.  The buffer replaces a sub-buffer because PoCL 3.1 dereferences a null pointer if it
 * has to copy between a sub-buffer and an image, or a rectangle of a sub-buffer.
 */
static cl_mem storage_of(const struct memory *memory, size_t *offset)
{
	*offset += memory->origin;
	return memory->parent ? memory->parent->library : memory->library;
}

/*
 * Two sub-buffers of one buffer count as the same buffer here, for which the API requires equal
 * pitches.
 */
static cl_int copy_rectangle(const cl_icd_dispatch *library, struct command *command,
			     const struct call_waits *waits)
{
	const struct vgpu_cl_copy_buffer_rect *m = (const void *)command->message;
	size_t source_origin[3], target_origin[3];
	cl_mem source, target;

	memcpy(source_origin, m->source_origin, sizeof(source_origin));
	memcpy(target_origin, m->target_origin, sizeof(target_origin));
	source = storage_of((struct memory *)command->objects[0], &source_origin[0]);
	target = storage_of((struct memory *)command->objects[1], &target_origin[0]);
	return library->clEnqueueCopyBufferRect(
		command->queue->library, source, target, source_origin, target_origin,
		(const size_t *)m->region, m->source_row_pitch, m->source_slice_pitch,
		m->target_row_pitch, m->target_slice_pitch, waits->count, waits->list, waits->event);
}

static cl_int give_rectangle(const cl_icd_dispatch *library, struct command *command,
			     const struct call_waits *waits)
{
	static const size_t origin[3];
	cl_command_queue queue = command->queue->library;

	switch (command->op) {
	case VGPU_CL_READ_BUFFER_RECT: {
		const struct vgpu_cl_read_buffer_rect *m = (const void *)command->message;

		return library->clEnqueueReadBufferRect(
			queue, memory_of(command, 0), CL_FALSE, (const size_t *)m->origin, origin,
			(const size_t *)m->region, m->row_pitch, m->slice_pitch, 0, 0,
			command->payload, waits->count, waits->list, waits->event);
	}
	case VGPU_CL_WRITE_BUFFER_RECT: {
		const struct vgpu_cl_write_buffer_rect *m = (const void *)command->message;

		return library->clEnqueueWriteBufferRect(
			queue, memory_of(command, 0), CL_FALSE, (const size_t *)m->origin, origin,
			(const size_t *)m->region, m->row_pitch, m->slice_pitch, 0, 0,
			command->payload, waits->count, waits->list, waits->event);
	}
	case VGPU_CL_COPY_BUFFER_RECT:
		return copy_rectangle(library, command, waits);
	}
	return CL_INVALID_OPERATION;
}

static cl_int give_image(const cl_icd_dispatch *library, struct command *command,
			 const struct call_waits *waits)
{
	cl_command_queue queue = command->queue->library;

	switch (command->op) {
	case VGPU_CL_READ_IMAGE: {
		const struct vgpu_cl_read_image *m = (const void *)command->message;

		return library->clEnqueueReadImage(queue, memory_of(command, 0), CL_FALSE,
						   (const size_t *)m->origin,
						   (const size_t *)m->region, 0, 0,
						   command->payload, waits->count, waits->list,
						   waits->event);
	}
	case VGPU_CL_WRITE_IMAGE: {
		const struct vgpu_cl_write_image *m = (const void *)command->message;

		return library->clEnqueueWriteImage(queue, memory_of(command, 0), CL_FALSE,
						    (const size_t *)m->origin,
						    (const size_t *)m->region, 0, 0,
						    command->payload, waits->count, waits->list,
						    waits->event);
	}
	case VGPU_CL_COPY_IMAGE: {
		const struct vgpu_cl_copy_image *m = (const void *)command->message;

		return library->clEnqueueCopyImage(queue, memory_of(command, 0),
						   memory_of(command, 1),
						   (const size_t *)m->source_origin,
						   (const size_t *)m->target_origin,
						   (const size_t *)m->region, waits->count,
						   waits->list, waits->event);
	}
	case VGPU_CL_COPY_IMAGE_TO_BUFFER: {
		const struct vgpu_cl_copy_image_to_buffer *m = (const void *)command->message;
		size_t offset = m->offset;
		cl_mem target = storage_of((struct memory *)command->objects[1], &offset);

		return library->clEnqueueCopyImageToBuffer(
			queue, memory_of(command, 0), target,
			(const size_t *)m->origin, (const size_t *)m->region, offset,
			waits->count, waits->list, waits->event);
	}
	case VGPU_CL_COPY_BUFFER_TO_IMAGE: {
		const struct vgpu_cl_copy_buffer_to_image *m = (const void *)command->message;
		size_t offset = m->offset;
		cl_mem source = storage_of((struct memory *)command->objects[0], &offset);

		return library->clEnqueueCopyBufferToImage(
			queue, source, memory_of(command, 1), offset,
			(const size_t *)m->origin, (const size_t *)m->region, waits->count,
			waits->list, waits->event);
	}
	case VGPU_CL_FILL_IMAGE: {
		const struct vgpu_cl_fill_image *m = (const void *)command->message;

		return library->clEnqueueFillImage(queue, memory_of(command, 0), m->color,
						   (const size_t *)m->origin,
						   (const size_t *)m->region, waits->count,
						   waits->list, waits->event);
	}
	}
	return CL_INVALID_OPERATION;
}

static cl_int give_map(const cl_icd_dispatch *library, struct command *command,
		       const struct call_waits *waits)
{
	const struct vgpu_cl_map_buffer *m = (const void *)command->message;
	struct mapping *mapping = (struct mapping *)command->objects[1];
	cl_int error;

	mapping->pointer = library->clEnqueueMapBuffer(
		command->queue->library, memory_of(command, 0), CL_FALSE, m->flags, m->offset,
		m->bytes, waits->count, waits->list, waits->event, &error);
	return error;
}

static cl_int give_unmap(const cl_icd_dispatch *library, struct command *command,
			 const struct call_waits *waits)
{
	struct mapping *mapping = (struct mapping *)command->objects[1];
	void *pointer = mapping->pointer;

	if (!pointer)
		return CL_INVALID_VALUE;
	mapping->pointer = NULL;
	return library->clEnqueueUnmapMemObject(command->queue->library, mapping->memory->library,
						pointer, waits->count, waits->list, waits->event);
}

static cl_int give_migrate(const cl_icd_dispatch *library, struct command *command,
			   const struct call_waits *waits)
{
	const struct vgpu_cl_migrate *m = (const void *)command->message;
	cl_mem list[1024];

	for (uint32_t i = 0; i < m->memory_count; i++)
		list[i] = memory_of(command, i);
	return library->clEnqueueMigrateMemObjects(command->queue->library, m->memory_count, list,
						   m->flags, waits->count, waits->list,
						   waits->event);
}

cl_int opencl_give_transfer(struct vgpu_backend *backend, struct command *command,
			    const struct call_waits *waits)
{
	const cl_icd_dispatch *library = backend->library;
	cl_command_queue queue = command->queue->library;

	switch (command->op) {
	case VGPU_CL_READ_BUFFER:
	case VGPU_CL_WRITE_BUFFER:
	case VGPU_CL_COPY_BUFFER:
	case VGPU_CL_FILL_BUFFER:
		return give_buffer(library, command, waits);
	case VGPU_CL_READ_BUFFER_RECT:
	case VGPU_CL_WRITE_BUFFER_RECT:
	case VGPU_CL_COPY_BUFFER_RECT:
		return give_rectangle(library, command, waits);
	case VGPU_CL_MAP_BUFFER:
		return give_map(library, command, waits);
	case VGPU_CL_UNMAP:
		return give_unmap(library, command, waits);
	case VGPU_CL_MIGRATE:
		return give_migrate(library, command, waits);
	case VGPU_CL_BARRIER:
		return library->clEnqueueBarrierWithWaitList(queue, waits->count, waits->list,
							     waits->event);
	case VGPU_CL_MARKER:
	case VGPU_CL_FINISH:
		return library->clEnqueueMarkerWithWaitList(queue, waits->count, waits->list,
							    waits->event);
	}
	return give_image(library, command, waits);
}
