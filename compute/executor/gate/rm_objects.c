// SPDX-License-Identifier: Apache-2.0
#include "executor/gate/rm_objects.h"

#include <stddef.h>

struct rm_object *rm_find(struct rm_objects *objects, uint32_t client, uint32_t handle)
{
	for (uint32_t i = 0; i < objects->count; i++)
		if (objects->list[i].client == client && objects->list[i].handle == handle)
			return &objects->list[i];
	return NULL;
}

bool rm_owns(struct rm_objects *objects, uint32_t client)
{
	return rm_find(objects, client, client);
}

bool rm_is_full(const struct rm_objects *objects)
{
	return objects->count == RM_OBJECTS_MAX;
}

static void remove_at(struct rm_objects *objects, uint32_t at)
{
	objects->list[at] = objects->list[--objects->count];
}

/* The first whose parent is not there any more; the count if there is none. */
static uint32_t find_orphan(struct rm_objects *objects)
{
	for (uint32_t i = 0; i < objects->count; i++) {
		const struct rm_object *object = &objects->list[i];

		if (object->kind != RM_CLIENT && !rm_find(objects, object->client, object->parent))
			return i;
	}
	return objects->count;
}

void rm_forget(struct rm_objects *objects, uint32_t client, uint32_t handle)
{
	struct rm_object *object = rm_find(objects, client, handle);
	uint32_t orphan;

	if (!object)
		return;
	remove_at(objects, (uint32_t)(object - objects->list));
	while ((orphan = find_orphan(objects)) < objects->count)
		remove_at(objects, orphan);
}

void rm_add(struct rm_objects *objects, const struct rm_object *object)
{
	rm_forget(objects, object->client, object->handle);
	objects->list[objects->count++] = *object;
}
