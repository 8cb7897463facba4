/* SPDX-License-Identifier: Apache-2.0 */
/* Memory objects, transfers to and from them, and mappings. */
#ifndef VGPU_GUEST_MEMORY_H
#define VGPU_GUEST_MEMORY_H

#include "guest/opencl/context.h"

/*
 * What of cl_mem_flags the child's library is told.  What the program may do from its side is checked here; our own copies
 * of contents, which are reads and writes to the library, must not be refused there.
 */
#define CARRIED_FLAGS (CL_MEM_READ_WRITE | CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY)
#define HOST_ACCESS_FLAGS (CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS)
#define HOST_POINTER_FLAGS (CL_MEM_USE_HOST_PTR | CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR)

/* Checks flags and host pointer of a new buffer or image. */
cl_int check_memory_flags(cl_mem_flags flags, const void *host_pointer);

/* Checks a buffer (or an image) that a command on @queue names. */
cl_int check_buffer(cl_command_queue queue, cl_mem memory);
cl_int check_image(cl_command_queue queue, cl_mem memory);

/* Whether all devices of the context compute in the host's memory: what is there needs no transfer. */
bool context_computes_in_place(cl_context context);

/* A new memory object without the child's knowledge; holds its context and parent. */
struct _cl_mem *memory_new(cl_context context, cl_mem parent, cl_mem_object_type type, cl_mem_flags flags);

/**
 * struct transfer - a rectangle on its way between memory and the program
 * @origin: in the memory, and
 * @region: of the rectangle: bytes or pixels, rows, slices
 * @unit: bytes of one step in the first dimension
 * @row_pitch: of the memory, if it is a buffer that is used as a rectangle
 * @host: where the rectangle's first byte is in this process
 * @host_row, @host_slice: pitches there, in bytes
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
 * transfer_run() - a whole command for a transfer; queue and wait list have been checked
 * @blocking: for a read, wait until the data are there; a write always copies them first
 * @type: of the event
 */
cl_int transfer_run(const struct transfer *transfer, cl_command_queue queue, bool blocking, cl_command_type type,
		    cl_uint count, const cl_event *waits, cl_event *event);

/* A transfer whose other side is a dense copy in the bulk area already; *@bulk is freed at its end if @free_bulk. */
cl_int transfer_in_place(const struct transfer *transfer, struct vgpu_bulk *bulk, bool free_bulk,
			 cl_command_queue queue, cl_command_type type, cl_uint count, const cl_event *waits,
			 cl_event *event);

/* Transfers by way of the child's memory, for what must not wait for room; see held.c. */
cl_int held_write(const struct transfer *transfer, cl_command_queue queue, cl_command_type type, cl_uint count,
		  const cl_event *waits, cl_event *event);
cl_int held_read(const struct transfer *transfer, cl_command_queue queue, cl_command_type type, cl_uint count,
		 const cl_event *waits, cl_event *event);

/* Sends UNMAP, and with it gives the child's handle up. */
cl_int send_unmap(uint32_t handle, struct command *command);

static inline uint64_t region_bytes(const struct transfer *transfer)
{
	return (uint64_t)transfer->region[0] * transfer->unit * transfer->region[1] * transfer->region[2];
}

#endif /* VGPU_GUEST_MEMORY_H */
