// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A cap: a token bucket whose continuous refill is computed on demand. credit =
 * min(burst, credit + elapsed * cap / period), exactly: the remainder of the
 * division is carried over.  Use may overdraw the credit; the overdraft is paid
 * back first.  The bounds on cap and period in vgpu_sched.h keep each product
 * below within 64 bits.
 */
#include "internal.h"

void vgpu_bucket_init(struct vgpu_bucket *bucket, u64 now_ns)
{
	memset(bucket, 0, sizeof(*bucket));
	bucket->last_ns = now_ns;
}

/* The caller has refilled @bucket up to now under the old rate. */
void vgpu_bucket_configure(struct vgpu_bucket *bucket, u64 cap_ns,
			   u64 period_ns, u64 burst_ns)
{
	if (cap_ns != bucket->cap_ns || period_ns != bucket->period_ns)
		bucket->remainder = 0;
	if (!bucket->cap_ns || bucket->credit_ns >= (s64)burst_ns) {
		bucket->credit_ns = burst_ns;
		bucket->remainder = 0;
	}
	bucket->cap_ns = cap_ns;
	bucket->period_ns = period_ns;
	bucket->burst_ns = burst_ns;
}

void vgpu_bucket_refill(struct vgpu_bucket *bucket, u64 now_ns)
{
	u64 periods, part, earned;

	if (bucket->cap_ns) {
		periods = div64_u64_rem(now_ns - bucket->last_ns,
					bucket->period_ns, &part);
		earned = periods * bucket->cap_ns +
			 div64_u64_rem(part * bucket->cap_ns + bucket->remainder,
				       bucket->period_ns, &bucket->remainder);
		if (earned >= bucket->burst_ns - (u64)bucket->credit_ns) {
			bucket->credit_ns = bucket->burst_ns;
			bucket->remainder = 0;
		} else {
			bucket->credit_ns += earned;
		}
	}
	bucket->last_ns = now_ns;
}

/* The credit must have been refilled up to the beginning of the use. */
void vgpu_bucket_use(struct vgpu_bucket *bucket, u64 ns)
{
	if (!bucket->cap_ns)
		return;
	bucket->credit_ns -= min(ns, OVERDRAFT_MAX_NS);
	bucket->credit_ns = max(bucket->credit_ns, -(s64)OVERDRAFT_MAX_NS);
}

bool vgpu_bucket_is_empty(const struct vgpu_bucket *bucket)
{
	return bucket->cap_ns && bucket->credit_ns <= 0;
}

/* Time without use until the credit is @credit_ns (at most the burst). */
u64 vgpu_bucket_wait_ns(const struct vgpu_bucket *bucket, u64 credit_ns)
{
	u64 times, part, wait;

	if (!bucket->cap_ns || bucket->credit_ns >= (s64)credit_ns)
		return 0;
	/* ceil((missing * period - remainder) / cap), in two steps */
	times = div64_u64_rem(credit_ns - (u64)bucket->credit_ns,
			      bucket->cap_ns, &part);
	wait = times * bucket->period_ns;
	part *= bucket->period_ns;
	if (part < bucket->remainder)
		return wait - div64_u64(bucket->remainder - part, bucket->cap_ns);
	return wait + div64_u64(part - bucket->remainder + bucket->cap_ns - 1,
				bucket->cap_ns);
}

/* Time of continuous use until the credit is gone, including refill. */
u64 vgpu_bucket_lasts_ns(const struct vgpu_bucket *bucket)
{
	u64 drain = bucket->period_ns - bucket->cap_ns;

	if (!bucket->cap_ns || !drain)
		return U64_MAX;
	if (bucket->credit_ns <= 0)
		return 0;
	return div64_u64((u64)bucket->credit_ns * bucket->period_ns +
			 bucket->remainder + drain - 1, drain);
}
