// SPDX-License-Identifier: Apache-2.0
/* Requests with an answer. */
#include "guest/opencl/call.h"

static bool call_reply(struct vgpu_pending *pending, const struct vgpu_message *message, uint32_t bytes)
{
	struct call *call = (struct call *)pending;
	const struct vgpu_cl_answer *answer = (const struct vgpu_cl_answer *)message;

	if (!message) {
		call->status = LOST;
	} else if (message->op != VGPU_CL_ANSWER || bytes < sizeof(*answer)) {
		call->status = CL_OUT_OF_RESOURCES;
	} else {
		call->status = answer->status;
		if (bytes > sizeof(*answer)) {
			call->message = malloc(bytes);
			if (call->message)
				memcpy(call->message, message, bytes);
			else if (!call->status)
				call->status = CL_OUT_OF_HOST_MEMORY;
			call->bytes = call->message ? bytes : 0;
		}
	}
	atomic_store(&call->done, true);
	return true;
}

static bool call_done(void *argument)
{
	return atomic_load(&((struct call *)argument)->done);
}

void *call_begin(struct call *call, uint64_t bytes)
{
	void *at;

	memset(call, 0, sizeof(*call));
	call->pending.reply = call_reply;
	if (bytes > VGPU_MESSAGE_BYTES) {
		call->status = CL_OUT_OF_RESOURCES;
		return NULL;
	}
	at = vgpu_send_begin((uint32_t)bytes);
	if (!at)
		call->status = LOST;
	return at;
}

cl_int call_wait(struct call *call, struct vgpu_message *request)
{
	/* The child may write to the request, so use only this local copy of the number. */
	uint64_t number = vgpu_expect(&call->pending);

	request->call = number;
	if (!number) {
		vgpu_send_cancel();
		return call->status = CL_OUT_OF_RESOURCES;
	}
	vgpu_send_commit();
	if (!vgpu_wait(call_done, call))
		call->status = LOST;
	vgpu_cl_bury();
	return call->status;
}

void call_end(struct call *call)
{
	free(call->message);
	call->message = NULL;
}

void send_release(uint32_t kind, uint32_t handle)
{
	struct vgpu_cl_release_parts parts;
	void *at = vgpu_send_begin((uint32_t)vgpu_cl_bytes_of_release());

	if (!at)
		return;
	vgpu_cl_place_release(at, &parts);
	parts.message->kind = kind;
	parts.message->handle = handle;
	vgpu_send_commit();
}

bool blob_place(struct blob *blob, const void *data, uint64_t bytes)
{
	memset(blob, 0, sizeof(*blob));
	blob->data = data;
	blob->bytes = bytes;
	if (bytes <= VGPU_CL_INLINE_MAX / 2) {
		blob->inline_bytes = bytes;
		blob->offset = VGPU_CL_INLINE;
		return true;
	}
	blob->bulk = vgpu_bulk_allocate(bytes, 0);
	if (!blob->bulk)
		return false;
	blob->offset = blob->bulk->offset;
	memcpy(vgpu_bulk_address(blob->offset), data, bytes);
	return true;
}

void blob_end(struct blob *blob)
{
	vgpu_bulk_free(blob->bulk);
	blob->bulk = NULL;
}

cl_int give(const void *value, size_t bytes, size_t room, void *target, size_t *returned)
{
	if (target && room < bytes)
		return CL_INVALID_VALUE;
	if (target && bytes)
		memcpy(target, value, bytes);
	if (returned)
		*returned = bytes;
	return CL_SUCCESS;
}

/*
 * Sends one GET.  The value is returned in the bulk area if there is @bulk, or else in the
 * answer.
 */
static cl_int query_once(const struct vgpu_cl_get *fields, struct vgpu_bulk *bulk, void **value, size_t *bytes)
{
	struct vgpu_cl_get_parts parts;
	struct vgpu_cl_get_answer_view view;
	struct call call;
	cl_int status;
	void *at = call_begin(&call, vgpu_cl_bytes_of_get());

	if (!at)
		return call.status;
	vgpu_cl_place_get(at, &parts);
	memcpy((uint8_t *)parts.message + sizeof(struct vgpu_message),
	       (const uint8_t *)fields + sizeof(struct vgpu_message), sizeof(*fields) - sizeof(struct vgpu_message));
	parts.message->value_offset = bulk ? bulk->offset : VGPU_CL_INLINE;
	parts.message->value_bytes = bulk ? bulk->bytes : VGPU_CL_INLINE_MAX;
	status = call_wait(&call, &parts.message->header);
	if (!status && !(call.message && vgpu_cl_decode_get_answer(call.message, call.bytes, 0, &view)))
		status = CL_OUT_OF_RESOURCES;
	if (!status) {
		size_t there = view.message->value_bytes;
		const void *from = view.value;

		*bytes = view.message->bytes;
		if (bulk) {
			there = *bytes < bulk->bytes ? *bytes : bulk->bytes;
			from = vgpu_bulk_address(bulk->offset);
		}
		*value = there == *bytes ? malloc(there + 1) : NULL;
		if (*value)
			memcpy(*value, from, there);
		else if (there == *bytes)
			status = CL_OUT_OF_HOST_MEMORY;
	}
	call_end(&call);
	return status;
}

cl_int query(uint32_t query, uint32_t handle, uint32_t param, uint32_t device, uint32_t index, const uint64_t *input,
	     uint32_t input_count, void **value, size_t *bytes)
{
	struct vgpu_cl_get fields = {
		.query = query, .handle = handle, .param = param, .device = device, .index = index,
		.input_count = input_count,
	};
	struct vgpu_bulk *bulk;
	cl_int status;

	if (input)
		memcpy(fields.input, input, input_count * sizeof(*input));
	*value = NULL;
	status = query_once(&fields, NULL, value, bytes);
	if (status || *value)
		return status;
	/* The value did not fit into the answer. */
	bulk = vgpu_bulk_allocate(*bytes, 0);
	if (!bulk)
		return CL_OUT_OF_HOST_MEMORY;
	status = query_once(&fields, bulk, value, bytes);
	vgpu_bulk_free(bulk);
	return !status && !*value ? CL_OUT_OF_RESOURCES : status;
}
