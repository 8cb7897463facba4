/* SPDX-License-Identifier: Apache-2.0 */
/* Loads executables on a thread of its own: see build.c. */
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
	struct vgpu_message request;	/* its header, for the answer */
	struct program *program;
	uint64_t token;
	char *options;
	cl_int error;	/* for the answer */
	uint32_t device_count;
	struct program_device devices[VGPU_CL_DEVICES_MAX];
	/* For the loader's thread: */
	cl_context context;
	cl_device_id library_devices[VGPU_CL_DEVICES_MAX];
	cl_program library;
	cl_int load_error;
};

/* False: no memory or no thread. */
bool opencl_loader_open(struct vgpu_backend *backend);
/* Ends the thread; what was to be loaded is then had from opencl_loaded() as well. */
void opencl_loader_close(struct vgpu_backend *backend);
void opencl_load(struct vgpu_backend *backend, struct build *build);
/* One that is loaded or has failed, or NULL. */
struct build *opencl_loaded(struct vgpu_backend *backend);

/* build_job.c: the job of a build */
struct job_writer;
cl_int opencl_write_job(struct job_writer *job, const struct build *build,
			const struct opencl_build_request *request);

#endif /* VGPU_OPENCL_LOADER_H */
