/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The broker's configuration, in the format of `vgpumgr broker`: one JSON document with all
 * fields, times in ns.  People write TOML (docs/compute.md), which Python checks.  Here only
 * the properties that the broker relies on are checked.
 */
#ifndef VGPU_BROKER_SETTINGS_H
#define VGPU_BROKER_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "broker/json.h"
#include "sched/vgpu_arbiter.h"

#define SETTINGS_TENANTS_MAX	256u
#define SETTINGS_NAME_MAX	63u
/* Maximum number of processes that a supervisor accepts. */
#define SETTINGS_PROCESSES_MAX	64u

struct settings_tenant {
	char name[SETTINGS_NAME_MAX + 1];
	struct vgpu_group_params terms;
	uint64_t memory_bytes;
	uint64_t window_bytes;
	uint64_t compile_cache_bytes;	/* takes effect when the supervisor starts */
	uint64_t process_interval_ns;	/* average time between new processes */
	uint32_t process_burst;
	uint32_t max_processes;
	mode_t socket_mode;
	gid_t socket_gid;
	bool native;	/* its programs open the GPU themselves */
};

/* How native programs take their turns. */
enum native_turns_by {
	NATIVE_TURNS_FIRMWARE,	/* side by side, timeslices by weight; gates enforce the caps */
	NATIVE_TURNS_GATE,	/* one tenant at a time, in leases like other tenants */
};

struct settings {
	char *supervisor;
	char *child;
	char *library;	/* "" if all tenants are native */
	char nvidia[4];	/* minor number of the GPU whose channels the gate stops; "" for none */
	struct vgpu_sched_params engine;
	struct vgpu_arbiter_settings arbiter;
	enum native_turns_by native_turns;
	uint64_t native_period_ns;
	struct settings_tenant *tenants;
	uint32_t tenant_count;
};

/**
 * struct settings_fault - why a configuration is refused
 * @code: error code; its text never changes
 * @field: such as tenants.blue.weight; "" for none
 * @detail: text for people
 */
struct settings_fault {
	const char *code;
	char field[128];
	char detail[256];
};

/**
 * settings_read() - check a document
 * @settings: to be freed with settings_free(), whatever the result is
 *
 * Return: whether the document is valid; if not, @fault says why.
 */
bool settings_read(struct settings *settings, const struct json *document,
		   struct settings_fault *fault);
void settings_free(struct settings *settings);

/* Return the tenant with this name, or NULL. */
const struct settings_tenant *settings_tenant(const struct settings *settings, const char *name);

/* Return the name of a field that the scheduler refuses; "" for NONE. */
const char *settings_field_name(enum vgpu_sched_field field);

void settings_refuse(struct settings_fault *fault, const char *code, const char *field,
		     const char *format, ...) __attribute__((format(printf, 4, 5)));

#endif /* VGPU_BROKER_SETTINGS_H */
