// SPDX-License-Identifier: Apache-2.0
#include "executor/rate.h"

static uint64_t most_ns(const struct vgpu_rate *rate)
{
	return rate->interval_ns * rate->burst;
}

static void refill(struct vgpu_rate *rate, uint64_t now_ns)
{
	uint64_t missing_ns = most_ns(rate) - rate->credit_ns;
	uint64_t earned_ns = now_ns - rate->at_ns;

	rate->at_ns = now_ns;
	rate->credit_ns += earned_ns < missing_ns ? earned_ns : missing_ns;
}

void vgpu_rate_open(struct vgpu_rate *rate, uint64_t interval_ns, uint64_t burst, uint64_t now_ns)
{
	*rate = (struct vgpu_rate){ .interval_ns = interval_ns, .burst = burst, .at_ns = now_ns };
	rate->credit_ns = most_ns(rate);
}

uint64_t vgpu_rate_take(struct vgpu_rate *rate, uint64_t now_ns)
{
	refill(rate, now_ns);
	if (rate->credit_ns < rate->interval_ns)
		return rate->interval_ns - rate->credit_ns;
	rate->credit_ns -= rate->interval_ns;
	return 0;
}

/*
 * The credit is measured in time, and one token costs an interval.  Time saved under a short
 * interval must not pay for tokens under a long one, so the number of tokens taken is carried over
 * instead.
 */
void vgpu_rate_change(struct vgpu_rate *rate, uint64_t interval_ns, uint64_t burst, uint64_t now_ns)
{
	uint64_t taken = 0;

	refill(rate, now_ns);
	if (interval_ns == rate->interval_ns && burst == rate->burst)
		return;
	if (rate->interval_ns)
		taken = (most_ns(rate) - rate->credit_ns + rate->interval_ns - 1) / rate->interval_ns;
	rate->interval_ns = interval_ns;
	rate->burst = burst;
	rate->credit_ns = taken < burst ? (burst - taken) * interval_ns : 0;
}
