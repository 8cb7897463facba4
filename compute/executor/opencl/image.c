/* SPDX-License-Identifier: Apache-2.0 */
/* Images, which count against the slice's accelerator memory, and their formats. */
#include <string.h>

#include "memory.h"

/*
 * Computes the size of an image of this description without padding.  Return: false if it is
 * invalid or too large.
 */
static bool image_bytes(const struct vgpu_cl_create_image *m, uint64_t element_bytes,
			uint64_t *row_bytes, uint64_t *rows, uint64_t *slices)
{
	uint64_t all;

	*rows = 1;
	*slices = 1;
	switch (m->image_type) {
	case CL_MEM_OBJECT_IMAGE1D:
	case CL_MEM_OBJECT_IMAGE1D_BUFFER:
		break;
	case CL_MEM_OBJECT_IMAGE1D_ARRAY:
		*slices = m->array_size;
		break;
	case CL_MEM_OBJECT_IMAGE2D:
		*rows = m->height;
		break;
	case CL_MEM_OBJECT_IMAGE2D_ARRAY:
		*rows = m->height;
		*slices = m->array_size;
		break;
	case CL_MEM_OBJECT_IMAGE3D:
		*rows = m->height;
		*slices = m->depth;
		break;
	default:
		return false;
	}
	return !__builtin_mul_overflow(m->width, element_bytes, row_bytes) &&
	       !__builtin_mul_overflow(*row_bytes, *rows, &all) &&
	       !__builtin_mul_overflow(all, *slices, &all) && all <= INT64_MAX;
}

static uint64_t channels(uint32_t order)
{
	switch (order) {
	case CL_R:
	case CL_A:
	case CL_Rx:
	case CL_INTENSITY:
	case CL_LUMINANCE:
	case CL_DEPTH:
		return 1;
	case CL_RG:
	case CL_RA:
	case CL_RGx:
		return 2;
	case CL_RGB:
	case CL_RGBx:
	case CL_sRGB:
		return 3;
	default:
		return 4;
	}
}

/* Return: maximum size of a pixel, which the accounting needs before the image exists. */
static uint64_t element_bytes(uint32_t order, uint32_t type)
{
	switch (type) {
	case CL_SNORM_INT8:
	case CL_UNORM_INT8:
	case CL_SIGNED_INT8:
	case CL_UNSIGNED_INT8:
		return channels(order);
	case CL_UNORM_SHORT_565:
	case CL_UNORM_SHORT_555:
		return 2;
	case CL_UNORM_INT_101010:
		return 4;
	case CL_SNORM_INT16:
	case CL_UNORM_INT16:
	case CL_SIGNED_INT16:
	case CL_UNSIGNED_INT16:
	case CL_HALF_FLOAT:
		return 2 * channels(order);
	default:
		return 4 * channels(order);
	}
}

/*
 * Checks that the contents are as long as the library will read.  The library's image has the same
 * pitches as its contents, so @needed is also the size that the library allocates.
 */
static cl_int check_contents(const struct vgpu_cl_create_image *m, uint64_t row_bytes,
			     uint64_t rows, uint64_t slices, uint64_t *needed)
{
	uint64_t row_pitch = m->row_pitch ? m->row_pitch : row_bytes;
	uint64_t slice_pitch;

	if (row_pitch < row_bytes)
		return CL_INVALID_IMAGE_DESCRIPTOR;
	if (__builtin_mul_overflow(row_pitch, rows, &slice_pitch))
		return CL_INVALID_IMAGE_DESCRIPTOR;
	if (m->slice_pitch && m->slice_pitch < slice_pitch)
		return CL_INVALID_IMAGE_DESCRIPTOR;
	slice_pitch = m->slice_pitch ? m->slice_pitch : slice_pitch;
	if (__builtin_mul_overflow(slice_pitch, slices, needed))
		return CL_INVALID_IMAGE_DESCRIPTOR;
	return m->contents_bytes < *needed ? CL_INVALID_HOST_PTR : CL_SUCCESS;
}

static cl_int make_image(struct vgpu_backend *backend, const struct vgpu_cl_create_image *m,
			 const uint8_t *inline_contents, struct memory *memory)
{
	void *contents = opencl_blob(backend, m->contents_offset, inline_contents);
	cl_image_format format = { m->order, m->type };
	cl_image_desc description = {
		.image_type = m->image_type,
		.image_width = m->width,
		.image_height = m->height,
		.image_depth = m->depth,
		.image_array_size = m->array_size,
		.image_row_pitch = m->row_pitch,
		.image_slice_pitch = m->slice_pitch,
		.num_mip_levels = m->mip_levels,
		.num_samples = m->samples,
	};
	cl_mem_flags flags = m->flags & OPENCL_MEMORY_FLAGS;
	uint64_t row_bytes, rows, slices, needed, pitched;
	struct context *context;
	struct memory *buffer = NULL;
	size_t size;
	cl_int error;

	context = opencl_use(backend, VGPU_CL_KIND_CONTEXT, m->context, &error);
	if (!error)
		error = opencl_check_memory_flags(m->flags);
	if (!error && m->buffer)
		buffer = opencl_use(backend, VGPU_CL_KIND_MEMORY, m->buffer, &error);
	if (error)
		return error;
	memory->context = opencl_ref(context);
	if (m->mip_levels || m->samples ||
	    !image_bytes(m, element_bytes(m->order, m->type), &row_bytes, &rows, &slices))
		return CL_INVALID_IMAGE_DESCRIPTOR;
	if (buffer && (buffer->image || contents ||
		       (m->image_type != CL_MEM_OBJECT_IMAGE1D_BUFFER &&
			m->image_type != CL_MEM_OBJECT_IMAGE2D)))
		return CL_INVALID_IMAGE_DESCRIPTOR;
	if (buffer && (m->row_pitch > buffer->bytes || row_bytes * rows > buffer->bytes ||
		       __builtin_mul_overflow(m->row_pitch, rows, &pitched) ||
		       pitched > buffer->bytes))
		return CL_INVALID_IMAGE_SIZE;
	if (!buffer && m->image_type == CL_MEM_OBJECT_IMAGE1D_BUFFER)
		return CL_INVALID_IMAGE_DESCRIPTOR;
	needed = row_bytes * rows * slices;
	if (contents)
		error = check_contents(m, row_bytes, rows, slices, &needed);
	if (error)
		return error;
	if (buffer) {
		memory->parent = opencl_ref(buffer);
		description.buffer = buffer->library;
	} else if (opencl_reserve(backend, needed)) {
		memory->reserved_bytes = needed;
	} else {
		return CL_MEM_OBJECT_ALLOCATION_FAILURE;
	}
	if (contents)
		flags |= CL_MEM_COPY_HOST_PTR;
	else if (!buffer)
		description.image_row_pitch = description.image_slice_pitch = 0;
	memory->image = true;
	memory->type = m->image_type;
	memory->library = backend->library->clCreateImage(context->library, flags, &format,
							  &description, contents, &error);
	if (error)
		return error;
	error = backend->library->clGetImageInfo(memory->library, CL_IMAGE_ELEMENT_SIZE,
						 sizeof(size), &size, NULL);
	memory->element_bytes = size;
	return error;
}

bool opencl_create_image(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	struct vgpu_cl_create_image_view view;
	struct memory *memory;
	cl_int error = CL_OUT_OF_HOST_MEMORY;

	if (!vgpu_cl_decode_create_image(message, message->bytes, backend->bulk_bytes, &view))
		return false;
	memory = opencl_new(backend, VGPU_CL_KIND_MEMORY, sizeof(*memory), opencl_destroy_memory);
	if (memory)
		error = make_image(backend, view.message, view.contents, memory);
	if (error == CL_MEM_OBJECT_ALLOCATION_FAILURE && opencl_stall(backend)) {
		opencl_unref(backend, memory);
		return true;
	}
	opencl_created(backend, message, VGPU_CL_KIND_MEMORY, view.message->memory, memory, error);
	return true;
}

bool opencl_get_image_formats(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	struct vgpu_cl_get_image_formats_view view;
	struct vgpu_cl_get_image_formats_answer_parts parts;
	cl_image_format formats[512];
	struct context *context;
	cl_uint count = 0;
	cl_int error;

	if (!vgpu_cl_decode_get_image_formats(message, message->bytes, backend->bulk_bytes, &view))
		return false;
	context = opencl_use(backend, VGPU_CL_KIND_CONTEXT, view.message->context, &error);
	if (context)
		error = backend->library->clGetSupportedImageFormats(
			context->library, view.message->flags, view.message->image_type, 512,
			formats, &count);
	if (error)
		count = 0;
	if (count > 512)
		count = 512;
	vgpu_cl_place_get_image_formats_answer(backend->answer, count, &parts);
	for (cl_uint i = 0; i < count; i++) {
		parts.formats[i].order = formats[i].image_channel_order;
		parts.formats[i].type = formats[i].image_channel_data_type;
	}
	opencl_answer_placed(backend, message, error);
	return true;
}
