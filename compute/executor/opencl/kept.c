/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results of builds, kept for as long as the child lives: programs build the same
 * source again and again, and a library that is used directly has a cache of its own
 * for that.  The key is the whole job, so a result is never another job's.
 */
#include <stdlib.h>
#include <string.h>

#include "loader.h"

#define KEPT_MAX	(16u << 20)

struct kept {
	struct kept *next;	/* used longer ago */
	uint8_t *job, *result;
	size_t job_bytes, bytes;
	uint64_t hash;
};

static void drop(struct kept **link)
{
	struct kept *kept = *link;

	*link = kept->next;
	free(kept->job);
	free(kept->result);
	free(kept);
}

const uint8_t *opencl_find_result(struct vgpu_backend *backend, const uint8_t *job,
				  size_t job_bytes, size_t *bytes)
{
	uint64_t hash = opencl_hash(0, job, job_bytes);
	struct kept *kept, **link;

	for (link = &backend->kept; (kept = *link); link = &kept->next) {
		if (kept->hash != hash || kept->job_bytes != job_bytes ||
		    memcmp(kept->job, job, job_bytes))
			continue;
		*link = kept->next;
		kept->next = backend->kept;
		backend->kept = kept;
		*bytes = kept->bytes;
		return kept->result;
	}
	return NULL;
}

void opencl_keep_result(struct vgpu_backend *backend, uint8_t *job, size_t job_bytes,
			uint8_t *result, size_t bytes)
{
	struct kept *kept = calloc(1, sizeof(*kept)), **link;
	size_t used = 0;

	if (!kept || job_bytes + bytes > KEPT_MAX) {
		free(kept);
		free(job);
		free(result);
		return;
	}
	*kept = (struct kept){
		.next = backend->kept,
		.job = job,
		.result = result,
		.job_bytes = job_bytes,
		.bytes = bytes,
		.hash = opencl_hash(0, job, job_bytes),
	};
	backend->kept = kept;
	for (link = &backend->kept; *link;) {
		used += (*link)->job_bytes + (*link)->bytes;
		if (used > KEPT_MAX)
			drop(link);
		else
			link = &(*link)->next;
	}
}

void opencl_forget_results(struct vgpu_backend *backend)
{
	while (backend->kept)
		drop(&backend->kept);
}
