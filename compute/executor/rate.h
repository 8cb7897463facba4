/* SPDX-License-Identifier: Apache-2.0 */
/* How often something may happen: a bucket of @burst, which gets one back in each @interval_ns. */
#ifndef VGPU_EXECUTOR_RATE_H
#define VGPU_EXECUTOR_RATE_H

#include <stdint.h>

/**
 * struct vgpu_rate - the bucket
 * @credit_ns: time that was saved up; one costs @interval_ns
 * @at_ns: CLOCK_MONOTONIC of the last refill
 */
struct vgpu_rate {
	uint64_t interval_ns;
	uint64_t burst;
	uint64_t credit_ns;
	uint64_t at_ns;
};

/* A new bucket is full. */
void vgpu_rate_open(struct vgpu_rate *rate, uint64_t interval_ns, uint64_t burst, uint64_t now_ns);

/* Take one.  Return: 0, or in how many ns there is one. */
uint64_t vgpu_rate_take(struct vgpu_rate *rate, uint64_t now_ns);

/* From now on: what was taken lately counts, and nothing else. */
void vgpu_rate_change(struct vgpu_rate *rate, uint64_t interval_ns, uint64_t burst, uint64_t now_ns);

#endif /* VGPU_EXECUTOR_RATE_H */
