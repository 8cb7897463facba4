// SPDX-License-Identifier: Apache-2.0
/*
 * Uses all of OpenCL 1.2 and the supported parts of 3.0, and prints the results.  The lines are
 * the same for every library; a test compares them.
 *
 *	api_client [PART...]		without names all but "large" and "failures"
 */
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_0_APIS
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cl_device_id device;
static cl_context context;
static cl_command_queue queue, loose;
static cl_program program;

#define SHOW(name, status) printf("%s: %d\n", name, (int)(status))
#define RUN(call) SHOW(#call, call)

static void must(cl_int status, int line)
{
	if (status == CL_SUCCESS)
		return;
	printf("line %d: error %d\n", line, status);
	fflush(stdout);
	exit(1);
}

#define MUST(call) must(call, __LINE__)
#define MADE(variable, call) \
	do { \
		cl_int made_; \
		variable = call; \
		must(made_, __LINE__); \
	} while (0)

static const char source[] =
	"kernel void add(global const float *a, global const float *b, global float *c) {\n"
	"	size_t i = get_global_id(0); c[i] = a[i] + b[i]; }\n"
	"kernel void scale(global float *a, float by, local float *space) {\n"
	"	size_t l = get_local_id(0); space[l] = a[get_global_id(0)];\n"
	"	barrier(CLK_LOCAL_MEM_FENCE); a[get_global_id(0)] = space[l] * by; }\n"
	"typedef struct { int a; float16 b; char c; } thing;\n"
	"kernel void things(global float *out, thing one, float16 two, constant int *three, uchar four) {\n"
	"	out[0] = one.a + one.b.s3 + one.c; out[1] = two.sf; out[2] = three[1]; out[3] = four; }\n"
	"kernel __attribute__((reqd_work_group_size(8, 2, 1))) void required(global int *out) {\n"
	"	out[get_global_id(1) * get_global_size(0) + get_global_id(0)] = get_local_size(0) * 100 +\n"
	"		get_global_id(0) - get_global_offset(0); }\n"
	"kernel void print(int a) { printf(\"kernel %d of %d\\n\", a, (int)get_global_id(0)); }\n"
	"kernel void ids(global int *out) { size_t x = get_global_id(0) - get_global_offset(0);\n"
	"	out[get_global_id(1) * get_global_size(0) + x] = get_global_id(0) * 100 + get_local_id(0); }\n"
	"kernel void image(read_only image2d_t in, sampler_t s, write_only image2d_t out) {\n"
	"	int2 at = (int2)(get_global_id(0), get_global_id(1));\n"
	"	write_imagef(out, at, read_imagef(in, s, at + (int2)(1, 0)) * 0.5f); }\n";

static void open_all(void)
{
	const char *text = source;
	cl_platform_id platform;

	MUST(clGetPlatformIDs(1, &platform, NULL));
	MUST(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
	MADE(context, clCreateContext(NULL, 1, &device, NULL, NULL, &made_));
	MADE(queue, clCreateCommandQueue(context, device, CL_QUEUE_PROFILING_ENABLE, &made_));
	MADE(loose, clCreateCommandQueue(context, device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &made_));
	MADE(program, clCreateProgramWithSource(context, 1, &text, NULL, &made_));
	MUST(clBuildProgram(program, 1, &device, "-cl-std=CL1.2 -cl-kernel-arg-info", NULL, NULL));
}

static uint32_t hash(const void *data, size_t bytes)
{
	uint32_t sum = 2166136261u;

	for (size_t i = 0; i < bytes; i++)
		sum = (sum ^ ((const uint8_t *)data)[i]) * 16777619u;
	return sum;
}

static void fill(void *data, size_t bytes, uint32_t seed)
{
	for (size_t i = 0; i < bytes; i++) {
		seed = seed * 1664525u + 1013904223u;
		((uint8_t *)data)[i] = (uint8_t)(seed >> 24);
	}
}

static cl_mem buffer_of(cl_mem_flags flags, size_t bytes, void *host)
{
	cl_mem memory;

	MADE(memory, clCreateBuffer(context, flags, bytes, host, &made_));
	return memory;
}

static void run_buffers(const size_t *sizes, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		size_t bytes = sizes[i], half = bytes / 2;
		uint8_t *in = malloc(bytes), *out = malloc(bytes);
		cl_mem ordinary, host, copied, used;
		cl_event event;
		void *map;

		fill(in, bytes, (uint32_t)i);
		ordinary = buffer_of(CL_MEM_READ_WRITE, bytes, NULL);
		MUST(clEnqueueWriteBuffer(queue, ordinary, i % 2, 0, bytes, in, 0, NULL, NULL));
		memset(out, 0, bytes);
		MUST(clEnqueueReadBuffer(queue, ordinary, CL_FALSE, 0, bytes, out, 0, NULL, &event));
		MUST(clWaitForEvents(1, &event));
		printf("ordinary %zu %08x %d\n", bytes, hash(out, bytes), !memcmp(in, out, bytes));
		MUST(clReleaseEvent(event));

		host = buffer_of(CL_MEM_ALLOC_HOST_PTR, bytes, NULL);
		MADE(map, clEnqueueMapBuffer(queue, host, CL_TRUE, CL_MAP_WRITE, 0, bytes, 0, NULL, NULL, &made_));
		memcpy(map, in, bytes);
		MUST(clEnqueueUnmapMemObject(queue, host, map, 0, NULL, NULL));
		MUST(clEnqueueCopyBuffer(queue, host, ordinary, half, 0, bytes - half, 0, NULL, NULL));
		MUST(clEnqueueReadBuffer(queue, ordinary, CL_TRUE, 0, bytes, out, 0, NULL, NULL));
		printf("host %zu %08x\n", bytes, hash(out, bytes));

		copied = buffer_of(CL_MEM_COPY_HOST_PTR, bytes, in);
		MADE(map, clEnqueueMapBuffer(queue, copied, CL_TRUE, CL_MAP_READ, half, bytes - half, 0, NULL, NULL,
					     &made_));
		printf("copied %zu %08x\n", bytes, hash(map, bytes - half));
		MUST(clEnqueueUnmapMemObject(queue, copied, map, 0, NULL, NULL));

		used = buffer_of(CL_MEM_USE_HOST_PTR, bytes, in);
		MADE(map, clEnqueueMapBuffer(queue, used, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, half, bytes - half, 0,
					     NULL, NULL, &made_));
		printf("used %zu %08x at its place %d\n", bytes, hash(map, bytes - half), map == in + half);
		((uint8_t *)map)[0] ^= 0xff;
		MUST(clEnqueueUnmapMemObject(queue, used, map, 0, NULL, NULL));
		MUST(clEnqueueReadBuffer(queue, used, CL_TRUE, 0, bytes, out, 0, NULL, NULL));
		printf("used %zu %08x\n", bytes, hash(out, bytes));
		MUST(clFinish(queue));
		MUST(clReleaseMemObject(ordinary));
		MUST(clReleaseMemObject(host));
		MUST(clReleaseMemObject(copied));
		MUST(clReleaseMemObject(used));
		free(in);
		free(out);
	}
}

static void part_buffers(void)
{
	const size_t sizes[] = { 1, 100, 4096, 70000, 1 << 20, (3 << 20) + 17 };

	run_buffers(sizes, sizeof(sizes) / sizeof(*sizes));
}

/* Buffers that are larger than the window. */
static void part_large(void)
{
	const size_t sizes[] = { 20 << 20, 100 << 20 };

	run_buffers(sizes, sizeof(sizes) / sizeof(*sizes));
}

/* Reads and writes in pieces on an out-of-order queue that wait for events, and parts of buffers. */
static void part_order(void)
{
	size_t bytes = 24 << 20;
	uint8_t *in = malloc(bytes), *out = malloc(bytes);
	cl_mem one = buffer_of(0, bytes, NULL), other = buffer_of(CL_MEM_ALLOC_HOST_PTR, bytes, NULL);
	cl_event events[4], user;
	cl_int status;

	fill(in, bytes, 99);
	MADE(user, clCreateUserEvent(context, &made_));
	MUST(clEnqueueWriteBuffer(loose, one, CL_FALSE, 0, 1 << 20, in, 1, &user, &events[0]));
	MUST(clEnqueueCopyBuffer(loose, one, other, 0, 0, 1 << 20, 1, events, &events[1]));
	MUST(clEnqueueReadBuffer(loose, other, CL_FALSE, 0, 1 << 20, out, 1, &events[1], &events[2]));
	MUST(clFlush(loose));
	MUST(clGetEventInfo(events[2], CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, NULL));
	printf("held %d\n", status > 0);
	MUST(clSetUserEventStatus(user, CL_COMPLETE));
	MUST(clWaitForEvents(1, &events[2]));
	printf("read %d\n", !memcmp(in, out, 1 << 20));
	MUST(clEnqueueWriteBuffer(loose, one, CL_FALSE, 0, bytes, in, 0, NULL, &events[3]));
	memset(out, 0, bytes);
	MUST(clEnqueueReadBuffer(loose, one, CL_TRUE, 0, bytes, out, 1, &events[3], NULL));
	printf("pieces %08x\n", hash(out, bytes));
	for (int i = 0; i < 4; i++)
		MUST(clReleaseEvent(events[i]));
	MUST(clReleaseEvent(user));

	/* A transfer that is too large for any buffer of ours, on an in-order queue that waits for the program. */
	bytes = 72 << 20;
	in = realloc(in, bytes);
	out = realloc(out, bytes);
	fill(in, bytes, 4);
	memset(out, 0, bytes);
	MUST(clReleaseMemObject(one));
	one = buffer_of(0, bytes, NULL);
	MADE(user, clCreateUserEvent(context, &made_));
	MUST(clEnqueueMarkerWithWaitList(queue, 1, &user, NULL));
	MUST(clEnqueueWriteBuffer(queue, one, CL_FALSE, 0, bytes, in, 0, NULL, NULL));
	MUST(clEnqueueReadBuffer(queue, one, CL_FALSE, 0, bytes, out, 0, NULL, &events[0]));
	MUST(clEnqueueMarker(queue, &events[1]));
	MUST(clSetUserEventStatus(user, CL_COMPLETE));
	MUST(clWaitForEvents(1, &events[1]));
	printf("gated %08x\n", hash(out, bytes));
	MUST(clWaitForEvents(1, &events[0]));
	MUST(clReleaseEvent(user));
	MUST(clReleaseEvent(events[0]));
	MUST(clReleaseEvent(events[1]));
	MUST(clReleaseMemObject(one));
	MUST(clReleaseMemObject(other));
	free(in);
	free(out);
}

/* A failed event also fails the commands that wait for it.  PoCL 3.1 itself sometimes aborts in this case. */
static void part_failures(void)
{
	size_t bytes = 5 << 20;
	uint8_t *in = malloc(bytes), *out = malloc(bytes);
	cl_mem one = buffer_of(0, bytes, NULL);
	cl_event events[2], user;
	cl_int status;

	fill(in, bytes, 4);
	MADE(user, clCreateUserEvent(context, &made_));
	MUST(clEnqueueMarkerWithWaitList(loose, 1, &user, &events[0]));
	MUST(clEnqueueReadBuffer(loose, one, CL_FALSE, 0, 64, out, 1, &events[0], &events[1]));
	MUST(clSetUserEventStatus(user, -5));
	RUN(clWaitForEvents(1, &events[1]));
	MUST(clGetEventInfo(events[1], CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, NULL));
	printf("failed %d\n", status < 0);
	MUST(clReleaseEvent(user));
	MUST(clReleaseEvent(events[0]));
	MUST(clReleaseEvent(events[1]));
	MUST(clFinish(loose));

	/* In this case, a write in pieces writes nothing at all. */
	MADE(user, clCreateUserEvent(context, &made_));
	MUST(clEnqueueFillBuffer(queue, one, "z", 1, 0, bytes, 0, NULL, NULL));
	MUST(clEnqueueWriteBuffer(queue, one, CL_FALSE, 0, bytes, in, 1, &user, &events[0]));
	MUST(clSetUserEventStatus(user, -5));
	RUN(clWaitForEvents(1, events));
	MUST(clReleaseEvent(user));
	MUST(clReleaseEvent(events[0]));
	MUST(clEnqueueReadBuffer(queue, one, CL_TRUE, 0, bytes, out, 0, NULL, NULL));
	printf("untouched %08x\n", hash(out, bytes));
	MUST(clReleaseMemObject(one));
	free(in);
	free(out);
}

static void part_rects(void)
{
	const size_t bytes = 64 * 48 * 20, region[3] = { 17, 9, 5 }, origin[3] = { 3, 2, 1 }, other[3] = { 7, 11, 2 };
	uint8_t *in = malloc(bytes), *out = calloc(1, bytes);
	cl_mem one = buffer_of(CL_MEM_COPY_HOST_PTR, bytes, (fill(in, bytes, 5), in));
	cl_mem two = buffer_of(CL_MEM_COPY_HOST_PTR, bytes, in);

	MUST(clEnqueueReadBufferRect(queue, one, CL_TRUE, origin, other, region, 64, 64 * 48, 48, 48 * 40, out, 0, NULL,
				     NULL));
	printf("read %08x\n", hash(out, bytes));
	MUST(clEnqueueWriteBufferRect(queue, one, CL_FALSE, other, origin, region, 64, 64 * 48, 50, 50 * 41, in, 0, NULL,
				      NULL));
	MUST(clEnqueueCopyBufferRect(queue, one, two, other, origin, region, 64, 64 * 48, 60, 60 * 45, 0, NULL, NULL));
	MUST(clEnqueueReadBuffer(queue, one, CL_TRUE, 0, bytes, out, 0, NULL, NULL));
	printf("written %08x\n", hash(out, bytes));
	MUST(clEnqueueReadBuffer(queue, two, CL_TRUE, 0, bytes, out, 0, NULL, NULL));
	printf("copied %08x\n", hash(out, bytes));
	MUST(clEnqueueFillBuffer(queue, two, "abcd", 4, 64, 4096, 0, NULL, NULL));
	MUST(clEnqueueFillBuffer(queue, two, in, 128, 8192, 1280, 0, NULL, NULL));
	MUST(clEnqueueMigrateMemObjects(queue, 1, &two, CL_MIGRATE_MEM_OBJECT_HOST, 0, NULL, NULL));
	MUST(clEnqueueReadBuffer(queue, two, CL_TRUE, 0, bytes, out, 0, NULL, NULL));
	printf("filled %08x\n", hash(out, bytes));
	RUN(clEnqueueCopyBufferRect(queue, one, one, origin, origin, region, 64, 64 * 48, 64, 64 * 48, 0, NULL, NULL));
	MUST(clReleaseMemObject(one));
	MUST(clReleaseMemObject(two));
	free(in);
	free(out);
}

/* An access that the program has excluded by its flags is refused.  Copying contents still works. */
static void part_access(void)
{
	const cl_image_format format = { CL_R, CL_FLOAT };
	cl_image_desc line = { .image_type = CL_MEM_OBJECT_IMAGE1D, .image_width = 64 };
	const size_t zero[3] = { 0 }, all[3] = { 64, 1, 1 }, large = 48 << 20;
	float in[64], out[64];
	uint8_t *big = malloc(large), *back = malloc(large);
	cl_mem one, two, three, plain;
	cl_int status;

	fill(in, sizeof(in), 21);
	fill(big, large, 22);
	plain = buffer_of(0, large, NULL);
	one = buffer_of(CL_MEM_COPY_HOST_PTR | CL_MEM_HOST_NO_ACCESS, sizeof(in), in);
	RUN(clEnqueueReadBuffer(queue, one, CL_TRUE, 0, 4, out, 0, NULL, NULL));
	RUN(clEnqueueWriteBuffer(queue, one, CL_TRUE, 0, 4, out, 0, NULL, NULL));
	RUN((clEnqueueMapBuffer(queue, one, CL_TRUE, CL_MAP_READ, 0, 4, 0, NULL, NULL, &status), status));
	MUST(clEnqueueCopyBuffer(queue, one, plain, 0, 0, sizeof(in), 0, NULL, NULL));
	MUST(clEnqueueReadBuffer(queue, plain, CL_TRUE, 0, sizeof(out), out, 0, NULL, NULL));
	printf("no access %08x\n", hash(out, sizeof(out)));
	two = buffer_of(CL_MEM_COPY_HOST_PTR | CL_MEM_HOST_WRITE_ONLY, large, big);
	RUN(clEnqueueReadBuffer(queue, two, CL_TRUE, 0, 4, out, 0, NULL, NULL));
	RUN(clEnqueueWriteBuffer(queue, two, CL_TRUE, 0, 4, in, 0, NULL, NULL));
	MUST(clEnqueueCopyBuffer(queue, two, plain, 0, 0, large, 0, NULL, NULL));
	MUST(clEnqueueReadBuffer(queue, plain, CL_TRUE, 0, large, back, 0, NULL, NULL));
	printf("write only %08x\n", hash(back, large));
	MADE(three, clCreateImage(context, CL_MEM_COPY_HOST_PTR | CL_MEM_HOST_READ_ONLY, &format, &line, in, &made_));
	MUST(clEnqueueReadImage(queue, three, CL_TRUE, zero, all, 0, 0, out, 0, NULL, NULL));
	printf("read only %08x\n", hash(out, sizeof(out)));
	RUN(clEnqueueWriteImage(queue, three, CL_TRUE, zero, all, 0, 0, out, 0, NULL, NULL));
	MUST(clReleaseMemObject(one));
	MUST(clReleaseMemObject(two));
	MUST(clReleaseMemObject(three));
	MUST(clReleaseMemObject(plain));
	free(big);
	free(back);
}

static void part_parts(void)
{
	uint8_t in[4096], out[4096];
	cl_buffer_region region = { 1024, 2048 };
	cl_mem whole, part, parent;
	char *map, *other;
	size_t offset;
	cl_mem_flags flags;
	cl_uint count;

	fill(in, sizeof(in), 3);
	whole = buffer_of(CL_MEM_COPY_HOST_PTR, sizeof(in), in);
	MADE(part, clCreateSubBuffer(whole, CL_MEM_READ_ONLY, CL_BUFFER_CREATE_TYPE_REGION, &region, &made_));
	MUST(clGetMemObjectInfo(part, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof(parent), &parent, NULL));
	MUST(clGetMemObjectInfo(part, CL_MEM_OFFSET, sizeof(offset), &offset, NULL));
	MUST(clGetMemObjectInfo(part, CL_MEM_FLAGS, sizeof(flags), &flags, NULL));
	printf("parent %d offset %zu flags %llx\n", parent == whole, offset, (unsigned long long)flags);
	MUST(clEnqueueWriteBuffer(queue, part, CL_TRUE, 16, 100, in, 0, NULL, NULL));
	MUST(clReleaseMemObject(whole));	/* the part keeps the parent alive */
	MUST(clEnqueueReadBuffer(queue, part, CL_TRUE, 0, 2048, out, 0, NULL, NULL));
	printf("part %08x\n", hash(out, 2048));
	MUST(clReleaseMemObject(part));

	/* The same with host memory; parent and part are mapped at the same time. */
	whole = buffer_of(CL_MEM_ALLOC_HOST_PTR, 4 << 20, NULL);
	region = (cl_buffer_region){ 1 << 20, 1 << 20 };
	MADE(part, clCreateSubBuffer(whole, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &made_));
	MUST(clEnqueueFillBuffer(queue, whole, "0123456789abcdef", 16, 0, 4 << 20, 0, NULL, NULL));
	MADE(map, clEnqueueMapBuffer(queue, part, CL_TRUE, CL_MAP_WRITE, 4096, 8192, 0, NULL, NULL, &made_));
	MADE(other, clEnqueueMapBuffer(queue, whole, CL_TRUE, CL_MAP_READ, 0, 4096, 0, NULL, NULL, &made_));
	MUST(clGetMemObjectInfo(part, CL_MEM_MAP_COUNT, sizeof(count), &count, NULL));
	printf("maps %d first %c\n", count <= 2, other[0]);	/* PoCL counts mappings in the parent */
	fill(map, 8192, 77);
	MUST(clEnqueueUnmapMemObject(queue, part, map, 0, NULL, NULL));
	MUST(clEnqueueUnmapMemObject(queue, whole, other, 0, NULL, NULL));
	RUN(clEnqueueUnmapMemObject(queue, whole, other, 0, NULL, NULL));
	for (int i = 0; i < 2; i++) {
		MUST(clEnqueueReadBuffer(queue, whole, i == 0, (1 << 20) + 4000, sizeof(out), out, 0, NULL, NULL));
		MUST(clFinish(queue));
		printf("whole %08x\n", hash(out, sizeof(out)));
	}
	MUST(clReleaseMemObject(part));
	MUST(clReleaseMemObject(whole));
}

static void part_kernels(void)
{
	const size_t count = 1000, local = 100, grid[2] = { 16, 4 }, group[2] = { 8, 2 }, offset[2] = { 5, 0 };
	struct {
		cl_int a;
		cl_int pad[15];
		cl_float16 b;
		cl_char c;
		cl_char rest[63];
	} thing = { .a = 7, .b = { { 0, 1, 2, 0.5f } }, .c = 3 };
	cl_float16 two = { { [15] = 2.25f } };
	cl_int three[2] = { 8, 9 }, ids[64];
	cl_uchar four = 200;
	float a[1000], b[1000], c[1000];
	cl_mem ma, mb, mc, mi;
	cl_kernel kernels[16], kernel, clone;
	cl_uint made = 0, number;
	size_t sizes[3], size;
	char text[256];
	cl_event event;
	cl_ulong times[4];

	for (size_t i = 0; i < count; i++) {
		a[i] = (float)i / 3;
		b[i] = 7.0f / (float)(i + 1);
	}
	ma = buffer_of(CL_MEM_COPY_HOST_PTR | CL_MEM_READ_ONLY, sizeof(a), a);
	mb = buffer_of(CL_MEM_COPY_HOST_PTR, sizeof(b), b);
	mc = buffer_of(CL_MEM_WRITE_ONLY, sizeof(c), NULL);
	mi = buffer_of(0, sizeof(ids), NULL);
	MUST(clCreateKernelsInProgram(program, 16, kernels, &made));
	printf("kernels %u\n", made);
	for (cl_uint i = 0; i < made; i++) {
		MUST(clGetKernelInfo(kernels[i], CL_KERNEL_FUNCTION_NAME, sizeof(text), text, NULL));
		MUST(clGetKernelInfo(kernels[i], CL_KERNEL_NUM_ARGS, sizeof(number), &number, NULL));
		printf("%s", text);
		for (cl_uint k = 0; k < number; k++) {
			cl_kernel_arg_address_qualifier address;
			cl_kernel_arg_access_qualifier access;
			cl_kernel_arg_type_qualifier type;
			char name[64];

			MUST(clGetKernelArgInfo(kernels[i], k, CL_KERNEL_ARG_ADDRESS_QUALIFIER, sizeof(address),
						&address, NULL));
			MUST(clGetKernelArgInfo(kernels[i], k, CL_KERNEL_ARG_ACCESS_QUALIFIER, sizeof(access), &access,
						NULL));
			MUST(clGetKernelArgInfo(kernels[i], k, CL_KERNEL_ARG_TYPE_QUALIFIER, sizeof(type), &type, NULL));
			MUST(clGetKernelArgInfo(kernels[i], k, CL_KERNEL_ARG_TYPE_NAME, sizeof(text), text, NULL));
			MUST(clGetKernelArgInfo(kernels[i], k, CL_KERNEL_ARG_NAME, sizeof(name), name, NULL));
			printf(" [%x %x %llx %s %s]", address, access, (unsigned long long)type, text, name);
		}
		MUST(clGetKernelWorkGroupInfo(kernels[i], device, CL_KERNEL_WORK_GROUP_SIZE, sizeof(size), &size, NULL));
		MUST(clGetKernelWorkGroupInfo(kernels[i], device, CL_KERNEL_COMPILE_WORK_GROUP_SIZE, sizeof(sizes), sizes,
					      NULL));
		printf(" %zu (%zu %zu %zu)\n", size, sizes[0], sizes[1], sizes[2]);
		MUST(clReleaseKernel(kernels[i]));
	}
	MADE(kernel, clCreateKernel(program, "add", &made_));
	MUST(clSetKernelArg(kernel, 0, sizeof(ma), &ma));
	MUST(clSetKernelArg(kernel, 1, sizeof(mb), &mb));
	RUN(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &count, NULL, 0, NULL, NULL));
	MUST(clSetKernelArg(kernel, 2, sizeof(mc), &mc));
	MUST(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &count, &local, 0, NULL, &event));
	MUST(clEnqueueReadBuffer(queue, mc, CL_TRUE, 0, sizeof(c), c, 0, NULL, NULL));
	printf("add %08x\n", hash(c, sizeof(c)));
	for (cl_uint i = 0; i < 4; i++)
		MUST(clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_QUEUED + i, 8, &times[i], NULL));
	printf("times %d\n", times[0] && times[0] <= times[1] && times[1] <= times[2] && times[2] <= times[3]);
	MUST(clReleaseEvent(event));
	MUST(clReleaseKernel(kernel));

	MADE(kernel, clCreateKernel(program, "scale", &made_));
	MUST(clSetKernelArg(kernel, 0, sizeof(mb), &mb));
	MUST(clSetKernelArg(kernel, 1, sizeof(float), &(float){ 1.5f }));
	MUST(clSetKernelArg(kernel, 2, local * sizeof(float), NULL));
	RUN(clSetKernelArg(kernel, 3, 4, &number));
	RUN(clSetKernelArg(kernel, 1, 8, &times));
	MADE(clone, clCloneKernel(kernel, &made_));
	MUST(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &count, &local, 0, NULL, NULL));
	MUST(clSetKernelArg(kernel, 1, sizeof(float), &(float){ -3.0f }));
	MUST(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &count, &local, 0, NULL, NULL));
	MUST(clEnqueueNDRangeKernel(queue, clone, 1, NULL, &count, &local, 0, NULL, NULL));
	MUST(clEnqueueReadBuffer(queue, mb, CL_TRUE, 0, sizeof(b), b, 0, NULL, NULL));
	printf("scale %08x\n", hash(b, sizeof(b)));
	MUST(clReleaseKernel(kernel));
	MUST(clReleaseKernel(clone));

	MADE(kernel, clCreateKernel(program, "things", &made_));
	MUST(clEnqueueWriteBuffer(queue, ma, CL_TRUE, 0, sizeof(three), three, 0, NULL, NULL));
	MUST(clSetKernelArg(kernel, 0, sizeof(mb), &mb));
	MUST(clSetKernelArg(kernel, 1, sizeof(thing), &thing));
	MUST(clSetKernelArg(kernel, 2, sizeof(two), &two));
	MUST(clSetKernelArg(kernel, 3, sizeof(ma), &ma));
	MUST(clSetKernelArg(kernel, 4, sizeof(four), &four));
	MUST(clEnqueueTask(queue, kernel, 0, NULL, NULL));
	MUST(clEnqueueReadBuffer(queue, mb, CL_TRUE, 0, 16, b, 0, NULL, NULL));
	printf("things %g %g %g %g\n", b[0], b[1], b[2], b[3]);
	MUST(clReleaseKernel(kernel));

	MADE(kernel, clCreateKernel(program, "required", &made_));
	MUST(clSetKernelArg(kernel, 0, sizeof(mi), &mi));
	RUN(clEnqueueNDRangeKernel(queue, kernel, 2, NULL, grid, grid, 0, NULL, NULL));
	MUST(clEnqueueNDRangeKernel(queue, kernel, 2, NULL, grid, group, 0, NULL, NULL));
	MUST(clEnqueueReadBuffer(queue, mi, CL_TRUE, 0, sizeof(ids), ids, 0, NULL, NULL));
	printf("required %08x\n", hash(ids, sizeof(ids)));
	MUST(clReleaseKernel(kernel));
	MADE(kernel, clCreateKernel(program, "ids", &made_));
	MUST(clSetKernelArg(kernel, 0, sizeof(mi), &mi));
	MUST(clEnqueueNDRangeKernel(queue, kernel, 2, offset, grid, group, 0, NULL, NULL));
	MUST(clEnqueueReadBuffer(queue, mi, CL_TRUE, 0, sizeof(ids), ids, 0, NULL, NULL));
	printf("ids %08x\n", hash(ids, sizeof(ids)));
	MUST(clReleaseKernel(kernel));
	RUN((clCreateKernel(program, "nothing", (cl_int *)&number), number));
	MUST(clReleaseMemObject(ma));
	MUST(clReleaseMemObject(mb));
	MUST(clReleaseMemObject(mc));
	MUST(clReleaseMemObject(mi));
}

static void part_print(void)
{
	const size_t count = 3;
	cl_kernel kernel;

	fflush(stdout);
	MADE(kernel, clCreateKernel(program, "print", &made_));
	MUST(clSetKernelArg(kernel, 0, sizeof(cl_int), &(cl_int){ 42 }));
	MUST(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &count, &count, 0, NULL, NULL));
	MUST(clFinish(queue));
	MUST(clReleaseKernel(kernel));
}

static void part_images(void)
{
	const cl_image_format format = { CL_RGBA, CL_UNORM_INT8 }, floats = { CL_R, CL_FLOAT };
	cl_image_desc flat = { .image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 37, .image_height = 21 };
	cl_image_desc deep = { .image_type = CL_MEM_OBJECT_IMAGE3D, .image_width = 9, .image_height = 8,
			       .image_depth = 7 };
	cl_image_desc layers = { .image_type = CL_MEM_OBJECT_IMAGE2D_ARRAY, .image_width = 9, .image_height = 8,
				 .image_array_size = 5 };
	cl_image_desc lines = { .image_type = CL_MEM_OBJECT_IMAGE1D_ARRAY, .image_width = 33, .image_array_size = 5 };
	cl_image_desc line = { .image_type = CL_MEM_OBJECT_IMAGE1D, .image_width = 50 };
	const size_t zero[3] = { 0 }, all[3] = { 37, 21, 1 }, some[3] = { 20, 10, 1 }, at[3] = { 5, 6, 0 };
	const size_t cube[3] = { 9, 8, 7 }, stack[3] = { 9, 8, 5 }, rows[3] = { 33, 5, 1 }, run[3] = { 50, 1, 1 };
	const size_t inner[3] = { 1, 2, 3 }, inside[3] = { 4, 3, 2 };
	const cl_float color[4] = { 0.25f, 0.5f, 0.75f, 1.0f };
	uint8_t in[37 * 21 * 4], out[37 * 21 * 4], data[9 * 8 * 7 * 4], back[9 * 8 * 7 * 4];
	cl_mem one, two, three, four, five, six, memory;
	size_t row, slice, value;
	cl_sampler sampler;
	cl_kernel kernel;
	cl_uint formats;
	cl_int status;
	uint8_t *map;

	fill(in, sizeof(in), 8);
	fill(data, sizeof(data), 9);
	MUST(clGetSupportedImageFormats(context, CL_MEM_READ_WRITE, CL_MEM_OBJECT_IMAGE2D, 0, NULL, &formats));
	printf("formats %u\n", formats);
	MADE(one, clCreateImage(context, CL_MEM_COPY_HOST_PTR, &format, &flat, in, &made_));
	MADE(two, clCreateImage2D(context, 0, &format, 37, 21, 0, NULL, &made_));
	MADE(sampler, clCreateSampler(context, CL_FALSE, CL_ADDRESS_CLAMP_TO_EDGE, CL_FILTER_NEAREST, &made_));
	MADE(kernel, clCreateKernel(program, "image", &made_));
	MUST(clSetKernelArg(kernel, 0, sizeof(one), &one));
	MUST(clSetKernelArg(kernel, 1, sizeof(sampler), &sampler));
	MUST(clSetKernelArg(kernel, 2, sizeof(two), &two));
	MUST(clEnqueueNDRangeKernel(queue, kernel, 2, NULL, all, NULL, 0, NULL, NULL));
	MUST(clEnqueueReadImage(queue, two, CL_TRUE, zero, all, 0, 0, out, 0, NULL, NULL));
	printf("halved %08x\n", hash(out, sizeof(out)));
	MUST(clEnqueueFillImage(queue, two, color, at, some, 0, NULL, NULL));
	MUST(clEnqueueWriteImage(queue, two, CL_FALSE, at, some, 37 * 4, 0, in, 0, NULL, NULL));
	MUST(clEnqueueCopyImage(queue, one, two, at, zero, some, 0, NULL, NULL));
	MADE(map, clEnqueueMapImage(queue, two, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, at, some, &row, &slice, 0, NULL, NULL,
				    &made_));
	for (size_t y = 0; y < some[1]; y++)
		printf("%08x ", hash(map + y * row, some[0] * 4));
	map[0] = 77;
	map[row + 4] = 78;
	MUST(clEnqueueUnmapMemObject(queue, two, map, 0, NULL, NULL));
	MUST(clEnqueueReadImage(queue, two, CL_TRUE, zero, all, 0, 0, out, 0, NULL, NULL));
	printf("\nmapped %08x slice %zu\n", hash(out, sizeof(out)), slice);
	memory = buffer_of(0, sizeof(in), NULL);
	MUST(clEnqueueFillBuffer(queue, memory, "\0", 1, 0, sizeof(in), 0, NULL, NULL));
	MUST(clEnqueueCopyImageToBuffer(queue, one, memory, at, some, 100, 0, NULL, NULL));
	MUST(clEnqueueCopyBufferToImage(queue, memory, two, 0, at, some, 0, NULL, NULL));
	MUST(clEnqueueReadBuffer(queue, memory, CL_TRUE, 0, sizeof(in), out, 0, NULL, NULL));
	printf("to buffer %08x\n", hash(out, sizeof(out)));
	MUST(clEnqueueReadImage(queue, two, CL_TRUE, zero, all, 0, 0, out, 0, NULL, NULL));
	printf("to image %08x\n", hash(out, sizeof(out)));
	RUN(clEnqueueReadImage(queue, two, CL_TRUE, at, all, 0, 0, out, 0, NULL, NULL));
	RUN(clEnqueueCopyImage(queue, two, two, at, at, some, 0, NULL, NULL));

	MADE(three, clCreateImage(context, CL_MEM_COPY_HOST_PTR, &floats, &deep, data, &made_));
	MUST(clEnqueueReadImage(queue, three, CL_TRUE, zero, cube, 0, 0, back, 0, NULL, NULL));
	printf("deep %d", !memcmp(data, back, sizeof(back)));
	memset(back, 0, sizeof(back));
	MUST(clEnqueueReadImage(queue, three, CL_TRUE, inner, inside, 32, 32 * 5, back, 0, NULL, NULL));
	printf(" %08x\n", hash(back, sizeof(back)));
	MADE(four, clCreateImage(context, 0, &floats, &layers, NULL, &made_));
	MUST(clEnqueueWriteImage(queue, four, CL_TRUE, zero, stack, 0, 0, data, 0, NULL, NULL));
	MUST(clEnqueueReadImage(queue, four, CL_TRUE, zero, stack, 0, 0, back, 0, NULL, NULL));
	printf("layers %08x\n", hash(back, 9 * 8 * 5 * 4));
	MADE(five, clCreateImage(context, CL_MEM_USE_HOST_PTR, &floats, &lines, data, &made_));
	MUST(clEnqueueReadImage(queue, five, CL_TRUE, zero, rows, 0, 0, back, 0, NULL, NULL));
	printf("lines %08x\n", hash(back, 33 * 5 * 4));
	MADE(six, clCreateImage(context, CL_MEM_COPY_HOST_PTR, &floats, &line, data, &made_));
	MUST(clEnqueueReadImage(queue, six, CL_TRUE, zero, run, 0, 0, back, 0, NULL, NULL));
	printf("line %08x\n", hash(back, 50 * 4));
	for (cl_image_info info = CL_IMAGE_ELEMENT_SIZE; info <= CL_IMAGE_ARRAY_SIZE; info++) {
		cl_mem images[] = { one, two, three, four, five, six };

		printf("info %x:", info);
		for (int i = 0; i < 6; i++) {
			MUST(clGetImageInfo(images[i], info, sizeof(value), &value, NULL));
			printf(" %zu", value);
		}
		printf("\n");
	}
	RUN((clCreateImage(context, 0, &(cl_image_format){ CL_RGB, CL_FLOAT }, &deep, NULL, &status), status));
	MUST(clReleaseKernel(kernel));
	MUST(clReleaseSampler(sampler));
	MUST(clReleaseMemObject(memory));
	MUST(clReleaseMemObject(one));
	MUST(clReleaseMemObject(two));
	MUST(clReleaseMemObject(three));
	MUST(clReleaseMemObject(four));
	MUST(clReleaseMemObject(five));
	MUST(clReleaseMemObject(six));
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int ended;

static void end(void)
{
	pthread_mutex_lock(&lock);
	ended++;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static void wait_for_ends(int count)
{
	pthread_mutex_lock(&lock);
	while (ended < count)
		pthread_cond_wait(&changed, &lock);
	ended -= count;
	pthread_mutex_unlock(&lock);
}

static void CL_CALLBACK built(cl_program which, void *user)
{
	(void)which;
	*(int *)user = 1;
	end();
}

static void CL_CALLBACK completed(cl_event event, cl_int status, void *user)
{
	(void)event;
	*(cl_int *)user = status;
	end();
}

static void CL_CALLBACK destroyed(cl_mem memory, void *user)
{
	(void)memory;
	printf("destroyed %s\n", (const char *)user);
}

static void run_add(cl_program from)
{
	const size_t count = 64;
	cl_int values[64], out[64];
	cl_mem memory;
	cl_kernel kernel;

	for (int i = 0; i < 64; i++)
		values[i] = i;
	memory = buffer_of(CL_MEM_COPY_HOST_PTR, sizeof(values), values);
	MADE(kernel, clCreateKernel(from, "f", &made_));
	MUST(clSetKernelArg(kernel, 0, sizeof(memory), &memory));
	MUST(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &count, NULL, 0, NULL, NULL));
	MUST(clEnqueueReadBuffer(queue, memory, CL_TRUE, 0, sizeof(out), out, 0, NULL, NULL));
	printf("result %08x\n", hash(out, sizeof(out)));
	MUST(clReleaseKernel(kernel));
	MUST(clReleaseMemObject(memory));
}

static void part_programs(void)
{
	const char *main_text = "#include \"twice.h\"\n"
				"kernel void f(global int *a) { size_t i = get_global_id(0); a[i] = twice(a[i]) + ADD; }\n";
	const char *header_text = "int twice(int a);\n#define ADD 5\n", *other_text = "int twice(int a) { return 2 * a; }\n";
	const char *wrong = "kernel void f( {", *plain = "kernel void f(global int *a) { a[get_global_id(0)] *= TIMES; }\n";
	const char *names[] = { "twice.h" };
	cl_program whole, header, parts[2], linked, again;
	cl_program_binary_type type;
	cl_build_status build;
	unsigned char *binary;
	char text[4096];
	size_t bytes;
	cl_int status;
	int called = 0;

	MADE(whole, clCreateProgramWithSource(context, 1, &plain, NULL, &made_));
	MUST(clBuildProgram(whole, 1, &device, "-DTIMES=3", built, &called));
	wait_for_ends(1);
	MUST(clGetProgramBuildInfo(whole, device, CL_PROGRAM_BUILD_STATUS, sizeof(build), &build, NULL));
	MUST(clGetProgramBuildInfo(whole, device, CL_PROGRAM_BUILD_OPTIONS, sizeof(text), text, NULL));
	MUST(clGetProgramBuildInfo(whole, device, CL_PROGRAM_BINARY_TYPE, sizeof(type), &type, NULL));
	printf("built %d status %d type %x options \"%s\"\n", called, build, type, text);
	run_add(whole);
	MUST(clGetProgramInfo(whole, CL_PROGRAM_KERNEL_NAMES, sizeof(text), text, NULL));
	printf("names %s\n", text);
	MUST(clGetProgramInfo(whole, CL_PROGRAM_SOURCE, sizeof(text), text, NULL));
	printf("source %d\n", !strcmp(text, plain));
	MUST(clGetProgramInfo(whole, CL_PROGRAM_BINARY_SIZES, sizeof(bytes), &bytes, NULL));
	binary = malloc(bytes);
	MUST(clGetProgramInfo(whole, CL_PROGRAM_BINARIES, sizeof(binary), &binary, NULL));
	MADE(again, clCreateProgramWithBinary(context, 1, &device, &bytes, (const unsigned char **)&binary, &status,
					      &made_));
	printf("binary status %d\n", status);
	MUST(clBuildProgram(again, 0, NULL, "", NULL, NULL));
	run_add(again);
	free(binary);
	MUST(clReleaseProgram(again));
	MUST(clReleaseProgram(whole));

	MADE(whole, clCreateProgramWithSource(context, 1, &wrong, NULL, &made_));
	RUN(clBuildProgram(whole, 1, &device, NULL, NULL, NULL));
	MUST(clGetProgramBuildInfo(whole, device, CL_PROGRAM_BUILD_STATUS, sizeof(build), &build, NULL));
	MUST(clGetProgramBuildInfo(whole, device, CL_PROGRAM_BUILD_LOG, sizeof(text), text, NULL));
	printf("status %d log has %d\n", build, strstr(text, "error:") != NULL);
	RUN((clCreateKernel(whole, "f", &status), status));
	MUST(clReleaseProgram(whole));

	MADE(header, clCreateProgramWithSource(context, 1, &header_text, NULL, &made_));
	MADE(parts[0], clCreateProgramWithSource(context, 1, &main_text, NULL, &made_));
	MADE(parts[1], clCreateProgramWithSource(context, 1, &other_text, NULL, &made_));
	MUST(clCompileProgram(parts[0], 0, NULL, "", 1, &header, names, NULL, NULL));
	MUST(clCompileProgram(parts[1], 0, NULL, "", 0, NULL, NULL, NULL, NULL));
	MUST(clGetProgramBuildInfo(parts[0], device, CL_PROGRAM_BINARY_TYPE, sizeof(type), &type, NULL));
	printf("compiled type %x\n", type);
	MADE(linked, clLinkProgram(context, 0, NULL, "", 2, parts, NULL, NULL, &made_));
	run_add(linked);
	MUST(clReleaseProgram(linked));
	MUST(clReleaseProgram(parts[0]));
	MUST(clReleaseProgram(parts[1]));
	MUST(clReleaseProgram(header));
}

/*
 * Includes headers of this directory, of another one, of one that includes its neighbour, and by full name.
 */
static void part_includes(void)
{
	char text[1024], folder[] = "/tmp/includes-XXXXXX", name[128], options[256];
	const char *pointer = text;
	cl_program with;
	FILE *file;

	if (!mkdtemp(folder) || chdir(folder) || system("mkdir -p 'sub dir/deep' other"))
		exit(1);
#define WRITE(path, content) \
	do { \
		file = fopen(path, "w"); \
		fputs(content, file); \
		fclose(file); \
	} while (0)
	WRITE("here.h", "#define HERE 1\n");
	WRITE("other/there.h", "#pragma once\n#include \"../sub dir/up.h\"\n#define THERE 20\n");
	WRITE("sub dir/up.h", "#define UP 300\n#include \"deep/down.h\"\n");
	WRITE("sub dir/deep/down.h", "#ifndef DOWN\n#define DOWN 4000\n#include \"down.h\"\n#endif\n");
	WRITE("whole.h", "#define WHOLE 50000\n");
	snprintf(name, sizeof(name), "%s/whole.h", folder);
	snprintf(text, sizeof(text),
		 "#include \"here.h\"\n  #  include <there.h>\n#include \"%s\"\n#if 0\n#include \"nowhere.h\"\n#endif\n"
		 "kernel void f(global int *a) { a[get_global_id(0)] += HERE + THERE + UP + DOWN + WHOLE; }\n", name);
	snprintf(options, sizeof(options), "-I %s/other -DX=1", folder);
	MADE(with, clCreateProgramWithSource(context, 1, &pointer, NULL, &made_));
	MUST(clBuildProgram(with, 0, NULL, options, NULL, NULL));
	run_add(with);
	MUST(clReleaseProgram(with));
	if (chdir("/") || !snprintf(text, sizeof(text), "rm -r %s", folder) || system(text))
		exit(1);
}

static void part_events(void)
{
	cl_event user, events[3];
	cl_int statuses[3] = { 9, 9, 9 }, status;
	cl_command_type type;
	cl_uint references;
	cl_mem memory;

	MADE(user, clCreateUserEvent(context, &made_));
	MUST(clEnqueueMarkerWithWaitList(queue, 1, &user, &events[0]));
	MUST(clEnqueueBarrierWithWaitList(queue, 0, NULL, &events[1]));
	MUST(clEnqueueMarker(queue, &events[2]));
	for (int i = 0; i < 3; i++) {
		MUST(clSetEventCallback(events[i], CL_COMPLETE, completed, &statuses[i]));
		MUST(clGetEventInfo(events[i], CL_EVENT_COMMAND_TYPE, sizeof(type), &type, NULL));
		printf("type %x\n", type);
	}
	MUST(clRetainEvent(user));
	MUST(clGetEventInfo(user, CL_EVENT_REFERENCE_COUNT, sizeof(references), &references, NULL));
	printf("references %u\n", references);
	MUST(clReleaseEvent(user));
	RUN(clSetUserEventStatus(events[0], CL_COMPLETE));
	MUST(clSetUserEventStatus(user, CL_COMPLETE));
	MUST(clWaitForEvents(3, events));
	wait_for_ends(3);
	printf("statuses %d %d %d\n", statuses[0], statuses[1], statuses[2]);
	RUN(clSetUserEventStatus(user, CL_COMPLETE));
	MUST(clReleaseEvent(user));
	for (int i = 0; i < 3; i++)
		MUST(clReleaseEvent(events[i]));
	/* No callback here: PoCL 3.1 does not call it for a user event that fails. */
	MADE(user, clCreateUserEvent(context, &made_));
	MUST(clSetUserEventStatus(user, -7));
	MUST(clGetEventInfo(user, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, NULL));
	printf("status %d\n", status);
	RUN(clWaitForEvents(1, &user));
	MUST(clReleaseEvent(user));
	memory = buffer_of(0, 64, NULL);
	MUST(clSetMemObjectDestructorCallback(memory, destroyed, "first"));
	MUST(clSetMemObjectDestructorCallback(memory, destroyed, "second"));
	MUST(clReleaseMemObject(memory));
}

static void part_objects(void)
{
	cl_context_properties properties[8];
	cl_command_queue_properties queue_properties;
	cl_uint number;
	cl_context other;
	cl_sampler sampler;
	size_t bytes;

	MUST(clGetContextInfo(context, CL_CONTEXT_NUM_DEVICES, sizeof(number), &number, NULL));
	MUST(clGetContextInfo(context, CL_CONTEXT_PROPERTIES, sizeof(properties), properties, &bytes));
	printf("devices %u properties %zu\n", number, bytes);
	MUST(clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof(queue_properties), &queue_properties, NULL));
	MUST(clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof(other), &other, NULL));
	printf("queue %llx of the context %d\n", (unsigned long long)queue_properties, other == context);
	MUST(clRetainCommandQueue(queue));
	MUST(clGetCommandQueueInfo(queue, CL_QUEUE_REFERENCE_COUNT, sizeof(number), &number, NULL));
	printf("references %u\n", number);
	MUST(clReleaseCommandQueue(queue));
	MADE(sampler, clCreateSampler(context, CL_TRUE, CL_ADDRESS_REPEAT, CL_FILTER_LINEAR, &made_));
	MUST(clGetSamplerInfo(sampler, CL_SAMPLER_ADDRESSING_MODE, sizeof(number), &number, NULL));
	printf("sampler %x\n", number);
	MUST(clReleaseSampler(sampler));
	MADE(other, clCreateContextFromType(NULL, CL_DEVICE_TYPE_DEFAULT, NULL, NULL, &made_));
	MUST(clReleaseContext(other));
}

static const struct {
	const char *name;
	void (*run)(void);
} parts[] = {
	{ "objects", part_objects }, { "buffers", part_buffers }, { "order", part_order }, { "rects", part_rects },
	{ "access", part_access }, { "parts", part_parts }, { "kernels", part_kernels }, { "print", part_print }, { "images", part_images },
	{ "large", part_large }, { "failures", part_failures }, { "programs", part_programs }, { "includes", part_includes }, { "events", part_events },
};

int main(int argc, char **argv)
{
	alarm(240);
	open_all();
	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		bool chosen = argc == 1 && strcmp(parts[i].name, "large") && strcmp(parts[i].name, "failures");

		for (int k = 1; k < argc; k++)
			chosen |= !strcmp(argv[k], parts[i].name);
		if (!chosen)
			continue;
		printf("== %s\n", parts[i].name);
		parts[i].run();
	}
	MUST(clReleaseProgram(program));
	MUST(clReleaseCommandQueue(queue));
	MUST(clReleaseCommandQueue(loose));
	MUST(clReleaseContext(context));
	printf("done\n");
	return 0;
}
