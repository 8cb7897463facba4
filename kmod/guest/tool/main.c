// SPDX-License-Identifier: GPL-2.0
/* vgpu-guest: use a slice from inside the guest. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "descriptor.h"
#include "exit.h"
#include "fuzz.h"
#include "hostile.h"
#include "saturate.h"
#include "selftest.h"
#include "status.h"
#include "verify.h"
#include "windows.h"

#define DEFAULT_DEVICE "/dev/vgpu0"
#define DEFAULT_WINDOWS DEFAULT_DEVICE "-compute"

static void help(void)
{
	printf("usage: vgpu-guest [--device PATH] [--json] COMMAND ...\n\n"
	       "commands:\n"
	       "  status            what this guest has to compute with, and why something\n"
	       "                    does not work\n"
	       "  info              limits, registers and counters\n"
	       "  submit OP [SIZE]  one item, its result checked; SIZE: bytes, the\n"
	       "                    dimension of gemm, the ns of delay\n"
	       "  verify            every operation, size and operand placement\n"
	       "  saturate OPTIONS  keep the device busy, check results, report\n"
	       "  hostile NAME|all  malformed descriptors (needs CAP_SYS_RAWIO);\n"
	       "                    hostile list names them\n"
	       "  fuzz              descriptors of any content for --seconds; --seed\n"
	       "                    chooses (needs CAP_SYS_RAWIO)\n"
	       "  windows NAME|all  what windows must keep, with an executor of tests;\n"
	       "                    windows list names the cases\n"
	       "  selftest          check this program without a device\n\n"
	       "options:\n"
	       "  --device PATH     (" DEFAULT_DEVICE ", windows: " DEFAULT_WINDOWS ")\n"
	       "  --root DIR        status: look there instead of at /\n"
	       "  --json            one JSON object per line\n"
	       "  --ready           saturate: print a ready record, begin on end of\n"
	       "                    line or file\n\n"
	       "saturate options:\n%s\n%s",
	       saturate_help, exit_help);
}

static const char *root = "";

static int guest_option(struct command *command, const char *key, const char *value)
{
	(void)command;
	if (strcmp(key, "root") || !value)
		return 0;
	root = value;
	return 1;
}

static struct transport *open_device(const struct command *command)
{
	const char *path = command->device ? command->device : DEFAULT_DEVICE;
	struct transport *transport;
	char message[192];

	transport = transport_dev_open(path, message, sizeof(message));
	if (!transport)
		fprintf(stderr, "vgpu-guest: %s\n", message);
	return transport;
}

static int run_saturate(struct command *command, struct transport *transport)
{
	struct saturate run = {
		.options = &command->saturate,
		.transport = transport,
		.name = command->device ? command->device : DEFAULT_DEVICE,
		.json = command->json,
	};

	if (saturate_prepare(&run)) {
		fprintf(stderr, "vgpu-guest: %s\n", transport->message);
	} else {
		if (command->ready)
			command_await_go(command->json);
		saturate_run(&run);
		saturate_report(&run);
	}
	saturate_finish(&run);
	return saturate_exit(&run);
}

static int run_submit(struct command *command, struct transport *transport)
{
	const char *op = command->argv[0];
	uint32_t size = 4096;

	if (op_by_name(op) == VGPU_OP_GEMM_I32)
		size = 32;
	if (op_by_name(op) == VGPU_OP_DELAY)
		size = 1000000;
	if (command->argc == 2)
		size = strtoul(command->argv[1], NULL, 0);
	return verify_submit(transport, op, size, command->json);
}

static int run_hostile(struct command *command, struct transport *transport)
{
	int status = hostile_run(transport, hostile_descriptors,
				 hostile_descriptor_count, command->argv[0],
				 command->json);

	if (status >= 0)
		return status;
	fprintf(stderr, "vgpu-guest: hostile: no case %s, see hostile list\n",
		command->argv[0]);
	return EXIT_USAGE;
}

static int run_windows(const struct command *command)
{
	const char *path = command->device ? command->device : DEFAULT_WINDOWS;
	int status;

	if (!strcmp(command->argv[0], "list")) {
		windows_list();
		return EXIT_OK;
	}
	status = windows_run(path, command->argv[0], command->json);
	if (status >= 0)
		return status;
	fprintf(stderr, "vgpu-guest: windows: no case %s, see windows list\n",
		command->argv[0]);
	return EXIT_USAGE;
}

static int with_device(struct command *command,
		       int (*run)(struct command *, struct transport *))
{
	struct transport *transport = open_device(command);
	int status;

	if (!transport)
		return EXIT_DEVICE;
	status = run(command, transport);
	transport->ops->close(transport);
	return status;
}

static int run_info(struct command *command, struct transport *transport)
{
	return command_info(transport, DEFAULT_DEVICE, command->json);
}

static int run_verify(struct command *command, struct transport *transport)
{
	return verify_all(transport, DEFAULT_DEVICE, command->json);
}

static int run_fuzz(struct command *command, struct transport *transport)
{
	return fuzz_run(transport, command->saturate.duration_ns,
			command->saturate.work.seed, command->json);
}

static int usage(const char *why)
{
	fprintf(stderr, "vgpu-guest: %s (see --help)\n", why);
	return EXIT_USAGE;
}

int main(int argc, char **argv)
{
	struct command command = { .option = guest_option };
	const char *name;

	switch (command_parse(&command, "vgpu-guest", argc, argv)) {
	case COMMAND_HELP:
		help();
		return EXIT_OK;
	case COMMAND_BAD:
		return EXIT_USAGE;
	case COMMAND_RUN:
		break;
	}
	saturate_complete(&command.saturate);
	if (!command.argc)
		return usage("no command");
	name = command.argv[0];
	command.argv++;
	command.argc--;

	if (!strcmp(name, "submit")) {
		if (command.argc < 1 || command.argc > 2 ||
		    op_by_name(command.argv[0]) < 0)
			return usage("submit: an operation and perhaps a size");
		return with_device(&command, run_submit);
	}
	if (!strcmp(name, "hostile")) {
		if (command.argc != 1)
			return usage("hostile: the name of a case, all or list");
		if (!strcmp(command.argv[0], "list")) {
			hostile_list(hostile_descriptors, hostile_descriptor_count);
			return EXIT_OK;
		}
		return with_device(&command, run_hostile);
	}
	if (!strcmp(name, "windows")) {
		if (command.argc != 1)
			return usage("windows: the name of a case, all or list");
		return run_windows(&command);
	}
	if (command.argc)
		return usage("too many arguments");
	if (!strcmp(name, "status"))
		return status_run(root, command.json);
	if (!strcmp(name, "info"))
		return with_device(&command, run_info);
	if (!strcmp(name, "verify"))
		return with_device(&command, run_verify);
	if (!strcmp(name, "saturate"))
		return with_device(&command, run_saturate);
	if (!strcmp(name, "fuzz"))
		return with_device(&command, run_fuzz);
	if (!strcmp(name, "selftest"))
		return selftest_run();
	return usage("unknown command");
}
