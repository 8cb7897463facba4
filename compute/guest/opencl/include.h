/* SPDX-License-Identifier: Apache-2.0 */
/* The files that a program's source includes, read from this process' file system. */
#ifndef VGPU_GUEST_INCLUDE_H
#define VGPU_GUEST_INCLUDE_H

#include <stdbool.h>
#include <stddef.h>

/*
 * A growing byte string.  @failed is set once memory runs out or the string becomes too long.
 */
struct text {
	char *data;
	size_t bytes, room;
	bool failed;
};

void text_add(struct text *text, const void *data, size_t bytes);
void text_end(struct text *text);

/**
 * struct includes - the headers and options for a build
 * @options: the program's options without -I; ends with a NUL that is not counted
 * @directories: search path, each entry ending with NUL, relative to the root of all headers
 * @headers: records of struct vgpu_cl_header_file
 */
struct includes {
	struct text options, directories, headers;
};

/**
 * includes_find() - resolves the includes of a source
 * @source: text of the source, or NULL
 * @options: options of the build, or NULL
 *
 * A file that cannot be found or read is left out, and the compiler then reports it.  Returns
 * false if there is not enough memory, or there are more than 16 MiB of headers.
 */
bool includes_find(struct includes *includes, const char *source, const char *options);
void includes_end(struct includes *includes);

/**
 * include_relative() - makes absolute names in #include lines relative to the root of all headers
 * @text: @bytes long, changed in place; columns after the name stay the same
 */
void include_relative(char *text, size_t bytes);

#endif /* VGPU_GUEST_INCLUDE_H */
