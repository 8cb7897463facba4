// SPDX-License-Identifier: GPL-2.0 OR MIT
/* What children use of the processors outside their leases; see watch.h. */
#include "watch.h"

#define DOUBLINGS	6u
#define SECOND_NS	1000000000ull

void vgpu_watch_reset(struct vgpu_watch *watch)
{
	watch->seen = false;
}

/* Does not overflow as long as the result fits. */
static u64 permille_of(u64 ns, u32 permille)
{
	u64 rest_ns;
	u64 us = div64_u64_rem(ns, 1000, &rest_ns);

	return us * permille + div64_u64(rest_ns * permille, 1000);
}

static void see(struct vgpu_watch *watch, u64 processor_ns, u64 leased_ns, u64 now_ns)
{
	watch->seen = true;
	watch->at_ns = now_ns;
	watch->processor_ns = processor_ns;
	watch->leased_ns = leased_ns;
}

/* Forgive one offence once ten times penalty_ns have passed since the last penalty. */
static void forgive(struct vgpu_watch *watch, const struct vgpu_watch_settings *settings,
		    u64 now_ns)
{
	if (watch->offences && now_ns > watch->until_ns + 10 * settings->penalty_ns) {
		watch->offences--;
		watch->until_ns += 10 * settings->penalty_ns;
	}
}

/*
 * Take the excess from the allowance. If the allowance is used up and no
 * penalty lasts, begin a penalty.
 */
static void allow(struct vgpu_watch *watch, const struct vgpu_watch_settings *settings,
		  u64 excess_ns, u64 now_ns)
{
	u64 steps;

	watch->credit_ns += permille_of(now_ns - watch->at_ns, settings->allowance_permille);
	/*
	 * Add before applying the bound: after a long pause, the time of the
	 * pause pays for what was used in it.
	 */
	watch->credit_ns -= excess_ns;
	if (watch->credit_ns > (s64)settings->burst_ns)
		watch->credit_ns = settings->burst_ns;
	if (watch->credit_ns >= 0)
		return;
	watch->credit_ns = 0;
	/* What the party does until it is frozen belongs to the same offence. */
	if (watch->until_ns > now_ns)
		return;
	steps = watch->offences < DOUBLINGS ? watch->offences++ : DOUBLINGS;
	watch->until_ns = now_ns + (settings->penalty_ns << steps);
}

/* Return the part of the excess that is not free. */
static u64 charge(struct vgpu_watch *watch, const struct vgpu_watch_settings *settings,
		  u64 excess_ns, u64 elapsed_ns)
{
	u64 most_ns = permille_of(SECOND_NS, settings->free_permille);
	u64 watched_ns = 2 * settings->every_ns;
	u64 earned_ns, free_ns;

	if (elapsed_ns > watched_ns) {
		excess_ns = mul_u64_u64_div_u64(excess_ns, watched_ns, elapsed_ns);
		elapsed_ns = watched_ns;
	}
	earned_ns = watch->free_ns + permille_of(elapsed_ns, settings->free_permille);
	watch->free_ns = min(earned_ns, most_ns);
	free_ns = min(excess_ns, watch->free_ns);
	watch->free_ns -= free_ns;
	return excess_ns - free_ns;
}

u64 vgpu_watch_look(struct vgpu_watch *watch, const struct vgpu_watch_settings *settings,
		    u64 processor_ns, u64 leased_ns, u64 now_ns)
{
	u64 used_ns, covered_ns, excess_ns, costs_ns;

	if (!settings->processors)
		return 0;
	/*
	 * Less than before: some of the processes that were counted have ended.
	 */
	if (!watch->seen || processor_ns < watch->processor_ns || now_ns < watch->at_ns) {
		if (!watch->seen)
			watch->credit_ns = settings->burst_ns;
		see(watch, processor_ns, leased_ns, now_ns);
		return 0;
	}
	forgive(watch, settings, now_ns);
	used_ns = processor_ns - watch->processor_ns;
	covered_ns = (leased_ns - watch->leased_ns) * settings->processors;
	excess_ns = used_ns > covered_ns ? used_ns - covered_ns : 0;
	costs_ns = charge(watch, settings, excess_ns, now_ns - watch->at_ns);
	allow(watch, settings, excess_ns, now_ns);
	see(watch, processor_ns, leased_ns, now_ns);
	return costs_ns ? div64_u64(costs_ns, settings->processors) + 1 : 0;
}
