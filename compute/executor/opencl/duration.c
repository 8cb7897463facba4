/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Estimates how long each kind of work takes: a kernel with a size, or a copy of a size.  The
 * scheduler core's predictor remembers the longest recent execution.  In addition, a moving mean
 * estimates the total duration of queued work, because on a busy host one execution in a thousand
 * takes a hundred times as long as the others.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend_private.h"
#include "sched/internal.h"

#define ENTRIES		1024u
#define PREDICTORS	16u
/* Estimate for a kernel that has never run. */
#define UNKNOWN_NS	1000000ull
/* The longest execution counts at most OUTLIER_FACTOR times the mean plus OUTLIER_NS. */
#define OUTLIER_FACTOR	4u
#define OUTLIER_NS	200000ull

struct durations {
	struct duration entries[ENTRIES];
	struct vgpu_sched sched;
	struct vgpu_group groups[PREDICTORS];
};

uint64_t opencl_now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000ull + (uint64_t)time.tv_nsec;
}

/* FNV-1a hash; start with 0. */
uint64_t opencl_hash(uint64_t hash, const void *data, size_t bytes)
{
	const uint8_t *byte = data;

	hash = hash ? hash : 0xcbf29ce484222325ull;
	for (size_t i = 0; i < bytes; i++)
		hash = (hash ^ byte[i]) * 0x100000001b3ull;
	return hash;
}

bool opencl_durations_open(struct vgpu_backend *backend)
{
	backend->durations = calloc(1, sizeof(*backend->durations));
	if (!backend->durations)
		return false;
	backend->durations->sched.params.max_chunk_ns = UNKNOWN_NS;
	for (unsigned int i = 0; i < PREDICTORS; i++)
		backend->durations->groups[i].sched = &backend->durations->sched;
	return true;
}

void opencl_durations_close(struct vgpu_backend *backend)
{
	free(backend->durations);
}

struct duration *opencl_duration(struct vgpu_backend *backend, uint32_t id)
{
	struct duration *entry = &backend->durations->entries[id % ENTRIES];

	if (entry->id != id)
		*entry = (struct duration){
			.id = id,
			.mean_ns = UNKNOWN_NS,
			.longest_ns = UNKNOWN_NS,
		};
	return entry;
}

void opencl_learn(struct vgpu_backend *backend, uint32_t id, uint64_t ns)
{
	struct duration *entry = opencl_duration(backend, id);
	struct vgpu_group *group = &backend->durations->groups[id % PREDICTORS];
	struct vgpu_item_info item = { .kernel_id = id };
	uint64_t limit;

	vgpu_predict_learn_duration(group, id, ns);
	if (!entry->samples)
		entry->mean_ns = ns;
	else
		entry->mean_ns = (7 * entry->mean_ns + ns) / 8;
	entry->samples += entry->samples < UINT32_MAX;
	item.hint_ns = ns > entry->longest_ns || entry->samples == 1 ? ns : entry->longest_ns;
	if (entry->samples < VGPU_PREDICT_SAMPLES)
		entry->longest_ns = item.hint_ns;
	else
		entry->longest_ns = vgpu_predict_duration_ns(group, &item);
	limit = OUTLIER_FACTOR * entry->mean_ns + OUTLIER_NS;
	if (entry->longest_ns > limit)
		entry->longest_ns = limit;
}
