/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The formats of a compiler's job and of its result, each in a memfd.
 *
 * Both are sequences of eight-byte numbers and of blobs.  A blob is a length and the bytes, padded
 * to a multiple of eight.  Reading beyond the end sets @broken and returns zeros.
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
	bool failed;	/* there was no memory */
};

struct job_reader {
	const uint8_t *bytes;
	size_t at, end;
	bool broken;
};

void opencl_put_number(struct job_writer *writer, uint64_t value);
void opencl_put_blob(struct job_writer *writer, const void *bytes, size_t count);
/* Return: a memfd with the written data, at offset 0, or -1.  Frees the writer's memory. */
int opencl_put_memfd(struct job_writer *writer, const char *name);
/* Writes everything into an open file.  Return: false on error. */
bool opencl_put_file(struct job_writer *writer, int file);

uint64_t opencl_take_number(struct job_reader *reader);
/* Return: the bytes, in the reader's memory; their number is in @count. */
const void *opencl_take_blob(struct job_reader *reader, size_t *count);
/*
 * Return: a copy terminated by NUL, which the caller frees; NULL if the job is broken or there is
 * no memory.
 */
char *opencl_take_string(struct job_reader *reader, size_t *count);
/* Return: the whole file in memory that the caller frees; NULL on error, or if it is too long. */
uint8_t *opencl_read_file(int file, size_t most, size_t *bytes);

#endif /* VGPU_OPENCL_JOB_H */
