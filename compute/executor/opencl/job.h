/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job of a compiler and its result, in a memfd each.
 *
 * Both are sequences of numbers of eight bytes and of blobs: a length, the bytes,
 * padded to eight.  Reading beyond the end sets @broken and gives zeros.
 *
 * job:    magic, operation, devices n, n * index, options,
 *         inputs n, n * (has source, source | a binary for each device),
 *         header programs n, n * (name, source), directories n, n * name,
 *         files n, n * (name, contents)
 * result: magic, API status, devices n, n * (index, build status, binary type,
 *         log, binary)
 */
#ifndef VGPU_OPENCL_JOB_H
#define VGPU_OPENCL_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OPENCL_JOB_MAGIC	0x31626f6a6c637067ull
#define OPENCL_RESULT_MAGIC	0x317365726c637067ull

struct job_writer {
	uint8_t *bytes;
	size_t used, allocated;
	bool failed;	/* no memory */
};

struct job_reader {
	const uint8_t *bytes;
	size_t at, end;
	bool broken;
};

void opencl_put_number(struct job_writer *writer, uint64_t value);
void opencl_put_blob(struct job_writer *writer, const void *bytes, size_t count);
/* A memfd with what was written, at offset 0; or -1.  Frees the writer's memory. */
int opencl_put_memfd(struct job_writer *writer, const char *name);
/* All at once into an open file; false: it failed. */
bool opencl_put_file(struct job_writer *writer, int file);

uint64_t opencl_take_number(struct job_reader *reader);
/* Bytes in the reader's memory; @count gets their number. */
const void *opencl_take_blob(struct job_reader *reader, size_t *count);
/* A copy with a NUL behind it, which the caller frees; NULL if broken or no memory. */
char *opencl_take_string(struct job_reader *reader, size_t *count);
/* The whole of a file into memory that the caller frees; NULL: it failed, or is too long. */
uint8_t *opencl_read_file(int file, size_t most, size_t *bytes);

#endif /* VGPU_OPENCL_JOB_H */
