// SPDX-License-Identifier: Apache-2.0
/* Kernels: their creation and their arguments. */
#include "guest/opencl/kernel.h"

void kernel_end(struct _cl_kernel *kernel)
{
	send_release(VGPU_CL_KIND_KERNEL, kernel->object.handle);
	for (cl_uint i = 0; i < kernel->argument_count; i++)
		free(kernel->arguments[i].data);
	free(kernel->arguments);
	free(kernel->name);
	free(kernel->text);
	atomic_fetch_sub(&kernel->program->kernels, 1);
	object_drop(kernel->program);
}

/* Returns the next string of the answer's text, or NULL at its end. */
static const char *next_text(char **at, const char *end)
{
	char *text = *at, *zero;

	if (text >= end)
		return NULL;
	zero = memchr(text, 0, (size_t)(end - text));
	if (!zero)
		return NULL;
	*at = zero + 1;
	return text;
}

/* Fills in the kernel from CREATE_KERNEL's answer. */
static cl_int take_answer(struct _cl_kernel *kernel, const struct call *call)
{
	struct vgpu_cl_create_kernel_answer_view view;
	const struct vgpu_cl_create_kernel_answer *m;
	char *at;

	if (!call->message || !vgpu_cl_decode_create_kernel_answer(call->message, call->bytes, 0, &view))
		return CL_OUT_OF_RESOURCES;
	m = view.message;
	kernel->arguments = calloc(m->argument_count + 1, sizeof(*kernel->arguments));
	kernel->text = malloc(m->text_bytes + 1);
	if (!kernel->arguments || !kernel->text)
		return CL_OUT_OF_HOST_MEMORY;
	memcpy(kernel->text, view.text, m->text_bytes);
	kernel->argument_count = kernel->missing = m->argument_count;
	memcpy(kernel->work_groups, view.work_groups, m->device_count * sizeof(*kernel->work_groups));
	at = kernel->text;
	kernel->attributes = next_text(&at, kernel->text + m->text_bytes);
	for (uint32_t i = 0; i < m->argument_count; i++) {
		kernel->arguments[i].information = view.arguments[i];
		kernel->arguments[i].type_name = next_text(&at, kernel->text + m->text_bytes);
		kernel->arguments[i].name = next_text(&at, kernel->text + m->text_bytes);
	}
	return CL_SUCCESS;
}

static cl_int create(cl_program program, const char *name, cl_kernel *result)
{
	struct vgpu_cl_create_kernel_parts parts;
	size_t bytes = strlen(name);
	struct _cl_kernel *kernel;
	struct call call;
	cl_int status;
	void *at;

	if (bytes > VGPU_CL_NAME_MAX)
		return CL_INVALID_KERNEL_NAME;
	kernel = object_new(VGPU_CL_KIND_KERNEL);
	if (!kernel)
		return CL_OUT_OF_HOST_MEMORY;
	kernel->program = program;
	object_hold(program);
	atomic_fetch_add(&program->kernels, 1);
	kernel->name = strdup(name);
	at = call_begin(&call, vgpu_cl_bytes_of_create_kernel(bytes));
	status = call.status;
	if (at) {
		vgpu_cl_place_create_kernel(at, bytes, &parts);
		parts.message->kernel = kernel->object.handle;
		parts.message->program = program->object.handle;
		parts.message->name_offset = VGPU_CL_INLINE;
		memcpy(parts.name, name, bytes);
		status = call_wait(&call, &parts.message->header);
		if (!status)
			status = take_answer(kernel, &call);
		call_end(&call);
	}
	if (!status && !kernel->name)
		status = CL_OUT_OF_HOST_MEMORY;
	if (status) {
		object_drop(kernel);
		vgpu_cl_bury();
		return status;
	}
	*result = kernel;
	return CL_SUCCESS;
}

static cl_int check_program(cl_program program)
{
	bool good = false;

	if (!object_check(program, VGPU_CL_KIND_PROGRAM))
		return CL_INVALID_PROGRAM;
	pthread_mutex_lock(&program->lock);
	for (cl_uint i = 0; i < program->device_count; i++)
		good |= program->builds[i].status == CL_BUILD_SUCCESS &&
			program->builds[i].binary_type == CL_PROGRAM_BINARY_TYPE_EXECUTABLE;
	pthread_mutex_unlock(&program->lock);
	return good || program->built_in ? CL_SUCCESS : CL_INVALID_PROGRAM_EXECUTABLE;
}

API(cl_kernel, clCreateKernel, cl_program program, const char *name, cl_int *error)
{
	cl_kernel kernel = NULL;
	cl_int status = check_program(program);

	if (!status)
		status = name ? create(program, name, &kernel) : CL_INVALID_VALUE;
	if (error)
		*error = status;
	return kernel;
}

API(cl_int, clCreateKernelsInProgram, cl_program program, cl_uint count, cl_kernel *kernels, cl_uint *returned)
{
	cl_int status = check_program(program);
	cl_uint made = 0, found = 0;
	char *names, *rest, *name;
	size_t bytes;

	if (status)
		return status;
	status = vgpu_clGetProgramInfo(program, CL_PROGRAM_KERNEL_NAMES, 0, NULL, &bytes);
	if (status)
		return status;
	names = malloc(bytes + 1);
	if (!names)
		return CL_OUT_OF_HOST_MEMORY;
	status = vgpu_clGetProgramInfo(program, CL_PROGRAM_KERNEL_NAMES, bytes, names, NULL);
	for (size_t i = 0; !status && i < bytes && names[i]; i++)
		found += names[i] == ';';
	found += !status && names[0];
	if (!status && kernels && count < found)
		status = CL_INVALID_VALUE;
	name = status || !kernels ? NULL : strtok_r(names, ";", &rest);
	for (; name && !status; name = strtok_r(NULL, ";", &rest)) {
		status = create(program, name, &kernels[made]);
		made += !status;
	}
	while (status && made)
		vgpu_clReleaseKernel(kernels[--made]);
	free(names);
	if (!status && returned)
		*returned = found;
	return status;
}

API(cl_kernel, clCloneKernel, cl_kernel source, cl_int *error)
{
	cl_kernel kernel = NULL;
	cl_int status = object_check(source, VGPU_CL_KIND_KERNEL) ? CL_SUCCESS : CL_INVALID_KERNEL;

	if (!status)
		status = create(source->program, source->name, &kernel);
	for (cl_uint i = 0; !status && i < kernel->argument_count; i++) {
		struct kernel_argument *from = &source->arguments[i], *to = &kernel->arguments[i];

		if (from->data && !(to->data = malloc(from->data_room))) {
			status = CL_OUT_OF_HOST_MEMORY;
		} else if (from->data) {
			memcpy(to->data, from->data, from->data_room);
			to->data_room = from->data_room;
		}
		to->set = from->set;
		to->value = from->value;
	}
	if (!status) {
		kernel->data_bytes = source->data_bytes;
		kernel->missing = source->missing;
	} else if (kernel) {
		vgpu_clReleaseKernel(kernel);
		kernel = NULL;
	}
	if (error)
		*error = status;
	return kernel;
}

API(cl_int, clRetainKernel, cl_kernel kernel)
{
	return object_retain(kernel, VGPU_CL_KIND_KERNEL, CL_INVALID_KERNEL);
}

API(cl_int, clReleaseKernel, cl_kernel kernel)
{
	return object_release(kernel, VGPU_CL_KIND_KERNEL, CL_INVALID_KERNEL, NULL);
}

/*
 * Guesses the kind of an argument without information: a handle if it points to a living
 * object.
 */
static uint32_t guess_kind(size_t bytes, const void *value)
{
	void *pointer;

	if (!value)
		return bytes == sizeof(cl_mem) ? VGPU_CL_ARGUMENT_KIND_BUFFER : VGPU_CL_ARGUMENT_KIND_LOCAL;
	if (bytes != sizeof(pointer))
		return VGPU_CL_ARGUMENT_KIND_VALUE;
	memcpy(&pointer, value, sizeof(pointer));
	if (object_is(pointer, VGPU_CL_KIND_MEMORY))
		return ((cl_mem)pointer)->type == CL_MEM_OBJECT_BUFFER ? VGPU_CL_ARGUMENT_KIND_BUFFER :
									 VGPU_CL_ARGUMENT_KIND_IMAGE;
	return object_is(pointer, VGPU_CL_KIND_SAMPLER) ? VGPU_CL_ARGUMENT_KIND_SAMPLER : VGPU_CL_ARGUMENT_KIND_VALUE;
}

/*
 * Checks an object that the program passes as an argument, and returns its handle, or 0 for
 * NULL.
 */
static cl_int take_object(const struct _cl_kernel *kernel, uint32_t kind, size_t bytes, const void *value,
			  uint64_t *handle)
{
	void *pointer = NULL;
	cl_mem memory;

	if (bytes != sizeof(pointer))
		return CL_INVALID_ARG_SIZE;
	if (value)
		memcpy(&pointer, value, sizeof(pointer));
	*handle = 0;
	if (kind == VGPU_CL_ARGUMENT_KIND_SAMPLER) {
		if (!pointer)
			return CL_INVALID_ARG_VALUE;
		if (!object_is(pointer, VGPU_CL_KIND_SAMPLER))
			return CL_INVALID_SAMPLER;
		*handle = ((struct object *)pointer)->handle;
		return CL_SUCCESS;
	}
	if (!pointer)
		return kind == VGPU_CL_ARGUMENT_KIND_BUFFER ? CL_SUCCESS : CL_INVALID_MEM_OBJECT;
	memory = object_is(pointer, VGPU_CL_KIND_MEMORY) ? pointer : NULL;
	if (!memory || (memory->type == CL_MEM_OBJECT_BUFFER) != (kind == VGPU_CL_ARGUMENT_KIND_BUFFER) ||
	    memory->context != kernel->program->context)
		return CL_INVALID_MEM_OBJECT;
	*handle = memory->object.handle;
	return CL_SUCCESS;
}

static cl_int take_value(struct kernel_argument *argument, size_t bytes, const void *value,
			 struct vgpu_cl_argument *result)
{
	if (!value)
		return CL_INVALID_ARG_VALUE;
	if (!bytes || bytes > VGPU_CL_ARGUMENT_DATA_MAX ||
	    (argument->information.bytes && bytes != argument->information.bytes))
		return CL_INVALID_ARG_SIZE;
	result->bytes = (uint32_t)bytes;
	if (bytes <= sizeof(result->value)) {
		memcpy(&result->value, value, bytes);
		return CL_SUCCESS;
	}
	if (argument->data_room < bytes) {
		uint8_t *data = realloc(argument->data, bytes);

		if (!data)
			return CL_OUT_OF_HOST_MEMORY;
		argument->data = data;
		argument->data_room = (uint32_t)bytes;
	}
	memcpy(argument->data, value, bytes);
	return CL_SUCCESS;
}

static uint32_t data_bytes(const struct kernel_argument *argument)
{
	return argument->set && argument->value.kind == VGPU_CL_ARGUMENT_KIND_VALUE && argument->value.bytes > 8 ?
		       (uint32_t)vgpu_padded(argument->value.bytes) : 0;
}

API(cl_int, clSetKernelArg, cl_kernel kernel, cl_uint index, size_t bytes, const void *value)
{
	struct vgpu_cl_argument result = { 0 };
	struct kernel_argument *argument;
	cl_int status;

	if (!object_check(kernel, VGPU_CL_KIND_KERNEL))
		return CL_INVALID_KERNEL;
	if (index >= kernel->argument_count)
		return CL_INVALID_ARG_INDEX;
	argument = &kernel->arguments[index];
	result.kind = argument->information.kind;
	if (result.kind == VGPU_CL_ARGUMENT_KIND_UNKNOWN)
		result.kind = guess_kind(bytes, value);
	switch (result.kind) {
	case VGPU_CL_ARGUMENT_KIND_VALUE:
		/*
		 * Exclude the size of the old value.  If the new value is refused, include it
		 * again.
		 */
		kernel->data_bytes -= data_bytes(argument);
		status = take_value(argument, bytes, value, &result);
		if (status) {
			kernel->data_bytes += data_bytes(argument);
			return status;
		}
		break;
	case VGPU_CL_ARGUMENT_KIND_LOCAL:
		if (value)
			return CL_INVALID_ARG_VALUE;
		if (!bytes || bytes > UINT32_MAX)
			return CL_INVALID_ARG_SIZE;
		kernel->data_bytes -= data_bytes(argument);
		result.bytes = (uint32_t)bytes;
		break;
	default:
		status = take_object(kernel, result.kind, bytes, value, &result.value);
		if (status)
			return status;
		kernel->data_bytes -= data_bytes(argument);
	}
	kernel->missing -= !argument->set;
	argument->set = true;
	argument->value = result;
	kernel->data_bytes += data_bytes(argument);
	return CL_SUCCESS;
}
