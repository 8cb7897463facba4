// SPDX-License-Identifier: Apache-2.0
/* The command line of vgpu-executor. */
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "executor/options.h"
#include "executor/slice/slice.h"

#define UUID_CHARACTERS	36

static const char usage[] =
	"usage: vgpu-executor --slice UUID --library PATH [OPTION]...\n"
	"       vgpu-executor --check --library PATH [OPTION]...\n"
	"Executes OpenCL for the programs of one slice's VM, in the leases that the kernel module lends.\n"
	"  --slice UUID              slice to serve; its engine must be `lease`\n"
	"  --library PATH            the accelerator's own library\n"
	"  --nvidia N                children compute on /dev/nvidiaN, and the gate stops its channels too\n"
	"  --device PATH             default /dev/vgpumgr-exec\n"
	"  --supervisor PATH         default vgpu-supervisor beside this program\n"
	"  --child PATH              default vgpu-child beside this program\n"
	"  --memory-bytes N          accelerator memory (default: what the slice has)\n"
	"  --compile-cache-bytes N   results of compilers that are kept (default 64 MiB, 0 for none)\n"
	"  --gate-limit-ms N         kill a child that has not stopped by then (default 1000)\n"
	"  --check                   try whether a child can serve with the library, and exit\n"
	"Exit status: 0 ended, or a child can serve; 1 failed; 2 wrong command line.\n";

/* Return: the path of a program in the same directory as this one. */
static const char *beside(const char *name)
{
	char *path = malloc(PATH_MAX + strlen(name) + 1), *slash;
	ssize_t length = path ? readlink("/proc/self/exe", path, PATH_MAX - 1) : -1;

	if (length < 0)
		return name;
	path[length] = '\0';
	slash = strrchr(path, '/');
	strcpy(slash ? slash + 1 : path, name);
	return path;
}

void slice_read_options(struct slice_options *options, int argc, char **argv)
{
	static const struct option names[] = {
		{ "slice", 1, NULL, 's' }, { "library", 1, NULL, 'l' }, { "device", 1, NULL, 'd' },
		{ "supervisor", 1, NULL, 'S' }, { "child", 1, NULL, 'c' }, { "memory-bytes", 1, NULL, 'm' },
		{ "compile-cache-bytes", 1, NULL, 'C' }, { "gate-limit-ms", 1, NULL, 'L' },
		{ "nvidia", 1, NULL, 'N' }, { "check", 0, NULL, 'k' }, { "help", 0, NULL, 'h' }, { 0 },
	};
	int option;

	*options = (struct slice_options){
		.device = "/dev/vgpumgr-exec", .compile_cache_bytes = 64ull << 20,
		.gate_limit_ns = 1000000000ull,
	};
	vgpu_options_open("vgpu-executor", usage);
	while ((option = getopt_long(argc, argv, "", names, NULL)) != -1) {
		switch (option) {
		case 's':
			if (strlen(optarg) != UUID_CHARACTERS)
				vgpu_option_refuse("slice", optarg);
			options->slice = optarg;
			break;
		case 'l':
			options->library = optarg;
			break;
		case 'd':
			options->device = optarg;
			break;
		case 'S':
			options->supervisor = optarg;
			break;
		case 'c':
			options->child = optarg;
			break;
		case 'm':
			options->memory_bytes = vgpu_option_number("memory-bytes", optarg, 1, UINT64_MAX);
			break;
		case 'C':
			options->compile_cache_bytes = vgpu_option_number("compile-cache-bytes", optarg, 0,
									  1ull << 40);
			break;
		case 'L':
			options->gate_limit_ns = vgpu_option_number("gate-limit-ms", optarg, 1, 600000) * 1000000;
			break;
		case 'N':
			vgpu_option_number("nvidia", optarg, 0, 31);
			options->nvidia = optarg;
			break;
		case 'k':
			options->check = true;
			break;
		case 'h':
			vgpu_options_help();
		default:
			vgpu_options_wrong();
		}
	}
	if (optind != argc || !options->library || !options->slice == !options->check)
		vgpu_options_wrong();
	if (!options->supervisor)
		options->supervisor = beside("vgpu-supervisor");
	if (!options->child)
		options->child = beside("vgpu-child");
}
