/* SPDX-License-Identifier: Apache-2.0 */
/* A token bucket: it holds @burst tokens and gets one back every @interval_ns. */
#ifndef VGPU_EXECUTOR_RATE_H
#define VGPU_EXECUTOR_RATE_H

#include <stdint.h>

/**
 * struct vgpu_rate - the bucket
 * @credit_ns: time saved up; one token costs @interval_ns
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

/* Takes a token.  Return: 0, or the number of ns until there is one. */
uint64_t vgpu_rate_take(struct vgpu_rate *rate, uint64_t now_ns);

/* Changes interval and burst.  Tokens taken recently still count; saved credit does not. */
void vgpu_rate_change(struct vgpu_rate *rate, uint64_t interval_ns, uint64_t burst, uint64_t now_ns);

#endif /* VGPU_EXECUTOR_RATE_H */
