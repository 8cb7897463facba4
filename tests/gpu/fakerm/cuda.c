// SPDX-License-Identifier: Apache-2.0
/*
 * libcuda.so.1 on the fake driver. For a context, it makes the same calls to the resource manager as the
 * real library, in the same order. It runs kernels on the fake GPU. A kernel is known by its name in the
 * PTX. Its last parameter is its work in rounds, and its first is the buffer where it counts launches.
 *
 * $FAKERM_CUDA_STYLE: words for differences between real libraries: "short" allocations, "xfer"
 * envelopes, "unsized" parameters of allocations. $FAKERM_CUDA_VERSION: the library's own version.
 */
#define _GNU_SOURCE
#include "protocol.h"

#include "rm_abi.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { CUDA_SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_CONTEXT = 201, NOT_FOUND = 500,
       UNKNOWN = 999 };

#define CHANNEL_CLASS 0xc86f
#define CHANNEL_PARAMS 368
#define ENGINE_COPY2 11
#define COPY_ENGINES 3
#define COMPUTE_CHANNELS 8
#define OWN_TIMESLICE_US 2048
#define COMPUTE_NS_PER_ROUND 1000
#define MEMORY_NS_PER_ROUND 2000

struct function {
	bool memory_bound;
};

struct event {
	uint64_t number;
};

static struct function functions[] = { { .memory_bound = false }, { .memory_bound = true } };
static int ctl = -1;
static uint32_t client, device, subdevice, next_handle = 0x5c000001;
static uint32_t compute_group;
static uint64_t last_submitted;
static bool context_made;

static bool style(const char *word)
{
	const char *words = getenv("FAKERM_CUDA_STYLE");

	return words != NULL && strstr(words, word) != NULL;
}

static int rm(uint32_t escape, void *call, uint32_t size)
{
	struct rm_xfer envelope = { .cmd = escape, .size = size, .pointer = (uintptr_t)call };

	if (style("xfer"))
		return ioctl(ctl, _IOWR(RM_MAGIC, RM_ESC_XFER, struct rm_xfer), &envelope);
	return ioctl(ctl, _IOC(_IOC_READ | _IOC_WRITE, RM_MAGIC, escape, size), call);
}

/* Returns the handle, or 0. */
static uint32_t make(uint32_t parent, uint32_t class_id, void *params, uint32_t size)
{
	uint32_t wanted = class_id == RM_CLASS_ROOT_CLIENT ? 0 : next_handle++;
	struct rm_alloc_short brief = { client, parent, wanted, class_id, (uintptr_t)params,
					style("unsized") ? 0 : size, 0 };
	struct rm_alloc_long full = { client, parent, wanted,		 class_id, (uintptr_t)params, 0,
				      style("unsized") ? 0 : size, 0, 0 };

	if (style("short"))
		return rm(RM_ESC_ALLOC, &brief, sizeof(brief)) == 0 && brief.status == RM_OK ? brief.object : 0;
	return rm(RM_ESC_ALLOC, &full, sizeof(full)) == 0 && full.status == RM_OK ? full.object : 0;
}

static uint32_t control(uint32_t object, uint32_t cmd, void *params, uint32_t size)
{
	struct rm_control call = { client, object, cmd, 0, (uintptr_t)params, size, 0 };

	return rm(RM_ESC_CONTROL, &call, sizeof(call)) == 0 ? call.status : UINT32_MAX;
}

static uint32_t make_group(uint32_t engine_type, unsigned int channels)
{
	struct rm_group_params params = { .engine_type = engine_type };
	unsigned char channel_params[CHANNEL_PARAMS] = { 0 };
	uint32_t group = make(device, RM_CLASS_GROUP, &params, sizeof(params));

	while (group && channels--)
		if (!make(group, CHANNEL_CLASS, channel_params, sizeof(channel_params)))
			return 0;
	return group;
}

static bool schedule(uint32_t group)
{
	unsigned char params[3] = { 1, 0, 0 };
	uint64_t timeslice_us = OWN_TIMESLICE_US;

	/* If the driver refuses the timeslice, the real library continues without it. */
	control(group, RM_CMD_SET_TIMESLICE, &timeslice_us, sizeof(timeslice_us));
	return control(group, 0xa06c0101, params, sizeof(params)) == RM_OK;
}

/* The objects of the real library in its order, as a shim recorded them on an H100 with driver 580.159.04. */
static bool make_groups(void)
{
	struct rm_preemption_mode mode = { .flags = RM_PREEMPTION_SETS_COMPUTE, .compute = RM_COMPUTE_CILP };
	uint32_t copy_groups[COPY_ENGINES];
	unsigned int i;

	compute_group = make_group(RM_ENGINE_GR0, COMPUTE_CHANNELS);
	if (!compute_group)
		return false;
	for (i = 0; i < COPY_ENGINES; i++) {
		copy_groups[i] = make_group(ENGINE_COPY2 + i, 1);
		if (!copy_groups[i])
			return false;
	}
	mode.channel = compute_group;
	if (control(subdevice, RM_CMD_SET_PREEMPTION_MODE, &mode, sizeof(mode)) != RM_OK)
		return false;
	for (i = 0; i < COPY_ENGINES; i++)
		if (!schedule(copy_groups[i]))
			return false;
	return schedule(compute_group);
}

EXPORT int cuInit(unsigned int flags)
{
	struct rm_version version = { 0 };
	const char *text = getenv("FAKERM_CUDA_VERSION");

	if (flags != 0)
		return INVALID_VALUE;
	if (ctl >= 0)
		return CUDA_SUCCESS;
	ctl = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
	if (ctl < 0)
		return NO_DEVICE;
	strncpy(version.text, text != NULL ? text : "", sizeof(version.text) - 1);
	if (ioctl(ctl, _IOWR(RM_MAGIC, RM_ESC_CHECK_VERSION, struct rm_version), &version) < 0)
		return NO_DEVICE;
	return CUDA_SUCCESS;
}

EXPORT int cuDeviceGetCount(int *count)
{
	*count = ctl >= 0;
	return CUDA_SUCCESS;
}

EXPORT int cuDeviceGet(int *handle, int ordinal)
{
	*handle = ordinal;
	return ordinal == 0 ? CUDA_SUCCESS : 101;
}

EXPORT int cuDeviceGetName(char *name, int size, int handle)
{
	(void)handle;
	strncpy(name, "Fake GPU", (size_t)size - 1);
	return CUDA_SUCCESS;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int handle)
{
	(void)handle;
	*value = attribute == 16 ? 8 : 0;
	return attribute == 16 ? CUDA_SUCCESS : INVALID_VALUE;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int handle)
{
	unsigned char device_params[56] = { 0 }, subdevice_params[4] = { 0 };

	(void)handle;
	*context = &context_made;
	if (context_made)
		return CUDA_SUCCESS;
	client = make(0, RM_CLASS_ROOT_CLIENT, NULL, 0);
	device = client ? make(client, RM_CLASS_DEVICE, device_params, sizeof(device_params)) : 0;
	subdevice = device ? make(device, RM_CLASS_SUBDEVICE, subdevice_params, sizeof(subdevice_params)) : 0;
	if (!subdevice || !make_groups())
		return UNKNOWN;
	context_made = true;
	return CUDA_SUCCESS;
}

EXPORT int cuCtxSetCurrent(void *context)
{
	static _Thread_local bool current;
	struct fake_work work = { 0 };
	bool wanted = context != NULL;

	if (wanted && context != &context_made)
		return INVALID_CONTEXT;
	if (wanted && !current && ioctl(ctl, _IOWR(FAKE_MAGIC, FAKE_JOIN, struct fake_work), &work) < 0)
		return UNKNOWN;
	if (!wanted && current && ioctl(ctl, _IOWR(FAKE_MAGIC, FAKE_LEAVE, struct fake_work), &work) < 0)
		return UNKNOWN;
	current = wanted;
	return CUDA_SUCCESS;
}

EXPORT int cuModuleLoadData(void **module, const void *image)
{
	*module = (void *)image;
	return strstr(image, ".entry") != NULL ? CUDA_SUCCESS : 200;
}

EXPORT int cuModuleGetFunction(void **function, void *module, const char *name)
{
	(void)module;
	if (strcmp(name, "vgpumgr_compute") == 0)
		*function = &functions[0];
	else if (strcmp(name, "vgpumgr_memory") == 0)
		*function = &functions[1];
	else
		return NOT_FOUND;
	return CUDA_SUCCESS;
}

EXPORT int cuMemAlloc_v2(uint64_t *pointer, size_t size)
{
	void *memory = size > 0 ? calloc(1, size) : NULL;

	*pointer = (uintptr_t)memory;
	return memory != NULL ? CUDA_SUCCESS : OUT_OF_MEMORY;
}

EXPORT int cuMemFree_v2(uint64_t pointer)
{
	free((void *)(uintptr_t)pointer);
	return CUDA_SUCCESS;
}

/* Fresh memory is already zero. Writing a large buffer would only use up this machine's memory. */
EXPORT int cuMemsetD8_v2(uint64_t pointer, unsigned char value, size_t size)
{
	memset((void *)(uintptr_t)pointer, value, size < 4096 ? size : 4096);
	return CUDA_SUCCESS;
}

EXPORT int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size)
{
	memcpy(to, (const void *)(uintptr_t)from, size);
	return CUDA_SUCCESS;
}

static int wait_for(uint64_t number)
{
	struct fake_work work = { .client = client, .group = compute_group, .value = number };

	if (number == 0)
		return CUDA_SUCCESS;
	return ioctl(ctl, _IOWR(FAKE_MAGIC, FAKE_WAIT, struct fake_work), &work) < 0 ? UNKNOWN : CUDA_SUCCESS;
}

EXPORT int cuCtxSynchronize(void)
{
	return wait_for(last_submitted);
}

EXPORT int cuStreamCreate(void **stream, unsigned int flags)
{
	(void)flags;
	*stream = &ctl;
	return CUDA_SUCCESS;
}

EXPORT int cuStreamSynchronize(void *stream)
{
	(void)stream;
	return cuCtxSynchronize();
}

EXPORT int cuLaunchKernel(struct function *function, unsigned int gx, unsigned int gy, unsigned int gz,
			  unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared, void *stream,
			  void **parameters, void **extra)
{
	uint64_t *counter = (uint64_t *)*(uintptr_t *)parameters[0];
	uint64_t rounds = *(uint32_t *)parameters[2];
	struct fake_work work = {
		.client = client,
		.group = compute_group,
		.value = rounds * (function->memory_bound ? MEMORY_NS_PER_ROUND : COMPUTE_NS_PER_ROUND),
		.memory_bound = function->memory_bound,
	};

	(void)shared;
	(void)stream;
	if (extra != NULL || (uint64_t)gx * gy * gz * bx * by * bz == 0)
		return INVALID_VALUE;
	if (ioctl(ctl, _IOWR(FAKE_MAGIC, FAKE_SUBMIT, struct fake_work), &work) < 0)
		return UNKNOWN;
	last_submitted = work.value;
	++*counter;
	return CUDA_SUCCESS;
}

EXPORT int cuEventCreate(struct event **event, unsigned int flags)
{
	(void)flags;
	*event = calloc(1, sizeof(**event));
	return *event != NULL ? CUDA_SUCCESS : OUT_OF_MEMORY;
}

EXPORT int cuEventRecord(struct event *event, void *stream)
{
	(void)stream;
	event->number = last_submitted;
	return CUDA_SUCCESS;
}

EXPORT int cuEventSynchronize(struct event *event)
{
	return wait_for(event->number);
}

EXPORT int cuGetErrorName(int error, const char **name)
{
	*name = error == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : error == CUDA_SUCCESS ? "CUDA_SUCCESS" : "CUDA_ERROR_UNKNOWN";
	return CUDA_SUCCESS;
}
