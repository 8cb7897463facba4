// SPDX-License-Identifier: Apache-2.0
#include "broker/duty.h"

/*
 * The timeslice of the least weight, the longest round of all tenants' timeslices, and the shortest
 * timeslice.  A switch costs 0.2 ms on an H100.
 */
#define LEAST_US	5000u
#define ROUND_MAX_US	100000u
#define TIMESLICE_MIN_US	500u

static uint64_t earns_ns(const struct duties *duties, const struct duty *duty)
{
	return (uint64_t)((unsigned __int128)duties->period_ns * duty->cap_ns / duty->cap_period_ns);
}

static int64_t most_ns(const struct duties *duties, const struct duty *duty)
{
	uint64_t earns = earns_ns(duties, duty);

	return (int64_t)(duty->burst_ns > earns ? duty->burst_ns : earns);
}

static bool runs(const struct duty *duty)
{
	return duty->works && duty->open;
}

static uint64_t sum_of_weights(const struct duties *duties)
{
	uint64_t sum = 0;

	for (const struct duty *duty = duties->first; duty; duty = duty->next)
		sum += runs(duty) ? duty->weight : 0;
	return sum;
}

void duties_configure(struct duties *duties, uint64_t period_ns, uint64_t now_ns)
{
	if (!duties->period_ns) {
		duties->now_ns = now_ns;
		duties->refill_ns = now_ns + period_ns;
	}
	duties->period_ns = period_ns;
}

void duties_add(struct duties *duties, struct duty *duty)
{
	duty->credit_ns = duty->cap_ns ? most_ns(duties, duty) : 0;
	duty->next = duties->first;
	duties->first = duty;
}

void duties_remove(struct duties *duties, struct duty *duty)
{
	struct duty **link = &duties->first;

	while (*link && *link != duty)
		link = &(*link)->next;
	if (*link)
		*link = duty->next;
}

/* Charge the running tenants for a span in which no tenant's state has changed. */
static void charge(struct duties *duties, uint64_t span_ns)
{
	uint64_t sum = sum_of_weights(duties);

	for (struct duty *duty = duties->first; duty; duty = duty->next) {
		unsigned __int128 part;
		uint64_t used_ns;

		if (!runs(duty))
			continue;
		/* Keep the remainder, so that many short spans cost as much as one long span. */
		part = (unsigned __int128)span_ns * duty->weight + duty->rest;
		used_ns = (uint64_t)(part / sum);
		duty->rest = (uint64_t)(part % sum);
		duty->obtained_ns += used_ns;
		duty->open_ns += span_ns;
		if (duty->cap_ns)
			duty->credit_ns -= (int64_t)used_ns;
	}
}

static void refill(struct duties *duties, uint64_t periods)
{
	for (struct duty *duty = duties->first; duty; duty = duty->next) {
		__int128 credit;
		int64_t most;

		if (!duty->cap_ns)
			continue;
		most = most_ns(duties, duty);
		credit = duty->credit_ns + (__int128)periods * earns_ns(duties, duty);
		duty->credit_ns = credit < most ? (int64_t)credit : most;
	}
	duties->refill_ns += periods * duties->period_ns;
}

/* Is a tenant with a cap running, so that its credit changes? */
static bool has_payer(const struct duties *duties)
{
	for (const struct duty *duty = duties->first; duty; duty = duty->next)
		if (duty->cap_ns && runs(duty))
			return true;
	return false;
}

void duties_settle(struct duties *duties, uint64_t now_ns)
{
	bool by_period = has_payer(duties);

	while (duties->now_ns < now_ns) {
		/*
		 * If no capped tenant runs, no gate can close during the span.  So the whole span,
		 * even if it is months, is charged at once.
		 */
		uint64_t end_ns = by_period && duties->refill_ns < now_ns ? duties->refill_ns : now_ns;

		charge(duties, end_ns - duties->now_ns);
		duties->now_ns = end_ns;
		if (end_ns >= duties->refill_ns)
			refill(duties, (end_ns - duties->refill_ns) / duties->period_ns + 1);
	}
}

bool duty_may_run(const struct duties *duties, const struct duty *duty)
{
	int64_t least;

	if (!duty->cap_ns)
		return true;
	/*
	 * A closed gate opens only when the credit exceeds a quarter of what a period earns, so
	 * that opening it is worthwhile.
	 */
	least = duty->open ? 0 : (int64_t)(earns_ns(duties, duty) / 4);
	return duty->credit_ns > least;
}

uint64_t duties_next_ns(const struct duties *duties)
{
	uint64_t sum = sum_of_weights(duties), next_ns = UINT64_MAX;

	for (const struct duty *duty = duties->first; duty; duty = duty->next) {
		uint64_t at_ns;

		/*
		 * duty_may_run() stays true for a tenant without a cap, and for an idle tenant for
		 * which it is true now.
		 */
		if (!duty->cap_ns || (!runs(duty) && duty_may_run(duties, duty)))
			continue;
		at_ns = duties->refill_ns;
		if (runs(duty) && duty->credit_ns > 0) {
			unsigned __int128 left = (unsigned __int128)duty->credit_ns * sum;
			uint64_t ends_ns = duties->now_ns + (uint64_t)((left + duty->weight - 1) / duty->weight);

			at_ns = ends_ns < at_ns ? ends_ns : at_ns;
		}
		next_ns = at_ns < next_ns ? at_ns : next_ns;
	}
	return next_ns;
}

uint64_t duty_timeslice_us(const struct duties *duties, const struct duty *duty)
{
	uint64_t sum = 0, least = UINT64_MAX, us;

	for (const struct duty *each = duties->first; each; each = each->next) {
		if (!each->works)
			continue;
		sum += each->weight;
		least = each->weight < least ? each->weight : least;
	}
	if (!sum || !duty->works)
		return 0;
	us = LEAST_US * duty->weight / least;
	if (LEAST_US * sum / least > ROUND_MAX_US)
		us = ROUND_MAX_US * duty->weight / sum;
	return us < TIMESLICE_MIN_US ? TIMESLICE_MIN_US : us;
}
