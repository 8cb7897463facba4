// SPDX-License-Identifier: Apache-2.0
/*
 * The channel groups of this process that run kernels. A child starts with none: its parent's
 * groups are not its own.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <pthread.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct group groups[GROUPS_MAX];
static size_t nr_groups;

/* Returns false when there is no room. A handle is unique within its client. */
bool groups_add(const struct group *group)
{
	bool added;

	pthread_mutex_lock(&lock);
	added = nr_groups < GROUPS_MAX;
	if (added)
		groups[nr_groups++] = *group;
	pthread_mutex_unlock(&lock);
	return added;
}

bool groups_has(uint32_t client, uint32_t handle)
{
	bool found = false;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < nr_groups && !found; i++)
		found = groups[i].client == client && groups[i].handle == handle;
	pthread_mutex_unlock(&lock);
	return found;
}

size_t groups_copy(struct group *to, size_t room)
{
	size_t copied;

	pthread_mutex_lock(&lock);
	copied = nr_groups < room ? nr_groups : room;
	memcpy(to, groups, copied * sizeof(*to));
	pthread_mutex_unlock(&lock);
	return copied;
}

/*
 * Forgets the groups that are gone after `object` was freed: the group itself, all below its
 * device, or all of the client.
 */
void groups_drop(uint32_t client, uint32_t object)
{
	size_t kept = 0;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < nr_groups; i++) {
		const struct group *group = &groups[i];

		if (group->client == client &&
		    (object == group->handle || object == group->parent || object == client))
			continue;
		groups[kept++] = *group;
	}
	nr_groups = kept;
	pthread_mutex_unlock(&lock);
}

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
	pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
	nr_groups = 0;
	pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void groups_init(void)
{
	pthread_atfork(before_fork, in_parent, in_child);
}
