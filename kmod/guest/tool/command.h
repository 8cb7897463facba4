/* SPDX-License-Identifier: GPL-2.0 */
/* Command line code shared by vgpu-guest and the programs of tests/kmod. */
#ifndef VGPU_TOOL_COMMAND_H
#define VGPU_TOOL_COMMAND_H

#include <stdbool.h>

#include "transport.h"

enum command_outcome { COMMAND_RUN, COMMAND_HELP, COMMAND_BAD };

struct command {
	bool json;
	const char *device;
	const char **argv; /* arguments that are not options */
	int argc;
	/* Set an option of the program itself. Returns NULL, or what is wrong with it. */
	const char *(*option)(struct command *command, const char *key,
			      const char *value);
	/* Does an option of the program take no value? NULL if all of them take one. */
	bool (*flag)(const struct command *command, const char *key);
};

/* Parse; errors go to stderr, prefixed with @program. */
enum command_outcome command_parse(struct command *command, const char *program,
				   int argc, char **argv);

/* Print limits, registers and counters; returns an exit status. */
int command_info(struct transport *transport, const char *name, bool json);

#endif
