// SPDX-License-Identifier: GPL-2.0
#include "load_command.h"

#include <stdio.h>
#include <string.h>

#include "report.h"

static bool is_flag(const struct command *command, const char *key)
{
	const struct load_command *load = (const struct load_command *)command;

	return !strcmp(key, "ready") || (load->flag && load->flag(key)) ||
	       saturate_option_is_flag(key);
}

static const char *set_option(struct command *command, const char *key,
			      const char *value)
{
	struct load_command *load = (struct load_command *)command;

	if (!strcmp(key, "ready")) {
		load->ready = true;
		return NULL;
	}
	if (load->option && load->option(key, value))
		return NULL;
	return saturate_option(&load->saturate, key, value);
}

enum command_outcome load_command_parse(struct load_command *load,
					const char *program, int argc,
					char **argv)
{
	load->command = (struct command){ .option = set_option, .flag = is_flag };
	saturate_defaults(&load->saturate);
	return command_parse(&load->command, program, argc, argv);
}

void load_command_await_go(bool json)
{
	struct report report;
	int c;

	report_begin(&report, json);
	report_text(&report, "record", "ready");
	report_end(&report);
	do {
		c = getchar();
	} while (c != '\n' && c != EOF);
}

int load_command_run(const struct load_command *load, const char *program,
		     const char *name, struct transport *transport)
{
	struct saturate run = {
		.options = &load->saturate,
		.transport = transport,
		.name = name,
		.json = load->command.json,
	};

	if (saturate_prepare(&run)) {
		fprintf(stderr, "%s: %s\n", program, transport->message);
	} else {
		if (load->ready)
			load_command_await_go(load->command.json);
		saturate_run(&run);
		saturate_report(&run);
	}
	saturate_finish(&run);
	return saturate_exit(&run);
}
