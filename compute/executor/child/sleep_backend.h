/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A backend without an accelerator, for tests.  A piece of work takes the time that its request
 * specifies, and uses no processor.  Pieces run one after another, like on an accelerator with one
 * queue.
 */
#ifndef VGPU_EXECUTOR_SLEEP_BACKEND_H
#define VGPU_EXECUTOR_SLEEP_BACKEND_H

#include "executor/backend.h"

enum vgpu_sleep_op {
	VGPU_SLEEP_WORK = 1,	/* work for @value ns; answered when it has ended */
	VGPU_SLEEP_ECHO,	/* send @value answers at once */
	VGPU_SLEEP_RESERVE,	/* reserve @value bytes; answered with the error */
	VGPU_SLEEP_RELEASE,	/* release @value bytes; answered */
	VGPU_SLEEP_COMPILE,	/* compile a job of @value bytes; answered with the status */
};

/**
 * struct vgpu_sleep_request - a request, and its answer with the same header
 * @value: see the operation; in the answer to WORK: CLOCK_MONOTONIC of its end in ns
 * @kernel_id: for WORK: kernel that requests for a lease name
 * @status: status in an answer
 */
struct vgpu_sleep_request {
	struct vgpu_message header;
	uint64_t value;
	uint32_t kernel_id;
	uint32_t status;
};

extern const struct vgpu_backend_operations vgpu_sleep_backend;

#endif /* VGPU_EXECUTOR_SLEEP_BACKEND_H */
