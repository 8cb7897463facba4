/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results of compilers, kept by their whole jobs, so that a tenant's next program with
 * the same sources needs no compiler.
 *
 * Nothing here is memory that a child or a compiler can write: jobs are copies on the
 * heap, and results are memfds that were sealed when nothing of their compilers was
 * left.  They die with the supervisor.
 */
#ifndef VGPU_EXECUTOR_KEPT_H
#define VGPU_EXECUTOR_KEPT_H

#include <stddef.h>
#include <stdint.h>

/* A longer job is compiled each time; to read and compare this much takes a millisecond. */
#define VGPU_KEPT_JOB_BYTES	(1u << 20)
/* What all results that are kept have of the supervisor's descriptors, at most. */
#define VGPU_KEPT_RESULTS_MAX	1024u

/* A copy of a job. */
struct vgpu_kept_job {
	uint64_t hash;
	size_t bytes;
	uint8_t data[];
};

/**
 * struct vgpu_kept - all of it; used by one thread
 * @first: the one that was used last
 * @limit_bytes: of results and their jobs, and a quarter as much of jobs that are yet to
 *	be compiled; 0: keep nothing
 * @limit_results: how many there may be
 * @waiting_bytes: of jobs that are yet to be compiled
 * @hits: jobs that needed no compiler
 * @paid_ns: moment up to which reading has been paid for
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
 * @file: memfd, which may change meanwhile
 *
 * Return: NULL if its result is not to be kept: it is too long, too much of the
 * supervisor's time was spent on jobs of late, or there is no memory.
 */
struct vgpu_kept_job *vgpu_kept_read(struct vgpu_kept *kept, int file, size_t bytes,
				     uint64_t now_ns);
/* The job's result, which stays the callee's, or -1. */
int vgpu_kept_find(struct vgpu_kept *kept, const struct vgpu_kept_job *job);
/* Keeps a sealed result; takes both. */
void vgpu_kept_add(struct vgpu_kept *kept, struct vgpu_kept_job *job, int result);
/* A job, or NULL, whose result is not kept. */
void vgpu_kept_drop(struct vgpu_kept *kept, struct vgpu_kept_job *job);

#endif /* VGPU_EXECUTOR_KEPT_H */
