// SPDX-License-Identifier: Apache-2.0
#include "broker/rate.h"

static uint64_t most_ns(const struct settings_tenant *settings)
{
	return settings->process_interval_ns * settings->process_burst;
}

static void refill(struct tenant *tenant, uint64_t now_ns)
{
	uint64_t missing_ns = most_ns(&tenant->settings) - tenant->process_credit_ns;
	uint64_t earned_ns = now_ns - tenant->process_credit_at_ns;

	tenant->process_credit_at_ns = now_ns;
	tenant->process_credit_ns += earned_ns < missing_ns ? earned_ns : missing_ns;
}

void rate_init(struct tenant *tenant, uint64_t now_ns)
{
	tenant->process_credit_at_ns = now_ns;
	tenant->process_credit_ns = most_ns(&tenant->settings);
}

uint64_t rate_take(struct tenant *tenant, uint64_t now_ns)
{
	uint64_t interval_ns = tenant->settings.process_interval_ns;

	refill(tenant, now_ns);
	if (tenant->process_credit_ns < interval_ns)
		return interval_ns - tenant->process_credit_ns;
	tenant->process_credit_ns -= interval_ns;
	return 0;
}

/*
 * The credit is time, of which a start costs an interval.  The time saved up under a
 * short interval pays for no start under a long one, so starts are carried over.
 */
void rate_change(struct tenant *tenant, const struct settings_tenant *settings, uint64_t now_ns)
{
	uint64_t old_ns = tenant->settings.process_interval_ns;
	uint64_t spent = 0;

	refill(tenant, now_ns);
	if (settings->process_interval_ns == old_ns &&
	    settings->process_burst == tenant->settings.process_burst)
		return;
	if (old_ns)
		spent = (most_ns(&tenant->settings) - tenant->process_credit_ns + old_ns - 1) / old_ns;
	tenant->process_credit_ns = spent < settings->process_burst ?
		(settings->process_burst - spent) * settings->process_interval_ns : 0;
}
