/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that memory.c and image.c share. */
#ifndef VGPU_OPENCL_MEMORY_H
#define VGPU_OPENCL_MEMORY_H

#include "backend_private.h"

/* Flags that are passed to the library.  The others describe where the client's memory is. */
#define OPENCL_MEMORY_FLAGS                                                                      \
	(CL_MEM_READ_WRITE | CL_MEM_WRITE_ONLY | CL_MEM_READ_ONLY | CL_MEM_HOST_WRITE_ONLY | \
	 CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS | CL_MEM_KERNEL_READ_AND_WRITE)

void opencl_destroy_memory(struct vgpu_backend *backend, struct object *object);
cl_int opencl_check_memory_flags(uint64_t flags);
/* Return: address of a blob, or NULL if it is absent. */
void *opencl_blob(struct vgpu_backend *backend, uint64_t offset, const uint8_t *inline_bytes);

#endif /* VGPU_OPENCL_MEMORY_H */
