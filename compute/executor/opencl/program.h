/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs.  The library of this process loads only complete binaries, which a separate compiler
 * has made: compiling here would delay the ring, and PoCL would start a linker.  Programs that are
 * not executables (sources, compiled objects, libraries) are kept as input for a compiler.
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
	char *log;	/* terminated by NUL */
	uint64_t log_bytes;	/* without the NUL */
	char *options;	/* of the last build */
};

struct program {
	struct object object;
	struct context *context;
	char *source;	/* NULL if there is none */
	uint64_t source_bytes;
	bool from_binary;	/* created from binaries, which replace the source */
	bool building;
	uint32_t kernels;	/* number of its kernel objects */
	uint32_t device_count;
	struct program_device devices[VGPU_CL_DEVICES_MAX];
	cl_program library;	/* for an executable */
	uint64_t hash;
};

/* Return: a program for these devices, or NULL. */
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
	uint32_t device_count;	/* 0: all devices of the program */
	const uint32_t *devices;
	char *options;	/* private copies, freed by the callee; NULL for none */
	char *directories, *headers, *header_names;
	uint64_t directories_bytes, headers_bytes, header_names_bytes;
	struct program **header_programs;
	uint32_t header_count;
	struct program **inputs;
	uint32_t input_count;
};

/* Starts a compiler and answers when it has ended, or answers an error at once. */
void opencl_start_build(struct vgpu_backend *backend, struct opencl_build_request *request);

#endif /* VGPU_OPENCL_PROGRAM_H */
