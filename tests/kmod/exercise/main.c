// SPDX-License-Identifier: GPL-2.0
/* vgpu-exercise: try a slice from inside the guest. vgpu-guest is for users; this is for tests. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exit.h"
#include "fuzz.h"
#include "hostile.h"
#include "load_command.h"
#include "selftest.h"
#include "windows.h"

#define DEFAULT_DEVICE "/dev/vgpu0"
#define DEFAULT_WINDOWS DEFAULT_DEVICE "-compute"

static void help(void)
{
	printf("usage: vgpu-exercise [--device PATH] [--json] COMMAND ...\n\n"
	       "commands:\n"
	       "  saturate OPTIONS  keep the device busy, check results, report\n"
	       "  hostile NAME|all  malformed descriptors (needs CAP_SYS_RAWIO);\n"
	       "                    hostile list names them\n"
	       "  fuzz              descriptors of any content for --seconds; --seed\n"
	       "                    chooses (needs CAP_SYS_RAWIO)\n"
	       "  windows NAME|all  what windows must keep, with an executor of tests;\n"
	       "                    windows list names the cases\n"
	       "  selftest          check this program and vgpu-guest's verify without a\n"
	       "                    device\n\n"
	       "options:\n"
	       "  --device PATH     (" DEFAULT_DEVICE ", windows: " DEFAULT_WINDOWS ")\n"
	       "  --json            one JSON object per line\n"
	       "  --ready           saturate: print a ready record, begin on end of\n"
	       "                    line or file\n\n"
	       "saturate options:\n%s\n%s",
	       saturate_help, exit_help);
}

static struct transport *open_device(const struct load_command *load)
{
	const char *path = load->command.device ? load->command.device : DEFAULT_DEVICE;
	struct transport *transport;
	char message[192];

	transport = transport_dev_open(path, message, sizeof(message));
	if (!transport)
		fprintf(stderr, "vgpu-exercise: %s\n", message);
	return transport;
}

static int run_hostile(struct load_command *load, struct transport *transport)
{
	int status = hostile_run(transport, hostile_descriptors,
				 hostile_descriptor_count, load->command.argv[0],
				 load->command.json);

	if (status >= 0)
		return status;
	fprintf(stderr, "vgpu-exercise: hostile: no case %s, see hostile list\n",
		load->command.argv[0]);
	return EXIT_USAGE;
}

static int run_windows(const struct load_command *load)
{
	const char *path = load->command.device ? load->command.device : DEFAULT_WINDOWS;
	int status;

	if (!strcmp(load->command.argv[0], "list")) {
		windows_list();
		return EXIT_OK;
	}
	status = windows_run(path, load->command.argv[0], load->command.json);
	if (status >= 0)
		return status;
	fprintf(stderr, "vgpu-exercise: windows: no case %s, see windows list\n",
		load->command.argv[0]);
	return EXIT_USAGE;
}

static int with_device(struct load_command *load,
		       int (*run)(struct load_command *, struct transport *))
{
	struct transport *transport = open_device(load);
	int status;

	if (!transport)
		return EXIT_DEVICE;
	status = run(load, transport);
	transport->ops->close(transport);
	return status;
}

static int run_saturate(struct load_command *load, struct transport *transport)
{
	const char *path = load->command.device;

	return load_command_run(load, "vgpu-exercise", path ? path : DEFAULT_DEVICE,
				transport);
}

static int run_fuzz(struct load_command *load, struct transport *transport)
{
	return fuzz_run(transport, load->saturate.duration_ns,
			load->saturate.work.seed, load->command.json);
}

static int usage(const char *why)
{
	fprintf(stderr, "vgpu-exercise: %s (see --help)\n", why);
	return EXIT_USAGE;
}

int main(int argc, char **argv)
{
	struct load_command load = { .ready = false };
	const char *name;

	switch (load_command_parse(&load, "vgpu-exercise", argc, argv)) {
	case COMMAND_HELP:
		help();
		return EXIT_OK;
	case COMMAND_BAD:
		return EXIT_USAGE;
	case COMMAND_RUN:
		break;
	}
	saturate_complete(&load.saturate);
	if (!load.command.argc)
		return usage("no command");
	name = load.command.argv[0];
	load.command.argv++;
	load.command.argc--;

	if (!strcmp(name, "hostile")) {
		if (load.command.argc != 1)
			return usage("hostile: the name of a case, all or list");
		if (!strcmp(load.command.argv[0], "list")) {
			hostile_list(hostile_descriptors, hostile_descriptor_count);
			return EXIT_OK;
		}
		return with_device(&load, run_hostile);
	}
	if (!strcmp(name, "windows")) {
		if (load.command.argc != 1)
			return usage("windows: the name of a case, all or list");
		return run_windows(&load);
	}
	if (load.command.argc)
		return usage("too many arguments");
	if (!strcmp(name, "saturate"))
		return with_device(&load, run_saturate);
	if (!strcmp(name, "fuzz"))
		return with_device(&load, run_fuzz);
	if (!strcmp(name, "selftest"))
		return selftest_run();
	return usage("unknown command");
}
