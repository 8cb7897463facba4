// SPDX-License-Identifier: Apache-2.0
#include "executor/gate/rm_objects.h"

#include "rm_abi.h"

#include <stddef.h>

struct rm_object *rm_find(struct rm_objects *objects, uint32_t client, uint32_t handle)
{
	for (uint32_t i = 0; i < objects->count; i++)
		if (objects->list[i].client == client && objects->list[i].handle == handle)
			return &objects->list[i];
	return NULL;
}

struct rm_object *rm_subdevice(struct rm_objects *objects, uint32_t client, uint32_t device)
{
	for (uint32_t i = 0; i < objects->count; i++) {
		struct rm_object *object = &objects->list[i];

		if (object->kind == RM_SUBDEVICE && object->client == client && object->parent == device)
			return object;
	}
	return NULL;
}

bool rm_owns(struct rm_objects *objects, uint32_t client)
{
	return rm_find(objects, client, client);
}

bool rm_is_full(const struct rm_objects *objects, enum rm_kind kind)
{
	uint32_t clients = 0;

	if (objects->count >= (objects->is_native ? RM_OBJECTS_MAX : RM_OBJECTS_CHILD_MAX))
		return true;
	for (uint32_t i = 0; i < objects->count && kind == RM_CLIENT; i++)
		clients += objects->list[i].kind == RM_CLIENT;
	return clients >= (objects->is_native ? RM_CLIENTS_NATIVE_MAX : RM_CLIENTS_MAX);
}

bool rm_runs_kernels(const struct rm_object *object)
{
	return object->kind == RM_GROUP &&
	       (object->engine < RM_ENGINE_COPY0 || object->engine > RM_ENGINE_COPY_LAST);
}

static void remove_at(struct rm_objects *objects, uint32_t at)
{
	objects->list[at] = objects->list[--objects->count];
}

/* Removes the objects whose parent does not exist any more.  Return: false if there was none. */
static bool remove_orphans(struct rm_objects *objects)
{
	uint32_t before = objects->count;

	for (uint32_t i = 0; i < objects->count;) {
		const struct rm_object *object = &objects->list[i];

		if (object->kind != RM_CLIENT && !rm_find(objects, object->client, object->parent))
			remove_at(objects, i);
		else
			i++;
	}
	return objects->count < before;
}

void rm_forget(struct rm_objects *objects, uint32_t client, uint32_t handle)
{
	struct rm_object *object = rm_find(objects, client, handle);

	if (!object)
		return;
	remove_at(objects, (uint32_t)(object - objects->list));
	while (remove_orphans(objects))
		;
}

void rm_add(struct rm_objects *objects, const struct rm_object *object)
{
	rm_forget(objects, object->client, object->handle);
	objects->list[objects->count++] = *object;
}
