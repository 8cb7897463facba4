/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "executor/opencl/job.h"

static void put(struct job_writer *writer, const void *bytes, size_t count)
{
	size_t padded = (count + 7) & ~(size_t)7;
	uint8_t *more;

	if (writer->failed)
		return;
	if (writer->allocated - writer->used < padded) {
		size_t wanted = 2 * writer->allocated + padded + 4096;

		more = realloc(writer->bytes, wanted);
		if (!more) {
			writer->failed = true;
			return;
		}
		writer->bytes = more;
		writer->allocated = wanted;
	}
	if (count)
		memcpy(writer->bytes + writer->used, bytes, count);
	memset(writer->bytes + writer->used + count, 0, padded - count);
	writer->used += padded;
}

void opencl_put_number(struct job_writer *writer, uint64_t value)
{
	put(writer, &value, sizeof(value));
}

void opencl_put_blob(struct job_writer *writer, const void *bytes, size_t count)
{
	opencl_put_number(writer, count);
	put(writer, bytes, count);
}

bool opencl_put_file(struct job_writer *writer, int file)
{
	size_t at = 0;
	bool fine = !writer->failed;

	while (fine && at < writer->used) {
		ssize_t wrote = pwrite(file, writer->bytes + at, writer->used - at, at);

		if (wrote <= 0)
			fine = false;
		else
			at += wrote;
	}
	free(writer->bytes);
	*writer = (struct job_writer){ 0 };
	return fine;
}

int opencl_put_memfd(struct job_writer *writer, const char *name)
{
	int file = memfd_create(name, MFD_CLOEXEC);

	if (file < 0) {
		free(writer->bytes);
		return -1;
	}
	if (!opencl_put_file(writer, file)) {
		close(file);
		return -1;
	}
	return file;
}

static const uint8_t *take(struct job_reader *reader, size_t count)
{
	const uint8_t *at = reader->bytes + reader->at;
	size_t left = reader->end - reader->at;

	if (reader->broken || count > left || ((count + 7) & ~(size_t)7) > left) {
		reader->broken = true;
		return NULL;
	}
	reader->at += (count + 7) & ~(size_t)7;
	return at;
}

uint64_t opencl_take_number(struct job_reader *reader)
{
	const uint8_t *at = take(reader, sizeof(uint64_t));
	uint64_t value = 0;

	if (at)
		memcpy(&value, at, sizeof(value));
	return value;
}

const void *opencl_take_blob(struct job_reader *reader, size_t *count)
{
	const uint8_t *at;

	*count = opencl_take_number(reader);
	at = take(reader, *count);
	if (!at)
		*count = 0;
	return at;
}

char *opencl_take_string(struct job_reader *reader, size_t *count)
{
	const void *at = opencl_take_blob(reader, count);
	char *copy = at ? malloc(*count + 1) : NULL;

	if (!copy)
		return NULL;
	memcpy(copy, at, *count);
	copy[*count] = '\0';
	return copy;
}

uint8_t *opencl_read_file(int file, size_t most, size_t *bytes)
{
	struct stat status;
	uint8_t *copy;
	size_t at = 0;

	if (fstat(file, &status) || status.st_size < 0 || (size_t)status.st_size > most)
		return NULL;
	copy = malloc(status.st_size + 1);
	while (copy && at < (size_t)status.st_size) {
		ssize_t got = pread(file, copy + at, status.st_size - at, at);

		if (got <= 0) {
			free(copy);
			return NULL;
		}
		at += got;
	}
	*bytes = at;
	return copy;
}
