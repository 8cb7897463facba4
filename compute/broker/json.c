// SPDX-License-Identifier: Apache-2.0
#include "broker/json.h"

#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX	16u
#define VALUES_MAX	65536u

/* All values are in one array; the first is the document. */
struct parser {
	char *at;
	char *end;
	struct json *values;
	uint32_t used;
	uint32_t room;
	const char *error;
};

static struct json *parse_value(struct parser *parser, unsigned int depth);

static void *fail(struct parser *parser, const char *error)
{
	if (!parser->error)
		parser->error = error;
	return NULL;
}

static void skip_space(struct parser *parser)
{
	while (parser->at < parser->end && strchr(" \t\r\n", *parser->at) && *parser->at)
		parser->at++;
}

static bool take(struct parser *parser, char expected)
{
	skip_space(parser);
	if (parser->at == parser->end || *parser->at != expected)
		return false;
	parser->at++;
	return true;
}

static int hex(char digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	digit |= 0x20;
	return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* Append a character outside the surrogates as UTF-8. */
static char *put_utf8(char *to, uint32_t code)
{
	if (code < 0x80) {
		*to++ = (char)code;
	} else if (code < 0x800) {
		*to++ = (char)(0xc0 | code >> 6);
		*to++ = (char)(0x80 | (code & 0x3f));
	} else {
		*to++ = (char)(0xe0 | code >> 12);
		*to++ = (char)(0x80 | (code >> 6 & 0x3f));
		*to++ = (char)(0x80 | (code & 0x3f));
	}
	return to;
}

/* Parse an escape after its backslash.  Its result is never longer than the escape. */
static char *unescape(struct parser *parser, char *to)
{
	static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
	const char *found;
	uint32_t code = 0;

	if (parser->at == parser->end)
		return fail(parser, "a string has no end");
	found = strchr(from, *parser->at);
	if (found && *found) {
		*to++ = into[found - from];
		parser->at++;
		return to;
	}
	if (*parser->at++ != 'u' || parser->end - parser->at < 4)
		return fail(parser, "a string has an unknown escape");
	for (int i = 0; i < 4; i++) {
		int digit = hex(*parser->at++);

		if (digit < 0)
			return fail(parser, "a string has an unknown escape");
		code = code << 4 | (uint32_t)digit;
	}
	if (!code || (code >= 0xd800 && code < 0xe000))
		return fail(parser, "a string has a character that no field may have");
	return put_utf8(to, code);
}

static const char *parse_string(struct parser *parser)
{
	char *start = parser->at;
	char *to = start;

	while (parser->at < parser->end && *parser->at != '"') {
		char c = *parser->at++;

		if ((unsigned char)c < 0x20)
			return fail(parser, "a string has a control character");
		if (c == '\\')
			to = unescape(parser, to);
		else
			*to++ = c;
		if (!to)
			return NULL;
	}
	if (parser->at == parser->end)
		return fail(parser, "a string has no end");
	parser->at++;
	*to = '\0';
	return start;
}

static bool parse_number(struct parser *parser, uint64_t *number)
{
	char *start = parser->at;

	*number = 0;
	while (parser->at < parser->end && *parser->at >= '0' && *parser->at <= '9') {
		uint64_t digit = (uint64_t)(*parser->at - '0');

		if (*number > (UINT64_MAX - digit) / 10)
			return fail(parser, "a number is too large");
		*number = *number * 10 + digit;
		parser->at++;
	}
	if (parser->at < parser->end && strchr(".eE", *parser->at) && *parser->at)
		return fail(parser, "a number has a fraction");
	return (parser->at > start && (*start != '0' || parser->at == start + 1)) ||
	       fail(parser, "a value is expected");
}

/* Parse the members of an array or object, after its opening bracket. */
static bool parse_members(struct parser *parser, struct json *parent, char end, unsigned int depth)
{
	struct json **link = &parent->first;
	struct json *value;
	const char *name = NULL;

	if (take(parser, end))
		return true;
	do {
		if (parent->type == JSON_OBJECT) {
			if (!take(parser, '"'))
				return fail(parser, "a name is expected");
			name = parse_string(parser);
			if (!name)
				return false;
			if (json_get(parent, name))
				return fail(parser, "a name is given twice");
			if (!take(parser, ':'))
				return fail(parser, "a colon is expected");
		}
		value = parse_value(parser, depth);
		if (!value)
			return false;
		value->name = name;
		*link = value;
		link = &value->next;
	} while (take(parser, ','));
	return take(parser, end) || fail(parser, "a comma or a closing bracket is expected");
}

static bool take_word(struct parser *parser, const char *word)
{
	size_t length = strlen(word);

	if ((size_t)(parser->end - parser->at) < length || memcmp(parser->at, word, length))
		return false;
	parser->at += length;
	return true;
}

static struct json *parse_value(struct parser *parser, unsigned int depth)
{
	struct json *value;

	if (depth == DEPTH_MAX || parser->used == parser->room)
		return fail(parser, "it is too large");
	value = &parser->values[parser->used++];
	skip_space(parser);
	if (take(parser, '{')) {
		value->type = JSON_OBJECT;
		return parse_members(parser, value, '}', depth + 1) ? value : NULL;
	}
	if (take(parser, '[')) {
		value->type = JSON_ARRAY;
		return parse_members(parser, value, ']', depth + 1) ? value : NULL;
	}
	if (take(parser, '"')) {
		value->type = JSON_STRING;
		value->text = parse_string(parser);
		return value->text ? value : NULL;
	}
	if (take_word(parser, "null"))
		return value;
	value->type = JSON_BOOL;
	value->number = take_word(parser, "true");
	if (value->number || take_word(parser, "false"))
		return value;
	value->type = JSON_NUMBER;
	return parse_number(parser, &value->number) ? value : NULL;
}

struct json *json_parse(char *text, size_t bytes, const char **error)
{
	struct parser parser = {
		.at = text,
		.end = text + bytes,
		/*
		 * Each value except the last takes at least two characters, which limits the number
		 * of values.
		 */
		.room = bytes / 2 + 1 < VALUES_MAX ? (uint32_t)(bytes / 2 + 1) : VALUES_MAX,
	};

	parser.values = calloc(parser.room, sizeof(*parser.values));
	if (!parser.values) {
		*error = "there is no memory for it";
		return NULL;
	}
	if (parse_value(&parser, 0)) {
		skip_space(&parser);
		if (parser.at != parser.end)
			fail(&parser, "something follows the document");
	}
	*error = parser.error;
	if (!parser.error)
		return parser.values;
	free(parser.values);
	return NULL;
}

void json_free(struct json *json)
{
	free(json);
}

const struct json *json_get(const struct json *object, const char *name)
{
	const struct json *value;

	if (!object || object->type != JSON_OBJECT)
		return NULL;
	for (value = object->first; value; value = value->next)
		if (!strcmp(value->name, name))
			return value;
	return NULL;
}

void json_write(FILE *file, const char *text)
{
	fputc('"', file);
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\')
			fprintf(file, "\\%c", c);
		else if (c < 0x20 || c == 0x7f)
			fprintf(file, "\\u%04x", c);
		else
			fputc(c, file);
	}
	fputc('"', file);
}
