/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache of compilers' results, with whole jobs as keys.  If a tenant's next program has the same
 * sources, it needs no compiler.
 *
 * Children and compilers cannot write to this memory: jobs are copies on the heap, and results are
 * memfds that were sealed after all processes of their compilers had ended.  The cache is lost when
 * the supervisor ends.
 */
#ifndef VGPU_EXECUTOR_KEPT_H
#define VGPU_EXECUTOR_KEPT_H

#include <stddef.h>
#include <stdint.h>

/*
 * Maximum size of a kept job.  A longer job is compiled each time.  Reading and comparing a job of
 * this size takes a millisecond.
 */
#define VGPU_KEPT_JOB_BYTES	(1u << 20)
/* Maximum number of kept results, each of which uses a descriptor of the supervisor. */
#define VGPU_KEPT_RESULTS_MAX	1024u

/* A copy of a job. */
struct vgpu_kept_job {
	uint64_t hash;
	size_t bytes;
	uint8_t data[];
};

/**
 * struct vgpu_kept - the cache; used by one thread
 * @first: the most recently used result
 * @limit_bytes: limit for results and their jobs; 0 to keep nothing.  Jobs that are still to be
 *	compiled may use a quarter as much in addition.
 * @limit_results: maximum number of results
 * @waiting_bytes: size of the jobs that are still to be compiled
 * @hits: number of jobs that needed no compiler
 * @paid_ns: reading has been paid for up to this time
 */
struct vgpu_kept {
	struct vgpu_kept_result *first;
	uint64_t limit_bytes;
	unsigned int limit_results;
	uint64_t bytes;
	unsigned int results;
	uint64_t waiting_bytes;
	uint64_t hits;
	uint64_t paid_ns;
};

/**
 * vgpu_kept_read() - copy a job
 * @file: memfd with the job; its contents may change meanwhile
 *
 * Return: the copy, or NULL if the job's result is not to be kept, because the job is too long, the
 * supervisor has recently spent too much time on jobs, or there is no memory.
 */
struct vgpu_kept_job *vgpu_kept_read(struct vgpu_kept *kept, int file, size_t bytes,
				     uint64_t now_ns);
/* Return: the job's result, whose descriptor the cache still owns, or -1. */
int vgpu_kept_find(struct vgpu_kept *kept, const struct vgpu_kept_job *job);
/* Keeps a sealed result.  The cache takes ownership of @job and @result. */
void vgpu_kept_add(struct vgpu_kept *kept, struct vgpu_kept_job *job, int result);
/* Frees a job whose result is not kept.  @job may be NULL. */
void vgpu_kept_drop(struct vgpu_kept *kept, struct vgpu_kept_job *job);

#endif /* VGPU_EXECUTOR_KEPT_H */
