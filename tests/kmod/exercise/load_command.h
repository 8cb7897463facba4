/* SPDX-License-Identifier: GPL-2.0 */
/* Command lines with the options of saturating runs. */
#ifndef VGPU_EXERCISE_LOAD_COMMAND_H
#define VGPU_EXERCISE_LOAD_COMMAND_H

#include <stdbool.h>

#include "command.h"
#include "saturate.h"

struct load_command {
	struct command command; /* the first member: callbacks get a pointer to it */
	bool ready;
	struct saturate_options saturate;
	/* Options of this program only; NULL: none. 1: accepted, 0: not. */
	int (*option)(const char *key, const char *value);
	bool (*flag)(const char *key); /* which of these options take no value */
};

/* Parse; errors go to stderr with the name of @program. */
enum command_outcome load_command_parse(struct load_command *load,
					const char *program, int argc,
					char **argv);

/* Print a ready record and wait for a line or the end of stdin. */
void load_command_await_go(bool json);

/* Keep a slice busy as the command line says; exit status. */
int load_command_run(const struct load_command *load, const char *program,
		     const char *name, struct transport *transport);

#endif
