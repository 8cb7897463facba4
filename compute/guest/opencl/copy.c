// SPDX-License-Identifier: Apache-2.0
/* Copies, fills and migrations: commands that transfer no data through the window. */
#include "guest/opencl/image.h"

/* The common steps of a command whose arguments have been checked. */
#define SEND_COMMAND(name, type, fill, ...) \
	do { \
		struct vgpu_cl_##name##_parts parts; \
		struct vgpu_cl_##name *m; \
		struct command command; \
		cl_int error_ = command_begin(&command, queue, type, count, waits, event); \
		void *at_; \
\
		if (error_) \
			return error_; \
		at_ = vgpu_send_begin((uint32_t)vgpu_cl_bytes_of_##name(command.wait_count, ##__VA_ARGS__)); \
		if (!at_) \
			return command_fail(&command, LOST); \
		m = vgpu_cl_place_##name(at_, command.wait_count, ##__VA_ARGS__, &parts); \
		fill \
		if (!command_fill(&command, m, parts.waits)) { \
			vgpu_send_cancel(); \
			return command_fail(&command, CL_OUT_OF_RESOURCES); \
		} \
		vgpu_send_commit(); \
		return command_sent(&command, event); \
	} while (0)

static bool overlap(size_t a, size_t b, size_t bytes)
{
	return a < b ? b - a < bytes : a - b < bytes;
}

/* Do two buffers share storage?  Sub-buffers share that of their parents. */
static bool same_storage(cl_mem a, cl_mem b)
{
	return (a->parent ? a->parent : a) == (b->parent ? b->parent : b);
}

API(cl_int, clEnqueueCopyBuffer, cl_command_queue queue, cl_mem source, cl_mem target, size_t source_offset,
    size_t target_offset, size_t bytes, cl_uint count, const cl_event *waits, cl_event *event)
{
	cl_int status = check_command(queue, count, waits);

	if (!status)
		status = check_buffer(queue, source);
	if (!status)
		status = check_buffer(queue, target);
	if (status)
		return status;
	if (!bytes || source_offset > source->bytes || bytes > source->bytes - source_offset ||
	    target_offset > target->bytes || bytes > target->bytes - target_offset)
		return CL_INVALID_VALUE;
	if (same_storage(source, target) &&
	    overlap(source->origin + source_offset, target->origin + target_offset, bytes))
		return CL_MEM_COPY_OVERLAP;
	SEND_COMMAND(copy_buffer, CL_COMMAND_COPY_BUFFER, {
		m->source = source->object.handle;
		m->target = target->object.handle;
		m->source_offset = source_offset;
		m->target_offset = target_offset;
		m->bytes = bytes;
	});
}

/*
 * The overlap test for rectangles of one buffer, from the appendix of the OpenCL specification.
 */
static bool rects_overlap(const size_t *source, const size_t *target, const size_t *region, size_t row, size_t slice)
{
	const size_t slice_size = (region[1] - 1) * row + region[0];
	const size_t block_size = (region[2] - 1) * slice + slice_size;
	const size_t source_start = source[2] * slice + source[1] * row + source[0];
	const size_t target_start = target[2] * slice + target[1] * row + target[0];
	const size_t delta_source_x = source[0] + region[0] > row ? source[0] + region[0] - row : 0;
	const size_t delta_target_x = target[0] + region[0] > row ? target[0] + region[0] - row : 0;
	bool all = true;

	for (int i = 0; i < 3; i++)
		all &= source[i] < target[i] + region[i] && target[i] < source[i] + region[i];
	if (all)
		return true;
	if ((delta_source_x > target[0] && delta_source_x > 0) || (delta_target_x > source[0] && delta_target_x > 0))
		if (source_start < target_start + block_size && target_start < source_start + block_size)
			return true;
	return false;
}

API(cl_int, clEnqueueCopyBufferRect, cl_command_queue queue, cl_mem source, cl_mem target, const size_t *source_origin,
    const size_t *target_origin, const size_t *region, size_t source_row, size_t source_slice, size_t target_row,
    size_t target_slice, cl_uint count, const cl_event *waits, cl_event *event)
{
	cl_int status = check_command(queue, count, waits);
	size_t source_end, target_end;

	if (!status)
		status = check_buffer(queue, source);
	if (!status)
		status = check_buffer(queue, target);
	if (status)
		return status;
	if (!source_origin || !target_origin || !region || !region[0] || !region[1] || !region[2] ||
	    !rect_pitches(region, &source_row, &source_slice) || !rect_pitches(region, &target_row, &target_slice) ||
	    !rect_end(source_origin, region, source_row, source_slice, &source_end) || source_end > source->bytes ||
	    !rect_end(target_origin, region, target_row, target_slice, &target_end) || target_end > target->bytes)
		return CL_INVALID_VALUE;
	if (source == target) {
		if (source_row != target_row || source_slice != target_slice)
			return CL_INVALID_VALUE;
		if (rects_overlap(source_origin, target_origin, region, source_row, source_slice))
			return CL_MEM_COPY_OVERLAP;
	}
	SEND_COMMAND(copy_buffer_rect, CL_COMMAND_COPY_BUFFER_RECT, {
		m->source = source->object.handle;
		m->target = target->object.handle;
		memcpy(m->source_origin, source_origin, sizeof(m->source_origin));
		memcpy(m->target_origin, target_origin, sizeof(m->target_origin));
		memcpy(m->region, region, sizeof(m->region));
		m->source_row_pitch = source_row;
		m->source_slice_pitch = source_slice;
		m->target_row_pitch = target_row;
		m->target_slice_pitch = target_slice;
	});
}

API(cl_int, clEnqueueFillBuffer, cl_command_queue queue, cl_mem memory, const void *pattern, size_t pattern_bytes,
    size_t offset, size_t bytes, cl_uint count, const cl_event *waits, cl_event *event)
{
	cl_int status = check_command(queue, count, waits);

	if (!status)
		status = check_buffer(queue, memory);
	if (status)
		return status;
	if (!pattern || !pattern_bytes || pattern_bytes > VGPU_CL_PATTERN_MAX ||
	    (pattern_bytes & (pattern_bytes - 1)) || offset % pattern_bytes || bytes % pattern_bytes ||
	    !bytes || offset > memory->bytes || bytes > memory->bytes - offset)
		return CL_INVALID_VALUE;
	SEND_COMMAND(fill_buffer, CL_COMMAND_FILL_BUFFER, {
		m->memory = memory->object.handle;
		m->offset = offset;
		m->bytes = bytes;
		memcpy(parts.pattern, pattern, pattern_bytes);
	}, pattern_bytes);
}

API(cl_int, clEnqueueCopyImage, cl_command_queue queue, cl_mem source, cl_mem target, const size_t *source_origin,
    const size_t *target_origin, const size_t *region, cl_uint count, const cl_event *waits, cl_event *event)
{
	cl_int status = check_command(queue, count, waits);
	bool apart = false;

	if (!status)
		status = check_image(queue, source);
	if (!status)
		status = check_image(queue, target);
	if (status)
		return status;
	if (memcmp(&source->format, &target->format, sizeof(source->format)))
		return CL_IMAGE_FORMAT_MISMATCH;
	if (!image_region_fits(source, source_origin, region) || !image_region_fits(target, target_origin, region))
		return CL_INVALID_VALUE;
	for (int i = 0; i < 3; i++)
		apart |= !overlap(source_origin[i], target_origin[i], region[i]);
	if (source == target && !apart)
		return CL_MEM_COPY_OVERLAP;
	SEND_COMMAND(copy_image, CL_COMMAND_COPY_IMAGE, {
		m->source = source->object.handle;
		m->target = target->object.handle;
		memcpy(m->source_origin, source_origin, sizeof(m->source_origin));
		memcpy(m->target_origin, target_origin, sizeof(m->target_origin));
		memcpy(m->region, region, sizeof(m->region));
	});
}

/* Does the data of an image region fit into a buffer after an offset? */
static bool buffer_holds(cl_mem buffer, size_t offset, cl_mem image, const size_t *region)
{
	size_t bytes;

	return !__builtin_mul_overflow(region[0] * region[1], region[2] * image->element_bytes, &bytes) &&
	       offset <= buffer->bytes && bytes <= buffer->bytes - offset;
}

API(cl_int, clEnqueueCopyImageToBuffer, cl_command_queue queue, cl_mem image, cl_mem buffer, const size_t *origin,
    const size_t *region, size_t offset, cl_uint count, const cl_event *waits, cl_event *event)
{
	cl_int status = check_command(queue, count, waits);

	if (!status)
		status = check_image(queue, image);
	if (!status)
		status = check_buffer(queue, buffer);
	if (status)
		return status;
	if (!image_region_fits(image, origin, region) || !buffer_holds(buffer, offset, image, region))
		return CL_INVALID_VALUE;
	SEND_COMMAND(copy_image_to_buffer, CL_COMMAND_COPY_IMAGE_TO_BUFFER, {
		m->source = image->object.handle;
		m->target = buffer->object.handle;
		memcpy(m->origin, origin, sizeof(m->origin));
		memcpy(m->region, region, sizeof(m->region));
		m->offset = offset;
	});
}

API(cl_int, clEnqueueCopyBufferToImage, cl_command_queue queue, cl_mem buffer, cl_mem image, size_t offset,
    const size_t *origin, const size_t *region, cl_uint count, const cl_event *waits, cl_event *event)
{
	cl_int status = check_command(queue, count, waits);

	if (!status)
		status = check_buffer(queue, buffer);
	if (!status)
		status = check_image(queue, image);
	if (status)
		return status;
	if (!image_region_fits(image, origin, region) || !buffer_holds(buffer, offset, image, region))
		return CL_INVALID_VALUE;
	SEND_COMMAND(copy_buffer_to_image, CL_COMMAND_COPY_BUFFER_TO_IMAGE, {
		m->source = buffer->object.handle;
		m->target = image->object.handle;
		memcpy(m->origin, origin, sizeof(m->origin));
		memcpy(m->region, region, sizeof(m->region));
		m->offset = offset;
	});
}

API(cl_int, clEnqueueFillImage, cl_command_queue queue, cl_mem image, const void *color, const size_t *origin,
    const size_t *region, cl_uint count, const cl_event *waits, cl_event *event)
{
	cl_int status = check_command(queue, count, waits);

	if (!status)
		status = check_image(queue, image);
	if (status)
		return status;
	if (!color || !image_region_fits(image, origin, region))
		return CL_INVALID_VALUE;
	SEND_COMMAND(fill_image, CL_COMMAND_FILL_IMAGE, {
		m->memory = image->object.handle;
		/*
		 * The colour is one float for a depth image, and four numbers of four bytes for
		 * any other.
		 */
		memcpy(m->color, color, image->format.image_channel_order == CL_DEPTH ? 4 : sizeof(m->color));
		memcpy(m->origin, origin, sizeof(m->origin));
		memcpy(m->region, region, sizeof(m->region));
	});
}

API(cl_int, clEnqueueMigrateMemObjects, cl_command_queue queue, cl_uint memory_count, const cl_mem *memories,
    cl_mem_migration_flags flags, cl_uint count, const cl_event *waits, cl_event *event)
{
	cl_int status = check_command(queue, count, waits);

	if (status)
		return status;
	if (!memory_count || !memories ||
	    (flags & ~(cl_mem_migration_flags)(CL_MIGRATE_MEM_OBJECT_HOST | CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED)))
		return CL_INVALID_VALUE;
	for (cl_uint i = 0; i < memory_count; i++) {
		if (!object_check(memories[i], VGPU_CL_KIND_MEMORY))
			return CL_INVALID_MEM_OBJECT;
		if (memories[i]->context != queue->context)
			return CL_INVALID_CONTEXT;
	}
	if (memory_count > 1024)
		return CL_OUT_OF_RESOURCES;
	SEND_COMMAND(migrate, CL_COMMAND_MIGRATE_MEM_OBJECTS, {
		m->flags = flags;
		for (cl_uint i = 0; i < memory_count; i++)
			parts.memories[i] = memories[i]->object.handle;
	}, memory_count);
}
