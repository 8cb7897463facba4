// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A cap: a token bucket that is refilled continuously, computed when somebody
 * looks.  credit = min(burst, credit + elapsed * cap / period), exact: what the
 * division leaves over is carried.  Use may overdraw the credit; the overdraft
 * is worked off before anything else.  The bounds on cap and period in
 * vgpu_sched.h are what keeps each product below in 64 bits.
 */
#include "internal.h"

void vgpu_bucket_init(struct vgpu_bucket *bucket, u64 now_ns)
{
	memset(bucket, 0, sizeof(*bucket));
	bucket->last_ns = now_ns;
}

/* The caller has refilled @bucket under the rate that ends now. */
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

/* How long without use until the credit is @credit_ns (at most burst). */
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

/* How long of use until the credit is gone, refill included. */
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
