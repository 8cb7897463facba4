/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of OpenCL calls: an ordinary program on the standard loader.
 *
 *	client calls			cost of single calls and of launches
 *	client copies			bandwidth of reads, writes and maps
 *	client work KERNEL_US SECONDS [ROUNDS]
 *			always has kernels of about that length queued, and prints
 *			how many ended
 *	client gaps KERNEL_US GAP_US REQUESTS [ROUNDS]
 *			requests of eight kernels, with a pause of the host after
 *			each kernel, and a wait for every second kernel
 *
 * Prints lines "NAME VALUE" with the unit in the name.  Any failing call ends
 * the program with status 1 and the call's name.
 */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 9
#define UNITS_MAX 4096

static cl_device_id device;
static cl_context context;
static cl_command_queue queue;
static cl_program program;

static void must(cl_int error, const char *call)
{
	if (error == CL_SUCCESS)
		return;
	fprintf(stderr, "client: %s: error %d\n", call, error);
	exit(1);
}

static double now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int by_value(const void *one, const void *other)
{
	double a = *(const double *)one, b = *(const double *)other;

	return (a > b) - (a < b);
}

static double median(double *values, int count)
{
	qsort(values, count, sizeof(*values), by_value);
	return values[count / 2];
}

static const char source[] =
	"__kernel void null(int unused) {}\n"
	"__kernel void spin(__global float *data, int rounds)\n"
	"{\n"
	"	size_t i = get_global_id(0);\n"
	"	float x = data[i];\n"
	"	for (int k = 0; k < rounds; k++)\n"
	"		x = x * 1.0001f + 0.5f;\n"
	"	data[i] = x;\n"
	"}\n";

static void begin(void)
{
	const char *text = source;
	cl_platform_id platform;
	cl_int error;

	must(clGetPlatformIDs(1, &platform, NULL), "clGetPlatformIDs");
	must(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL), "clGetDeviceIDs");
	context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
	must(error, "clCreateContext");
	queue = clCreateCommandQueue(context, device, 0, &error);
	must(error, "clCreateCommandQueue");
	program = clCreateProgramWithSource(context, 1, &text, NULL, &error);
	must(error, "clCreateProgramWithSource");
	must(clBuildProgram(program, 1, &device, "", NULL, NULL), "clBuildProgram");
}

static cl_kernel kernel_named(const char *name)
{
	cl_int error;
	cl_kernel kernel = clCreateKernel(program, name, &error);

	must(error, "clCreateKernel");
	return kernel;
}

static void launch(cl_kernel kernel, size_t global, size_t local)
{
	must(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, &local, 0, NULL, NULL), "clEnqueueNDRangeKernel");
}

static void finish(void)
{
	must(clFinish(queue), "clFinish");
}

/* Cost of a call made `count` times in a row, median over rounds. */
#define COST(name, count, call, after)						\
	do {									\
		double cost[ROUNDS];						\
		for (int round = 0; round < ROUNDS; round++) {			\
			double start = now_us();				\
			for (int i = 0; i < (count); i++) {			\
				call;						\
			}							\
			cost[round] = (now_us() - start) / (count);		\
			after;							\
		}								\
		printf("%s %.4f\n", name, median(cost, ROUNDS));		\
	} while (0)

static void measure_calls(void)
{
	cl_kernel null = kernel_named("null");
	double rate[ROUNDS];
	size_t size;
	int one = 1;

	must(clSetKernelArg(null, 0, sizeof(one), &one), "clSetKernelArg");
	launch(null, 1, 1);
	finish();
	COST("set_argument_us", 2000, must(clSetKernelArg(null, 0, sizeof(one), &one), "clSetKernelArg"), (void)0);
	COST("enqueue_us", 1000, launch(null, 1, 1), finish());
	for (int round = 0; round < ROUNDS; round++) {
		double start = now_us();

		for (int i = 0; i < 2000; i++)
			launch(null, 1, 1);
		finish();
		rate[round] = 2000 / (now_us() - start) * 1e6;
	}
	printf("null_kernels_per_s %.0f\n", median(rate, ROUNDS));
	COST("enqueue_finish_us", 300, launch(null, 1, 1); finish(), (void)0);
	COST("finish_idle_us", 500, finish(), (void)0);
	COST("getter_local_us", 1000,
	     must(clGetKernelWorkGroupInfo(null, device, CL_KERNEL_WORK_GROUP_SIZE, sizeof(size), &size, NULL),
		  "clGetKernelWorkGroupInfo"), (void)0);
	COST("round_trip_us", 200, {
		cl_kernel again = kernel_named("null");

		clReleaseKernel(again);
	}, (void)0);
	COST("event_wait_us", 200, {
		size_t global = 1;
		cl_event event;

		must(clEnqueueNDRangeKernel(queue, null, 1, NULL, &global, &global, 0, NULL, &event),
		     "clEnqueueNDRangeKernel");
		must(clWaitForEvents(1, &event), "clWaitForEvents");
		clReleaseEvent(event);
	}, (void)0);
	COST("create_release_buffer_us", 200, {
		cl_int error;
		cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, 4096, NULL, &error);

		must(error, "clCreateBuffer");
		clReleaseMemObject(buffer);
	}, (void)0);
}

static void measure_copies(void)
{
	static const size_t sizes[] = { 64 << 10, 1 << 20, 4 << 20, 16 << 20 };
	const size_t most = 16 << 20;
	char *memory = aligned_alloc(4096, most);
	static const struct { const char *name; cl_mem_flags flags; } storages[] = {
		{ "ordinary", CL_MEM_READ_WRITE },
		{ "window", CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR },
	};

	memset(memory, 1, most);
	for (size_t s = 0; s < 2; s++) {
		cl_int error;
		cl_mem buffer = clCreateBuffer(context, storages[s].flags, most, NULL, &error);

		must(error, "clCreateBuffer");
		must(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, most, memory, 0, NULL, NULL), "write");
		must(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, most, memory, 0, NULL, NULL), "read");
		for (size_t i = 0; i < 4; i++) {
			double wrote[ROUNDS], read[ROUNDS], mapped[ROUNDS];
			size_t bytes = sizes[i];
			int count = bytes <= (1 << 20) ? 20 : 5;

			for (int round = 0; round < ROUNDS; round++) {
				double start = now_us();

				for (int j = 0; j < count; j++)
					must(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, bytes, memory, 0, NULL, NULL),
					     "clEnqueueWriteBuffer");
				wrote[round] = (double)bytes * count / (now_us() - start) / 1e3;
				start = now_us();
				for (int j = 0; j < count; j++)
					must(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, bytes, memory, 0, NULL, NULL),
					     "clEnqueueReadBuffer");
				read[round] = (double)bytes * count / (now_us() - start) / 1e3;
				start = now_us();
				for (int j = 0; j < count; j++) {
					void *map = clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_READ, 0, bytes, 0, NULL,
								       NULL, &error);

					must(error, "clEnqueueMapBuffer");
					must(clEnqueueUnmapMemObject(queue, buffer, map, 0, NULL, NULL), "unmap");
				}
				finish();
				mapped[round] = (now_us() - start) / count;
			}
			printf("write_%s_%zuK_GBps %.3f\n", storages[s].name, bytes >> 10, median(wrote, ROUNDS));
			printf("read_%s_%zuK_GBps %.3f\n", storages[s].name, bytes >> 10, median(read, ROUNDS));
			printf("map_%s_%zuK_us %.1f\n", storages[s].name, bytes >> 10, median(mapped, ROUNDS));
		}
		clReleaseMemObject(buffer);
	}
	free(memory);
}

#define WORK_ITEMS 512
/* The work that is queued ahead: BATCHES batches of about BATCH_US each. */
#define BATCHES 4
#define BATCH_US 20000.0

static cl_kernel spin;

/* Returns the rounds of the spin kernel that take about `kernel_us` on this machine. */
static int calibrate(double kernel_us)
{
	int rounds = 1000;

	for (;;) {
		double fastest = 1e18;

		must(clSetKernelArg(spin, 1, sizeof(rounds), &rounds), "clSetKernelArg");
		for (int i = 0; i < 5; i++) {
			double start = now_us(), took;

			launch(spin, WORK_ITEMS, 64);
			finish();
			took = now_us() - start;
			if (took < fastest)
				fastest = took;
		}
		if (fastest > 2000 || rounds > 1 << 28) {
			rounds = (int)(rounds * kernel_us / fastest);
			return rounds > 1 ? rounds : 1;
		}
		rounds *= 4;
	}
}

static void begin_work(double kernel_us, const char *given_rounds)
{
	int rounds;
	cl_int error;
	cl_mem data;

	spin = kernel_named("spin");
	data = clCreateBuffer(context, CL_MEM_READ_WRITE, WORK_ITEMS * sizeof(float), NULL, &error);
	must(error, "clCreateBuffer");
	must(clSetKernelArg(spin, 0, sizeof(data), &data), "clSetKernelArg");
	rounds = 1;
	must(clSetKernelArg(spin, 1, sizeof(rounds), &rounds), "clSetKernelArg");
	launch(spin, WORK_ITEMS, 64);
	finish();
	rounds = given_rounds ? atoi(given_rounds) : calibrate(kernel_us);
	must(clSetKernelArg(spin, 1, sizeof(rounds), &rounds), "clSetKernelArg");
	printf("rounds %d\n", rounds);
	fflush(stdout);
}

/* Launches a batch; returns the event of its last kernel. */
static cl_event launch_batch(int count)
{
	size_t global = WORK_ITEMS, local = 64;
	cl_event event;

	for (int i = 1; i < count; i++)
		launch(spin, global, local);
	must(clEnqueueNDRangeKernel(queue, spin, 1, NULL, &global, &local, 0, NULL, &event), "clEnqueueNDRangeKernel");
	must(clFlush(queue), "clFlush");
	return event;
}

static void work(double kernel_us, double seconds, const char *rounds)
{
	int batch = kernel_us < BATCH_US ? (int)(BATCH_US / kernel_us) : 1;
	cl_event events[BATCHES];
	double start, took;
	long count = 0;

	begin_work(kernel_us, rounds);
	start = now_us();
	for (int i = 0; i < BATCHES; i++)
		events[i] = launch_batch(batch);
	for (int i = 0;; i = (i + 1) % BATCHES) {
		must(clWaitForEvents(1, &events[i]), "clWaitForEvents");
		clReleaseEvent(events[i]);
		count += batch;
		took = now_us() - start;
		if (took >= seconds * 1e6)
			break;
		events[i] = launch_batch(batch);
	}
	finish();
	printf("kernels %ld\nwall_us %.0f\n", count, took);
}

static void gaps(double kernel_us, double gap_us, int requests, const char *rounds)
{
	double *took, start, total;

	took = calloc(requests, sizeof(*took));
	if (!took)
		must(CL_OUT_OF_HOST_MEMORY, "calloc");
	begin_work(kernel_us, rounds);
	total = now_us();
	for (int r = 0; r < requests; r++) {
		start = now_us();
		for (int i = 0; i < 8; i++) {
			launch(spin, WORK_ITEMS, 64);
			must(clFlush(queue), "clFlush");
			usleep((useconds_t)gap_us);
			if (i & 1)
				finish();
		}
		took[r] = now_us() - start;
	}
	total = now_us() - total;
	qsort(took, requests, sizeof(*took), by_value);
	printf("requests_per_s %.2f\nrequest_p50_us %.0f\nrequest_p99_us %.0f\n", requests / total * 1e6,
	       took[requests / 2], took[requests * 99 / 100]);
}

int main(int count, char **words)
{
	const char *what = count > 1 ? words[1] : "";

	begin();
	if (!strcmp(what, "calls"))
		measure_calls();
	else if (!strcmp(what, "copies"))
		measure_copies();
	else if (!strcmp(what, "work") && count >= 4)
		work(atof(words[2]), atof(words[3]), count > 4 ? words[4] : NULL);
	else if (!strcmp(what, "gaps") && count >= 5)
		gaps(atof(words[2]), atof(words[3]), atoi(words[4]), count > 5 ? words[5] : NULL);
	else
		return 2;
	return 0;
}
