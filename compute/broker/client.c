// SPDX-License-Identifier: Apache-2.0
#include "broker/client.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include "broker/firmware.h"
#include "broker/memory.h"
#include "broker/rate.h"
#include "broker/supervisor.h"
#include "broker/tenant.h"
#include "executor/datagram.h"
#include "executor/header.h"
#include "executor/log.h"

#define SECOND_NS	1000000000ull
#define HELLO_WITHIN_NS	5000000000ull
#define END_WITHIN_NS	5000000000ull
/* Maximum number of connections of one tenant that have not sent HELLO yet. */
#define GREETING_MAX	32u

/*
 * Limits for the datagrams of all children of a tenant: 5000 per second, and CREDIT_MAX at once.  A
 * child sends at most two per lease.
 */
#define CREDIT_MAX	1000u
#define CREDIT_NS	200000u
#define PAUSE_NS	10000000u
/*
 * A little more than the number of datagrams that a well-behaved child can have sent since the
 * broker last read one.
 */
#define DRAIN_MAX	4u

#define PROGRAM_ENDED	"the program has ended and its child was removed"

static struct loop *loop_of(const struct client *client)
{
	return &client->tenant->broker->loop;
}

static struct vgpu_arbiter *arbiter_of(const struct client *client)
{
	return &client->tenant->broker->arbiter;
}

static void client_free(struct client *client)
{
	struct client **link = &client->tenant->clients;
	struct tenant *tenant = client->tenant;

	while (*link != client)
		link = &(*link)->next;
	*link = client->next;
	loop_remove(loop_of(client), &client->socket);
	loop_remove(loop_of(client), &client->requests);
	loop_remove(loop_of(client), &client->listener);
	loop_arm(loop_of(client), &client->patience, UINT64_MAX);
	loop_arm(loop_of(client), &client->refill, UINT64_MAX);
	memory_unmap(client->page);
	memory_unmap(client->window);
	if (client->window_fd >= 0)
		close(client->window_fd);
	free(client);
	tenant_review(tenant);
}

/* If the program is still connected, send it the reason and hang up. */
static void hang_up(struct client *client, enum vgpu_refusal refusal, const char *reason)
{
	struct vgpu_client_message message = {
		.version = VGPU_CONTROL_VERSION,
		.op = VGPU_CLIENT_REFUSED,
		.refusal = refusal,
	};

	if (client->socket.fd < 0)
		return;
	snprintf(message.reason, sizeof(message.reason), "%s", reason);
	vgpu_datagram_send(client->socket.fd, &message, sizeof(message), NULL, 0);
	loop_remove(loop_of(client), &client->socket);
}

/* A tenant can cause refusals at any rate, so the log lines are limited. */
static void arm_refusals(struct broker *broker)
{
	const struct tenant *tenant;
	uint64_t due_ns = UINT64_MAX;

	for (tenant = broker->tenants; tenant; tenant = tenant->next)
		if (vgpu_notice_due_ns(&tenant->refusals) < due_ns)
			due_ns = vgpu_notice_due_ns(&tenant->refusals);
	loop_arm(&broker->loop, &broker->refusals, due_ns);
}

void client_refusals_due(struct loop_timer *timer, uint64_t now_ns)
{
	struct broker *broker = (struct broker *)((char *)timer - offsetof(struct broker, refusals));
	struct tenant *tenant;

	for (tenant = broker->tenants; tenant; tenant = tenant->next) {
		uint64_t left_out = vgpu_notice_take(&tenant->refusals, now_ns);

		if (left_out)
			vgpu_log(LOG_NOTICE, "tenant=%s event=client.refused left_out=%llu", tenant->settings.name,
				 (unsigned long long)left_out);
	}
	arm_refusals(broker);
}

void client_refuse(struct client *client, enum vgpu_refusal refusal, const char *reason)
{
	struct tenant *tenant = client->tenant;

	tenant->refused[refusal]++;
	if (vgpu_notice_may(&tenant->refusals, loop_now_ns()))
		vgpu_log(LOG_NOTICE, "tenant=%s event=client.refused program_pid=%d refusal=%d %s",
			 tenant->settings.name, client->pid, refusal, reason);
	else
		arm_refusals(tenant->broker);
	client_end(client, refusal, reason);
}

void client_end(struct client *client, enum vgpu_refusal refusal, const char *reason)
{
	struct vgpu_supervisor_message message = {
		.op = VGPU_SUPERVISOR_KILL,
		.child = client->child,
	};

	if (client->state != CLIENT_ENDING)
		client->left = refusal == VGPU_REFUSED_NOTHING;
	snprintf(message.reason, sizeof(message.reason), "%s", client->left ? PROGRAM_ENDED : reason);
	hang_up(client, refusal, reason);
	if (client->state == CLIENT_GREETING) {
		client_free(client);
		return;
	}
	if (client->state == CLIENT_ENDING)
		return;
	client->state = CLIENT_ENDING;
	loop_arm(loop_of(client), &client->patience, loop_now_ns() + END_WITHIN_NS);
	/* If the message cannot be sent, the supervisor is dying, and its children die with it. */
	supervisor_send(&client->tenant->supervisor, &message, NULL, 0);
}

void client_ended(struct client *client, int status, const char *reason)
{
	const char *name = client->tenant->settings.name;
	char text[VGPU_REASON_BYTES];

	if (client->left && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
		snprintf(text, sizeof(text), "%s", PROGRAM_ENDED);
	else
		vgpu_exit_text(text, status, reason);
	/* A native program may end by itself; a child may not. */
	vgpu_log(client->state == CLIENT_ENDING || (!status && client->tenant->settings.native) ? LOG_INFO : LOG_WARNING,
		 "tenant=%s event=child.ended child=%llu program_pid=%d %s", name, (unsigned long long)client->child,
		 client->pid, text);
	if (client->window)
		memory_window_lost(client->window);
	hang_up(client, VGPU_REFUSED_EXECUTOR, text);
	if (client->has_stream)
		vgpu_arbiter_stream_remove(arbiter_of(client), &client->stream, loop_now_ns());
	client->state = CLIENT_ENDING;
	if (client->native)
		firmware_works(client->tenant);
	client_free(client);
}

/* ---- requests of the child */

static void refill_credit(struct tenant *tenant, uint64_t now_ns)
{
	uint64_t earned = (now_ns - tenant->credit_at_ns) / CREDIT_NS;

	tenant->credit_at_ns += earned * CREDIT_NS;
	tenant->credit = earned < CREDIT_MAX - tenant->credit ? tenant->credit + (uint32_t)earned :
								CREDIT_MAX;
}

/* Return whether there may be more requests. */
static bool read_request(struct client *client)
{
	struct vgpu_stream_request request;
	int got;

	if (client->requests.fd < 0)
		return false;
	got = vgpu_datagram_receive(client->requests.fd, &request, sizeof(request));
	if (!got)
		return false;
	if (got == 1) {
		/* Ignore requests of a dying child. */
		if (client->state == CLIENT_ENDING ||
		    vgpu_arbiter_request(arbiter_of(client), &client->stream, &request, loop_now_ns()))
			return true;
	}
	loop_remove(loop_of(client), &client->requests);
	if (got == -EPIPE && client->state != CLIENT_ENDING) {
		/*
		 * The child has closed its socket, so it should end soon.  If it has not ended
		 * after the time limit, it is killed.
		 */
		loop_arm(loop_of(client), &client->patience, loop_now_ns() + END_WITHIN_NS);
	} else {
		client_end(client, VGPU_REFUSED_EXECUTOR, "the child broke the protocol");
	}
	return false;
}

void client_drain(struct client *client)
{
	struct tenant *tenant = client->tenant;
	unsigned int left = DRAIN_MAX;

	refill_credit(tenant, loop_now_ns());
	while (left-- && tenant->credit && read_request(client))
		tenant->credit--;
}

static void requests_ready(struct loop_watch *watch, uint32_t events)
{
	struct client *client = (struct client *)((char *)watch - offsetof(struct client, requests));
	struct tenant *tenant = client->tenant;
	uint64_t now_ns = loop_now_ns();

	refill_credit(tenant, now_ns);
	if (tenant->credit) {
		tenant->credit--;
		read_request(client);
	} else if (events & (EPOLLHUP | EPOLLERR)) {
		read_request(client);	/* drain a closed socket, even without credit */
	} else {
		loop_change(loop_of(client), watch, 0);
		loop_arm(loop_of(client), &client->refill, now_ns + PAUSE_NS);
	}
}

static void refill_due(struct loop_timer *timer, uint64_t now_ns)
{
	struct client *client = (struct client *)((char *)timer - offsetof(struct client, refill));

	(void)now_ns;
	if (client->requests.fd >= 0)
		loop_change(loop_of(client), &client->requests, EPOLLIN);
}

/* ---- a new process */

static bool send_start(struct client *client, int stream_fd, int requests_fd)
{
	struct tenant *tenant = client->tenant;
	const int fds[] = { client->window_fd, tenant->lease_fd, stream_fd, requests_fd };
	struct vgpu_supervisor_message message = {
		.op = VGPU_SUPERVISOR_START,
		.child = client->child,
		.window_bytes = client->window_bytes,
		.memory_bytes = tenant->settings.memory_bytes,
	};

	if (!supervisor_send(&tenant->supervisor, &message, fds, 4))
		return false;
	client->start = message.sequence;
	return true;
}

/*
 * Create the child's memory and socket, and ask the supervisor to start the child.  Return: the
 * refusal, or VGPU_REFUSED_NOTHING.
 */
static enum vgpu_refusal start_child(struct client *client)
{
	struct tenant *tenant = client->tenant;
	int pair[2] = { -1, -1 };
	int stream_fd = -1;
	bool sent = false;

	client->window_bytes = tenant->settings.window_bytes;
	client->window_fd = memory_window(client->window_bytes, &client->window);
	if (client->window_fd >= 0)
		stream_fd = memory_stream(&client->page);
	if (stream_fd >= 0 &&
	    !socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
		client->requests.fd = pair[0];
		client->child = ++tenant->broker->children;
		if (!loop_add(loop_of(client), &client->requests, EPOLLIN))
			sent = send_start(client, stream_fd, pair[1]);
		close(pair[1]);
	}
	if (stream_fd >= 0)
		close(stream_fd);
	if (sent)
		return VGPU_REFUSED_NOTHING;
	client->child = 0;
	loop_remove(loop_of(client), &client->requests);
	return pair[0] < 0 ? VGPU_REFUSED_MEMORY : VGPU_REFUSED_EXECUTOR;
}

bool client_admit(struct client *client)
{
	struct tenant *tenant = client->tenant;
	uint64_t wait_ns;
	char text[VGPU_REASON_BYTES];

	if (tenant->leaving || tenant->broker->stopping) {
		client_refuse(client, VGPU_REFUSED_STOPPING, "the broker or this tenant is being stopped");
		return false;
	}
	if (tenant_process_count(tenant) >= tenant->settings.max_processes) {
		snprintf(text, sizeof(text),
			 "tenant %s already has as many processes as max_processes permits (%u)",
			 tenant->settings.name, tenant->settings.max_processes);
		client_refuse(client, VGPU_REFUSED_PROCESSES, text);
		return false;
	}
	if (!supervisor_is_up(&tenant->supervisor)) {
		client_refuse(client, VGPU_REFUSED_EXECUTOR,
			      "the tenant's supervisor is being started again; try in a moment");
		return false;
	}
	wait_ns = rate_take(tenant, loop_now_ns());
	if (!wait_ns)
		return true;
	snprintf(text, sizeof(text), "processes_per_minute is %llu; try in %llu s",
		 60 * SECOND_NS / tenant->settings.process_interval_ns, (wait_ns + SECOND_NS - 1) / SECOND_NS);
	client_refuse(client, VGPU_REFUSED_RATE, text);
	return false;
}

static void greet(struct client *client)
{
	struct tenant *tenant = client->tenant;
	uint64_t now_ns = loop_now_ns();
	enum vgpu_refusal refusal;

	if (tenant->settings.native) {
		client_refuse(client, VGPU_REFUSED_NATIVE,
			      "this tenant's programs are native; start them with `vgpumgr run --native`");
		return;
	}
	if (!client_admit(client))
		return;
	refusal = start_child(client);
	if (refusal) {
		client_refuse(client, refusal, refusal == VGPU_REFUSED_MEMORY ?
		       "there is no memory, or no descriptor, for a window" :
		       "the tenant's supervisor did not accept the child");
		return;
	}
	client->state = CLIENT_STARTING;
	client->since_ns = now_ns;
	client->has_stream = true;
	tenant->processes++;
	vgpu_arbiter_stream_add(arbiter_of(client), &tenant->party, &client->stream, false, now_ns);
	loop_arm(loop_of(client), &client->patience, now_ns + HELLO_WITHIN_NS);
}

static void log_start(const struct client *client)
{
	vgpu_log(LOG_INFO, "tenant=%s event=%s.started child=%llu program_pid=%d uid=%d",
		 client->tenant->settings.name, client->native ? "native" : "child",
		 (unsigned long long)client->child, client->pid, client->uid);
}

void client_started(struct client *client, bool done, const char *reason)
{
	struct vgpu_client_message message = {
		.version = VGPU_CONTROL_VERSION,
		.op = VGPU_CLIENT_WELCOME,
		.window_bytes = client->window_bytes,
	};
	char text[VGPU_REASON_BYTES];

	if (!done) {
		/* No child was started, so there is nothing to wait for. */
		snprintf(text, sizeof(text), client->native ? "the program was not taken: %.150s" :
							      "the child did not start: %.150s", reason);
		client->tenant->refused[VGPU_REFUSED_EXECUTOR]++;
		vgpu_log(LOG_WARNING, "tenant=%s event=child.failed child=%llu %s",
			 client->tenant->settings.name, (unsigned long long)client->child, text);
		hang_up(client, VGPU_REFUSED_EXECUTOR, text);
		if (client->has_stream)
			vgpu_arbiter_stream_remove(arbiter_of(client), &client->stream, loop_now_ns());
		client_free(client);
		return;
	}
	if (client->state != CLIENT_STARTING)
		return;
	loop_arm(loop_of(client), &client->patience, UINT64_MAX);
	client->state = CLIENT_RUNNING;
	if (client->native) {
		log_start(client);
		return;
	}
	if (vgpu_datagram_send(client->socket.fd, &message, sizeof(message), &client->window_fd, 1)) {
		client_end(client, VGPU_REFUSED_NOTHING, "");
		return;
	}
	close(client->window_fd);
	client->window_fd = -1;
	log_start(client);
}

/* ---- the program */

static void socket_ready(struct loop_watch *watch, uint32_t events)
{
	struct client *client = (struct client *)((char *)watch - offsetof(struct client, socket));
	struct vgpu_client_message message;
	int listener, got = vgpu_datagram_receive_fd(watch->fd, &message, sizeof(message), &listener);

	(void)events;
	if (!got)
		return;
	if (client->native && got < 0) {
		/*
		 * The launcher closed the connection, because it has become the program or has
		 * ended.  In the second case the supervisor will report that the launcher has
		 * ended.
		 */
		loop_remove(loop_of(client), &client->socket);
		return;
	}
	if (got > 0 && client->state == CLIENT_GREETING && !client->native && message.op == VGPU_CLIENT_NATIVE &&
	    listener >= 0 && message.version == VGPU_CONTROL_VERSION) {
		client_greet_native(client, listener);
		return;
	}
	if (listener >= 0) {
		close(listener);
		got = -EBADMSG;
	}
	if (got < 0 && got != -EBADMSG) {
		client_end(client, VGPU_REFUSED_NOTHING, "");
		return;
	}
	if (got < 0 || client->state != CLIENT_GREETING || message.op != VGPU_CLIENT_HELLO) {
		client_refuse(client, VGPU_REFUSED_MESSAGE, "a program must send HELLO once, and nothing else");
		return;
	}
	if (message.version != VGPU_CONTROL_VERSION) {
		client_refuse(client, VGPU_REFUSED_VERSION, "the program's library is of another version of vgpumgr");
		return;
	}
	greet(client);
}

static void patience_due(struct loop_timer *timer, uint64_t now_ns)
{
	struct client *client = (struct client *)((char *)timer - offsetof(struct client, patience));

	(void)now_ns;
	switch (client->state) {
	case CLIENT_GREETING:
		client_refuse(client, VGPU_REFUSED_MESSAGE, "the program did not send HELLO in time");
		break;
	case CLIENT_STARTING:
	case CLIENT_ENDING:
		vgpu_log(LOG_ERR, "tenant=%s event=supervisor.silent child=%llu",
			 client->tenant->settings.name, (unsigned long long)client->child);
		supervisor_kill(&client->tenant->supervisor);
		break;
	case CLIENT_RUNNING:
		client_end(client, VGPU_REFUSED_EXECUTOR, "the child has stopped responding");
		break;
	}
}

static uint32_t count_greeting(const struct tenant *tenant)
{
	const struct client *client;
	uint32_t count = 0;

	for (client = tenant->clients; client; client = client->next)
		count += client->state == CLIENT_GREETING;
	return count;
}

void client_accept(struct tenant *tenant, int fd)
{
	struct ucred peer = { 0 };
	socklen_t size = sizeof(peer);
	struct client *client = NULL;

	if (count_greeting(tenant) < GREETING_MAX)
		client = calloc(1, sizeof(*client));
	if (!client) {
		close(fd);
		return;
	}
	*client = (struct client){
		.tenant = tenant,
		.next = tenant->clients,
		.socket = { .fd = fd, .ready = socket_ready },
		.requests = { .fd = -1, .ready = requests_ready },
		.listener = { .fd = -1 },
		.patience.due = patience_due,
		.refill.due = refill_due,
		.window_fd = -1,
	};
	tenant->clients = client;
	/*
	 * The peer's identity is for logs and messages only: the socket's permissions have already
	 * decided who may connect.
	 */
	if (!getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size)) {
		client->pid = peer.pid;
		client->uid = peer.uid;
	}
	if (loop_add(loop_of(client), &client->socket, EPOLLIN)) {
		client_free(client);
		return;
	}
	loop_arm(loop_of(client), &client->patience, loop_now_ns() + HELLO_WITHIN_NS);
}
