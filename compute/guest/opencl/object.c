// SPDX-License-Identifier: Apache-2.0
/* Slabs, references and the end of objects. */
#include "guest/opencl/object.h"

#include <sys/mman.h>

#include "guest/opencl/call.h"

struct slab {
	pthread_mutex_t lock;
	uint8_t *base;
	size_t object_bytes;
	uint32_t most;
	uint32_t used;	/* place 0 is not used, because 0 means no handle */
	struct object *free;
};

#define SLAB(type, count) { PTHREAD_MUTEX_INITIALIZER, NULL, (sizeof(struct type) + 63) & ~63ul, count, 1, NULL }

static struct slab slabs[] = {
	[VGPU_CL_KIND_CONTEXT] = SLAB(_cl_context, 1u << 16),
	[VGPU_CL_KIND_QUEUE] = SLAB(_cl_command_queue, 1u << 16),
	[VGPU_CL_KIND_MEMORY] = SLAB(_cl_mem, 1u << 18),
	[VGPU_CL_KIND_SAMPLER] = SLAB(_cl_sampler, 1u << 16),
	[VGPU_CL_KIND_PROGRAM] = SLAB(_cl_program, 1u << 16),
	[VGPU_CL_KIND_KERNEL] = SLAB(_cl_kernel, 1u << 18),
	[VGPU_CL_KIND_EVENT] = SLAB(_cl_event, VGPU_CL_HANDLES_MAX),
	[VGPU_CL_KIND_MAPPING] = SLAB(object, 1u << 18),
};

static pthread_mutex_t dead_lock = PTHREAD_MUTEX_INITIALIZER;
static struct object *dead;
static atomic_bool any_dead;

/* Returns the lock of an object, or NULL if its kind has none. */
static pthread_mutex_t *lock_of(struct object *object, uint32_t kind)
{
	switch (kind) {
	case VGPU_CL_KIND_CONTEXT:
		return &((struct _cl_context *)object)->lock;
	case VGPU_CL_KIND_MEMORY:
		return &((struct _cl_mem *)object)->lock;
	case VGPU_CL_KIND_PROGRAM:
		return &((struct _cl_program *)object)->lock;
	case VGPU_CL_KIND_EVENT:
		return &((struct _cl_event *)object)->lock;
	default:
		return NULL;
	}
}

/*
 * In the forked copy, locks that other threads held would never be unlocked, so initialise them
 * again.
 */
static void after_fork(void)
{
	for (uint32_t kind = 0; kind < sizeof(slabs) / sizeof(*slabs); kind++) {
		struct slab *slab = &slabs[kind];

		for (uint32_t i = 1; slab->base && i < slab->used; i++) {
			struct object *object = (struct object *)(slab->base + slab->object_bytes * i);
			pthread_mutex_t *lock = lock_of(object, kind);

			if (!lock)
				break;
			pthread_mutex_init(lock, NULL);
		}
	}
}

void objects_start(void)
{
	for (uint32_t kind = 0; kind < sizeof(slabs) / sizeof(*slabs); kind++)
		if (slabs[kind].most)
			vgpu_keep_over_fork(&slabs[kind].lock);
	vgpu_keep_over_fork(&dead_lock);
	pthread_atfork(NULL, NULL, after_fork);
}

/* Returns a cleared place of the slab.  The caller does not hold the slab's lock. */
static struct object *place_new(struct slab *slab)
{
	struct object *object = NULL;

	pthread_mutex_lock(&slab->lock);
	if (!slab->base) {
		void *base = mmap(NULL, slab->object_bytes * slab->most, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		slab->base = base == MAP_FAILED ? NULL : base;
	}
	if (slab->free) {
		object = slab->free;
		slab->free = object->next;
		pthread_mutex_unlock(&slab->lock);
		uint32_t handle = object->handle;

		memset(object, 0, slab->object_bytes);
		object->handle = handle;
		return object;
	}
	if (slab->base && slab->used < slab->most) {
		object = (struct object *)(slab->base + slab->object_bytes * slab->used);
		object->handle = slab->used++;
	}
	pthread_mutex_unlock(&slab->lock);
	return object;
}

static void place_free(struct object *object, uint32_t kind)
{
	struct slab *slab = &slabs[kind];

	object->dispatch = NULL;
	pthread_mutex_lock(&slab->lock);
	object->next = slab->free;
	slab->free = object;
	pthread_mutex_unlock(&slab->lock);
}

bool object_is(const void *pointer, uint32_t kind)
{
	const struct slab *slab = &slabs[kind];
	uintptr_t at = (uintptr_t)pointer, base = (uintptr_t)slab->base;

	if (!base || at < base || at >= base + slab->object_bytes * slab->most || (at - base) % slab->object_bytes)
		return false;
	return object_check(pointer, kind) != NULL;
}

void *object_by_handle(uint32_t kind, uint32_t handle)
{
	const struct slab *slab = &slabs[kind];
	struct object *object;
	unsigned int holds;

	if (!slab->base || !handle || handle >= slab->most)
		return NULL;
	object = (struct object *)(slab->base + slab->object_bytes * handle);
	holds = atomic_load(&object->holds);
	do {
		if (!holds || !object_check(object, kind))
			return NULL;
	} while (!atomic_compare_exchange_weak(&object->holds, &holds, holds + 1));
	return object;
}

void *object_new(uint32_t kind)
{
	struct object *object = place_new(&slabs[kind]);

	if (!object)
		return NULL;
	object->kind = kind;
	object->references = 1;
	object->holds = 1;
	object->dispatch = &vgpu_cl_dispatch;
	return object;
}

void object_discard(void *pointer)
{
	struct object *object = pointer;

	if (object)
		place_free(object, object->kind);
}

uint32_t mapping_handle_new(void)
{
	struct object *object = place_new(&slabs[VGPU_CL_KIND_MAPPING]);

	return object ? object->handle : 0;
}

void mapping_handle_free(uint32_t handle)
{
	struct slab *slab = &slabs[VGPU_CL_KIND_MAPPING];

	if (handle)
		place_free((struct object *)(slab->base + slab->object_bytes * handle), VGPU_CL_KIND_MAPPING);
}

void object_drop(void *pointer)
{
	struct object *object = pointer;

	if (!object || atomic_fetch_sub(&object->holds, 1) != 1)
		return;
	pthread_mutex_lock(&dead_lock);
	object->next = dead;
	dead = object;
	atomic_store(&any_dead, true);
	pthread_mutex_unlock(&dead_lock);
}

cl_int end_callback_add(struct end_callback **ends, pthread_mutex_t *lock, void *function, void *user)
{
	struct end_callback *end;

	if (!function)
		return CL_INVALID_VALUE;
	end = calloc(1, sizeof(*end));
	if (!end)
		return CL_OUT_OF_HOST_MEMORY;
	end->function = function;
	end->user = user;
	pthread_mutex_lock(lock);
	end->next = *ends;
	*ends = end;
	pthread_mutex_unlock(lock);
	return CL_SUCCESS;
}

static void end(struct object *object)
{
	switch (object->kind) {
	case VGPU_CL_KIND_CONTEXT:
		context_end((struct _cl_context *)object);
		break;
	case VGPU_CL_KIND_QUEUE:
		queue_end((struct _cl_command_queue *)object);
		break;
	case VGPU_CL_KIND_MEMORY:
		memory_end((struct _cl_mem *)object);
		break;
	case VGPU_CL_KIND_SAMPLER:
		sampler_end((struct _cl_sampler *)object);
		break;
	case VGPU_CL_KIND_PROGRAM:
		program_end((struct _cl_program *)object);
		break;
	case VGPU_CL_KIND_KERNEL:
		kernel_end((struct _cl_kernel *)object);
		break;
	case VGPU_CL_KIND_EVENT:
		event_end((struct _cl_event *)object);
		break;
	}
}

void vgpu_cl_bury(void)
{
	/*
	 * If the end of an object drops the last hold of another object, the next round buries
	 * that object.
	 */
	while (atomic_load_explicit(&any_dead, memory_order_relaxed)) {
		struct object *object;

		pthread_mutex_lock(&dead_lock);
		object = dead;
		dead = NULL;
		atomic_store(&any_dead, false);
		pthread_mutex_unlock(&dead_lock);
		while (object) {
			struct object *next = object->next;

			object->dispatch = NULL;
			end(object);
			place_free(object, object->kind);
			object = next;
		}
	}
}

cl_int object_retain(void *pointer, uint32_t kind, cl_int error)
{
	struct object *object = object_check(pointer, kind);

	if (!object)
		return error;
	atomic_fetch_add(&object->references, 1);
	return CL_SUCCESS;
}

cl_int object_release(void *pointer, uint32_t kind, cl_int error, void (*at_end)(void *))
{
	struct object *object = object_check(pointer, kind);
	unsigned int before;

	if (!object)
		return error;
	before = atomic_load(&object->references);
	do {
		/*
		 * The program has released the object already, although other objects or
		 * commands may still need it.
		 */
		if (!before)
			return error;
	} while (!atomic_compare_exchange_weak(&object->references, &before, before - 1));
	if (before == 1) {
		if (at_end)
			at_end(object);
		object_drop(object);
		vgpu_cl_bury();
	}
	return CL_SUCCESS;
}
