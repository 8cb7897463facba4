// SPDX-License-Identifier: Apache-2.0
/* Launches of kernels. */
#include "guest/opencl/kernel.h"

static cl_int check_sizes(cl_kernel kernel, cl_device_id device, cl_uint dimensions, const size_t *offset,
			  const size_t *global, const size_t *local)
{
	const struct vgpu_cl_work_group *group = &kernel->work_groups[kernel_device(kernel, device)];
	uint64_t items = 1;

	if (dimensions < 1 || dimensions > device->dimensions)
		return CL_INVALID_WORK_DIMENSION;
	if (!global)
		return CL_INVALID_GLOBAL_WORK_SIZE;
	for (cl_uint i = 0; i < dimensions; i++) {
		size_t end;

		if (!global[i])
			return CL_INVALID_GLOBAL_WORK_SIZE;
		if (offset && __builtin_add_overflow(offset[i], global[i], &end))
			return CL_INVALID_GLOBAL_OFFSET;
	}
	if (group->required[0] || group->required[1] || group->required[2]) {
		if (!local)
			return CL_INVALID_WORK_GROUP_SIZE;
		for (cl_uint i = 0; i < dimensions; i++)
			if (local[i] != group->required[i])
				return CL_INVALID_WORK_GROUP_SIZE;
	}
	for (cl_uint i = 0; local && i < dimensions; i++) {
		if (!local[i])
			return CL_INVALID_WORK_GROUP_SIZE;
		if (local[i] > device->item_sizes[i])
			return CL_INVALID_WORK_ITEM_SIZE;
		if (global[i] % local[i] && !device->non_uniform)
			return CL_INVALID_WORK_GROUP_SIZE;
		items *= local[i];	/* no overflow: the device limits each factor */
		if (items > group->work_group_bytes)
			return CL_INVALID_WORK_GROUP_SIZE;
	}
	return CL_SUCCESS;
}

static void place_arguments(cl_kernel kernel, struct vgpu_cl_argument *arguments, uint8_t *data)
{
	uint32_t at = 0;

	for (cl_uint i = 0; i < kernel->argument_count; i++) {
		const struct kernel_argument *argument = &kernel->arguments[i];

		arguments[i] = argument->value;
		if (argument->value.kind != VGPU_CL_ARGUMENT_KIND_VALUE || argument->value.bytes <= 8)
			continue;
		arguments[i].value = at;
		memcpy(data + at, argument->data, argument->value.bytes);
		at += (uint32_t)vgpu_padded(argument->value.bytes);
	}
}

static cl_int launch(cl_command_queue queue, cl_kernel kernel, cl_command_type type, cl_uint dimensions,
		     const size_t *offset, const size_t *global, const size_t *local, cl_uint count,
		     const cl_event *waits, cl_event *event)
{
	struct vgpu_cl_launch_parts parts;
	struct vgpu_cl_launch *m;
	struct command command;
	cl_int status;
	void *at;

	if (!object_check(queue, VGPU_CL_KIND_QUEUE))
		return CL_INVALID_COMMAND_QUEUE;
	if (!object_check(kernel, VGPU_CL_KIND_KERNEL))
		return CL_INVALID_KERNEL;
	if (kernel->program->context != queue->context)
		return CL_INVALID_CONTEXT;
	status = check_waits(queue->context, count, waits);
	if (status)
		return status;
	if (kernel->missing)
		return CL_INVALID_KERNEL_ARGS;
	status = check_sizes(kernel, queue->device, dimensions, offset, global, local);
	if (status)
		return status;
	if (kernel->data_bytes > VGPU_CL_ARGUMENT_DATA_MAX)
		return CL_OUT_OF_RESOURCES;
	status = command_begin(&command, queue, type, count, waits, event);
	if (status)
		return status;
	at = vgpu_send_begin((uint32_t)vgpu_cl_bytes_of_launch(command.wait_count, kernel->argument_count,
							       kernel->data_bytes));
	if (!at)
		return command_fail(&command, LOST);
	m = vgpu_cl_place_launch(at, command.wait_count, kernel->argument_count, kernel->data_bytes, &parts);
	m->kernel = kernel->object.handle;
	m->dimensions = dimensions;
	m->has = (offset ? 1u : 0u) | (local ? 2u : 0u);
	for (cl_uint i = 0; i < 3; i++) {
		m->offset[i] = offset && i < dimensions ? offset[i] : 0;
		m->global[i] = i < dimensions ? global[i] : 1;
		m->local[i] = local && i < dimensions ? local[i] : 1;
	}
	place_arguments(kernel, parts.arguments, parts.data);
	if (!command_fill(&command, m, parts.waits)) {
		vgpu_send_cancel();
		return command_fail(&command, CL_OUT_OF_RESOURCES);
	}
	vgpu_send_commit();
	return command_sent(&command, event);
}

API(cl_int, clEnqueueNDRangeKernel, cl_command_queue queue, cl_kernel kernel, cl_uint dimensions, const size_t *offset,
    const size_t *global, const size_t *local, cl_uint count, const cl_event *waits, cl_event *event)
{
	return launch(queue, kernel, CL_COMMAND_NDRANGE_KERNEL, dimensions, offset, global, local, count, waits,
		      event);
}

API(cl_int, clEnqueueTask, cl_command_queue queue, cl_kernel kernel, cl_uint count, const cl_event *waits,
    cl_event *event)
{
	const size_t one = 1;

	return launch(queue, kernel, CL_COMMAND_TASK, 1, NULL, &one, &one, count, waits, event);
}
