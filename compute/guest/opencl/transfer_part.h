/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of transfers: the data that one command moves. */
#ifndef VGPU_GUEST_TRANSFER_PART_H
#define VGPU_GUEST_TRANSFER_PART_H

#include "guest/opencl/memory.h"

/* A part of the region, relative to its origin. */
struct part {
	size_t origin[3], region[3];
};

/* Returns the whole of a transfer as one part. */
static inline struct part part_whole(const struct transfer *t)
{
	return (struct part){ { 0, 0, 0 }, { t->region[0], t->region[1], t->region[2] } };
}

/* Copies a part between the program and a dense copy. */
void part_copy(const struct transfer *t, const struct part *part, uint8_t *dense, bool to_program);

/* Takes the next part of at most @most bytes off the region.  @at is the progress so far. */
void part_next(const struct transfer *t, size_t at[3], uint64_t most, struct part *part);

/*
 * Sends the command of one part.  The part's data are in @bulk.  If @bulk is NULL, the data of a write are copied into
 * the message before this function returns.
 */
cl_int part_send(struct command *command, const struct transfer *t, const struct part *part,
		 const struct vgpu_bulk *bulk);

/*
 * Does a blocking transfer in this thread alone, without a command.  This is possible only if the accelerator uses the
 * storage in the window in place, and the queue is idle.  Otherwise returns false.
 */
bool transfer_here(const struct transfer *t, cl_command_queue queue, cl_command_type type, cl_uint count,
		   const cl_event *waits, cl_event *event);

/*
 * Does the same as transfer_here(), but first waits until the queue is idle, which costs one round trip.  Also returns
 * false if the queue may have commands that the transfer must not wait for.
 */
bool transfer_finished(const struct transfer *t, cl_command_queue queue, cl_command_type type, cl_uint count,
		       const cl_event *waits, cl_event *event);

/* Does a blocking transfer from or to storage in the window, mapping it for the copy. */
cl_int transfer_direct(const struct transfer *t, cl_command_queue queue, cl_command_type type, cl_uint count,
		       const cl_event *waits, cl_event *event);

/* Returns the result of a blocking call for a failed command. */
cl_int blocking_status(cl_int status, cl_uint count, const cl_event *waits);

#endif /* VGPU_GUEST_TRANSFER_PART_H */
