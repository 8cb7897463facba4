/* SPDX-License-Identifier: Apache-2.0 */
/* The backend's operations: see executor/backend.h. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"
#include "loader.h"

static opencl_request *const requests[VGPU_CL_REQUESTS_END] = {
	[VGPU_CL_HELLO] = opencl_hello,
	[VGPU_CL_GET] = opencl_get,
	[VGPU_CL_GET_IMAGE_FORMATS] = opencl_get_image_formats,
	[VGPU_CL_RELEASE] = opencl_release,
	[VGPU_CL_CREATE_CONTEXT] = opencl_create_context,
	[VGPU_CL_CREATE_QUEUE] = opencl_create_queue,
	[VGPU_CL_FLUSH] = opencl_flush,
	[VGPU_CL_CREATE_BUFFER] = opencl_create_buffer,
	[VGPU_CL_CREATE_SUB_BUFFER] = opencl_create_sub_buffer,
	[VGPU_CL_CREATE_IMAGE] = opencl_create_image,
	[VGPU_CL_CREATE_SAMPLER] = opencl_create_sampler,
	[VGPU_CL_CREATE_PROGRAM_WITH_SOURCE] = opencl_create_program_with_source,
	[VGPU_CL_CREATE_PROGRAM_WITH_BINARY] = opencl_create_program_with_binary,
	[VGPU_CL_CREATE_PROGRAM_WITH_BUILT_IN_KERNELS] =
		opencl_create_program_with_built_in_kernels,
	[VGPU_CL_BUILD_PROGRAM] = opencl_build_program,
	[VGPU_CL_COMPILE_PROGRAM] = opencl_compile_program,
	[VGPU_CL_LINK_PROGRAM] = opencl_link_program,
	[VGPU_CL_CREATE_KERNEL] = opencl_create_kernel,
	[VGPU_CL_CREATE_USER_EVENT] = opencl_create_user_event,
	[VGPU_CL_SET_USER_EVENT_STATUS] = opencl_set_user_event_status,
};

/* Lower operations are requests; this one and higher ones are commands. */
#define FIRST_COMMAND	VGPU_CL_LAUNCH

static int fail(struct vgpu_backend *backend, int error)
{
	if (backend->loader)
		opencl_builds_close(backend);
	opencl_durations_close(backend);
	free(backend);
	return error;
}

/* Some libraries start their threads with the first context. */
static bool warm_up(struct vgpu_backend *backend, char *reason)
{
	cl_context context;
	cl_int error;

	context = backend->library->clCreateContext(NULL, backend->device_count, backend->devices,
						    NULL, NULL, &error);
	if (error) {
		snprintf(reason, VGPU_REASON_BYTES, "clCreateContext: error %d", error);
		return false;
	}
	backend->library->clReleaseContext(context);
	return true;
}

static int open_backend(const struct vgpu_backend_configuration *configuration,
			struct vgpu_backend **out, char *reason)
{
	struct opencl_library library;
	struct vgpu_backend *backend;

	if (configuration->window_bytes < VGPU_WINDOW_BULK) {
		snprintf(reason, VGPU_REASON_BYTES, "the window is too small");
		return EINVAL;
	}
	backend = calloc(1, sizeof(*backend));
	if (!backend) {
		snprintf(reason, VGPU_REASON_BYTES, "no memory");
		return ENOMEM;
	}
	backend->services = configuration->services;
	atomic_init(&backend->wake_wanted, true);
	backend->bulk = (uint8_t *)configuration->window + VGPU_WINDOW_BULK;
	backend->bulk_bytes = configuration->window_bytes - VGPU_WINDOW_BULK;
	backend->memory_bytes = configuration->memory_bytes;
	if (!opencl_library_open(&library, configuration->library, reason))
		return fail(backend, ENOENT);
	backend->library = library.dispatch;
	backend->platform = library.platform;
	backend->device_count = library.device_count;
	memcpy(backend->devices, library.devices, sizeof(library.devices));
	if (!warm_up(backend, reason))
		return fail(backend, EIO);
	if (!opencl_durations_open(backend) || !opencl_loader_open(backend)) {
		snprintf(reason, VGPU_REASON_BYTES, "no memory");
		return fail(backend, ENOMEM);
	}
	if (!opencl_print_open(backend, reason)) {
		opencl_print_close(backend);
		return fail(backend, EMFILE);
	}
	*out = backend;
	return 0;
}

/* Keeps a request that has to wait.  All requests behind it in the ring wait, too: see full(). */
static bool keep(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	backend->stalled = aligned_alloc(VGPU_MESSAGE_ALIGN, message->bytes);
	if (!backend->stalled) {
		snprintf(backend->malformed, sizeof(backend->malformed), "no memory for a message");
		return false;
	}
	memcpy(backend->stalled, message, message->bytes);
	return true;
}

static bool handle(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	opencl_request *request = NULL;
	bool fine;

	backend->malformed[0] = '\0';
	if (message->bytes < sizeof(*message) || message->bytes % VGPU_MESSAGE_ALIGN) {
		snprintf(backend->malformed, sizeof(backend->malformed), "a message of %u bytes",
			 message->bytes);
		return false;
	}
	if (message->op < VGPU_CL_REQUESTS_END)
		request = requests[message->op];
	if (message->op >= FIRST_COMMAND && message->op < VGPU_CL_REQUESTS_END)
		request = opencl_command;
	backend->stall = false;
	fine = request && request(backend, message);
	if (backend->stall)
		fine = keep(backend, message);
	if (!fine && !backend->malformed[0])
		snprintf(backend->malformed, sizeof(backend->malformed),
			 "malformed message: op %u (%s), %u bytes", message->op,
			 vgpu_cl_op_name(message->op), message->bytes);
	return fine;
}

static const char *malformed(struct vgpu_backend *backend)
{
	return backend->malformed;
}

/*
 * Commands that wait only for user events do not make the backend full: the request that sets the
 * event is behind them in the ring.
 */
static bool full(struct vgpu_backend *backend)
{
	return backend->stalled ||
	       ((backend->queued >= OPENCL_QUEUED_SOFT ||
		 backend->queued_bytes >= OPENCL_QUEUED_BYTES_SOFT) &&
		(backend->ready_count || backend->under_way));
}

static void collect(struct vgpu_backend *backend)
{
	struct vgpu_message *stalled = backend->stalled;

	opencl_collect_batches(backend);
	opencl_collect_builds(backend);
	if (!stalled)
		return;
	backend->stalled = NULL;
	/*
	 * The message is well formed, so handle() can fail only if there is no memory to keep the
	 * message again.  The message is then dropped, as if there had been no memory for it at the
	 * first attempt.
	 */
	handle(backend, stalled);
	free(stalled);
}

static void outlook(struct vgpu_backend *backend, struct vgpu_backend_outlook *out)
{
	const struct command *first = backend->ready_first;

	out->queued = first && !backend->quiet;
	out->under_way = backend->under_way;
	out->kernel_id = first ? first->kernel_id : backend->last_kernel_id;
	out->hint_ns = first ? first->bound_ns : 0;
	out->submitted = backend->submitted;
	out->finished = backend->finished;
	out->failed = backend->failed;
	out->ended_ns = backend->ended_ns;
}

static bool quiesce(struct vgpu_backend *backend)
{
	backend->quiet = true;
	atomic_store(&backend->wake_wanted, true);
	opencl_drop_queued(backend);
	opencl_settle(backend);
	opencl_collect_batches(backend);
	return !backend->under_way;
}

static void close_backend(struct vgpu_backend *backend)
{
	opencl_builds_close(backend);
	opencl_collect_batches(backend);
	opencl_settle(backend);
	opencl_clear_tables(backend);
	free(backend->stalled);
	opencl_print_close(backend);
	opencl_free_pools(backend);
	opencl_durations_close(backend);
	free(backend);
}

const struct vgpu_backend_operations vgpu_opencl_backend = {
	.name = "opencl",
	.open = open_backend,
	.handle = handle,
	.malformed = malformed,
	.full = full,
	.collect = collect,
	.submit = opencl_submit,
	.settle = opencl_settle,
	.outlook = outlook,
	.compiled = opencl_compiled,
	.quiesce = quiesce,
	.close = close_backend,
};
