// SPDX-License-Identifier: Apache-2.0
/* Datagrams of children (executor/link.h).  A child that sends an invalid one is killed. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <syslog.h>
#include <unistd.h>

#include "executor/log.h"
#include "executor/supervisor/supervisor.h"

#define DESCRIPTORS_MAX	1u
#define LAST_WORDS	1024u
/* The cost of one datagram in a child's credit, and the maximum credit. */
#define DATAGRAM_NS	(1000000000u / VGPU_LINK_RATE)
#define BURST_NS	((uint64_t)VGPU_LINK_BURST * DATAGRAM_NS)
/* A child without credit is not read again until it has credit for this many datagrams. */
#define MUTED_DATAGRAMS	8u

static void answer(struct vgpu_supervisor *s, struct vgpu_supervised *child, uint64_t sequence,
		   int status, int exit_status, int result)
{
	struct vgpu_link_message message = {
		.version = VGPU_LINK_VERSION,
		.op = VGPU_LINK_ANSWER,
		.sequence = sequence,
		.status = status,
		.exit_status = exit_status,
	};
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec part = { .iov_base = &message, .iov_len = sizeof(message) };
	struct msghdr datagram = { .msg_iov = &part, .msg_iovlen = 1 };
	ssize_t sent;

	if (result >= 0) {
		datagram.msg_control = &control;
		datagram.msg_controllen = sizeof(control);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.header), &result, sizeof(int));
	}
	sent = sendmsg(child->link, &datagram, MSG_DONTWAIT | MSG_NOSIGNAL);
	/* There are too many descriptors that nobody has received yet. */
	if (sent < 0 && errno == ETOOMANYREFS) {
		message.status = EAGAIN;
		sent = send(child->link, &message, sizeof(message), MSG_DONTWAIT | MSG_NOSIGNAL);
	}
	/*
	 * The child has at most one other request and VGPU_JOBS_MAX compilers pending.  Their
	 * answers fit into the socket.
	 */
	if (sent < 0 && errno == EAGAIN)
		vgpu_kill(s, child, "it does not read its supervisor's answers");
}

void vgpu_requests_answer(struct vgpu_supervisor *s, uint64_t client, uint64_t sequence, int status,
			  int exit_status, int result)
{
	struct vgpu_supervised *child = vgpu_child_find(s, client);

	if (child && !child->died)
		answer(s, child, sequence, status, exit_status, result);
}

static void reserve(struct vgpu_supervisor *s, struct vgpu_supervised *child,
		    const struct vgpu_link_message *message)
{
	bool fits = s->reserved_bytes <= s->memory_bytes &&
		    message->bytes <= s->memory_bytes - s->reserved_bytes;

	if (fits) {
		s->reserved_bytes += message->bytes;
		child->reserved_bytes += message->bytes;
	}
	answer(s, child, message->sequence, fits ? 0 : ENOMEM, 0, -1);
}

static void release(struct vgpu_supervisor *s, struct vgpu_supervised *child,
		    const struct vgpu_link_message *message)
{
	if (message->bytes > child->reserved_bytes) {
		vgpu_kill(s, child, "it released more memory than it had reserved");
		return;
	}
	s->reserved_bytes -= message->bytes;
	child->reserved_bytes -= message->bytes;
}

static void fail(struct vgpu_supervised *child, struct vgpu_link_message *message)
{
	message->reason[sizeof(message->reason) - 1] = 0;
	vgpu_log_clean(message->reason, strlen(message->reason));
	if (!child->reason[0])
		snprintf(child->reason, sizeof(child->reason), "%s", message->reason);
}

static void handle(struct vgpu_supervisor *s, struct vgpu_supervised *child,
		   struct vgpu_link_message *message, const int *descriptors)
{
	int error;

	switch (message->op) {
	case VGPU_LINK_SERVING:
		if (s->options.gpu >= 0 && !child->relay) {
			vgpu_kill(s, child, "it reported SERVING without a relay");
			break;
		}
		if (!child->serving)
			vgpu_log(LOG_INFO, "child=%llu event=serving after_us=%llu",
				 (unsigned long long)child->number,
				 (unsigned long long)(vgpu_now_ns() - child->started_ns) / 1000);
		child->serving = true;
		break;
	case VGPU_LINK_FAILED:
		fail(child, message);
		break;
	case VGPU_LINK_RESERVE:
		reserve(s, child, message);
		break;
	case VGPU_LINK_RELEASE:
		release(s, child, message);
		break;
	case VGPU_LINK_COMPILE:
		error = vgpu_compilers_queue(s, child, message->sequence, descriptors[0]);
		if (error)
			answer(s, child, message->sequence, error, 0, -1);
		break;
	case VGPU_LINK_RELAY:
		if (s->options.gpu < 0 || child->relay || child->serving) {
			vgpu_kill(s, child, "it requested a relay that it may not have");
			break;
		}
		error = vgpu_relay_start(s, child, descriptors[0]);
		if (error)
			vgpu_log(LOG_ERR, "child=%llu event=relay error=%d",
				 (unsigned long long)child->number, error);
		answer(s, child, message->sequence, error, 0, -1);
		break;
	default:
		vgpu_kill(s, child, "it sent a datagram that its supervisor does not know");
	}
}

void vgpu_requests_open(struct vgpu_supervised *child)
{
	child->credit_ns = BURST_NS;
}

/*
 * Elapsed time is credit: one datagram per DATAGRAM_NS.  Children that have used part of their
 * burst share the credit equally.  So the datagrams of all children together cost the supervisor no
 * more than those of one child.  Return: the number of children that share.
 */
static unsigned int share_time(struct vgpu_supervisor *s, uint64_t now_ns)
{
	unsigned int sharing = 0;
	uint64_t each_ns;

	for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++)
		sharing += s->children[i].used && s->children[i].credit_ns < BURST_NS;
	if (!sharing) {
		s->links_at_ns = now_ns;
		return 0;
	}
	each_ns = (now_ns - s->links_at_ns) / sharing;
	s->links_at_ns += each_ns * sharing;
	for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++) {
		struct vgpu_supervised *child = &s->children[i];

		if (child->used)
			child->credit_ns = each_ns < BURST_NS - child->credit_ns ?
						   child->credit_ns + each_ns : BURST_NS;
	}
	return sharing;
}

static bool may_read(struct vgpu_supervisor *s, struct vgpu_supervised *child, uint64_t now_ns)
{
	unsigned int sharing = share_time(s, now_ns);

	if (child->credit_ns >= DATAGRAM_NS) {
		child->credit_ns -= DATAGRAM_NS;
		return true;
	}
	/* The child blocks on its own socket and delays no other child. */
	child->muted_until_ns = now_ns + MUTED_DATAGRAMS * DATAGRAM_NS * sharing;
	vgpu_watch(s, child->link, 0, VGPU_EVENT_LINK, (unsigned int)(child - s->children));
	return false;
}

void vgpu_requests_unmute(struct vgpu_supervisor *s, uint64_t now_ns)
{
	for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++) {
		struct vgpu_supervised *child = &s->children[i];

		if (!child->used || !child->muted_until_ns || child->muted_until_ns > now_ns)
			continue;
		child->muted_until_ns = 0;
		vgpu_watch(s, child->link, EPOLLIN, VGPU_EVENT_LINK, i);
	}
}

void vgpu_requests_last_words(struct vgpu_supervised *child)
{
	struct vgpu_link_message message;
	int descriptors[DESCRIPTORS_MAX];
	unsigned int count = 0;

	/* The socket's buffer is limited, and no process writes to it any more. */
	for (unsigned int i = 0; i < LAST_WORDS; i++) {
		if (vgpu_receive(child->link, &message, sizeof(message), descriptors, &count,
				 DESCRIPTORS_MAX) <= 0)
			break;
		if (message.version == VGPU_LINK_VERSION && message.op == VGPU_LINK_FAILED)
			fail(child, &message);
		while (count)
			close(descriptors[--count]);
	}
}

static unsigned int descriptors_of(uint32_t op)
{
	return op == VGPU_LINK_COMPILE || op == VGPU_LINK_RELAY ? 1 : 0;
}

void vgpu_requests_receive(struct vgpu_supervisor *s, struct vgpu_supervised *child)
{
	struct vgpu_link_message message;
	int descriptors[DESCRIPTORS_MAX];
	unsigned int count = 0;
	int received;

	if (!may_read(s, child, vgpu_now_ns()))
		return;
	received = vgpu_receive(child->link, &message, sizeof(message), descriptors, &count,
				DESCRIPTORS_MAX);
	if (!received)
		return;
	if (received == VGPU_RECEIVED_END) {
		/*
		 * Either the child is dying, and its exit status will show the reason, or it has
		 * closed its socket.
		 */
		vgpu_watch(s, child->link, 0, VGPU_EVENT_LINK, (unsigned int)(child - s->children));
		vgpu_kill(s, child, NULL);
	} else if (received < 0 || message.version != VGPU_LINK_VERSION ||
		   count != descriptors_of(message.op)) {
		vgpu_kill(s, child, "it sent a malformed datagram");
	} else {
		handle(s, child, &message, descriptors);
	}
	while (count)
		close(descriptors[--count]);
}
