/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that create and build programs. */
#include <stdlib.h>
#include <string.h>

#include "program.h"

void opencl_clear_program_device(struct program_device *device)
{
	free(device->binary);
	free(device->log);
	free(device->options);
	*device = (struct program_device){ .device = device->device, .status = CL_BUILD_NONE };
}

static void destroy_program(struct vgpu_backend *backend, struct object *object)
{
	struct program *program = (struct program *)object;

	if (program->library)
		backend->library->clReleaseProgram(program->library);
	for (uint32_t i = 0; i < program->device_count; i++)
		opencl_clear_program_device(&program->devices[i]);
	free(program->source);
	opencl_unref(backend, program->context);
}

struct program *opencl_new_program(struct vgpu_backend *backend, struct context *context,
				   uint32_t device_count, const uint32_t *devices)
{
	struct program *program = opencl_new(backend, VGPU_CL_KIND_PROGRAM, sizeof(*program),
					     destroy_program);

	if (!program)
		return NULL;
	program->context = opencl_ref(context);
	program->device_count = device_count;
	for (uint32_t i = 0; i < device_count; i++) {
		program->devices[i].device = devices[i];
		program->devices[i].status = CL_BUILD_NONE;
	}
	return program;
}

struct program_device *opencl_program_device(struct program *program, uint32_t device)
{
	for (uint32_t i = 0; i < program->device_count; i++)
		if (program->devices[i].device == device)
			return &program->devices[i];
	return NULL;
}

bool opencl_create_program_with_source(struct vgpu_backend *backend,
				       const struct vgpu_message *message)
{
	struct vgpu_cl_create_program_with_source_view view;
	const struct vgpu_cl_create_program_with_source *m;
	struct program *program = NULL;
	struct context *context;
	cl_int error;

	if (!vgpu_cl_decode_create_program_with_source(message, message->bytes,
						       backend->bulk_bytes, &view))
		return false;
	m = view.message;
	context = opencl_use(backend, VGPU_CL_KIND_CONTEXT, m->context, &error);
	if (context)
		program = opencl_new_program(backend, context, context->device_count,
					     context->devices);
	if (program) {
		program->source = opencl_copy_blob(backend, m->source_offset, m->source_bytes,
						   view.source, VGPU_CL_TEXT_MAX, &error);
		program->source_bytes = m->source_bytes;
	}
	opencl_created(backend, message, VGPU_CL_KIND_PROGRAM, m->program, program, error);
	return true;
}

/* The library checks the binaries and returns their types.  The program object that it makes is not kept. */
static cl_int look_at_binaries(struct vgpu_backend *backend, struct program *program,
			       cl_int *statuses)
{
	const cl_icd_dispatch *library = backend->library;
	const unsigned char *binaries[VGPU_CL_DEVICES_MAX];
	cl_device_id devices[VGPU_CL_DEVICES_MAX];
	size_t sizes[VGPU_CL_DEVICES_MAX];
	cl_program made;
	cl_int error;

	for (uint32_t i = 0; i < program->device_count; i++) {
		devices[i] = backend->devices[program->devices[i].device];
		binaries[i] = program->devices[i].binary;
		sizes[i] = program->devices[i].binary_bytes;
	}
	made = library->clCreateProgramWithBinary(program->context->library, program->device_count,
						  devices, sizes, binaries, statuses, &error);
	for (uint32_t i = 0; made && !error && i < program->device_count; i++)
		library->clGetProgramBuildInfo(made, devices[i], CL_PROGRAM_BINARY_TYPE,
					       sizeof(program->devices[i].type),
					       &program->devices[i].type, NULL);
	if (made)
		library->clReleaseProgram(made);
	return error;
}

static cl_int take_binaries(struct vgpu_backend *backend,
			    const struct vgpu_cl_create_program_with_binary_view *view,
			    struct program *program, cl_int *statuses)
{
	const struct vgpu_cl_create_program_with_binary *m = view->message;
	uint64_t at = 0;
	cl_int error;
	char *all;

	for (uint32_t i = 0; i < m->device_count; i++) {
		if (!view->lengths[i] || view->lengths[i] > m->binaries_bytes - at) {
			statuses[i] = CL_INVALID_VALUE;
			return CL_INVALID_VALUE;
		}
		at += view->lengths[i];
	}
	if (at != m->binaries_bytes)
		return CL_INVALID_VALUE;
	all = opencl_copy_blob(backend, m->binaries_offset, m->binaries_bytes, view->binaries,
			       VGPU_CL_BINARY_MAX, &error);
	at = 0;
	for (uint32_t i = 0; !error && i < m->device_count; i++) {
		struct program_device *device = &program->devices[i];

		device->binary = malloc(view->lengths[i]);
		if (!device->binary) {
			error = CL_OUT_OF_HOST_MEMORY;
			break;
		}
		memcpy(device->binary, all + at, view->lengths[i]);
		device->binary_bytes = view->lengths[i];
		at += view->lengths[i];
	}
	free(all);
	return error ? error : look_at_binaries(backend, program, statuses);
}

static cl_int check_devices(const struct context *context, uint32_t count, const uint32_t *devices)
{
	for (uint32_t i = 0; i < count; i++) {
		bool found = false;

		for (uint32_t j = 0; j < context->device_count; j++)
			found |= context->devices[j] == devices[i];
		for (uint32_t j = 0; j < i; j++)
			found &= devices[j] != devices[i];
		if (!found)
			return CL_INVALID_DEVICE;
	}
	return CL_SUCCESS;
}

bool opencl_create_program_with_binary(struct vgpu_backend *backend,
				       const struct vgpu_message *message)
{
	struct vgpu_cl_create_program_with_binary_answer_parts parts;
	struct vgpu_cl_create_program_with_binary_view view;
	const struct vgpu_cl_create_program_with_binary *m;
	struct vgpu_message silent = *message;
	struct program *program = NULL;
	struct context *context;
	cl_int statuses[VGPU_CL_DEVICES_MAX] = { 0 };
	cl_int error;

	if (!vgpu_cl_decode_create_program_with_binary(message, message->bytes,
						       backend->bulk_bytes, &view))
		return false;
	m = view.message;
	context = opencl_use(backend, VGPU_CL_KIND_CONTEXT, m->context, &error);
	if (context)
		error = m->device_count ? check_devices(context, m->device_count, view.devices) :
					  CL_INVALID_VALUE;
	if (!error)
		program = opencl_new_program(backend, context, m->device_count, view.devices);
	if (program) {
		program->from_binary = true;
		error = take_binaries(backend, &view, program, statuses);
	}
	if (opencl_find(backend, VGPU_CL_KIND_PROGRAM, m->program))
		error = CL_INVALID_VALUE;
	if (!error && !program)
		error = CL_OUT_OF_HOST_MEMORY;
	if (error && message->call) {
		opencl_unref(backend, program);
	} else {
		silent.call = 0;
		opencl_created(backend, &silent, VGPU_CL_KIND_PROGRAM, m->program, program, error);
	}
	vgpu_cl_place_create_program_with_binary_answer(backend->answer, m->device_count, &parts);
	memcpy(parts.statuses, statuses, m->device_count * sizeof(*statuses));
	opencl_answer_placed(backend, message, error);
	return true;
}

/* Devices are reported without built-in kernels, so every name is invalid. */
bool opencl_create_program_with_built_in_kernels(struct vgpu_backend *backend,
						 const struct vgpu_message *message)
{
	struct vgpu_cl_create_program_with_built_in_kernels_view view;
	cl_int error;

	if (!vgpu_cl_decode_create_program_with_built_in_kernels(message, message->bytes,
								 backend->bulk_bytes, &view))
		return false;
	if (opencl_use(backend, VGPU_CL_KIND_CONTEXT, view.message->context, &error))
		error = CL_INVALID_VALUE;
	opencl_created(backend, message, VGPU_CL_KIND_PROGRAM, view.message->program, NULL, error);
	return true;
}

static char *text(struct vgpu_backend *backend, uint64_t offset, uint64_t bytes,
		  const uint8_t *inline_bytes, cl_int *error)
{
	if (*error || offset == VGPU_CL_ABSENT)
		return NULL;
	return opencl_copy_blob(backend, offset, bytes, inline_bytes, VGPU_CL_TEXT_MAX, error);
}

static cl_int may_build(const struct program *program)
{
	return program->building || program->kernels ? CL_INVALID_OPERATION : CL_SUCCESS;
}

/* Starts the build if there is no error; otherwise answers and frees what the request owns. */
static void start_or_answer(struct vgpu_backend *backend, struct opencl_build_request *request,
			    cl_int error)
{
	if (!error) {
		opencl_start_build(backend, request);
		return;
	}
	free(request->options);
	free(request->directories);
	free(request->headers);
	free(request->header_names);
	opencl_answer(backend, request->message, error);
}

bool opencl_build_program(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	struct opencl_build_request request = { .operation = OPENCL_BUILD, .message = message };
	struct vgpu_cl_build_program_view view;
	const struct vgpu_cl_build_program *m;
	cl_int error;

	if (!vgpu_cl_decode_build_program(message, message->bytes, backend->bulk_bytes, &view))
		return false;
	m = view.message;
	request.program = opencl_use(backend, VGPU_CL_KIND_PROGRAM, m->program, &error);
	if (request.program)
		error = may_build(request.program);
	request.device_count = m->device_count;
	request.devices = view.devices;
	request.options = text(backend, m->options_offset, m->options_bytes, view.options, &error);
	request.directories = text(backend, m->directories_offset, m->directories_bytes,
				   view.directories, &error);
	request.directories_bytes = m->directories_bytes;
	request.headers = text(backend, m->headers_offset, m->headers_bytes, view.headers, &error);
	request.headers_bytes = m->headers_bytes;
	start_or_answer(backend, &request, error);
	return true;
}

bool opencl_compile_program(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	struct opencl_build_request request = { .operation = OPENCL_COMPILE, .message = message };
	struct vgpu_cl_compile_program_view view;
	const struct vgpu_cl_compile_program *m;
	struct program *header_programs[256];
	cl_int error;

	if (!vgpu_cl_decode_compile_program(message, message->bytes, backend->bulk_bytes, &view))
		return false;
	m = view.message;
	request.program = opencl_use(backend, VGPU_CL_KIND_PROGRAM, m->program, &error);
	if (request.program && !request.program->source)
		error = CL_INVALID_OPERATION;
	if (!error)
		error = may_build(request.program);
	for (uint32_t i = 0; !error && i < m->header_count; i++) {
		header_programs[i] = opencl_use(backend, VGPU_CL_KIND_PROGRAM,
						view.header_programs[i], &error);
		if (header_programs[i] && !header_programs[i]->source)
			error = CL_INVALID_PROGRAM;
	}
	request.header_programs = header_programs;
	request.header_count = m->header_count;
	request.device_count = m->device_count;
	request.devices = view.devices;
	request.options = text(backend, m->options_offset, m->options_bytes, view.options, &error);
	request.header_names = text(backend, m->header_names_offset, m->header_names_bytes,
				    view.header_names, &error);
	request.header_names_bytes = m->header_names_bytes;
	request.directories = text(backend, m->directories_offset, m->directories_bytes,
				   view.directories, &error);
	request.directories_bytes = m->directories_bytes;
	request.headers = text(backend, m->headers_offset, m->headers_bytes, view.headers, &error);
	request.headers_bytes = m->headers_bytes;
	start_or_answer(backend, &request, error);
	return true;
}

static bool linkable(const struct program *program)
{
	for (uint32_t i = 0; i < program->device_count; i++)
		if (program->devices[i].type == CL_PROGRAM_BINARY_TYPE_COMPILED_OBJECT ||
		    program->devices[i].type == CL_PROGRAM_BINARY_TYPE_LIBRARY)
			return true;
	return false;
}

bool opencl_link_program(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	struct opencl_build_request request = { .operation = OPENCL_LINK, .message = message };
	struct vgpu_cl_link_program_view view;
	const struct vgpu_cl_link_program *m;
	struct program *inputs[1024];
	struct context *context;
	cl_int error;

	if (!vgpu_cl_decode_link_program(message, message->bytes, backend->bulk_bytes, &view))
		return false;
	m = view.message;
	context = opencl_use(backend, VGPU_CL_KIND_CONTEXT, m->context, &error);
	if (context && (!m->input_count ||
			opencl_find(backend, VGPU_CL_KIND_PROGRAM, m->program)))
		error = CL_INVALID_VALUE;
	for (uint32_t i = 0; !error && i < m->input_count; i++) {
		inputs[i] = opencl_use(backend, VGPU_CL_KIND_PROGRAM, view.inputs[i], &error);
		if (inputs[i] && !linkable(inputs[i]))
			error = CL_INVALID_OPERATION;
	}
	if (!error)
		error = check_devices(context, m->device_count, view.devices);
	if (!error) {
		request.program = opencl_new_program(
			backend, context, m->device_count ? m->device_count : context->device_count,
			m->device_count ? view.devices : context->devices);
		if (!request.program ||
		    !opencl_enter(backend, m->program, &request.program->object)) {
			opencl_unref(backend, request.program);
			error = CL_OUT_OF_HOST_MEMORY;
		}
	}
	request.options = text(backend, m->options_offset, m->options_bytes, view.options, &error);
	request.inputs = inputs;
	request.input_count = m->input_count;
	start_or_answer(backend, &request, error);
	return true;
}
