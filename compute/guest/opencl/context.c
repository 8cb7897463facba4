// SPDX-License-Identifier: Apache-2.0
/* Contexts. */
#include "guest/opencl/context.h"

void context_end(struct _cl_context *context)
{
	send_release(VGPU_CL_KIND_CONTEXT, context->object.handle);
	free(context->properties);
	pthread_mutex_destroy(&context->lock);
}

/*
 * Checks the properties of a context.  Stores their number, including the final 0.  Returns
 * CL_SUCCESS or an error.
 */
static cl_int check_properties(const cl_context_properties *properties, size_t *count)
{
	bool platform = false, sync = false;

	*count = 0;
	if (!properties)
		return CL_SUCCESS;
	for (; properties[*count]; *count += 2) {
		cl_context_properties value = properties[*count + 1];

		switch (properties[*count]) {
		case CL_CONTEXT_PLATFORM:
			if (!object_check((void *)value, KIND_PLATFORM))
				return CL_INVALID_PLATFORM;
			if (platform)
				return CL_INVALID_PROPERTY;
			platform = true;
			break;
		case CL_CONTEXT_INTEROP_USER_SYNC:
			if (sync || (value != CL_TRUE && value != CL_FALSE))
				return CL_INVALID_PROPERTY;
			sync = true;
			break;
		default:
			return CL_INVALID_PROPERTY;
		}
	}
	++*count;
	return CL_SUCCESS;
}

static cl_int send_create(struct _cl_context *context)
{
	struct vgpu_cl_create_context_parts parts;
	struct call call;
	void *at = call_begin(&call, vgpu_cl_bytes_of_create_context(context->device_count));
	cl_int status;

	if (!at)
		return call.status;
	vgpu_cl_place_create_context(at, context->device_count, &parts);
	parts.message->context = context->object.handle;
	for (cl_uint i = 0; i < context->device_count; i++)
		parts.devices[i] = context->devices[i]->index;
	status = call_wait(&call, &parts.message->header);
	call_end(&call);
	return status;
}

static cl_int create(const cl_context_properties *properties, cl_uint count, const cl_device_id *devices,
		     void (CL_CALLBACK *notify)(const char *, const void *, size_t, void *), void *user,
		     cl_context *result)
{
	struct _cl_context *context;
	size_t property_count;
	cl_int status = check_properties(properties, &property_count);

	if (status)
		return status;
	if (!count || !devices || (!notify && user))
		return CL_INVALID_VALUE;
	for (cl_uint i = 0; i < count; i++)
		if (!object_check(devices[i], KIND_DEVICE))
			return CL_INVALID_DEVICE;
	context = object_new(VGPU_CL_KIND_CONTEXT);
	if (!context)
		return CL_OUT_OF_HOST_MEMORY;
	pthread_mutex_init(&context->lock, NULL);
	for (cl_uint i = 0; i < count; i++)	/* duplicate devices count once */
		if (device_find(devices[i], context->devices, context->device_count) < 0)
			context->devices[context->device_count++] = devices[i];
	if (property_count) {
		context->properties_bytes = property_count * sizeof(*properties);
		context->properties = malloc(context->properties_bytes);
		if (!context->properties) {
			object_discard(context);
			return CL_OUT_OF_HOST_MEMORY;
		}
		memcpy(context->properties, properties, context->properties_bytes);
	}
	context->notify = notify;
	context->user = user;
	status = send_create(context);
	if (!status && notify && !callbacks_start())
		status = CL_OUT_OF_RESOURCES;
	if (status) {
		object_drop(context);
		vgpu_cl_bury();
		return status;
	}
	*result = context;
	return CL_SUCCESS;
}

API(cl_context, clCreateContext, const cl_context_properties *properties, cl_uint count, const cl_device_id *devices,
    void (CL_CALLBACK *notify)(const char *, const void *, size_t, void *), void *user, cl_int *error)
{
	cl_context context = NULL;
	cl_int status = create(properties, count, devices, notify, user, &context);

	if (error)
		*error = status;
	return context;
}

API(cl_context, clCreateContextFromType, const cl_context_properties *properties, cl_device_type type,
    void (CL_CALLBACK *notify)(const char *, const void *, size_t, void *), void *user, cl_int *error)
{
	cl_device_id devices[VGPU_CL_DEVICES_MAX];
	cl_context context = NULL;
	size_t property_count;
	cl_uint count = 0;
	cl_int status = check_properties(properties, &property_count);

	if (!status)
		status = vgpu_clGetDeviceIDs(&vgpu_platform, type, VGPU_CL_DEVICES_MAX, devices, &count);
	if (!status)
		status = create(properties, count, devices, notify, user, &context);
	if (error)
		*error = status;
	return context;
}

API(cl_int, clRetainContext, cl_context context)
{
	return object_retain(context, VGPU_CL_KIND_CONTEXT, CL_INVALID_CONTEXT);
}

static void last_reference(void *object)
{
	struct _cl_context *context = object;
	struct end_callback *end, *next;

	if (context->copy_queue) {
		object_hold(context);	/* releasing the queue drops this hold */
		vgpu_clReleaseCommandQueue(context->copy_queue);
	}
	for (end = context->ends; end; end = next) {
		next = end->next;
		((void (CL_CALLBACK *)(cl_context, void *))end->function)(context, end->user);
		free(end);
	}
	context->ends = NULL;
}

API(cl_int, clReleaseContext, cl_context context)
{
	return object_release(context, VGPU_CL_KIND_CONTEXT, CL_INVALID_CONTEXT, last_reference);
}

API(cl_int, clSetContextDestructorCallback, cl_context context,
    void (CL_CALLBACK *function)(cl_context, void *), void *user)
{
	if (!object_check(context, VGPU_CL_KIND_CONTEXT))
		return CL_INVALID_CONTEXT;
	return end_callback_add(&context->ends, &context->lock, (void *)function, user);
}

API(cl_int, clGetContextInfo, cl_context context, cl_context_info param, size_t room, void *target, size_t *returned)
{
	if (!object_check(context, VGPU_CL_KIND_CONTEXT))
		return CL_INVALID_CONTEXT;
	switch (param) {
	case CL_CONTEXT_REFERENCE_COUNT:
		GIVE(cl_uint, context->object.references);
	case CL_CONTEXT_NUM_DEVICES:
		GIVE(cl_uint, context->device_count);
	case CL_CONTEXT_DEVICES:
		return give(context->devices, context->device_count * sizeof(*context->devices), room, target, returned);
	case CL_CONTEXT_PROPERTIES:
		return give(context->properties, context->properties_bytes, room, target, returned);
	}
	return CL_INVALID_VALUE;
}

void context_news(uint32_t handle, const char *text, size_t bytes)
{
	struct _cl_context *context = object_by_handle(VGPU_CL_KIND_CONTEXT, handle);
	char *copy;

	if (!context)
		return;
	copy = context->notify ? strndup(text, bytes) : NULL;
	if (copy)
		callback_context(context, copy);
	free(copy);
	object_drop(context);
}

cl_command_queue context_copy_queue(cl_context context, cl_int *status)
{
	cl_command_queue queue;

	*status = CL_SUCCESS;
	pthread_mutex_lock(&context->lock);
	queue = context->copy_queue;
	pthread_mutex_unlock(&context->lock);
	if (queue)
		return queue;
	queue = vgpu_clCreateCommandQueue(context, context->devices[0], 0, status);
	if (!queue)
		return NULL;
	pthread_mutex_lock(&context->lock);
	if (!context->copy_queue) {
		context->copy_queue = queue;
		queue = NULL;
		/*
		 * The queue holds its context.  Do not count this hold, because the context
		 * must be able to end.
		 */
		atomic_fetch_sub(&context->object.holds, 1);
	}
	pthread_mutex_unlock(&context->lock);
	if (queue)
		vgpu_clReleaseCommandQueue(queue);
	return context->copy_queue;
}
