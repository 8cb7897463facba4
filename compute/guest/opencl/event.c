// SPDX-License-Identifier: Apache-2.0
/* Command events, which end when the COMPLETION arrives, and user events. */
#include "guest/opencl/call.h"

atomic_uint user_events_open;

struct _cl_event *event_new(cl_context context, cl_command_queue queue, cl_command_type type)
{
	struct _cl_event *event = object_new(VGPU_CL_KIND_EVENT);

	if (!event)
		return NULL;
	event->pending.reply = event_reply;
	event->context = context;
	event->queue = queue;
	event->type = type;
	event->status = queue ? CL_QUEUED : CL_SUBMITTED;
	pthread_mutex_init(&event->lock, NULL);
	object_hold(context);
	object_hold(queue);
	return event;
}

void event_end(struct _cl_event *event)
{
	if (!event->released)
		send_release(VGPU_CL_KIND_EVENT, event->object.handle);
	if (!event->queue && event->status > 0)
		atomic_fetch_sub(&user_events_open, 1);
	pthread_mutex_destroy(&event->lock);
	object_drop(event->queue);
	object_drop(event->context);
}

/* Sets a status, and queues the callbacks that are due for it. */
static void event_set(struct _cl_event *event, cl_int status)
{
	struct event_callback *due = NULL, **at, *next;

	pthread_mutex_lock(&event->lock);
	atomic_store_explicit(&event->status, status, memory_order_release);
	for (at = &event->callbacks; *at;) {
		struct event_callback *callback = *at;

		if (status > callback->type) {
			at = &callback->next;
			continue;
		}
		*at = callback->next;
		callback->status = status < 0 ? status : callback->type;
		callback->next = due;
		due = callback;
	}
	pthread_mutex_unlock(&event->lock);
	for (; due; due = next) {
		next = due->next;
		callback_event(due);
	}
}

void event_finish(struct _cl_event *event, cl_int status, const cl_ulong times[4])
{
	if (times)
		memcpy(event->times, times, sizeof(event->times));
	event_set(event, status);
}

cl_int completion_status(const struct vgpu_message *message, uint32_t bytes, cl_ulong times[4])
{
	struct vgpu_cl_completion_view view;

	memset(times, 0, 4 * sizeof(*times));
	if (!message)
		return LOST;
	/* No command here asks for VGPU_CL_PROGRESS.  So a completion has a final status, or the child is faulty. */
	if (!vgpu_cl_decode_completion(message, bytes, 0, &view) || view.message->status > 0)
		return CL_OUT_OF_RESOURCES;
	times[0] = view.message->queued_ns;
	times[1] = view.message->submitted_ns;
	times[2] = view.message->started_ns;
	times[3] = view.message->ended_ns;
	return view.message->status;
}

bool event_reply(struct vgpu_pending *pending, const struct vgpu_message *message, uint32_t bytes)
{
	struct _cl_event *event = (struct _cl_event *)((uint8_t *)pending - offsetof(struct _cl_event, pending));
	cl_ulong times[4];
	cl_int status = completion_status(message, bytes, times);

	event_finish(event, status, times);
	object_drop(event);
	return true;
}

static bool event_ended(void *argument)
{
	return atomic_load_explicit(&((struct _cl_event *)argument)->status, memory_order_acquire) <= 0;
}

cl_int event_wait(struct _cl_event *event)
{
	if (!event_ended(event) && !vgpu_wait(event_ended, event))
		return LOST;
	/* The data of held reads on the queue must have arrived, too. */
	if (event->queue && !held_wait(event->queue))
		return LOST;
	return event->status;
}

API(cl_int, clWaitForEvents, cl_uint count, const cl_event *events)
{
	cl_int worst = CL_SUCCESS;

	if (!count || !events)
		return CL_INVALID_VALUE;
	for (cl_uint i = 0; i < count; i++) {
		if (!object_check(events[i], VGPU_CL_KIND_EVENT))
			return CL_INVALID_EVENT;
		if (events[i]->context != events[0]->context)
			return CL_INVALID_CONTEXT;
	}
	for (cl_uint i = 0; i < count; i++) {
		cl_int status = event_wait(events[i]);

		if (status == LOST)
			worst = LOST;
		else if (status < 0 && !worst)
			worst = CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
	}
	vgpu_cl_bury();
	return worst;
}

API(cl_int, clGetEventInfo, cl_event event, cl_event_info param, size_t room, void *target, size_t *returned)
{
	if (!object_check(event, VGPU_CL_KIND_EVENT))
		return CL_INVALID_EVENT;
	switch (param) {
	case CL_EVENT_COMMAND_QUEUE:
		GIVE(cl_command_queue, event->queue);
	case CL_EVENT_CONTEXT:
		GIVE(cl_context, event->context);
	case CL_EVENT_COMMAND_TYPE:
		GIVE(cl_command_type, event->type);
	case CL_EVENT_REFERENCE_COUNT:
		GIVE(cl_uint, event->object.references);
	case CL_EVENT_COMMAND_EXECUTION_STATUS:
		if (!event_ended(event))
			vgpu_drain();
		GIVE(cl_int, atomic_load_explicit(&event->status, memory_order_acquire));
	}
	return CL_INVALID_VALUE;
}

API(cl_int, clGetEventProfilingInfo, cl_event event, cl_profiling_info param, size_t room, void *target,
    size_t *returned)
{
	if (!object_check(event, VGPU_CL_KIND_EVENT))
		return CL_INVALID_EVENT;
	if (param < CL_PROFILING_COMMAND_QUEUED || param > CL_PROFILING_COMMAND_COMPLETE)
		return CL_INVALID_VALUE;
	if (!event_ended(event))
		vgpu_drain();
	if (!event->queue || !(event->queue->properties & CL_QUEUE_PROFILING_ENABLE) ||
	    atomic_load_explicit(&event->status, memory_order_acquire) != CL_COMPLETE)
		return CL_PROFILING_INFO_NOT_AVAILABLE;
	if (param == CL_PROFILING_COMMAND_COMPLETE)
		param = CL_PROFILING_COMMAND_END;
	GIVE(cl_ulong, event->times[param - CL_PROFILING_COMMAND_QUEUED]);
}

API(cl_int, clRetainEvent, cl_event event)
{
	return object_retain(event, VGPU_CL_KIND_EVENT, CL_INVALID_EVENT);
}

/* No new wait list can name the event, so the child can forget it.  Its completion may still be under way. */
static void last_reference(void *object)
{
	struct _cl_event *event = object;

	/*
	 * If the program never set the status of a user event, the commands that wait for it wait for ever, as the
	 * specification demands.
	 */
	if (event->released)
		return;
	event->released = true;
	send_release(VGPU_CL_KIND_EVENT, event->object.handle);
}

API(cl_int, clReleaseEvent, cl_event event)
{
	return object_release(event, VGPU_CL_KIND_EVENT, CL_INVALID_EVENT, last_reference);
}

API(cl_event, clCreateUserEvent, cl_context context, cl_int *error)
{
	struct vgpu_cl_create_user_event_parts parts;
	struct _cl_event *event = NULL;
	cl_int status = CL_SUCCESS;
	void *at;

	if (!object_check(context, VGPU_CL_KIND_CONTEXT)) {
		status = CL_INVALID_CONTEXT;
		goto out;
	}
	event = event_new(context, NULL, CL_COMMAND_USER);
	if (!event) {
		status = CL_OUT_OF_HOST_MEMORY;
		goto out;
	}
	at = vgpu_send_begin((uint32_t)vgpu_cl_bytes_of_create_user_event());
	atomic_fetch_add(&user_events_open, 1);
	if (!at) {
		event->released = true;
		object_drop(event);
		vgpu_cl_bury();
		event = NULL;
		status = LOST;
		goto out;
	}
	vgpu_cl_place_create_user_event(at, &parts);
	parts.message->event = event->object.handle;
	parts.message->context = context->object.handle;
	vgpu_send_commit();
out:
	if (error)
		*error = status;
	return event;
}

API(cl_int, clSetUserEventStatus, cl_event event, cl_int status)
{
	struct vgpu_cl_set_user_event_status_parts parts;
	cl_int unset = CL_SUBMITTED;
	void *at;

	if (!object_check(event, VGPU_CL_KIND_EVENT) || event->queue)
		return CL_INVALID_EVENT;
	if (status > 0)
		return CL_INVALID_VALUE;
	pthread_mutex_lock(&event->lock);
	if (event->status != unset) {
		pthread_mutex_unlock(&event->lock);
		return CL_INVALID_OPERATION;
	}
	/*
	 * Mark the status as set, so that a second call is refused.  The event ends only after the message to the
	 * child has been sent.
	 */
	event->status = CL_RUNNING;
	pthread_mutex_unlock(&event->lock);
	at = vgpu_send_begin((uint32_t)vgpu_cl_bytes_of_set_user_event_status());
	if (at) {
		vgpu_cl_place_set_user_event_status(at, &parts);
		parts.message->event = event->object.handle;
		parts.message->status = status;
		vgpu_send_commit();
	}
	atomic_fetch_sub(&user_events_open, 1);
	event_set(event, status);
	vgpu_kick();
	return at ? CL_SUCCESS : LOST;
}

API(cl_int, clSetEventCallback, cl_event event, cl_int type, void (CL_CALLBACK *function)(cl_event, cl_int, void *),
    void *user)
{
	struct event_callback *callback;
	cl_int status;

	if (!object_check(event, VGPU_CL_KIND_EVENT))
		return CL_INVALID_EVENT;
	if (!function || (type != CL_SUBMITTED && type != CL_RUNNING && type != CL_COMPLETE))
		return CL_INVALID_VALUE;
	if (!vgpu_usable())
		return LOST;
	callback = calloc(1, sizeof(*callback));
	if (!callback)
		return CL_OUT_OF_HOST_MEMORY;
	if (!callbacks_start()) {
		free(callback);
		return CL_OUT_OF_RESOURCES;
	}
	callback->event = event;
	callback->type = type;
	callback->function = function;
	callback->user = user;
	object_hold(event);
	callbacks_expect(1);
	pthread_mutex_lock(&event->lock);
	status = event->status;
	if (status > type) {
		callback->next = event->callbacks;
		event->callbacks = callback;
	}
	pthread_mutex_unlock(&event->lock);
	if (status <= type) {
		callback->status = status < 0 ? status : type;
		callback_event(callback);
	}
	vgpu_kick();
	return CL_SUCCESS;
}
