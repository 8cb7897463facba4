// SPDX-License-Identifier: Apache-2.0
/*
 * A program for tests of the client's library: icd_client SCENARIO.  It uses the standard loader and
 * the first platform, and prints what it saw.  A wrong result ends it with status 1 and prints the
 * line's number.
 */
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#include <CL/cl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define EXPECT(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition); \
			_exit(1); \
		} \
	} while (0)

static cl_platform_id platform;
static cl_device_id device;
static cl_context context;
static cl_command_queue queue;
static cl_kernel kernel;
static cl_mem buffer;

static void open_all(void)
{
	const char *source = "kernel void f(global int *a, float4 b) {}";
	cl_float4 value = { { 1, 2, 3, 4 } };
	cl_program program;
	cl_int error;

	EXPECT(clGetPlatformIDs(1, &platform, NULL) == CL_SUCCESS);
	EXPECT(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL) == CL_SUCCESS);
	context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
	EXPECT(context && error == CL_SUCCESS);
	queue = clCreateCommandQueueWithProperties(context, device, NULL, &error);
	EXPECT(queue && error == CL_SUCCESS);
	buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, 4096, NULL, &error);
	EXPECT(buffer && error == CL_SUCCESS);
	program = clCreateProgramWithSource(context, 1, &source, NULL, &error);
	EXPECT(program && error == CL_SUCCESS);
	EXPECT(clBuildProgram(program, 0, NULL, "", NULL, NULL) == CL_SUCCESS);
	kernel = clCreateKernel(program, "f", &error);
	EXPECT(kernel && error == CL_SUCCESS);
	EXPECT(clSetKernelArg(kernel, 0, sizeof(buffer), &buffer) == CL_SUCCESS);
	EXPECT(clSetKernelArg(kernel, 1, sizeof(value), &value) == CL_SUCCESS);
	clReleaseProgram(program);
}

static cl_int launch(cl_uint count, const cl_event *waits, cl_event *event)
{
	const size_t global = 64;

	return clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, NULL, count, waits, event);
}

static double now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void scenario_launch(void)
{
	cl_event events[2];
	cl_uint references;

	open_all();
	EXPECT(launch(0, NULL, NULL) == CL_SUCCESS);
	EXPECT(launch(0, NULL, &events[0]) == CL_SUCCESS);
	EXPECT(launch(1, events, &events[1]) == CL_SUCCESS);
	EXPECT(clWaitForEvents(2, events) == CL_SUCCESS);
	EXPECT(clGetEventInfo(events[0], CL_EVENT_REFERENCE_COUNT, sizeof(references), &references, NULL) == CL_SUCCESS);
	EXPECT(references == 1);
	EXPECT(clReleaseEvent(events[0]) == CL_SUCCESS);
	EXPECT(clReleaseEvent(events[1]) == CL_SUCCESS);
	EXPECT(clFinish(queue) == CL_SUCCESS);
	EXPECT(clFinish(queue) == CL_SUCCESS);	/* no pending work, so nothing is sent */
}

/* The player's accelerator uses the machine's memory, so data in the window needs no messages. */
static void scenario_idle(void)
{
	const cl_queue_properties properties[] = { CL_QUEUE_PROPERTIES, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, 0 };
	static char in[64 << 10], out[sizeof(in)];
	cl_command_queue loose;
	cl_mem memory;
	cl_event event;
	cl_int error, state;

	open_all();
	loose = clCreateCommandQueueWithProperties(context, device, properties, &error);
	EXPECT(loose && error == CL_SUCCESS);
	memory = clCreateBuffer(context, CL_MEM_ALLOC_HOST_PTR, sizeof(in), NULL, &error);
	EXPECT(memory && error == CL_SUCCESS);
	memset(in, 7, sizeof(in));
	EXPECT(clEnqueueWriteBuffer(queue, memory, CL_TRUE, 0, sizeof(in), in, 0, NULL, &event) == CL_SUCCESS);
	EXPECT(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(state), &state, NULL) == CL_SUCCESS);
	EXPECT(state == CL_COMPLETE);
	EXPECT(clEnqueueReadBuffer(loose, memory, CL_TRUE, 0, sizeof(out), out, 1, &event, NULL) == CL_SUCCESS);
	EXPECT(!memcmp(in, out, sizeof(in)));
	EXPECT(clReleaseEvent(event) == CL_SUCCESS);
	EXPECT(clFinish(queue) == CL_SUCCESS);
	/* A transfer waits for the pending commands of its own queue and for nothing else. */
	EXPECT(launch(0, NULL, NULL) == CL_SUCCESS);
	EXPECT(clEnqueueReadBuffer(queue, memory, CL_TRUE, 0, sizeof(out), out, 0, NULL, NULL) == CL_SUCCESS);
	EXPECT(clEnqueueMarker(loose, &event) == CL_SUCCESS);
	EXPECT(clEnqueueReadBuffer(loose, memory, CL_TRUE, 0, sizeof(out), out, 0, NULL, NULL) == CL_SUCCESS);
	EXPECT(clReleaseEvent(event) == CL_SUCCESS);
}

/* For a transfer, the library finished the queue and learned that the launch had failed. */
static void scenario_unreported(void)
{
	static char data[64 << 10];
	cl_mem memory;
	cl_int error;

	open_all();
	memory = clCreateBuffer(context, CL_MEM_ALLOC_HOST_PTR, sizeof(data), NULL, &error);
	EXPECT(memory && error == CL_SUCCESS);
	EXPECT(launch(0, NULL, NULL) == CL_SUCCESS);
	EXPECT(clEnqueueReadBuffer(queue, memory, CL_TRUE, 0, sizeof(data), data, 0, NULL, NULL) == CL_SUCCESS);
	EXPECT(clFinish(queue) == CL_OUT_OF_RESOURCES);
	EXPECT(clFinish(queue) == CL_SUCCESS);
}

/* Without a platform, the loader finds none and reports that. */
static void scenario_none(void)
{
	cl_uint count = 0;
	cl_int error = clGetPlatformIDs(0, NULL, &count);

	EXPECT(error != CL_SUCCESS || count == 0);
}

static void *wait_for(void *event)
{
	cl_int status = clWaitForEvents(1, (cl_event *)&event);

	return (void *)(intptr_t)status;
}

/* The other side disappears at some point.  Then each call fails and each wait ends. */
static void scenario_lost(void)
{
	cl_event never, event;
	pthread_t waiting;
	cl_int error, status = CL_SUCCESS;
	void *waited;
	int data = 0;

	open_all();
	never = clCreateUserEvent(context, &error);
	EXPECT(never && error == CL_SUCCESS);
	EXPECT(pthread_create(&waiting, NULL, wait_for, never) == 0);
	for (int i = 0; i < 100000 && status == CL_SUCCESS; i++) {
		status = launch(0, NULL, &event);
		if (status == CL_SUCCESS) {
			clWaitForEvents(1, &event);
			clReleaseEvent(event);
		}
	}
	EXPECT(status == CL_DEVICE_NOT_AVAILABLE);
	EXPECT(clFinish(queue) == CL_DEVICE_NOT_AVAILABLE);
	EXPECT(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, 4, &data, 0, NULL, NULL) == CL_DEVICE_NOT_AVAILABLE);
	EXPECT(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, 4, &data, 0, NULL, NULL) == CL_DEVICE_NOT_AVAILABLE);
	EXPECT(!clCreateUserEvent(context, &error) && error == CL_DEVICE_NOT_AVAILABLE);
	EXPECT(pthread_join(waiting, &waited) == 0);
	EXPECT((cl_int)(intptr_t)waited == CL_DEVICE_NOT_AVAILABLE);
	EXPECT(clReleaseKernel(kernel) == CL_SUCCESS);
	EXPECT(clReleaseMemObject(buffer) == CL_SUCCESS);
	EXPECT(clReleaseCommandQueue(queue) == CL_SUCCESS);
	EXPECT(clReleaseContext(context) == CL_SUCCESS);
}

/* After fork(), calls of the new process fail and do not hang.  The original process continues to work. */
static void scenario_fork(void)
{
	cl_event pending;
	int status, data;
	cl_int error;
	pid_t copy;

	open_all();
	EXPECT(launch(0, NULL, &pending) == CL_SUCCESS);
	copy = fork();
	if (copy == 0) {
		cl_event event;

		alarm(10);
		EXPECT(launch(0, NULL, &event) == CL_DEVICE_NOT_AVAILABLE);
		EXPECT(clFinish(queue) == CL_DEVICE_NOT_AVAILABLE);
		EXPECT(clFlush(queue) == CL_DEVICE_NOT_AVAILABLE);
		EXPECT(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, 4, &data, 0, NULL, NULL) ==
		       CL_DEVICE_NOT_AVAILABLE);
		EXPECT(!clCreateBuffer(context, 0, 64, NULL, &error) && error == CL_DEVICE_NOT_AVAILABLE);
		EXPECT(!clCreateContext(NULL, 1, &device, NULL, NULL, &error) && error == CL_DEVICE_NOT_AVAILABLE);
		error = clWaitForEvents(1, &pending);
		EXPECT(error == CL_SUCCESS || error == CL_DEVICE_NOT_AVAILABLE);
		EXPECT(clReleaseEvent(pending) == CL_SUCCESS);
		EXPECT(clReleaseMemObject(buffer) == CL_SUCCESS);
		EXPECT(clReleaseKernel(kernel) == CL_SUCCESS);
		EXPECT(clReleaseCommandQueue(queue) == CL_SUCCESS);
		EXPECT(clReleaseContext(context) == CL_SUCCESS);
		_exit(0);
	}
	EXPECT(waitpid(copy, &status, 0) == copy);
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	EXPECT(clWaitForEvents(1, &pending) == CL_SUCCESS);
	EXPECT(clFinish(queue) == CL_SUCCESS);
}

static atomic_bool forked_enough;

static void CL_CALLBACK ignore(cl_event event, cl_int status, void *user)
{
	(void)event;
	(void)status;
	(void)user;
}

/* Constantly takes the locks of lists and of objects. */
static void *make_and_release(void *argument)
{
	while (!forked_enough) {
		cl_mem memory = clCreateBuffer(context, CL_MEM_READ_WRITE, 256, NULL, NULL);
		cl_event user = clCreateUserEvent(context, NULL);

		for (int i = 0; i < 20; i++)
			clGetProgramBuildInfo(argument, device, CL_PROGRAM_BUILD_OPTIONS, 0, NULL, NULL);
		clSetUserEventStatus(user, CL_COMPLETE);
		clReleaseEvent(user);
		clReleaseMemObject(memory);
	}
	return argument;
}

static void *make_and_wait(void *argument)
{
	while (!forked_enough) {
		cl_mem memory = clCreateBuffer(context, CL_MEM_READ_WRITE, 256, NULL, NULL);
		cl_event user = clCreateUserEvent(context, NULL), done = NULL;

		clSetEventCallback(user, CL_COMPLETE, ignore, NULL);
		clEnqueueMarkerWithWaitList(queue, 0, NULL, &done);
		clSetUserEventStatus(user, CL_COMPLETE);
		clReleaseEvent(user);
		clWaitForEvents(1, &done);
		clReleaseEvent(done);
		clReleaseMemObject(memory);
	}
	return argument;
}

/* Whatever other threads do at the fork(), calls of the new process return. */
static void scenario_forks(void)
{
	pthread_t threads[4];
	cl_program program;
	cl_event event;
	cl_int error;

	open_all();
	EXPECT(clGetKernelInfo(kernel, CL_KERNEL_PROGRAM, sizeof(program), &program, NULL) == CL_SUCCESS);
	for (int i = 0; i < 4; i++)
		EXPECT(pthread_create(&threads[i], NULL, i ? make_and_release : make_and_wait, program) == 0);
	for (int round = 0; round < 200; round++) {
		int status;
		pid_t copy;

		EXPECT(launch(0, NULL, &event) == CL_SUCCESS);
		copy = fork();
		if (copy == 0) {
			alarm(5);
			EXPECT(!clCreateBuffer(context, 0, 64, NULL, &error) && error == CL_DEVICE_NOT_AVAILABLE);
			EXPECT(!clCreateUserEvent(context, &error) && error == CL_DEVICE_NOT_AVAILABLE);
			EXPECT(!clCreateBuffer(context, CL_MEM_ALLOC_HOST_PTR, 8192, NULL, &error) &&
			       error == CL_DEVICE_NOT_AVAILABLE);
			EXPECT(launch(0, NULL, NULL) == CL_DEVICE_NOT_AVAILABLE);
			EXPECT(clSetEventCallback(event, CL_COMPLETE, ignore, NULL) == CL_DEVICE_NOT_AVAILABLE);
			EXPECT(clFinish(queue) == CL_DEVICE_NOT_AVAILABLE);
			EXPECT(clReleaseEvent(event) == CL_SUCCESS);
			EXPECT(clReleaseMemObject(buffer) == CL_SUCCESS);
			EXPECT(clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_OPTIONS, 0, NULL, NULL) ==
			       CL_SUCCESS);
			EXPECT(clReleaseKernel(kernel) == CL_SUCCESS);
			EXPECT(clReleaseCommandQueue(queue) == CL_SUCCESS);
			_exit(0);
		}
		EXPECT(waitpid(copy, &status, 0) == copy);
		EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
		EXPECT(clReleaseEvent(event) == CL_SUCCESS);
	}
	forked_enough = true;
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	EXPECT(clFinish(queue) == CL_SUCCESS);
}

static atomic_int order;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void CL_CALLBACK note(cl_event event, cl_int status, void *user)
{
	int *place = user;

	(void)event;
	pthread_mutex_lock(&lock);
	*place = status <= 0 ? 1 + ++order : -status;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static void scenario_callbacks(void)
{
	cl_event user, event;
	int on_user = 0, on_event = 0, late = 0;
	cl_int error;

	open_all();
	user = clCreateUserEvent(context, &error);
	EXPECT(user);
	EXPECT(launch(1, &user, &event) == CL_SUCCESS);
	EXPECT(clSetEventCallback(user, CL_COMPLETE, note, &on_user) == CL_SUCCESS);
	EXPECT(clSetEventCallback(event, CL_COMPLETE, note, &on_event) == CL_SUCCESS);
	EXPECT(clSetEventCallback(event, 77, note, &on_event) == CL_INVALID_VALUE);
	EXPECT(clSetUserEventStatus(user, 5) == CL_INVALID_VALUE);
	EXPECT(clSetUserEventStatus(user, CL_COMPLETE) == CL_SUCCESS);
	EXPECT(clSetUserEventStatus(user, CL_COMPLETE) == CL_INVALID_OPERATION);
	/* At this point, only the callbacks' thread waits for the library. */
	pthread_mutex_lock(&lock);
	while (!on_user || !on_event)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	EXPECT(clSetEventCallback(event, CL_COMPLETE, note, &late) == CL_SUCCESS);
	pthread_mutex_lock(&lock);
	while (!late)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	EXPECT(late > on_event && late > on_user);
	clReleaseEvent(user);
	user = clCreateUserEvent(context, &error);
	on_user = 0;
	EXPECT(clSetEventCallback(user, CL_COMPLETE, note, &on_user) == CL_SUCCESS);
	EXPECT(clSetUserEventStatus(user, -7) == CL_SUCCESS);
	pthread_mutex_lock(&lock);
	while (!on_user)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	EXPECT(clWaitForEvents(1, &user) == CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
	clReleaseEvent(user);
	clReleaseEvent(event);
}

/* While one thread waits for an answer that is still missing, calls of other threads are answered. */
static void scenario_followers(void)
{
	cl_image_format formats[4];
	cl_event event;
	pthread_t waiting[3];
	cl_uint count;
	void *status;

	open_all();
	EXPECT(launch(0, NULL, &event) == CL_SUCCESS);
	for (int i = 0; i < 3; i++)
		EXPECT(pthread_create(&waiting[i], NULL, wait_for, event) == 0);
	for (int i = 0; i < 200; i++)
		EXPECT(clGetSupportedImageFormats(context, 0, CL_MEM_OBJECT_IMAGE2D, 4, formats, &count) ==
		       CL_OUT_OF_RESOURCES);	/* the player's answer contains no formats */
	EXPECT(clFlush(queue) == CL_SUCCESS);
	for (int i = 0; i < 3; i++) {
		EXPECT(pthread_join(waiting[i], &status) == 0);
		EXPECT((cl_int)(intptr_t)status == CL_SUCCESS);
	}
	clReleaseEvent(event);
}

static void *work(void *argument)
{
	cl_command_queue own;
	cl_int error;

	own = clCreateCommandQueueWithProperties(context, device, NULL, &error);
	EXPECT(own && !error);
	for (int i = 0; i < 300; i++) {
		cl_mem memory = clCreateBuffer(context, 0, 64 + (size_t)i, NULL, &error);
		cl_event event;
		char data[64] = { 0 };

		EXPECT(memory && !error);
		EXPECT(clEnqueueWriteBuffer(own, memory, CL_FALSE, 0, 64, data, 0, NULL, &event) == CL_SUCCESS);
		EXPECT(clEnqueueReadBuffer(own, memory, CL_TRUE, 0, 64, data, 1, &event, NULL) == CL_SUCCESS);
		EXPECT(clReleaseEvent(event) == CL_SUCCESS);
		EXPECT(clReleaseMemObject(memory) == CL_SUCCESS);
		if (i % 10 == 0)
			EXPECT(clFinish(own) == CL_SUCCESS);
	}
	EXPECT(clReleaseCommandQueue(own) == CL_SUCCESS);
	return argument;
}

static void scenario_threads(void)
{
	pthread_t threads[8];

	open_all();
	for (int i = 0; i < 8; i++)
		EXPECT(pthread_create(&threads[i], NULL, work, NULL) == 0);
	for (int i = 0; i < 8; i++)
		EXPECT(pthread_join(threads[i], NULL) == 0);
	EXPECT(clFinish(queue) == CL_SUCCESS);
}

/* Sends more messages than both rings hold, without waiting in between. */
static void scenario_flood(void)
{
	cl_event events[64];

	open_all();
	for (int round = 0; round < 1000; round++) {
		for (int i = 0; i < 64; i++)
			EXPECT(launch(0, NULL, &events[i]) == CL_SUCCESS);
		for (int i = 0; i < 64; i++)
			EXPECT(clReleaseEvent(events[i]) == CL_SUCCESS);
	}
	EXPECT(clFinish(queue) == CL_SUCCESS);
}

/* The other side writes an invalid index.  The library notices this when it looks for room. */
static void scenario_full(void)
{
	cl_int status = CL_SUCCESS;

	open_all();
	for (int i = 0; i < 100000 && status == CL_SUCCESS; i++)
		status = launch(0, NULL, NULL);
	EXPECT(status == CL_DEVICE_NOT_AVAILABLE);
	EXPECT(clFinish(queue) == CL_DEVICE_NOT_AVAILABLE);
}

/* A malformed reply fails only the call that it answers. */
static void scenario_broken(void)
{
	cl_int status = CL_SUCCESS;

	open_all();
	for (int i = 0; i < 100 && status == CL_SUCCESS; i++) {
		EXPECT(launch(0, NULL, NULL) == CL_SUCCESS);
		status = clFinish(queue);
	}
	EXPECT(status < 0);
	EXPECT(clReleaseKernel(kernel) == CL_SUCCESS);
	EXPECT(clReleaseMemObject(buffer) == CL_SUCCESS);
}

static void scenario_masks(void)
{
	cl_device_svm_capabilities svm = 1;
	cl_device_exec_capabilities execution = 0;
	cl_uint sub_devices = 9;
	char text[256];

	open_all();
	EXPECT(clGetDeviceInfo(device, CL_DEVICE_SVM_CAPABILITIES, sizeof(svm), &svm, NULL) == CL_SUCCESS);
	EXPECT(svm == 0);
	EXPECT(clGetDeviceInfo(device, CL_DEVICE_EXECUTION_CAPABILITIES, sizeof(execution), &execution, NULL) ==
	       CL_SUCCESS);
	EXPECT(execution == CL_EXEC_KERNEL);
	EXPECT(clGetDeviceInfo(device, CL_DEVICE_PARTITION_MAX_SUB_DEVICES, 4, &sub_devices, NULL) == CL_SUCCESS);
	EXPECT(sub_devices == 0);
	EXPECT(clGetDeviceInfo(device, CL_DEVICE_EXTENSIONS, sizeof(text), text, NULL) == CL_SUCCESS);
	EXPECT(!strcmp(text, "cl_khr_fp64 cl_khr_3d_image_writes"));
	EXPECT(clSVMAlloc(context, CL_MEM_READ_WRITE, 64, 0) == NULL);
	EXPECT(clEnqueueSVMUnmap(queue, &svm, 0, NULL, NULL) == CL_INVALID_OPERATION);
	EXPECT(clCreateSubDevices(device, NULL, 0, NULL, NULL) == CL_DEVICE_PARTITION_FAILED);
}

/* Checked by hand against the specification: the error of each call is that of its first wrong argument. */
static void scenario_misuse(void)
{
	const size_t global[3] = { 64, 1, 1 }, local[3] = { 48, 1, 1 }, large[3] = { 8192, 1, 1 }, none[3] = { 0 };
	const size_t region[3] = { 4, 1, 1 }, origin[3] = { 0 }, far_away[3] = { 4094, 0, 0 };
	cl_buffer_region misaligned = { 4, 64 }, outside = { 4096, 64 }, empty = { 0, 0 };
	cl_queue_properties unknown[] = { 0x1234, 1, 0 };
	cl_event no_event = NULL;
	char data[64] = { 0 };
	cl_mem no_memory = NULL;
	cl_uint count;
	cl_int error;

	open_all();
	EXPECT(clGetDeviceIDs(platform, 0, 1, &device, NULL) == CL_INVALID_DEVICE_TYPE);
	EXPECT(clGetDeviceIDs(platform, CL_DEVICE_TYPE_GPU, 1, &device, &count) == CL_DEVICE_NOT_FOUND);
	EXPECT(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, &device, NULL) == CL_INVALID_VALUE);
	EXPECT(clGetDeviceInfo(device, 0x7777, 0, NULL, NULL) == CL_INVALID_VALUE);
	EXPECT(clGetDeviceInfo(device, CL_DEVICE_NAME, 1, data, NULL) == CL_INVALID_VALUE);
	EXPECT(!clCreateContext(NULL, 0, NULL, NULL, NULL, &error) && error == CL_INVALID_VALUE);
	EXPECT(!clCreateContext(NULL, 1, &device, NULL, data, &error) && error == CL_INVALID_VALUE);
	EXPECT(!clCreateCommandQueueWithProperties(context, device, unknown, &error) && error == CL_INVALID_VALUE);

	EXPECT(!clCreateBuffer(context, 0, 0, NULL, &error) && error == CL_INVALID_BUFFER_SIZE);
	EXPECT(!clCreateBuffer(context, 0, 2ull << 30, NULL, &error) && error == CL_INVALID_BUFFER_SIZE);
	EXPECT(!clCreateBuffer(context, CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY, 4, NULL, &error) &&
	       error == CL_INVALID_VALUE);
	EXPECT(!clCreateBuffer(context, CL_MEM_USE_HOST_PTR, 4, NULL, &error) && error == CL_INVALID_HOST_PTR);
	EXPECT(!clCreateBuffer(context, 0, 4, data, &error) && error == CL_INVALID_HOST_PTR);
	EXPECT(!clCreateSubBuffer(buffer, 0, CL_BUFFER_CREATE_TYPE_REGION, &misaligned, &error) &&
	       error == CL_MISALIGNED_SUB_BUFFER_OFFSET);
	EXPECT(!clCreateSubBuffer(buffer, 0, CL_BUFFER_CREATE_TYPE_REGION, &outside, &error) &&
	       error == CL_INVALID_VALUE);
	EXPECT(!clCreateSubBuffer(buffer, 0, CL_BUFFER_CREATE_TYPE_REGION, &empty, &error) &&
	       error == CL_INVALID_BUFFER_SIZE);

	EXPECT(clSetKernelArg(kernel, 2, 4, data) == CL_INVALID_ARG_INDEX);
	EXPECT(clSetKernelArg(kernel, 1, 4, data) == CL_INVALID_ARG_SIZE);
	EXPECT(clSetKernelArg(kernel, 0, 4, data) == CL_INVALID_ARG_SIZE);
	EXPECT(clSetKernelArg(kernel, 0, sizeof(cl_mem), &data) == CL_SUCCESS);	/* NULL is valid */
	memset(data, 0x55, sizeof(data));
	EXPECT(clSetKernelArg(kernel, 0, sizeof(cl_mem), &data) == CL_INVALID_MEM_OBJECT);
	EXPECT(clSetKernelArg(kernel, 0, sizeof(cl_mem), &queue) == CL_INVALID_MEM_OBJECT);

	EXPECT(clEnqueueNDRangeKernel(queue, kernel, 0, NULL, global, NULL, 0, NULL, NULL) == CL_INVALID_WORK_DIMENSION);
	EXPECT(clEnqueueNDRangeKernel(queue, kernel, 4, NULL, global, NULL, 0, NULL, NULL) == CL_INVALID_WORK_DIMENSION);
	EXPECT(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, NULL, NULL, 0, NULL, NULL) ==
	       CL_INVALID_GLOBAL_WORK_SIZE);
	EXPECT(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, none, NULL, 0, NULL, NULL) ==
	       CL_INVALID_GLOBAL_WORK_SIZE);
	EXPECT(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, global, local, 0, NULL, NULL) ==
	       CL_INVALID_WORK_GROUP_SIZE);
	EXPECT(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, large, large, 0, NULL, NULL) ==
	       CL_INVALID_WORK_ITEM_SIZE);
	EXPECT(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, global, NULL, 1, NULL, NULL) ==
	       CL_INVALID_EVENT_WAIT_LIST);
	EXPECT(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, global, NULL, 1, &no_event, NULL) ==
	       CL_INVALID_EVENT_WAIT_LIST);

	EXPECT(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 4090, 7, data, 0, NULL, NULL) == CL_INVALID_VALUE);
	EXPECT(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, 7, NULL, 0, NULL, NULL) == CL_INVALID_VALUE);
	EXPECT(clEnqueueReadBuffer(queue, buffer, CL_TRUE, SIZE_MAX, 7, data, 0, NULL, NULL) == CL_INVALID_VALUE);
	EXPECT(clEnqueueCopyBuffer(queue, buffer, buffer, 0, 8, 16, 0, NULL, NULL) == CL_MEM_COPY_OVERLAP);
	EXPECT(clEnqueueCopyBuffer(queue, buffer, buffer, 4090, 8, 16, 0, NULL, NULL) == CL_INVALID_VALUE);
	EXPECT(clEnqueueFillBuffer(queue, buffer, data, 3, 0, 12, 0, NULL, NULL) == CL_INVALID_VALUE);
	EXPECT(clEnqueueFillBuffer(queue, buffer, data, 8, 4, 8, 0, NULL, NULL) == CL_INVALID_VALUE);
	EXPECT(clEnqueueReadBufferRect(queue, buffer, CL_TRUE, far_away, origin, region, 0, 0, 0, 0, data, 0, NULL,
				       NULL) == CL_INVALID_VALUE);
	EXPECT(clEnqueueReadBufferRect(queue, buffer, CL_TRUE, origin, origin, region, 2, 0, 0, 0, data, 0, NULL,
				       NULL) == CL_INVALID_VALUE);
	EXPECT(clEnqueueUnmapMemObject(queue, buffer, data, 0, NULL, NULL) == CL_INVALID_VALUE);
	EXPECT(!clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_READ, 4000, 400, 0, NULL, NULL, &error) &&
	       error == CL_INVALID_VALUE);
	EXPECT(clEnqueueMigrateMemObjects(queue, 1, &no_memory, 0, 0, NULL, NULL) == CL_INVALID_MEM_OBJECT);
	EXPECT(clWaitForEvents(0, NULL) == CL_INVALID_VALUE);
	EXPECT(clWaitForEvents(1, &no_event) == CL_INVALID_EVENT);
	EXPECT(clEnqueueWaitForEvents(queue, 0, NULL) == CL_INVALID_VALUE);
	EXPECT(clEnqueueWaitForEvents(queue, 1, &no_event) == CL_INVALID_EVENT);
	EXPECT(clEnqueueReadImage(queue, buffer, CL_TRUE, origin, region, 0, 0, data, 0, NULL, NULL) ==
	       CL_INVALID_MEM_OBJECT);
	EXPECT(clReleaseMemObject((cl_mem)queue) == CL_INVALID_MEM_OBJECT);
	_exit(printf("done\n") < 0 || fflush(stdout));
}

static uint32_t random_number(void)
{
	static uint32_t seed = 1;

	seed = seed * 1664525u + 1013904223u;
	return seed >> 8;
}

static void CL_CALLBACK ignore_news(const char *text, const void *data, size_t bytes, void *user)
{
	(void)data;
	(void)bytes;
	(void)user;
	EXPECT(!strncmp(text, "xxxx", 4));
}

/* The other side answers nonsense.  Any result is correct except a crash or a hang. */
static void scenario_chaos(void)
{
	static char data[200000];
	const char *source = "kernel void f() {}";
	const size_t origin[3] = { 0 }, region[3] = { 8, 8, 1 };
	const cl_image_format format = { CL_RGBA, CL_FLOAT };
	cl_context_properties properties[] = { CL_CONTEXT_PLATFORM, 0, 0 };
	cl_event event = NULL, ended;
	cl_image_format formats[8];
	cl_mem memory, image;
	cl_program program;
	cl_kernel other;
	cl_uint count;
	void *map;

	open_all();
	properties[1] = (cl_context_properties)platform;
	clCreateContext(properties, 1, &device, ignore_news, NULL, NULL);
	for (int i = 0; i < 20000; i++) {
		switch (random_number() % 12) {
		case 0:
			if (event)
				clReleaseEvent(event);
			if (launch(0, NULL, &event) == CL_SUCCESS)
				clSetEventCallback(event, CL_COMPLETE, ignore, NULL);
			else
				event = NULL;
			break;
		case 1:
			clFinish(queue);
			break;
		case 2:
			clEnqueueReadBuffer(queue, buffer, random_number() % 2, 0, 4096, data, event ? 1 : 0,
					    event ? &event : NULL, NULL);
			break;
		case 3:
			memory = clCreateBuffer(context, CL_MEM_ALLOC_HOST_PTR, sizeof(data), NULL, NULL);
			if (!memory)
				break;
			clEnqueueWriteBuffer(queue, memory, CL_TRUE, 0, sizeof(data), data, 0, NULL, NULL);
			clEnqueueReadBuffer(queue, memory, CL_TRUE, 0, sizeof(data), data, 0, NULL, NULL);
			map = clEnqueueMapBuffer(queue, memory, CL_TRUE, CL_MAP_WRITE, 0, 4096, 0, NULL, NULL, NULL);
			if (map)
				clEnqueueUnmapMemObject(queue, memory, map, 0, NULL, NULL);
			clReleaseMemObject(memory);
			break;
		case 4:
			program = clCreateProgramWithSource(context, 1, &source, NULL, NULL);
			if (!program)
				break;
			if (clBuildProgram(program, 0, NULL, "", NULL, NULL) == CL_SUCCESS) {
				other = clCreateKernel(program, "f", NULL);
				if (other) {
					clGetKernelArgInfo(other, 0, CL_KERNEL_ARG_NAME, sizeof(data), data, NULL);
					clSetKernelArg(other, 0, 8, &buffer);
					clReleaseKernel(other);
				}
			}
			clGetProgramInfo(program, CL_PROGRAM_KERNEL_NAMES, sizeof(data), data, NULL);
			clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof(data), data, NULL);
			clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, sizeof(data), data, NULL);
			clReleaseProgram(program);
			break;
		case 5:
			image = clCreateImage2D(context, 0, &format, 8, 8, 0, NULL, NULL);
			if (!image)
				break;
			clEnqueueReadImage(queue, image, CL_TRUE, origin, region, 0, 0, data, 0, NULL, NULL);
			clReleaseMemObject(image);
			break;
		case 6:
			clGetSupportedImageFormats(context, 0, CL_MEM_OBJECT_IMAGE2D, 8, formats, &count);
			break;
		case 7:
			if (clEnqueueMarker(queue, &ended) == CL_SUCCESS) {
				clWaitForEvents(1, &ended);
				clReleaseEvent(ended);
			}
			break;
		default:
			clEnqueueCopyBuffer(queue, buffer, buffer, 0, 64, 32, 0, NULL, NULL);
		}
	}
}

static int by_value(const void *one, const void *other)
{
	double a = *(const double *)one, b = *(const double *)other;

	return (a > b) - (a < b);
}

/* Measures the library's cost of calls.  The other side does almost nothing. */
static void scenario_cost(void)
{
	double launches[15], arguments[15], trips[15], begun;

	open_all();
	for (int round = 0; round < 15; round++) {
		begun = now_us();
		for (int i = 0; i < 1000; i++)
			launch(0, NULL, NULL);
		launches[round] = (now_us() - begun) / 1000;
		clFinish(queue);
		begun = now_us();
		for (int i = 0; i < 1000; i++)
			clSetKernelArg(kernel, 0, sizeof(buffer), &buffer);
		arguments[round] = (now_us() - begun) / 1000;
		begun = now_us();
		for (int i = 0; i < 200; i++)
			clGetSupportedImageFormats(context, 0, CL_MEM_OBJECT_IMAGE2D, 0, NULL, NULL);
		trips[round] = (now_us() - begun) / 200;
	}
	qsort(launches, 15, sizeof(double), by_value);
	qsort(arguments, 15, sizeof(double), by_value);
	qsort(trips, 15, sizeof(double), by_value);
	printf("launch_us %.3f\nargument_us %.3f\nround_trip_us %.2f\n", launches[7], arguments[7], trips[7]);
}

static const struct {
	const char *name;
	void (*run)(void);
} scenarios[] = {
	{ "idle", scenario_idle }, { "unreported", scenario_unreported }, { "launch", scenario_launch }, { "none", scenario_none }, { "lost", scenario_lost },
	{ "fork", scenario_fork }, { "forks", scenario_forks }, { "callbacks", scenario_callbacks }, { "followers", scenario_followers },
	{ "chaos", scenario_chaos }, { "full", scenario_full }, { "broken", scenario_broken }, { "masks", scenario_masks },
	{ "misuse", scenario_misuse }, { "threads", scenario_threads }, { "flood", scenario_flood }, { "cost", scenario_cost },
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc == 2 && i < sizeof(scenarios) / sizeof(*scenarios); i++)
		if (!strcmp(argv[1], scenarios[i].name)) {
			alarm(60);
			scenarios[i].run();
			printf("done\n");
			return 0;
		}
	fprintf(stderr, "usage: icd_client SCENARIO\n");
	return 2;
}
