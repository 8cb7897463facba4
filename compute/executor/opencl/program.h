/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs.  The library of this process only ever sees complete binaries, which
 * a compiler apart has made: compiling here would hold up the ring, and PoCL would start a
 * linker.  All that is not an executable (sources, compiled objects, libraries)
 * is kept as what a compiler needs of it.
 */
#ifndef VGPU_OPENCL_PROGRAM_H
#define VGPU_OPENCL_PROGRAM_H

#include "backend_private.h"

struct program_device {
	uint32_t device;
	cl_build_status status;
	cl_program_binary_type type;
	uint8_t *binary;
	uint64_t binary_bytes;
	char *log;	/* ends with NUL */
	uint64_t log_bytes;	/* without it */
	char *options;	/* of the last build */
};

struct program {
	struct object object;
	struct context *context;
	char *source;	/* NULL if there is none */
	uint64_t source_bytes;
	bool from_binary;	/* the binaries are its sources */
	bool building;
	uint32_t kernels;	/* kernel objects of it */
	uint32_t device_count;
	struct program_device devices[VGPU_CL_DEVICES_MAX];
	cl_program library;	/* of an executable */
	uint64_t hash;
};

/* A program for these devices, or NULL. */
struct program *opencl_new_program(struct vgpu_backend *backend, struct context *context,
				   uint32_t device_count, const uint32_t *devices);
struct program_device *opencl_program_device(struct program *program, uint32_t device);
void opencl_clear_program_device(struct program_device *device);

/* build.c */
enum opencl_build_operation { OPENCL_BUILD = 1, OPENCL_COMPILE, OPENCL_LINK };

struct opencl_build_request {
	enum opencl_build_operation operation;
	const struct vgpu_message *message;
	struct program *program;
	uint32_t device_count;	/* 0: all of the program's */
	const uint32_t *devices;
	char *options;	/* private copies, freed by the callee; NULL for none */
	char *directories, *headers, *header_names;
	uint64_t directories_bytes, headers_bytes, header_names_bytes;
	struct program **header_programs;
	uint32_t header_count;
	struct program **inputs;
	uint32_t input_count;
};

/* Starts a compiler and answers when it has ended, or answers at once with an error. */
void opencl_start_build(struct vgpu_backend *backend, struct opencl_build_request *request);

#endif /* VGPU_OPENCL_PROGRAM_H */
