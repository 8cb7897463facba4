// SPDX-License-Identifier: Apache-2.0
/* The platform: its start and its queries. */
#include "guest/opencl/context.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct _cl_platform_id vgpu_platform = { { &vgpu_cl_dispatch, KIND_PLATFORM, 0, 1, 1, NULL } };
struct _cl_device_id vgpu_devices[VGPU_CL_DEVICES_MAX];
cl_uint vgpu_device_count;

/* HELLO's answer, and where its records begin. */
static struct vgpu_message *hello;
static const uint8_t *records;
static uint32_t records_bytes;

static const struct vgpu_cl_information *record_at(uint32_t at, uint32_t *next)
{
	const struct vgpu_cl_information *record = (const void *)(records + at);
	uint64_t end;

	if (records_bytes - at < sizeof(*record))
		return NULL;
	end = at + sizeof(*record) + vgpu_padded(record->bytes);
	if (end > records_bytes)
		return NULL;
	*next = (uint32_t)end;
	return record;
}

const void *information(uint32_t kind, uint32_t device, uint32_t param, size_t *bytes)
{
	const struct vgpu_cl_information *record;

	for (uint32_t at = 0, next; (record = record_at(at, &next)); at = next) {
		if (record->kind == kind && record->param == param &&
		    (kind == VGPU_CL_INFORMATION_KIND_PLATFORM || record->device == device)) {
			*bytes = record->bytes;
			return record + 1;
		}
	}
	return NULL;
}

/* Handles replies that belong to no pending record. */
static void other_reply(const struct vgpu_message *message, uint32_t bytes)
{
	struct vgpu_cl_printf_view text;
	struct vgpu_cl_context_news_view news;

	if (message->op == VGPU_CL_PRINTF && vgpu_cl_decode_printf(message, bytes, 0, &text)) {
		fwrite(text.text, 1, text.message->text_bytes, stdout);
		fflush(stdout);
	} else if (message->op == VGPU_CL_CONTEXT_NEWS && vgpu_cl_decode_context_news(message, bytes, 0, &news)) {
		context_news(news.message->context, (const char *)news.text, news.message->text_bytes);
	}
}

static cl_int say_hello(void)
{
	struct vgpu_cl_hello_parts parts;
	struct vgpu_cl_hello_answer_view view;
	struct call call;
	void *at = call_begin(&call, vgpu_cl_bytes_of_hello());
	cl_int status;

	if (!at)
		return call.status;
	vgpu_cl_place_hello(at, &parts);
	parts.message->version = VGPU_CL_VERSION;
	status = call_wait(&call, &parts.message->header);
	if (!vgpu_usable()) {	/* the reason of the loss has been printed */
		call_end(&call);
		return LOST;
	}
	if (status || !call.message || !vgpu_cl_decode_hello_answer(call.message, call.bytes, 0, &view) ||
	    view.message->version != VGPU_CL_VERSION || view.message->device_count > VGPU_CL_DEVICES_MAX) {
		fprintf(stderr, "vgpumgr: the accelerator's process speaks another version of OpenCL's messages\n");
		call_end(&call);
		return CL_PLATFORM_NOT_FOUND_KHR;
	}
	hello = call.message;	/* never freed */
	records = view.information;
	records_bytes = view.message->information_bytes;
	vgpu_device_count = view.message->device_count;
	for (cl_uint i = 0; i < vgpu_device_count; i++) {
		vgpu_devices[i].object = (struct object){ &vgpu_cl_dispatch, KIND_DEVICE, i, 1, 1, NULL };
		vgpu_devices[i].index = i;
		device_start(&vgpu_devices[i]);
	}
	return CL_SUCCESS;
}

static cl_int started = CL_PLATFORM_NOT_FOUND_KHR;

static bool is_set(const char *name)
{
	const char *value = secure_getenv(name);

	return value && *value;
}

/*
 * If there is nothing to connect to, print a message only if OCL_ICD_VENDORS is set, because a
 * user who sets it wants this library.  Otherwise the library may be installed for all programs
 * of a machine, most of which do not use it.
 */
static void say_nothing_found(void)
{
	if (is_set("OCL_ICD_VENDORS") && !is_set("VGPUMGR_SOCKET") && !is_set("VGPUMGR_DEVICE"))
		fprintf(stderr,
			"vgpumgr: VGPUMGR_SOCKET is not set; use vgpumgr run --tenant NAME -- PROGRAM "
			"(in a VM: there is no /dev/vgpu*-compute)\n");
}

static void start(void)
{
	int error = vgpu_start(other_reply);

	if (error == -ENOENT)
		say_nothing_found();
	if (error)
		return;
	objects_start();
	callbacks_prepare();
	started = say_hello();
}

cl_int vgpu_platform_start(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, start);
	return started ? CL_PLATFORM_NOT_FOUND_KHR : CL_SUCCESS;
}

API(cl_int, clGetPlatformIDs, cl_uint count, cl_platform_id *platforms, cl_uint *returned)
{
	cl_int status;

	if ((!count && platforms) || (!platforms && !returned))
		return CL_INVALID_VALUE;
	status = vgpu_platform_start();
	if (returned)
		*returned = status ? 0 : 1;
	if (status)
		return status;
	if (platforms)
		platforms[0] = &vgpu_platform;
	return CL_SUCCESS;
}

API(cl_int, clGetPlatformInfo, cl_platform_id platform, cl_platform_info param, size_t room, void *target,
    size_t *returned)
{
	static const cl_name_version extensions[] = { { CL_MAKE_VERSION(1, 0, 0), "cl_khr_icd" } };
	const void *value;
	size_t bytes;

	if (platform && !object_check(platform, KIND_PLATFORM))
		return CL_INVALID_PLATFORM;
	if (vgpu_platform_start())
		return CL_INVALID_PLATFORM;
	switch (param) {
	case CL_PLATFORM_ICD_SUFFIX_KHR:
		return give_text("VGPU", room, target, returned);
	case CL_PLATFORM_EXTENSIONS:
		return give_text("cl_khr_icd", room, target, returned);
	case CL_PLATFORM_EXTENSIONS_WITH_VERSION:
		if (!information(VGPU_CL_INFORMATION_KIND_PLATFORM, 0, param, &bytes))
			return CL_INVALID_VALUE;
		return give(extensions, sizeof(extensions), room, target, returned);
	case CL_PLATFORM_HOST_TIMER_RESOLUTION:
		GIVE(cl_ulong, 0);
	}
	value = information(VGPU_CL_INFORMATION_KIND_PLATFORM, 0, param, &bytes);
	return value ? give(value, bytes, room, target, returned) : CL_INVALID_VALUE;
}

API(cl_int, clUnloadCompiler, void)
{
	return CL_SUCCESS;
}

API(cl_int, clUnloadPlatformCompiler, cl_platform_id platform)
{
	return object_check(platform, KIND_PLATFORM) ? CL_SUCCESS : CL_INVALID_PLATFORM;
}
