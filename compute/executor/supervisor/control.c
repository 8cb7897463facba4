// SPDX-License-Identifier: Apache-2.0
/*
 * Datagrams of the arbiter.  The supervisor exits when a datagram is malformed, as control.h
 * specifies.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <syslog.h>
#include <unistd.h>

#include "executor/log.h"
#include "executor/supervisor/supervisor.h"
#include "protocol/window.h"

#define START_DESCRIPTORS	4u
/* Maximum number of answers and events that all children could cause at once. */
#define PENDING_MAX	(4 * VGPU_CHILDREN_MAX)
#define MEMORY_EVERY_NS	1000000000ull

int vgpu_receive(int socket, void *message, size_t bytes, int *descriptors, unsigned int *count,
		 unsigned int most)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(VGPU_SPAWN_DESCRIPTORS * sizeof(int))];
	} control;
	struct iovec part = { .iov_base = message, .iov_len = bytes };
	struct msghdr datagram = {
		.msg_iov = &part, .msg_iovlen = 1,
		.msg_control = &control, .msg_controllen = sizeof(control),
	};
	ssize_t length = recvmsg(socket, &datagram, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	bool fine;

	*count = 0;
	if (length < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : VGPU_RECEIVED_END;
	if (!length)
		return VGPU_RECEIVED_END;
	for (struct cmsghdr *part = CMSG_FIRSTHDR(&datagram); part; part = CMSG_NXTHDR(&datagram, part)) {
		unsigned int added = (unsigned int)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		int *from = (int *)CMSG_DATA(part);

		if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
			continue;
		for (unsigned int i = 0; i < added; i++)
			if (*count < most)
				descriptors[(*count)++] = from[i];
			else
				close(from[i]);
		if (added > most)
			datagram.msg_flags |= MSG_CTRUNC;
	}
	fine = (size_t)length == bytes && !(datagram.msg_flags & (MSG_TRUNC | MSG_CTRUNC));
	if (!fine) {
		while (*count)
			close(descriptors[--*count]);
		return VGPU_RECEIVED_MALFORMED;
	}
	return 1;
}

static bool send_now(const struct vgpu_supervisor_message *message)
{
	return send(VGPU_CONTROL_SOCKET, message, sizeof(*message), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ||
	       errno != EAGAIN;
}

static void deliver(struct vgpu_supervisor *s, const struct vgpu_supervisor_message *message)
{
	if (!s->pending_count && send_now(message))
		return;
	if (s->pending_count == PENDING_MAX) {
		vgpu_log(LOG_ERR, "event=end the arbiter reads no answers");
		s->ending = true;
		return;
	}
	if (!s->pending_count)
		vgpu_watch(s, VGPU_CONTROL_SOCKET, EPOLLIN | EPOLLOUT, VGPU_EVENT_CONTROL, 0);
	s->pending[s->pending_count++] = *message;
}

void vgpu_control_flush(struct vgpu_supervisor *s)
{
	unsigned int sent = 0;

	if (!s->pending_count)
		return;
	while (sent < s->pending_count && send_now(&s->pending[sent]))
		sent++;
	s->pending_count -= sent;
	memmove(s->pending, s->pending + sent, s->pending_count * sizeof(*s->pending));
	if (!s->pending_count)
		vgpu_watch(s, VGPU_CONTROL_SOCKET, EPOLLIN, VGPU_EVENT_CONTROL, 0);
}

void vgpu_control_answer(struct vgpu_supervisor *s, enum vgpu_supervisor_op op, uint64_t sequence,
			 uint64_t child, const char *reason)
{
	struct vgpu_supervisor_message message = {
		.version = VGPU_CONTROL_VERSION,
		.op = op,
		.sequence = sequence,
		.child = child,
		.processor_ns = vgpu_processor_ns(s),
		.compilers = s->compilers_started,
		.compile_hits = s->kept.hits,
		.compile_kept_bytes = s->kept.bytes,
		.gate_ns = vgpu_latency_quantile(&s->gate.latency, 990),
		.enforced = vgpu_enforced(s),
		.native_bytes = vgpu_natives_bytes(s),
	};

	snprintf(message.reason, sizeof(message.reason), "%s", reason ? reason : "");
	deliver(s, &message);
}

void vgpu_control_exited(struct vgpu_supervisor *s, uint64_t child, int status, const char *reason)
{
	struct vgpu_supervisor_message message = {
		.version = VGPU_CONTROL_VERSION,
		.op = VGPU_SUPERVISOR_EXITED,
		.child = child,
		.processor_ns = vgpu_processor_ns(s),
		.compilers = s->compilers_started,
		.compile_hits = s->kept.hits,
		.compile_kept_bytes = s->kept.bytes,
		.gate_ns = vgpu_latency_quantile(&s->gate.latency, 990),
		.enforced = vgpu_enforced(s),
		.native_bytes = vgpu_natives_bytes(s),
		.status = status,
	};

	memcpy(message.reason, reason, sizeof(message.reason));
	deliver(s, &message);
}

void vgpu_control_works(struct vgpu_supervisor *s, uint64_t native, bool works)
{
	const struct vgpu_supervisor_message message = {
		.version = VGPU_CONTROL_VERSION,
		.op = VGPU_SUPERVISOR_WORKS,
		.child = native,
		.status = works,
	};

	deliver(s, &message);
}

uint64_t vgpu_control_memory(struct vgpu_supervisor *s, uint64_t now_ns)
{
	struct vgpu_supervisor_message message = {
		.version = VGPU_CONTROL_VERSION,
		.op = VGPU_SUPERVISOR_MEMORY,
		.memory_bytes = s->reserved_bytes,
		.native_bytes = vgpu_natives_bytes(s),
	};

	/*
	 * Fences change the native bytes without a message, so as long as there are native
	 * programs, check again periodically.
	 */
	if (s->reserved_bytes == s->told_bytes && message.native_bytes == s->told_native_bytes)
		return vgpu_natives_are_some(s) ? now_ns + MEMORY_EVERY_NS : UINT64_MAX;
	/* A child may change its memory very often, so the arbiter is told at most once per interval. */
	if (now_ns - s->told_ns < MEMORY_EVERY_NS)
		return s->told_ns + MEMORY_EVERY_NS;
	/*
	 * Answers to the arbiter have priority.  Send a memory report only if no answer is pending,
	 * so that reports do not accumulate.
	 */
	if (s->pending_count)
		return UINT64_MAX;
	s->told_bytes = s->reserved_bytes;
	s->told_native_bytes = message.native_bytes;
	s->told_ns = now_ns;
	deliver(s, &message);
	return vgpu_natives_are_some(s) ? now_ns + MEMORY_EVERY_NS : UINT64_MAX;
}

static void start(struct vgpu_supervisor *s, const struct vgpu_supervisor_message *message,
		  const int *descriptors)
{
	int error;

	if (message->window_bytes < VGPU_WINDOW_BYTES_MIN ||
	    message->window_bytes > VGPU_WINDOW_BYTES_MAX ||
	    message->window_bytes % VGPU_WINDOW_PAGE) {
		vgpu_control_answer(s, VGPU_SUPERVISOR_FAILED, message->sequence, message->child,
				    "window_bytes is out of range");
		return;
	}
	error = vgpu_child_start(s, message, descriptors);
	if (error)
		vgpu_log(LOG_ERR, "child=%llu event=start error=%d",
			 (unsigned long long)message->child, error);
	vgpu_control_answer(s, error ? VGPU_SUPERVISOR_FAILED : VGPU_SUPERVISOR_DONE,
			    message->sequence, message->child,
			    error == EEXIST ? "there is a child with this number" :
			    error == EMFILE ? "too many children" :
			    error ? strerror(error) : NULL);
}

static void start_native(struct vgpu_supervisor *s, const struct vgpu_supervisor_message *message, int listener)
{
	char reason[VGPU_REASON_BYTES] = "";
	bool started = vgpu_native_start(s, message, listener, reason);

	if (!started)
		vgpu_log(LOG_WARNING, "native=%llu event=start %s", (unsigned long long)message->child, reason);
	vgpu_control_answer(s, started ? VGPU_SUPERVISOR_DONE : VGPU_SUPERVISOR_FAILED, message->sequence,
			    message->child, reason);
}

static void kill_child(struct vgpu_supervisor *s, const struct vgpu_supervisor_message *message)
{
	struct vgpu_supervised *child = vgpu_child_find(s, message->child);

	struct vgpu_native *native = vgpu_native_find(s, message->child);
	const char *reason = message->reason[0] ? message->reason : "the arbiter killed it";

	if (child)
		vgpu_kill(s, child, reason);
	if (native)
		vgpu_native_kill(native, reason);
	vgpu_control_answer(s, child || native ? VGPU_SUPERVISOR_DONE : VGPU_SUPERVISOR_FAILED,
			    message->sequence, message->child,
			    child || native ? NULL : "there is no child with this number");
}

static unsigned int descriptors_of(uint32_t op)
{
	if (op == VGPU_SUPERVISOR_START)
		return START_DESCRIPTORS;
	return op == VGPU_SUPERVISOR_START_NATIVE ? 1 : 0;
}

void vgpu_control_receive(struct vgpu_supervisor *s)
{
	struct vgpu_supervisor_message message;
	int descriptors[VGPU_SPAWN_DESCRIPTORS];
	unsigned int count = 0;
	uint64_t now_ns = vgpu_now_ns();
	int received = vgpu_receive(VGPU_CONTROL_SOCKET, &message, sizeof(message), descriptors,
				    &count, VGPU_SPAWN_DESCRIPTORS);

	if (!received)
		return;
	if (received < 0 || message.version != VGPU_CONTROL_VERSION || count != descriptors_of(message.op)) {
		vgpu_log(LOG_NOTICE, "event=end the arbiter's socket has ended");
		s->ending = true;
	} else {
		message.reason[sizeof(message.reason) - 1] = '\0';
		switch (message.op) {
		case VGPU_SUPERVISOR_START:
			start(s, &message, descriptors);
			break;
		case VGPU_SUPERVISOR_START_NATIVE:
			start_native(s, &message, descriptors[0]);
			break;
		case VGPU_SUPERVISOR_TIMESLICE:
			vgpu_natives_configure(s, message.timeslice_us, message.memory_bytes);
			break;
		case VGPU_SUPERVISOR_KILL:
			kill_child(s, &message);
			break;
		case VGPU_SUPERVISOR_FREEZE:
			vgpu_freeze(s, message.sequence, now_ns);
			break;
		case VGPU_SUPERVISOR_THAW:
			vgpu_thaw(s, message.sequence);
			break;
		default:
			vgpu_log(LOG_ERR, "event=end the arbiter sent operation %u", message.op);
			s->ending = true;
		}
	}
	while (count)
		close(descriptors[--count]);
}
