// SPDX-License-Identifier: Apache-2.0
/*
 * Transfers between memory and the program.
 *
 * What the child reads or writes is in the bulk area (small writes: in the message),
 * without gaps between rows.  A transfer that is larger than a piece goes in several
 * commands; the child and this thread then copy at the same time.  On a queue out of
 * order each piece waits for the one before it.
 *
 * A write is done for the program when its data have been copied.  A read that does not
 * block is copied to the program by whichever thread handles its completion, before the
 * event is seen to be complete.
 */
#include "guest/opencl/memory.h"

#include <time.h>

#define PIECE_BYTES (1u << 20)
#define PIECES_AT_ONCE 6u	/* of a read that blocks: more would leave the caches */
#define PIECE_BYTES_MIN (64u << 10)
#define WRITE_INLINE_MAX (8u << 10)
/* Storage in the window is used directly for what is worth a round trip. */
#define DIRECT_READ_MIN (32u << 10)
#define DIRECT_WRITE_MIN (256u << 10)

/* Part of the region, relative to its origin. */
struct part {
	size_t origin[3], region[3];
};

/**
 * struct job - a transfer under way
 * @left: pieces whose completion is to come, and one for the thread that sends
 * @status: the first error of a piece
 * @event: to be ended with the last piece, or NULL
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
	cl_ulong times[4];	/* of the first piece, and the end of the last; handlers only */
};

struct piece {
	struct vgpu_pending pending;
	struct job *job;
	struct part part;
	struct vgpu_bulk *bulk;	/* NULL: the write was in the message */
};

/* Pieces that occupy the bulk area, in the whole process. */
static atomic_uint staged;

static uint64_t part_bytes(const struct transfer *t, const struct part *part)
{
	return (uint64_t)part->region[0] * t->unit * part->region[1] * part->region[2];
}

/* Copies a part between the program and a dense copy. */
static void copy_part(const struct transfer *t, const struct part *part, uint8_t *dense, bool to_program)
{
	size_t row = part->region[0] * t->unit;

	for (size_t z = 0; z < part->region[2]; z++) {
		uint8_t *host = t->host + (part->origin[2] + z) * t->host_slice + part->origin[1] * t->host_row +
				part->origin[0] * t->unit;
		size_t bytes = row, rows = part->region[1];

		if (t->host_row == row || rows == 1) {	/* the whole slice at once */
			bytes = row * rows;
			rows = 1;
		}
		for (size_t y = 0; y < rows; y++, dense += bytes) {
			if (to_program)
				memcpy(host + y * t->host_row, dense, bytes);
			else
				memcpy(dense, host + y * t->host_row, bytes);
		}
	}
}

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
			copy_part(&job->transfer, &piece->part, vgpu_bulk_address(piece->bulk->offset), true);
	}
	if (piece->bulk) {
		vgpu_bulk_free(piece->bulk);
		atomic_fetch_sub(&staged, 1);
	}
	free(piece);
	job_drop(job);
	return true;
}

/* Takes the next part of at most @most bytes off the region; @at counts what has been taken. */
static void next_part(const struct transfer *t, size_t at[3], uint64_t most, struct part *part)
{
	const size_t *region = t->region;
	uint64_t row = region[0] * t->unit, slice = row * region[1];

	memcpy(part->origin, at, sizeof(part->origin));
	part->region[0] = region[0] - at[0];
	part->region[1] = part->region[2] = 1;
	if (at[0] || row > most) {
		size_t steps = most / t->unit ? most / t->unit : 1;

		if (part->region[0] > steps)
			part->region[0] = steps;
	} else if (at[1] || slice > most) {
		part->region[1] = region[1] - at[1];
		if (part->region[1] > most / row)
			part->region[1] = most / row;
	} else {
		part->region[1] = region[1];
		part->region[2] = region[2] - at[2];
		if (part->region[2] > most / slice)
			part->region[2] = most / slice;
	}
	at[0] += part->region[0];
	if (at[0] < region[0])
		return;
	at[0] = 0;
	at[1] += part->region[1];
	if (at[1] < region[1])
		return;
	at[1] = 0;
	at[2] += part->region[2];
}

struct space_wait {
	uint32_t freed;
};

static bool space_changed(void *argument)
{
	return vgpu_bulk_freed() != ((struct space_wait *)argument)->freed || !atomic_load(&staged);
}

/*
 * Finds room for a piece: less than wanted if it must be, and waiting if it may be.  It must not wait for what waits
 * for this thread, so not while a user event is open, unless the call blocks anyway.
 */
static struct vgpu_bulk *find_room(uint64_t bytes, bool may_wait)
{
	/* What may wait for the program leaves room for what may not. */
	uint64_t keep_free = may_wait ? 0 : vgpu_bulk_total() / 8;

	for (;;) {
		struct space_wait wait = { vgpu_bulk_freed() };
		bool others = atomic_load(&staged) > 0;

		for (uint64_t want = bytes;; want /= 2) {
			struct vgpu_bulk *bulk = vgpu_bulk_allocate(want, keep_free);

			if (bulk)
				return bulk;
			/* Small pieces are the last resort, where nothing will become free. */
			if (want <= 128 || (others && want <= PIECE_BYTES_MIN))
				break;
		}
		if (!others || !may_wait || !vgpu_wait(space_changed, &wait))
			return NULL;
	}
}

/* Lays a piece's command out; @inline_bytes are in the message, else it is in the bulk area. */
static void *place(void *at, const struct transfer *t, const struct part *part, uint32_t waits, uint64_t inline_bytes,
		   const struct vgpu_bulk *bulk, uint32_t **wait_list, uint8_t **inline_data)
{
	uint64_t offset = bulk ? bulk->offset : VGPU_CL_INLINE, bytes = part_bytes(t, part);
	size_t origin[3];

	for (int i = 0; i < 3; i++)
		origin[i] = t->origin[i] + part->origin[i];
#define PLACE(name, blob, memory_fields) \
	do { \
		m->memory = t->memory->object.handle; \
		m->blob##_offset = offset; \
		m->blob##_bytes = bytes; \
		memory_fields \
		*wait_list = parts.waits; \
		return m; \
	} while (0)
#define RECT_FIELDS \
	memcpy(m->origin, origin, sizeof(origin)); \
	memcpy(m->region, part->region, sizeof(part->region)); \
	m->row_pitch = t->row_pitch; \
	m->slice_pitch = t->slice_pitch;
#define IMAGE_FIELDS \
	memcpy(m->origin, origin, sizeof(origin)); \
	memcpy(m->region, part->region, sizeof(part->region));
	switch (t->shape * 2 + t->write) {
	case TRANSFER_BUFFER * 2: {
		struct vgpu_cl_read_buffer_parts parts;
		struct vgpu_cl_read_buffer *m = vgpu_cl_place_read_buffer(at, waits, &parts);

		PLACE(read_buffer, target, m->offset = origin[0];);
	}
	case TRANSFER_BUFFER * 2 + 1: {
		struct vgpu_cl_write_buffer_parts parts;
		struct vgpu_cl_write_buffer *m = vgpu_cl_place_write_buffer(at, waits, inline_bytes, &parts);

		*inline_data = parts.source;
		PLACE(write_buffer, source, m->offset = origin[0];);
	}
	case TRANSFER_RECT * 2: {
		struct vgpu_cl_read_buffer_rect_parts parts;
		struct vgpu_cl_read_buffer_rect *m = vgpu_cl_place_read_buffer_rect(at, waits, &parts);

		PLACE(read_buffer_rect, target, RECT_FIELDS);
	}
	case TRANSFER_RECT * 2 + 1: {
		struct vgpu_cl_write_buffer_rect_parts parts;
		struct vgpu_cl_write_buffer_rect *m =
			vgpu_cl_place_write_buffer_rect(at, waits, inline_bytes, &parts);

		*inline_data = parts.source;
		PLACE(write_buffer_rect, source, RECT_FIELDS);
	}
	case TRANSFER_IMAGE * 2: {
		struct vgpu_cl_read_image_parts parts;
		struct vgpu_cl_read_image *m = vgpu_cl_place_read_image(at, waits, &parts);

		PLACE(read_image, target, IMAGE_FIELDS);
	}
	default: {
		struct vgpu_cl_write_image_parts parts;
		struct vgpu_cl_write_image *m = vgpu_cl_place_write_image(at, waits, inline_bytes, &parts);

		*inline_data = parts.source;
		PLACE(write_image, source, IMAGE_FIELDS);
	}
	}
#undef PLACE
#undef RECT_FIELDS
#undef IMAGE_FIELDS
}

static uint64_t message_bytes(const struct transfer *t, uint32_t waits, uint64_t inline_bytes)
{
	switch (t->shape * 2 + t->write) {
	case TRANSFER_BUFFER * 2:
		return vgpu_cl_bytes_of_read_buffer(waits);
	case TRANSFER_BUFFER * 2 + 1:
		return vgpu_cl_bytes_of_write_buffer(waits, inline_bytes);
	case TRANSFER_RECT * 2:
		return vgpu_cl_bytes_of_read_buffer_rect(waits);
	case TRANSFER_RECT * 2 + 1:
		return vgpu_cl_bytes_of_write_buffer_rect(waits, inline_bytes);
	case TRANSFER_IMAGE * 2:
		return vgpu_cl_bytes_of_read_image(waits);
	default:
		return vgpu_cl_bytes_of_write_image(waits, inline_bytes);
	}
}

/* Sends the command of one part.  A write's data have been copied when this returns. */
static cl_int send_part(struct command *command, const struct transfer *t, const struct part *part,
			const struct vgpu_bulk *bulk)
{
	uint64_t inline_bytes = bulk ? 0 : part_bytes(t, part);
	uint8_t *inline_data = NULL;
	uint32_t *waits;
	void *at, *m;

	at = vgpu_send_begin((uint32_t)message_bytes(t, command->wait_count, inline_bytes));
	if (!at)
		return LOST;
	m = place(at, t, part, command->wait_count, inline_bytes, bulk, &waits, &inline_data);
	if (inline_bytes)
		copy_part(t, part, inline_data, false);
	if (!command_fill(command, m, waits)) {
		vgpu_send_cancel();
		return CL_OUT_OF_RESOURCES;
	}
	vgpu_send_commit();
	return CL_SUCCESS;
}

static bool job_done(void *argument)
{
	return atomic_load(&((struct job *)argument)->done);
}

static bool few_left(void *argument)
{
	return atomic_load(&((struct job *)argument)->left) <= PIECES_AT_ONCE;
}

/* Sends one piece; the bulk part is the piece's from here on. */
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
		copy_part(&job->transfer, part, vgpu_bulk_address(bulk->offset), false);
	atomic_fetch_add(&job->left, 1);
	if (bulk)
		atomic_fetch_add(&staged, 1);
	status = send_part(command, &job->transfer, part, bulk);
	if (status) {
		if (bulk)
			atomic_fetch_sub(&staged, 1);
		vgpu_bulk_free(bulk);
		free(piece);
		atomic_fetch_sub(&job->left, 1);
	}
	return status;
}

/* An event between two pieces has served: nobody else knows it. */
static void unlink_piece(struct _cl_event *event, bool sent)
{
	if (!event)
		return;
	if (sent)
		send_release(VGPU_CL_KIND_EVENT, event->object.handle);
	event->released = true;
	object_drop(event);
}

/* Sends all pieces.  The wait list is the first's, the event the last's. */
static cl_int send_pieces(struct job *job, struct command *command, bool may_wait)
{
	const struct transfer *t = &job->transfer;
	bool chained = job->queue->properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE;
	uint64_t total = region_bytes(t), most = total <= PIECE_BYTES ? total : PIECE_BYTES;
	struct _cl_event *before = NULL;
	size_t at[3] = { 0, 0, 0 };

	for (bool first = true, end = false; !end; first = false) {
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
			next_part(t, at, bulk->bytes < most ? bulk->bytes : most, &part);
			end = at[2] >= t->region[2];
			if (!end && chained && !(link = event_new(job->queue->context, job->queue, 0)))
				status = CL_OUT_OF_HOST_MEMORY;
		}
		if (status) {
			vgpu_bulk_free(bulk);
			unlink_piece(before, true);
			return status;
		}
		if (!first) {
			command->given = command->wait_count = before ? 1 : 0;
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

/* What a blocking call returns for a command that has failed. */
static cl_int blocking_status(cl_int status, cl_uint count, const cl_event *waits)
{
	for (cl_uint i = 0; i < count; i++)
		if (waits[i]->status < 0)
			return CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
	return status;
}

/* A small write needs no record at all. */
static cl_int write_small(const struct transfer *transfer, struct command *command, cl_event *event)
{
	struct part part = { { 0, 0, 0 }, { transfer->region[0], transfer->region[1], transfer->region[2] } };
	cl_int status = send_part(command, transfer, &part, NULL);

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

		/* What has been sent ends by itself; the program gets no event, and the child has seen none. */
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
	if (status)
		status = blocking_status(status, count, waits);
	/* A read that failed has an event that says so. */
	command_sent(&command, event);
	return status;
}

/* A wait for a command of this file's own. */
struct own_wait {
	struct vgpu_pending pending;
	atomic_bool done;
	cl_int status;
	cl_ulong times[4];
};

static bool own_reply(struct vgpu_pending *pending, const struct vgpu_message *message, uint32_t bytes)
{
	struct own_wait *wait = (struct own_wait *)pending;

	wait->status = completion_status(message, bytes, wait->times);
	atomic_store(&wait->done, true);
	return true;
}

static bool own_done(void *argument)
{
	return atomic_load(&((struct own_wait *)argument)->done);
}

/* Makes the transfer's part of the storage valid here; returns the child's status. */
static cl_int map_storage(const struct transfer *t, cl_command_queue queue, uint32_t handle, cl_uint count,
			  const cl_event *waits, struct own_wait *wait)
{
	struct vgpu_cl_map_buffer_parts map;
	struct command command;
	cl_int status = command_begin(&command, queue, 0, count, waits, NULL);
	void *at;

	if (status)
		return status;
	command.pending = &wait->pending;
	at = vgpu_send_begin((uint32_t)vgpu_cl_bytes_of_map_buffer(command.wait_count));
	if (!at)
		return LOST;
	vgpu_cl_place_map_buffer(at, command.wait_count, &map);
	map.message->memory = t->memory->object.handle;
	map.message->mapping = handle;
	map.message->flags = t->write ? CL_MAP_WRITE_INVALIDATE_REGION : CL_MAP_READ;
	map.message->offset = t->origin[0];
	map.message->bytes = t->region[0];
	if (!command_fill(&command, map.message, map.waits)) {
		vgpu_send_cancel();
		return CL_OUT_OF_RESOURCES;
	}
	vgpu_send_commit();
	if (!vgpu_wait(own_done, wait))
		return LOST;
	return wait->status;
}

cl_int send_unmap(uint32_t handle, struct command *command)
{
	struct vgpu_cl_unmap_parts unmap;
	void *at = vgpu_send_begin((uint32_t)vgpu_cl_bytes_of_unmap(command->wait_count));

	if (!at)
		return LOST;
	vgpu_cl_place_unmap(at, command->wait_count, &unmap);
	unmap.message->mapping = handle;
	if (!command_fill(command, unmap.message, unmap.waits)) {
		vgpu_send_cancel();
		return CL_OUT_OF_RESOURCES;
	}
	vgpu_send_commit();
	return CL_SUCCESS;
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

/*
 * Maps storage in the window, copies, and unmaps it again: one copy instead of two.  The command is complete when this
 * returns, so the child need not know its event.
 */
static cl_int run_direct(const struct transfer *t, cl_command_queue queue, cl_command_type type, cl_uint count,
			 const cl_event *waits, cl_event *event)
{
	uint8_t *stored = vgpu_bulk_address(t->memory->stored_offset + t->origin[0]);
	struct own_wait wait = { .pending.reply = own_reply };
	uint32_t handle = mapping_handle_new();
	struct _cl_event *own = NULL;
	struct command end;
	cl_int status = handle ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY;
	uint64_t begun;

	if (!status && event) {
		own = event_new(queue->context, queue, type);
		if (own)
			own->released = true;
		else
			status = CL_OUT_OF_HOST_MEMORY;
	}
	if (!status)
		status = map_storage(t, queue, handle, count, waits, &wait);
	if (!status) {
		begun = now_ns();
		if (t->write)
			memcpy(stored, t->host, t->region[0]);
		else
			memcpy(t->host, stored, t->region[0]);
		wait.times[3] += now_ns() - begun;
		status = command_begin(&end, queue, 0, 0, NULL, NULL);
		if (!status)
			status = send_unmap(handle, &end);
	}
	mapping_handle_free(handle);
	if (own && status) {
		object_drop(own);
	} else if (own) {
		event_finish(own, CL_COMPLETE, wait.times);
		*event = own;
	}
	vgpu_cl_bury();
	return status ? blocking_status(status, count, waits) : CL_SUCCESS;
}

cl_int transfer_run(const struct transfer *t, cl_command_queue queue, bool blocking, cl_command_type type,
		    cl_uint count, const cl_event *waits, cl_event *event)
{
	if (blocking && t->shape == TRANSFER_BUFFER && t->memory->stored &&
	    (t->write ? t->region[0] >= DIRECT_WRITE_MIN && !atomic_load(&user_events_open) :
			t->region[0] >= DIRECT_READ_MIN))
		return run_direct(t, queue, type, count, waits, event);
	if (!blocking && region_bytes(t) > PIECE_BYTES && atomic_load(&user_events_open) &&
	    region_bytes(t) > vgpu_bulk_largest() / 2)
		return (t->write ? held_write : held_read)(t, queue, type, count, waits, event);
	return run_staged(t, queue, blocking, type, count, waits, event);
}

/* The end of a transfer from or to a copy that stays in the bulk area. */
struct in_place {
	struct vgpu_pending pending;
	struct _cl_event *event;
	cl_mem memory;	/* held: its end frees the mappings that it still has */
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
	struct part part = { { 0, 0, 0 }, { transfer->region[0], transfer->region[1], transfer->region[2] } };
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
	command.pending = &in_place->pending;	/* with the event's hold, which event_reply() gives up */
	if (free_bulk)
		atomic_fetch_add(&staged, 1);
	status = send_part(&command, transfer, &part, bulk);
	if (status) {
		if (free_bulk)
			atomic_fetch_sub(&staged, 1);
		object_drop(in_place->memory);
		free(in_place);
		return command_fail(&command, status);
	}
	return command_sent(&command, event);
}
