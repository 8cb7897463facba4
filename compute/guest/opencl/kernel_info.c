// SPDX-License-Identifier: Apache-2.0
/* Queries of kernels, their arguments and their work groups. */
#include "guest/opencl/kernel.h"

static cl_int ask(uint32_t what, cl_kernel kernel, uint32_t param, cl_uint device, cl_uint index, size_t room,
		  void *target, size_t *returned)
{
	void *value;
	size_t bytes;
	cl_int status = query(what, kernel->object.handle, param, device, index, NULL, 0, &value, &bytes);

	if (!status)
		status = give(value, bytes, room, target, returned);
	free(value);
	return status;
}

API(cl_int, clGetKernelInfo, cl_kernel kernel, cl_kernel_info param, size_t room, void *target, size_t *returned)
{
	if (!object_check(kernel, VGPU_CL_KIND_KERNEL))
		return CL_INVALID_KERNEL;
	switch (param) {
	case CL_KERNEL_FUNCTION_NAME:
		return give_text(kernel->name, room, target, returned);
	case CL_KERNEL_NUM_ARGS:
		GIVE(cl_uint, kernel->argument_count);
	case CL_KERNEL_REFERENCE_COUNT:
		GIVE(cl_uint, kernel->object.references);
	case CL_KERNEL_CONTEXT:
		GIVE(cl_context, kernel->program->context);
	case CL_KERNEL_PROGRAM:
		GIVE(cl_program, kernel->program);
	case CL_KERNEL_ATTRIBUTES:
		if (kernel->attributes)
			return give_text(kernel->attributes, room, target, returned);
		return ask(VGPU_CL_QUERY_KERNEL, kernel, param, 0, 0, room, target, returned);
	}
	return CL_INVALID_VALUE;
}

API(cl_int, clGetKernelArgInfo, cl_kernel kernel, cl_uint index, cl_kernel_arg_info param, size_t room, void *target,
    size_t *returned)
{
	const struct kernel_argument *argument;

	if (!object_check(kernel, VGPU_CL_KIND_KERNEL))
		return CL_INVALID_KERNEL;
	if (index >= kernel->argument_count)
		return CL_INVALID_ARG_INDEX;
	argument = &kernel->arguments[index];
	if (param < CL_KERNEL_ARG_ADDRESS_QUALIFIER || param > CL_KERNEL_ARG_NAME)
		return CL_INVALID_VALUE;
	if (!argument->information.address)
		return CL_KERNEL_ARG_INFO_NOT_AVAILABLE;
	switch (param) {
	case CL_KERNEL_ARG_ADDRESS_QUALIFIER:
		GIVE(cl_kernel_arg_address_qualifier, argument->information.address);
	case CL_KERNEL_ARG_ACCESS_QUALIFIER:
		GIVE(cl_kernel_arg_access_qualifier, argument->information.access);
	case CL_KERNEL_ARG_TYPE_QUALIFIER:
		GIVE(cl_kernel_arg_type_qualifier, argument->information.type);
	case CL_KERNEL_ARG_TYPE_NAME:
		if (argument->type_name)
			return give_text(argument->type_name, room, target, returned);
		break;
	case CL_KERNEL_ARG_NAME:
		if (argument->name)
			return give_text(argument->name, room, target, returned);
		break;
	}
	return ask(VGPU_CL_QUERY_KERNEL_ARGUMENT, kernel, param, 0, index, room, target, returned);
}

int kernel_device(cl_kernel kernel, cl_device_id device)
{
	cl_context context = kernel->program->context;

	if (!device)
		return context->device_count == 1 ? 0 : -1;
	return object_check(device, KIND_DEVICE) ? device_find(device, context->devices, context->device_count) : -1;
}

API(cl_int, clGetKernelWorkGroupInfo, cl_kernel kernel, cl_device_id device, cl_kernel_work_group_info param,
    size_t room, void *target, size_t *returned)
{
	const struct vgpu_cl_work_group *group;
	cl_ulong local = 0;
	int index;

	if (!object_check(kernel, VGPU_CL_KIND_KERNEL))
		return CL_INVALID_KERNEL;
	index = kernel_device(kernel, device);
	if (index < 0)
		return CL_INVALID_DEVICE;
	group = &kernel->work_groups[index];
	switch (param) {
	case CL_KERNEL_WORK_GROUP_SIZE:
		GIVE(size_t, group->work_group_bytes);
	case CL_KERNEL_COMPILE_WORK_GROUP_SIZE:
		return give(group->required, sizeof(group->required), room, target, returned);
	case CL_KERNEL_LOCAL_MEM_SIZE:
		for (cl_uint i = 0; i < kernel->argument_count; i++)
			if (kernel->arguments[i].set && kernel->arguments[i].value.kind == VGPU_CL_ARGUMENT_KIND_LOCAL)
				local += kernel->arguments[i].value.bytes;
		GIVE(cl_ulong, group->local_bytes + local);
	case CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE:
		GIVE(size_t, group->multiple);
	case CL_KERNEL_PRIVATE_MEM_SIZE:
		GIVE(cl_ulong, group->private_bytes);
	case CL_KERNEL_GLOBAL_WORK_SIZE:
		return ask(VGPU_CL_QUERY_KERNEL_WORK_GROUP, kernel, param,
			   kernel->program->context->devices[index]->index, 0, room, target, returned);
	}
	return CL_INVALID_VALUE;
}

API(cl_int, clGetKernelSubGroupInfo, cl_kernel kernel, cl_device_id device, cl_kernel_sub_group_info param,
    size_t input_bytes, const void *input, size_t room, void *target, size_t *returned)
{
	uint64_t numbers[3] = { 0 };
	size_t bytes;
	void *value;
	cl_int status;
	int index;

	if (!object_check(kernel, VGPU_CL_KIND_KERNEL))
		return CL_INVALID_KERNEL;
	index = kernel_device(kernel, device);
	if (index < 0)
		return CL_INVALID_DEVICE;
	if (input_bytes > sizeof(numbers) || input_bytes % sizeof(size_t) || !input_bytes != !input)
		return CL_INVALID_VALUE;
	if (input)
		memcpy(numbers, input, input_bytes);
	status = query(VGPU_CL_QUERY_KERNEL_SUB_GROUP, kernel->object.handle, param,
		       kernel->program->context->devices[index]->index, 0, numbers,
		       (uint32_t)(input_bytes / sizeof(size_t)), &value, &bytes);
	if (!status)
		status = give(value, bytes, room, target, returned);
	free(value);
	return status;
}

API(cl_int, clGetKernelSubGroupInfoKHR, cl_kernel kernel, cl_device_id device, cl_kernel_sub_group_info param,
    size_t input_bytes, const void *input, size_t room, void *target, size_t *returned)
{
	return vgpu_clGetKernelSubGroupInfo(kernel, device, param, input_bytes, input, room, target, returned);
}
