// SPDX-License-Identifier: Apache-2.0
/* Command queues, and commands that only mark a place in a queue. */
#include "guest/opencl/context.h"

void queue_end(struct _cl_command_queue *queue)
{
	send_release(VGPU_CL_KIND_QUEUE, queue->object.handle);
	free(queue->list);
	object_drop(queue->context);
}

static cl_command_queue create(cl_context context, cl_device_id device, cl_command_queue_properties properties,
			       cl_int *error)
{
	struct vgpu_cl_create_queue_parts parts;
	struct _cl_command_queue *queue = NULL;
	cl_int status = CL_SUCCESS;
	struct call call;
	void *at;

	if (!object_check(context, VGPU_CL_KIND_CONTEXT))
		status = CL_INVALID_CONTEXT;
	else if (!object_check(device, KIND_DEVICE) ||
		 device_find(device, context->devices, context->device_count) < 0)
		status = CL_INVALID_DEVICE;
	else if (properties & ~(cl_command_queue_properties)(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE |
							     CL_QUEUE_PROFILING_ENABLE))
		status = properties & (CL_QUEUE_ON_DEVICE | CL_QUEUE_ON_DEVICE_DEFAULT) ?
				 CL_INVALID_QUEUE_PROPERTIES : CL_INVALID_VALUE;
	else if (properties & ~device->queue_properties)
		status = CL_INVALID_QUEUE_PROPERTIES;
	if (!status && !(queue = object_new(VGPU_CL_KIND_QUEUE)))
		status = CL_OUT_OF_HOST_MEMORY;
	if (!status) {
		queue->context = context;
		queue->device = device;
		queue->properties = properties;
		object_hold(context);
		at = call_begin(&call, vgpu_cl_bytes_of_create_queue());
		status = call.status;
		if (at) {
			vgpu_cl_place_create_queue(at, &parts);
			parts.message->queue = queue->object.handle;
			parts.message->context = context->object.handle;
			parts.message->device = device->index;
			parts.message->properties = properties;
			status = call_wait(&call, &parts.message->header);
			call_end(&call);
		}
		if (status) {
			object_drop(queue);
			vgpu_cl_bury();
			queue = NULL;
		}
	}
	if (error)
		*error = status;
	return queue;
}

API(cl_command_queue, clCreateCommandQueue, cl_context context, cl_device_id device,
    cl_command_queue_properties properties, cl_int *error)
{
	return create(context, device, properties, error);
}

API(cl_command_queue, clCreateCommandQueueWithProperties, cl_context context, cl_device_id device,
    const cl_queue_properties *list, cl_int *error)
{
	cl_command_queue_properties properties = 0;
	cl_command_queue queue;
	size_t count = 0;

	for (; list && list[count]; count += 2) {
		if (list[count] == CL_QUEUE_PROPERTIES) {
			properties = list[count + 1];
			continue;
		}
		/* CL_QUEUE_SIZE is for queues on the device, which are not supported. */
		if (error)
			*error = list[count] == CL_QUEUE_SIZE ? CL_INVALID_QUEUE_PROPERTIES : CL_INVALID_VALUE;
		return NULL;
	}
	queue = create(context, device, properties, error);
	if (queue && list) {
		queue->list_bytes = (count + 1) * sizeof(*list);
		queue->list = malloc(queue->list_bytes);
		if (queue->list)
			memcpy(queue->list, list, queue->list_bytes);
		else
			queue->list_bytes = 0;
	}
	return queue;
}

API(cl_int, clRetainCommandQueue, cl_command_queue queue)
{
	return object_retain(queue, VGPU_CL_KIND_QUEUE, CL_INVALID_COMMAND_QUEUE);
}

static cl_int send_flush(cl_command_queue queue)
{
	struct vgpu_cl_flush_parts parts;
	void *at = vgpu_send_begin((uint32_t)vgpu_cl_bytes_of_flush());

	if (!at)
		return LOST;
	vgpu_cl_place_flush(at, &parts);
	parts.message->queue = queue->object.handle;
	vgpu_send_commit();
	return CL_SUCCESS;
}

static void last_reference(void *queue)
{
	send_flush(queue);
}

API(cl_int, clReleaseCommandQueue, cl_command_queue queue)
{
	return object_release(queue, VGPU_CL_KIND_QUEUE, CL_INVALID_COMMAND_QUEUE, last_reference);
}

API(cl_int, clGetCommandQueueInfo, cl_command_queue queue, cl_command_queue_info param, size_t room, void *target,
    size_t *returned)
{
	if (!object_check(queue, VGPU_CL_KIND_QUEUE))
		return CL_INVALID_COMMAND_QUEUE;
	switch (param) {
	case CL_QUEUE_CONTEXT:
		GIVE(cl_context, queue->context);
	case CL_QUEUE_DEVICE:
		GIVE(cl_device_id, queue->device);
	case CL_QUEUE_REFERENCE_COUNT:
		GIVE(cl_uint, queue->object.references);
	case CL_QUEUE_PROPERTIES:
		GIVE(cl_command_queue_properties, queue->properties);
	case CL_QUEUE_PROPERTIES_ARRAY:
		return give(queue->list, queue->list_bytes, room, target, returned);
	case CL_QUEUE_SIZE:
		return CL_INVALID_COMMAND_QUEUE;
	case CL_QUEUE_DEVICE_DEFAULT:
		GIVE(cl_command_queue, NULL);
	}
	return CL_INVALID_VALUE;
}

API(cl_int, clFlush, cl_command_queue queue)
{
	if (!object_check(queue, VGPU_CL_KIND_QUEUE))
		return CL_INVALID_COMMAND_QUEUE;
	vgpu_drain();
	vgpu_cl_bury();
	return send_flush(queue);
}

struct finish {
	struct vgpu_pending pending;
	atomic_int *unreported;	/* where an error is stored before others can finish the queue, or NULL */
	atomic_bool done;
	cl_int status;
};

static bool finish_reply(struct vgpu_pending *pending, const struct vgpu_message *message, uint32_t bytes)
{
	struct finish *finish = (struct finish *)pending;
	cl_ulong times[4];

	finish->status = completion_status(message, bytes, times);
	if (finish->unreported && finish->status)
		atomic_store(finish->unreported, finish->status);
	atomic_store(&finish->done, true);
	return true;
}

static bool finish_done(void *argument)
{
	return atomic_load(&((struct finish *)argument)->done);
}

/* Records that the first @sent commands have ended. */
static void finished(cl_command_queue queue, uint_fast64_t sent)
{
	uint_fast64_t before = queue->finished;

	while (before < sent && !atomic_compare_exchange_weak(&queue->finished, &before, sent))
		;
}

bool queue_idle(cl_command_queue queue)
{
	return vgpu_usable() && queue->finished == queue->sent && !atomic_load(&queue->held);
}

static cl_int queue_finish(cl_command_queue queue, atomic_int *unreported)
{
	struct finish finish = { .pending.reply = finish_reply, .unreported = unreported, .status = LOST };
	struct vgpu_cl_finish_parts parts;
	struct command command;
	uint_fast64_t sent;
	cl_int status;
	void *at;

	/* Nothing was sent since the last FINISH, so nothing can have failed. */
	if (vgpu_usable() && queue->finished == queue->sent)
		return held_wait(queue) ? CL_SUCCESS : LOST;
	status = command_begin(&command, queue, 0, 0, NULL, NULL);
	if (status)
		return status;
	command.pending = &finish.pending;
	at = vgpu_send_begin((uint32_t)vgpu_cl_bytes_of_finish(0));
	if (!at)
		return LOST;
	vgpu_cl_place_finish(at, 0, &parts);
	if (!command_fill(&command, parts.message, parts.waits)) {
		vgpu_send_cancel();
		return CL_OUT_OF_RESOURCES;
	}
	sent = queue->sent;	/* the send lock is held, so this FINISH is the last of these commands */
	vgpu_send_commit();
	if (!vgpu_wait(finish_done, &finish) || !held_wait(queue))
		return LOST;
	vgpu_cl_bury();
	if (!finish.status)
		finished(queue, sent);
	return finish.status;
}

bool queue_make_idle(cl_command_queue queue)
{
	return queue_finish(queue, &queue->unreported) == CL_SUCCESS;
}

API(cl_int, clFinish, cl_command_queue queue)
{
	cl_int status = check_command(queue, 0, NULL), before;

	if (status)
		return status;
	status = queue_finish(queue, NULL);
	before = atomic_exchange(&queue->unreported, CL_SUCCESS);
	return before ? before : status;
}

static cl_int place_in_queue(uint32_t op, cl_command_queue queue, cl_command_type type, cl_uint count,
			     const cl_event *waits, cl_event *event)
{
	cl_int status = check_command(queue, count, waits);

	return status ? status : command_plain(op, queue, type, count, waits, event);
}

API(cl_int, clEnqueueMarkerWithWaitList, cl_command_queue queue, cl_uint count, const cl_event *waits, cl_event *event)
{
	return place_in_queue(VGPU_CL_MARKER, queue, CL_COMMAND_MARKER, count, waits, event);
}

API(cl_int, clEnqueueBarrierWithWaitList, cl_command_queue queue, cl_uint count, const cl_event *waits,
    cl_event *event)
{
	return place_in_queue(VGPU_CL_BARRIER, queue, CL_COMMAND_BARRIER, count, waits, event);
}

API(cl_int, clEnqueueMarker, cl_command_queue queue, cl_event *event)
{
	if (object_check(queue, VGPU_CL_KIND_QUEUE) && !event)
		return CL_INVALID_VALUE;
	return place_in_queue(VGPU_CL_MARKER, queue, CL_COMMAND_MARKER, 0, NULL, event);
}

API(cl_int, clEnqueueBarrier, cl_command_queue queue)
{
	return place_in_queue(VGPU_CL_BARRIER, queue, CL_COMMAND_BARRIER, 0, NULL, NULL);
}

API(cl_int, clEnqueueWaitForEvents, cl_command_queue queue, cl_uint count, const cl_event *waits)
{
	if (!object_check(queue, VGPU_CL_KIND_QUEUE))
		return CL_INVALID_COMMAND_QUEUE;
	if (!count || !waits)
		return CL_INVALID_VALUE;
	for (cl_uint i = 0; i < count; i++)
		if (!object_check(waits[i], VGPU_CL_KIND_EVENT))
			return CL_INVALID_EVENT;
	return place_in_queue(VGPU_CL_BARRIER, queue, CL_COMMAND_BARRIER, count, waits, NULL);
}
