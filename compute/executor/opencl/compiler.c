/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The compiler: a process that builds, compiles or links one program, writes logs and binaries, and
 * ends.  It is as untrusted as the source code that it compiles.  Its sandbox permits starting the
 * linker.  Only children of the same tenant use its result.
 */
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <fcntl.h>

#include "executor/link.h"
#include "job.h"
#include "library.h"
#include "program.h"

struct compiler {
	struct opencl_library library;
	struct job_reader job;
	enum opencl_build_operation operation;
	uint32_t device_count;
	uint32_t indices[VGPU_CL_DEVICES_MAX];
	cl_device_id devices[VGPU_CL_DEVICES_MAX];
	cl_context context;
	char *options;	/* including added options */
	cl_program program;
	char root[256];	/* directory of the headers; "" for none */
};

static char *append(char *text, const char *more)
{
	size_t length = text ? strlen(text) : 0;
	char *longer = realloc(text, length + strlen(more) + 2);

	if (!longer)
		exit(3);
	longer[length] = ' ';
	strcpy(longer + length + 1, more);
	return longer;
}

/* Is this a relative path without ".."? */
static bool proper(const char *name, size_t bytes)
{
	const char *at = name;

	if (strlen(name) != bytes || name[0] == '/' || bytes > VGPU_CL_PATH_MAX)
		return false;
	while (at) {
		if (!strncmp(at, "..", 2) && (at[2] == '/' || !at[2]))
			return false;
		at = strchr(at, '/');
		at = at ? at + 1 : NULL;
	}
	return true;
}

static void make_directories(char *path, size_t from)
{
	for (char *at = strchr(path + from, '/'); at; at = strchr(at + 1, '/')) {
		*at = '\0';
		mkdir(path, 0700);
		*at = '/';
	}
}

static void write_header(struct compiler *compiler, const char *name, const void *contents,
			 size_t bytes)
{
	char path[sizeof(compiler->root) + VGPU_CL_PATH_MAX + 2];
	int file;

	snprintf(path, sizeof(path), "%s/%s", compiler->root, name);
	make_directories(path, strlen(compiler->root) + 1);
	file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (file < 0)
		return;
	if (write(file, contents, bytes) != (ssize_t)bytes)
		exit(3);
	close(file);
}

/*
 * Makes a link without blanks in its name for each directory, because the library splits options at
 * blanks.
 */
static void add_directory(struct compiler *compiler, unsigned int number, const char *name)
{
	char path[sizeof(compiler->root) + VGPU_CL_PATH_MAX + 3];
	char link[sizeof(compiler->root) + 32];
	char option[sizeof(link) + 2];

	snprintf(path, sizeof(path), "%s/%s/", compiler->root, name);
	make_directories(path, strlen(compiler->root) + 1);
	snprintf(link, sizeof(link), "%s/.d%u", compiler->root, number);
	if (symlink(name[0] ? name : ".", link))
		return;
	snprintf(option, sizeof(option), "-I%s", link);
	compiler->options = append(compiler->options, option);
}

static void take_headers(struct compiler *compiler)
{
	struct job_reader *job = &compiler->job;
	const char *directory = getenv("POCL_CACHE_DIR");
	uint64_t count = opencl_take_number(job);
	size_t bytes;

	directory = directory ? directory : getenv("TMPDIR");
	snprintf(compiler->root, sizeof(compiler->root), "%s/include-XXXXXX",
		 directory ? directory : "/tmp");
	if (!mkdtemp(compiler->root)) {
		fprintf(stderr, "headers: %s: %s\n", compiler->root, strerror(errno));
		exit(3);
	}
	for (uint64_t i = 0; i < count && !job->broken; i++) {
		char *name = opencl_take_string(job, &bytes);

		if (name && proper(name, bytes))
			add_directory(compiler, i, name);
		free(name);
	}
	count = opencl_take_number(job);
	for (uint64_t i = 0; i < count && !job->broken; i++) {
		char *name = opencl_take_string(job, &bytes);
		bool fine = name && name[0] && proper(name, bytes);
		const void *contents = opencl_take_blob(job, &bytes);

		if (fine)
			write_header(compiler, name, contents, bytes);
		free(name);
	}
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
	(void)status;
	(void)kind;
	(void)walk;
	remove(path);
	return 0;
}

static cl_program take_program(struct compiler *compiler, cl_int *error)
{
	const cl_icd_dispatch *cl = compiler->library.dispatch;
	struct job_reader *job = &compiler->job;
	const unsigned char *binaries[VGPU_CL_DEVICES_MAX];
	size_t sizes[VGPU_CL_DEVICES_MAX];
	const char *source;
	size_t bytes;

	if (opencl_take_number(job)) {
		source = opencl_take_blob(job, &bytes);
		if (!source)
			return NULL;
		return cl->clCreateProgramWithSource(compiler->context, 1, &source, &bytes, error);
	}
	for (uint32_t i = 0; i < compiler->device_count; i++) {
		binaries[i] = opencl_take_blob(job, &sizes[i]);
		if (!binaries[i] || !sizes[i])
			job->broken = true;
	}
	if (job->broken)
		return NULL;
	return cl->clCreateProgramWithBinary(compiler->context, compiler->device_count,
					     compiler->devices, sizes, binaries, NULL, error);
}

static cl_int compile(struct compiler *compiler, cl_program *inputs, uint64_t input_count,
		      cl_program *headers, const char **names, uint64_t header_count)
{
	const cl_icd_dispatch *cl = compiler->library.dispatch;
	cl_int error;

	switch (compiler->operation) {
	case OPENCL_BUILD:
		compiler->program = inputs[0];
		return cl->clBuildProgram(compiler->program, compiler->device_count,
					  compiler->devices, compiler->options, NULL, NULL);
	case OPENCL_COMPILE:
		compiler->program = inputs[0];
		return cl->clCompileProgram(compiler->program, compiler->device_count,
					    compiler->devices, compiler->options, header_count,
					    header_count ? headers : NULL,
					    header_count ? names : NULL, NULL, NULL);
	case OPENCL_LINK:
		compiler->program = cl->clLinkProgram(compiler->context, compiler->device_count,
						      compiler->devices, compiler->options,
						      input_count, inputs, NULL, NULL, &error);
		return error;
	}
	return CL_INVALID_VALUE;
}

/* Reads the rest of the job and executes it. */
static cl_int run(struct compiler *compiler)
{
	struct job_reader *job = &compiler->job;
	uint64_t input_count = opencl_take_number(job), header_count;
	cl_program inputs[1024], headers[256];
	const char *names[256];
	cl_int error = CL_SUCCESS;
	size_t bytes;

	if (!input_count || input_count > 1024)
		job->broken = true;
	for (uint64_t i = 0; i < input_count && !job->broken && !error; i++)
		inputs[i] = take_program(compiler, &error);
	header_count = error ? 0 : opencl_take_number(job);
	if (header_count > 256)
		job->broken = true;
	for (uint64_t i = 0; i < header_count && !job->broken && !error; i++) {
		names[i] = opencl_take_string(job, &bytes);
		headers[i] = take_program(compiler, &error);
	}
	if (!error)
		take_headers(compiler);
	if (job->broken)
		exit(3);
	if (compiler->operation != OPENCL_LINK)
		compiler->options = append(compiler->options, "-cl-kernel-arg-info");
	return error ? error : compile(compiler, inputs, input_count, headers, names, header_count);
}

static void put_device(struct compiler *compiler, struct job_writer *result, uint32_t i,
		       unsigned char *binary, size_t binary_bytes)
{
	const cl_icd_dispatch *cl = compiler->library.dispatch;
	cl_build_status status = CL_BUILD_NONE;
	cl_program_binary_type type = CL_PROGRAM_BINARY_TYPE_NONE;
	size_t log_bytes = 0;
	char *log = NULL;

	cl->clGetProgramBuildInfo(compiler->program, compiler->devices[i], CL_PROGRAM_BUILD_STATUS,
				  sizeof(status), &status, NULL);
	cl->clGetProgramBuildInfo(compiler->program, compiler->devices[i], CL_PROGRAM_BINARY_TYPE,
				  sizeof(type), &type, NULL);
	cl->clGetProgramBuildInfo(compiler->program, compiler->devices[i], CL_PROGRAM_BUILD_LOG, 0,
				  NULL, &log_bytes);
	log = calloc(1, log_bytes + 1);
	if (log && log_bytes)
		cl->clGetProgramBuildInfo(compiler->program, compiler->devices[i],
					  CL_PROGRAM_BUILD_LOG, log_bytes, log, NULL);
	opencl_put_number(result, compiler->indices[i]);
	opencl_put_number(result, (uint64_t)(int64_t)status);
	opencl_put_number(result, type);
	opencl_put_blob(result, log, log ? strlen(log) : 0);
	opencl_put_blob(result, binary, binary_bytes);
	free(log);
}

static void put_result(struct compiler *compiler, struct job_writer *result, cl_int status)
{
	const cl_icd_dispatch *cl = compiler->library.dispatch;
	unsigned char *binaries[VGPU_CL_DEVICES_MAX] = { NULL };
	size_t sizes[VGPU_CL_DEVICES_MAX] = { 0 };

	/* Querying the binaries makes PoCL generate the code of all kernels. */
	if (compiler->program && !status &&
	    !cl->clGetProgramInfo(compiler->program, CL_PROGRAM_BINARY_SIZES, sizeof(sizes), sizes,
				  NULL)) {
		for (uint32_t i = 0; i < compiler->device_count; i++)
			binaries[i] = sizes[i] ? malloc(sizes[i]) : NULL;
		if (cl->clGetProgramInfo(compiler->program, CL_PROGRAM_BINARIES, sizeof(binaries),
					 binaries, NULL))
			memset(sizes, 0, sizeof(sizes));
	}
	opencl_put_number(result, OPENCL_RESULT_MAGIC);
	opencl_put_number(result, (uint64_t)(int64_t)status);
	opencl_put_number(result, compiler->program ? compiler->device_count : 0);
	for (uint32_t i = 0; compiler->program && i < compiler->device_count; i++)
		put_device(compiler, result, i, binaries[i], sizes[i]);
}

static bool take_devices(struct compiler *compiler)
{
	struct job_reader *job = &compiler->job;
	uint64_t count = opencl_take_number(job);

	if (!count || count > VGPU_CL_DEVICES_MAX)
		return false;
	compiler->device_count = count;
	for (uint64_t i = 0; i < count; i++) {
		uint64_t index = opencl_take_number(job);

		if (index >= compiler->library.device_count)
			return false;
		compiler->indices[i] = index;
		compiler->devices[i] = compiler->library.devices[index];
	}
	return !job->broken;
}

int vgpu_opencl_compile(const char *library, int job, int result)
{
	static struct compiler compiler;
	struct job_writer writer = { 0 };
	char reason[VGPU_REASON_BYTES];
	uint8_t *bytes;
	size_t count = 0;
	cl_int error = CL_SUCCESS;

	bytes = opencl_read_file(job, VGPU_JOB_BYTES_MAX, &count);
	compiler.job = (struct job_reader){ .bytes = bytes, .end = count };
	if (!bytes || opencl_take_number(&compiler.job) != OPENCL_JOB_MAGIC) {
		fprintf(stderr, "compiler: no job\n");
		return 2;
	}
	if (!opencl_library_open(&compiler.library, library, reason)) {
		fprintf(stderr, "compiler: %s\n", reason);
		return 2;
	}
	compiler.operation = opencl_take_number(&compiler.job);
	if (!take_devices(&compiler))
		return 2;
	compiler.options = opencl_take_string(&compiler.job, &count);
	compiler.context = compiler.library.dispatch->clCreateContext(
		NULL, compiler.device_count, compiler.devices, NULL, NULL, &error);
	if (!error)
		error = run(&compiler);
	put_result(&compiler, &writer, error);
	if (compiler.root[0])
		nftw(compiler.root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	if (!opencl_put_file(&writer, result))
		return 4;
	return error ? VGPU_COMPILER_REFUSED : 0;
}
