/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks a command once, when it arrives: decodes it, finds its objects by their handles, checks
 * the numbers that the library would trust, and estimates its duration.  Checks that the library
 * makes itself are left to the library.
 */
#include <string.h>

#include "resolve.h"

/* Initial estimate for copies. */
#define COPY_NS			2000ull
#define COPY_BYTES_PER_NS	4ull

uint32_t opencl_objects_of(const struct vgpu_message *message)
{
	switch (message->op) {
	case VGPU_CL_LAUNCH: {
		const struct vgpu_cl_launch *m = (const void *)message;

		if (message->bytes < sizeof(*m) || m->argument_count > VGPU_CL_ARGUMENTS_MAX)
			return 0;
		return 1 + m->argument_count;
	}
	case VGPU_CL_MIGRATE: {
		const struct vgpu_cl_migrate *m = (const void *)message;

		if (message->bytes < sizeof(*m) || m->memory_count > 1024)
			return 0;
		return m->memory_count;
	}
	case VGPU_CL_MARKER:
	case VGPU_CL_BARRIER:
	case VGPU_CL_FINISH:
		return 0;
	}
	return 2;
}

static void expect(struct vgpu_backend *backend, struct command *command, uint32_t id,
		   uint64_t guess_ns)
{
	struct duration *duration = opencl_duration(backend, id);

	command->kernel_id = id;
	command->mean_ns = duration->samples || !guess_ns ? duration->mean_ns : guess_ns;
	command->bound_ns = duration->samples || !guess_ns ? duration->longest_ns : guess_ns;
}

static uint32_t log2_of(uint64_t value)
{
	return value ? 63 - __builtin_clzll(value) : 0;
}

void opencl_expect_copy(struct vgpu_backend *backend, struct command *command, uint64_t bytes)
{
	expect(backend, command, (uint32_t)command->op << 8 | log2_of(bytes),
	       COPY_NS + bytes / COPY_BYTES_PER_NS);
}

struct memory *opencl_use_memory(struct vgpu_backend *backend, struct command *command,
				 unsigned int at, uint32_t handle, bool image, cl_int *error)
{
	struct memory *memory = opencl_use(backend, VGPU_CL_KIND_MEMORY, handle, error);

	if (memory && memory->image != image) {
		*error = CL_INVALID_MEM_OBJECT;
		return NULL;
	}
	if (memory)
		command->objects[at] = opencl_ref(memory);
	return memory;
}

bool opencl_within(const struct memory *memory, uint64_t offset, uint64_t bytes)
{
	return offset <= memory->bytes && bytes <= memory->bytes - offset;
}

bool opencl_product(const uint64_t region[3], uint64_t factor, uint64_t *result)
{
	return !__builtin_mul_overflow(region[0], region[1], result) &&
	       !__builtin_mul_overflow(*result, region[2], result) &&
	       !__builtin_mul_overflow(*result, factor, result);
}

/* Is a rectangle inside a buffer, with the API's meaning of pitches? */
static bool rectangle_within(const struct memory *memory, const uint64_t origin[3],
			     const uint64_t region[3], uint64_t row_pitch, uint64_t slice_pitch)
{
	uint64_t row, slice, last[3], end;

	if (!region[0] || !region[1] || !region[2])
		return false;
	row = row_pitch ? row_pitch : region[0];
	if (row < region[0] || __builtin_mul_overflow(row, region[1], &slice))
		return false;
	if (slice_pitch && (slice_pitch < slice || slice_pitch % row))
		return false;
	slice = slice_pitch ? slice_pitch : slice;
	for (int i = 0; i < 3; i++)
		if (__builtin_add_overflow(origin[i], region[i] - (i > 0), &last[i]))
			return false;
	return !__builtin_mul_overflow(last[1], row, &last[1]) &&
	       !__builtin_mul_overflow(last[2], slice, &last[2]) &&
	       !__builtin_add_overflow(last[0], last[1], &end) &&
	       !__builtin_add_overflow(end, last[2], &end) && end <= memory->bytes;
}

void *opencl_pointer(struct vgpu_backend *backend, uint64_t offset, const uint8_t *inline_bytes)
{
	return offset == VGPU_CL_INLINE ? (void *)inline_bytes : backend->bulk + offset;
}

static cl_int resolve_argument(struct vgpu_backend *backend, struct command *command,
			       const struct kernel *kernel, uint32_t i,
			       const struct vgpu_cl_argument *argument, uint32_t data_bytes)
{
	uint32_t known = kernel->kinds[i];
	cl_int error = CL_SUCCESS;

	if (known != VGPU_CL_ARGUMENT_KIND_UNKNOWN && known != argument->kind)
		return CL_INVALID_ARG_VALUE;
	switch (argument->kind) {
	case VGPU_CL_ARGUMENT_KIND_VALUE:
		if (argument->bytes <= 8)
			return argument->bytes ? CL_SUCCESS : CL_INVALID_ARG_SIZE;
		return argument->value <= data_bytes &&
			       argument->bytes <= data_bytes - argument->value ?
			       CL_SUCCESS : CL_INVALID_ARG_SIZE;
	case VGPU_CL_ARGUMENT_KIND_LOCAL:
		return argument->bytes ? CL_SUCCESS : CL_INVALID_ARG_SIZE;
	case VGPU_CL_ARGUMENT_KIND_BUFFER:
	case VGPU_CL_ARGUMENT_KIND_IMAGE:
		if (!argument->value)
			return argument->kind == VGPU_CL_ARGUMENT_KIND_BUFFER ?
				       CL_SUCCESS : CL_INVALID_ARG_VALUE;
		if (argument->value >= VGPU_CL_HANDLES_MAX)
			return CL_INVALID_MEM_OBJECT;
		opencl_use_memory(backend, command, 1 + i, (uint32_t)argument->value,
			   argument->kind == VGPU_CL_ARGUMENT_KIND_IMAGE, &error);
		return error;
	case VGPU_CL_ARGUMENT_KIND_SAMPLER:
		if (argument->value >= VGPU_CL_HANDLES_MAX)
			return CL_INVALID_SAMPLER;
		if (opencl_use(backend, VGPU_CL_KIND_SAMPLER, (uint32_t)argument->value, &error))
			command->objects[1 + i] = opencl_ref(
				opencl_find(backend, VGPU_CL_KIND_SAMPLER, argument->value));
		return error;
	}
	return CL_INVALID_ARG_VALUE;
}

/*
 * PoCL counts groups in 32 bits and divides by the truncated number, which can be 0.  So a launch
 * with too many groups is refused.  If PoCL chooses the group size, it may choose 1.
 */
static bool has_few_groups(const struct vgpu_cl_launch *m)
{
	uint64_t groups = 1;

	for (uint32_t i = 0; i < m->dimensions; i++) {
		uint64_t local = m->has & 2 && m->local[i] ? m->local[i] : 1;

		if (__builtin_mul_overflow(groups, m->global[i] / local, &groups))
			return false;
	}
	return groups <= UINT32_MAX;
}

static bool resolve_launch(struct vgpu_backend *backend, struct command *command,
			   const uint32_t **waits, cl_int *error)
{
	struct kernel *kernel;
	uint64_t items = 1;

	DECODE(launch);
	command->payload = (void *)view.arguments;
	kernel = opencl_use(backend, VGPU_CL_KIND_KERNEL, m->kernel, error);
	if (!kernel)
		return true;
	command->objects[0] = opencl_ref(kernel);
	if (m->dimensions < 1 || m->dimensions > 3)
		*error = CL_INVALID_WORK_DIMENSION;
	else if (m->has & ~3u)
		*error = CL_INVALID_VALUE;
	else if (m->argument_count != kernel->argument_count)
		*error = CL_INVALID_KERNEL_ARGS;
	for (uint32_t i = 0; !*error && i < m->argument_count; i++)
		*error = resolve_argument(backend, command, kernel, i, &view.arguments[i],
					  m->data_bytes);
	for (uint32_t i = 0; !*error && i < m->dimensions; i++)
		if (__builtin_mul_overflow(items, m->global[i], &items))
			*error = CL_INVALID_GLOBAL_WORK_SIZE;
	if (!*error && !has_few_groups(m))
		*error = CL_INVALID_GLOBAL_WORK_SIZE;
	if (!*error)
		expect(backend, command,
		       (uint32_t)(kernel->hash >> 32 ^ kernel->hash) + log2_of(items), 0);
	return true;
}

static bool resolve_read_buffer(struct vgpu_backend *backend, struct command *command,
				const uint32_t **waits, cl_int *error)
{
	struct memory *memory;

	DECODE(read_buffer);
	command->payload = opencl_pointer(backend, m->target_offset, NULL);
	memory = opencl_use_memory(backend, command, 0, m->memory, false, error);
	if (memory && (!m->target_bytes || !opencl_within(memory, m->offset, m->target_bytes)))
		*error = CL_INVALID_VALUE;
	opencl_expect_copy(backend, command, m->target_bytes);
	return true;
}

static bool resolve_write_buffer(struct vgpu_backend *backend, struct command *command,
				 const uint32_t **waits, cl_int *error)
{
	struct memory *memory;

	DECODE(write_buffer);
	command->payload = opencl_pointer(backend, m->source_offset, view.source);
	memory = opencl_use_memory(backend, command, 0, m->memory, false, error);
	if (memory && (!m->source_bytes || !opencl_within(memory, m->offset, m->source_bytes)))
		*error = CL_INVALID_VALUE;
	opencl_expect_copy(backend, command, m->source_bytes);
	return true;
}

static bool resolve_read_buffer_rect(struct vgpu_backend *backend, struct command *command,
				     const uint32_t **waits, cl_int *error)
{
	struct memory *memory;
	uint64_t bytes;

	DECODE(read_buffer_rect);
	command->payload = opencl_pointer(backend, m->target_offset, NULL);
	memory = opencl_use_memory(backend, command, 0, m->memory, false, error);
	if (memory && (!opencl_product(m->region, 1, &bytes) || bytes != m->target_bytes ||
		       !rectangle_within(memory, m->origin, m->region, m->row_pitch,
					 m->slice_pitch)))
		*error = CL_INVALID_VALUE;
	opencl_expect_copy(backend, command, m->target_bytes);
	return true;
}

static bool resolve_write_buffer_rect(struct vgpu_backend *backend, struct command *command,
				      const uint32_t **waits, cl_int *error)
{
	struct memory *memory;
	uint64_t bytes;

	DECODE(write_buffer_rect);
	command->payload = opencl_pointer(backend, m->source_offset, view.source);
	memory = opencl_use_memory(backend, command, 0, m->memory, false, error);
	if (memory && (!opencl_product(m->region, 1, &bytes) || bytes != m->source_bytes ||
		       !rectangle_within(memory, m->origin, m->region, m->row_pitch,
					 m->slice_pitch)))
		*error = CL_INVALID_VALUE;
	opencl_expect_copy(backend, command, m->source_bytes);
	return true;
}

static bool resolve_copy_buffer(struct vgpu_backend *backend, struct command *command,
				const uint32_t **waits, cl_int *error)
{
	struct memory *source, *target = NULL;

	DECODE(copy_buffer);
	source = opencl_use_memory(backend, command, 0, m->source, false, error);
	if (source)
		target = opencl_use_memory(backend, command, 1, m->target, false, error);
	if (target && (!m->bytes || !opencl_within(source, m->source_offset, m->bytes) ||
		       !opencl_within(target, m->target_offset, m->bytes)))
		*error = CL_INVALID_VALUE;
	opencl_expect_copy(backend, command, m->bytes);
	return true;
}

static bool resolve_copy_buffer_rect(struct vgpu_backend *backend, struct command *command,
				     const uint32_t **waits, cl_int *error)
{
	struct memory *source, *target = NULL;
	uint64_t bytes = 0;

	DECODE(copy_buffer_rect);
	source = opencl_use_memory(backend, command, 0, m->source, false, error);
	if (source)
		target = opencl_use_memory(backend, command, 1, m->target, false, error);
	if (target && (!opencl_product(m->region, 1, &bytes) ||
		       !rectangle_within(source, m->source_origin, m->region, m->source_row_pitch,
					 m->source_slice_pitch) ||
		       !rectangle_within(target, m->target_origin, m->region, m->target_row_pitch,
					 m->target_slice_pitch)))
		*error = CL_INVALID_VALUE;
	opencl_expect_copy(backend, command, bytes);
	return true;
}

static bool resolve_fill_buffer(struct vgpu_backend *backend, struct command *command,
				const uint32_t **waits, cl_int *error)
{
	struct memory *memory;

	DECODE(fill_buffer);
	command->payload = (void *)view.pattern;
	memory = opencl_use_memory(backend, command, 0, m->memory, false, error);
	if (memory && (!m->pattern_bytes || m->pattern_bytes & (m->pattern_bytes - 1) ||
		       m->bytes % m->pattern_bytes || m->offset % m->pattern_bytes ||
		       !m->bytes || !opencl_within(memory, m->offset, m->bytes)))
		*error = CL_INVALID_VALUE;
	opencl_expect_copy(backend, command, m->bytes);
	return true;
}

static void destroy_mapping(struct vgpu_backend *backend, struct object *object)
{
	opencl_unref(backend, ((struct mapping *)object)->memory);
}

static bool resolve_map_buffer(struct vgpu_backend *backend, struct command *command,
			       const uint32_t **waits, cl_int *error)
{
	struct mapping *mapping;
	struct memory *memory;

	DECODE(map_buffer);
	memory = opencl_use_memory(backend, command, 0, m->memory, false, error);
	if (memory && !memory->stored)
		*error = CL_INVALID_OPERATION;
	else if (memory && (!m->bytes || !opencl_within(memory, m->offset, m->bytes) ||
			    m->flags & ~(uint64_t)(CL_MAP_READ | CL_MAP_WRITE |
						   CL_MAP_WRITE_INVALIDATE_REGION) ||
			    opencl_find(backend, VGPU_CL_KIND_MAPPING, m->mapping)))
		*error = CL_INVALID_VALUE;
	expect(backend, command, (uint32_t)command->op << 8, COPY_NS);
	if (*error)
		return true;
	mapping = opencl_new(backend, VGPU_CL_KIND_MAPPING, sizeof(*mapping), destroy_mapping);
	if (mapping && opencl_enter(backend, m->mapping, &mapping->object)) {
		mapping->memory = opencl_ref(memory);
		command->objects[1] = opencl_ref(mapping);
		return true;
	}
	opencl_unref(backend, mapping);
	*error = CL_OUT_OF_HOST_MEMORY;
	return true;
}

static bool resolve_unmap(struct vgpu_backend *backend, struct command *command,
			  const uint32_t **waits, cl_int *error)
{
	DECODE(unmap);
	/* The command takes over the table's reference. */
	command->objects[1] = opencl_remove(backend, VGPU_CL_KIND_MAPPING, m->mapping);
	if (!command->objects[1])
		*error = CL_INVALID_VALUE;
	expect(backend, command, (uint32_t)command->op << 8, COPY_NS);
	return true;
}

static bool resolve_migrate(struct vgpu_backend *backend, struct command *command,
			    const uint32_t **waits, cl_int *error)
{
	struct memory *memory;

	DECODE(migrate);
	if (!m->memory_count)
		*error = CL_INVALID_VALUE;
	for (uint32_t i = 0; !*error && i < m->memory_count; i++) {
		memory = opencl_use(backend, VGPU_CL_KIND_MEMORY, view.memories[i], error);
		if (memory)
			command->objects[i] = opencl_ref(memory);
	}
	expect(backend, command, (uint32_t)command->op << 8, COPY_NS);
	return true;
}

static bool resolve_marker(struct vgpu_backend *backend, struct command *command,
			   const uint32_t **waits)
{
	switch (command->op) {
	case VGPU_CL_MARKER: {
		DECODE(marker);
		return true;
	}
	case VGPU_CL_BARRIER: {
		DECODE(barrier);
		return true;
	}
	default: {
		DECODE(finish);
		return true;
	}
	}
}

bool opencl_resolve(struct vgpu_backend *backend, struct command *command, const uint32_t **waits,
		    cl_int *error)
{
	switch (command->op) {
	case VGPU_CL_LAUNCH:
		return resolve_launch(backend, command, waits, error);
	case VGPU_CL_READ_BUFFER:
		return resolve_read_buffer(backend, command, waits, error);
	case VGPU_CL_WRITE_BUFFER:
		return resolve_write_buffer(backend, command, waits, error);
	case VGPU_CL_READ_BUFFER_RECT:
		return resolve_read_buffer_rect(backend, command, waits, error);
	case VGPU_CL_WRITE_BUFFER_RECT:
		return resolve_write_buffer_rect(backend, command, waits, error);
	case VGPU_CL_COPY_BUFFER:
		return resolve_copy_buffer(backend, command, waits, error);
	case VGPU_CL_COPY_BUFFER_RECT:
		return resolve_copy_buffer_rect(backend, command, waits, error);
	case VGPU_CL_FILL_BUFFER:
		return resolve_fill_buffer(backend, command, waits, error);
	case VGPU_CL_READ_IMAGE:
	case VGPU_CL_WRITE_IMAGE:
	case VGPU_CL_COPY_IMAGE:
	case VGPU_CL_COPY_IMAGE_TO_BUFFER:
	case VGPU_CL_COPY_BUFFER_TO_IMAGE:
	case VGPU_CL_FILL_IMAGE:
		return opencl_resolve_image(backend, command, waits, error);
	case VGPU_CL_MAP_BUFFER:
		return resolve_map_buffer(backend, command, waits, error);
	case VGPU_CL_UNMAP:
		return resolve_unmap(backend, command, waits, error);
	case VGPU_CL_MIGRATE:
		return resolve_migrate(backend, command, waits, error);
	case VGPU_CL_MARKER:
	case VGPU_CL_BARRIER:
	case VGPU_CL_FINISH:
		return resolve_marker(backend, command, waits);
	}
	return false;
}
