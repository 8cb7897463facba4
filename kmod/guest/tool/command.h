/* SPDX-License-Identifier: GPL-2.0 */
/* What the command lines of vgpu-guest and vgpu-client have in common. */
#ifndef VGPU_TOOL_COMMAND_H
#define VGPU_TOOL_COMMAND_H

#include <stdbool.h>

#include "saturate.h"
#include "transport.h"

enum command_outcome { COMMAND_RUN, COMMAND_HELP, COMMAND_BAD };

struct command {
	bool json;
	bool ready;
	const char *device;
	struct saturate_options saturate;
	const char **argv; /* what is no option */
	int argc;
	/* Options the program itself knows; NULL: none. 1: taken, 0: not. */
	int (*option)(struct command *command, const char *key,
		      const char *value);
	bool (*flag)(const char *key); /* which of them take no value */
};

/* Parse, complaining on stderr in the name of @program. */
enum command_outcome command_parse(struct command *command, const char *program,
				   int argc, char **argv);

/* Print a ready record and wait for a line or the end of stdin. */
void command_await_go(bool json);

/* Report limits, registers and counters; exit status. */
int command_info(struct transport *transport, const char *name, bool json);

#endif
