/* SPDX-License-Identifier: Apache-2.0 */
/* The files that a program's source includes, from this process' file system. */
#ifndef VGPU_GUEST_INCLUDE_H
#define VGPU_GUEST_INCLUDE_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes that grow; @failed once there was no memory or too much of it. */
struct text {
	char *data;
	size_t bytes, room;
	bool failed;
};

void text_add(struct text *text, const void *data, size_t bytes);
void text_end(struct text *text);

/**
 * struct includes - what a build takes along
 * @options: those of the program without -I; ends with NUL, which does not count
 * @directories: where to look, each ending with NUL, relative to the root of all headers
 * @headers: records of struct vgpu_cl_header_file
 */
struct includes {
	struct text options, directories, headers;
};

/**
 * includes_find() - resolves the includes of a source
 * @source: NULL if there is none
 * @options: of the build, or NULL
 *
 * A file that is not found or not readable is left out: the compiler then says so.
 * Returns false if there is not enough memory, or there are more than 16 MiB of headers.
 */
bool includes_find(struct includes *includes, const char *source, const char *options);
void includes_end(struct includes *includes);

/**
 * include_relative() - makes absolute names in #include lines relative to the root of all headers
 * @text: of @bytes, changed in place; columns behind the name stay
 */
void include_relative(char *text, size_t bytes);

#endif /* VGPU_GUEST_INCLUDE_H */
