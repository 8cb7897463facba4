// SPDX-License-Identifier: Apache-2.0
/* The command line of a supervisor. */
#include <getopt.h>
#include <string.h>
#include <sys/sysinfo.h>

#include "executor/options.h"
#include "executor/supervisor/supervisor.h"

static const char usage[] =
	"usage: vgpu-supervisor --tenant NAME --child PATH [OPTION]...\n"
	"Runs the children of one tenant for the arbiter on descriptor 3.\n"
	"  --library PATH            the accelerator's own library, for the children\n"
	"  --backend NAME            opencl (default), or sleep for tests\n"
	"  --sandbox POLICY          best (default): what the machine permits; all: or do not serve;\n"
	"                            none: for a debugger\n"
	"  --gate KIND               auto (default), cgroup2, cgroup1 or signal\n"
	"  --cgroup PATH             a cgroup that was delegated to this supervisor (default: its own)\n"
	"  --nvidia N                children compute on /dev/nvidiaN, and the gate stops its channels too\n"
	"  --gate-lock PATH          lock file for that, shared by all supervisors of the host\n"
	"                            (default /run/vgpumgr-gate.lock, or in $XDG_RUNTIME_DIR)\n"
	"  --natives DIR             accept native programs, and list their cgroups in files in DIR\n"
	"  --gate-limit-ms N         kill a child that has not stopped by then (default 1000)\n"
	"  --spin-us N               how long a child looks at its ring before it sleeps, if spinning\n"
	"                            has been useful (default 20, and 0 with less than 3 processors)\n"
	"  --scratch-bytes N         limit on files that a child writes (default 64 MiB)\n"
	"  --overhead-bytes N        address space of a child besides its slice's memory\n"
	"                            (default 2 GiB)\n"
	"  --resident-bytes N        memory of a child besides its window and its slice's\n"
	"                            (default 512 MiB)\n"
	"  --compilers N             maximum number of compilers at a time, 1 to 8 (default 2)\n"
	"  --compiler-bytes N        address space of a compiler (default 4 GiB)\n"
	"  --compiler-limit-ms N     time for one job (default 300000)\n"
	"  --compile-cache-bytes N   results of compilers that are kept (default 64 MiB, 0 for none)\n";

static const char *word(const char *option, const char *value, const char *const *words)
{
	for (; *words; words++)
		if (!strcmp(*words, value))
			return *words;
	vgpu_option_refuse(option, value);
}

static enum vgpu_gate_kind gate_kind(const char *value)
{
	for (enum vgpu_gate_kind kind = VGPU_GATE_AUTO; kind <= VGPU_GATE_SIGNAL; kind++)
		if (!strcmp(vgpu_gate_name(kind), value))
			return kind;
	vgpu_option_refuse("gate", value);
}

void vgpu_supervisor_read_options(struct vgpu_supervisor_options *options, int argc,
				  char **argv)
{
	static const char *const policies[] = { "best", "all", "none", NULL };
	static const struct option names[] = {
		{ "tenant", 1, NULL, 't' }, { "child", 1, NULL, 'c' }, { "library", 1, NULL, 'l' },
		{ "backend", 1, NULL, 'b' }, { "sandbox", 1, NULL, 'x' }, { "gate", 1, NULL, 'g' },
		{ "cgroup", 1, NULL, 'G' }, { "gate-limit-ms", 1, NULL, 'L' },
		{ "spin-us", 1, NULL, 's' }, { "scratch-bytes", 1, NULL, 'T' },
		{ "overhead-bytes", 1, NULL, 'o' }, { "resident-bytes", 1, NULL, 'r' },
		{ "compilers", 1, NULL, 'n' },
		{ "compiler-bytes", 1, NULL, 'B' }, { "compiler-limit-ms", 1, NULL, 'M' },
		{ "compile-cache-bytes", 1, NULL, 'C' },
		{ "nvidia", 1, NULL, 'N' }, { "gate-lock", 1, NULL, 'K' }, { "natives", 1, NULL, 'A' },
		{ "help", 0, NULL, 'h' }, { 0 },
	};
	int option;

	*options = (struct vgpu_supervisor_options){
		.backend = "opencl", .sandbox = "best",
		.scratch_bytes = 64ull << 20, .overhead_bytes = 2ull << 30,
		.resident_bytes = 512ull << 20,
		.compiler_bytes = 4ull << 30, .compiler_limit_ns = 300000000000ull,
		.compile_cache_bytes = 64ull << 20,
		.gate_limit_ns = 1000000000ull, .compilers = 2,
		.gpu = -1,
		.spin_us = get_nprocs() > 2 ? 20 : 0,
	};
	vgpu_options_open("vgpu-supervisor", usage);
	while ((option = getopt_long(argc, argv, "", names, NULL)) != -1) {
		switch (option) {
		case 't':
			options->tenant = optarg;
			break;
		case 'c':
			options->child = optarg;
			break;
		case 'l':
			options->library = optarg;
			break;
		case 'b':
			options->backend = optarg;
			break;
		case 'x':
			options->sandbox = word("sandbox", optarg, policies);
			break;
		case 'g':
			options->gate = gate_kind(optarg);
			break;
		case 'G':
			options->cgroup = optarg;
			break;
		case 'L':
			options->gate_limit_ns = vgpu_option_number("gate-limit-ms", optarg, 1, 600000) * 1000000;
			break;
		case 's':
			options->spin_us = vgpu_option_number("spin-us", optarg, 0, 10000);
			break;
		case 'T':
			options->scratch_bytes = vgpu_option_number("scratch-bytes", optarg, 1u << 20, 1ull << 40);
			break;
		case 'o':
			options->overhead_bytes = vgpu_option_number("overhead-bytes", optarg, 1u << 20, 1ull << 44);
			break;
		case 'r':
			options->resident_bytes = vgpu_option_number("resident-bytes", optarg, 1u << 20, 1ull << 44);
			break;
		case 'n':
			options->compilers = (unsigned int)vgpu_option_number("compilers", optarg, 1,
									      VGPU_COMPILERS_MAX);
			break;
		case 'B':
			options->compiler_bytes = vgpu_option_number("compiler-bytes", optarg, 1u << 20, 1ull << 44);
			break;
		case 'M':
			options->compiler_limit_ns = vgpu_option_number("compiler-limit-ms", optarg, 1,
									86400000) * 1000000;
			break;
		case 'C':
			options->compile_cache_bytes = vgpu_option_number("compile-cache-bytes", optarg, 0,
									  1ull << 40);
			break;
		case 'N':
			options->gpu = (int)vgpu_option_number("nvidia", optarg, 0, 31);
			break;
		case 'K':
			options->gate_lock = optarg;
			break;
		case 'A':
			options->natives = optarg;
			break;
		case 'h':
			vgpu_options_help();
		default:
			vgpu_options_wrong();
		}
	}
	if (optind != argc || !options->tenant || !options->child)
		vgpu_options_wrong();
}
