// SPDX-License-Identifier: Apache-2.0
#include "broker/supervisor.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include "broker/tenant.h"
#include "executor/datagram.h"
#include "executor/log.h"
#include "executor/start.h"

#define PAUSE_NS	100000000ull
#define DOUBLINGS	8u
/*
 * If a supervisor has run for this long, its failure counts as the first, and the pause before the
 * restart is short again.
 */
#define LASTED_NS	30000000000ull
/* A supervisor that has not exited this long after its socket was closed is killed. */
#define END_WITHIN_NS	2000000000ull

static struct supervisor *of_socket(struct loop_watch *watch)
{
	return (struct supervisor *)((char *)watch - offsetof(struct supervisor, socket));
}

static struct supervisor *of_process(struct loop_watch *watch)
{
	return (struct supervisor *)((char *)watch - offsetof(struct supervisor, process));
}

static struct loop *loop_of(struct supervisor *supervisor)
{
	return &supervisor->tenant->broker->loop;
}

static void forget(struct supervisor *supervisor)
{
	loop_remove(loop_of(supervisor), &supervisor->socket);
	loop_remove(loop_of(supervisor), &supervisor->process);
	supervisor->state = SUPERVISOR_DOWN;
	supervisor->pid = 0;
}

static void restart_later(struct supervisor *supervisor, uint64_t now_ns)
{
	uint32_t doublings = supervisor->failures < DOUBLINGS ? supervisor->failures : DOUBLINGS;

	supervisor->failures++;
	loop_arm(loop_of(supervisor), &supervisor->restart, now_ns + (PAUSE_NS << doublings));
}

static int start(struct supervisor *supervisor)
{
	const struct tenant *tenant = supervisor->tenant;
	char natives[4096];
	const struct vgpu_supervisor_settings settings = {
		.program = tenant->broker->settings.supervisor,
		.tenant = tenant->settings.name,
		.child = tenant->broker->settings.child,
		.library = tenant->broker->settings.library,
		.nvidia = tenant->broker->settings.nvidia[0] ? tenant->broker->settings.nvidia : NULL,
		.natives = tenant->settings.native ? natives : NULL,
		.compile_cache_bytes = tenant->settings.compile_cache_bytes,
		/* A child must stop within four chunks, because other tenants wait for it. */
		.gate_limit_ns = 4 * tenant->broker->settings.engine.max_chunk_ns,
	};
	struct loop *loop = loop_of(supervisor);
	struct vgpu_supervisor_process process;
	int error;

	snprintf(natives, sizeof(natives), "%s/natives", tenant->broker->directory);
	error = vgpu_supervisor_start(&settings, &process);
	if (error)
		return error;
	supervisor->pid = process.pid;
	supervisor->socket.fd = process.socket;
	supervisor->process.fd = process.pidfd;
	error = loop_add(loop, &supervisor->socket, EPOLLIN);
	error = error ? error : loop_add(loop, &supervisor->process, EPOLLIN);
	if (error) {
		kill(supervisor->pid, SIGKILL);
		waitpid(supervisor->pid, NULL, 0);
		forget(supervisor);
		return error;
	}
	supervisor->enforced = VGPU_ENFORCED_UNKNOWN;
	supervisor->gate_ns = 0;
	supervisor->chunk_told = false;
	supervisor->state = SUPERVISOR_UP;
	supervisor->compilers = supervisor->compile_hits = supervisor->compile_kept_bytes = 0;
	supervisor->started_ns = loop_now_ns();
	supervisor->starts++;
	vgpu_log(LOG_INFO, "tenant=%s event=supervisor.started supervisor_pid=%d",
		 supervisor->tenant->settings.name, supervisor->pid);
	return 0;
}

static void restart_due(struct loop_timer *timer, uint64_t now_ns)
{
	struct supervisor *supervisor =
		(struct supervisor *)((char *)timer - offsetof(struct supervisor, restart));
	int error;

	if (supervisor->ended) {
		supervisor_kill(supervisor);
		return;
	}
	error = start(supervisor);
	if (!error)
		return;
	vgpu_log(LOG_ERR, "tenant=%s event=supervisor.failed %s", supervisor->tenant->settings.name,
		 strerror(-error));
	restart_later(supervisor, now_ns);
}

static void process_ready(struct loop_watch *watch, uint32_t events)
{
	struct supervisor *supervisor = of_process(watch);
	struct tenant *tenant = supervisor->tenant;
	uint64_t now_ns = loop_now_ns();
	int status = 0;

	(void)events;
	if (waitpid(supervisor->pid, &status, WNOHANG) != supervisor->pid)
		return;
	vgpu_log(supervisor->ended ? LOG_INFO : LOG_WARNING,
		 "tenant=%s event=supervisor.ended supervisor_pid=%d %s=%d", tenant->settings.name, supervisor->pid,
		 WIFSIGNALED(status) ? "signal" : "status",
		 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	if (now_ns - supervisor->started_ns > LASTED_NS)
		supervisor->failures = 0;
	forget(supervisor);
	loop_arm(loop_of(supervisor), &supervisor->restart, UINT64_MAX);
	if (!supervisor->ended)
		restart_later(supervisor, now_ns);
	tenant_supervisor_lost(tenant);
}

static void socket_ready(struct loop_watch *watch, uint32_t events)
{
	struct supervisor *supervisor = of_socket(watch);
	struct vgpu_supervisor_message message;
	int got = vgpu_datagram_receive(watch->fd, &message, sizeof(message));

	(void)events;
	if (!got)
		return;
	if (got > 0 && message.version == VGPU_CONTROL_VERSION && message.op == VGPU_SUPERVISOR_MEMORY) {
		/* The children's reserved memory in this message is not used by the broker. */
		supervisor->tenant->native.used_bytes = message.native_bytes;
		return;
	}
	if (got > 0 && message.version == VGPU_CONTROL_VERSION &&
	    (message.op == VGPU_SUPERVISOR_DONE || message.op == VGPU_SUPERVISOR_FAILED ||
	     message.op == VGPU_SUPERVISOR_EXITED || message.op == VGPU_SUPERVISOR_WORKS)) {
		message.reason[sizeof(message.reason) - 1] = '\0';
		vgpu_log_clean(message.reason, strlen(message.reason));
		tenant_supervisor_said(supervisor->tenant, &message);
		return;
	}
	if (got != -EPIPE)
		vgpu_log(LOG_ERR, "tenant=%s event=supervisor.senseless", supervisor->tenant->settings.name);
	/* The supervisor exits by itself after its socket closes, but do not wait for that. */
	supervisor_kill(supervisor);
}

void supervisor_init(struct supervisor *supervisor, struct tenant *tenant)
{
	supervisor->tenant = tenant;
	supervisor->socket = (struct loop_watch){ .fd = -1, .ready = socket_ready };
	supervisor->process = (struct loop_watch){ .fd = -1, .ready = process_ready };
	supervisor->restart.due = restart_due;
	restart_due(&supervisor->restart, loop_now_ns());
}

void supervisor_end(struct supervisor *supervisor)
{
	uint64_t at_ns = supervisor->state == SUPERVISOR_UP ? loop_now_ns() + END_WITHIN_NS : UINT64_MAX;

	supervisor->ended = true;
	loop_arm(loop_of(supervisor), &supervisor->restart, at_ns);
	loop_remove(loop_of(supervisor), &supervisor->socket);
}

void supervisor_kill(struct supervisor *supervisor)
{
	if (supervisor->state == SUPERVISOR_DOWN)
		return;
	loop_remove(loop_of(supervisor), &supervisor->socket);
	if (supervisor->state == SUPERVISOR_UP)
		kill(supervisor->pid, SIGKILL);
	supervisor->state = SUPERVISOR_KILLED;
}

bool supervisor_send(struct supervisor *supervisor, struct vgpu_supervisor_message *message,
		     const int *fds, unsigned int count)
{
	int error;

	if (supervisor->state != SUPERVISOR_UP || supervisor->socket.fd < 0)
		return false;
	message->version = VGPU_CONTROL_VERSION;
	if (!message->sequence)
		message->sequence = ++supervisor->sequence;
	error = vgpu_datagram_send(supervisor->socket.fd, message, sizeof(*message), fds, count);
	if (!error)
		return true;
	/* The broker ran out of descriptors, which is not the supervisor's fault. */
	if (error == -EMFILE || error == -ETOOMANYREFS)
		return false;
	vgpu_log(LOG_ERR, "tenant=%s event=supervisor.deaf %s", supervisor->tenant->settings.name,
		 strerror(-error));
	supervisor_kill(supervisor);
	return false;
}
