// SPDX-License-Identifier: Apache-2.0
/* Images. */
#include "guest/opencl/image.h"

size_t image_element_bytes(const cl_image_format *format)
{
	size_t channels, bytes;

	switch (format->image_channel_data_type) {
	case CL_UNORM_SHORT_565:
	case CL_UNORM_SHORT_555:
		return format->image_channel_order == CL_RGB || format->image_channel_order == CL_RGBx ? 2 : 0;
	case CL_UNORM_INT_101010:
		return format->image_channel_order == CL_RGB || format->image_channel_order == CL_RGBx ? 4 : 0;
	case CL_UNORM_INT_101010_2:
		return format->image_channel_order == CL_RGBA ? 4 : 0;
	case CL_SNORM_INT8:
	case CL_UNORM_INT8:
	case CL_SIGNED_INT8:
	case CL_UNSIGNED_INT8:
		bytes = 1;
		break;
	case CL_SNORM_INT16:
	case CL_UNORM_INT16:
	case CL_SIGNED_INT16:
	case CL_UNSIGNED_INT16:
	case CL_HALF_FLOAT:
		bytes = 2;
		break;
	case CL_SIGNED_INT32:
	case CL_UNSIGNED_INT32:
	case CL_FLOAT:
		bytes = 4;
		break;
	case CL_UNORM_INT24:
		bytes = 3;
		break;
	default:
		return 0;
	}
	switch (format->image_channel_order) {
	case CL_R:
	case CL_A:
	case CL_INTENSITY:
	case CL_LUMINANCE:
	case CL_Rx:
	case CL_DEPTH:
		channels = 1;
		break;
	case CL_RG:
	case CL_RA:
	case CL_RGx:
		channels = 2;
		break;
	case CL_sRGB:
	case CL_RGB:
		channels = 3;
		break;
	case CL_RGBA:
	case CL_BGRA:
	case CL_ARGB:
	case CL_ABGR:
	case CL_sRGBA:
	case CL_sBGRA:
	case CL_RGBx:
	case CL_sRGBx:
		channels = 4;
		break;
	default:
		return 0;
	}
	return channels * bytes;
}

/*
 * Returns the size in each dimension as commands count it.  The last dimension of an image
 * array is the layer.
 */
static void image_extent(cl_mem image, size_t extent[3])
{
	const cl_image_desc *d = &image->description;

	extent[0] = d->image_width;
	extent[1] = extent[2] = 1;
	switch (image->type) {
	case CL_MEM_OBJECT_IMAGE1D_ARRAY:
		extent[1] = d->image_array_size;
		break;
	case CL_MEM_OBJECT_IMAGE2D:
		extent[1] = d->image_height;
		break;
	case CL_MEM_OBJECT_IMAGE2D_ARRAY:
		extent[1] = d->image_height;
		extent[2] = d->image_array_size;
		break;
	case CL_MEM_OBJECT_IMAGE3D:
		extent[1] = d->image_height;
		extent[2] = d->image_depth;
		break;
	}
}

bool image_region_fits(cl_mem image, const size_t *origin, const size_t *region)
{
	size_t extent[3];

	if (!origin || !region)
		return false;
	image_extent(image, extent);
	for (int i = 0; i < 3; i++)
		if (!region[i] || origin[i] > extent[i] || region[i] > extent[i] - origin[i])
			return false;
	return true;
}

bool image_pitches(cl_mem image, const size_t *region, size_t *row, size_t *slice)
{
	size_t row_bytes = region[0] * image->element_bytes, slice_bytes;
	bool layers = image->type == CL_MEM_OBJECT_IMAGE3D || image->type == CL_MEM_OBJECT_IMAGE2D_ARRAY ||
		      image->type == CL_MEM_OBJECT_IMAGE1D_ARRAY;

	if (!*row)
		*row = row_bytes;
	if (*row < row_bytes || (*slice && !layers))
		return false;
	slice_bytes = image->type == CL_MEM_OBJECT_IMAGE1D_ARRAY ? *row : *row * region[1];
	if (!*slice)
		*slice = slice_bytes;
	return *slice >= slice_bytes;
}

cl_int check_image(cl_command_queue queue, cl_mem memory)
{
	if (!object_check(memory, VGPU_CL_KIND_MEMORY) || memory->type == CL_MEM_OBJECT_BUFFER)
		return CL_INVALID_MEM_OBJECT;
	return memory->context == queue->context ? CL_SUCCESS : CL_INVALID_CONTEXT;
}

/*
 * Fills in omitted members of the description, and checks the parts that the child's library
 * does not see.
 */
static cl_int complete_description(struct _cl_mem *image, const void *host_pointer)
{
	cl_image_desc *d = &image->description;
	size_t rows, dense;

	if (!d->image_width || d->num_mip_levels || d->num_samples)
		return CL_INVALID_IMAGE_DESCRIPTOR;
	switch (image->type) {
	case CL_MEM_OBJECT_IMAGE1D:
	case CL_MEM_OBJECT_IMAGE1D_BUFFER:
		d->image_height = d->image_depth = 0;
		d->image_array_size = 0;
		break;
	case CL_MEM_OBJECT_IMAGE1D_ARRAY:
		d->image_height = d->image_depth = 0;
		if (!d->image_array_size)
			return CL_INVALID_IMAGE_DESCRIPTOR;
		break;
	case CL_MEM_OBJECT_IMAGE2D:
	case CL_MEM_OBJECT_IMAGE2D_ARRAY:
		d->image_depth = 0;
		if (!d->image_height || (image->type == CL_MEM_OBJECT_IMAGE2D_ARRAY && !d->image_array_size))
			return CL_INVALID_IMAGE_DESCRIPTOR;
		if (image->type == CL_MEM_OBJECT_IMAGE2D)
			d->image_array_size = 0;
		break;
	case CL_MEM_OBJECT_IMAGE3D:
		d->image_array_size = 0;
		if (!d->image_height || !d->image_depth)
			return CL_INVALID_IMAGE_DESCRIPTOR;
		break;
	default:
		return CL_INVALID_IMAGE_DESCRIPTOR;
	}
	if (__builtin_mul_overflow(d->image_width, image->element_bytes, &dense))
		return CL_INVALID_IMAGE_SIZE;
	if (!host_pointer && !d->buffer && (d->image_row_pitch || d->image_slice_pitch))
		return CL_INVALID_IMAGE_DESCRIPTOR;
	if (!d->image_row_pitch)
		d->image_row_pitch = dense;
	if (d->image_row_pitch < dense || d->image_row_pitch % image->element_bytes)
		return CL_INVALID_IMAGE_DESCRIPTOR;
	rows = d->image_height ? d->image_height : 1;
	if (__builtin_mul_overflow(d->image_row_pitch, rows, &dense))
		return CL_INVALID_IMAGE_SIZE;
	if (image->type == CL_MEM_OBJECT_IMAGE3D || d->image_array_size) {
		if (!d->image_slice_pitch)
			d->image_slice_pitch = dense;
		if (d->image_slice_pitch < dense || d->image_slice_pitch % d->image_row_pitch)
			return CL_INVALID_IMAGE_DESCRIPTOR;
		rows = d->image_array_size ? d->image_array_size : d->image_depth;
		if (__builtin_mul_overflow(d->image_slice_pitch, rows, &image->bytes))
			return CL_INVALID_IMAGE_SIZE;
	} else {
		if (d->image_slice_pitch && d->image_slice_pitch < dense)
			return CL_INVALID_IMAGE_DESCRIPTOR;
		d->image_slice_pitch = 0;
		image->bytes = dense;
	}
	return CL_SUCCESS;
}

static cl_int send_create(struct _cl_mem *image, const cl_image_desc *given)
{
	struct vgpu_cl_create_image_parts parts;
	struct vgpu_cl_create_image *m;
	const cl_image_desc *d = &image->description;
	struct call call;
	cl_int status;
	void *at = call_begin(&call, vgpu_cl_bytes_of_create_image(0));

	if (!at)
		return call.status;
	m = vgpu_cl_place_create_image(at, 0, &parts);
	m->memory = image->object.handle;
	m->context = image->context->object.handle;
	m->flags = image->flags & CARRIED_FLAGS;
	m->order = image->format.image_channel_order;
	m->type = image->format.image_channel_data_type;
	m->image_type = image->type;
	m->buffer = image->parent ? image->parent->object.handle : 0;
	m->width = d->image_width;
	m->height = d->image_height;
	m->depth = d->image_depth;
	m->array_size = d->image_array_size;
	if (image->parent) {
		m->row_pitch = given->image_row_pitch;
		m->slice_pitch = given->image_slice_pitch;
	}
	m->contents_offset = VGPU_CL_ABSENT;
	status = call_wait(&call, &m->header);
	call_end(&call);
	return status;
}

/* Writes the program's pixels with a command, in pieces if necessary. */
static cl_int write_contents(cl_mem image, const void *contents)
{
	struct transfer transfer = {
		.memory = image, .shape = TRANSFER_IMAGE, .write = true, .unit = image->element_bytes,
		.host = (uint8_t *)contents, .host_row = image->description.image_row_pitch,
		.host_slice = image->description.image_slice_pitch,
	};
	cl_int status;
	cl_command_queue queue = context_copy_queue(image->context, &status);

	image_extent(image, transfer.region);
	if (image->type == CL_MEM_OBJECT_IMAGE1D_ARRAY)
		transfer.host_row = transfer.host_slice;
	if (!status)
		status = transfer_run(&transfer, queue, true, CL_COMMAND_WRITE_IMAGE, 0, NULL, NULL);
	return status ? status : vgpu_clFinish(queue);
}

static cl_int check_arguments(cl_context context, cl_mem_flags flags, const cl_image_format *format,
			      const cl_image_desc *description, const void *host_pointer)
{
	cl_mem parent;
	bool images = false;
	cl_int status;

	if (!object_check(context, VGPU_CL_KIND_CONTEXT))
		return CL_INVALID_CONTEXT;
	/*
	 * CL_MEM_KERNEL_READ_AND_WRITE does not change how an image is created, so it is
	 * accepted.
	 */
	status = check_memory_flags(flags & ~(cl_mem_flags)CL_MEM_KERNEL_READ_AND_WRITE, host_pointer);
	if (status)
		return status;
	if (!format || !image_element_bytes(format))
		return CL_INVALID_IMAGE_FORMAT_DESCRIPTOR;
	if (!description)
		return CL_INVALID_IMAGE_DESCRIPTOR;
	parent = description->buffer;
	if (parent) {
		if (description->image_type != CL_MEM_OBJECT_IMAGE1D_BUFFER &&
		    description->image_type != CL_MEM_OBJECT_IMAGE2D)
			return CL_INVALID_IMAGE_DESCRIPTOR;
		if (!object_check(parent, VGPU_CL_KIND_MEMORY) || parent->context != context)
			return CL_INVALID_IMAGE_DESCRIPTOR;
	} else if (description->image_type == CL_MEM_OBJECT_IMAGE1D_BUFFER) {
		return CL_INVALID_IMAGE_DESCRIPTOR;
	}
	for (cl_uint i = 0; i < context->device_count; i++)
		images |= context->devices[i]->images;
	return images ? CL_SUCCESS : CL_INVALID_OPERATION;
}

API(cl_mem, clCreateImageWithProperties, cl_context context, const cl_mem_properties *properties, cl_mem_flags flags,
    const cl_image_format *format, const cl_image_desc *description, void *host_pointer, cl_int *error)
{
	struct _cl_mem *image = NULL;
	cl_int status = check_arguments(context, flags, format, description, host_pointer);

	if (!status && properties && properties[0])
		status = CL_INVALID_PROPERTY;
	if (!status) {
		if (!(flags & (CL_MEM_READ_WRITE | CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY)))
			flags |= description->buffer ? description->buffer->flags &
						       (CL_MEM_READ_WRITE | CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY) :
						       CL_MEM_READ_WRITE;
		image = memory_new(context, description->buffer, description->image_type, flags);
		status = image ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY;
	}
	if (!status) {
		image->format = *format;
		image->description = *description;
		image->element_bytes = image_element_bytes(format);
		image->host_pointer = flags & CL_MEM_USE_HOST_PTR ? host_pointer : NULL;
		status = complete_description(image, host_pointer);
		if (!status)
			status = send_create(image, description);
		if (!status && host_pointer)
			status = write_contents(image, host_pointer);
		if (!status && properties) {
			image->properties = calloc(1, sizeof(*properties));
			image->properties_bytes = image->properties ? sizeof(*properties) : 0;
		}
		if (status) {
			object_drop(image);
			vgpu_cl_bury();
			image = NULL;
		}
	}
	if (error)
		*error = status;
	return image;
}

API(cl_mem, clCreateImage, cl_context context, cl_mem_flags flags, const cl_image_format *format,
    const cl_image_desc *description, void *host_pointer, cl_int *error)
{
	return vgpu_clCreateImageWithProperties(context, NULL, flags, format, description, host_pointer, error);
}

API(cl_mem, clCreateImage2D, cl_context context, cl_mem_flags flags, const cl_image_format *format, size_t width,
    size_t height, size_t row_pitch, void *host_pointer, cl_int *error)
{
	cl_image_desc description = {
		.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = width, .image_height = height,
		.image_row_pitch = row_pitch,
	};

	return vgpu_clCreateImage(context, flags, format, &description, host_pointer, error);
}

API(cl_mem, clCreateImage3D, cl_context context, cl_mem_flags flags, const cl_image_format *format, size_t width,
    size_t height, size_t depth, size_t row_pitch, size_t slice_pitch, void *host_pointer, cl_int *error)
{
	cl_image_desc description = {
		.image_type = CL_MEM_OBJECT_IMAGE3D, .image_width = width, .image_height = height,
		.image_depth = depth, .image_row_pitch = row_pitch, .image_slice_pitch = slice_pitch,
	};

	return vgpu_clCreateImage(context, flags, format, &description, host_pointer, error);
}

API(cl_int, clGetImageInfo, cl_mem image, cl_image_info param, size_t room, void *target, size_t *returned)
{
	const cl_image_desc *d;

	if (!object_check(image, VGPU_CL_KIND_MEMORY) || image->type == CL_MEM_OBJECT_BUFFER)
		return CL_INVALID_MEM_OBJECT;
	d = &image->description;
	switch (param) {
	case CL_IMAGE_FORMAT:
		GIVE(cl_image_format, image->format);
	case CL_IMAGE_ELEMENT_SIZE:
		GIVE(size_t, image->element_bytes);
	case CL_IMAGE_ROW_PITCH:
		GIVE(size_t, d->image_row_pitch);
	case CL_IMAGE_SLICE_PITCH:
		GIVE(size_t, d->image_slice_pitch);
	case CL_IMAGE_WIDTH:
		GIVE(size_t, d->image_width);
	case CL_IMAGE_HEIGHT:
		GIVE(size_t, d->image_height);
	case CL_IMAGE_DEPTH:
		GIVE(size_t, d->image_depth);
	case CL_IMAGE_ARRAY_SIZE:
		GIVE(size_t, d->image_array_size);
	case CL_IMAGE_BUFFER:
		GIVE(cl_mem, image->parent);
	case CL_IMAGE_NUM_MIP_LEVELS:
		GIVE(cl_uint, 0);
	case CL_IMAGE_NUM_SAMPLES:
		GIVE(cl_uint, 0);
	}
	return CL_INVALID_VALUE;
}

API(cl_int, clGetSupportedImageFormats, cl_context context, cl_mem_flags flags, cl_mem_object_type type, cl_uint count,
    cl_image_format *formats, cl_uint *returned)
{
	struct vgpu_cl_get_image_formats_answer_view view;
	struct vgpu_cl_get_image_formats_parts parts;
	struct call call;
	cl_int status;
	void *at;

	if (!object_check(context, VGPU_CL_KIND_CONTEXT))
		return CL_INVALID_CONTEXT;
	if (!count && formats)
		return CL_INVALID_VALUE;
	at = call_begin(&call, vgpu_cl_bytes_of_get_image_formats());
	if (!at)
		return call.status;
	vgpu_cl_place_get_image_formats(at, &parts);
	parts.message->context = context->object.handle;
	parts.message->image_type = type;
	parts.message->flags = flags;
	status = call_wait(&call, &parts.message->header);
	if (!status && !(call.message && vgpu_cl_decode_get_image_formats_answer(call.message, call.bytes, 0, &view)))
		status = CL_OUT_OF_RESOURCES;
	for (uint32_t i = 0; !status && formats && i < view.message->format_count && i < count; i++) {
		formats[i].image_channel_order = view.formats[i].order;
		formats[i].image_channel_data_type = view.formats[i].type;
	}
	if (!status && returned)
		*returned = view.message->format_count;
	call_end(&call);
	return status;
}
