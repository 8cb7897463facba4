/* SPDX-License-Identifier: Apache-2.0 */
/* Loads executables in a separate thread: see build.c. */
#ifndef VGPU_OPENCL_LOADER_H
#define VGPU_OPENCL_LOADER_H

#include <fcntl.h>
#include <stdio.h>

#include "program.h"

/* A program that is being built. */
struct build {
	struct build *next;
	struct vgpu_backend *backend;
	enum opencl_build_operation operation;
	struct vgpu_message request;	/* header of the request, for the answer */
	struct program *program;
	uint64_t token;
	char *options;
	cl_int error;	/* for the answer */
	uint32_t device_count;
	struct program_device devices[VGPU_CL_DEVICES_MAX];
	/* Used by the loader's thread: */
	cl_context context;
	cl_device_id library_devices[VGPU_CL_DEVICES_MAX];
	cl_program library;
	cl_int load_error;
};

/* Return: false if there is no memory or no thread. */
bool opencl_loader_open(struct vgpu_backend *backend);
/* Ends the thread.  opencl_loaded() then also returns the builds that were not loaded. */
void opencl_loader_close(struct vgpu_backend *backend);
void opencl_load(struct vgpu_backend *backend, struct build *build);
/* Return: a build that was loaded or has failed, or NULL. */
struct build *opencl_loaded(struct vgpu_backend *backend);

/* build_job.c: writes the job of a build */
struct job_writer;
cl_int opencl_write_job(struct job_writer *job, const struct build *build,
			const struct opencl_build_request *request);

#endif /* VGPU_OPENCL_LOADER_H */
