// SPDX-License-Identifier: Apache-2.0
/* The common part of all commands: queue, wait list, event. */
#include "guest/opencl/call.h"

cl_int check_waits(cl_context context, cl_uint count, const cl_event *waits)
{
	if (!count != !waits)
		return CL_INVALID_EVENT_WAIT_LIST;
	for (cl_uint i = 0; i < count; i++) {
		struct _cl_event *event = object_check(waits[i], VGPU_CL_KIND_EVENT);

		if (!event)
			return CL_INVALID_EVENT_WAIT_LIST;
		if (event->context != context)
			return CL_INVALID_CONTEXT;
	}
	return CL_SUCCESS;
}

cl_int check_command(cl_command_queue queue, cl_uint count, const cl_event *waits)
{
	if (!object_check(queue, VGPU_CL_KIND_QUEUE))
		return CL_INVALID_COMMAND_QUEUE;
	return check_waits(queue->context, count, waits);
}

cl_int command_begin(struct command *command, cl_command_queue queue, cl_command_type type, cl_uint count,
		     const cl_event *waits, cl_event *event)
{
	memset(command, 0, sizeof(*command));
	command->queue = queue;
	command->given = count;
	command->waits = waits;
	vgpu_drain();
	vgpu_cl_bury();
	for (cl_uint i = 0; i < count; i++)
		command->wait_count += atomic_load_explicit(&waits[i]->status, memory_order_acquire) != CL_COMPLETE;
	if (command->wait_count > VGPU_CL_WAITS_MAX)
		return CL_OUT_OF_RESOURCES;
	if (event) {
		command->event = event_new(queue->context, queue, type);
		if (!command->event)
			return CL_OUT_OF_HOST_MEMORY;
		command->pending = &command->event->pending;
		command->completes = true;
	}
	return CL_SUCCESS;
}

bool command_fill(struct command *command, void *message, uint32_t *waits)
{
	struct command_head *head = message;
	uint32_t at = 0;
	uint64_t call;

	/*
	 * The message lists exactly wait_count events.  If some of the counted events have completed meanwhile,
	 * completed events fill the list, although the command need not wait for them.
	 */
	for (int complete = 0; complete < 2; complete++) {
		for (cl_uint i = 0; i < command->given && at < command->wait_count; i++) {
			const struct _cl_event *event = command->waits[i];

			/*
			 * Skip a completed event that the child does not know.  It was not counted, because the
			 * child knows all counted events.
			 */
			if ((atomic_load_explicit(&event->status, memory_order_relaxed) == CL_COMPLETE) == complete &&
			    !(complete && event->released))
				waits[at++] = event->object.handle;
		}
	}
	atomic_fetch_add_explicit(&command->queue->sent, 1, memory_order_relaxed);
	head->queue = command->queue->object.handle;
	head->event = command->event ? command->event->object.handle : 0;
	if (!command->pending)
		return true;
	/* Take the hold first, because a hostile child may answer as soon as the record has a number. */
	if (command->completes)
		object_hold(command->event);
	call = vgpu_expect(command->pending);
	head->header.call = call;
	head->header.flags = VGPU_CL_NOTIFY;
	if (!call && command->completes)
		object_drop(command->event);
	return call != 0;
}

cl_int command_fail(struct command *command, cl_int error)
{
	if (command->event) {
		command->event->released = true;	/* the child never learned of the event */
		object_drop(command->event);
		vgpu_cl_bury();
	}
	return error;
}

cl_int command_sent(struct command *command, cl_event *event)
{
	if (event)
		*event = command->event;
	return CL_SUCCESS;
}

cl_int command_plain(uint32_t op, cl_command_queue queue, cl_command_type type, cl_uint count, const cl_event *waits,
		     cl_event *event)
{
	struct vgpu_cl_marker_parts parts;
	struct command command;
	cl_int error = command_begin(&command, queue, type, count, waits, event);
	void *at;

	if (error)
		return error;
	at = vgpu_send_begin((uint32_t)vgpu_cl_bytes_of_marker(command.wait_count));
	if (!at)
		return command_fail(&command, LOST);
	vgpu_cl_place_marker(at, command.wait_count, &parts);
	parts.message->header.op = (uint16_t)op;
	if (!command_fill(&command, parts.message, parts.waits)) {
		vgpu_send_cancel();
		return command_fail(&command, CL_OUT_OF_RESOURCES);
	}
	vgpu_send_commit();
	return command_sent(&command, event);
}
