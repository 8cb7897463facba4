// SPDX-License-Identifier: Apache-2.0
/*
 * Transfers that do not fit into the bulk area while the program has open user events.  The commands that occupy
 * the bulk area may wait for such an event, and so for the program itself.  Waiting for room could then last for
 * ever, so the transfer goes through a buffer on the child's side, the detour.  A write fills the detour at once;
 * a command on the program's queue then copies the data to their destination.  A read is a command on the
 * program's queue that copies the data into the detour; when it has ended, the callbacks' thread fetches the data.
 */
#include "guest/opencl/memory.h"

/* Returns the transfer between the program and the detour, which holds the region without gaps. */
static struct transfer detour_of(const struct transfer *t, cl_mem detour)
{
	struct transfer transfer = *t;
	size_t row = t->region[0] * t->unit;

	transfer.memory = detour;
	transfer.shape = TRANSFER_RECT;
	memset(transfer.origin, 0, sizeof(transfer.origin));
	transfer.region[0] = row;
	transfer.unit = 1;
	transfer.row_pitch = row;
	transfer.slice_pitch = row * t->region[1];
	return transfer;
}

/* Enqueues the copy on the program's queue. *@event is always set. */
static cl_int copy(const struct transfer *t, cl_mem detour, cl_command_queue queue, cl_uint count,
		   const cl_event *waits, cl_event *event)
{
	static const size_t zero[3] = { 0, 0, 0 };
	size_t row = t->region[0], slice = row * t->region[1];

	switch (t->shape * 2 + t->write) {
	case TRANSFER_BUFFER * 2:
		return vgpu_clEnqueueCopyBuffer(queue, t->memory, detour, t->origin[0], 0, row, count, waits, event);
	case TRANSFER_BUFFER * 2 + 1:
		return vgpu_clEnqueueCopyBuffer(queue, detour, t->memory, 0, t->origin[0], row, count, waits, event);
	case TRANSFER_RECT * 2:
		return vgpu_clEnqueueCopyBufferRect(queue, t->memory, detour, t->origin, zero, t->region,
						    t->row_pitch, t->slice_pitch, row, slice, count, waits, event);
	case TRANSFER_RECT * 2 + 1:
		return vgpu_clEnqueueCopyBufferRect(queue, detour, t->memory, zero, t->origin, t->region, row, slice,
						    t->row_pitch, t->slice_pitch, count, waits, event);
	case TRANSFER_IMAGE * 2:
		return vgpu_clEnqueueCopyImageToBuffer(queue, t->memory, detour, t->origin, t->region, 0, count, waits,
						       event);
	default:
		return vgpu_clEnqueueCopyBufferToImage(queue, detour, t->memory, 0, t->origin, t->region, count, waits,
						       event);
	}
}

cl_int held_write(const struct transfer *t, cl_command_queue queue, cl_command_type type, cl_uint count,
		  const cl_event *waits, cl_event *event)
{
	cl_context context = queue->context;
	cl_event *all = calloc(count + 1, sizeof(*all)), copied = NULL;
	struct transfer transfer;
	cl_command_queue copies;
	cl_mem detour = NULL;
	cl_int status = all ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY;

	if (!status)
		detour = vgpu_clCreateBuffer(context, CL_MEM_READ_WRITE, region_bytes(t), NULL, &status);
	copies = status ? NULL : context_copy_queue(context, &status);
	if (!status) {
		transfer = detour_of(t, detour);
		status = transfer_run(&transfer, copies, true, type, 0, NULL, NULL);
	}
	if (!status)
		status = vgpu_clEnqueueMarkerWithWaitList(copies, 0, NULL, &all[count]);
	if (!status) {
		if (count)
			memcpy(all, waits, count * sizeof(*all));
		status = copy(t, detour, queue, count + 1, all, &copied);
		vgpu_clReleaseEvent(all[count]);
	}
	if (!status) {
		copied->type = type;
		if (event)
			*event = copied;
		else
			vgpu_clReleaseEvent(copied);
	}
	if (detour)
		vgpu_clReleaseMemObject(detour);	/* the child keeps the memory until the copy has ended */
	free(all);
	return status;
}

/* A read whose copy is under way.  The callbacks' thread will fetch the data. */
struct held_read {
	struct transfer transfer;	/* from the detour to the program */
	cl_command_queue queue;
	struct _cl_event *event;	/* the program's event, or NULL */
};

static void CL_CALLBACK fetch(cl_event copied, cl_int status, void *user)
{
	struct held_read *held = user;
	cl_int error = status;
	cl_command_queue copies = status ? NULL : context_copy_queue(held->queue->context, &error);

	if (copies)
		error = transfer_run(&held->transfer, copies, true, 0, 0, NULL, NULL);
	if (held->event) {
		event_finish(held->event, error, copied->times);
		object_drop(held->event);
	}
	vgpu_clReleaseMemObject(held->transfer.memory);
	atomic_fetch_sub(&held->queue->held, 1);
	object_drop(held->queue);
	free(held);
	vgpu_kick();
}

/*
 * Creates the program's event.  This is not the copy's event, because it ends only when the data have arrived in
 * this process.  For the child it is the event of a marker after the copy, so that later commands can wait for it.
 */
static cl_int send_event(struct held_read *held, cl_event copied, cl_command_type type)
{
	struct vgpu_cl_marker_parts parts;
	struct command command;
	cl_event event = NULL;
	cl_int status = command_begin(&command, held->queue, type, 1, &copied, &event);
	void *at;

	if (status)
		return status;
	command.pending = NULL;
	at = vgpu_send_begin((uint32_t)vgpu_cl_bytes_of_marker(command.wait_count));
	if (!at)
		return command_fail(&command, LOST);
	vgpu_cl_place_marker(at, command.wait_count, &parts);
	command_fill(&command, parts.message, parts.waits);
	vgpu_send_commit();
	held->event = command.event;
	object_hold(held->event);
	return CL_SUCCESS;
}

cl_int held_read(const struct transfer *t, cl_command_queue queue, cl_command_type type, cl_uint count,
		 const cl_event *waits, cl_event *event)
{
	struct held_read *held = calloc(1, sizeof(*held));
	cl_event copied = NULL;
	cl_mem detour = NULL;
	cl_int status = held ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY;

	if (!status)
		detour = vgpu_clCreateBuffer(queue->context, CL_MEM_READ_WRITE, region_bytes(t), NULL, &status);
	if (!status)
		status = copy(t, detour, queue, count, waits, &copied);
	if (!status) {
		held->transfer = detour_of(t, detour);
		held->queue = queue;
		if (event)
			status = send_event(held, copied, type);
	}
	if (!status) {
		struct _cl_event *own = held->event;

		object_hold(queue);
		atomic_fetch_add(&queue->held, 1);
		status = vgpu_clSetEventCallback(copied, CL_COMPLETE, fetch, held);
		if (!status) {
			if (event)
				*event = own;
			vgpu_clReleaseEvent(copied);
			return CL_SUCCESS;
		}
		atomic_fetch_sub(&queue->held, 1);
		object_drop(queue);
	}
	if (held && held->event) {
		object_drop(held->event);
		vgpu_clReleaseEvent(held->event);
	}
	if (copied)
		vgpu_clReleaseEvent(copied);
	if (detour)
		vgpu_clReleaseMemObject(detour);
	free(held);
	return status;
}

static bool none_held(void *queue)
{
	return !atomic_load(&((cl_command_queue)queue)->held);
}

bool held_wait(cl_command_queue queue)
{
	return none_held(queue) || vgpu_wait(none_held, queue);
}
