// SPDX-License-Identifier: Apache-2.0
#include "broker/settings.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "protocol/window.h"

/* A numeric member of a structure: its offset, size and range. */
struct number_field {
	const char *name;
	size_t offset;
	size_t bytes;	/* size of the member */
	uint64_t least;
	uint64_t most;
};

#define NUMBER(struct_type, member, name, least, most) \
	{ name, offsetof(struct struct_type, member), sizeof(((struct struct_type *)0)->member), least, most }

#define SECOND_NS	1000000000ull
#define DAY_NS		(86400ull * SECOND_NS)

static const struct number_field engine_fields[] = {
	NUMBER(vgpu_sched_params, max_chunk_ns, "chunk_ns", 0, DAY_NS),
	NUMBER(vgpu_sched_params, min_chunk_ns, "min_chunk_ns", 0, DAY_NS),
	NUMBER(vgpu_sched_params, switch_cost_ns, "switch_cost_ns", 0, DAY_NS),
	NUMBER(vgpu_sched_params, reserve_limit_permille, "reserve_limit_permille", 0, 1000),
};

static const struct number_field arbiter_fields[] = {
	NUMBER(vgpu_arbiter_settings, grace_ns, "grace_ns", 0, 10 * SECOND_NS),
	NUMBER(vgpu_arbiter_settings, early_ns, "early_ns", 0, SECOND_NS),
	NUMBER(vgpu_arbiter_settings, gate_limit_ns, "gate_limit_ns", 10000000, 60 * SECOND_NS),
	NUMBER(vgpu_arbiter_settings, watch.processors, "processors", 0, 65536),
	NUMBER(vgpu_arbiter_settings, watch.free_permille, "free_permille", 0, 1000000),
	NUMBER(vgpu_arbiter_settings, watch.allowance_permille, "allowance_permille", 0, 1000000),
	NUMBER(vgpu_arbiter_settings, watch.burst_ns, "allowance_burst_ns", 0, DAY_NS),
	NUMBER(vgpu_arbiter_settings, watch.every_ns, "watch_every_ns", 10000000, 60 * SECOND_NS),
	NUMBER(vgpu_arbiter_settings, watch.penalty_ns, "penalty_ns", 0, 600 * SECOND_NS),
};

/* These ranges are wide, because the scheduler's core checks the terms itself. */
static const struct number_field terms_fields[] = {
	NUMBER(vgpu_group_params, weight, "weight", 0, UINT32_MAX),
	NUMBER(vgpu_group_params, timeslice_ns, "timeslice_ns", 0, DAY_NS),
	NUMBER(vgpu_group_params, cap_ns, "cap_ns", 0, DAY_NS),
	NUMBER(vgpu_group_params, cap_period_ns, "cap_period_ns", 0, DAY_NS),
	NUMBER(vgpu_group_params, burst_ns, "burst_ns", 0, DAY_NS),
	NUMBER(vgpu_group_params, reserve_ns, "reserve_ns", 0, DAY_NS),
	NUMBER(vgpu_group_params, reserve_period_ns, "reserve_period_ns", 0, DAY_NS),
	NUMBER(vgpu_group_params, hold_max_ns, "hold_max_ns", 0, DAY_NS),
	NUMBER(vgpu_group_params, inversion_permille, "inversion_permille", 0, 1000),
	NUMBER(vgpu_group_params, inversion_burst_ns, "inversion_burst_ns", 0, DAY_NS),
};

static const struct number_field tenant_fields[] = {
	NUMBER(settings_tenant, memory_bytes, "memory_bytes", 1, UINT64_MAX / 2),
	NUMBER(settings_tenant, window_bytes, "window_bytes", VGPU_WINDOW_BYTES_MIN,
	       VGPU_WINDOW_BYTES_MAX),
	NUMBER(settings_tenant, compile_cache_bytes, "compile_cache_bytes", 0, 1ull << 40),
	NUMBER(settings_tenant, max_processes, "max_processes", 1, SETTINGS_PROCESSES_MAX),
	NUMBER(settings_tenant, process_interval_ns, "process_interval_ns", 0, DAY_NS),
	NUMBER(settings_tenant, process_burst, "process_burst", 1, 65536),
	NUMBER(settings_tenant, socket_mode, "socket_mode", 0, 0777),
	NUMBER(settings_tenant, socket_gid, "socket_gid", 0, UINT32_MAX),
};

#define LENGTH(array)	(sizeof(array) / sizeof((array)[0]))

void settings_refuse(struct settings_fault *fault, const char *code, const char *field,
		     const char *format, ...)
{
	va_list list;

	fault->code = code;
	snprintf(fault->field, sizeof(fault->field), "%s", field);
	va_start(list, format);
	vsnprintf(fault->detail, sizeof(fault->detail), format, list);
	va_end(list);
}

static bool refuse_field(struct settings_fault *fault, const char *where, const char *name,
			 const char *expected)
{
	char field[sizeof(fault->field)];

	snprintf(field, sizeof(field), "%s.%s", where, name);
	settings_refuse(fault, "field.invalid", field, "%s is expected", expected);
	return false;
}

static bool read_numbers(void *into, const struct number_field *fields, size_t count,
			 const struct json *object, const char *where, struct settings_fault *fault)
{
	for (size_t i = 0; i < count; i++) {
		const struct number_field *field = &fields[i];
		const struct json *value = json_get(object, field->name);
		char expected[96];

		if (!value || value->type != JSON_NUMBER || value->number < field->least ||
		    value->number > field->most) {
			snprintf(expected, sizeof(expected), "a whole number from %llu to %llu",
				 (unsigned long long)field->least, (unsigned long long)field->most);
			return refuse_field(fault, where, field->name, expected);
		}
		if (field->bytes == sizeof(uint32_t))
			*(uint32_t *)((char *)into + field->offset) = (uint32_t)value->number;
		else
			*(uint64_t *)((char *)into + field->offset) = value->number;
	}
	return true;
}

static bool read_program(char **into, const struct json *object, const char *name, int mode,
			 struct settings_fault *fault)
{
	const struct json *value = json_get(object, name);

	if (!value || value->type != JSON_STRING || value->text[0] != '/' || access(value->text, mode))
		return refuse_field(fault, "programs", name,
				    mode == X_OK ? "the absolute path of a program" :
						   "the absolute path of a library");
	*into = strdup(value->text);
	return *into || refuse_field(fault, "programs", name, "memory for it");
}

/* A name becomes part of a path and of log lines. */
static bool is_name(const char *text)
{
	size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-");

	return length && length <= SETTINGS_NAME_MAX && !text[length] && text[0] != '-';
}

static bool read_tenant(struct settings_tenant *tenant, const struct json *object,
			struct settings_fault *fault)
{
	const struct json *name = json_get(object, "name");
	const struct json *band = json_get(object, "band");
	const struct json *native = json_get(object, "native");
	char where[SETTINGS_NAME_MAX + 16];

	if (!name || name->type != JSON_STRING || !is_name(name->text))
		return refuse_field(fault, "tenants", "name",
				    "a name of a-z, 0-9 and -, at most 63 long,");
	snprintf(tenant->name, sizeof(tenant->name), "%s", name->text);
	snprintf(where, sizeof(where), "tenants.%s", tenant->name);
	if (!band || band->type != JSON_STRING ||
	    (strcmp(band->text, "fair") && strcmp(band->text, "latency")))
		return refuse_field(fault, where, "band", "fair or latency");
	if (native && native->type != JSON_NULL && native->type != JSON_BOOL)
		return refuse_field(fault, where, "native", "true or false");
	tenant->native = native && native->type == JSON_BOOL && native->number;
	tenant->terms.band = strcmp(band->text, "fair") ? VGPU_BAND_LATENCY : VGPU_BAND_FAIR;
	if (!read_numbers(&tenant->terms, terms_fields, LENGTH(terms_fields), object, where, fault) ||
	    !read_numbers(tenant, tenant_fields, LENGTH(tenant_fields), object, where, fault))
		return false;
	if (tenant->window_bytes % VGPU_WINDOW_PAGE)
		return refuse_field(fault, where, "window_bytes", "a multiple of 4096");
	return true;
}

static bool read_tenants(struct settings *settings, const struct json *list,
			 struct settings_fault *fault)
{
	const struct json *each;
	uint32_t count = 0;

	if (!list || list->type != JSON_ARRAY)
		return refuse_field(fault, "settings", "tenants", "a list");
	for (each = list->first; each; each = each->next)
		count++;
	if (count > SETTINGS_TENANTS_MAX)
		return refuse_field(fault, "settings", "tenants", "at most 256 of them");
	settings->tenants = calloc(count ? count : 1, sizeof(*settings->tenants));
	if (!settings->tenants)
		return refuse_field(fault, "settings", "tenants", "memory for them");
	for (each = list->first; each; each = each->next) {
		struct settings_tenant *tenant = &settings->tenants[settings->tenant_count];

		if (!read_tenant(tenant, each, fault))
			return false;
		if (settings_tenant(settings, tenant->name))
			return refuse_field(fault, "tenants", tenant->name, "no second one of this name");
		settings->tenant_count++;
	}
	return true;
}

/* An optional number. */
static bool read_nvidia(struct settings *settings, const struct json *programs, struct settings_fault *fault)
{
	const struct json *number = json_get(programs, "nvidia");

	if (!number || number->type == JSON_NULL)
		return true;
	if (number->type != JSON_NUMBER || number->number > 31)
		return refuse_field(fault, "programs", "nvidia", "0 to 31");
	snprintf(settings->nvidia, sizeof(settings->nvidia), "%u", (unsigned int)number->number);
	return true;
}

static const struct number_field native_fields[] = {
	NUMBER(settings, native_period_ns, "period_ns", 20000000, 100000000),
};

#define NATIVE_PERIOD_NS	40000000u

/* Read how native programs take turns, if the document specifies it. */
static bool read_native(struct settings *settings, const struct json *native, struct settings_fault *fault)
{
	const struct json *turns = json_get(native, "turns");

	settings->native_period_ns = NATIVE_PERIOD_NS;
	if (!native || native->type == JSON_NULL)
		return true;
	if (!turns || turns->type != JSON_STRING ||
	    (strcmp(turns->text, "firmware") && strcmp(turns->text, "gate")))
		return refuse_field(fault, "native", "turns", "firmware or gate");
	settings->native_turns = strcmp(turns->text, "gate") ? NATIVE_TURNS_FIRMWARE : NATIVE_TURNS_GATE;
	return read_numbers(settings, native_fields, LENGTH(native_fields), native, "native", fault);
}

/*
 * Native programs that share the GPU by firmware must not run beside tenants with leases, because
 * the leases would not be exclusive.
 */
static bool check_native(const struct settings *settings, struct settings_fault *fault)
{
	uint32_t native = 0;

	for (uint32_t i = 0; i < settings->tenant_count; i++)
		native += settings->tenants[i].native;
	if (native && geteuid())
		return refuse_field(fault, "tenants", "native", "a broker that runs as root, if a tenant is native,");
	if (native && !settings->nvidia[0])
		return refuse_field(fault, "programs", "nvidia", "with native tenants, the number of their GPU");
	if (native && native < settings->tenant_count && settings->native_turns == NATIVE_TURNS_FIRMWARE)
		return refuse_field(fault, "native", "turns", "gate, unless all tenants are native,");
	if (native < settings->tenant_count && !settings->library[0])
		return refuse_field(fault, "programs", "library", "for tenants that are not native, a library");
	return true;
}

/* The library may be missing if no tenant uses it. */
static bool read_library(struct settings *settings, const struct json *programs, struct settings_fault *fault)
{
	const struct json *value = json_get(programs, "library");

	if (value && value->type != JSON_NULL)
		return read_program(&settings->library, programs, "library", R_OK, fault);
	settings->library = strdup("");
	return settings->library || refuse_field(fault, "programs", "library", "memory for it");
}

bool settings_read(struct settings *settings, const struct json *document,
		   struct settings_fault *fault)
{
	const struct json *programs = json_get(document, "programs");
	const struct json *engine = json_get(document, "engine");

	*settings = (struct settings){ 0 };
	return read_program(&settings->supervisor, programs, "supervisor", X_OK, fault) &&
	       read_program(&settings->child, programs, "child", X_OK, fault) &&
	       read_library(settings, programs, fault) &&
	       read_nvidia(settings, programs, fault) &&
	       read_numbers(&settings->engine, engine_fields, LENGTH(engine_fields), engine, "engine",
			    fault) &&
	       read_numbers(&settings->arbiter, arbiter_fields, LENGTH(arbiter_fields), engine, "engine",
			    fault) &&
	       read_native(settings, json_get(document, "native"), fault) &&
	       read_tenants(settings, json_get(document, "tenants"), fault) &&
	       check_native(settings, fault);
}

void settings_free(struct settings *settings)
{
	free(settings->supervisor);
	free(settings->child);
	free(settings->library);
	free(settings->tenants);
	*settings = (struct settings){ 0 };
}

const char *settings_field_name(enum vgpu_sched_field field)
{
	switch (field) {
	case VGPU_FIELD_NONE:
		return "";
	case VGPU_FIELD_MAX_CHUNK:
		return "chunk_us";
	case VGPU_FIELD_SWITCH_COST:
		return "switch_cost_us";
	case VGPU_FIELD_WEIGHT:
		return "weight";
	case VGPU_FIELD_TIMESLICE:
		return "timeslice_us";
	case VGPU_FIELD_CAP:
		return "cap_permille";
	case VGPU_FIELD_CAP_PERIOD:
		return "cap_period_us";
	case VGPU_FIELD_BURST:
		return "burst_us";
	case VGPU_FIELD_RESERVE_LIMIT:
		return "reserve_limit_permille";
	case VGPU_FIELD_RESERVE:
		return "reserve_us";
	case VGPU_FIELD_RESERVE_PERIOD:
		return "reserve_period_us";
	case VGPU_FIELD_HOLD:
		return "hold_max_us";
	case VGPU_FIELD_INVERSION:
		return "inversion_permille";
	case VGPU_FIELD_INVERSION_BURST:
		return "inversion_burst_us";
	case VGPU_FIELD_BAND:
		return "band";
	case VGPU_FIELD_MODE:
		return "mode";
	default:
		return "scheduler";
	}
}

const struct settings_tenant *settings_tenant(const struct settings *settings, const char *name)
{
	for (uint32_t i = 0; i < settings->tenant_count; i++)
		if (!strcmp(settings->tenants[i].name, name))
			return &settings->tenants[i];
	return NULL;
}
