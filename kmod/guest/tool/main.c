// SPDX-License-Identifier: GPL-2.0
/* vgpu-guest: use a slice from inside the guest. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "descriptor.h"
#include "exit.h"
#include "status.h"
#include "verify.h"

#define DEFAULT_DEVICE "/dev/vgpu0"

static const char *root = "";

static void help(void)
{
	printf("usage: vgpu-guest [--device PATH] [--json] COMMAND ...\n\n"
	       "commands:\n"
	       "  status            whether this guest can compute, and what is missing\n"
	       "  info              limits, registers and counters\n"
	       "  submit OP [SIZE]  one item, its result checked; OP: nop fill copy crc32c gemm\n"
	       "                    delay fact; SIZE: bytes, the dimension of gemm, the ns\n"
	       "                    of delay\n"
	       "  verify            every operation, size and operand placement\n\n"
	       "options:\n"
	       "  --device PATH     (" DEFAULT_DEVICE ")\n"
	       "  --root DIR        status: use DIR as the root\n"
	       "  --json            one JSON object per line\n\n"
	       "%s",
	       exit_help);
}

static const char *guest_option(struct command *command, const char *key,
				const char *value)
{
	(void)command;
	if (strcmp(key, "root"))
		return "unknown option";
	if (!value)
		return "needs a value";
	root = value;
	return NULL;
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
	if (!command.argc)
		return usage("no command");
	name = command.argv[0];
	command.argv++;
	command.argc--;

	if (!strcmp(name, "submit")) {
		if (command.argc < 1 || command.argc > 2 ||
		    op_by_name(command.argv[0]) < 0)
			return usage("submit needs an operation, and optionally a size");
		return with_device(&command, run_submit);
	}
	if (command.argc)
		return usage("too many arguments");
	if (!strcmp(name, "status"))
		return status_run(root, command.json);
	if (!strcmp(name, "info"))
		return with_device(&command, run_info);
	if (!strcmp(name, "verify"))
		return with_device(&command, run_verify);
	return usage("unknown command");
}
