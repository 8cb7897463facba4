/* SPDX-License-Identifier: GPL-2.0 */
/* What the command lines of vgpu-guest and of the programs of tests/kmod have in common. */
#ifndef VGPU_TOOL_COMMAND_H
#define VGPU_TOOL_COMMAND_H

#include <stdbool.h>

#include "transport.h"

enum command_outcome { COMMAND_RUN, COMMAND_HELP, COMMAND_BAD };

struct command {
	bool json;
	const char *device;
	const char **argv; /* what is no option */
	int argc;
	/* Set an option of the program itself; NULL, or what is wrong with it. */
	const char *(*option)(struct command *command, const char *key,
			      const char *value);
	/* Which of them take no value; NULL: none. */
	bool (*flag)(const struct command *command, const char *key);
};

/* Parse, complaining on stderr in the name of @program. */
enum command_outcome command_parse(struct command *command, const char *program,
				   int argc, char **argv);

/* Report limits, registers and counters; exit status. */
int command_info(struct transport *transport, const char *name, bool json);

#endif
