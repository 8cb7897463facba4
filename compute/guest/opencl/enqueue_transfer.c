// SPDX-License-Identifier: Apache-2.0
/* Reads and writes of buffers, of rectangles in buffers, and of images. */
#include "guest/opencl/image.h"

/* Checks whether the host may read or write the memory. */
static cl_int check_host_access(cl_mem memory, bool write)
{
	cl_mem_flags denied = CL_MEM_HOST_NO_ACCESS | (write ? CL_MEM_HOST_READ_ONLY : CL_MEM_HOST_WRITE_ONLY);

	return memory->flags & denied ? CL_INVALID_OPERATION : CL_SUCCESS;
}

static cl_int linear(cl_command_queue queue, cl_mem memory, bool write, bool blocking, size_t offset, size_t bytes,
		     void *host, cl_uint count, const cl_event *waits, cl_event *event)
{
	struct transfer transfer = {
		.memory = memory, .write = write, .origin = { offset, 0, 0 }, .region = { bytes, 1, 1 }, .unit = 1,
		.host = host, .host_row = bytes, .host_slice = bytes,
	};
	cl_int status = check_command(queue, count, waits);

	if (!status)
		status = check_buffer(queue, memory);
	if (status)
		return status;
	if (!host || !bytes || offset > memory->bytes || bytes > memory->bytes - offset)
		return CL_INVALID_VALUE;
	status = check_host_access(memory, write);
	return status ? status : transfer_run(&transfer, queue, blocking,
					      write ? CL_COMMAND_WRITE_BUFFER : CL_COMMAND_READ_BUFFER, count, waits,
					      event);
}

API(cl_int, clEnqueueReadBuffer, cl_command_queue queue, cl_mem memory, cl_bool blocking, size_t offset, size_t bytes,
    void *host, cl_uint count, const cl_event *waits, cl_event *event)
{
	return linear(queue, memory, false, blocking, offset, bytes, host, count, waits, event);
}

API(cl_int, clEnqueueWriteBuffer, cl_command_queue queue, cl_mem memory, cl_bool blocking, size_t offset, size_t bytes,
    const void *host, cl_uint count, const cl_event *waits, cl_event *event)
{
	return linear(queue, memory, true, blocking, offset, bytes, (void *)host, count, waits, event);
}

bool rect_pitches(const size_t *region, size_t *row, size_t *slice)
{
	uint64_t smallest;

	if (!*row)
		*row = region[0];
	if (*row < region[0] || __builtin_mul_overflow(*row, region[1], &smallest))
		return false;
	if (!*slice)
		*slice = smallest;
	return *slice >= smallest && *slice % *row == 0;
}

bool rect_end(const size_t *origin, const size_t *region, size_t row, size_t slice, size_t *end)
{
	size_t z, y, x;

	if (__builtin_add_overflow(origin[2], region[2] - 1, &z) || __builtin_mul_overflow(z, slice, &z) ||
	    __builtin_add_overflow(origin[1], region[1] - 1, &y) || __builtin_mul_overflow(y, row, &y) ||
	    __builtin_add_overflow(origin[0], region[0], &x) || __builtin_add_overflow(x, y, &x))
		return false;
	return !__builtin_add_overflow(x, z, end);
}

static cl_int rect(cl_command_queue queue, cl_mem memory, bool write, bool blocking, const size_t *origin,
		   const size_t *host_origin, const size_t *region, size_t row, size_t slice, size_t host_row,
		   size_t host_slice, void *host, cl_uint count, const cl_event *waits, cl_event *event)
{
	struct transfer transfer = { .memory = memory, .shape = TRANSFER_RECT, .write = write, .unit = 1 };
	cl_int status = check_command(queue, count, waits);
	size_t end;

	if (!status)
		status = check_buffer(queue, memory);
	if (status)
		return status;
	if (!origin || !host_origin || !region || !host || !region[0] || !region[1] || !region[2])
		return CL_INVALID_VALUE;
	if (!rect_pitches(region, &row, &slice) || !rect_pitches(region, &host_row, &host_slice) ||
	    !rect_end(host_origin, region, host_row, host_slice, &end) ||
	    !rect_end(origin, region, row, slice, &end) || end > memory->bytes)
		return CL_INVALID_VALUE;
	status = check_host_access(memory, write);
	if (status)
		return status;
	memcpy(transfer.origin, origin, sizeof(transfer.origin));
	memcpy(transfer.region, region, sizeof(transfer.region));
	transfer.row_pitch = row;
	transfer.slice_pitch = slice;
	transfer.host = (uint8_t *)host + host_origin[2] * host_slice + host_origin[1] * host_row + host_origin[0];
	transfer.host_row = host_row;
	transfer.host_slice = host_slice;
	return transfer_run(&transfer, queue, blocking,
			    write ? CL_COMMAND_WRITE_BUFFER_RECT : CL_COMMAND_READ_BUFFER_RECT, count, waits, event);
}

API(cl_int, clEnqueueReadBufferRect, cl_command_queue queue, cl_mem memory, cl_bool blocking, const size_t *origin,
    const size_t *host_origin, const size_t *region, size_t row, size_t slice, size_t host_row, size_t host_slice,
    void *host, cl_uint count, const cl_event *waits, cl_event *event)
{
	return rect(queue, memory, false, blocking, origin, host_origin, region, row, slice, host_row, host_slice,
		    host, count, waits, event);
}

API(cl_int, clEnqueueWriteBufferRect, cl_command_queue queue, cl_mem memory, cl_bool blocking, const size_t *origin,
    const size_t *host_origin, const size_t *region, size_t row, size_t slice, size_t host_row, size_t host_slice,
    const void *host, cl_uint count, const cl_event *waits, cl_event *event)
{
	return rect(queue, memory, true, blocking, origin, host_origin, region, row, slice, host_row, host_slice,
		    (void *)host, count, waits, event);
}

static cl_int image(cl_command_queue queue, cl_mem memory, bool write, bool blocking, const size_t *origin,
		    const size_t *region, size_t row, size_t slice, void *host, cl_uint count, const cl_event *waits,
		    cl_event *event)
{
	struct transfer transfer = { .memory = memory, .shape = TRANSFER_IMAGE, .write = write };
	cl_int status = check_command(queue, count, waits);

	if (!status)
		status = check_image(queue, memory);
	if (status)
		return status;
	if (!host || !image_region_fits(memory, origin, region) || !image_pitches(memory, region, &row, &slice))
		return CL_INVALID_VALUE;
	status = check_host_access(memory, write);
	if (status)
		return status;
	memcpy(transfer.origin, origin, sizeof(transfer.origin));
	memcpy(transfer.region, region, sizeof(transfer.region));
	transfer.unit = memory->element_bytes;
	transfer.host = host;
	transfer.host_row = row;
	transfer.host_slice = slice;
	if (memory->type == CL_MEM_OBJECT_IMAGE1D_ARRAY)	/* each row is a slice */
		transfer.host_row = slice;
	return transfer_run(&transfer, queue, blocking, write ? CL_COMMAND_WRITE_IMAGE : CL_COMMAND_READ_IMAGE, count,
			    waits, event);
}

API(cl_int, clEnqueueReadImage, cl_command_queue queue, cl_mem memory, cl_bool blocking, const size_t *origin,
    const size_t *region, size_t row, size_t slice, void *host, cl_uint count, const cl_event *waits, cl_event *event)
{
	return image(queue, memory, false, blocking, origin, region, row, slice, host, count, waits, event);
}

API(cl_int, clEnqueueWriteImage, cl_command_queue queue, cl_mem memory, cl_bool blocking, const size_t *origin,
    const size_t *region, size_t row, size_t slice, const void *host, cl_uint count, const cl_event *waits,
    cl_event *event)
{
	return image(queue, memory, true, blocking, origin, region, row, slice, (void *)host, count, waits, event);
}
