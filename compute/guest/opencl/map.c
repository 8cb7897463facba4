// SPDX-License-Identifier: Apache-2.0
/*
 * Mappings.  Memory with storage in the window is mapped in place.  For other memory the
 * program gets a copy.  If there is room, the copy is in the bulk area, where the child reads
 * and writes it in place; otherwise it is in this process.  The copy of CL_MEM_USE_HOST_PTR
 * memory is in the program's own memory.  Unmapping writes the copy back if it may have
 * changed.
 */
#include "guest/opencl/image.h"

/* Copies of mappings leave this much of the bulk area free for other uses. */
#define KEEP_FREE (vgpu_bulk_total() / 4)

static const cl_map_flags writing = CL_MAP_WRITE | CL_MAP_WRITE_INVALIDATE_REGION;

static cl_int check_flags(cl_mem memory, cl_map_flags flags)
{
	if ((flags & ~(cl_map_flags)(CL_MAP_READ | writing)) ||
	    ((flags & CL_MAP_WRITE_INVALIDATE_REGION) && (flags & (CL_MAP_READ | CL_MAP_WRITE))))
		return CL_INVALID_VALUE;
	if ((flags & CL_MAP_READ && memory->flags & (CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS)) ||
	    (flags & writing && memory->flags & (CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS)))
		return CL_INVALID_OPERATION;
	return CL_SUCCESS;
}

/* Returns the transfer between the memory and the mapping's copy. */
static struct transfer transfer_of(cl_mem memory, const struct mapping *mapping, bool write)
{
	struct transfer transfer = {
		.memory = memory, .write = write, .unit = 1, .host = mapping->address,
		.host_row = mapping->row_pitch, .host_slice = mapping->slice_pitch,
	};

	memcpy(transfer.origin, mapping->origin, sizeof(transfer.origin));
	memcpy(transfer.region, mapping->region, sizeof(transfer.region));
	if (memory->type != CL_MEM_OBJECT_BUFFER) {
		transfer.shape = TRANSFER_IMAGE;
		transfer.unit = memory->element_bytes;
		if (memory->type == CL_MEM_OBJECT_IMAGE1D_ARRAY)
			transfer.host_row = mapping->slice_pitch;
	}
	return transfer;
}

/*
 * Allocates memory for a copy, or reuses the memory of an earlier mapping if it is large
 * enough.
 */
static bool take_heap(cl_mem memory, struct mapping *mapping, uint64_t bytes)
{
	pthread_mutex_lock(&memory->lock);
	if (memory->spare_bytes >= bytes) {
		mapping->heap = memory->spare;
		mapping->heap_bytes = memory->spare_bytes;
		memory->spare = NULL;
		memory->spare_bytes = 0;
	}
	pthread_mutex_unlock(&memory->lock);
	if (mapping->heap)
		return true;
	mapping->heap_bytes = bytes;
	return posix_memalign(&mapping->heap, 4096, bytes) == 0;
}

/* Keeps the memory of an ended mapping for the next one. */
static void keep_heap(cl_mem memory, struct mapping *mapping)
{
	void *other;

	pthread_mutex_lock(&memory->lock);
	other = memory->spare;
	memory->spare = mapping->heap;
	memory->spare_bytes = mapping->heap_bytes;
	pthread_mutex_unlock(&memory->lock);
	mapping->heap = NULL;
	free(other);
}

/*
 * Finds room for a mapping's copy.  The caller has set the mapping's pitches and, for
 * CL_MEM_USE_HOST_PTR, its address.
 */
static cl_int place_copy(cl_mem memory, struct mapping *mapping, uint64_t bytes)
{
	if (mapping->address)
		return CL_SUCCESS;
	mapping->bulk = vgpu_bulk_allocate(bytes, KEEP_FREE);
	if (mapping->bulk) {
		mapping->address = vgpu_bulk_address(mapping->bulk->offset);
		return CL_SUCCESS;
	}
	if (!take_heap(memory, mapping, bytes))
		return CL_MAP_FAILURE;
	mapping->address = mapping->heap;
	return CL_SUCCESS;
}

static void mapping_free(struct mapping *mapping)
{
	vgpu_bulk_free(mapping->bulk);
	free(mapping->heap);
	mapping_handle_free(mapping->handle);
	free(mapping);
}

/* Sends the commands that fill the copy. */
static cl_int fill_copy(cl_command_queue queue, cl_mem memory, struct mapping *mapping, bool blocking,
			cl_command_type type, cl_uint count, const cl_event *waits, cl_event *event)
{
	struct transfer transfer = transfer_of(memory, mapping, false);
	cl_event own = NULL;
	cl_int status;

	if (mapping->flags & CL_MAP_WRITE_INVALIDATE_REGION)
		status = command_plain(VGPU_CL_MARKER, queue, type, count, waits, blocking ? &own : event);
	else if (!mapping->bulk)
		return transfer_run(&transfer, queue, blocking, type, count, waits, event);
	else
		status = transfer_in_place(&transfer, mapping->bulk, false, queue, type, count, waits,
					   blocking ? &own : event);
	if (status || !blocking)
		return status;
	status = event_wait(own);
	if (event && !status)
		*event = own;
	else
		vgpu_clReleaseEvent(own);
	return status;
}

/* Sends MAP_BUFFER for storage in the window. */
static cl_int map_stored(cl_command_queue queue, cl_mem memory, struct mapping *mapping, bool blocking, cl_uint count,
			 const cl_event *waits, cl_event *event)
{
	struct vgpu_cl_map_buffer_parts parts;
	struct command command;
	cl_event own = NULL;
	cl_int status;
	void *at;

	mapping->handle = mapping_handle_new();
	if (!mapping->handle)
		return CL_OUT_OF_HOST_MEMORY;
	status = command_begin(&command, queue, CL_COMMAND_MAP_BUFFER, count, waits, blocking ? &own : event);
	if (status)
		return status;
	at = vgpu_send_begin((uint32_t)vgpu_cl_bytes_of_map_buffer(command.wait_count));
	if (!at)
		return command_fail(&command, LOST);
	vgpu_cl_place_map_buffer(at, command.wait_count, &parts);
	parts.message->memory = memory->object.handle;
	parts.message->mapping = mapping->handle;
	parts.message->flags = mapping->flags;
	parts.message->offset = mapping->origin[0];
	parts.message->bytes = mapping->region[0];
	if (!command_fill(&command, parts.message, parts.waits)) {
		vgpu_send_cancel();
		return command_fail(&command, CL_OUT_OF_RESOURCES);
	}
	vgpu_send_commit();
	command_sent(&command, blocking ? &own : event);
	if (!blocking)
		return CL_SUCCESS;
	status = event_wait(own);
	if (event && !status)
		*event = own;
	else
		vgpu_clReleaseEvent(own);
	return status;
}

static void remember(cl_mem memory, struct mapping *mapping)
{
	pthread_mutex_lock(&memory->lock);
	mapping->next = memory->mappings;
	memory->mappings = mapping;
	memory->map_count++;
	pthread_mutex_unlock(&memory->lock);
}

API(void *, clEnqueueMapBuffer, cl_command_queue queue, cl_mem memory, cl_bool blocking, cl_map_flags flags,
    size_t offset, size_t bytes, cl_uint count, const cl_event *waits, cl_event *event, cl_int *error)
{
	cl_int status = check_command(queue, count, waits);
	struct mapping *mapping = NULL;
	void *address = NULL;

	if (!status)
		status = check_buffer(queue, memory);
	if (!status && (!bytes || offset > memory->bytes || bytes > memory->bytes - offset))
		status = CL_INVALID_VALUE;
	if (!status)
		status = check_flags(memory, flags);
	if (!status && !(mapping = calloc(1, sizeof(*mapping))))
		status = CL_OUT_OF_HOST_MEMORY;
	if (!status) {
		mapping->flags = flags;
		mapping->origin[0] = offset;
		mapping->region[0] = bytes;
		mapping->region[1] = mapping->region[2] = 1;
		mapping->row_pitch = mapping->slice_pitch = bytes;
		if (memory->stored) {
			mapping->address = vgpu_bulk_address(memory->stored_offset + offset);
			status = map_stored(queue, memory, mapping, blocking, count, waits, event);
		} else {
			if (memory->host_pointer)
				mapping->address = (uint8_t *)memory->host_pointer + offset;
			status = place_copy(memory, mapping, bytes);
			if (!status)
				status = fill_copy(queue, memory, mapping, blocking, CL_COMMAND_MAP_BUFFER, count,
						   waits, event);
		}
		if (status) {
			mapping_free(mapping);
		} else {
			address = mapping->address;
			remember(memory, mapping);
		}
	}
	if (error)
		*error = status;
	return address;
}

API(void *, clEnqueueMapImage, cl_command_queue queue, cl_mem memory, cl_bool blocking, cl_map_flags flags,
    const size_t *origin, const size_t *region, size_t *row_pitch, size_t *slice_pitch, cl_uint count,
    const cl_event *waits, cl_event *event, cl_int *error)
{
	cl_int status = check_command(queue, count, waits);
	struct mapping *mapping = NULL;
	void *address = NULL;
	bool layers;

	if (!status)
		status = check_image(queue, memory);
	if (!status) {
		layers = memory->type == CL_MEM_OBJECT_IMAGE3D || memory->type == CL_MEM_OBJECT_IMAGE2D_ARRAY ||
			 memory->type == CL_MEM_OBJECT_IMAGE1D_ARRAY;
		if (!row_pitch || (layers && !slice_pitch) || !image_region_fits(memory, origin, region))
			status = CL_INVALID_VALUE;
	}
	if (!status)
		status = check_flags(memory, flags);
	if (!status && !(mapping = calloc(1, sizeof(*mapping))))
		status = CL_OUT_OF_HOST_MEMORY;
	if (!status) {
		mapping->flags = flags;
		memcpy(mapping->origin, origin, sizeof(mapping->origin));
		memcpy(mapping->region, region, sizeof(mapping->region));
		if (memory->host_pointer) {
			size_t row = memory->description.image_row_pitch, slice = memory->description.image_slice_pitch;
			bool rows = memory->type == CL_MEM_OBJECT_IMAGE1D_ARRAY;

			mapping->row_pitch = row;
			mapping->slice_pitch = slice ? slice : row * region[1];
			mapping->address = (uint8_t *)memory->host_pointer + origin[0] * memory->element_bytes +
					   origin[1] * (rows ? slice : row) + origin[2] * slice;
		} else {
			image_pitches(memory, region, &mapping->row_pitch, &mapping->slice_pitch);
		}
		status = place_copy(memory, mapping, region[0] * memory->element_bytes * region[1] * region[2]);
		if (!status)
			status = fill_copy(queue, memory, mapping, blocking, CL_COMMAND_MAP_IMAGE, count, waits, event);
		if (status) {
			mapping_free(mapping);
		} else {
			address = mapping->address;
			*row_pitch = mapping->row_pitch;
			if (slice_pitch)
				*slice_pitch = layers ? mapping->slice_pitch : 0;
			remember(memory, mapping);
		}
	}
	if (error)
		*error = status;
	return address;
}

static struct mapping *forget(cl_mem memory, const void *address)
{
	struct mapping **at, *found;

	pthread_mutex_lock(&memory->lock);
	for (at = &memory->mappings; *at && (*at)->address != address;)
		at = &(*at)->next;
	found = *at;
	if (found) {
		*at = found->next;
		memory->map_count--;
	}
	pthread_mutex_unlock(&memory->lock);
	return found;
}

static cl_int unmap_stored(cl_command_queue queue, struct mapping *mapping, cl_uint count, const cl_event *waits,
			   cl_event *event)
{
	struct command command;
	cl_int status = command_begin(&command, queue, CL_COMMAND_UNMAP_MEM_OBJECT, count, waits, event);

	if (status)
		return status;
	status = send_unmap(mapping->handle, &command);
	return status ? command_fail(&command, status) : command_sent(&command, event);
}

API(cl_int, clEnqueueUnmapMemObject, cl_command_queue queue, cl_mem memory, void *address, cl_uint count,
    const cl_event *waits, cl_event *event)
{
	const cl_command_type type = CL_COMMAND_UNMAP_MEM_OBJECT;
	cl_int status = check_command(queue, count, waits);
	struct mapping *mapping;
	struct transfer transfer;

	if (status)
		return status;
	if (!object_check(memory, VGPU_CL_KIND_MEMORY))
		return CL_INVALID_MEM_OBJECT;
	if (memory->context != queue->context)
		return CL_INVALID_CONTEXT;
	mapping = address ? forget(memory, address) : NULL;
	if (!mapping)
		return CL_INVALID_VALUE;
	transfer = transfer_of(memory, mapping, true);
	if (mapping->handle) {
		status = unmap_stored(queue, mapping, count, waits, event);
	} else if (!(mapping->flags & writing)) {
		status = command_plain(VGPU_CL_MARKER, queue, type, count, waits, event);
	} else if (mapping->bulk) {
		status = transfer_in_place(&transfer, mapping->bulk, true, queue, type, count, waits, event);
		if (!status)
			mapping->bulk = NULL;	/* the transfer frees it */
	} else {
		/* transfer_run() copies the data before it returns. */
		status = transfer_run(&transfer, queue, false, type, count, waits, event);
	}
	if (mapping->heap)
		keep_heap(memory, mapping);
	mapping_free(mapping);
	return status;
}
