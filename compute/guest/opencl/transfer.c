// SPDX-License-Identifier: Apache-2.0
/*
 * Transfers between memory and the program.
 *
 * The child reads and writes data in the bulk area, without gaps between rows; small writes are in the message.  A
 * transfer of more than PIECE_BYTES is split into pieces, one command each, so that the child and this thread copy at
 * the same time.  On an out-of-order queue each piece waits for the one before it.
 *
 * For the program, a write is done when its data have been copied.  The data of a non-blocking read are copied to the
 * program by the thread that handles its completion, before the event appears complete.
 */
#include "guest/opencl/transfer_part.h"

#define PIECE_BYTES (1u << 20)
#define PIECES_AT_ONCE 6u	/* of a blocking read: the data of more would not stay in the caches */
#define PIECE_BYTES_MIN (64u << 10)
#define WRITE_INLINE_MAX (8u << 10)
/*
 * From these sizes on, blocking transfers use storage in the window directly.  A read waits for the child in any case.
 * A staged write would not have to wait, so the limit for writes is higher.
 */
#define DIRECT_READ_MIN (32u << 10)
#define DIRECT_WRITE_MIN (2u << 20)

/**
 * struct job - a transfer in progress
 * @left: number of pieces that are not complete, plus one for the sending thread
 * @status: the first error of a piece
 * @event: the program's event, which ends with the last piece, or NULL
 * @blocking: the sending thread waits for @done and frees the job
 */
struct job {
	struct transfer transfer;
	cl_command_queue queue;
	struct _cl_event *event;
	bool blocking;
	atomic_uint left;
	atomic_int status;
	atomic_bool done;
	cl_ulong times[4];	/* the first piece's times, but the last piece's end; used in handlers only */
};

struct piece {
	struct vgpu_pending pending;
	struct job *job;
	struct part part;
	struct vgpu_bulk *bulk;	/* NULL: the data of the write were in the message */
};

/* Number of pieces in the bulk area, in the whole process. */
static atomic_uint staged;

static void job_drop(struct job *job)
{
	bool blocking = job->blocking;

	if (atomic_fetch_sub(&job->left, 1) != 1)
		return;
	if (job->event) {
		event_finish(job->event, job->status, job->times);
		object_drop(job->event);
	}
	object_drop(job->transfer.memory);
	if (!blocking)
		free(job);
	else
		atomic_store(&job->done, true);
}

static bool piece_reply(struct vgpu_pending *pending, const struct vgpu_message *message, uint32_t bytes)
{
	struct piece *piece = (struct piece *)pending;
	struct job *job = piece->job;
	cl_ulong times[4];
	cl_int status = completion_status(message, bytes, times);

	if (status) {
		cl_int none = CL_SUCCESS;

		atomic_compare_exchange_strong(&job->status, &none, status);
	} else {
		if (!job->times[3])
			memcpy(job->times, times, sizeof(job->times));
		job->times[3] = times[3];
		if (!job->transfer.write)
			part_copy(&job->transfer, &piece->part, vgpu_bulk_address(piece->bulk->offset), true);
	}
	if (piece->bulk) {
		vgpu_bulk_free(piece->bulk);
		atomic_fetch_sub(&staged, 1);
	}
	free(piece);
	job_drop(job);
	return true;
}

struct space_wait {
	uint32_t freed;
};

static bool space_changed(void *argument)
{
	return vgpu_bulk_freed() != ((struct space_wait *)argument)->freed || !atomic_load(&staged);
}

/*
 * Finds room for a piece.  Allocates less than @bytes if necessary, and waits for room if @may_wait.  A thread must
 * not wait for commands that wait for the thread itself.  So @may_wait is false while a user event is open, unless the
 * call blocks anyway.
 */
static struct vgpu_bulk *find_room(uint64_t bytes, bool may_wait)
{
	/* A transfer whose commands may have to wait for the program leaves room for other transfers. */
	uint64_t keep_free = may_wait ? 0 : vgpu_bulk_total() / 8;

	for (;;) {
		struct space_wait wait = { vgpu_bulk_freed() };
		bool others = atomic_load(&staged) > 0;

		for (uint64_t want = bytes;; want /= 2) {
			struct vgpu_bulk *bulk = vgpu_bulk_allocate(want, keep_free);

			if (bulk)
				return bulk;
			/* Pieces below the minimum are used only if no other piece will become free. */
			if (want <= 128 || (others && want <= PIECE_BYTES_MIN))
				break;
		}
		if (!others || !may_wait || !vgpu_wait(space_changed, &wait))
			return NULL;
	}
}

static bool job_done(void *argument)
{
	return atomic_load(&((struct job *)argument)->done);
}

static bool few_left(void *argument)
{
	return atomic_load(&((struct job *)argument)->left) <= PIECES_AT_ONCE;
}

/* Sends one piece, which takes ownership of the bulk part. */
static cl_int send_piece(struct job *job, struct command *command, struct part *part, struct vgpu_bulk *bulk)
{
	struct piece *piece = calloc(1, sizeof(*piece));
	cl_int status;

	if (!piece) {
		vgpu_bulk_free(bulk);
		return CL_OUT_OF_HOST_MEMORY;
	}
	piece->pending.reply = piece_reply;
	piece->job = job;
	piece->part = *part;
	piece->bulk = bulk;
	command->pending = &piece->pending;
	command->completes = false;
	if (bulk && job->transfer.write)
		part_copy(&job->transfer, part, vgpu_bulk_address(bulk->offset), false);
	atomic_fetch_add(&job->left, 1);
	if (bulk)
		atomic_fetch_add(&staged, 1);
	status = part_send(command, &job->transfer, part, bulk);
	if (status) {
		if (bulk)
			atomic_fetch_sub(&staged, 1);
		vgpu_bulk_free(bulk);
		free(piece);
		atomic_fetch_sub(&job->left, 1);
	}
	return status;
}

/* Releases the event that links two pieces.  The program does not know this event. */
static void unlink_piece(struct _cl_event *event, bool sent)
{
	if (!event)
		return;
	if (sent)
		send_release(VGPU_CL_KIND_EVENT, event->object.handle);
	event->released = true;
	object_drop(event);
}

/* Sends all pieces.  The last one completes the event. */
static cl_int send_pieces(struct job *job, struct command *command, bool may_wait)
{
	const struct transfer *t = &job->transfer;
	bool chained = job->queue->properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE;
	uint64_t total = region_bytes(t), most = total <= PIECE_BYTES ? total : PIECE_BYTES;
	struct _cl_event *before = NULL;
	size_t at[3] = { 0, 0, 0 };

	for (bool end = false; !end;) {
		struct vgpu_bulk *bulk;
		struct _cl_event *link = NULL;
		cl_int status = CL_SUCCESS;
		struct part part;

		if (job->blocking && !vgpu_wait(few_left, job))
			status = LOST;
		bulk = status ? NULL : find_room(most, may_wait || !atomic_load(&user_events_open));
		if (!status && !bulk)
			status = vgpu_usable() ? CL_MEM_OBJECT_ALLOCATION_FAILURE : LOST;
		if (!status) {
			part_next(t, at, bulk->bytes < most ? bulk->bytes : most, &part);
			end = at[2] >= t->region[2];
			if (!end && chained && !(link = event_new(job->queue->context, job->queue, 0)))
				status = CL_OUT_OF_HOST_MEMORY;
		}
		if (status) {
			vgpu_bulk_free(bulk);
			unlink_piece(before, true);
			return status;
		}
		/*
		 * In a chain, each later piece waits only for the piece before it.  On an in-order queue every piece
		 * has the caller's wait list, so that a failed event fails all pieces.
		 */
		if (before) {
			command->given = command->wait_count = 1;
			command->waits = (cl_event *)&before;
		}
		command->event = end ? job->event : link;
		status = send_piece(job, command, &part, bulk);
		unlink_piece(before, true);
		before = link;
		if (status) {
			unlink_piece(link, false);
			return status;
		}
	}
	return CL_SUCCESS;
}

/* A small write needs no job. */
static cl_int write_small(const struct transfer *transfer, struct command *command, cl_event *event)
{
	struct part part = part_whole(transfer);
	cl_int status = part_send(command, transfer, &part, NULL);

	return status ? command_fail(command, status) : command_sent(command, event);
}

static cl_int run_staged(const struct transfer *transfer, cl_command_queue queue, bool blocking, cl_command_type type,
			 cl_uint count, const cl_event *waits, cl_event *event)
{
	struct command command;
	cl_int status = command_begin(&command, queue, type, count, waits, event);
	struct _cl_event *own;
	bool waits_for_it;
	struct job *job;

	if (status)
		return status;
	if (transfer->write && region_bytes(transfer) <= WRITE_INLINE_MAX)
		return write_small(transfer, &command, event);
	job = calloc(1, sizeof(*job));
	if (!job)
		return command_fail(&command, CL_OUT_OF_HOST_MEMORY);
	job->transfer = *transfer;
	job->queue = queue;
	job->event = command.event;
	job->blocking = blocking && !transfer->write;
	job->left = 1;
	object_hold(job->event);
	object_hold(transfer->memory);
	own = job->event;
	waits_for_it = job->blocking;
	status = send_pieces(job, &command, blocking);
	if (status) {
		cl_int none = CL_SUCCESS;

		/*
		 * The pieces that were already sent complete in the background.  The program gets no event.  The child
		 * does not know the event, because only the last piece names it.
		 */
		atomic_compare_exchange_strong(&job->status, &none, status);
	}
	job_drop(job);
	if (waits_for_it) {
		if (!vgpu_wait(job_done, job))
			return LOST;
		status = job->status;
		free(job);
		vgpu_cl_bury();
	}
	command.event = own;
	if (status && !waits_for_it)
		return command_fail(&command, status);
	if (status) {
		status = blocking_status(status, count, waits);
		if (own)
			vgpu_clReleaseEvent(own);
		return status;
	}
	return command_sent(&command, event);
}

cl_int transfer_run(const struct transfer *t, cl_command_queue queue, bool blocking, cl_command_type type,
		    cl_uint count, const cl_event *waits, cl_event *event)
{
	if (blocking && t->shape == TRANSFER_BUFFER && t->memory->stored) {
		if (transfer_here(t, queue, type, count, waits, event))
			return CL_SUCCESS;
		if (t->write ? t->region[0] >= DIRECT_WRITE_MIN && !atomic_load(&user_events_open) :
			       t->region[0] >= DIRECT_READ_MIN)
			return transfer_finished(t, queue, type, count, waits, event) ?
				       CL_SUCCESS : transfer_direct(t, queue, type, count, waits, event);
	}
	if (!blocking && region_bytes(t) > PIECE_BYTES && atomic_load(&user_events_open) &&
	    region_bytes(t) > vgpu_bulk_largest() / 2)
		return (t->write ? held_write : held_read)(t, queue, type, count, waits, event);
	return run_staged(t, queue, blocking, type, count, waits, event);
}

/* Completion record of a transfer from or to a copy that stays in the bulk area. */
struct in_place {
	struct vgpu_pending pending;
	struct _cl_event *event;
	cl_mem memory;	/* held, because the memory's end would free its remaining mappings */
	struct vgpu_bulk *bulk;	/* to be freed, or NULL */
};

static bool in_place_reply(struct vgpu_pending *pending, const struct vgpu_message *message, uint32_t bytes)
{
	struct in_place *in_place = (struct in_place *)pending;

	if (in_place->event)
		event_reply(&in_place->event->pending, message, bytes);
	if (in_place->bulk) {
		vgpu_bulk_free(in_place->bulk);
		atomic_fetch_sub(&staged, 1);
	}
	object_drop(in_place->memory);
	free(in_place);
	return true;
}

cl_int transfer_in_place(const struct transfer *transfer, struct vgpu_bulk *bulk, bool free_bulk,
			 cl_command_queue queue, cl_command_type type, cl_uint count, const cl_event *waits,
			 cl_event *event)
{
	struct part part = part_whole(transfer);
	struct in_place *in_place = calloc(1, sizeof(*in_place));
	struct command command;
	cl_int status;

	if (!in_place)
		return CL_OUT_OF_HOST_MEMORY;
	status = command_begin(&command, queue, type, count, waits, event);
	if (status) {
		free(in_place);
		return status;
	}
	in_place->pending.reply = in_place_reply;
	in_place->event = command.event;
	in_place->bulk = free_bulk ? bulk : NULL;
	in_place->memory = transfer->memory;
	object_hold(in_place->memory);
	command.pending = &in_place->pending;	/* includes the event's hold, which event_reply() drops */
	if (free_bulk)
		atomic_fetch_add(&staged, 1);
	status = part_send(&command, transfer, &part, bulk);
	if (status) {
		if (free_bulk)
			atomic_fetch_sub(&staged, 1);
		object_drop(in_place->memory);
		free(in_place);
		return command_fail(&command, status);
	}
	return command_sent(&command, event);
}
