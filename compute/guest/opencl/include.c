// SPDX-License-Identifier: Apache-2.0
/*
 * Resolves #include here, because the child does not see this process' files.
 *
 * The child recreates the headers in a tree where each header has the same path as here, so relative names find
 * the same files.  Conditions and macros around #include are ignored: an unused file does no harm.
 */
#include "guest/opencl/include.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "opencl_messages.h"

#define FILES_MAX 4096u
#define DIRECTORIES_MAX 256u

/* State of the search.  All paths are absolute and normal, without a slash at the end. */
struct search {
	struct includes *includes;
	char *directories[DIRECTORIES_MAX];
	size_t directory_count;
	char *files[FILES_MAX];
	size_t file_count;
};

void text_add(struct text *text, const void *data, size_t bytes)
{
	if (text->failed || bytes > VGPU_CL_TEXT_MAX - text->bytes) {
		text->failed = true;
		return;
	}
	if (text->bytes + bytes + 1 > text->room) {
		size_t room = (text->bytes + bytes + 1) * 2;
		char *data_now = realloc(text->data, room);

		if (!data_now) {
			text->failed = true;
			return;
		}
		text->data = data_now;
		text->room = room;
	}
	memcpy(text->data + text->bytes, data, bytes);
	text->bytes += bytes;
	text->data[text->bytes] = 0;
}

void text_end(struct text *text)
{
	free(text->data);
	memset(text, 0, sizeof(*text));
}

/* Returns the absolute path of @name in @directory without ".", ".." and double slashes; the caller frees it. */
static char *normal_path(const char *directory, const char *name)
{
	char joined[PATH_MAX * 2], out[PATH_MAX * 2];
	size_t used = 0;
	int length;

	if (name[0] == '/')
		length = snprintf(joined, sizeof(joined), "%s", name);
	else
		length = snprintf(joined, sizeof(joined), "%s/%s", directory, name);
	if (length < 0 || (size_t)length >= sizeof(joined))
		return NULL;
	for (char *part = joined; *part;) {
		size_t bytes;

		while (*part == '/')
			part++;
		bytes = strcspn(part, "/");
		if (bytes == 2 && part[0] == '.' && part[1] == '.') {
			while (used && out[--used] != '/')
				;
		} else if (bytes && !(bytes == 1 && part[0] == '.')) {
			out[used++] = '/';
			memcpy(out + used, part, bytes);
			used += bytes;
		}
		part += bytes;
	}
	out[used] = 0;
	return strdup(out);
}

/* Reads a whole regular file of at most VGPU_CL_TEXT_MAX bytes. */
static char *read_file(const char *path, size_t *bytes)
{
	struct stat status;
	FILE *file = fopen(path, "re");
	char *data = NULL;

	if (!file)
		return NULL;
	if (fstat(fileno(file), &status) == 0 && S_ISREG(status.st_mode) && status.st_size <= VGPU_CL_TEXT_MAX) {
		data = malloc((size_t)status.st_size + 1);
		if (data) {
			*bytes = fread(data, 1, (size_t)status.st_size, file);
			data[*bytes] = 0;
		}
	}
	fclose(file);
	return data;
}

/*
 * Finds the next #include of a text.  Returns the start of the included name, or NULL.  Also returns the name's
 * length and whether it is in quotes.
 */
static char *next_include(char *at, char *end, size_t *length, bool *quoted)
{
	while (at < end) {
		char *line_end = memchr(at, '\n', (size_t)(end - at)), *c = at, *close;

		if (!line_end)
			line_end = end;
		while (c < line_end && isspace((unsigned char)*c))
			c++;
		if (c < line_end && *c == '#') {
			c++;
			while (c < line_end && (*c == ' ' || *c == '\t'))
				c++;
			if (line_end - c > 8 && !memcmp(c, "include", 7)) {
				c += 7;
				while (c < line_end && (*c == ' ' || *c == '\t'))
					c++;
				if (c < line_end && (*c == '"' || *c == '<')) {
					*quoted = *c == '"';
					close = memchr(c + 1, *quoted ? '"' : '>', (size_t)(line_end - c - 1));
					if (close && close > c + 1) {
						*length = (size_t)(close - c - 1);
						return c + 1;
					}
				}
			}
		}
		at = line_end + 1;
	}
	return NULL;
}

void include_relative(char *text, size_t bytes)
{
	char *end = text + bytes, *name = text;
	size_t length;
	bool quoted;

	while ((name = next_include(name, end, &length, &quoted))) {
		size_t slashes = 0;

		while (slashes < length && name[slashes] == '/')
			slashes++;
		if (slashes && slashes < length) {
			char close = name[length];

			memmove(name, name + slashes, length - slashes);
			name[length - slashes] = close;
			memset(name + length - slashes + 1, ' ', slashes);
		}
		while (name < end && *name != '\n')
			name++;
	}
}

static void scan(struct search *search, char *text, size_t bytes, const char *directory);

/* Adds a file and all that it includes.  Returns false if there is no such file. */
static bool add_file(struct search *search, char *path)
{
	struct vgpu_cl_header_file record;
	static const char zero[8];
	struct text *headers = &search->includes->headers;
	char directory[PATH_MAX];
	size_t bytes;
	char *text;

	for (size_t i = 0; i < search->file_count; i++)
		if (!strcmp(search->files[i], path)) {
			free(path);
			return true;
		}
	if (search->file_count == FILES_MAX || strlen(path) > VGPU_CL_PATH_MAX || path[0] != '/' ||
	    !(text = read_file(path, &bytes))) {
		free(path);
		return false;
	}
	search->files[search->file_count++] = path;
	/* The file is in the list already, so a file that includes itself does not cause endless recursion. */
	snprintf(directory, sizeof(directory), "%.*s", (int)(strrchr(path, '/') - path), path);
	scan(search, text, bytes, directory);
	include_relative(text, bytes);
	record.name_bytes = (uint32_t)strlen(path + 1);
	record.content_bytes = (uint32_t)bytes;
	text_add(headers, &record, sizeof(record));
	text_add(headers, path + 1, record.name_bytes);
	text_add(headers, text, bytes);
	text_add(headers, zero, -(record.name_bytes + bytes) % 8);
	free(text);
	return true;
}

static void find(struct search *search, const char *name, bool quoted, const char *directory)
{
	char *path;

	if (quoted && directory && (path = normal_path(directory, name)) && add_file(search, path))
		return;
	if (name[0] == '/') {
		if ((path = normal_path("", name)))
			add_file(search, path);
		return;
	}
	for (size_t i = 0; i < search->directory_count; i++)
		if ((path = normal_path(search->directories[i], name)) && add_file(search, path))
			return;
}

static void scan(struct search *search, char *text, size_t bytes, const char *directory)
{
	char *at = text, *end = text + bytes;
	size_t length;
	bool quoted;

	while ((at = next_include(at, end, &length, &quoted))) {
		char name[PATH_MAX];

		if (length < sizeof(name)) {
			memcpy(name, at, length);
			name[length] = 0;
			find(search, name, quoted, directory);
		}
		at += length;
		while (at < end && *at != '\n')
			at++;
	}
}

static void add_directory(struct search *search, const char *here, const char *name)
{
	char *path = search->directory_count < DIRECTORIES_MAX ? normal_path(here, name) : NULL;

	if (path)
		search->directories[search->directory_count++] = path;
}

/* Takes one word off the options.  Words end at white space outside of quotes.  Returns false at the end. */
static bool next_word(const char **at, char *word, size_t room)
{
	bool quoted = false, any = false;
	size_t used = 0;

	while (isspace((unsigned char)**at))
		(*at)++;
	for (; **at && (quoted || !isspace((unsigned char)**at)); (*at)++) {
		any = true;
		if (**at == '"') {
			quoted = !quoted;
			continue;
		}
		if (**at == '\\' && (*at)[1] && ((*at)[1] == '"' || isspace((unsigned char)(*at)[1])))
			(*at)++;
		if (used + 1 < room)
			word[used++] = **at;
	}
	word[used] = 0;
	return any;
}

/* Splits the options into the directories of -I and all other options, which stay unchanged. */
static void read_options(struct search *search, const char *options, const char *here)
{
	struct text *others = &search->includes->options;
	char word[PATH_MAX];

	for (const char *at = options; *at;) {
		const char *start = at;

		if (!next_word(&at, word, sizeof(word)))
			break;
		if (!strncmp(word, "-I", 2)) {
			if (word[2] || next_word(&at, word, sizeof(word)))
				add_directory(search, here, word[0] == '-' && word[1] == 'I' ? word + 2 : word);
			continue;
		}
		while (isspace((unsigned char)*start))
			start++;
		if (others->bytes)
			text_add(others, " ", 1);
		text_add(others, start, (size_t)(at - start));
	}
}

bool includes_find(struct includes *includes, const char *source, const char *options)
{
	struct search *search = calloc(1, sizeof(*search));
	char here[PATH_MAX];
	bool good;

	memset(includes, 0, sizeof(*includes));
	if (!search)
		return false;
	search->includes = includes;
	if (!getcwd(here, sizeof(here)))
		strcpy(here, "");
	read_options(search, options ? options : "", here);
	/* PoCL also searches the program's current directory. */
	add_directory(search, here, ".");
	if (source) {
		char *copy = strdup(source);

		if (copy)
			scan(search, copy, strlen(copy), NULL);
		else
			includes->headers.failed = true;
		free(copy);
	}
	/* Without headers there is nothing to search. */
	for (size_t i = 0; includes->headers.bytes && i < search->directory_count; i++) {
		const char *path = search->directories[i];

		if (*path)
			text_add(&includes->directories, path + 1, strlen(path));
	}
	if (includes->headers.bytes)
		text_add(&includes->directories, ".", 2);	/* headers that are included by absolute names */
	for (size_t i = 0; i < search->directory_count; i++)
		free(search->directories[i]);
	for (size_t i = 0; i < search->file_count; i++)
		free(search->files[i]);
	free(search);
	good = !includes->options.failed && !includes->directories.failed && !includes->headers.failed;
	if (!good)
		includes_end(includes);
	return good;
}

void includes_end(struct includes *includes)
{
	text_end(&includes->options);
	text_end(&includes->directories);
	text_end(&includes->headers);
}
