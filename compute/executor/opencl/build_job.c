/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the job of a build for the compiler: see job.h. */
#include <string.h>

#include "executor/link.h"
#include "job.h"
#include "loader.h"

static void put_program(struct job_writer *job, const struct program *program,
			const struct build *build, bool binary)
{
	opencl_put_number(job, !binary);
	if (!binary) {
		opencl_put_blob(job, program->source, program->source_bytes);
		return;
	}
	for (uint32_t i = 0; i < build->device_count; i++) {
		struct program_device *device = opencl_program_device((struct program *)program,
								      build->devices[i].device);

		opencl_put_blob(job, device ? device->binary : NULL,
				device ? device->binary_bytes : 0);
	}
}

/* Puts at most @most of the names, each of which ends with NUL. */
static void put_names(struct job_writer *job, const char *names, uint64_t bytes, uint64_t most)
{
	uint64_t count = 0, at = 0;

	for (uint64_t i = 0; i < bytes && count < most; i++)
		count += !names[i];
	opencl_put_number(job, count);
	for (uint64_t i = 0; i < count; i++) {
		size_t length = strlen(names + at);

		opencl_put_blob(job, names + at, length);
		at += length + 1;
	}
}

/* Puts records of struct vgpu_cl_header_file.  Return: false if they are malformed. */
static bool put_headers(struct job_writer *job, const char *headers, uint64_t bytes)
{
	struct vgpu_cl_header_file file;
	uint64_t count = 0, at, end;

	for (int pass = 0; pass < 2; pass++) {
		if (pass)
			opencl_put_number(job, count);
		for (at = 0; at < bytes; at = end) {
			if (bytes - at < sizeof(file))
				return false;
			memcpy(&file, headers + at, sizeof(file));
			at += sizeof(file);
			end = at + vgpu_padded((uint64_t)file.name_bytes + file.content_bytes);
			if (end > bytes || file.name_bytes > VGPU_CL_PATH_MAX)
				return false;
			count += !pass;
			if (!pass)
				continue;
			opencl_put_blob(job, headers + at, file.name_bytes);
			opencl_put_blob(job, headers + at + file.name_bytes, file.content_bytes);
		}
	}
	return true;
}

static bool put_header_programs(struct job_writer *job, const struct build *build,
				const struct opencl_build_request *request)
{
	const char *name = request->header_names;
	const char *end = name ? name + request->header_names_bytes : NULL;

	opencl_put_number(job, request->header_count);
	for (uint32_t i = 0; i < request->header_count; i++) {
		if (name == end || !memchr(name, '\0', end - name))
			return false;
		opencl_put_blob(job, name, strlen(name));
		put_program(job, request->header_programs[i], build, false);
		name += strlen(name) + 1;
	}
	return true;
}

cl_int opencl_write_job(struct job_writer *job, const struct build *build,
			const struct opencl_build_request *request)
{
	opencl_put_number(job, OPENCL_JOB_MAGIC);
	opencl_put_number(job, request->operation);
	opencl_put_number(job, build->device_count);
	for (uint32_t i = 0; i < build->device_count; i++)
		opencl_put_number(job, build->devices[i].device);
	opencl_put_blob(job, request->options, request->options ? strlen(request->options) : 0);
	if (request->operation == OPENCL_LINK) {
		opencl_put_number(job, request->input_count);
		for (uint32_t i = 0; i < request->input_count; i++)
			put_program(job, request->inputs[i], build, true);
	} else {
		opencl_put_number(job, 1);
		put_program(job, request->program, build, request->program->from_binary);
	}
	if (!put_header_programs(job, build, request))
		return CL_INVALID_VALUE;
	put_names(job, request->directories, request->directories_bytes, 4096);
	if (!put_headers(job, request->headers, request->headers_bytes))
		return CL_INVALID_VALUE;
	if (job->failed || job->used > VGPU_JOB_BYTES_MAX)
		return CL_OUT_OF_HOST_MEMORY;
	return CL_SUCCESS;
}
