// SPDX-License-Identifier: Apache-2.0
#include "executor/gate/latency.h"

#include <stdlib.h>
#include <string.h>

void vgpu_latency_add(struct vgpu_latency *latency, uint64_t span_ns)
{
	latency->samples_ns[latency->count++ % VGPU_LATENCY_SAMPLES] =
		span_ns > UINT32_MAX ? UINT32_MAX : (uint32_t)span_ns;
	if (span_ns > latency->longest_ns)
		latency->longest_ns = span_ns;
}

static int compare(const void *a, const void *b)
{
	uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;

	return left < right ? -1 : left > right;
}

uint64_t vgpu_latency_quantile(const struct vgpu_latency *latency, unsigned int permille)
{
	uint32_t sorted[VGPU_LATENCY_SAMPLES];
	uint64_t count = latency->count < VGPU_LATENCY_SAMPLES ? latency->count :
								 VGPU_LATENCY_SAMPLES;

	if (!count)
		return 0;
	memcpy(sorted, latency->samples_ns, count * sizeof(sorted[0]));
	qsort(sorted, count, sizeof(sorted[0]), compare);
	return sorted[(count - 1) * permille / 1000];
}
