/* SPDX-License-Identifier: Apache-2.0 */
/* Memory objects, transfers to and from them, and mappings. */
#ifndef VGPU_GUEST_MEMORY_H
#define VGPU_GUEST_MEMORY_H

#include "guest/opencl/context.h"

/*
 * The cl_mem_flags that are passed to the child's library.  This library checks the host's access itself.  The child's
 * library must not restrict it, because it sees our own copies of contents as reads and writes by the host.
 */
#define CARRIED_FLAGS (CL_MEM_READ_WRITE | CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY)
#define HOST_ACCESS_FLAGS (CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS)
#define HOST_POINTER_FLAGS (CL_MEM_USE_HOST_PTR | CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR)

/* Checks flags and host pointer of a new buffer or image. */
cl_int check_memory_flags(cl_mem_flags flags, const void *host_pointer);

/* Check a buffer or an image that a command on @queue names. */
cl_int check_buffer(cl_command_queue queue, cl_mem memory);
cl_int check_image(cl_command_queue queue, cl_mem memory);

/*
 * Returns whether all devices of the context compute in the host's memory, so that data in that memory need no
 * transfer.
 */
bool context_computes_in_place(cl_context context);

/* Creates a memory object that the child does not know yet.  The object holds its context and its parent. */
struct _cl_mem *memory_new(cl_context context, cl_mem parent, cl_mem_object_type type, cl_mem_flags flags);

/**
 * struct transfer - a rectangle to be moved between memory and the program
 * @origin: position of the rectangle in the memory, in the units of @region
 * @region: size of the rectangle: bytes or pixels, rows, slices
 * @unit: bytes of one step in the first dimension
 * @row_pitch, @slice_pitch: pitches in the memory, for TRANSFER_RECT
 * @host: the rectangle's first byte in this process
 * @host_row, @host_slice: pitches at @host, in bytes
 */
struct transfer {
	cl_mem memory;
	enum { TRANSFER_BUFFER, TRANSFER_RECT, TRANSFER_IMAGE } shape;
	bool write;
	size_t origin[3], region[3];
	size_t unit;
	size_t row_pitch, slice_pitch;
	uint8_t *host;
	size_t host_row, host_slice;
};

/**
 * transfer_run() - does a whole transfer as a command; queue and wait list have been checked
 * @blocking: whether a read waits until the data have arrived; a write always copies its data before this function
 *	returns
 * @type: command type of the event
 */
cl_int transfer_run(const struct transfer *transfer, cl_command_queue queue, bool blocking, cl_command_type type,
		    cl_uint count, const cl_event *waits, cl_event *event);

/*
 * A transfer from or to a dense copy that is in the bulk area already.  With @free_bulk, @bulk is freed when the
 * transfer ends.
 */
cl_int transfer_in_place(const struct transfer *transfer, struct vgpu_bulk *bulk, bool free_bulk,
			 cl_command_queue queue, cl_command_type type, cl_uint count, const cl_event *waits,
			 cl_event *event);

/* Transfers through the child's memory, for callers that must not wait for room in the bulk area; see held.c. */
cl_int held_write(const struct transfer *transfer, cl_command_queue queue, cl_command_type type, cl_uint count,
		  const cl_event *waits, cl_event *event);
cl_int held_read(const struct transfer *transfer, cl_command_queue queue, cl_command_type type, cl_uint count,
		 const cl_event *waits, cl_event *event);

/* Sends UNMAP, which also releases the child's handle. */
cl_int send_unmap(uint32_t handle, struct command *command);

static inline uint64_t region_bytes(const struct transfer *transfer)
{
	return (uint64_t)transfer->region[0] * transfer->unit * transfer->region[1] * transfer->region[2];
}

#endif /* VGPU_GUEST_MEMORY_H */
