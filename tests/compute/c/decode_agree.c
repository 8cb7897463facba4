// SPDX-License-Identifier: Apache-2.0
/* Decoders accept the messages that encoders produce, and refuse each of them with any single error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opencl_decode.h"
#include "opencl_encode.h"

#define BULK_BYTES (1u << 20)

#define EXPECT(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition); \
			exit(1); \
		} \
	} while (0)

/* Decodes a copy whose allocation is exactly as long as the message. */
#define GOOD(name, at) ({ \
	struct vgpu_cl_##name##_view view_; \
	uint32_t bytes_ = ((struct vgpu_message *)(at))->bytes; \
	void *copy_ = malloc(bytes_); \
	bool good_; \
	memcpy(copy_, at, bytes_); \
	good_ = vgpu_cl_decode_##name(copy_, bytes_, BULK_BYTES, &view_); \
	EXPECT(good_ == vgpu_cl_check_request(copy_, bytes_, BULK_BYTES)); \
	free(copy_); \
	good_; \
})

/* Sets a field to a wrong value, expects a refusal, and restores the field. */
#define WRONG(name, at, field, value) \
	do { \
		__typeof__(field) before_ = field; \
		field = value; \
		EXPECT(!GOOD(name, at)); \
		field = before_; \
		EXPECT(GOOD(name, at)); \
	} while (0)

static uint64_t space[VGPU_MESSAGE_BYTES / 8];

static void launch(void)
{
	struct vgpu_cl_launch_parts parts;
	struct vgpu_cl_launch_view view;
	struct vgpu_cl_launch *m = vgpu_cl_place_launch(space, 3, 2, 10, &parts);

	m->queue = 1;
	m->kernel = 2;
	for (int i = 0; i < 3; i++)
		parts.waits[i] = 5 + (uint32_t)i;
	memset(parts.arguments, 0, 2 * sizeof(*parts.arguments));
	memcpy(parts.data, "0123456789", 10);
	EXPECT(m->header.bytes == 120 + 16 + 32 + 16);
	EXPECT(GOOD(launch, m));
	EXPECT(vgpu_cl_decode_launch(space, m->header.bytes, BULK_BYTES, &view));
	EXPECT(view.waits[2] == 7 && !memcmp(view.data, "0123456789", 10));
	WRONG(launch, m, m->queue, 0);
	WRONG(launch, m, m->queue, VGPU_CL_HANDLES_MAX);
	WRONG(launch, m, m->kernel, 0);
	WRONG(launch, m, m->event, VGPU_CL_HANDLES_MAX);
	WRONG(launch, m, parts.waits[1], 0);
	WRONG(launch, m, parts.waits[1], VGPU_CL_HANDLES_MAX);
	WRONG(launch, m, m->wait_count, 1);
	WRONG(launch, m, m->wait_count, VGPU_CL_WAITS_MAX + 1);
	WRONG(launch, m, m->argument_count, 3);
	WRONG(launch, m, m->data_bytes, 17);
	WRONG(launch, m, m->data_bytes, UINT32_MAX);
	WRONG(launch, m, m->header.flags, 4);
	WRONG(launch, m, m->header.op, VGPU_CL_MARKER);
	m->header.flags = VGPU_CL_NOTIFY | VGPU_CL_PROGRESS;
	EXPECT(GOOD(launch, m));
	EXPECT(!vgpu_cl_decode_launch(space, m->header.bytes - 8, BULK_BYTES, &view));
	EXPECT(!vgpu_cl_decode_launch(space, 8, BULK_BYTES, &view));
}

static void blobs(void)
{
	struct vgpu_cl_write_buffer_parts parts;
	struct vgpu_cl_write_buffer *m = vgpu_cl_place_write_buffer(space, 0, 100, &parts);

	m->queue = m->memory = 1;
	m->source_offset = VGPU_CL_INLINE;
	EXPECT(GOOD(write_buffer, m));
	WRONG(write_buffer, m, m->source_offset, VGPU_CL_ABSENT);
	WRONG(write_buffer, m, m->source_bytes, 200);
	WRONG(write_buffer, m, m->source_bytes, VGPU_CL_INLINE_MAX + 1);
	WRONG(write_buffer, m, m->source_bytes, UINT64_MAX - 7);
	m = vgpu_cl_place_write_buffer(space, 0, 0, &parts);
	m->queue = m->memory = 1;
	m->source_offset = BULK_BYTES - 64;
	m->source_bytes = 64;
	EXPECT(GOOD(write_buffer, m));
	WRONG(write_buffer, m, m->source_bytes, 65);
	WRONG(write_buffer, m, m->source_bytes, UINT64_MAX);
	WRONG(write_buffer, m, m->source_offset, BULK_BYTES + 1);
}

static void storage(void)
{
	struct vgpu_cl_create_buffer_parts parts;
	struct vgpu_cl_create_buffer *m = vgpu_cl_place_create_buffer(space, 0, &parts);

	m->memory = m->context = 1;
	m->storage_offset = m->contents_offset = VGPU_CL_ABSENT;
	EXPECT(GOOD(create_buffer, m));
	WRONG(create_buffer, m, m->storage_offset, VGPU_CL_INLINE);
	WRONG(create_buffer, m, m->storage_bytes, 1);
	WRONG(create_buffer, m, m->contents_bytes, 1);
	WRONG(create_buffer, m, m->memory, 0);
	WRONG(create_buffer, m, m->header.flags, VGPU_CL_NOTIFY);
}

static void others(void)
{
	struct vgpu_cl_release_parts release;
	struct vgpu_cl_create_context_parts context;
	struct vgpu_cl_marker_parts marker;

	vgpu_cl_place_release(space, &release);
	release.message->kind = VGPU_CL_KIND_EVENT;
	release.message->handle = 1;
	WRONG(release, space, release.message->kind, 0);
	WRONG(release, space, release.message->kind, VGPU_CL_KIND_MAPPING + 1);
	vgpu_cl_place_marker(space, 0, &marker);
	marker.message->queue = 1;
	WRONG(marker, space, marker.message->padding1, 1);
	vgpu_cl_place_create_context(space, 2, &context);
	context.message->context = 1;
	context.devices[0] = 0;
	context.devices[1] = 1;
	WRONG(create_context, space, context.devices[1], VGPU_CL_DEVICES_MAX);
	WRONG(create_context, space, context.message->device_count, VGPU_CL_DEVICES_MAX + 1);
}

int main(void)
{
	launch();
	blobs();
	storage();
	others();
	printf("done\n");
	return 0;
}
