/* SPDX-License-Identifier: Apache-2.0 */
/* The answer to HELLO: information about the library's platform and devices. */
#include <stdlib.h>
#include <string.h>

#include "backend_private.h"

/* Ranges of parameters to query.  The library refuses those that it does not know. */
static const struct {
	uint32_t first, last;
} platform_params[] = { { 0x0900, 0x0907 }, { 0x0920, 0x0921 } },
  device_params[] = { { 0x1000, 0x1079 }, { 0x4000, 0x4010 } };

struct writer {
	uint8_t *bytes;
	uint32_t used, most;
};

static void put(struct writer *writer, uint32_t kind, uint32_t device, uint32_t param,
		const void *value, size_t bytes)
{
	struct vgpu_cl_information head = {
		.kind = kind,
		.device = device,
		.param = param,
		.bytes = bytes,
	};
	uint32_t all = sizeof(head) + vgpu_padded(bytes);

	if (all > writer->most - writer->used)
		return;
	memcpy(writer->bytes + writer->used, &head, sizeof(head));
	memset(writer->bytes + writer->used + sizeof(head), 0, all - sizeof(head));
	memcpy(writer->bytes + writer->used + sizeof(head), value, bytes);
	writer->used += all;
}

bool opencl_is_handle_of_device(cl_device_info param)
{
	switch (param) {
	case CL_DEVICE_PLATFORM:
	case CL_DEVICE_PARENT_DEVICE:
	case CL_DEVICE_PARTITION_MAX_SUB_DEVICES:
	case CL_DEVICE_PARTITION_PROPERTIES:
	case CL_DEVICE_PARTITION_AFFINITY_DOMAIN:
	case CL_DEVICE_PARTITION_TYPE:
	case CL_DEVICE_REFERENCE_COUNT:
		return true;
	}
	return false;
}

/* Reports the slice's memory instead of the device's, and no built-in kernels. */
void opencl_adjust_device(struct vgpu_backend *backend, cl_device_info param, void *value,
			  size_t *bytes)
{
	cl_ulong number, most;

	switch (param) {
	case CL_DEVICE_GLOBAL_MEM_SIZE:
	case CL_DEVICE_MAX_MEM_ALLOC_SIZE:
		if (*bytes != sizeof(number))
			return;
		memcpy(&number, value, sizeof(number));
		/*
		 * A single object gets at most a quarter of the memory: programs assume that two
		 * objects of the maximum size fit, and contexts use some memory, too.
		 */
		most = backend->memory_bytes / (param == CL_DEVICE_GLOBAL_MEM_SIZE ? 1 : 4);
		if (number > most)
			number = most;
		memcpy(value, &number, sizeof(number));
		return;
	case CL_DEVICE_BUILT_IN_KERNELS:
		*(char *)value = '\0';
		*bytes = 1;
		return;
	case CL_DEVICE_BUILT_IN_KERNELS_WITH_VERSION:
		*bytes = 0;
		return;
	}
}

static void put_platform(struct vgpu_backend *backend, struct writer *writer, void *room,
			 size_t most)
{
	size_t bytes;

	for (size_t i = 0; i < sizeof(platform_params) / sizeof(*platform_params); i++)
		for (uint32_t p = platform_params[i].first; p <= platform_params[i].last; p++)
			if (!backend->library->clGetPlatformInfo(backend->platform, p, most, room,
								 &bytes) && bytes <= most)
				put(writer, VGPU_CL_INFORMATION_KIND_PLATFORM, 0, p, room, bytes);
}

static void put_device(struct vgpu_backend *backend, struct writer *writer, uint32_t device,
		       void *room, size_t most)
{
	size_t bytes;

	for (size_t i = 0; i < sizeof(device_params) / sizeof(*device_params); i++) {
		for (uint32_t p = device_params[i].first; p <= device_params[i].last; p++) {
			if (opencl_is_handle_of_device(p) ||
			    backend->library->clGetDeviceInfo(backend->devices[device], p, most,
							      room, &bytes) || bytes > most)
				continue;
			opencl_adjust_device(backend, p, room, &bytes);
			put(writer, VGPU_CL_INFORMATION_KIND_DEVICE, device, p, room, bytes);
		}
	}
}

bool opencl_hello(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	struct vgpu_cl_hello_answer_parts parts;
	struct vgpu_cl_hello_view view;
	struct writer writer = { .most = 60 << 10 };
	const size_t most = 32 << 10;
	cl_int error = CL_SUCCESS;
	void *room;

	if (!vgpu_cl_decode_hello(message, message->bytes, backend->bulk_bytes, &view))
		return false;
	writer.bytes = malloc(writer.most);
	room = malloc(most);
	if (view.message->version != VGPU_CL_VERSION) {
		error = CL_INVALID_VALUE;
	} else if (!writer.bytes || !room) {
		error = CL_OUT_OF_HOST_MEMORY;
	} else {
		put_platform(backend, &writer, room, most);
		for (uint32_t i = 0; i < backend->device_count; i++)
			put_device(backend, &writer, i, room, most);
	}
	vgpu_cl_place_hello_answer(backend->answer, writer.used, &parts);
	parts.message->version = VGPU_CL_VERSION;
	parts.message->device_count = backend->device_count;
	if (writer.used)
		memcpy(parts.information, writer.bytes, writer.used);
	free(writer.bytes);
	free(room);
	opencl_answer_placed(backend, message, error);
	return true;
}
