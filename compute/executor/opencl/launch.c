/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches.  The client sends all arguments of a kernel with each launch.  The library's kernel
 * object keeps the arguments of the last launch, so only arguments that differ are set.  Objects
 * are compared by serial, because the library may reuse a pointer.
 */
#include <stdlib.h>
#include <string.h>

#include "backend_private.h"

static bool same(const struct argument *set, const struct vgpu_cl_argument *argument,
		 const struct object *object, const uint8_t *data)
{
	if (!set->set || set->kind != argument->kind || set->bytes != argument->bytes)
		return false;
	switch (argument->kind) {
	case VGPU_CL_ARGUMENT_KIND_LOCAL:
		return true;
	case VGPU_CL_ARGUMENT_KIND_VALUE:
		if (argument->bytes <= 8)
			return set->value == argument->value;
		return set->data && !memcmp(set->data, data + argument->value, argument->bytes);
	}
	return set->value == (object ? object->serial : 0);
}

static void remember(struct argument *set, const struct vgpu_cl_argument *argument,
		     const struct object *object, const uint8_t *data)
{
	free(set->data);
	*set = (struct argument){
		.kind = argument->kind,
		.bytes = argument->bytes,
		.value = object ? object->serial : 0,
		.set = true,
	};
	if (argument->kind != VGPU_CL_ARGUMENT_KIND_VALUE)
		return;
	set->value = argument->value;
	if (argument->bytes <= 8)
		return;
	set->data = malloc(argument->bytes);
	if (set->data)
		memcpy(set->data, data + argument->value, argument->bytes);
}

static cl_int set_argument(struct vgpu_backend *backend, cl_kernel kernel, uint32_t i,
			   const struct vgpu_cl_argument *argument, struct object *object,
			   const uint8_t *data)
{
	const cl_icd_dispatch *library = backend->library;

	switch (argument->kind) {
	case VGPU_CL_ARGUMENT_KIND_LOCAL:
		return library->clSetKernelArg(kernel, i, argument->bytes, NULL);
	case VGPU_CL_ARGUMENT_KIND_VALUE:
		return library->clSetKernelArg(kernel, i, argument->bytes,
					       argument->bytes <= 8 ?
						       (const void *)&argument->value :
						       data + argument->value);
	case VGPU_CL_ARGUMENT_KIND_SAMPLER:
		return library->clSetKernelArg(kernel, i, sizeof(cl_sampler),
					       &((struct sampler *)object)->library);
	}
	return library->clSetKernelArg(kernel, i, sizeof(cl_mem),
				       object ? &((struct memory *)object)->library : NULL);
}

cl_int opencl_give_launch(struct vgpu_backend *backend, struct command *command,
			  const struct call_waits *waits)
{
	const struct vgpu_cl_launch *m = (const void *)command->message;
	const struct vgpu_cl_argument *arguments = command->payload;
	const uint8_t *data = (const uint8_t *)(arguments + m->argument_count);
	struct kernel *kernel = (struct kernel *)command->objects[0];
	cl_int error;

	_Static_assert(sizeof(size_t) == sizeof(uint64_t), "sizes are passed as they are");
	for (uint32_t i = 0; i < m->argument_count; i++) {
		struct object *object = command->objects[1 + i];

		if (same(&kernel->set[i], &arguments[i], object, data))
			continue;
		kernel->set[i].set = false;
		error = set_argument(backend, kernel->library, i, &arguments[i], object, data);
		if (error)
			return error;
		remember(&kernel->set[i], &arguments[i], object, data);
	}
	return backend->library->clEnqueueNDRangeKernel(
		command->queue->library, kernel->library, m->dimensions,
		m->has & 1 ? (const size_t *)m->offset : NULL, (const size_t *)m->global,
		m->has & 2 ? (const size_t *)m->local : NULL, waits->count, waits->list,
		waits->event);
}
