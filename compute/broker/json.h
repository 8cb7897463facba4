/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of JSON that the control socket needs: objects, arrays, strings, whole
 * numbers from 0 to 2^64 - 1, true, false and null.  Numbers with a sign, a fraction or
 * an exponent are refused, because no field needs them.
 */
#ifndef VGPU_BROKER_JSON_H
#define VGPU_BROKER_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum json_type {
	JSON_NULL,
	JSON_BOOL,
	JSON_NUMBER,
	JSON_STRING,
	JSON_ARRAY,
	JSON_OBJECT,
};

/**
 * struct json - a value
 * @name: its name in an object; NULL elsewhere
 * @text: text of a string; contains no NUL except the last byte
 * @number: value of a number; 1 for true
 * @first: the first value of an array or object
 * @next: the next value of the same array or object
 */
struct json {
	enum json_type type;
	const char *name;
	const char *text;
	uint64_t number;
	struct json *first;
	struct json *next;
};

/**
 * json_parse() - parse one document
 * @text: the document, @bytes long; it is modified, and must live as long as the result
 * @error: set to the reason if parsing fails
 *
 * Return: the value, to be freed with json_free(), or NULL.
 */
struct json *json_parse(char *text, size_t bytes, const char **error);
void json_free(struct json *json);

/*
 * Return the member of @object with this name, or NULL if there is none.  @object may be NULL or a
 * value of another type.
 */
const struct json *json_get(const struct json *object, const char *name);

/* Write a string with quotes. */
void json_write(FILE *file, const char *text);

#endif /* VGPU_BROKER_JSON_H */
