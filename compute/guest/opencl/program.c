// SPDX-License-Identifier: Apache-2.0
/* Programs: creation from sources, binaries and built-in kernels, and their queries. */
#include "guest/opencl/program.h"

#include "guest/opencl/include.h"

void program_end(struct _cl_program *program)
{
	send_release(VGPU_CL_KIND_PROGRAM, program->object.handle);
	for (cl_uint i = 0; i < program->device_count; i++) {
		free(program->builds[i].options);
		free(program->builds[i].log);
	}
	free(program->source);
	free(program->kernel_names);
	pthread_mutex_destroy(&program->lock);
	object_drop(program->context);
}

struct _cl_program *program_new(cl_context context, cl_uint count, const cl_device_id *devices)
{
	struct _cl_program *program = object_new(VGPU_CL_KIND_PROGRAM);

	if (!program)
		return NULL;
	pthread_mutex_init(&program->lock, NULL);
	program->context = context;
	program->device_count = count ? count : context->device_count;
	memcpy(program->devices, count ? devices : context->devices,
	       program->device_count * sizeof(*program->devices));
	for (cl_uint i = 0; i < program->device_count; i++)
		program->builds[i].status = CL_BUILD_NONE;
	object_hold(context);
	return program;
}

cl_int check_devices(cl_uint count, const cl_device_id *devices, const cl_device_id *all, cl_uint all_count)
{
	if (!count != !devices || count > VGPU_CL_DEVICES_MAX)
		return CL_INVALID_VALUE;
	for (cl_uint i = 0; i < count; i++)
		if (!object_check(devices[i], KIND_DEVICE) || device_find(devices[i], all, all_count) < 0)
			return CL_INVALID_DEVICE;
	return CL_SUCCESS;
}

/* Returns a new program to the caller of the API, or drops it after an error. */
static cl_program finish(struct _cl_program *program, cl_int status, cl_int *error)
{
	if (status && program) {
		object_drop(program);
		vgpu_cl_bury();
		program = NULL;
	}
	if (error)
		*error = status;
	return program;
}

static cl_int send_source(struct _cl_program *program)
{
	struct vgpu_cl_create_program_with_source_parts parts;
	size_t bytes = strlen(program->source);
	cl_int status = CL_SUCCESS;
	struct call call;
	struct blob blob;
	char *copy;
	void *at;

	if (bytes > VGPU_CL_TEXT_MAX || !(copy = strdup(program->source)))
		return CL_OUT_OF_HOST_MEMORY;
	include_relative(copy, bytes);
	if (!blob_place(&blob, copy, bytes)) {
		free(copy);
		return CL_OUT_OF_HOST_MEMORY;
	}
	at = call_begin(&call, vgpu_cl_bytes_of_create_program_with_source(blob.inline_bytes));
	if (at) {
		vgpu_cl_place_create_program_with_source(at, blob.inline_bytes, &parts);
		parts.message->program = program->object.handle;
		parts.message->context = program->context->object.handle;
		parts.message->source_offset = blob.offset;
		parts.message->source_bytes = bytes;
		memcpy(parts.source, copy, blob.inline_bytes);
		if (blob.inline_bytes || !bytes)
			vgpu_send_commit();	/* can fail only for lack of memory */
		else
			status = call_wait(&call, &parts.message->header);
		call_end(&call);
	} else {
		status = call.status;
	}
	blob_end(&blob);
	free(copy);
	return status;
}

API(cl_program, clCreateProgramWithSource, cl_context context, cl_uint count, const char **strings,
    const size_t *lengths, cl_int *error)
{
	struct _cl_program *program = NULL;
	cl_int status = CL_SUCCESS;
	struct text text = { 0 };

	if (!object_check(context, VGPU_CL_KIND_CONTEXT))
		return finish(NULL, CL_INVALID_CONTEXT, error);
	if (!count || !strings)
		return finish(NULL, CL_INVALID_VALUE, error);
	text_add(&text, "", 0);
	for (cl_uint i = 0; i < count; i++) {
		if (!strings[i])
			status = CL_INVALID_VALUE;
		else
			text_add(&text, strings[i],
				 lengths && lengths[i] ? strnlen(strings[i], lengths[i]) : strlen(strings[i]));
	}
	if (!status && (text.failed || !(program = program_new(context, 0, NULL))))
		status = CL_OUT_OF_HOST_MEMORY;
	if (status) {
		text_end(&text);
		return finish(NULL, status, error);
	}
	program->source = text.data;
	return finish(program, send_source(program), error);
}

static cl_int send_binaries(struct _cl_program *program, const size_t *lengths, const unsigned char **binaries,
			    cl_int *statuses)
{
	cl_uint count = program->device_count;
	struct vgpu_cl_create_program_with_binary_answer_view view;
	struct vgpu_cl_create_program_with_binary_parts parts;
	struct blob blob;
	struct call call;
	cl_int status;
	uint64_t total = 0;
	uint8_t *all;
	void *at;

	for (cl_uint i = 0; i < count; i++)
		if (__builtin_add_overflow(total, lengths[i], &total) || total > VGPU_CL_BINARY_MAX)
			return CL_OUT_OF_HOST_MEMORY;
	all = malloc(total + 1);
	if (!all)
		return CL_OUT_OF_HOST_MEMORY;
	total = 0;
	for (cl_uint i = 0; i < count; total += lengths[i++])
		memcpy(all + total, binaries[i], lengths[i]);
	if (!blob_place(&blob, all, total)) {
		free(all);
		return CL_OUT_OF_HOST_MEMORY;
	}
	at = call_begin(&call, vgpu_cl_bytes_of_create_program_with_binary(count, count, blob.inline_bytes));
	status = call.status;
	if (at) {
		vgpu_cl_place_create_program_with_binary(at, count, count, blob.inline_bytes, &parts);
		parts.message->program = program->object.handle;
		parts.message->context = program->context->object.handle;
		parts.message->binaries_offset = blob.offset;
		parts.message->binaries_bytes = total;
		for (cl_uint i = 0; i < count; i++) {
			parts.devices[i] = program->devices[i]->index;
			parts.lengths[i] = lengths[i];
		}
		memcpy(parts.binaries, all, blob.inline_bytes);
		status = call_wait(&call, &parts.message->header);
		if (statuses && call.message &&
		    vgpu_cl_decode_create_program_with_binary_answer(call.message, call.bytes, 0, &view))
			for (cl_uint i = 0; i < count && i < view.message->device_count; i++)
				statuses[i] = view.statuses[i];
		call_end(&call);
	}
	blob_end(&blob);
	free(all);
	return status;
}

API(cl_program, clCreateProgramWithBinary, cl_context context, cl_uint count, const cl_device_id *devices,
    const size_t *lengths, const unsigned char **binaries, cl_int *statuses, cl_int *error)
{
	struct _cl_program *program = NULL;
	cl_int status;

	if (!object_check(context, VGPU_CL_KIND_CONTEXT))
		return finish(NULL, CL_INVALID_CONTEXT, error);
	if (!count || !devices || !lengths || !binaries)
		return finish(NULL, CL_INVALID_VALUE, error);
	status = check_devices(count, devices, context->devices, context->device_count);
	for (cl_uint i = 0; !status && i < count; i++) {
		bool good = lengths[i] && binaries[i];

		if (statuses)
			statuses[i] = good ? CL_SUCCESS : CL_INVALID_VALUE;
		status = good ? CL_SUCCESS : CL_INVALID_VALUE;
	}
	if (!status && !(program = program_new(context, count, devices)))
		status = CL_OUT_OF_HOST_MEMORY;
	if (!status)
		status = send_binaries(program, lengths, binaries, statuses);
	return finish(program, status, error);
}

static cl_int send_built_in(struct _cl_program *program)
{
	struct vgpu_cl_create_program_with_built_in_kernels_parts parts;
	size_t bytes = strlen(program->kernel_names);
	struct call call;
	cl_int status;
	void *at;

	if (bytes > VGPU_CL_INLINE_MAX)
		return CL_INVALID_VALUE;
	at = call_begin(&call, vgpu_cl_bytes_of_create_program_with_built_in_kernels(program->device_count, bytes));
	if (!at)
		return call.status;
	vgpu_cl_place_create_program_with_built_in_kernels(at, program->device_count, bytes, &parts);
	parts.message->program = program->object.handle;
	parts.message->context = program->context->object.handle;
	parts.message->names_offset = VGPU_CL_INLINE;
	for (cl_uint i = 0; i < program->device_count; i++)
		parts.devices[i] = program->devices[i]->index;
	memcpy(parts.names, program->kernel_names, bytes);
	status = call_wait(&call, &parts.message->header);
	call_end(&call);
	return status;
}

API(cl_program, clCreateProgramWithBuiltInKernels, cl_context context, cl_uint count, const cl_device_id *devices,
    const char *names, cl_int *error)
{
	struct _cl_program *program = NULL;
	cl_int status;

	if (!object_check(context, VGPU_CL_KIND_CONTEXT))
		return finish(NULL, CL_INVALID_CONTEXT, error);
	if (!count || !devices || !names)
		return finish(NULL, CL_INVALID_VALUE, error);
	status = check_devices(count, devices, context->devices, context->device_count);
	if (!status && !(program = program_new(context, count, devices)))
		status = CL_OUT_OF_HOST_MEMORY;
	if (!status) {
		program->built_in = true;
		program->kernel_names = strdup(names);
		status = program->kernel_names ? send_built_in(program) : CL_OUT_OF_HOST_MEMORY;
	}
	return finish(program, status, error);
}

API(cl_int, clRetainProgram, cl_program program)
{
	return object_retain(program, VGPU_CL_KIND_PROGRAM, CL_INVALID_PROGRAM);
}

API(cl_int, clReleaseProgram, cl_program program)
{
	return object_release(program, VGPU_CL_KIND_PROGRAM, CL_INVALID_PROGRAM, NULL);
}

static bool built(cl_program program)
{
	bool any = program->built_in;

	pthread_mutex_lock(&program->lock);
	for (cl_uint i = 0; i < program->device_count; i++)
		any |= program->builds[i].status == CL_BUILD_SUCCESS;
	pthread_mutex_unlock(&program->lock);
	return any;
}

/* Asks the child, and passes the answer on unchanged. */
static cl_int ask(uint32_t what, cl_program program, uint32_t param, cl_uint device, size_t room, void *target,
		  size_t *returned)
{
	void *value;
	size_t bytes;
	cl_int status = query(what, program->object.handle, param, device, 0, NULL, 0, &value, &bytes);

	if (!status)
		status = give(value, bytes, room, target, returned);
	free(value);
	return status;
}

/* The target is an array of pointers for the binaries; some may be NULL. */
static cl_int give_binaries(cl_program program, size_t room, void *target, size_t *returned)
{
	size_t bytes = program->device_count * sizeof(unsigned char *);
	unsigned char **places = target;

	if (target && room < bytes)
		return CL_INVALID_VALUE;
	for (cl_uint i = 0; target && i < program->device_count; i++) {
		size_t binary_bytes;
		void *binary;
		cl_int status;

		if (!places[i])
			continue;
		status = query(VGPU_CL_QUERY_PROGRAM, program->object.handle, CL_PROGRAM_BINARIES,
			       program->devices[i]->index, 0, NULL, 0, &binary, &binary_bytes);
		if (status)
			return status;
		memcpy(places[i], binary, binary_bytes);
		free(binary);
	}
	if (returned)
		*returned = bytes;
	return CL_SUCCESS;
}

API(cl_int, clGetProgramInfo, cl_program program, cl_program_info param, size_t room, void *target, size_t *returned)
{
	if (!object_check(program, VGPU_CL_KIND_PROGRAM))
		return CL_INVALID_PROGRAM;
	switch (param) {
	case CL_PROGRAM_REFERENCE_COUNT:
		GIVE(cl_uint, program->object.references);
	case CL_PROGRAM_CONTEXT:
		GIVE(cl_context, program->context);
	case CL_PROGRAM_NUM_DEVICES:
		GIVE(cl_uint, program->device_count);
	case CL_PROGRAM_DEVICES:
		return give(program->devices, program->device_count * sizeof(*program->devices), room, target,
			    returned);
	case CL_PROGRAM_SOURCE:
		return give_text(program->source ? program->source : "", room, target, returned);
	case CL_PROGRAM_IL:
		return give(NULL, 0, room, target, returned);
	case CL_PROGRAM_SCOPE_GLOBAL_CTORS_PRESENT:
	case CL_PROGRAM_SCOPE_GLOBAL_DTORS_PRESENT:
		GIVE(cl_bool, CL_FALSE);
	case CL_PROGRAM_BINARIES:
		return give_binaries(program, room, target, returned);
	case CL_PROGRAM_NUM_KERNELS:
	case CL_PROGRAM_KERNEL_NAMES:
		if (!built(program))
			return CL_INVALID_PROGRAM_EXECUTABLE;
		return ask(VGPU_CL_QUERY_PROGRAM, program, param, 0, room, target, returned);
	case CL_PROGRAM_BINARY_SIZES:
		return ask(VGPU_CL_QUERY_PROGRAM, program, param, 0, room, target, returned);
	}
	return CL_INVALID_VALUE;
}

API(cl_int, clGetProgramBuildInfo, cl_program program, cl_device_id device, cl_program_build_info param, size_t room,
    void *target, size_t *returned)
{
	struct device_build build;
	char *text = NULL;
	cl_int status;
	int i;

	if (!object_check(program, VGPU_CL_KIND_PROGRAM))
		return CL_INVALID_PROGRAM;
	i = object_check(device, KIND_DEVICE) ? device_find(device, program->devices, program->device_count) : -1;
	if (i < 0)
		return CL_INVALID_DEVICE;
	pthread_mutex_lock(&program->lock);
	build = program->builds[i];
	if (param == CL_PROGRAM_BUILD_OPTIONS)
		text = strdup(build.options ? build.options : "");
	else if (param == CL_PROGRAM_BUILD_LOG && build.log)
		text = strdup(build.log);
	pthread_mutex_unlock(&program->lock);
	switch (param) {
	case CL_PROGRAM_BUILD_STATUS:
		GIVE(cl_build_status, build.status);
	case CL_PROGRAM_BINARY_TYPE:
		GIVE(cl_program_binary_type, build.binary_type);
	case CL_PROGRAM_BUILD_OPTIONS:
	case CL_PROGRAM_BUILD_LOG:
		if (!text && param == CL_PROGRAM_BUILD_LOG && build.status != CL_BUILD_IN_PROGRESS)
			return ask(VGPU_CL_QUERY_PROGRAM_BUILD, program, param, device->index, room, target, returned);
		status = give_text(text ? text : "", room, target, returned);
		free(text);
		return status;
	case CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE:
		return ask(VGPU_CL_QUERY_PROGRAM_BUILD, program, param, device->index, room, target, returned);
	}
	return CL_INVALID_VALUE;
}
