// SPDX-License-Identifier: Apache-2.0
/*
 * The supervisor.  If the supervisor dies, it is not restarted.  Instead this process ends, and its
 * service manager restarts this process.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include "executor/datagram.h"
#include "executor/log.h"
#include "executor/slice/slice.h"

/* Marks the sequences of FREEZE and THAW, which are the module's own numbers. */
#define GATE_SEQUENCE	(1ull << 63)
/* How long to wait for the supervisor to exit after its socket was closed, before killing it. */
#define END_WITHIN_MS	5000

static bool send_message(struct slice *slice, struct vgpu_supervisor_message *message, const int *fds,
			 unsigned int count)
{
	int error;

	if (slice->supervisor.socket < 0)
		return false;
	message->version = VGPU_CONTROL_VERSION;
	if (!message->sequence)
		message->sequence = ++slice->sequence;
	error = vgpu_datagram_send(slice->supervisor.socket, message, sizeof(*message), fds, count);
	if (!error)
		return true;
	if (error == -EMFILE || error == -ETOOMANYREFS)	/* the supervisor itself still works */
		return false;
	vgpu_log(LOG_ERR, "event=supervisor.deaf %s", strerror(-error));
	children_give_up(slice);
	return false;
}

bool children_open(struct slice *slice)
{
	const struct vgpu_supervisor_settings settings = {
		.program = slice->options.supervisor,
		.tenant = slice->options.slice,
		.child = slice->options.child,
		.library = slice->options.library,
		.nvidia = slice->options.nvidia,
		.compile_cache_bytes = slice->options.compile_cache_bytes,
		.gate_limit_ns = slice->options.gate_limit_ns,
	};
	/*
	 * When the supervisor answers, it has removed what an earlier supervisor of this slice left
	 * behind.
	 */
	struct vgpu_supervisor_message hello = { .op = VGPU_SUPERVISOR_THAW };
	int error = vgpu_supervisor_start(&settings, &slice->supervisor);

	if (error) {
		slice_fail("supervisor.failed", "%s: %s", settings.program, strerror(-error));
		return false;
	}
	vgpu_log(LOG_INFO, "event=supervisor.started supervisor_pid=%d", slice->supervisor.pid);
	send_message(slice, &hello, NULL, 0);
	slice->hello = hello.sequence;
	slice->hello_by_ns = slice_now_ns() + SLICE_PATIENCE_NS;
	return true;
}

static void note_gate(struct slice *slice, const struct vgpu_supervisor_message *message)
{
	bool changed = message->enforced != slice->enforced;

	slice->enforced = message->enforced;
	slice->gate_ns = message->gate_ns;
	if (changed || slice_now_ns() >= slice->told_until_ns)
		slice_notify_serving(slice, false);
}

static void handle(struct slice *slice, const struct vgpu_supervisor_message *message)
{
	bool done = message->op == VGPU_SUPERVISOR_DONE;

	if (message->op == VGPU_SUPERVISOR_EXITED) {
		window_exited(slice, message->child, message->status, message->reason, slice_now_ns());
	} else if (message->sequence & GATE_SEQUENCE) {
		module_gate(slice, message->sequence & ~GATE_SEQUENCE, message->processor_ns, done);
		if (done)
			note_gate(slice, message);
	} else if (slice->hello && message->sequence == slice->hello) {
		slice->hello = 0;
		slice->hello_by_ns = UINT64_MAX;
		vgpu_log(LOG_INFO, "event=ready windows=%u window_bytes=%llu memory_bytes=%llu",
			 slice->window_count, (unsigned long long)slice->window_bytes,
			 (unsigned long long)slice->memory_bytes);
		slice->enforced = message->enforced;
		slice->gate_ns = message->gate_ns;
		slice_notify_serving(slice, true);
	} else if (message->op == VGPU_SUPERVISOR_MEMORY) {
		if (slice->hello)
			return;
		slice->memory_used_bytes = message->memory_bytes;
		slice_notify_serving(slice, false);
	} else if (message->sequence) {
		window_started(slice, message->sequence, done, message->reason, slice_now_ns());
	}
}

void children_receive(struct slice *slice)
{
	struct vgpu_supervisor_message message;
	int got = vgpu_datagram_receive(slice->supervisor.socket, &message, sizeof(message));

	if (!got)
		return;
	if (got > 0 && message.version == VGPU_CONTROL_VERSION &&
	    (message.op == VGPU_SUPERVISOR_DONE || message.op == VGPU_SUPERVISOR_FAILED ||
	     message.op == VGPU_SUPERVISOR_EXITED || message.op == VGPU_SUPERVISOR_MEMORY)) {
		message.reason[sizeof(message.reason) - 1] = '\0';
		vgpu_log_clean(message.reason, strlen(message.reason));
		handle(slice, &message);
		return;
	}
	if (got != -EPIPE)
		vgpu_log(LOG_ERR, "event=supervisor.senseless");
	/*
	 * After its socket is closed the supervisor exits by itself, but this process does not wait
	 * for that.
	 */
	children_give_up(slice);
}

void children_give_up(struct slice *slice)
{
	if (slice->supervisor.socket < 0)
		return;
	close(slice->supervisor.socket);
	slice->supervisor.socket = -1;
	kill(slice->supervisor.pid, SIGKILL);
}

void children_died(struct slice *slice)
{
	int status = 0;

	if (waitpid(slice->supervisor.pid, &status, WNOHANG) != slice->supervisor.pid)
		return;
	slice->supervisor.pid = 0;
	slice_fail("supervisor.ended", "the supervisor ended with %s %d", WIFSIGNALED(status) ? "signal" : "status",
		   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	windows_lose(slice, "its supervisor died", slice_now_ns());
	slice_stop(slice, SLICE_FAILED);
}

uint64_t children_start(struct slice *slice, uint64_t child, const struct vgpu_exec_window *files)
{
	const int fds[] = { files->memory, files->lease, files->stream, files->stream };
	struct vgpu_supervisor_message message = {
		.op = VGPU_SUPERVISOR_START,
		.child = child,
		.window_bytes = slice->window_bytes,
		.memory_bytes = slice->memory_bytes,
	};

	return send_message(slice, &message, fds, 4) ? message.sequence : 0;
}

void children_kill(struct slice *slice, uint64_t child, const char *reason)
{
	struct vgpu_supervisor_message message = { .op = VGPU_SUPERVISOR_KILL, .child = child };

	snprintf(message.reason, sizeof(message.reason), "%s", reason);
	/* If sending fails, the supervisor is dying, or will be killed when it does not answer in time. */
	send_message(slice, &message, NULL, 0);
}

void children_gate(struct slice *slice, uint64_t sequence, bool close)
{
	struct vgpu_supervisor_message message = {
		.op = close ? VGPU_SUPERVISOR_FREEZE : VGPU_SUPERVISOR_THAW,
		.sequence = sequence | GATE_SEQUENCE,
	};

	/* If sending fails, the module gets no answer. */
	send_message(slice, &message, NULL, 0);
}

void children_close(struct vgpu_supervisor_process *supervisor)
{
	struct pollfd end = { supervisor->pidfd, POLLIN, 0 };

	if (supervisor->socket >= 0)
		close(supervisor->socket);
	supervisor->socket = -1;
	if (!supervisor->pid)
		return;
	if (poll(&end, 1, END_WITHIN_MS) != 1)
		kill(supervisor->pid, SIGKILL);
	waitpid(supervisor->pid, NULL, 0);
	supervisor->pid = 0;
}
