/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that resolve.c and resolve_image.c share. */
#ifndef VGPU_OPENCL_RESOLVE_H
#define VGPU_OPENCL_RESOLVE_H

#include "backend_private.h"

/* Decodes the command's message into @m and @view, or returns false. */
#define DECODE(name) \
	struct vgpu_cl_##name##_view view; \
	const struct vgpu_cl_##name *m; \
	if (!vgpu_cl_decode_##name(command->message, command->message->bytes, \
				   backend->bulk_bytes, &view)) \
		return false; \
	m = view.message; \
	(void)m; \
	*waits = view.waits

/* Sets the expected duration of a command that copies @bytes. */
void opencl_expect_copy(struct vgpu_backend *backend, struct command *command, uint64_t bytes);
/*
 * Finds memory of the right kind, and stores a reference in the command's objects at index @at.
 * Return: NULL with *error on error.
 */
struct memory *opencl_use_memory(struct vgpu_backend *backend, struct command *command,
				 unsigned int at, uint32_t handle, bool image, cl_int *error);
bool opencl_within(const struct memory *memory, uint64_t offset, uint64_t bytes);
/* Computes the product of the three numbers and @factor.  Return: false if it is too large. */
bool opencl_product(const uint64_t region[3], uint64_t factor, uint64_t *result);
/* Return: address of a blob that is not absent. */
void *opencl_pointer(struct vgpu_backend *backend, uint64_t offset, const uint8_t *inline_bytes);
bool opencl_resolve_image(struct vgpu_backend *backend, struct command *command,
			  const uint32_t **waits, cl_int *error);

#endif /* VGPU_OPENCL_RESOLVE_H */
