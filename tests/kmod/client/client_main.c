// SPDX-License-Identifier: GPL-2.0
/* vgpu-client: use slices without a VM, through VFIO. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "clock.h"
#include "exit.h"
#include "hostile.h"
#include "hostile_registers.h"
#include "load_command.h"
#include "transport_vfio.h"
#include "verify.h"

static struct client_options options = { .entries = 1024, .period_ns = NS_PER_MS,
					 .seed = 1 };
static const char *slices[CLIENT_SLICES_MAX];
static unsigned int slice_count;

static void help(void)
{
	printf("usage: vgpu-client [--json] UUID COMMAND ...\n"
	       "       vgpu-client [--json] --slice UUID,OPTION=VALUE,... [--slice ...]\n\n"
	       "commands:\n"
	       "  info           limits, registers and counters\n"
	       "  verify         every operation, size and operand placement\n"
	       "  saturate       keep the slice busy, check results, report\n"
	       "  hostile NAME   malformed work: a case, all, or list\n"
	       "  probe          what VFIO answers and refuses\n"
	       "  unmap-race     unmap operand memory while items use it\n"
	       "  toctou         rewrite descriptors while the device reads them\n"
	       "  fuzz           anything, for --seconds; see --seed\n"
	       "  freeze         operand memory that does not answer for --seconds\n"
	       "  latency        a delay item every --period-us, latency quantiles\n"
	       "  residue        device memory holds zeros; leaves a pattern in it\n"
	       "  hold           keep the device open until the end of stdin\n\n"
	       "options:\n"
	       "  --slice SPEC   saturate a slice; options as below without dashes, and\n"
	       "                 name=TEXT; all slices begin together\n"
	       "  --entries N    ring entries (1024)\n"
	       "  --period-us N  of latency (1000)\n"
	       "  --seed N       of fuzz (1)\n"
	       "  --leave        freeze: exit with the faults unanswered\n"
	       "  --fault-first  freeze: open the faults' file before the device\n"
	       "  --ready        saturate: print a ready record, begin on end of line\n"
	       "                 or file\n"
	       "  --json         one JSON object per line\n\n"
	       "SIGTERM ends the measured phase of all slices.\n\n"
	       "saturate options (given before --slice they hold for every slice):\n"
	       "%s\n%s",
	       saturate_help, exit_help);
}

/* 1: accepted; 0: not one of these options, and saturate_option() reports it. */
static int client_option(const char *key, const char *value)
{
	char *end;

	if (!strcmp(key, "leave") || !strcmp(key, "fault-first")) {
		if (value)
			return 0;
		options.leave_frozen |= *key == 'l';
		options.fault_first |= *key == 'f';
		return 1;
	}
	if (!value || !*value)
		return 0;
	if (!strcmp(key, "slice") && slice_count < CLIENT_SLICES_MAX) {
		slices[slice_count++] = value;
		return 1;
	}
	if (!strcmp(key, "entries")) {
		options.entries = strtoul(value, &end, 0);
		return !*end && options.entries >= VGPU_RING_ENTRIES_MIN &&
		       options.entries <= VGPU_RING_ENTRIES_MAX &&
		       !(options.entries & (options.entries - 1));
	}
	if (!strcmp(key, "seed")) {
		options.seed = strtoull(value, &end, 0);
		return !*end;
	}
	if (!strcmp(key, "period-us")) {
		options.period_ns = strtod(value, &end) * NS_PER_US;
		return !*end && options.period_ns;
	}
	return 0;
}

static bool client_flag(const char *key)
{
	return !strcmp(key, "leave") || !strcmp(key, "fault-first");
}

static int usage(const char *why)
{
	fprintf(stderr, "vgpu-client: %s (see --help)\n", why);
	return EXIT_USAGE;
}

static int hostile(struct transport *transport, const char *name, bool json)
{
	int registers = hostile_run(transport, hostile_registers,
				    hostile_register_count, name, json);
	int descriptors = hostile_run(transport, hostile_descriptors,
				      hostile_descriptor_count, name, json);

	if (registers < 0 && descriptors < 0)
		return usage("hostile: no such case, see hostile list");
	return registers > 0 || descriptors > 0 ? EXIT_WRONG : EXIT_OK;
}

static int with_transport(struct load_command *load, const char *uuid,
			  const char *name, struct transport *transport)
{
	uint64_t duration_ns = load->saturate.duration_ns;

	if (!strcmp(name, "info"))
		return command_info(transport, uuid, load->command.json);
	if (!strcmp(name, "verify"))
		return verify_all(transport, uuid, load->command.json);
	if (!strcmp(name, "saturate"))
		return load_command_run(load, "vgpu-client", uuid, transport);
	if (!strcmp(name, "unmap-race"))
		return client_unmap_race(transport, duration_ns, load->command.json);
	if (!strcmp(name, "toctou"))
		return client_toctou(transport, duration_ns, load->command.json);
	if (!strcmp(name, "latency"))
		return client_latency(transport, duration_ns, options.period_ns,
				      load->saturate.work.delay_ns,
				      load->command.json);
	if (!strcmp(name, "residue"))
		return client_residue(transport, load->command.json);
	if (!strcmp(name, "hold"))
		return client_hold(transport, load->command.json);
	return usage("unknown command");
}

int client_hold(struct transport *transport, bool json)
{
	(void)transport;
	load_command_await_go(json);
	return EXIT_OK;
}

static int run(struct load_command *load)
{
	const char *uuid = load->command.argv[0], *name = load->command.argv[1];
	bool names_case = load->command.argc == 3 && !strcmp(name, "hostile");
	struct transport *transport;
	char message[192];
	int status;

	if (load->command.argc != 2 && !names_case)
		return usage("a UUID and one command");
	if (!strcmp(name, "hostile") && !names_case)
		return usage("hostile: the name of a case, all or list");
	if (!strcmp(name, "probe"))
		return client_probe(uuid, load->command.json);
	if (!strcmp(name, "fuzz"))
		return client_fuzz(uuid, load->saturate.duration_ns, options.seed,
				   load->command.json);
	if (!strcmp(name, "freeze"))
		return client_freeze(uuid, &options,
				     load->saturate.duration_ns,
				     load->command.json);
	if (names_case && !strcmp(load->command.argv[2], "list")) {
		hostile_list(hostile_registers, hostile_register_count);
		hostile_list(hostile_descriptors, hostile_descriptor_count);
		return EXIT_OK;
	}
	transport = transport_vfio_open(uuid, options.entries, message,
					sizeof(message));
	if (!transport) {
		fprintf(stderr, "vgpu-client: %s\n", message);
		return EXIT_DEVICE;
	}
	if (names_case)
		status = hostile(transport, load->command.argv[2], load->command.json);
	else
		status = with_transport(load, uuid, name, transport);
	transport->ops->close(transport);
	return status;
}

int main(int argc, char **argv)
{
	struct load_command load = { .option = client_option, .flag = client_flag };

	switch (load_command_parse(&load, "vgpu-client", argc, argv)) {
	case COMMAND_HELP:
		help();
		return EXIT_OK;
	case COMMAND_BAD:
		return EXIT_USAGE;
	case COMMAND_RUN:
		break;
	}
	if (slice_count && load.command.argc)
		return usage("--slice takes no UUID and command");
	if (slice_count)
		return client_slices(slices, slice_count, &load.saturate,
				     &options, load.command.json, load.ready);
	saturate_complete(&load.saturate);
	return run(&load);
}
