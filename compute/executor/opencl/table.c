/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles: numbers that the client chooses, separately for each kind of object.  So a handle never
 * finds an object of another kind.  The client may reuse a handle once it has released it.
 * Commands keep pointers and references instead of handles.
 */
#include <stdlib.h>

#include "backend_private.h"

static struct object **place(struct table *table, uint32_t handle, bool make)
{
	struct object ***page;

	if (!handle || handle >= VGPU_CL_HANDLES_MAX)
		return NULL;
	page = &table->pages[handle / OPENCL_TABLE_PAGE];
	if (!*page && make)
		*page = calloc(OPENCL_TABLE_PAGE, sizeof(**page));
	return *page ? *page + handle % OPENCL_TABLE_PAGE : NULL;
}

struct object *opencl_find(struct vgpu_backend *backend, enum vgpu_cl_kind kind, uint32_t handle)
{
	struct object **at = place(&backend->tables[kind], handle, false);

	return at ? *at : NULL;
}

void *opencl_use(struct vgpu_backend *backend, enum vgpu_cl_kind kind, uint32_t handle,
		 cl_int *error)
{
	struct object *object = opencl_find(backend, kind, handle);

	*error = !object ? opencl_invalid(kind) : object->error;
	return *error ? NULL : object;
}

bool opencl_enter(struct vgpu_backend *backend, uint32_t handle, struct object *object)
{
	struct object **at = place(&backend->tables[object->kind], handle, true);

	if (!at || *at)
		return false;
	*at = object;
	return true;
}

struct object *opencl_remove(struct vgpu_backend *backend, enum vgpu_cl_kind kind, uint32_t handle)
{
	struct object **at = place(&backend->tables[kind], handle, false);
	struct object *object = at ? *at : NULL;

	if (at)
		*at = NULL;
	return object;
}

/*
 * Release children before parents, so that the order does not depend on the library's own reference
 * counts.
 */
void opencl_clear_tables(struct vgpu_backend *backend)
{
	for (unsigned int kind = OPENCL_KINDS - 1; kind > 0; kind--) {
		struct table *table = &backend->tables[kind];

		for (unsigned int i = 0; i < VGPU_CL_HANDLES_MAX / OPENCL_TABLE_PAGE; i++) {
			for (unsigned int j = 0; table->pages[i] && j < OPENCL_TABLE_PAGE; j++)
				if (table->pages[i][j])
					opencl_unref(backend, table->pages[i][j]);
			free(table->pages[i]);
			table->pages[i] = NULL;
		}
	}
}
