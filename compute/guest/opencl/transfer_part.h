/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of transfers: what one command moves. */
#ifndef VGPU_GUEST_TRANSFER_PART_H
#define VGPU_GUEST_TRANSFER_PART_H

#include "guest/opencl/memory.h"

/* Part of the region, relative to its origin. */
struct part {
	size_t origin[3], region[3];
};

/* The whole of a transfer as one part. */
static inline struct part part_whole(const struct transfer *t)
{
	return (struct part){ { 0, 0, 0 }, { t->region[0], t->region[1], t->region[2] } };
}

/* Copies a part between the program and a dense copy. */
void part_copy(const struct transfer *t, const struct part *part, uint8_t *dense, bool to_program);

/* Takes the next part of at most @most bytes off the region; @at counts what has been taken. */
void part_next(const struct transfer *t, size_t at[3], uint64_t most, struct part *part);

/*
 * Sends the command of one part.  Its other side is in the bulk area; a write with @bulk NULL has it in the message, and
 * its data have been copied when this returns.
 */
cl_int part_send(struct command *command, const struct transfer *t, const struct part *part,
		 const struct vgpu_bulk *bulk);

/*
 * A blocking transfer that this thread does alone: from or to storage in the window that the accelerator uses in place,
 * when nothing of the queue is under way.  False if it cannot be done so.
 */
bool transfer_here(const struct transfer *t, cl_command_queue queue, cl_command_type type, cl_uint count,
		   const cl_event *waits, cl_event *event);

/* The same, after a clFinish(): one round trip.  False also if the queue has commands that it does not wait for. */
bool transfer_finished(const struct transfer *t, cl_command_queue queue, cl_command_type type, cl_uint count,
		       const cl_event *waits, cl_event *event);

/* A blocking transfer from or to storage in the window, which is mapped for it. */
cl_int transfer_direct(const struct transfer *t, cl_command_queue queue, cl_command_type type, cl_uint count,
		       const cl_event *waits, cl_event *event);

/* What a blocking call returns for a command that has failed. */
cl_int blocking_status(cl_int status, cl_uint count, const cl_event *waits);

#endif /* VGPU_GUEST_TRANSFER_PART_H */
