/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds: the job for a compiler, its result, and loading an executable.
 *
 * Loading unpacks files and takes the library tens of milliseconds, so a separate thread does it.
 * That thread reads a build's inputs and writes its outputs.  Only the main thread uses objects and
 * their reference counts.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "executor/link.h"
#include "job.h"
#include "loader.h"

static const cl_int failures[] = {
	[OPENCL_BUILD] = CL_BUILD_PROGRAM_FAILURE,
	[OPENCL_COMPILE] = CL_COMPILE_PROGRAM_FAILURE,
	[OPENCL_LINK] = CL_LINK_PROGRAM_FAILURE,
};

static cl_int choose_devices(struct build *build, const struct opencl_build_request *request)
{
	struct program *program = request->program;

	build->device_count = request->device_count ? request->device_count :
						       program->device_count;
	for (uint32_t i = 0; i < build->device_count; i++) {
		uint32_t device = request->device_count ? request->devices[i] :
							  program->devices[i].device;

		if (!opencl_program_device(program, device))
			return CL_INVALID_DEVICE;
		for (uint32_t j = 0; j < i; j++)
			if (build->devices[j].device == device)
				return CL_INVALID_DEVICE;
		build->devices[i].device = device;
		build->devices[i].status = CL_BUILD_ERROR;
		build->library_devices[i] = build->backend->devices[device];
	}
	return CL_SUCCESS;
}

/*
 * Is this a PoCL binary with the code of all its kernels? Such a binary needs no compiler.
 * Programs save binaries and load them again later.  Without the code of all kernels, PoCL would
 * try to start a linker at the first launch, but the sandbox does not permit that.
 */
static bool is_complete(const struct program_device *device)
{
	const char *const code = "/0-0-0/";
	const uint8_t *at = device->binary, *end = at + device->binary_bytes;
	uint32_t kernels, found = 0;

	/* The header has "poclbin" and NUL, the device's id, a version, and the number of kernels. */
	if (device->type != CL_PROGRAM_BINARY_TYPE_EXECUTABLE || device->binary_bytes < 24 ||
	    memcmp(at, "poclbin", 7))
		return false;
	memcpy(&kernels, at + 20, sizeof(kernels));
	while ((at = memmem(at, end - at, code, strlen(code)))) {
		at += strlen(code);
		found += memmem(at, end - at < 512 ? end - at : 512, ".so", 3) != NULL;
	}
	return kernels && found >= kernels;
}

/*
 * Takes the result from the program's own binaries if these need no compiler.  Return: false if a
 * compiler is needed.
 */
static bool take_complete(struct build *build)
{
	if (build->operation != OPENCL_BUILD || !build->program->from_binary)
		return false;
	for (uint32_t i = 0; i < build->device_count; i++) {
		struct program_device *device = &build->devices[i];
		const struct program_device *old = opencl_program_device(build->program,
									 device->device);

		if (!is_complete(old))
			return false;
		device->binary = malloc(old->binary_bytes);
		if (!device->binary)
			return false;
		memcpy(device->binary, old->binary, old->binary_bytes);
		device->binary_bytes = old->binary_bytes;
		device->type = old->type;
		device->status = CL_BUILD_SUCCESS;
	}
	return true;
}

/* Parses a compiler's result, which is untrusted.  Return: false if it is invalid. */
static bool parse_result(struct build *build, const uint8_t *bytes, size_t size)
{
	struct job_reader reader = { .bytes = bytes, .end = size };
	uint64_t count;
	bool fine = opencl_take_number(&reader) == OPENCL_RESULT_MAGIC;

	if (fine)
		build->error = (cl_int)opencl_take_number(&reader);
	count = fine ? opencl_take_number(&reader) : 0;
	fine = fine && (count == build->device_count || (!count && build->error));
	for (uint64_t i = 0; fine && i < count; i++) {
		struct program_device *device = &build->devices[i];

		fine = opencl_take_number(&reader) == device->device;
		device->status = (cl_build_status)opencl_take_number(&reader);
		device->type = opencl_take_number(&reader);
		free(device->log);
		device->log = opencl_take_string(&reader, &size);
		device->log_bytes = size;
		free(device->binary);
		device->binary = (uint8_t *)opencl_take_string(&reader, &size);
		device->binary_bytes = size;
		fine = fine && device->log && device->binary && !reader.broken &&
		       device->status <= CL_BUILD_SUCCESS && device->status >= CL_BUILD_IN_PROGRESS;
	}
	return fine;
}

/* Reads the compiler's result. */
static bool read_result(struct build *build, int result)
{
	size_t size = 0;
	uint8_t *bytes = opencl_read_file(result, VGPU_JOB_BYTES_MAX, &size);
	bool fine = bytes && parse_result(build, bytes, size);

	free(bytes);
	return fine;
}

static cl_int run_compiler(struct vgpu_backend *backend, struct build *build,
			   struct job_writer *writer)
{
	int job = opencl_put_memfd(writer, "vgpu-job"), error_number;

	if (job < 0)
		return CL_OUT_OF_HOST_MEMORY;
	error_number = backend->services.compile(backend->services.child, job, build->token);
	if (error_number) {
		backend->services.log(backend->services.child, LOG_WARNING,
				      "event=compiler not started: %s", strerror(error_number));
		return CL_OUT_OF_HOST_MEMORY;
	}
	return CL_SUCCESS;
}

/* Sets *ready if the build already has its result, from the program itself. */
static cl_int start(struct vgpu_backend *backend, struct build *build,
		    const struct opencl_build_request *request, bool *ready)
{
	struct job_writer writer = { 0 };
	cl_int error = choose_devices(build, request);

	*ready = !error && take_complete(build);
	if (error || *ready)
		return error;
	error = opencl_write_job(&writer, build, request);
	if (error) {
		free(writer.bytes);
		return error;
	}
	return run_compiler(backend, build, &writer);
}

static void free_build(struct vgpu_backend *backend, struct build *build)
{
	for (uint32_t i = 0; i < build->device_count; i++)
		opencl_clear_program_device(&build->devices[i]);
	build->program->building = false;
	opencl_unref(backend, build->program);
	free(build->options);
	free(build);
}

/*
 * Handles a compiler that failed.  The reason goes into the build log, because the program's author
 * sees nothing else.
 */
static void blame(struct build *build, const char *text)
{
	build->error = failures[build->operation];
	for (uint32_t i = 0; i < build->device_count; i++) {
		struct program_device *device = &build->devices[i];

		opencl_clear_program_device(device);
		device->status = CL_BUILD_ERROR;
		device->log = strdup(text);
		device->log_bytes = device->log ? strlen(text) : 0;
	}
}

static void send_answer(struct vgpu_backend *backend, const struct build *build)
{
	struct vgpu_cl_build_program_answer_parts parts;
	uint64_t room = 32 << 10, logs = 0;
	uint8_t *at;

	for (uint32_t i = 0; i < build->device_count; i++)
		logs += build->devices[i].log_bytes;
	vgpu_cl_place_build_program_answer(backend->answer, build->device_count,
					   logs < room ? logs : room, &parts);
	at = parts.logs;
	for (uint32_t i = 0; i < build->device_count; i++) {
		const struct program_device *device = &build->devices[i];
		uint64_t bytes = device->log_bytes < room ? device->log_bytes : room;

		parts.builds[i] = (struct vgpu_cl_device_build){
			.device = device->device,
			.status = device->status,
			.binary_type = device->type,
			.log_bytes = bytes,
		};
		if (bytes)
			memcpy(at, device->log, bytes);
		at += bytes;
		room -= bytes;
	}
	opencl_answer_placed(backend, &build->request, build->error);
}

/* Moves the build's outputs to the program, and answers. */
static void finish(struct vgpu_backend *backend, struct build *build)
{
	struct program *program = build->program;

	send_answer(backend, build);
	if (program->library)
		backend->library->clReleaseProgram(program->library);
	program->library = build->library;
	build->library = NULL;
	for (uint32_t i = 0; i < build->device_count; i++) {
		struct program_device *device = &build->devices[i];
		struct program_device *old = opencl_program_device(program, device->device);

		if (device->binary && device->binary_bytes) {
			program->hash = opencl_hash(program->hash, device->binary,
						    device->binary_bytes);
			if (memmem(device->binary, device->binary_bytes, "printf", 6))
				atomic_store(&backend->prints, true);
		} else if (program->from_binary) {
			/* A program created from a binary keeps that binary if the build fails. */
			free(device->binary);
			device->binary = old->binary;
			device->binary_bytes = old->binary_bytes;
			old->binary = NULL;
		}
		device->options = strdup(build->options ? build->options : "");
		opencl_clear_program_device(old);
		*old = *device;
		*device = (struct program_device){ .device = old->device };
	}
	free_build(backend, build);
}

static bool is_executable(const struct build *build)
{
	for (uint32_t i = 0; i < build->device_count; i++)
		if (build->devices[i].type == CL_PROGRAM_BINARY_TYPE_EXECUTABLE &&
		    build->devices[i].binary_bytes)
			return true;
	return false;
}

static void load_or_finish(struct vgpu_backend *backend, struct build *build)
{
	if (!build->error && is_executable(build))
		opencl_load(backend, build);
	else
		finish(backend, build);
}

void opencl_start_build(struct vgpu_backend *backend, struct opencl_build_request *request)
{
	struct build *build = calloc(1, sizeof(*build));
	cl_int error = CL_OUT_OF_HOST_MEMORY;
	bool ready = false;

	if (build) {
		build->backend = backend;
		build->operation = request->operation;
		build->request = *request->message;
		build->program = opencl_ref(request->program);
		build->context = request->program->context->library;
		build->token = ++backend->build_token;
		build->options = request->options;
		request->program->building = true;
		error = start(backend, build, request, &ready);
		if (ready) {
			load_or_finish(backend, build);
		} else if (error) {
			build->options = NULL;
			free_build(backend, build);
		} else {
			build->next = backend->builds;
			backend->builds = build;
		}
	}
	free(request->directories);
	free(request->headers);
	free(request->header_names);
	if (!error)
		return;
	free(request->options);
	opencl_answer(backend, request->message, error);
}

void opencl_compiled(struct vgpu_backend *backend, uint64_t token, int status, int exit_status,
		     int result)
{
	struct build *build, **link = &backend->builds;
	char text[128];

	while (*link && (*link)->token != token)
		link = &(*link)->next;
	build = *link;
	if (!build)
		return;
	*link = build->next;
	if (status) {
		snprintf(text, sizeof(text), "vgpu: the compiler ended early: %s%s%d",
			 strerror(status), status == EIO ? ", status " : " ", exit_status);
		blame(build, text);
		if (status == ENOMEM || status == EAGAIN)
			build->error = CL_OUT_OF_HOST_MEMORY;
	} else if (!read_result(build, result)) {
		blame(build, "vgpu: the compiler's result cannot be read");
	}
	load_or_finish(backend, build);
}

void opencl_collect_builds(struct vgpu_backend *backend)
{
	struct build *build;

	while ((build = opencl_loaded(backend))) {
		if (build->load_error)
			blame(build, "vgpu: the library cannot load the compiler's result");
		finish(backend, build);
	}
}

void opencl_builds_close(struct vgpu_backend *backend)
{
	struct build *build;

	opencl_loader_close(backend);
	while ((build = opencl_loaded(backend))) {
		if (build->library)
			backend->library->clReleaseProgram(build->library);
		free_build(backend, build);
	}
	free(backend->loader);
	backend->loader = NULL;
	while ((build = backend->builds)) {
		backend->builds = build->next;
		free_build(backend, build);
	}
}
