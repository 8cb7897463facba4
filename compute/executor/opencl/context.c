/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts, command queues, user events and samplers. */
#include <stdlib.h>
#include <string.h>

#include "backend_private.h"

/* The library calls this on any thread to report an error that concerns the context. */
static void CL_CALLBACK context_news(const char *text, const void *data, size_t bytes, void *user)
{
	struct context *context = user;
	struct vgpu_child_services *services = &context->backend->services;
	union {
		struct vgpu_cl_context_news message;
		uint64_t align;
		uint8_t space[sizeof(struct vgpu_cl_context_news) + 4096];
	} out;
	struct vgpu_cl_context_news_parts parts;
	size_t length = text ? strnlen(text, 4096) : 0;

	(void)data;
	(void)bytes;
	if (!services->reply_room(services->child))
		return;
	vgpu_cl_place_context_news(&out, length, &parts);
	memcpy(parts.text, text, length);
	services->reply(services->child, &out.message.header);
}

static void destroy_context(struct vgpu_backend *backend, struct object *object)
{
	struct context *context = (struct context *)object;

	if (context->library)
		backend->library->clReleaseContext(context->library);
	opencl_free_reserved(backend, context->reserved_bytes);
}

static cl_int make_context(struct vgpu_backend *backend, const struct vgpu_cl_create_context *m,
			   const uint32_t *devices, struct context *context)
{
	cl_context_properties properties[] = {
		CL_CONTEXT_PLATFORM, (cl_context_properties)backend->platform, 0,
	};
	cl_device_id list[VGPU_CL_DEVICES_MAX];
	cl_int error;

	if (!m->device_count)
		return CL_INVALID_VALUE;
	context->backend = backend;
	for (uint32_t i = 0; i < m->device_count; i++) {
		if (devices[i] >= backend->device_count)
			return CL_INVALID_DEVICE;
		context->devices[i] = devices[i];
		list[i] = backend->devices[devices[i]];
	}
	context->device_count = m->device_count;
	if (!opencl_reserve(backend, OPENCL_CONTEXT_BYTES))
		return CL_OUT_OF_RESOURCES;
	context->reserved_bytes = OPENCL_CONTEXT_BYTES;
	context->library = backend->library->clCreateContext(properties, m->device_count, list,
							     context_news, context, &error);
	return error;
}

bool opencl_create_context(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	struct vgpu_cl_create_context_view view;
	struct context *context;
	cl_int error = CL_OUT_OF_HOST_MEMORY;

	if (!vgpu_cl_decode_create_context(message, message->bytes, backend->bulk_bytes, &view))
		return false;
	context = opencl_new(backend, VGPU_CL_KIND_CONTEXT, sizeof(*context), destroy_context);
	if (context)
		error = make_context(backend, view.message, view.devices, context);
	opencl_created(backend, message, VGPU_CL_KIND_CONTEXT, view.message->context, context,
		       error);
	return true;
}

static bool has_device(const struct context *context, uint32_t device)
{
	for (uint32_t i = 0; i < context->device_count; i++)
		if (context->devices[i] == device)
			return true;
	return false;
}

static void destroy_queue(struct vgpu_backend *backend, struct object *object)
{
	struct queue *queue = (struct queue *)object;

	if (queue->queue_link) {
		*queue->queue_link = queue->next_queue;
		if (queue->next_queue)
			queue->next_queue->queue_link = queue->queue_link;
	}
	if (queue->library)
		backend->library->clReleaseCommandQueue(queue->library);
	opencl_unref(backend, queue->barrier);
	opencl_unref(backend, queue->context);
}

static cl_int make_queue(struct vgpu_backend *backend, const struct vgpu_cl_create_queue *m,
			 struct queue *queue)
{
	const cl_command_queue_properties known =
		CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | CL_QUEUE_PROFILING_ENABLE;
	struct context *context;
	cl_int error;

	context = opencl_use(backend, VGPU_CL_KIND_CONTEXT, m->context, &error);
	if (!context)
		return error;
	if (m->properties & ~known)
		return CL_INVALID_QUEUE_PROPERTIES;
	if (!has_device(context, m->device))
		return CL_INVALID_DEVICE;
	queue->next_queue = backend->queues;
	queue->queue_link = &backend->queues;
	if (queue->next_queue)
		queue->next_queue->queue_link = &queue->next_queue;
	backend->queues = queue;
	queue->context = opencl_ref(context);
	queue->device = m->device;
	queue->out_of_order = m->properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE;
	queue->profiling = m->properties & CL_QUEUE_PROFILING_ENABLE;
	queue->library = backend->library->clCreateCommandQueue(
		context->library, backend->devices[m->device], m->properties, &error);
	return error;
}

bool opencl_create_queue(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	struct vgpu_cl_create_queue_view view;
	struct queue *queue;
	cl_int error = CL_OUT_OF_HOST_MEMORY;

	if (!vgpu_cl_decode_create_queue(message, message->bytes, backend->bulk_bytes, &view))
		return false;
	queue = opencl_new(backend, VGPU_CL_KIND_QUEUE, sizeof(*queue), destroy_queue);
	if (queue)
		error = make_queue(backend, view.message, queue);
	opencl_created(backend, message, VGPU_CL_KIND_QUEUE, view.message->queue, queue, error);
	return true;
}

/* A flush does nothing: commands are given to the library as soon as the lease permits. */
bool opencl_flush(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	struct vgpu_cl_flush_view view;
	cl_int error;

	if (!vgpu_cl_decode_flush(message, message->bytes, backend->bulk_bytes, &view))
		return false;
	opencl_use(backend, VGPU_CL_KIND_QUEUE, view.message->queue, &error);
	opencl_answer(backend, message, error);
	return true;
}

bool opencl_create_user_event(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	struct vgpu_cl_create_user_event_view view;
	struct event *event = NULL;
	cl_int error;

	if (!vgpu_cl_decode_create_user_event(message, message->bytes, backend->bulk_bytes, &view))
		return false;
	if (opencl_use(backend, VGPU_CL_KIND_CONTEXT, view.message->context, &error))
		event = opencl_new(backend, VGPU_CL_KIND_EVENT, sizeof(*event), NULL);
	if (event) {
		event->user = true;
		event->status = CL_SUBMITTED;
	}
	opencl_created(backend, message, VGPU_CL_KIND_EVENT, view.message->event, event, error);
	return true;
}

bool opencl_set_user_event_status(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	struct vgpu_cl_set_user_event_status_view view;
	struct event *event;
	cl_int error;

	if (!vgpu_cl_decode_set_user_event_status(message, message->bytes, backend->bulk_bytes,
						  &view))
		return false;
	event = opencl_use(backend, VGPU_CL_KIND_EVENT, view.message->event, &error);
	if (event && !event->user)
		error = CL_INVALID_EVENT;
	else if (event && view.message->status > CL_COMPLETE)
		error = CL_INVALID_VALUE;
	else if (event && event->status <= CL_COMPLETE)
		error = CL_INVALID_OPERATION;
	if (!error) {
		event->status = view.message->status;
		opencl_event_given(backend, event);
	}
	opencl_answer(backend, message, error);
	return true;
}

static void destroy_sampler(struct vgpu_backend *backend, struct object *object)
{
	struct sampler *sampler = (struct sampler *)object;

	if (sampler->library)
		backend->library->clReleaseSampler(sampler->library);
	opencl_unref(backend, sampler->context);
}

bool opencl_create_sampler(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	struct vgpu_cl_create_sampler_view view;
	const struct vgpu_cl_create_sampler *m;
	struct context *context;
	struct sampler *sampler = NULL;
	cl_int error;

	if (!vgpu_cl_decode_create_sampler(message, message->bytes, backend->bulk_bytes, &view))
		return false;
	m = view.message;
	context = opencl_use(backend, VGPU_CL_KIND_CONTEXT, m->context, &error);
	if (context)
		sampler = opencl_new(backend, VGPU_CL_KIND_SAMPLER, sizeof(*sampler),
				     destroy_sampler);
	if (sampler) {
		sampler->context = opencl_ref(context);
		sampler->library = backend->library->clCreateSampler(
			context->library, m->normalized, m->addressing, m->filter, &error);
	}
	opencl_created(backend, message, VGPU_CL_KIND_SAMPLER, m->sampler, sampler, error);
	return true;
}
