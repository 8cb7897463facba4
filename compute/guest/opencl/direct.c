// SPDX-License-Identifier: Apache-2.0
/* Transfers from and to storage in the window: one copy, done by this thread. */
#include "guest/opencl/transfer_part.h"

#include <time.h>

cl_int blocking_status(cl_int status, cl_uint count, const cl_event *waits)
{
	for (cl_uint i = 0; i < count; i++)
		if (waits[i]->status < 0)
			return CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
	return status;
}

/* Waits for the completion of a command that this file sends itself. */
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

/* Makes the transfer's part of the storage valid for this process.  Returns the child's status. */
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

static void copy(const struct transfer *t)
{
	uint8_t *stored = vgpu_bulk_address(t->memory->stored_offset + t->origin[0]);

	if (t->write)
		memcpy(stored, t->host, t->region[0]);
	else
		memcpy(t->host, stored, t->region[0]);
}

static bool all_complete(cl_uint count, const cl_event *waits)
{
	for (cl_uint i = 0; i < count; i++)
		if (atomic_load_explicit(&waits[i]->status, memory_order_acquire) != CL_COMPLETE)
			return false;
	return true;
}

/* Returns whether this thread can do a transfer by itself once the queue is idle. */
static bool waits_for_queue_only(cl_command_queue queue, cl_uint count, const cl_event *waits)
{
	/* Profiling times must come from the child, because in a guest the child's clock differs from ours. */
	return context_computes_in_place(queue->context) && all_complete(count, waits) &&
	       !(queue->properties & CL_QUEUE_PROFILING_ENABLE);
}

bool transfer_here(const struct transfer *t, cl_command_queue queue, cl_command_type type, cl_uint count,
		   const cl_event *waits, cl_event *event)
{
	struct _cl_event *own = NULL;

	if (!queue_idle(queue) || !waits_for_queue_only(queue, count, waits))
		return false;
	if (event) {
		own = event_new(queue->context, queue, type);
		if (!own)
			return false;
		own->released = true;	/* the child does not know the event */
		*event = own;
	}
	copy(t);
	if (own)
		event_finish(own, CL_COMPLETE, NULL);
	return true;
}

bool transfer_finished(const struct transfer *t, cl_command_queue queue, cl_command_type type, cl_uint count,
		       const cl_event *waits, cl_event *event)
{
	/* An out-of-order queue may have commands that the transfer must not wait for. */
	return !(queue->properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) &&
	       waits_for_queue_only(queue, count, waits) && queue_make_idle(queue) &&
	       transfer_here(t, queue, type, count, waits, event);
}

/*
 * Maps storage in the window, copies, and unmaps it again: one copy instead of two.  The command is complete when this
 * returns, so the child does not need to know its event.
 */
cl_int transfer_direct(const struct transfer *t, cl_command_queue queue, cl_command_type type, cl_uint count,
		       const cl_event *waits, cl_event *event)
{
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
		copy(t);
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
