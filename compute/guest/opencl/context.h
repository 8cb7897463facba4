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
 * Passes on that the child's library has called the context's callback.  Runs in
 * handlers.
 */
void context_news(uint32_t handle, const char *text, size_t bytes);

/*
 * Returns the context's queue for this library's own copies.  It lives as long as the
 * context.
 */
cl_command_queue context_copy_queue(cl_context context, cl_int *status);

#endif /* VGPU_GUEST_CONTEXT_H */
