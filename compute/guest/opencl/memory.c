// SPDX-License-Identifier: Apache-2.0
/* Buffers and sub-buffers, and the common part of all memory objects. */
#include "guest/opencl/memory.h"

/* Ordinary buffers below this size gain nothing from storage in the window. */
#define STORED_BYTES_MIN (64u << 10)
/* Up to this size, creation can fail only for lack of memory, so it does not wait for an answer. */
#define UNANSWERED_BYTES_MAX (1u << 20)

/* A RELEASE request.  When it is answered, the child's library no longer uses the storage @bulk. */
struct release {
	struct vgpu_pending pending;
	struct vgpu_bulk *bulk;
};

static bool release_reply(struct vgpu_pending *pending, const struct vgpu_message *message, uint32_t bytes)
{
	struct release *release = (struct release *)pending;

	(void)message;
	(void)bytes;
	vgpu_bulk_free(release->bulk);
	free(release);
	return true;
}

/*
 * Releases a memory object at the child, and frees its storage after the answer.  If there is no memory for the
 * record, the storage is never reused.
 */
static void release_storage(uint32_t handle, struct vgpu_bulk *bulk)
{
	struct release *release = calloc(1, sizeof(*release));
	struct vgpu_cl_release_parts parts;
	void *at = vgpu_send_begin((uint32_t)vgpu_cl_bytes_of_release());
	uint64_t call;

	if (!at) {
		free(release);
		return;
	}
	vgpu_cl_place_release(at, &parts);
	parts.message->kind = VGPU_CL_KIND_MEMORY;
	parts.message->handle = handle;
	if (release) {
		release->pending.reply = release_reply;
		release->bulk = bulk;
		call = vgpu_expect(&release->pending);
		parts.message->header.call = call;
		if (!call)
			free(release);
	}
	vgpu_send_commit();
}

void memory_end(struct _cl_mem *memory)
{
	struct mapping *mapping, *next;

	for (mapping = memory->mappings; mapping; mapping = next) {
		next = mapping->next;
		/*
		 * The child still knows the handle of a mapping that was never unmapped, so the handle is not reused.
		 */
		vgpu_bulk_free(mapping->bulk);
		free(mapping->heap);
		free(mapping);
	}
	if (memory->storage)
		release_storage(memory->object.handle, memory->storage);
	else
		send_release(VGPU_CL_KIND_MEMORY, memory->object.handle);
	free(memory->spare);
	free(memory->properties);
	pthread_mutex_destroy(&memory->lock);
	object_drop(memory->parent);
	object_drop(memory->context);
}

struct _cl_mem *memory_new(cl_context context, cl_mem parent, cl_mem_object_type type, cl_mem_flags flags)
{
	struct _cl_mem *memory = object_new(VGPU_CL_KIND_MEMORY);

	if (!memory)
		return NULL;
	memory->context = context;
	memory->parent = parent;
	memory->type = type;
	memory->flags = flags;
	pthread_mutex_init(&memory->lock, NULL);
	object_hold(context);
	object_hold(parent);
	return memory;
}

cl_int check_memory_flags(cl_mem_flags flags, const void *host_pointer)
{
	const cl_mem_flags access = flags & CARRIED_FLAGS, host = flags & HOST_ACCESS_FLAGS;

	if ((flags & ~(cl_mem_flags)(CARRIED_FLAGS | HOST_ACCESS_FLAGS | HOST_POINTER_FLAGS)) || (access & (access - 1)) ||
	    (host & (host - 1)))
		return CL_INVALID_VALUE;
	if ((flags & CL_MEM_USE_HOST_PTR) && (flags & (CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR)))
		return CL_INVALID_VALUE;
	if (!host_pointer != !(flags & (CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR)))
		return CL_INVALID_HOST_PTR;
	return CL_SUCCESS;
}

cl_int check_buffer(cl_command_queue queue, cl_mem memory)
{
	if (!object_check(memory, VGPU_CL_KIND_MEMORY) || memory->type != CL_MEM_OBJECT_BUFFER)
		return CL_INVALID_MEM_OBJECT;
	return memory->context == queue->context ? CL_SUCCESS : CL_INVALID_CONTEXT;
}

bool context_computes_in_place(cl_context context)
{
	for (cl_uint i = 0; i < context->device_count; i++)
		if (!(context->devices[i]->type & CL_DEVICE_TYPE_CPU))
			return false;
	return true;
}

/*
 * Allocates storage in the window if the program asks for host memory, or if the accelerator uses the host's memory.
 */
static void choose_storage(struct _cl_mem *memory)
{
	bool asked = memory->flags & CL_MEM_ALLOC_HOST_PTR;
	uint64_t total = vgpu_bulk_total();

	if (memory->flags & CL_MEM_USE_HOST_PTR)
		return;
	if (!asked && (memory->bytes < STORED_BYTES_MIN || !context_computes_in_place(memory->context)))
		return;
	memory->storage = vgpu_bulk_allocate(memory->bytes, asked ? total / 8 : total / 2);
	if (memory->storage) {
		memory->stored = true;
		memory->stored_offset = memory->storage->offset;
	}
}

/* Sends the creation of a buffer.  @contents is in the message, in the bulk area or absent. */
static cl_int send_create(struct _cl_mem *memory, const struct blob *contents)
{
	uint64_t inline_bytes = contents ? contents->inline_bytes : 0;
	struct vgpu_cl_create_buffer_parts parts;
	struct vgpu_cl_create_buffer *m;
	struct call call;
	cl_int status = CL_SUCCESS;
	void *at = call_begin(&call, vgpu_cl_bytes_of_create_buffer(inline_bytes));

	if (!at)
		return call.status;
	m = vgpu_cl_place_create_buffer(at, inline_bytes, &parts);
	m->memory = memory->object.handle;
	m->context = memory->context->object.handle;
	m->flags = memory->flags & CARRIED_FLAGS;
	m->bytes = memory->bytes;
	m->storage_offset = memory->storage ? memory->storage->offset : VGPU_CL_ABSENT;
	m->storage_bytes = memory->storage ? memory->bytes : 0;
	m->contents_offset = contents ? contents->offset : VGPU_CL_ABSENT;
	m->contents_bytes = contents ? contents->bytes : 0;
	if (inline_bytes)
		memcpy(parts.contents, contents->data, inline_bytes);
	if (memory->bytes <= UNANSWERED_BYTES_MAX && (!contents || inline_bytes)) {
		vgpu_send_commit();
	} else {
		status = call_wait(&call, &m->header);
		call_end(&call);
	}
	return status;
}

/*
 * Writes the contents of a new buffer in pieces, for contents that fit neither into the message nor into the bulk
 * area.
 */
static cl_int write_contents(cl_mem memory, const void *contents)
{
	struct transfer transfer = {
		.memory = memory, .write = true, .region = { memory->bytes, 1, 1 }, .unit = 1,
		.host = (uint8_t *)contents, .host_row = memory->bytes, .host_slice = memory->bytes,
	};
	cl_int status;
	cl_command_queue queue = context_copy_queue(memory->context, &status);

	if (!status)
		status = transfer_run(&transfer, queue, true, CL_COMMAND_WRITE_BUFFER, 0, NULL, NULL);
	return status ? status : vgpu_clFinish(queue);
}

static cl_int create_buffer(struct _cl_mem *memory, const void *contents)
{
	struct blob blob;
	cl_int status;

	choose_storage(memory);
	if (contents && memory->stored) {
		memcpy(vgpu_bulk_address(memory->stored_offset), contents, memory->bytes);
		contents = NULL;
	}
	if (!contents)
		return send_create(memory, NULL);
	if (blob_place(&blob, contents, memory->bytes)) {
		status = send_create(memory, &blob);
		blob_end(&blob);
		return status;
	}
	status = send_create(memory, NULL);
	return status ? status : write_contents(memory, contents);
}

/* No properties are accepted: they would belong to extensions that are not offered. */
static cl_int keep_properties(struct _cl_mem *memory, const cl_mem_properties *properties)
{
	if (!properties)
		return CL_SUCCESS;
	if (properties[0])
		return CL_INVALID_PROPERTY;
	memory->properties = calloc(1, sizeof(*properties));
	if (!memory->properties)
		return CL_OUT_OF_HOST_MEMORY;
	memory->properties_bytes = sizeof(*properties);
	return CL_SUCCESS;
}

API(cl_mem, clCreateBufferWithProperties, cl_context context, const cl_mem_properties *properties, cl_mem_flags flags,
    size_t bytes, void *host_pointer, cl_int *error)
{
	struct _cl_mem *memory = NULL;
	cl_int status = CL_SUCCESS;
	uint64_t most = 0;

	if (!object_check(context, VGPU_CL_KIND_CONTEXT))
		status = CL_INVALID_CONTEXT;
	else
		status = check_memory_flags(flags, host_pointer);
	for (cl_uint i = 0; !status && i < context->device_count; i++) {
		uint64_t own = context->devices[i]->allocation_bytes;

		most = own > most ? own : most;
	}
	if (!status && (!bytes || bytes > most))
		status = CL_INVALID_BUFFER_SIZE;
	if (!(flags & (CL_MEM_READ_WRITE | CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY)))
		flags |= CL_MEM_READ_WRITE;
	if (!status && !(memory = memory_new(context, NULL, CL_MEM_OBJECT_BUFFER, flags)))
		status = CL_OUT_OF_HOST_MEMORY;
	if (!status) {
		memory->bytes = bytes;
		memory->host_pointer = flags & CL_MEM_USE_HOST_PTR ? host_pointer : NULL;
		status = keep_properties(memory, properties);
		if (!status)
			status = create_buffer(memory, host_pointer);
		if (status) {
			object_drop(memory);
			vgpu_cl_bury();
			memory = NULL;
		}
	}
	if (error)
		*error = status;
	return memory;
}

API(cl_mem, clCreateBuffer, cl_context context, cl_mem_flags flags, size_t bytes, void *host_pointer, cl_int *error)
{
	return vgpu_clCreateBufferWithProperties(context, NULL, flags, bytes, host_pointer, error);
}

/*
 * A sub-buffer inherits access flags that it does not set.  Returns CL_INVALID_VALUE if its flags conflict with its
 * parent's.
 */
static cl_int inherit(cl_mem_flags parent, cl_mem_flags *flags)
{
	const cl_mem_flags access = CARRIED_FLAGS, host = HOST_ACCESS_FLAGS;

	if ((*flags & ~(access | host)) || (*flags & access & ((*flags & access) - 1)) ||
	    (*flags & host & ((*flags & host) - 1)))
		return CL_INVALID_VALUE;
	if ((parent & CL_MEM_WRITE_ONLY && *flags & (CL_MEM_READ_WRITE | CL_MEM_READ_ONLY)) ||
	    (parent & CL_MEM_READ_ONLY && *flags & (CL_MEM_READ_WRITE | CL_MEM_WRITE_ONLY)) ||
	    (parent & CL_MEM_HOST_WRITE_ONLY && *flags & CL_MEM_HOST_READ_ONLY) ||
	    (parent & CL_MEM_HOST_READ_ONLY && *flags & CL_MEM_HOST_WRITE_ONLY) ||
	    (parent & CL_MEM_HOST_NO_ACCESS && *flags & (CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_WRITE_ONLY)))
		return CL_INVALID_VALUE;
	if (!(*flags & access))
		*flags |= parent & access;
	if (!(*flags & host))
		*flags |= parent & host;
	*flags |= parent & HOST_POINTER_FLAGS;
	return CL_SUCCESS;
}

static cl_int check_region(cl_mem parent, const cl_buffer_region *region)
{
	bool aligned = false;

	if (!region)
		return CL_INVALID_VALUE;
	if (!region->size)
		return CL_INVALID_BUFFER_SIZE;
	if (region->origin > parent->bytes || region->size > parent->bytes - region->origin)
		return CL_INVALID_VALUE;
	for (cl_uint i = 0; i < parent->context->device_count; i++) {
		uint64_t bits = parent->context->devices[i]->alignment_bits;

		aligned |= bits < 16 || region->origin % (bits / 8) == 0;
	}
	return aligned ? CL_SUCCESS : CL_MISALIGNED_SUB_BUFFER_OFFSET;
}

static cl_int create_sub_buffer(cl_mem parent, cl_mem_flags flags, const cl_buffer_region *region, cl_mem *result)
{
	struct vgpu_cl_create_sub_buffer_parts parts;
	struct _cl_mem *memory;
	void *at;

	memory = memory_new(parent->context, parent, CL_MEM_OBJECT_BUFFER, flags);
	if (!memory)
		return CL_OUT_OF_HOST_MEMORY;
	memory->bytes = region->size;
	memory->origin = region->origin;
	memory->stored = parent->stored;
	memory->stored_offset = parent->stored_offset + region->origin;
	if (parent->host_pointer)
		memory->host_pointer = (uint8_t *)parent->host_pointer + region->origin;
	at = vgpu_send_begin((uint32_t)vgpu_cl_bytes_of_create_sub_buffer());
	if (!at) {
		object_drop(memory);
		vgpu_cl_bury();
		return LOST;
	}
	vgpu_cl_place_create_sub_buffer(at, &parts);
	parts.message->memory = memory->object.handle;
	parts.message->parent = parent->object.handle;
	parts.message->flags = flags & CARRIED_FLAGS;
	parts.message->origin = region->origin;
	parts.message->bytes = region->size;
	vgpu_send_commit();
	*result = memory;
	return CL_SUCCESS;
}

API(cl_mem, clCreateSubBuffer, cl_mem parent, cl_mem_flags flags, cl_buffer_create_type type, const void *region,
    cl_int *error)
{
	cl_mem memory = NULL;
	cl_int status;

	if (!object_check(parent, VGPU_CL_KIND_MEMORY) || parent->type != CL_MEM_OBJECT_BUFFER || parent->parent)
		status = CL_INVALID_MEM_OBJECT;
	else if (type != CL_BUFFER_CREATE_TYPE_REGION)
		status = CL_INVALID_VALUE;
	else if (!(status = inherit(parent->flags, &flags)) && !(status = check_region(parent, region)))
		status = create_sub_buffer(parent, flags, region, &memory);
	if (error)
		*error = status;
	return memory;
}

API(cl_int, clRetainMemObject, cl_mem memory)
{
	return object_retain(memory, VGPU_CL_KIND_MEMORY, CL_INVALID_MEM_OBJECT);
}

static void last_reference(void *object)
{
	struct _cl_mem *memory = object;
	struct end_callback *end, *next;

	for (end = memory->ends; end; end = next) {
		next = end->next;
		((void (CL_CALLBACK *)(cl_mem, void *))end->function)(memory, end->user);
		free(end);
	}
	memory->ends = NULL;
}

API(cl_int, clReleaseMemObject, cl_mem memory)
{
	return object_release(memory, VGPU_CL_KIND_MEMORY, CL_INVALID_MEM_OBJECT, last_reference);
}

API(cl_int, clSetMemObjectDestructorCallback, cl_mem memory, void (CL_CALLBACK *function)(cl_mem, void *), void *user)
{
	if (!object_check(memory, VGPU_CL_KIND_MEMORY))
		return CL_INVALID_MEM_OBJECT;
	return end_callback_add(&memory->ends, &memory->lock, (void *)function, user);
}

API(cl_int, clGetMemObjectInfo, cl_mem memory, cl_mem_info param, size_t room, void *target, size_t *returned)
{
	if (!object_check(memory, VGPU_CL_KIND_MEMORY))
		return CL_INVALID_MEM_OBJECT;
	switch (param) {
	case CL_MEM_TYPE:
		GIVE(cl_mem_object_type, memory->type);
	case CL_MEM_FLAGS:
		GIVE(cl_mem_flags, memory->flags);
	case CL_MEM_SIZE:
		GIVE(size_t, memory->bytes);
	case CL_MEM_HOST_PTR:
		GIVE(void *, memory->host_pointer);
	case CL_MEM_MAP_COUNT:
		GIVE(cl_uint, memory->map_count);
	case CL_MEM_REFERENCE_COUNT:
		GIVE(cl_uint, memory->object.references);
	case CL_MEM_CONTEXT:
		GIVE(cl_context, memory->context);
	case CL_MEM_ASSOCIATED_MEMOBJECT:
		GIVE(cl_mem, memory->parent);
	case CL_MEM_OFFSET:
		GIVE(size_t, memory->origin);
	case CL_MEM_USES_SVM_POINTER:
		GIVE(cl_bool, CL_FALSE);
	case CL_MEM_PROPERTIES:
		return give(memory->properties, memory->properties_bytes, room, target, returned);
	}
	return CL_INVALID_VALUE;
}
