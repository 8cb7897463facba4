// SPDX-License-Identifier: Apache-2.0
#include "executor/child/link_client.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "executor/child/child.h"
#include "executor/child/futex.h"

#define RETRY_US	1000u

/* The supervisor has closed its end, so it has died, and the child must end, too. */
static _Noreturn void orphaned(void)
{
	_exit(1);
}

/*
 * Linux limits the number of descriptors in transit per user.  Children of all tenants can have the
 * same user, so another tenant's child can use up the limit for a while.
 */
static bool is_passing(int error)
{
	return error == EINTR || error == ETOOMANYREFS || error == EAGAIN || error == ENOBUFS ||
	       error == ENOMEM;
}

/* @job is sent along; -1 for none */
static void send_message(int socket, const struct vgpu_link_message *message, int job)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec part = { .iov_base = (void *)message, .iov_len = sizeof(*message) };
	struct msghdr datagram = { .msg_iov = &part, .msg_iovlen = 1 };

	if (job >= 0) {
		datagram.msg_control = &control;
		datagram.msg_controllen = sizeof(control);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.header), &job, sizeof(int));
	}
	while (sendmsg(socket, &datagram, MSG_NOSIGNAL) < 0) {
		if (!is_passing(errno))
			orphaned();
		if (errno != EINTR)
			usleep(RETRY_US);
	}
}

static void take_answer(struct vgpu_link *link, const struct vgpu_link_message *answer,
			int result)
{
	bool compiled = false;

	pthread_mutex_lock(&link->lock);
	for (unsigned int i = 0; i < VGPU_JOBS_MAX; i++) {
		if (link->jobs[i].sequence != answer->sequence)
			continue;
		link->jobs[i].sequence = 0;
		link->jobs_count--;
		link->compiled[link->compiled_count++] = (struct vgpu_link_compiled){
			.token = link->jobs[i].token,
			.status = answer->status,
			.exit_status = answer->exit_status,
			.result = result,
		};
		compiled = true;
		break;
	}
	pthread_mutex_unlock(&link->lock);
	if (compiled) {
		link->wake(link->context);
		return;
	}
	link->answer = answer->status;
	link->answer_sequence = answer->sequence;
	atomic_fetch_add(&link->answered, 1);
	vgpu_futex_wake(&link->answered, false);
}

static void *receive(void *argument)
{
	struct vgpu_link *link = argument;

	for (;;) {
		struct vgpu_link_message answer;
		union {
			struct cmsghdr header;
			char bytes[CMSG_SPACE(sizeof(int))];
		} control = { 0 };
		struct iovec part = { .iov_base = &answer, .iov_len = sizeof(answer) };
		struct msghdr datagram = {
			.msg_iov = &part, .msg_iovlen = 1,
			.msg_control = &control, .msg_controllen = sizeof(control),
		};
		ssize_t bytes = recvmsg(link->socket, &datagram, MSG_CMSG_CLOEXEC);
		int result = -1;

		if (bytes < 0 && errno == EINTR)
			continue;
		if (bytes != sizeof(answer))
			orphaned();
		/* The descriptor is missing if this process has no free descriptors. */
		if (CMSG_FIRSTHDR(&datagram) && control.header.cmsg_len == CMSG_LEN(sizeof(int)))
			memcpy(&result, CMSG_DATA(&control.header), sizeof(int));
		if (answer.op == VGPU_LINK_ANSWER && answer.sequence)
			take_answer(link, &answer, result);
	}
	return NULL;
}

int vgpu_link_open(struct vgpu_link *link, int socket, void (*wake)(void *context), void *context)
{
	memset(link, 0, sizeof(*link));
	link->socket = socket;
	link->wake = wake;
	link->context = context;
	pthread_mutex_init(&link->lock, NULL);
	return vgpu_child_thread(&link->thread, receive, link);
}

static int ask(struct vgpu_link *link, uint64_t bytes)
{
	const struct vgpu_link_message request = {
		.version = VGPU_LINK_VERSION,
		.op = VGPU_LINK_RESERVE,
		.sequence = ++link->sequence,
		.bytes = bytes,
	};
	uint32_t answered = atomic_load(&link->answered);

	send_message(link->socket, &request, -1);
	for (;;) {
		uint32_t now = atomic_load(&link->answered);

		if (now != answered && link->answer_sequence == request.sequence)
			return link->answer;
		vgpu_futex_wait_private(&link->answered, now);
	}
}

int vgpu_link_reserve(struct vgpu_link *link, uint64_t bytes)
{
	if (ask(link, bytes))
		return ENOMEM;
	link->reserved_bytes += bytes;
	return 0;
}

void vgpu_link_release(struct vgpu_link *link, uint64_t bytes)
{
	const struct vgpu_link_message message = {
		.version = VGPU_LINK_VERSION,
		.op = VGPU_LINK_RELEASE,
		.bytes = bytes < link->reserved_bytes ? bytes : link->reserved_bytes,
	};

	link->reserved_bytes -= message.bytes;
	send_message(link->socket, &message, -1);
}

int vgpu_link_compile(struct vgpu_link *link, int job, uint64_t token)
{
	const struct vgpu_link_message request = {
		.version = VGPU_LINK_VERSION,
		.op = VGPU_LINK_COMPILE,
		.sequence = ++link->sequence,
	};
	int status = EAGAIN;

	pthread_mutex_lock(&link->lock);
	/*
	 * Answers that the main thread has not taken yet count as jobs, because there must be room
	 * for all answers.
	 */
	if (link->jobs_count + link->compiled_count < VGPU_JOBS_MAX) {
		unsigned int free = 0;

		while (link->jobs[free].sequence)
			free++;
		link->jobs[free].sequence = request.sequence;
		link->jobs[free].token = token;
		link->jobs_count++;
		status = 0;
	}
	pthread_mutex_unlock(&link->lock);
	if (!status)
		send_message(link->socket, &request, job);
	close(job);
	return status;
}

bool vgpu_link_take_compiled(struct vgpu_link *link, struct vgpu_link_compiled *compiled)
{
	bool some = false;

	pthread_mutex_lock(&link->lock);
	if (link->compiled_count) {
		*compiled = link->compiled[--link->compiled_count];
		some = true;
	}
	pthread_mutex_unlock(&link->lock);
	return some;
}

int vgpu_link_relay(int socket, int listener)
{
	const struct vgpu_link_message request = { .version = VGPU_LINK_VERSION, .op = VGPU_LINK_RELAY };
	struct vgpu_link_message answer;
	ssize_t received;

	send_message(socket, &request, listener);
	do
		received = recv(socket, &answer, sizeof(answer), 0);
	while (received < 0 && errno == EINTR);
	if (received != sizeof(answer) || answer.op != VGPU_LINK_ANSWER)
		orphaned();
	return answer.status;
}

void vgpu_link_say(int socket, enum vgpu_link_op op, const char *reason)
{
	struct vgpu_link_message message = { .version = VGPU_LINK_VERSION, .op = op };

	snprintf(message.reason, sizeof(message.reason), "%s", reason ? reason : "");
	send_message(socket, &message, -1);
}
