// SPDX-License-Identifier: Apache-2.0
#include "executor/supervisor/kept.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Reading a job takes the supervisor's time, which has priority over all children.  So the bytes
 * per second are limited, and each job counts as JOB_COSTS_BYTES more.
 */
#define NS_PER_BYTE	16u
#define JOB_COSTS_BYTES	(64u << 10)
#define SAVED_NS	1000000000ull
/*
 * Maximum number of jobs with the same hash to compare.  A tenant that makes hashes collide only
 * gets fewer hits.
 */
#define COMPARED_MAX	4u

struct vgpu_kept_result {
	struct vgpu_kept_result *next;	/* the result that was used before this one */
	struct vgpu_kept_job *job;
	int result;
	uint64_t bytes;
};

static uint64_t hash_of(const uint8_t *data, size_t bytes)
{
	uint64_t hash = 0xcbf29ce484222325ull, word;

	for (size_t at = 0; at < bytes; at += sizeof(word)) {
		word = 0;
		memcpy(&word, data + at, bytes - at < sizeof(word) ? bytes - at : sizeof(word));
		hash = (hash ^ word) * 0x100000001b3ull;
		hash ^= hash >> 32;
	}
	return hash;
}

static bool may_read(struct vgpu_kept *kept, size_t bytes, uint64_t now_ns)
{
	uint64_t cost_ns = (bytes + JOB_COSTS_BYTES) * NS_PER_BYTE;

	if (now_ns > SAVED_NS && kept->paid_ns < now_ns - SAVED_NS)
		kept->paid_ns = now_ns - SAVED_NS;
	if (kept->paid_ns + cost_ns > now_ns)
		return false;
	kept->paid_ns += cost_ns;
	return true;
}

static uint64_t size_of(const struct vgpu_kept_job *job)
{
	return sizeof(*job) + job->bytes;
}

struct vgpu_kept_job *vgpu_kept_read(struct vgpu_kept *kept, int file, size_t bytes,
				     uint64_t now_ns)
{
	struct vgpu_kept_job *job;

	if (bytes > VGPU_KEPT_JOB_BYTES ||
	    kept->waiting_bytes + sizeof(*job) + bytes > kept->limit_bytes / 4 ||
	    !may_read(kept, bytes, now_ns))
		return NULL;
	job = malloc(sizeof(*job) + bytes);
	/* The child may have made the file shorter. */
	if (!job || pread(file, job->data, bytes, 0) != (ssize_t)bytes) {
		free(job);
		return NULL;
	}
	job->bytes = bytes;
	job->hash = hash_of(job->data, bytes);
	kept->waiting_bytes += size_of(job);
	return job;
}

int vgpu_kept_find(struct vgpu_kept *kept, const struct vgpu_kept_job *job)
{
	struct vgpu_kept_result *found, **link;
	unsigned int compared = 0;

	for (link = &kept->first; (found = *link) && compared < COMPARED_MAX; link = &found->next) {
		if (found->job->hash != job->hash || found->job->bytes != job->bytes)
			continue;
		if (memcmp(found->job->data, job->data, job->bytes)) {
			compared++;
			continue;
		}
		*link = found->next;
		found->next = kept->first;
		kept->first = found;
		return found->result;
	}
	return -1;
}

static void remove_at(struct vgpu_kept *kept, struct vgpu_kept_result **link)
{
	struct vgpu_kept_result *old = *link;

	*link = old->next;
	kept->bytes -= old->bytes;
	kept->results--;
	close(old->result);
	free(old->job);
	free(old);
}

/* Removes the least recently used results first. */
static void make_room(struct vgpu_kept *kept)
{
	while (kept->bytes > kept->limit_bytes || kept->results > kept->limit_results) {
		struct vgpu_kept_result **link = &kept->first;

		while ((*link)->next)
			link = &(*link)->next;
		remove_at(kept, link);
	}
}

/*
 * Counts the larger of length and blocks: a file can have blocks after its end, or holes that are
 * filled later.
 */
static uint64_t bytes_of(int result)
{
	struct stat status;

	if (fstat(result, &status))
		return UINT64_MAX / 2;
	return status.st_size > status.st_blocks * 512 ? (uint64_t)status.st_size :
							 (uint64_t)status.st_blocks * 512;
}

void vgpu_kept_add(struct vgpu_kept *kept, struct vgpu_kept_job *job, int result)
{
	struct vgpu_kept_result *added = malloc(sizeof(*added));
	uint64_t bytes = sizeof(*added) + size_of(job) + bytes_of(result);

	if (!added || bytes > kept->limit_bytes || vgpu_kept_find(kept, job) >= 0) {
		free(added);
		close(result);
		vgpu_kept_drop(kept, job);
		return;
	}
	*added = (struct vgpu_kept_result){
		.next = kept->first, .job = job, .result = result, .bytes = bytes,
	};
	kept->first = added;
	kept->waiting_bytes -= size_of(job);
	kept->bytes += bytes;
	kept->results++;
	make_room(kept);
}

void vgpu_kept_drop(struct vgpu_kept *kept, struct vgpu_kept_job *job)
{
	if (job)
		kept->waiting_bytes -= size_of(job);
	free(job);
}
