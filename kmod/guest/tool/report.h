/* SPDX-License-Identifier: GPL-2.0 */
/*
 * One record per line on stdout: key=value pairs, or a JSON object. A record
 * is written in one piece, so that threads may report at the same time.
 */
#ifndef VGPU_TOOL_REPORT_H
#define VGPU_TOOL_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct report {
	bool json;
	size_t used;
	char line[2048];
};

void report_begin(struct report *report, bool json);
void report_text(struct report *report, const char *key, const char *value);
void report_u64(struct report *report, const char *key, uint64_t value);
void report_hex(struct report *report, const char *key, uint64_t value);
void report_double(struct report *report, const char *key, double value);
void report_bool(struct report *report, const char *key, bool value);
void report_end(struct report *report);

#endif
