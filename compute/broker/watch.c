// SPDX-License-Identifier: Apache-2.0
#include "broker/watch.h"

#define DOUBLINGS	6u

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

uint64_t watch_look(struct watch *watch, const struct watch_settings *settings,
		    uint64_t processor_ns, uint64_t leased_ns, uint64_t now_ns)
{
	uint64_t used_ns, covered_ns, excess_ns, steps;

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
	watch->credit_ns += (now_ns - watch->at_ns) * settings->allowance_permille / 1000;
	if (watch->credit_ns > (int64_t)settings->burst_ns)
		watch->credit_ns = settings->burst_ns;
	if (used_ns > covered_ns)
		watch->credit_ns -= used_ns - covered_ns;
	see(watch, processor_ns, leased_ns, now_ns);
	if (watch->credit_ns >= 0)
		return 0;
	excess_ns = -watch->credit_ns;
	watch->credit_ns = 0;
	/* What it does until it is frozen belongs to the same offence. */
	if (watch->until_ns > now_ns)
		return excess_ns / settings->processors + 1;
	steps = watch->offences < DOUBLINGS ? watch->offences++ : DOUBLINGS;
	watch->until_ns = now_ns + (settings->penalty_ns << steps);
	return excess_ns / settings->processors + 1;
}
