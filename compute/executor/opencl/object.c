/* SPDX-License-Identifier: Apache-2.0 */
/* Functions common to all objects, and answers to requests. */
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "backend_private.h"

cl_int opencl_invalid(enum vgpu_cl_kind kind)
{
	switch (kind) {
	case VGPU_CL_KIND_CONTEXT:
		return CL_INVALID_CONTEXT;
	case VGPU_CL_KIND_QUEUE:
		return CL_INVALID_COMMAND_QUEUE;
	case VGPU_CL_KIND_MEMORY:
		return CL_INVALID_MEM_OBJECT;
	case VGPU_CL_KIND_SAMPLER:
		return CL_INVALID_SAMPLER;
	case VGPU_CL_KIND_PROGRAM:
		return CL_INVALID_PROGRAM;
	case VGPU_CL_KIND_KERNEL:
		return CL_INVALID_KERNEL;
	case VGPU_CL_KIND_EVENT:
		return CL_INVALID_EVENT;
	case VGPU_CL_KIND_MAPPING:
		break;
	}
	return CL_INVALID_VALUE;
}

void *opencl_new(struct vgpu_backend *backend, enum vgpu_cl_kind kind, size_t bytes,
		 void (*destroy)(struct vgpu_backend *, struct object *))
{
	struct object *object = calloc(1, bytes);

	if (!object)
		return NULL;
	object->kind = kind;
	object->references = 1;
	object->serial = ++backend->serial;
	object->destroy = destroy;
	return object;
}

void opencl_unref(struct vgpu_backend *backend, void *pointer)
{
	struct object *object = pointer;

	if (!object || --object->references)
		return;
	if (object->destroy)
		object->destroy(backend, object);
	free(object);
}

void opencl_answer_placed(struct vgpu_backend *backend, const struct vgpu_message *request,
			  cl_int status)
{
	struct vgpu_cl_answer *answer = (struct vgpu_cl_answer *)backend->answer;

	if (!request->call)
		return;
	answer->header.call = request->call;
	answer->status = status;
	answer->answered = request->op;
	backend->services.reply(backend->services.child, &answer->header);
}

void opencl_answer(struct vgpu_backend *backend, const struct vgpu_message *request, cl_int status)
{
	struct vgpu_cl_answer_parts parts;

	vgpu_cl_place_answer(backend->answer, &parts);
	opencl_answer_placed(backend, request, status);
}

void opencl_created(struct vgpu_backend *backend, const struct vgpu_message *request,
		    enum vgpu_cl_kind kind, uint32_t handle, void *pointer, cl_int error)
{
	struct object *object = pointer;

	if (opencl_find(backend, kind, handle))
		error = CL_INVALID_VALUE;
	else if (!object && !error)
		error = CL_OUT_OF_HOST_MEMORY;
	if (error && object) {
		opencl_unref(backend, object);
		object = NULL;
	}
	if (error && !request->call) {
		object = opencl_new(backend, kind, sizeof(*object), NULL);
		if (object)
			object->error = error;
	}
	if (object && !opencl_enter(backend, handle, object)) {
		opencl_unref(backend, object);
		error = error ? error : CL_OUT_OF_HOST_MEMORY;
	}
	opencl_answer(backend, request, error);
}

bool opencl_release(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	struct vgpu_cl_release_view view;
	struct object *object;
	struct memory *memory;

	if (!vgpu_cl_decode_release(message, message->bytes, backend->bulk_bytes, &view))
		return false;
	object = opencl_remove(backend, view.message->kind, view.message->handle);
	if (!object) {
		opencl_answer(backend, message, opencl_invalid(view.message->kind));
		return true;
	}
	/* An object that represents a failure is only a struct object, shorter than its kind. */
	if (object->kind == VGPU_CL_KIND_MEMORY && !object->error) {
		memory = (struct memory *)object;
		memory->answer_release = message->call;
		backend->releases += memory->answer_release;
		memory->release_call = message->call;
		memory->released = true;
		backend->released_bytes += memory->reserved_bytes;
		opencl_unref(backend, object);
		return true;
	}
	opencl_unref(backend, object);
	opencl_answer(backend, message, CL_SUCCESS);
	return true;
}

char *opencl_copy_blob(struct vgpu_backend *backend, uint64_t offset, uint64_t bytes,
		       const uint8_t *inline_bytes, uint64_t most, cl_int *error)
{
	char *copy;

	*error = bytes > most ? CL_INVALID_VALUE : CL_OUT_OF_HOST_MEMORY;
	if (bytes > most)
		return NULL;
	copy = malloc(bytes + 1);
	if (!copy)
		return NULL;
	if (offset == VGPU_CL_INLINE)
		memcpy(copy, inline_bytes, bytes);
	else if (offset != VGPU_CL_ABSENT)
		memcpy(copy, backend->bulk + offset, bytes);
	copy[bytes] = '\0';
	*error = CL_SUCCESS;
	return copy;
}
