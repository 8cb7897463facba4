// SPDX-License-Identifier: Apache-2.0
#include "executor/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static const char *program;
static const char *usage;

void vgpu_options_open(const char *name, const char *text)
{
	program = name;
	usage = text;
}

_Noreturn void vgpu_options_help(void)
{
	fputs(usage, stdout);
	exit(0);
}

_Noreturn void vgpu_options_wrong(void)
{
	fputs(usage, stderr);
	exit(2);
}

_Noreturn void vgpu_option_refuse(const char *option, const char *value)
{
	fprintf(stderr, "%s: --%s: '%s' is not a valid value\n", program, option, value);
	vgpu_options_wrong();
}

uint64_t vgpu_option_number(const char *option, const char *value, uint64_t least, uint64_t most)
{
	char *end;
	unsigned long long result;

	errno = 0;
	result = strtoull(value, &end, 10);
	if (errno || end == value || *end || *value == '-' || result < least || result > most)
		vgpu_option_refuse(option, value);
	return result;
}
