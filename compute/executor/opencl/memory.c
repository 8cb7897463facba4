/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers and sub-buffers, which count against the slice's accelerator memory. */
#include <string.h>

#include "memory.h"

#define HOST_FLAGS (CL_MEM_USE_HOST_PTR | CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR)

void opencl_destroy_memory(struct vgpu_backend *backend, struct object *object)
{
	struct memory *memory = (struct memory *)object;
	struct vgpu_message request = { .op = VGPU_CL_RELEASE, .call = memory->release_call };

	if (memory->library)
		backend->library->clReleaseMemObject(memory->library);
	opencl_free_reserved(backend, memory->reserved_bytes);
	if (memory->released)
		backend->released_bytes -= memory->reserved_bytes;
	backend->releases -= memory->answer_release;
	if (memory->answer_release)
		opencl_answer(backend, &request, CL_SUCCESS);
	opencl_unref(backend, memory->parent);
	opencl_unref(backend, memory->context);
}

cl_int opencl_check_memory_flags(uint64_t flags)
{
	return flags & ~(uint64_t)(OPENCL_MEMORY_FLAGS | HOST_FLAGS) ? CL_INVALID_VALUE : CL_SUCCESS;
}

void *opencl_blob(struct vgpu_backend *backend, uint64_t offset, const uint8_t *inline_bytes)
{
	if (offset == VGPU_CL_ABSENT)
		return NULL;
	return offset == VGPU_CL_INLINE ? (void *)inline_bytes : backend->bulk + offset;
}

static cl_int make_buffer(struct vgpu_backend *backend, const struct vgpu_cl_create_buffer *m,
			  const uint8_t *inline_contents, struct memory *memory)
{
	void *storage = opencl_blob(backend, m->storage_offset, NULL);
	void *contents = opencl_blob(backend, m->contents_offset, inline_contents);
	cl_mem_flags flags = m->flags & OPENCL_MEMORY_FLAGS;
	struct context *context;
	cl_int error;

	context = opencl_use(backend, VGPU_CL_KIND_CONTEXT, m->context, &error);
	if (!error)
		error = opencl_check_memory_flags(m->flags);
	if (error)
		return error;
	if (!m->bytes)
		return CL_INVALID_BUFFER_SIZE;
	if ((storage && m->storage_bytes < m->bytes) || (contents && m->contents_bytes != m->bytes))
		return CL_INVALID_HOST_PTR;
	memory->context = opencl_ref(context);
	memory->type = CL_MEM_OBJECT_BUFFER;
	memory->bytes = m->bytes;
	memory->stored = storage;
	if (!storage) {
		if (!opencl_reserve(backend, m->bytes))
			return CL_MEM_OBJECT_ALLOCATION_FAILURE;
		memory->reserved_bytes = m->bytes;
	}
	if (storage && contents)
		memmove(storage, contents, m->bytes);
	if (storage)
		flags |= CL_MEM_USE_HOST_PTR;
	else if (contents)
		flags |= CL_MEM_COPY_HOST_PTR;
	memory->library = backend->library->clCreateBuffer(context->library, flags, m->bytes,
							   storage ? storage : contents, &error);
	return error;
}

bool opencl_create_buffer(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	struct vgpu_cl_create_buffer_view view;
	struct memory *memory;
	cl_int error = CL_OUT_OF_HOST_MEMORY;

	if (!vgpu_cl_decode_create_buffer(message, message->bytes, backend->bulk_bytes, &view))
		return false;
	memory = opencl_new(backend, VGPU_CL_KIND_MEMORY, sizeof(*memory), opencl_destroy_memory);
	if (memory)
		error = make_buffer(backend, view.message, view.contents, memory);
	if (error == CL_MEM_OBJECT_ALLOCATION_FAILURE && opencl_stall(backend)) {
		opencl_unref(backend, memory);
		return true;
	}
	opencl_created(backend, message, VGPU_CL_KIND_MEMORY, view.message->memory, memory, error);
	return true;
}

bool opencl_create_sub_buffer(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	struct vgpu_cl_create_sub_buffer_view view;
	const struct vgpu_cl_create_sub_buffer *m;
	struct memory *parent, *memory = NULL;
	cl_buffer_region region;
	cl_int error;

	if (!vgpu_cl_decode_create_sub_buffer(message, message->bytes, backend->bulk_bytes, &view))
		return false;
	m = view.message;
	parent = opencl_use(backend, VGPU_CL_KIND_MEMORY, m->parent, &error);
	if (parent && (parent->image || parent->parent))
		error = CL_INVALID_MEM_OBJECT;
	else if (parent && (m->origin > parent->bytes || m->bytes > parent->bytes - m->origin))
		error = CL_INVALID_VALUE;
	else if (parent && !m->bytes)
		error = CL_INVALID_BUFFER_SIZE;
	if (!error)
		error = opencl_check_memory_flags(m->flags);
	if (!error)
		memory = opencl_new(backend, VGPU_CL_KIND_MEMORY, sizeof(*memory), opencl_destroy_memory);
	if (memory) {
		memory->parent = opencl_ref(parent);
		memory->context = opencl_ref(parent->context);
		memory->type = CL_MEM_OBJECT_BUFFER;
		memory->bytes = m->bytes;
		memory->origin = m->origin;
		memory->stored = parent->stored;
		region.origin = m->origin;
		region.size = m->bytes;
		memory->library = backend->library->clCreateSubBuffer(
			parent->library, m->flags & OPENCL_MEMORY_FLAGS, CL_BUFFER_CREATE_TYPE_REGION,
			&region, &error);
	}
	opencl_created(backend, message, VGPU_CL_KIND_MEMORY, m->memory, memory, error);
	return true;
}
