// SPDX-License-Identifier: Apache-2.0
/*
 * The allocator of the bulk area.  The descriptions of its parts are in this process' own memory,
 * because the child may write to all of the window.
 *
 * Free parts are kept in lists by size.  Each power of two is divided into four lists.  Adjacent free
 * parts are merged.
 */
#include "guest/transport/connection.h"

#include <stdlib.h>

#define UNIT 128ull
#define STEPS 4
#define LISTS (64 * STEPS)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct vgpu_bulk *lists[LISTS];
static uint64_t free_bytes;
static atomic_uint freed;

static unsigned int list_of(uint64_t bytes)
{
	unsigned int power = 63 - (unsigned int)__builtin_clzll(bytes);

	return power * STEPS + (unsigned int)((bytes >> (power - 2)) & (STEPS - 1));
}

static void put(struct vgpu_bulk *part)
{
	struct vgpu_bulk **list = &lists[list_of(part->bytes)];

	part->used = false;
	part->previous = NULL;
	part->next = *list;
	if (*list)
		(*list)->previous = part;
	*list = part;
	free_bytes += part->bytes;
}

static void take(struct vgpu_bulk *part)
{
	if (part->previous)
		part->previous->next = part->next;
	else
		lists[list_of(part->bytes)] = part->next;
	if (part->next)
		part->next->previous = part->previous;
	part->used = true;
	free_bytes -= part->bytes;
}

/*
 * Keeps the first @bytes of a used part, and makes the rest a free part.  If there is no memory for
 * the description of the rest, the part stays whole.
 */
static void cut(struct vgpu_bulk *part, uint64_t bytes)
{
	struct vgpu_bulk *rest;

	if (part->bytes == bytes)
		return;
	rest = calloc(1, sizeof(*rest));
	if (!rest)
		return;
	rest->offset = part->offset + bytes;
	rest->bytes = part->bytes - bytes;
	rest->before = part;
	rest->after = part->after;
	if (rest->after)
		rest->after->before = rest;
	part->after = rest;
	part->bytes = bytes;
	put(rest);
}

/* Returns the bytes to skip at the part's start for alignment. */
static uint64_t skew(const struct vgpu_bulk *part, uint64_t align)
{
	return (align - part->offset % align) % align;
}

static struct vgpu_bulk *find(uint64_t bytes, uint64_t align)
{
	for (unsigned int i = list_of(bytes); i < LISTS; i++)
		for (struct vgpu_bulk *part = lists[i]; part; part = part->next)
			if (part->bytes >= bytes + skew(part, align))
				return part;
	return NULL;
}

struct vgpu_bulk *vgpu_bulk_allocate(uint64_t bytes, uint64_t keep_free)
{
	uint64_t align = bytes >= 4096 ? 4096 : UNIT;
	struct vgpu_bulk *part = NULL;

	if (!bytes || bytes > vgpu_connection.bulk_bytes)
		return NULL;
	bytes = (bytes + UNIT - 1) & ~(UNIT - 1);
	pthread_mutex_lock(&lock);
	if (free_bytes >= bytes + keep_free)
		part = find(bytes, align);
	if (part) {
		uint64_t before = skew(part, align);

		take(part);
		if (before) {
			struct vgpu_bulk *start = part;

			cut(start, before);
			part = start->after;
			if (part && part->offset == start->offset + before) {
				take(part);
				put(start);
			} else {
				put(start);	/* no memory for a description */
				part = NULL;
			}
		}
		if (part)
			cut(part, bytes);
	}
	pthread_mutex_unlock(&lock);
	return part;
}

/* Merges @part with the free part after it. */
static void join(struct vgpu_bulk *part)
{
	struct vgpu_bulk *other = part->after;

	take(other);
	part->bytes += other->bytes;
	part->after = other->after;
	if (part->after)
		part->after->before = part;
	free(other);
}

void vgpu_bulk_free(struct vgpu_bulk *part)
{
	if (!part)
		return;
	pthread_mutex_lock(&lock);
	if (part->after && !part->after->used)
		join(part);
	if (part->before && !part->before->used) {
		part = part->before;
		take(part);
		part->after->used = false;
		/*
		 * join() removes the second part from its list, so add that part to its list first.
		 */
		put(part->after);
		join(part);
	}
	put(part);
	atomic_fetch_add(&freed, 1);
	pthread_mutex_unlock(&lock);
}

uint32_t vgpu_bulk_freed(void)
{
	return atomic_load(&freed);
}

uint64_t vgpu_bulk_largest(void)
{
	uint64_t largest = 0;

	pthread_mutex_lock(&lock);
	for (unsigned int i = LISTS; i-- > 0 && !largest;)
		for (struct vgpu_bulk *part = lists[i]; part; part = part->next)
			if (part->bytes > largest)
				largest = part->bytes;
	pthread_mutex_unlock(&lock);
	return largest;
}

void vgpu_bulk_start(uint64_t bytes)
{
	struct vgpu_bulk *all = calloc(1, sizeof(*all));

	vgpu_keep_over_fork(&lock);
	if (!all)
		return;
	all->bytes = bytes & ~(UNIT - 1);
	put(all);
}
