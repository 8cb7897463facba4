/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts, for other files, and the prototypes of all entry points. */
#ifndef VGPU_GUEST_CONTEXT_H
#define VGPU_GUEST_CONTEXT_H

#include "guest/opencl/platform.h"
#include "opencl_functions.h"

#define VGPU_PROTOTYPE(name) extern __typeof__(name) vgpu_##name;
#define VGPU_NO_PROTOTYPE(name)
VGPU_CL_FUNCTIONS(VGPU_PROTOTYPE, VGPU_NO_PROTOTYPE, VGPU_NO_PROTOTYPE)

/*
 * Queues a call of the context's callback, because the child's library has called it.  Called
 * by reply handlers.
 */
void context_news(uint32_t handle, const char *text, size_t bytes);

/*
 * Returns the context's queue for this library's own copies.  The queue lives as long as the
 * context.
 */
cl_command_queue context_copy_queue(cl_context context, cl_int *status);

#endif /* VGPU_GUEST_CONTEXT_H */
