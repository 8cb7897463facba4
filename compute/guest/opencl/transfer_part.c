// SPDX-License-Identifier: Apache-2.0
/* One command's part of a transfer: its place in the region, its data, its message. */
#include "guest/opencl/transfer_part.h"

static uint64_t part_bytes(const struct transfer *t, const struct part *part)
{
	return (uint64_t)part->region[0] * t->unit * part->region[1] * part->region[2];
}

void part_copy(const struct transfer *t, const struct part *part, uint8_t *dense, bool to_program)
{
	size_t row = part->region[0] * t->unit;

	for (size_t z = 0; z < part->region[2]; z++) {
		uint8_t *host = t->host + (part->origin[2] + z) * t->host_slice + part->origin[1] * t->host_row +
				part->origin[0] * t->unit;
		size_t bytes = row, rows = part->region[1];

		if (t->host_row == row || rows == 1) {	/* the whole slice at once */
			bytes = row * rows;
			rows = 1;
		}
		for (size_t y = 0; y < rows; y++, dense += bytes) {
			if (to_program)
				memcpy(host + y * t->host_row, dense, bytes);
			else
				memcpy(dense, host + y * t->host_row, bytes);
		}
	}
}

void part_next(const struct transfer *t, size_t at[3], uint64_t most, struct part *part)
{
	const size_t *region = t->region;
	uint64_t row = region[0] * t->unit, slice = row * region[1];

	memcpy(part->origin, at, sizeof(part->origin));
	part->region[0] = region[0] - at[0];
	part->region[1] = part->region[2] = 1;
	if (at[0] || row > most) {
		size_t steps = most / t->unit ? most / t->unit : 1;

		if (part->region[0] > steps)
			part->region[0] = steps;
	} else if (at[1] || slice > most) {
		part->region[1] = region[1] - at[1];
		if (part->region[1] > most / row)
			part->region[1] = most / row;
	} else {
		part->region[1] = region[1];
		part->region[2] = region[2] - at[2];
		if (part->region[2] > most / slice)
			part->region[2] = most / slice;
	}
	at[0] += part->region[0];
	if (at[0] < region[0])
		return;
	at[0] = 0;
	at[1] += part->region[1];
	if (at[1] < region[1])
		return;
	at[1] = 0;
	at[2] += part->region[2];
}

/*
 * Writes a piece's command.  @inline_bytes of data follow in the message; if it is 0, the data
 * are in the bulk area.
 */
static void *place(void *at, const struct transfer *t, const struct part *part, uint32_t waits, uint64_t inline_bytes,
		   const struct vgpu_bulk *bulk, uint32_t **wait_list, uint8_t **inline_data)
{
	uint64_t offset = bulk ? bulk->offset : VGPU_CL_INLINE, bytes = part_bytes(t, part);
	size_t origin[3];

	for (int i = 0; i < 3; i++)
		origin[i] = t->origin[i] + part->origin[i];
#define PLACE(name, blob, memory_fields) \
	do { \
		m->memory = t->memory->object.handle; \
		m->blob##_offset = offset; \
		m->blob##_bytes = bytes; \
		memory_fields \
		*wait_list = parts.waits; \
		return m; \
	} while (0)
#define RECT_FIELDS \
	memcpy(m->origin, origin, sizeof(origin)); \
	memcpy(m->region, part->region, sizeof(part->region)); \
	m->row_pitch = t->row_pitch; \
	m->slice_pitch = t->slice_pitch;
#define IMAGE_FIELDS \
	memcpy(m->origin, origin, sizeof(origin)); \
	memcpy(m->region, part->region, sizeof(part->region));
	switch (t->shape * 2 + t->write) {
	case TRANSFER_BUFFER * 2: {
		struct vgpu_cl_read_buffer_parts parts;
		struct vgpu_cl_read_buffer *m = vgpu_cl_place_read_buffer(at, waits, &parts);

		PLACE(read_buffer, target, m->offset = origin[0];);
	}
	case TRANSFER_BUFFER * 2 + 1: {
		struct vgpu_cl_write_buffer_parts parts;
		struct vgpu_cl_write_buffer *m = vgpu_cl_place_write_buffer(at, waits, inline_bytes, &parts);

		*inline_data = parts.source;
		PLACE(write_buffer, source, m->offset = origin[0];);
	}
	case TRANSFER_RECT * 2: {
		struct vgpu_cl_read_buffer_rect_parts parts;
		struct vgpu_cl_read_buffer_rect *m = vgpu_cl_place_read_buffer_rect(at, waits, &parts);

		PLACE(read_buffer_rect, target, RECT_FIELDS);
	}
	case TRANSFER_RECT * 2 + 1: {
		struct vgpu_cl_write_buffer_rect_parts parts;
		struct vgpu_cl_write_buffer_rect *m =
			vgpu_cl_place_write_buffer_rect(at, waits, inline_bytes, &parts);

		*inline_data = parts.source;
		PLACE(write_buffer_rect, source, RECT_FIELDS);
	}
	case TRANSFER_IMAGE * 2: {
		struct vgpu_cl_read_image_parts parts;
		struct vgpu_cl_read_image *m = vgpu_cl_place_read_image(at, waits, &parts);

		PLACE(read_image, target, IMAGE_FIELDS);
	}
	default: {
		struct vgpu_cl_write_image_parts parts;
		struct vgpu_cl_write_image *m = vgpu_cl_place_write_image(at, waits, inline_bytes, &parts);

		*inline_data = parts.source;
		PLACE(write_image, source, IMAGE_FIELDS);
	}
	}
#undef PLACE
#undef RECT_FIELDS
#undef IMAGE_FIELDS
}

static uint64_t message_bytes(const struct transfer *t, uint32_t waits, uint64_t inline_bytes)
{
	switch (t->shape * 2 + t->write) {
	case TRANSFER_BUFFER * 2:
		return vgpu_cl_bytes_of_read_buffer(waits);
	case TRANSFER_BUFFER * 2 + 1:
		return vgpu_cl_bytes_of_write_buffer(waits, inline_bytes);
	case TRANSFER_RECT * 2:
		return vgpu_cl_bytes_of_read_buffer_rect(waits);
	case TRANSFER_RECT * 2 + 1:
		return vgpu_cl_bytes_of_write_buffer_rect(waits, inline_bytes);
	case TRANSFER_IMAGE * 2:
		return vgpu_cl_bytes_of_read_image(waits);
	default:
		return vgpu_cl_bytes_of_write_image(waits, inline_bytes);
	}
}

cl_int part_send(struct command *command, const struct transfer *t, const struct part *part,
		 const struct vgpu_bulk *bulk)
{
	uint64_t inline_bytes = bulk ? 0 : part_bytes(t, part);
	uint8_t *inline_data = NULL;
	uint32_t *waits;
	void *at, *m;

	at = vgpu_send_begin((uint32_t)message_bytes(t, command->wait_count, inline_bytes));
	if (!at)
		return LOST;
	m = place(at, t, part, command->wait_count, inline_bytes, bulk, &waits, &inline_data);
	if (inline_bytes)
		part_copy(t, part, inline_data, false);
	if (!command_fill(command, m, waits)) {
		vgpu_send_cancel();
		return CL_OUT_OF_RESOURCES;
	}
	vgpu_send_commit();
	return CL_SUCCESS;
}
