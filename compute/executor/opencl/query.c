/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GET: queries that the client cannot answer by itself.  Queries for a handle, a pointer or a
 * reference count are refused: the client knows these itself, and addresses of this process must
 * not leave it.
 */
#include <stdlib.h>
#include <string.h>

#include "program.h"

/* A value to return; @bytes is its whole length. */
struct value {
	const void *at;	/* NULL: the value is in @own */
	uint8_t *own;
	size_t bytes;
};

static cl_int own(struct value *value, const void *bytes, size_t count)
{
	value->own = malloc(count + 1);
	if (!value->own)
		return CL_OUT_OF_HOST_MEMORY;
	memcpy(value->own, bytes, count);
	value->bytes = count;
	return CL_SUCCESS;
}

static cl_int number32(struct value *value, uint32_t number)
{
	return own(value, &number, sizeof(number));
}

static cl_int number64(struct value *value, uint64_t number)
{
	return own(value, &number, sizeof(number));
}

static void borrow(struct value *value, const void *bytes, size_t count)
{
	value->at = bytes ? bytes : "";
	value->bytes = count;
}

/* Calls a clGet...Info function without further arguments twice: for the length, and for the value. */
typedef cl_int CL_API_CALL get_info(void *object, cl_uint param, size_t room, void *value,
				    size_t *bytes);

static cl_int ask(get_info *get, void *object, cl_uint param, struct value *value)
{
	size_t bytes = 0;
	cl_int error = get(object, param, 0, NULL, &bytes);

	if (error)
		return error;
	value->own = malloc(bytes + 1);
	if (!value->own)
		return CL_OUT_OF_HOST_MEMORY;
	error = get(object, param, bytes, value->own, NULL);
	value->bytes = bytes;
	return error;
}

static cl_int get_program(struct vgpu_backend *backend, const struct vgpu_cl_get *m,
			  struct value *value)
{
	struct program_device *device;
	struct program *program;
	size_t sizes[VGPU_CL_DEVICES_MAX];
	cl_int error;

	program = opencl_use(backend, VGPU_CL_KIND_PROGRAM, m->handle, &error);
	if (!program)
		return error;
	switch (m->param) {
	case CL_PROGRAM_NUM_DEVICES:
		return number32(value, program->device_count);
	case CL_PROGRAM_SOURCE:
		borrow(value, program->source, program->source ? program->source_bytes + 1 : 1);
		return CL_SUCCESS;
	case CL_PROGRAM_IL:
		borrow(value, NULL, 0);
		return CL_SUCCESS;
	case CL_PROGRAM_BINARY_SIZES:
		for (uint32_t i = 0; i < program->device_count; i++)
			sizes[i] = program->devices[i].binary_bytes;
		return own(value, sizes, program->device_count * sizeof(*sizes));
	case CL_PROGRAM_BINARIES:
		device = opencl_program_device(program, m->device);
		if (!device)
			return CL_INVALID_DEVICE;
		borrow(value, device->binary, device->binary_bytes);
		return CL_SUCCESS;
	case CL_PROGRAM_NUM_KERNELS:
	case CL_PROGRAM_KERNEL_NAMES:
	case CL_PROGRAM_SCOPE_GLOBAL_CTORS_PRESENT:
	case CL_PROGRAM_SCOPE_GLOBAL_DTORS_PRESENT:
		if (!program->library)
			return CL_INVALID_PROGRAM_EXECUTABLE;
		return ask((get_info *)backend->library->clGetProgramInfo, program->library,
			   m->param, value);
	}
	return CL_INVALID_VALUE;
}

static cl_int get_program_build(struct vgpu_backend *backend, const struct vgpu_cl_get *m,
				struct value *value)
{
	struct program_device *device;
	struct program *program;
	cl_int error;

	program = opencl_use(backend, VGPU_CL_KIND_PROGRAM, m->handle, &error);
	if (!program)
		return error;
	device = opencl_program_device(program, m->device);
	if (!device)
		return CL_INVALID_DEVICE;
	switch (m->param) {
	case CL_PROGRAM_BUILD_STATUS:
		return number32(value, program->building ? (uint32_t)CL_BUILD_IN_PROGRESS :
							    (uint32_t)device->status);
	case CL_PROGRAM_BUILD_OPTIONS:
		borrow(value, device->options, device->options ? strlen(device->options) + 1 : 1);
		return CL_SUCCESS;
	case CL_PROGRAM_BUILD_LOG:
		borrow(value, device->log, device->log_bytes + 1);
		return CL_SUCCESS;
	case CL_PROGRAM_BINARY_TYPE:
		return number32(value, device->type);
	case CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE:
		return number64(value, 0);
	}
	return CL_INVALID_VALUE;
}

static cl_int get_kernel(struct vgpu_backend *backend, const struct vgpu_cl_get *m,
			 struct value *value)
{
	const cl_icd_dispatch *library = backend->library;
	struct kernel *kernel;
	size_t bytes = 0;
	cl_device_id device;
	cl_int error;

	kernel = opencl_use(backend, VGPU_CL_KIND_KERNEL, m->handle, &error);
	if (!kernel)
		return error;
	if (m->query == VGPU_CL_QUERY_KERNEL) {
		if (m->param == CL_KERNEL_CONTEXT || m->param == CL_KERNEL_PROGRAM ||
		    m->param == CL_KERNEL_REFERENCE_COUNT)
			return CL_INVALID_VALUE;
		return ask((get_info *)library->clGetKernelInfo, kernel->library, m->param, value);
	}
	if (m->query == VGPU_CL_QUERY_KERNEL_ARGUMENT) {
		error = library->clGetKernelArgInfo(kernel->library, m->index, m->param, 0, NULL,
						    &bytes);
		value->own = error ? NULL : malloc(bytes + 1);
		value->bytes = bytes;
		if (!error && value->own)
			error = library->clGetKernelArgInfo(kernel->library, m->index, m->param,
							    bytes, value->own, NULL);
		return error;
	}
	if (m->device >= backend->device_count)
		return CL_INVALID_DEVICE;
	device = backend->devices[m->device];
	/* These queries return only a few numbers. */
	value->own = calloc(1, 256);
	if (!value->own)
		return CL_OUT_OF_HOST_MEMORY;
	if (m->query == VGPU_CL_QUERY_KERNEL_WORK_GROUP)
		error = library->clGetKernelWorkGroupInfo(kernel->library, device, m->param, 256,
							  value->own, &bytes);
	else if (!library->clGetKernelSubGroupInfo)
		error = CL_INVALID_OPERATION;
	else if (m->input_count > 3)
		error = CL_INVALID_VALUE;
	else
		error = library->clGetKernelSubGroupInfo(
			kernel->library, device, m->param, m->input_count * sizeof(size_t),
			m->input_count ? m->input : NULL, 256, value->own, &bytes);
	value->bytes = bytes > 256 ? 256 : bytes;
	return error;
}

static cl_int get_memory(struct vgpu_backend *backend, const struct vgpu_cl_get *m,
			 struct value *value)
{
	struct memory *memory;
	cl_int error;

	memory = opencl_use(backend, VGPU_CL_KIND_MEMORY, m->handle, &error);
	if (!memory)
		return error;
	if (m->query == VGPU_CL_QUERY_IMAGE) {
		if (!memory->image)
			return CL_INVALID_MEM_OBJECT;
		if (m->param == CL_IMAGE_BUFFER)
			return CL_INVALID_VALUE;
		return ask((get_info *)backend->library->clGetImageInfo, memory->library, m->param,
			   value);
	}
	switch (m->param) {
	case CL_MEM_TYPE:
	case CL_MEM_FLAGS:
	case CL_MEM_SIZE:
	case CL_MEM_OFFSET:
		return ask((get_info *)backend->library->clGetMemObjectInfo, memory->library,
			   m->param, value);
	}
	return CL_INVALID_VALUE;
}

static cl_int get_device(struct vgpu_backend *backend, const struct vgpu_cl_get *m,
			 struct value *value)
{
	cl_int error;

	if (m->device >= backend->device_count)
		return CL_INVALID_DEVICE;
	if (opencl_is_handle_of_device(m->param))
		return CL_INVALID_VALUE;
	error = ask((get_info *)backend->library->clGetDeviceInfo, backend->devices[m->device],
		    m->param, value);
	if (!error)
		opencl_adjust_device(backend, m->param, value->own, &value->bytes);
	return error;
}

static cl_int get(struct vgpu_backend *backend, const struct vgpu_cl_get *m, struct value *value)
{
	switch (m->query) {
	case VGPU_CL_QUERY_PROGRAM:
		return get_program(backend, m, value);
	case VGPU_CL_QUERY_PROGRAM_BUILD:
		return get_program_build(backend, m, value);
	case VGPU_CL_QUERY_KERNEL:
	case VGPU_CL_QUERY_KERNEL_ARGUMENT:
	case VGPU_CL_QUERY_KERNEL_WORK_GROUP:
	case VGPU_CL_QUERY_KERNEL_SUB_GROUP:
		return get_kernel(backend, m, value);
	case VGPU_CL_QUERY_MEMORY:
	case VGPU_CL_QUERY_IMAGE:
		return get_memory(backend, m, value);
	case VGPU_CL_QUERY_DEVICE:
		return get_device(backend, m, value);
	}
	return CL_INVALID_VALUE;
}

bool opencl_get(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	struct vgpu_cl_get_answer_parts parts;
	struct vgpu_cl_get_view view;
	const struct vgpu_cl_get *m;
	struct value value = { 0 };
	uint64_t wanted = 0, inline_bytes;
	cl_int error;

	if (!vgpu_cl_decode_get(message, message->bytes, backend->bulk_bytes, &view))
		return false;
	m = view.message;
	error = get(backend, m, &value);
	if (!value.at)
		value.at = value.own;
	if (!error && !value.at)
		error = CL_OUT_OF_HOST_MEMORY;
	if (!error)
		wanted = m->value_bytes < value.bytes ? m->value_bytes : value.bytes;
	inline_bytes = m->value_offset == VGPU_CL_INLINE ? wanted : 0;
	vgpu_cl_place_get_answer(backend->answer, inline_bytes, &parts);
	parts.message->bytes = error ? 0 : value.bytes;
	if (inline_bytes)
		memcpy(parts.value, value.at, inline_bytes);
	else if (wanted)
		memcpy(backend->bulk + m->value_offset, value.at, wanted);
	free(value.own);
	opencl_answer_placed(backend, message, error);
	return true;
}
