/* SPDX-License-Identifier: Apache-2.0 */
/* The most recent durations of an operation, for quantiles in a log line. */
#ifndef VGPU_EXECUTOR_LATENCY_H
#define VGPU_EXECUTOR_LATENCY_H

#include <stdint.h>

#define VGPU_LATENCY_SAMPLES	1024u

struct vgpu_latency {
	uint64_t count;		/* since the start */
	uint64_t longest_ns;	/* since the start */
	uint32_t samples_ns[VGPU_LATENCY_SAMPLES];
};

void vgpu_latency_add(struct vgpu_latency *latency, uint64_t span_ns);
/* Return: quantile of the last VGPU_LATENCY_SAMPLES, in ns; 0 if there are none.  @permille is 0 to 1000. */
uint64_t vgpu_latency_quantile(const struct vgpu_latency *latency, unsigned int permille);

#endif /* VGPU_EXECUTOR_LATENCY_H */
