// SPDX-License-Identifier: Apache-2.0
#include "broker/rate.h"

void rate_init(struct tenant *tenant, uint64_t now_ns)
{
	vgpu_rate_open(&tenant->starts, tenant->settings.process_interval_ns, tenant->settings.process_burst,
		       now_ns);
}

uint64_t rate_take(struct tenant *tenant, uint64_t now_ns)
{
	return vgpu_rate_take(&tenant->starts, now_ns);
}

void rate_change(struct tenant *tenant, const struct settings_tenant *settings, uint64_t now_ns)
{
	vgpu_rate_change(&tenant->starts, settings->process_interval_ns, settings->process_burst, now_ns);
}
