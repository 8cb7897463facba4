// SPDX-License-Identifier: Apache-2.0
#include "broker/apply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "broker/firmware.h"
#include "broker/tenant.h"
#include "executor/log.h"

/* Terms of a tenant that is leaving: the least weight, and no reservation. */
static const struct vgpu_group_params leaving_terms = {
	.weight = VGPU_WEIGHT_MIN,
	.timeslice_ns = VGPU_TIMESLICE_MAX_NS,
};

static bool refuse_terms(struct settings_fault *fault, const char *tenant,
			 enum vgpu_sched_field field)
{
	char name[sizeof(fault->field)];

	if (tenant)
		snprintf(name, sizeof(name), "tenants.%s.%s", tenant, settings_field_name(field));
	else
		snprintf(name, sizeof(name), "engine.%s", settings_field_name(field));
	settings_refuse(fault, "field.invalid", name,
			field == VGPU_FIELD_RESERVE || field == VGPU_FIELD_WEIGHT ?
			"not possible with the weights and reservations of the other tenants" :
			"the scheduler refuses this value, alone or with the other fields");
	return false;
}

struct seat {
	struct vgpu_group group;
	struct vgpu_slice slice;
};

/* Would an engine without other tenants accept this configuration? */
static bool is_possible(const struct settings *settings, struct settings_fault *fault)
{
	struct vgpu_sched sched;
	struct seat *seats;
	enum vgpu_sched_field refused = vgpu_sched_init(&sched, &settings->engine, 0);

	if (refused)
		return refuse_terms(fault, NULL, refused);
	seats = calloc(settings->tenant_count + 1, sizeof(*seats));
	if (!seats) {
		settings_refuse(fault, "broker.failed", "tenants", "there is no memory for them");
		return false;
	}
	for (uint32_t i = 0; i < settings->tenant_count && !refused; i++) {
		refused = tenant_join(&sched, &seats[i].group, &seats[i].slice,
				      &settings->tenants[i].terms, 0);
		if (refused)
			refuse_terms(fault, settings->tenants[i].name, refused);
	}
	free(seats);
	return !refused;
}

/*
 * Refuse a configuration that changes a field that is fixed while the broker runs, or that contains
 * a tenant whose removal is still in progress.
 */
static bool is_reachable(const struct broker *broker, const struct settings *settings,
			 struct settings_fault *fault)
{
	const struct tenant *tenant;

	if (broker->generation && strcmp(broker->settings.library, settings->library)) {
		settings_refuse(fault, "field.invalid", "accelerator.library",
				"it cannot change while the broker runs; start the broker again");
		return false;
	}
	if (broker->generation && strcmp(broker->settings.nvidia, settings->nvidia)) {
		settings_refuse(fault, "field.invalid", "accelerator.nvidia",
				"it cannot change while the broker runs; start the broker again");
		return false;
	}
	if (broker->generation && broker->settings.native_turns != settings->native_turns) {
		settings_refuse(fault, "field.invalid", "native.turns",
				"it cannot change while the broker runs; start the broker again");
		return false;
	}
	for (tenant = broker->tenants; tenant; tenant = tenant->next) {
		const struct settings_tenant *wanted = settings_tenant(settings, tenant->settings.name);

		if (!wanted || tenant->leaving || wanted->native == tenant->settings.native)
			continue;
		settings_refuse(fault, "field.invalid", "tenants",
				"%s cannot change between native and not native; remove it and add it again",
				wanted->name);
		return false;
	}
	for (tenant = broker->tenants; tenant; tenant = tenant->next)
		if (tenant->leaving && settings_tenant(settings, tenant->settings.name)) {
			settings_refuse(fault, "object.in_use", "tenants",
					"%s was removed and its processes are still ending; try again in a moment",
					tenant->settings.name);
			return false;
		}
	return true;
}

static bool update(struct tenant *tenant, const struct vgpu_group_params *terms, uint64_t now_ns)
{
	return !vgpu_group_update(&tenant->broker->sched, &tenant->group, terms, now_ns);
}

/*
 * Change the engine and all tenants that stay.  The scheduler accepts all new terms together, but
 * not in every order: a new reservation may need capacity that an old reservation still occupies.
 * So first drop the reservations of all tenants whose terms change.  The new terms can then be set
 * in any order.
 */
static void change(struct broker *broker, const struct settings *settings)
{
	uint64_t now_ns = vgpu_arbiter_settle(&broker->arbiter, loop_now_ns());
	const struct settings_tenant *wanted;
	struct vgpu_group_params terms;
	struct tenant *tenant;

	for (tenant = broker->tenants; tenant; tenant = tenant->next) {
		wanted = settings_tenant(settings, tenant->settings.name);
		if (tenant->leaving)
			continue;
		if (!wanted) {
			update(tenant, &leaving_terms, now_ns);
			continue;
		}
		if (!memcmp(&tenant->settings.terms, &wanted->terms, sizeof(wanted->terms)) &&
		    !memcmp(&broker->settings.engine, &settings->engine, sizeof(settings->engine)))
			continue;
		terms = wanted->terms;
		terms.band = VGPU_BAND_FAIR;
		terms.reserve_ns = terms.reserve_period_ns = terms.hold_max_ns = 0;
		terms.inversion_permille = 0;
		terms.inversion_burst_ns = 0;
		if (wanted->terms.band == VGPU_BAND_LATENCY || tenant->settings.terms.reserve_ns)
			update(tenant, &terms, now_ns);
	}
	if (vgpu_sched_set_params(&broker->sched, &settings->engine, now_ns))
		vgpu_log(LOG_ERR, "event=engine.refused");
	for (tenant = broker->tenants; tenant; tenant = tenant->next) {
		wanted = settings_tenant(settings, tenant->settings.name);
		if (!tenant->leaving && wanted && !update(tenant, &wanted->terms, now_ns))
			vgpu_log(LOG_ERR, "tenant=%s event=terms.refused", tenant->settings.name);
	}
	vgpu_arbiter_configure(&broker->arbiter, &settings->arbiter, now_ns);
	vgpu_arbiter_changed(&broker->arbiter, now_ns);
}

static bool add(struct broker *broker, const struct settings *settings, struct settings_fault *fault)
{
	for (uint32_t i = 0; i < settings->tenant_count; i++) {
		struct tenant *tenant = tenant_find(broker, settings->tenants[i].name);

		if (tenant)
			tenant_configure(tenant, &settings->tenants[i]);
		else if (!tenant_create(broker, &settings->tenants[i], fault))
			return false;
	}
	return true;
}

bool apply(struct broker *broker, struct settings *settings, struct settings_fault *fault)
{
	struct settings old = broker->settings;
	struct tenant *tenant, *next;

	if (!is_possible(settings, fault) || !is_reachable(broker, settings, fault))
		return false;
	change(broker, settings);
	broker->settings = *settings;
	firmware_configure(broker);
	for (tenant = broker->tenants; tenant; tenant = next) {
		next = tenant->next;
		if (!settings_tenant(settings, tenant->settings.name))
			tenant_leave(tenant);
	}
	/*
	 * From here on, only an error of the operating system can prevent a tenant from being
	 * added.  The rest of the configuration then stays in force.
	 */
	if (!add(broker, settings, fault))
		vgpu_log(LOG_ERR, "event=settings.incomplete field=%s %s", fault->field, fault->detail);
	broker->generation++;
	settings_free(&old);
	*settings = (struct settings){ 0 };
	vgpu_log(LOG_INFO, "event=settings.applied generation=%llu tenants=%u",
		 (unsigned long long)broker->generation, broker->settings.tenant_count);
	return true;
}
