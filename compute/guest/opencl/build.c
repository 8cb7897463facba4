// SPDX-License-Identifier: Apache-2.0
/*
 * Building, compiling and linking.  The child answers when its compiler has ended.  Only a caller that
 * passed no callback waits for the answer.
 */
#include "guest/opencl/program.h"

#include "guest/opencl/include.h"

/**
 * struct build - a build in progress
 * @waiter: a thread waits for @done and frees this record; if false, the answer's handler frees it
 */
struct build {
	struct vgpu_pending pending;
	struct _cl_program *program;
	uint32_t op;
	cl_uint device_count;
	cl_device_id devices[VGPU_CL_DEVICES_MAX];
	void (CL_CALLBACK *notify)(cl_program, void *);
	void *user;
	bool waiter;
	atomic_bool done;
	cl_int status;
	struct includes includes;
	struct text names;	/* names of header programs */
	struct blob options_blob, directories_blob, headers_blob, names_blob;
};

static void build_free(struct build *build)
{
	blob_end(&build->options_blob);
	blob_end(&build->directories_blob);
	blob_end(&build->headers_blob);
	blob_end(&build->names_blob);
	includes_end(&build->includes);
	text_end(&build->names);
	object_drop(build->program);
	free(build);
}

/*
 * Stores a device's build result.  The caller holds the program's lock.  @log is NULL if the whole log must
 * be fetched on demand.
 */
static void keep_result(struct _cl_program *program, cl_device_id device, cl_build_status status,
			cl_program_binary_type type, char *log)
{
	int i = device_find(device, program->devices, program->device_count);

	if (i < 0) {
		free(log);
		return;
	}
	free(program->builds[i].log);
	program->builds[i].log = log;
	program->builds[i].status = status;
	program->builds[i].binary_type = type;
}

static void keep_results(struct build *build, const struct vgpu_cl_build_program_answer_view *view)
{
	struct _cl_program *program = build->program;
	bool whole = !view || view->message->log_bytes < (32u << 10);
	uint32_t at = 0;

	pthread_mutex_lock(&program->lock);
	for (cl_uint i = 0; i < build->device_count; i++)
		keep_result(program, build->devices[i], build->status ? CL_BUILD_ERROR : CL_BUILD_SUCCESS,
			    build->status ? CL_PROGRAM_BINARY_TYPE_NONE : CL_PROGRAM_BINARY_TYPE_EXECUTABLE,
			    strdup(""));
	for (uint32_t i = 0; view && i < view->message->device_count; i++) {
		const struct vgpu_cl_device_build *result = &view->builds[i];
		uint32_t left = view->message->log_bytes - at;
		uint32_t bytes = result->log_bytes < left ? result->log_bytes : left;

		if (result->device < vgpu_device_count)
			keep_result(program, &vgpu_devices[result->device], result->status, result->binary_type,
				    whole ? strndup((const char *)view->logs + at, bytes) : NULL);
		at += bytes;
	}
	program->building = false;
	pthread_mutex_unlock(&program->lock);
}

static bool build_reply(struct vgpu_pending *pending, const struct vgpu_message *message, uint32_t bytes)
{
	struct build *build = (struct build *)pending;
	const struct vgpu_cl_answer *answer = (const struct vgpu_cl_answer *)message;
	struct vgpu_cl_build_program_answer_view view;
	bool detailed = false;

	if (!message) {
		build->status = LOST;
	} else if (message->op != VGPU_CL_ANSWER || bytes < sizeof(*answer)) {
		build->status = CL_OUT_OF_RESOURCES;
	} else {
		build->status = answer->status;
		detailed = vgpu_cl_decode_build_program_answer(message, bytes, 0, &view);
	}
	keep_results(build, detailed ? &view : NULL);
	if (build->notify)
		callback_program(build->notify, build->program, build->user);
	if (build->waiter)
		atomic_store(&build->done, true);
	else
		build_free(build);
	return true;
}

static bool build_done(void *argument)
{
	return atomic_load(&((struct build *)argument)->done);
}

/* The blobs of a build share one message, so only short blobs are put into the message. */
static bool place_blob(struct blob *blob, const struct text *text)
{
	if (!text->bytes) {
		blob->offset = VGPU_CL_ABSENT;
		return true;
	}
	if (text->bytes <= VGPU_CL_INLINE_MAX / 4) {
		blob->data = text->data;
		blob->bytes = blob->inline_bytes = text->bytes;
		blob->offset = VGPU_CL_INLINE;
		return true;
	}
	blob->bulk = vgpu_bulk_allocate(text->bytes, 0);
	if (!blob->bulk)
		return false;
	blob->bytes = text->bytes;
	blob->offset = blob->bulk->offset;
	memcpy(vgpu_bulk_address(blob->offset), text->data, text->bytes);
	return true;
}

static bool place_blobs(struct build *build)
{
	return place_blob(&build->options_blob, &build->includes.options) &&
	       place_blob(&build->directories_blob, &build->includes.directories) &&
	       place_blob(&build->headers_blob, &build->includes.headers) &&
	       place_blob(&build->names_blob, &build->names);
}

#define SET_BLOB(name, blob) \
	do { \
		m->name##_offset = (blob).offset; \
		m->name##_bytes = (blob).bytes; \
		if ((blob).inline_bytes) \
			memcpy(parts.name, (blob).data, (blob).inline_bytes); \
	} while (0)

static struct vgpu_message *place_build(struct build *build)
{
	const uint64_t options = build->options_blob.inline_bytes, directories = build->directories_blob.inline_bytes,
		       headers = build->headers_blob.inline_bytes;
	struct vgpu_cl_build_program_parts parts;
	struct vgpu_cl_build_program *m;
	void *at = vgpu_send_begin((uint32_t)vgpu_cl_bytes_of_build_program(build->device_count, options, directories,
									    headers));

	if (!at)
		return NULL;
	m = vgpu_cl_place_build_program(at, build->device_count, options, directories, headers, &parts);
	m->program = build->program->object.handle;
	for (cl_uint i = 0; i < build->device_count; i++)
		parts.devices[i] = build->devices[i]->index;
	SET_BLOB(options, build->options_blob);
	SET_BLOB(directories, build->directories_blob);
	SET_BLOB(headers, build->headers_blob);
	return &m->header;
}

static struct vgpu_message *place_compile(struct build *build, cl_uint count, const cl_program *headers)
{
	const uint64_t sizes[] = {
		build->options_blob.inline_bytes, build->names_blob.inline_bytes,
		build->directories_blob.inline_bytes, build->headers_blob.inline_bytes,
	};
	struct vgpu_cl_compile_program_parts parts;
	struct vgpu_cl_compile_program *m;
	void *at = vgpu_send_begin((uint32_t)vgpu_cl_bytes_of_compile_program(build->device_count, count, sizes[0],
									      sizes[1], sizes[2], sizes[3]));

	if (!at)
		return NULL;
	m = vgpu_cl_place_compile_program(at, build->device_count, count, sizes[0], sizes[1], sizes[2], sizes[3],
					  &parts);
	m->program = build->program->object.handle;
	for (cl_uint i = 0; i < build->device_count; i++)
		parts.devices[i] = build->devices[i]->index;
	for (cl_uint i = 0; i < count; i++)
		parts.header_programs[i] = headers[i]->object.handle;
	SET_BLOB(options, build->options_blob);
	SET_BLOB(header_names, build->names_blob);
	SET_BLOB(directories, build->directories_blob);
	SET_BLOB(headers, build->headers_blob);
	return &m->header;
}

static struct vgpu_message *place_link(struct build *build, cl_uint count, const cl_program *inputs)
{
	const uint64_t options = build->options_blob.inline_bytes;
	struct vgpu_cl_link_program_parts parts;
	struct vgpu_cl_link_program *m;
	void *at = vgpu_send_begin((uint32_t)vgpu_cl_bytes_of_link_program(build->device_count, count, options));

	if (!at)
		return NULL;
	m = vgpu_cl_place_link_program(at, build->device_count, count, options, &parts);
	m->program = build->program->object.handle;
	m->context = build->program->context->object.handle;
	for (cl_uint i = 0; i < build->device_count; i++)
		parts.devices[i] = build->devices[i]->index;
	for (cl_uint i = 0; i < count; i++)
		parts.inputs[i] = inputs[i]->object.handle;
	SET_BLOB(options, build->options_blob);
	return &m->header;
}

/* Marks the program as being built.  CL_INVALID_OPERATION if it is being built already, or has kernels. */
static cl_int claim(struct build *build, const char *options)
{
	struct _cl_program *program = build->program;
	cl_int status = CL_SUCCESS;

	pthread_mutex_lock(&program->lock);
	if (program->building || atomic_load(&program->kernels)) {
		status = CL_INVALID_OPERATION;
	} else {
		program->building = true;
		for (cl_uint i = 0; i < build->device_count; i++) {
			int at = device_find(build->devices[i], program->devices, program->device_count);

			free(program->builds[at].options);
			program->builds[at].options = strdup(options ? options : "");
			program->builds[at].status = CL_BUILD_IN_PROGRESS;
		}
	}
	pthread_mutex_unlock(&program->lock);
	return status;
}

static struct build *build_new(uint32_t op, cl_program program, cl_uint count, const cl_device_id *devices,
			       void (CL_CALLBACK *notify)(cl_program, void *), void *user)
{
	struct build *build = calloc(1, sizeof(*build));

	if (!build)
		return NULL;
	build->pending.reply = build_reply;
	build->op = op;
	build->program = program;
	build->device_count = count ? count : program->device_count;
	memcpy(build->devices, count ? devices : program->devices, build->device_count * sizeof(*devices));
	build->notify = notify;
	build->user = user;
	build->waiter = !notify;
	object_hold(program);
	return build;
}

/*
 * Sends the build, and waits for its end if there is no callback.  @programs are the @count header
 * programs, or the programs to link.
 */
static cl_int run(struct build *build, cl_uint count, const cl_program *programs)
{
	struct vgpu_message *message = NULL;
	cl_int status = LOST;

	if (build->notify) {
		if (!callbacks_start())
			status = CL_OUT_OF_RESOURCES;
		else
			callbacks_expect(1);
	}
	if (!place_blobs(build))
		status = CL_OUT_OF_HOST_MEMORY;
	else if (build->op == VGPU_CL_BUILD_PROGRAM)
		message = place_build(build);
	else if (build->op == VGPU_CL_COMPILE_PROGRAM)
		message = place_compile(build, count, programs);
	else
		message = place_link(build, count, programs);
	if (message) {
		bool waiter = build->waiter;
		uint64_t call = vgpu_expect(&build->pending);

		message->call = call;
		if (call) {
			vgpu_send_commit();
			if (!waiter) {
				vgpu_kick();
				return CL_SUCCESS;
			}
			/*
			 * The build also ends when the child is lost, so the wait fails only in a forked
			 * copy of the process.
			 */
			if (!vgpu_wait(build_done, build))
				return LOST;
			status = build->status;
			build_free(build);
			vgpu_cl_bury();
			return status;
		}
		vgpu_send_cancel();
		status = CL_OUT_OF_RESOURCES;
	}
	if (build->notify)
		callbacks_expect(-1);
	build->status = status;
	keep_results(build, NULL);
	build_free(build);
	vgpu_cl_bury();
	return status;
}

static cl_int check_build(cl_program program, cl_uint count, const cl_device_id *devices,
			  void (CL_CALLBACK *notify)(cl_program, void *), void *user)
{
	if (!object_check(program, VGPU_CL_KIND_PROGRAM))
		return CL_INVALID_PROGRAM;
	if (!notify && user)
		return CL_INVALID_VALUE;
	return check_devices(count, devices, program->devices, program->device_count);
}

API(cl_int, clBuildProgram, cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
    void (CL_CALLBACK *notify)(cl_program, void *), void *user)
{
	cl_int status = check_build(program, count, devices, notify, user);
	struct build *build;

	if (status)
		return status;
	if (program->built_in)
		return CL_INVALID_OPERATION;
	build = build_new(VGPU_CL_BUILD_PROGRAM, program, count, devices, notify, user);
	if (!build)
		return CL_OUT_OF_HOST_MEMORY;
	status = claim(build, options);
	if (status) {
		build_free(build);
		return status;
	}
	if (!includes_find(&build->includes, program->source, options)) {
		build->status = CL_OUT_OF_HOST_MEMORY;
		keep_results(build, NULL);
		build_free(build);
		return CL_OUT_OF_HOST_MEMORY;
	}
	return run(build, 0, NULL);
}

API(cl_int, clCompileProgram, cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
    cl_uint header_count, const cl_program *headers, const char **names,
    void (CL_CALLBACK *notify)(cl_program, void *), void *user)
{
	cl_int status = check_build(program, count, devices, notify, user);
	struct build *build;

	if (status)
		return status;
	if (!header_count != !headers || !header_count != !names || header_count > 256)
		return CL_INVALID_VALUE;
	for (cl_uint i = 0; i < header_count; i++) {
		if (!object_check(headers[i], VGPU_CL_KIND_PROGRAM))
			return CL_INVALID_PROGRAM;
		if (!names[i])
			return CL_INVALID_VALUE;
	}
	if (!program->source)
		return CL_INVALID_OPERATION;
	build = build_new(VGPU_CL_COMPILE_PROGRAM, program, count, devices, notify, user);
	if (!build)
		return CL_OUT_OF_HOST_MEMORY;
	status = claim(build, options);
	if (status) {
		build_free(build);
		return status;
	}
	for (cl_uint i = 0; i < header_count; i++)
		text_add(&build->names, names[i], strlen(names[i]) + 1);
	if (build->names.failed || !includes_find(&build->includes, program->source, options)) {
		build->status = CL_OUT_OF_HOST_MEMORY;
		keep_results(build, NULL);
		build_free(build);
		return CL_OUT_OF_HOST_MEMORY;
	}
	status = run(build, header_count, headers);
	return status == CL_BUILD_PROGRAM_FAILURE ? CL_COMPILE_PROGRAM_FAILURE : status;
}

API(cl_program, clLinkProgram, cl_context context, cl_uint count, const cl_device_id *devices, const char *options,
    cl_uint input_count, const cl_program *inputs, void (CL_CALLBACK *notify)(cl_program, void *), void *user,
    cl_int *error)
{
	struct _cl_program *program = NULL;
	struct build *build = NULL;
	cl_int status = CL_SUCCESS;

	if (!object_check(context, VGPU_CL_KIND_CONTEXT))
		status = CL_INVALID_CONTEXT;
	else if (!input_count || !inputs || input_count > 1024 || (!notify && user))
		status = CL_INVALID_VALUE;
	else
		status = check_devices(count, devices, context->devices, context->device_count);
	for (cl_uint i = 0; !status && i < input_count; i++)
		if (!object_check(inputs[i], VGPU_CL_KIND_PROGRAM) || inputs[i]->context != context)
			status = CL_INVALID_PROGRAM;
	if (!status && !(program = program_new(context, count, devices)))
		status = CL_OUT_OF_HOST_MEMORY;
	if (!status && !(build = build_new(VGPU_CL_LINK_PROGRAM, program, count, devices, notify, user)))
		status = CL_OUT_OF_HOST_MEMORY;
	if (!status && !(status = claim(build, options))) {
		text_add(&build->includes.options, options ? options : "", options ? strlen(options) : 0);
		status = run(build, input_count, inputs);
	}
	/* If the linker itself failed, return the program, so that its log can be read. */
	if (status && status != CL_LINK_PROGRAM_FAILURE && status != CL_BUILD_PROGRAM_FAILURE && program) {
		object_drop(program);
		vgpu_cl_bury();
		program = NULL;
	}
	if (error)
		*error = status == CL_BUILD_PROGRAM_FAILURE ? CL_LINK_PROGRAM_FAILURE : status;
	return program;
}
