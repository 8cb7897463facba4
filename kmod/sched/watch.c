// SPDX-License-Identifier: GPL-2.0 OR MIT
#include "watch.h"

#define DOUBLINGS	6u
#define SECOND_NS	1000000000ull

void watch_reset(struct watch *watch)
{
	watch->seen = false;
}

static void see(struct watch *watch, uint64_t processor_ns, uint64_t leased_ns, uint64_t now_ns)
{
	watch->seen = true;
	watch->at_ns = now_ns;
	watch->processor_ns = processor_ns;
	watch->leased_ns = leased_ns;
}

/* A penalty that has been over for as long as it lasted is forgotten step by step. */
static void forgive(struct watch *watch, const struct watch_settings *settings, uint64_t now_ns)
{
	if (watch->offences && now_ns > watch->until_ns + 10 * settings->penalty_ns) {
		watch->offences--;
		watch->until_ns += 10 * settings->penalty_ns;
	}
}

/* Whether the tenant has used up its allowance, and no penalty lasts yet. */
static void allow(struct watch *watch, const struct watch_settings *settings, uint64_t excess_ns,
		  uint64_t now_ns)
{
	uint64_t steps;

	watch->credit_ns += (now_ns - watch->at_ns) * settings->allowance_permille / 1000;
	/* Before the bound: after a long pause, what was used then was earned then. */
	watch->credit_ns -= excess_ns;
	if (watch->credit_ns > (int64_t)settings->burst_ns)
		watch->credit_ns = settings->burst_ns;
	if (watch->credit_ns >= 0)
		return;
	watch->credit_ns = 0;
	/* What it does until it is frozen belongs to the same offence. */
	if (watch->until_ns > now_ns)
		return;
	steps = watch->offences < DOUBLINGS ? watch->offences++ : DOUBLINGS;
	watch->until_ns = now_ns + (settings->penalty_ns << steps);
}

/* Return the processor time that costs something. */
static uint64_t charge(struct watch *watch, const struct watch_settings *settings, uint64_t excess_ns,
		       uint64_t elapsed_ns)
{
	uint64_t most_ns = SECOND_NS * settings->free_permille / 1000;
	uint64_t watched_ns = 2 * settings->every_ns;
	uint64_t earned_ns, free_ns;

	if (elapsed_ns > watched_ns) {
		excess_ns = (uint64_t)((double)excess_ns / elapsed_ns * watched_ns);
		elapsed_ns = watched_ns;
	}
	earned_ns = watch->free_ns + elapsed_ns * settings->free_permille / 1000;
	watch->free_ns = earned_ns < most_ns ? earned_ns : most_ns;
	free_ns = excess_ns < watch->free_ns ? excess_ns : watch->free_ns;
	watch->free_ns -= free_ns;
	return excess_ns - free_ns;
}

uint64_t watch_look(struct watch *watch, const struct watch_settings *settings,
		    uint64_t processor_ns, uint64_t leased_ns, uint64_t now_ns)
{
	uint64_t used_ns, covered_ns, excess_ns, costs_ns;

	if (!settings->processors)
		return 0;
	/* Less than before: those processes are gone. */
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
	return costs_ns ? costs_ns / settings->processors + 1 : 0;
}
