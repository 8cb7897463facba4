// SPDX-License-Identifier: Apache-2.0
#include "broker/tenant.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <syslog.h>
#include <unistd.h>

#include "broker/client.h"
#include "broker/firmware.h"
#include "broker/memory.h"
#include "broker/rate.h"
#include "broker/supervisor.h"
#include "executor/log.h"

/*
 * Set in the sequences of FREEZE and THAW, which the arbiter numbers, to keep them apart from the
 * broker's own sequences.
 */
#define GATE_SEQUENCE	(1ull << 63)

#define BACKLOG		64

/* ---- operations of the arbiter */

static struct tenant *of_party(struct vgpu_party *party)
{
	return container_of(party, struct tenant, party);
}

static struct vgpu_party *party_of(struct vgpu_slice *slice)
{
	return &container_of(slice, struct tenant, slice)->party;
}

static void publish(struct vgpu_party *party, const struct vgpu_arbiter_lease *lease, bool wake)
{
	struct vgpu_lease_page *page = of_party(party)->lease;

	atomic_store(&page->begun_ns, lease->begun_ns);
	atomic_store(&page->expires_ns, lease->expires_ns);
	/* Sequentially consistent stores are full barriers for the loads that follow. */
	atomic_store(&page->lease, lease->number << VGPU_LEASE_STATE_BITS | lease->state);
	atomic_thread_fence(memory_order_seq_cst);
	if (wake)
		memory_lease_wake(page);
}

static void read_stream(struct vgpu_stream *stream, struct vgpu_stream_view *view)
{
	const struct client *client = container_of(stream, struct client, stream);

	view->state = atomic_load(&client->page->state);
	view->dry_since_ns = atomic_load(&client->page->dry_since_ns);
	view->idle_ns = atomic_load(&client->page->idle_ns);
}

static void gate(struct vgpu_party *party, bool close, uint64_t sequence)
{
	struct vgpu_supervisor_message message = {
		.op = close ? VGPU_SUPERVISOR_FREEZE : VGPU_SUPERVISOR_THAW,
		.sequence = sequence | GATE_SEQUENCE,
	};

	/*
	 * A failure to send needs no handling here: the broker will notice that the supervisor has
	 * ended, or the arbiter will notice that the answer is missing.
	 */
	supervisor_send(&of_party(party)->supervisor, &message, NULL, 0);
}

static void gate_lost(struct vgpu_party *party)
{
	struct tenant *tenant = of_party(party);

	vgpu_log(LOG_ERR, "tenant=%s event=gate.lost", tenant->settings.name);
	supervisor_kill(&tenant->supervisor);
}

static void arm(struct vgpu_arbiter *arbiter, uint64_t at_ns)
{
	struct broker *broker = container_of(arbiter, struct broker, arbiter);

	loop_arm(&broker->loop, &broker->arbiter_timer, at_ns);
}

const struct vgpu_arbiter_ops tenant_arbiter_ops = {
	.party = party_of,
	.publish = publish,
	.read = read_stream,
	.gate = gate,
	.gate_lost = gate_lost,
	.arm = arm,
};

/* ---- messages of the supervisor */

static struct client *client_of_child(const struct tenant *tenant, uint64_t child)
{
	struct client *client = tenant->clients;

	while (client && (!client->child || client->child != child))
		client = client->next;
	return client;
}

static struct client *client_of_start(const struct tenant *tenant, uint64_t sequence)
{
	struct client *client = tenant->clients;

	while (client && (client->state == CLIENT_GREETING || client->start != sequence))
		client = client->next;
	return client;
}

/*
 * Read the requests that children sent before the gate closed, and only then report that it has
 * closed.
 */
static void gate_answered(struct tenant *tenant, uint64_t sequence, bool done, uint64_t processor_ns)
{
	struct client *client;

	for (client = tenant->clients; client; client = client->next)
		client_drain(client);
	vgpu_arbiter_gate_answer(&tenant->broker->arbiter, &tenant->party, sequence, done, processor_ns,
			    loop_now_ns());
}

/*
 * The scheduler assumes that other tenants wait for chunk_us at most.  If the gate takes longer
 * than that, warn the operator.
 */
static void check_chunk(struct tenant *tenant)
{
	const struct settings *settings = &tenant->broker->settings;
	uint64_t takes_ns = settings->arbiter.grace_ns + tenant->supervisor.gate_ns;

	if (tenant->supervisor.chunk_told || takes_ns <= settings->engine.max_chunk_ns)
		return;
	tenant->supervisor.chunk_told = true;
	vgpu_log(LOG_WARNING, "tenant=%s event=chunk.short gate_p99_us=%llu chunk_us=%llu needed_chunk_us=%llu",
		 tenant->settings.name, (unsigned long long)tenant->supervisor.gate_ns / 1000,
		 (unsigned long long)settings->engine.max_chunk_ns / 1000,
		 (unsigned long long)(takes_ns + 999) / 1000);
}

void tenant_supervisor_said(struct tenant *tenant, const struct vgpu_supervisor_message *message)
{
	bool done = message->op == VGPU_SUPERVISOR_DONE;
	struct client *client;

	if (message->op == VGPU_SUPERVISOR_WORKS) {
		client = client_of_child(tenant, message->child);
		if (client)
			client_works(client, message->status);
		return;
	}
	tenant->supervisor.compilers = message->compilers;
	tenant->supervisor.compile_hits = message->compile_hits;
	tenant->supervisor.compile_kept_bytes = message->compile_kept_bytes;
	tenant->supervisor.enforced = message->enforced <= VGPU_ENFORCED_GATE ? message->enforced :
										VGPU_ENFORCED_UNKNOWN;
	tenant->supervisor.gate_ns = message->gate_ns;
	tenant->native.used_bytes = message->native_bytes;
	check_chunk(tenant);
	if (message->op == VGPU_SUPERVISOR_EXITED) {
		client = client_of_child(tenant, message->child);
		if (client)
			client_ended(client, message->status, message->reason);
		return;
	}
	if (firmware_asked(message->sequence)) {
		firmware_gate_answered(tenant, message->sequence, done);
		return;
	}
	if (message->sequence & GATE_SEQUENCE) {
		if (!done)
			vgpu_log(LOG_ERR, "tenant=%s event=gate.failed %s", tenant->settings.name,
				 message->reason);
		gate_answered(tenant, message->sequence & ~GATE_SEQUENCE, done, message->processor_ns);
		return;
	}
	client = client_of_start(tenant, message->sequence);
	if (client)
		client_started(client, done, message->reason);
}

void tenant_supervisor_lost(struct tenant *tenant)
{
	struct client *client = tenant->clients, *next;

	vgpu_arbiter_gate_reset(&tenant->broker->arbiter, &tenant->party, loop_now_ns());
	for (; client; client = next) {
		next = client->next;
		if (client->state != CLIENT_GREETING)
			client_ended(client, SIGKILL, "its supervisor died");
	}
	firmware_supervisor_lost(tenant);
	tenant_review(tenant);
}

/* ---- tenants */

static void farewell_due(struct loop_timer *timer, uint64_t now_ns);

static void socket_ready(struct loop_watch *watch, uint32_t events)
{
	struct tenant *tenant = (struct tenant *)((char *)watch - offsetof(struct tenant, socket));
	int fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC);

	(void)events;
	if (fd >= 0)
		client_accept(tenant, fd);
	else if (errno == EMFILE || errno == ENFILE)
		usleep(1000);	/* wait until other descriptors are closed */
}

static bool socket_path(const struct broker *broker, const char *name, struct sockaddr_un *address)
{
	int length = snprintf(address->sun_path, sizeof(address->sun_path), "%s/%s.sock",
			      broker->directory, name);

	address->sun_family = AF_UNIX;
	return length > 0 && (size_t)length < sizeof(address->sun_path);
}

static void set_permissions(const struct tenant *tenant)
{
	struct sockaddr_un address;

	if (!socket_path(tenant->broker, tenant->settings.name, &address))
		return;
	/* Change the group first: the old group must not get the new permissions. */
	if (tenant->settings.socket_gid != (gid_t)UINT32_MAX &&
	    chown(address.sun_path, (uid_t)-1, tenant->settings.socket_gid))
		vgpu_log(LOG_ERR, "tenant=%s event=socket.group gid=%u %m", tenant->settings.name,
			 tenant->settings.socket_gid);
	if (chmod(address.sun_path, tenant->settings.socket_mode))
		vgpu_log(LOG_ERR, "tenant=%s event=socket.mode %m", tenant->settings.name);
}

static int open_socket(struct tenant *tenant)
{
	struct sockaddr_un address;
	mode_t mask;
	int fd, failed;

	if (!socket_path(tenant->broker, tenant->settings.name, &address))
		return -ENAMETOOLONG;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	unlink(address.sun_path);
	mask = umask(0177);
	failed = bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, BACKLOG) ? errno : 0;
	umask(mask);
	if (failed) {
		close(fd);
		return -failed;
	}
	tenant->socket.fd = fd;
	failed = loop_add(&tenant->broker->loop, &tenant->socket, EPOLLIN);
	if (failed) {
		loop_remove(&tenant->broker->loop, &tenant->socket);
		return failed;
	}
	set_permissions(tenant);
	return 0;
}

static struct tenant *cannot(struct tenant *tenant, struct settings_fault *fault, int error)
{
	char field[sizeof(fault->field)];

	snprintf(field, sizeof(field), "tenants.%s", tenant->settings.name);
	settings_refuse(fault, "broker.failed", field, "its socket or lease page cannot be made: %s",
			strerror(-error));
	loop_remove(&tenant->broker->loop, &tenant->socket);
	memory_unmap(tenant->lease);
	if (tenant->lease_fd >= 0)
		close(tenant->lease_fd);
	free(tenant);
	return NULL;
}

enum vgpu_sched_field tenant_join(struct vgpu_sched *sched, struct vgpu_group *group,
				  struct vgpu_slice *slice, const struct vgpu_group_params *terms,
				  uint64_t now_ns)
{
	const struct vgpu_slice_params whole = { .weight = 1 };
	enum vgpu_sched_field refused = vgpu_group_add(sched, group, terms, now_ns);

	if (refused)
		return refused;
	refused = vgpu_slice_add(sched, group, slice, &whole, now_ns);
	if (refused)
		vgpu_group_remove(sched, group, now_ns);
	return refused;
}

static enum vgpu_sched_field enter(struct tenant *tenant)
{
	struct broker *broker = tenant->broker;
	uint64_t now_ns = vgpu_arbiter_settle(&broker->arbiter, loop_now_ns());
	enum vgpu_sched_field refused = tenant_join(&broker->sched, &tenant->group, &tenant->slice,
						    &tenant->settings.terms, now_ns);

	if (!refused)
		vgpu_arbiter_party_add(&broker->arbiter, &tenant->party, &tenant->slice, now_ns);
	vgpu_arbiter_changed(&broker->arbiter, now_ns);
	return refused;
}

static void leave(struct tenant *tenant, uint64_t now_ns)
{
	struct broker *broker = tenant->broker;

	vgpu_arbiter_party_remove(&broker->arbiter, &tenant->party, now_ns);
	now_ns = vgpu_arbiter_settle(&broker->arbiter, now_ns);
	vgpu_slice_remove(&broker->sched, &tenant->slice, now_ns);
	vgpu_group_remove(&broker->sched, &tenant->group, now_ns);
	vgpu_arbiter_changed(&broker->arbiter, now_ns);
}

struct tenant *tenant_create(struct broker *broker, const struct settings_tenant *settings,
			     struct settings_fault *fault)
{
	struct tenant *tenant = calloc(1, sizeof(*tenant));
	int error;

	if (!tenant) {
		settings_refuse(fault, "broker.failed", "tenants", "there is no memory for %s", settings->name);
		return NULL;
	}
	tenant->broker = broker;
	tenant->settings = *settings;
	tenant->socket = (struct loop_watch){ .fd = -1, .ready = socket_ready };
	tenant->farewell.due = farewell_due;
	rate_init(tenant, loop_now_ns());
	tenant->lease_fd = memory_lease(&tenant->lease);
	if (tenant->lease_fd < 0)
		return cannot(tenant, fault, tenant->lease_fd);
	error = open_socket(tenant);
	if (error)
		return cannot(tenant, fault, error);
	if (enter(tenant))
		return cannot(tenant, fault, -EINVAL);
	tenant->next = broker->tenants;
	broker->tenants = tenant;
	firmware_join(tenant);
	supervisor_init(&tenant->supervisor, tenant);
	return tenant;
}

void tenant_configure(struct tenant *tenant, const struct settings_tenant *settings)
{
	rate_change(tenant, settings, loop_now_ns());
	tenant->settings = *settings;
	firmware_terms(tenant);
	set_permissions(tenant);
}

void tenant_leave(struct tenant *tenant)
{
	struct sockaddr_un address;
	struct client *client, *next;

	if (tenant->leaving)
		return;
	tenant->leaving = true;
	loop_remove(&tenant->broker->loop, &tenant->socket);
	if (socket_path(tenant->broker, tenant->settings.name, &address))
		unlink(address.sun_path);
	for (client = tenant->clients; client; client = next) {
		next = client->next;
		client_end(client, VGPU_REFUSED_STOPPING, "the broker or this tenant is being stopped");
	}
	tenant_review(tenant);
}

void tenant_review(struct tenant *tenant)
{
	/* Free the tenant later, because the caller may still use it. */
	if (tenant->leaving && !tenant->clients)
		loop_arm(&tenant->broker->loop, &tenant->farewell, loop_now_ns());
}

static void farewell_due(struct loop_timer *timer, uint64_t now_ns)
{
	struct tenant *tenant = (struct tenant *)((char *)timer - offsetof(struct tenant, farewell));
	struct broker *broker = tenant->broker;
	struct tenant **link = &broker->tenants;

	if (tenant->clients)
		return;
	if (tenant->supervisor.state != SUPERVISOR_DOWN) {
		supervisor_end(&tenant->supervisor);
		return;
	}
	while (*link != tenant)
		link = &(*link)->next;
	*link = tenant->next;
	firmware_leave(tenant);
	leave(tenant, now_ns);
	supervisor_end(&tenant->supervisor);
	memory_unmap(tenant->lease);
	close(tenant->lease_fd);
	vgpu_log(LOG_INFO, "tenant=%s event=tenant.removed", tenant->settings.name);
	free(tenant);
	broker_review_stop(broker);
}

struct tenant *tenant_find(const struct broker *broker, const char *name)
{
	struct tenant *tenant = broker->tenants;

	while (tenant && strcmp(tenant->settings.name, name))
		tenant = tenant->next;
	return tenant;
}

uint32_t tenant_process_count(const struct tenant *tenant)
{
	const struct client *client;
	uint32_t count = 0;

	for (client = tenant->clients; client; client = client->next)
		count += client->state != CLIENT_GREETING || client->native;
	return count;
}
