// SPDX-License-Identifier: Apache-2.0
/* The command line of a child, which its supervisor generates. */
#include <getopt.h>
#include <sched.h>
#include <string.h>

#include "executor/child/child.h"
#include "executor/options.h"

static const char usage[] =
	"usage: vgpu-child --window-bytes N --memory-bytes N [OPTION]...\n"
	"       vgpu-child --compile --library PATH [OPTION]...\n"
	"Serves one client of a slice; vgpu-supervisor starts it with descriptors 3 to 7.\n"
	"  --backend NAME        opencl (default), or sleep for tests\n"
	"  --library PATH        the accelerator's own library\n"
	"  --spin-us N           look at the ring for so long before sleeping (default 0)\n"
	"  --sandbox POLICY      best (default), all or none\n"
	"  --namespaces LIST     namespaces that this process has to itself\n"
	"  --scratch PATH        where to write, without a mount namespace\n"
	"  --scratch-bytes N     size of the scratch space (default 64 MiB)\n"
	"  --address-bytes N     address space, 0 for no limit (default)\n"
	"  --nvidia N            compute on /dev/nvidiaN, with a relay for its ioctl() calls\n";

static enum vgpu_sandbox_policy policy(const char *value)
{
	if (!strcmp(value, "best"))
		return VGPU_SANDBOX_BEST;
	if (!strcmp(value, "all"))
		return VGPU_SANDBOX_ALL;
	if (!strcmp(value, "none"))
		return VGPU_SANDBOX_NONE;
	vgpu_option_refuse("sandbox", value);
}

static uint64_t namespaces(const char *value)
{
	uint64_t flags = 0;

	for (const char *name = value; *name;) {
		size_t length = strcspn(name, ",");
		unsigned int i = 0;

		while (i < vgpu_namespaces_count &&
		       (strlen(vgpu_namespaces[i].name) != length ||
			strncmp(name, vgpu_namespaces[i].name, length)))
			i++;
		if (i == vgpu_namespaces_count)
			vgpu_option_refuse("namespaces", value);
		flags |= vgpu_namespaces[i].flag;
		name += length + (name[length] == ',');
	}
	return flags;
}

void vgpu_child_read_options(struct vgpu_child_options *options, int argc, char **argv)
{
	static const struct option names[] = {
		{ "backend", 1, NULL, 'b' }, { "library", 1, NULL, 'l' },
		{ "window-bytes", 1, NULL, 'w' }, { "memory-bytes", 1, NULL, 'm' },
		{ "spin-us", 1, NULL, 's' }, { "sandbox", 1, NULL, 'x' },
		{ "namespaces", 1, NULL, 'n' }, { "scratch", 1, NULL, 't' },
		{ "scratch-bytes", 1, NULL, 'T' }, { "address-bytes", 1, NULL, 'd' },
		{ "nvidia", 1, NULL, 'g' }, { "compile", 0, NULL, 'c' }, { "help", 0, NULL, 'h' }, { 0 },
	};
	int option;

	*options = (struct vgpu_child_options){
		.backend = "opencl",
		.sandbox = { .scratch_bytes = 64ull << 20, .gpu = -1 },
	};
	vgpu_options_open("vgpu-child", usage);
	while ((option = getopt_long(argc, argv, "", names, NULL)) != -1) {
		switch (option) {
		case 'b':
			options->backend = optarg;
			break;
		case 'l':
			options->library = optarg;
			break;
		case 'w':
			options->window_bytes = vgpu_option_number("window-bytes", optarg, VGPU_WINDOW_BYTES_MIN,
								   VGPU_WINDOW_BYTES_MAX);
			if (options->window_bytes % VGPU_WINDOW_PAGE)
				vgpu_option_refuse("window-bytes", optarg);
			break;
		case 'm':
			options->memory_bytes = vgpu_option_number("memory-bytes", optarg, 0, UINT64_MAX);
			break;
		case 's':
			options->spin_ns = vgpu_option_number("spin-us", optarg, 0, UINT64_MAX) * 1000;
			break;
		case 'x':
			options->sandbox.policy = policy(optarg);
			break;
		case 'n':
			options->sandbox.namespaces = namespaces(optarg);
			break;
		case 't':
			options->sandbox.scratch = optarg;
			break;
		case 'T':
			options->sandbox.scratch_bytes = vgpu_option_number("scratch-bytes", optarg, 0, UINT64_MAX);
			break;
		case 'd':
			options->sandbox.address_bytes = vgpu_option_number("address-bytes", optarg, 0, UINT64_MAX);
			break;
		case 'g':
			options->sandbox.gpu = (int)vgpu_option_number("nvidia", optarg, 0, 31);
			options->sandbox.relayed = true;
			break;
		case 'c':
			options->compile = true;
			break;
		case 'h':
			vgpu_options_help();
		default:
			vgpu_options_wrong();
		}
	}
	if (optind != argc || (!options->compile && !options->window_bytes))
		vgpu_options_wrong();
	options->sandbox.compiler = options->compile;
	options->sandbox.library = options->library;
	options->sandbox.relayed = options->sandbox.relayed && !options->compile;
}
