// SPDX-License-Identifier: GPL-2.0
#include "command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "descriptor.h"
#include "exit.h"
#include "report.h"

const char exit_help[] =
	"exit status: 0 success; 1 wrong result; 2 invalid command line; 3 device\n"
	"cannot be opened or used; 4 nothing completed in time; 5 the device stopped\n"
	"with an error\n";

static bool is_flag(const struct command *command, const char *key)
{
	return !strcmp(key, "json") ||
	       (command->flag && command->flag(command, key));
}

static const char *set_option(struct command *command, const char *key,
			      const char *value)
{
	if (is_flag(command, key) && value)
		return "takes no value";
	if (!strcmp(key, "json")) {
		command->json = true;
		return NULL;
	}
	if (!strcmp(key, "device")) {
		command->device = value;
		return value ? NULL : "needs a value";
	}
	return command->option(command, key, value);
}

enum command_outcome command_parse(struct command *command, const char *program,
				   int argc, char **argv)
{
	command->argv = calloc(argc, sizeof(*command->argv));
	if (!command->argv)
		return COMMAND_BAD;

	for (int i = 1; i < argc; i++) {
		const char *why, *value = NULL, *equals;
		char key[32];

		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			return COMMAND_HELP;
		if (strncmp(argv[i], "--", 2)) {
			command->argv[command->argc++] = argv[i];
			continue;
		}
		snprintf(key, sizeof(key), "%s", argv[i] + 2);
		equals = strchr(argv[i], '=');
		if (equals) {
			key[strcspn(key, "=")] = '\0';
			value = equals + 1;
		} else if (!is_flag(command, key) && i + 1 < argc) {
			value = argv[++i];
		}
		why = set_option(command, key, value);
		if (why) {
			fprintf(stderr, "%s: --%s: %s (see --help)\n", program,
				key, why);
			return COMMAND_BAD;
		}
	}
	return COMMAND_RUN;
}

int command_info(struct transport *transport, const char *name, bool json)
{
	const struct transport_limits *limits = &transport->limits;
	struct transport_counters counters;
	struct report report;

	if (transport->ops->counters(transport, &counters)) {
		fprintf(stderr, "%s: %s\n", name, transport->message);
		return EXIT_DEVICE;
	}
	report_begin(&report, json);
	report_text(&report, "record", "info");
	report_text(&report, "name", name);
	report_hex(&report, "abi", limits->abi);
	report_hex(&report, "ops", limits->ops);
	report_hex(&report, "desc_flags", limits->flags);
	report_u64(&report, "ring_entries", limits->ring_entries);
	report_u64(&report, "item_bytes_max", limits->item_bytes_max);
	report_u64(&report, "piece_bytes", limits->piece_bytes);
	report_u64(&report, "area_bytes_max", limits->area_bytes_max);
	report_u64(&report, "memory_bytes", limits->memory_bytes);
	report_u64(&report, "delay_ns_max", limits->delay_ns_max);
	report_u64(&report, "chunk_ns_max", limits->chunk_ns_max);
	report_u64(&report, "fact_ps", limits->fact_ps);
	report_hex(&report, "status", counters.status);
	report_bool(&report, "scheduled",
		    counters.status & VGPU_STATUS_SCHEDULED);
	report_u64(&report, "error", counters.error);
	report_text(&report, "error_name", error_name(counters.error));
	report_u64(&report, "error_index", counters.error_index);
	report_u64(&report, "fetched", counters.fetched);
	report_u64(&report, "completed", counters.completed);
	report_u64(&report, "outstanding", counters.outstanding);
	report_u64(&report, "run_ns", counters.run_ns);
	report_u64(&report, "interrupts", counters.interrupts);
	report_end(&report);
	return EXIT_OK;
}
