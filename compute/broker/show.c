// SPDX-License-Identifier: Apache-2.0
#include "broker/show.h"

#include "broker/firmware.h"
#include "broker/json.h"

struct number {
	const char *name;
	uint64_t value;
};

static void numbers(FILE *file, const struct number *list, size_t count)
{
	for (size_t i = 0; i < count; i++)
		fprintf(file, "%s\"%s\":%llu", i ? "," : "", list[i].name,
			(unsigned long long)list[i].value);
}

#define NUMBERS(file, ...) do {							\
	const struct number list_[] = { __VA_ARGS__ };				\
	numbers(file, list_, sizeof(list_) / sizeof(list_[0]));			\
} while (0)

static const char *const lease_states[] = { "none", "lent", "recalled", "expired" };
static const char *const client_states[] = { "greeting", "starting", "running", "ending" };
static const char *const refusals[] = {
	"nothing", "version", "message", "processes", "rate", "memory", "executor", "stopping", "native",
};

static const char *const enforcers[] = {
	[VGPU_ENFORCED_UNKNOWN] = "unknown", [VGPU_ENFORCED_EXECUTOR] = "executor",
	[VGPU_ENFORCED_GATE] = "broker+gate",
};

static uint64_t memory_of(const struct client *client)
{
	uint64_t most = client->tenant->settings.memory_bytes;
	uint64_t bytes = client->page ? atomic_load(&client->page->memory_bytes) : 0;

	return bytes < most ? bytes : most;
}

/*
 * Children may report wrong values here, which only misleads their own tenant.  The limit is
 * enforced on the supervisor's count.
 */
static uint64_t memory_used(const struct tenant *tenant)
{
	const struct client *client;
	uint64_t bytes = 0;

	for (client = tenant->clients; client; client = client->next)
		bytes += memory_of(client);
	return bytes < tenant->settings.memory_bytes ? bytes : tenant->settings.memory_bytes;
}

/*
 * The child's values are shown unchecked, except that the number of pieces under way never becomes
 * negative.
 */
static void show_client(const struct client *client, FILE *file)
{
	uint64_t submitted = client->page ? atomic_load(&client->page->submitted) : 0;
	uint64_t finished = client->page ? atomic_load(&client->page->finished) : 0;

	fprintf(file, "{\"state\":\"%s\",\"native\":%s,\"works\":%s,", client_states[client->state],
		client->native ? "true" : "false", client->works ? "true" : "false");
	NUMBERS(file, { "child", client->child }, { "pid", (uint64_t)client->pid },
		{ "uid", client->uid }, { "since_ns", client->since_ns }, { "submitted", submitted },
		{ "finished", finished },
		{ "failed", client->page ? atomic_load(&client->page->failed) : 0 },
		{ "memory_used_bytes", memory_of(client) },
		{ "under_way", submitted > finished ? submitted - finished : 0 });
	fputc('}', file);
}

static void show_stats(const struct tenant *tenant, FILE *file)
{
	const struct vgpu_party_stats *stats = &tenant->party.stats;
	const struct vgpu_group_stats *core = &tenant->group.stats;

	fputs("\"stats\":{", file);
	NUMBERS(file, { "leases", stats->leases }, { "leased_ns", core->run_ns },
		{ "lent_ns", stats->lent_ns }, { "dries", stats->dries }, { "recalls", stats->recalls }, { "waits", stats->waits },
		{ "waited_ns", stats->waited_ns }, { "longest_wait_ns", stats->longest_wait_ns },
		{ "gates", stats->gates }, { "gate_ns", stats->gate_ns },
		{ "longest_gate_ns", stats->longest_gate_ns }, { "offences", stats->offences },
		{ "fined_ns", stats->fined_ns }, { "runs", core->runs }, { "switches", core->switches },
		{ "throttles", core->throttles }, { "throttled_ns", core->throttled_ns },
		{ "latency_ns", core->latency_ns }, { "demotions", core->demotions },
		{ "holds", core->holds }, { "hold_ns", core->hold_ns });
	fputs("},", file);
}

/* Return what enforces a tenant's share and cap. */
static const char *enforcer(const struct tenant *tenant)
{
	/* A gate that was never closed is assumed to work. */
	bool gate = tenant->supervisor.enforced != VGPU_ENFORCED_EXECUTOR;

	if (!tenant->settings.native || !firmware_shares(tenant->broker))
		return enforcers[tenant->supervisor.enforced];
	return tenant->settings.terms.cap_ns && gate ? "firmware+gate" : "firmware";
}

static void show_native(const struct tenant *tenant, FILE *file)
{
	const struct native_turns *native = &tenant->native;
	const struct client *client;
	uint64_t programs = 0, working = 0;

	for (client = tenant->clients; client; client = client->next) {
		programs += client->native;
		working += client->native && client->works;
	}
	fputs("\"native\":{", file);
	NUMBERS(file, { "programs", programs }, { "working", working }, { "programs_ever", native->programs },
		{ "open_ns", native->duty.open_ns }, { "obtained_ns", native->duty.obtained_ns },
		{ "gates", native->gates }, { "timeslice_us", native->timeslice_us },
		{ "memory_used_bytes", native->used_bytes });
	fprintf(file, ",\"open\":%s},", native->duty.open ? "true" : "false");
}

static void show_tenant(const struct tenant *tenant, FILE *file)
{
	const struct settings_tenant *settings = &tenant->settings;
	const struct vgpu_group_params *terms = &settings->terms;
	const struct vgpu_arbiter *arbiter = &tenant->broker->arbiter;
	const struct client *client;
	const char *comma = "";

	fputs("{\"name\":", file);
	json_write(file, settings->name);
	fprintf(file, ",\"leaving\":%s,\"confined\":%s,\"holds_lease\":%s,\"band\":\"%s\",",
		tenant->leaving ? "true" : "false",
		vgpu_arbiter_is_confined(arbiter, &tenant->party) ? "true" : "false",
		vgpu_arbiter_holder(arbiter) == &tenant->party ? "true" : "false",
		terms->band == VGPU_BAND_LATENCY ? "latency" : "fair");
	NUMBERS(file, { "weight", terms->weight }, { "timeslice_ns", terms->timeslice_ns },
		{ "cap_ns", terms->cap_ns }, { "cap_period_ns", terms->cap_period_ns },
		{ "reserve_ns", terms->reserve_ns }, { "reserve_period_ns", terms->reserve_period_ns },
		{ "memory_bytes", settings->memory_bytes },
		{ "memory_used_bytes", memory_used(tenant) }, { "window_bytes", settings->window_bytes },
		{ "max_processes", settings->max_processes }, { "processes_ever", tenant->processes });
	fprintf(file, ",\"lease\":{\"state\":\"%s\",", lease_states[tenant->party.lease.state]);
	NUMBERS(file, { "number", tenant->party.lease.number },
		{ "begun_ns", tenant->party.lease.begun_ns },
		{ "expires_ns", tenant->party.lease.expires_ns });
	fputs("},", file);
	show_stats(tenant, file);
	if (tenant->settings.native)
		show_native(tenant, file);
	fprintf(file, "\"supervisor\":{\"state\":\"%s\",",
		tenant->supervisor.state == SUPERVISOR_UP ? "up" : "down");
	NUMBERS(file, { "pid", (uint64_t)tenant->supervisor.pid },
		{ "starts", tenant->supervisor.starts },
		{ "compilers", tenant->supervisor.compilers },
		{ "compile_hits", tenant->supervisor.compile_hits },
		{ "compile_kept_bytes", tenant->supervisor.compile_kept_bytes },
		{ "gate_p99_ns", tenant->supervisor.gate_ns });
	fprintf(file, ",\"enforced_by\":\"%s\"", enforcer(tenant));
	fputs("},\"refused\":{", file);
	for (unsigned int i = VGPU_REFUSED_VERSION; i <= VGPU_REFUSED_LAST; i++)
		fprintf(file, "%s\"%s\":%llu", i > VGPU_REFUSED_VERSION ? "," : "", refusals[i],
			(unsigned long long)tenant->refused[i]);
	fputs("},\"processes\":[", file);
	for (client = tenant->clients; client; client = client->next) {
		if (client->state == CLIENT_GREETING)
			continue;
		fputs(comma, file);
		show_client(client, file);
		comma = ",";
	}
	fputs("]}", file);
}

void show(struct broker *broker, FILE *file)
{
	const struct vgpu_sched_stats *stats = &broker->sched.stats;
	const struct tenant *tenant;
	uint64_t now_ns = loop_now_ns();

	vgpu_arbiter_settle(&broker->arbiter, now_ns);
	firmware_settle(broker, now_ns);
	fputs("{\"ok\":true,", file);
	NUMBERS(file, { "generation", broker->generation }, { "now_ns", now_ns },
		{ "started_ns", broker->started_ns });
	fputs(",\"engine\":{", file);
	NUMBERS(file, { "wall_ns", stats->wall_ns }, { "idle_ns", stats->idle_ns },
		{ "picks", stats->picks }, { "switches", stats->switches });
	fputs("},\"tenants\":[", file);
	for (tenant = broker->tenants; tenant; tenant = tenant->next) {
		show_tenant(tenant, file);
		if (tenant->next)
			fputc(',', file);
	}
	fputs("]}\n", file);
}
