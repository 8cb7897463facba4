/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects that a program sees, and their lifetime.
 *
 * Objects live in a slab for each kind.  An object's place in its slab is also its handle at the child.  An object
 * has two counters: the program's references, and holds.  There is one hold for all references together, and one
 * for each other object and each reply that needs the object.  An object without holds is dead: the child is told,
 * and its handle is reused.
 *
 * A reply handler may not send (transport.h).  So objects that die there are buried later by vgpu_cl_bury(), which
 * threads call where they may send.
 */
#ifndef VGPU_GUEST_OBJECT_H
#define VGPU_GUEST_OBJECT_H

#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_0_APIS
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#define CL_USE_DEPRECATED_OPENCL_2_0_APIS
#define CL_USE_DEPRECATED_OPENCL_2_1_APIS
#define CL_USE_DEPRECATED_OPENCL_2_2_APIS
#include <CL/cl.h>
#include <CL/cl_ext.h>
#include <CL/cl_icd.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "guest/transport/transport.h"
#include "opencl_decode.h"
#include "opencl_encode.h"
#include "opencl_messages.h"

/* Kinds of objects in addition to enum vgpu_cl_kind. */
#define KIND_PLATFORM 20u
#define KIND_DEVICE 21u

extern cl_icd_dispatch vgpu_cl_dispatch;

/**
 * struct object - the common start of all objects
 * @dispatch: the dispatch table, which the loader reads first; NULL when dead
 * @handle: the number by which the child knows the object
 * @references: the program's references
 * @holds: number of holds, see above
 * @next: next in the list of dead or free objects
 */
struct object {
	cl_icd_dispatch *dispatch;
	uint32_t kind;
	uint32_t handle;
	atomic_uint references;
	atomic_uint holds;
	struct object *next;
};

/* A function to call at an object's end.  The last one registered is called first. */
struct end_callback {
	struct end_callback *next;
	void *function;
	void *user;
};

/* Registers @function in the list @ends, which @lock guards.  Return: a status of OpenCL. */
cl_int end_callback_add(struct end_callback **ends, pthread_mutex_t *lock, void *function, void *user);

struct _cl_platform_id {
	struct object object;
};

/* The values that commands check, kept apart from the records of HELLO's answer. */
struct _cl_device_id {
	struct object object;
	uint32_t index;
	cl_device_type type;
	bool images, non_uniform;
	cl_uint dimensions, alignment_bits;
	size_t item_sizes[3];
	uint64_t allocation_bytes;
	cl_command_queue_properties queue_properties;
};

struct _cl_context {
	struct object object;
	cl_uint device_count;
	cl_device_id devices[VGPU_CL_DEVICES_MAX];
	cl_context_properties *properties;
	size_t properties_bytes;
	void (CL_CALLBACK *notify)(const char *, const void *, size_t, void *);
	void *user;
	pthread_mutex_t lock;	/* guards the members below */
	struct end_callback *ends;
	cl_command_queue copy_queue;	/* for contents of new memory; created on first use */
};

struct _cl_command_queue {
	struct object object;
	cl_context context;
	cl_device_id device;
	cl_command_queue_properties properties;
	cl_queue_properties *list;	/* the properties that the program passed, or NULL */
	size_t list_bytes;
	atomic_uint held;	/* reads through the child's memory (held.c) that have not arrived */
	atomic_uint_fast64_t sent;	/* number of commands sent */
	atomic_uint_fast64_t finished;	/* number of commands that a FINISH has seen end */
	atomic_int unreported;	/* error of this library's own FINISH: the next clFinish() returns it */
};

/* A region that the program has mapped. */
struct mapping {
	struct mapping *next;
	void *address;	/* the address given to the program */
	cl_map_flags flags;
	size_t origin[3], region[3];	/* in bytes or pixels, rows, slices */
	size_t row_pitch, slice_pitch;
	uint32_t handle;	/* the child's handle, 0 if the region is a copy */
	struct vgpu_bulk *bulk;	/* the copy in the bulk area, or NULL */
	void *heap;	/* the copy, if the bulk area has no room */
	size_t heap_bytes;
};

struct _cl_mem {
	struct object object;
	cl_context context;
	cl_mem parent;	/* parent of a sub-buffer, or buffer of an image */
	cl_mem_object_type type;
	cl_mem_flags flags;
	size_t bytes;
	size_t origin;	/* offset in the parent */
	void *host_pointer;	/* CL_MEM_USE_HOST_PTR: the program's memory */
	struct vgpu_bulk *storage;	/* own storage in the window */
	bool stored;	/* this object or its parent has storage in the window, at @stored_offset */
	uint64_t stored_offset;
	bool failed;	/* the child has no such object */
	cl_mem_properties *properties;
	size_t properties_bytes;
	/* Only for images: */
	cl_image_format format;
	cl_image_desc description;
	size_t element_bytes;
	pthread_mutex_t lock;	/* guards the members below */
	struct mapping *mappings;
	cl_uint map_count;
	void *spare;	/* memory for the next mapping's copy: fresh memory is slow */
	size_t spare_bytes;
	struct end_callback *ends;
};

struct _cl_sampler {
	struct object object;
	cl_context context;
	cl_bool normalized;
	cl_addressing_mode addressing;
	cl_filter_mode filter;
	cl_sampler_properties properties[7];
	size_t properties_bytes;
};

struct device_build {
	cl_build_status status;
	cl_program_binary_type binary_type;
	char *options;
	char *log;	/* NULL: fetch it from the child */
};

struct _cl_program {
	struct object object;
	cl_context context;
	cl_uint device_count;
	cl_device_id devices[VGPU_CL_DEVICES_MAX];
	char *source;	/* NULL if not created from source */
	char *kernel_names;	/* of built-in kernels: the names that the program passed */
	bool built_in;
	pthread_mutex_t lock;	/* guards the members below */
	struct device_build builds[VGPU_CL_DEVICES_MAX];
	bool building;
	atomic_uint kernels;	/* number of attached kernels */
};

struct kernel_argument {
	struct vgpu_cl_argument_information information;
	const char *type_name, *name;	/* NULL if unknown */
	bool set;
	struct vgpu_cl_argument value;
	uint8_t *data;	/* a value that is longer than 8 bytes */
	uint32_t data_room;
};

struct _cl_kernel {
	struct object object;
	cl_program program;
	char *name;
	char *text;	/* contains the arguments' names */
	const char *attributes;
	cl_uint argument_count;
	struct kernel_argument *arguments;
	struct vgpu_cl_work_group work_groups[VGPU_CL_DEVICES_MAX];
	uint32_t data_bytes;	/* total of all values that are longer than 8 bytes, each padded */
	cl_uint missing;	/* number of arguments that are not set */
};

struct event_callback {
	struct event_callback *next;
	cl_event event;
	cl_int type;
	cl_int status;	/* to pass to the function */
	void (CL_CALLBACK *function)(cl_event, cl_int, void *);
	void *user;
};

struct _cl_event {
	struct object object;
	struct vgpu_pending pending;
	cl_context context;
	cl_command_queue queue;	/* NULL: a user event */
	cl_command_type type;
	atomic_int status;
	bool released;	/* the child does not know the event, or has been told to forget it */
	cl_ulong times[4];	/* queued, submitted, started, ended; written before @status */
	pthread_mutex_t lock;	/* guards the members below */
	struct event_callback *callbacks;
};

/* Returns the object if the pointer is a living object of the kind, or else NULL. */
static inline void *object_check(const void *pointer, uint32_t kind)
{
	const struct object *object = pointer;

	return object && object->dispatch == &vgpu_cl_dispatch && object->kind == kind ? (void *)pointer : NULL;
}

/* Prepares for forks.  Call it before the first object is created. */
void objects_start(void);

/* Is an arbitrary pointer a living object of the kind?  Reads no memory outside the slab. */
bool object_is(const void *pointer, uint32_t kind);

/* Returns a living object by its handle, with a hold for the caller, or NULL if there is none. */
void *object_by_handle(uint32_t kind, uint32_t handle);

/* Returns a new zeroed object with one reference and one hold, or NULL if there are too many. */
void *object_new(uint32_t kind);

static inline void object_hold(void *pointer)
{
	if (pointer)
		atomic_fetch_add(&((struct object *)pointer)->holds, 1);
}

/* Drops a hold; NULL is ignored.  May be called by any thread and by handlers. */
void object_drop(void *pointer);

/* Tells the child about dead objects, and frees them.  Reply handlers must not call this. */
void vgpu_cl_bury(void);

cl_int object_retain(void *pointer, uint32_t kind, cl_int error);

/*
 * Drops a reference of the program.  For the last reference, calls @at_end and then drops the hold of all
 * references.
 */
cl_int object_release(void *pointer, uint32_t kind, cl_int error, void (*at_end)(void *));

/* Frees an object that the child does not know. */
void object_discard(void *pointer);

/* Returns a new mapping handle, or 0 if there are too many.  Mappings have no struct object. */
uint32_t mapping_handle_new(void);
void mapping_handle_free(uint32_t handle);

/* These clean up an object before its memory is reused.  There is one for each kind, in the kind's file. */
void context_end(struct _cl_context *context);
void queue_end(struct _cl_command_queue *queue);
void memory_end(struct _cl_mem *memory);
void sampler_end(struct _cl_sampler *sampler);
void program_end(struct _cl_program *program);
void kernel_end(struct _cl_kernel *kernel);
void event_end(struct _cl_event *event);

#endif /* VGPU_GUEST_OBJECT_H */
