/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Just enough JSON for the control socket: objects, arrays, strings, whole numbers
 * from 0 to 2^64 - 1, true, false and null.  Numbers with a sign, a fraction or an
 * exponent are refused: no field is one.
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
 * @name: in an object, its name; else NULL
 * @text: of a string; without NUL inside
 * @number: of a number; 1 for true
 * @first: of an array or object, its first value
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
 * @text: @bytes long; is changed, and must stay as long as the result
 * @error: what is wrong, if anything is
 *
 * Return: the value, to be freed with json_free(), or NULL.
 */
struct json *json_parse(char *text, size_t bytes, const char **error);
void json_free(struct json *json);

/* The value of this name, or NULL.  @object may be of another type, or NULL. */
const struct json *json_get(const struct json *object, const char *name);

/* Write a string with its quotes. */
void json_write(FILE *file, const char *text);

#endif /* VGPU_BROKER_JSON_H */
