// SPDX-License-Identifier: Apache-2.0
/*
 * Live changes: a thread that answers on the socket PREFIX.PID, only to the process's own user and
 * to root. A request is one packet, "timeslice MICROSECONDS"; the answer is one packet of JSON.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

static _Atomic bool started;
static int listener = -1;
static struct stat listener_identity;
static struct sockaddr_un address;
static pid_t owner_pid;

static bool is_same_file(int fd, dev_t device, ino_t inode)
{
	struct stat now;

	return fstat(fd, &now) == 0 && now.st_dev == device && now.st_ino == inode;
}

/* Sets the timeslice of every present group and reports how many accepted it. */
static void change(uint32_t timeslice_us, char *answer, size_t room)
{
	struct group present[GROUPS_MAX];
	uint32_t status, last_refusal = 0;
	size_t count, taken = 0;

	settings_set_timeslice_us(timeslice_us);
	count = groups_copy(present, GROUPS_MAX);
	for (size_t i = 0; i < count; i++) {
		const struct group *group = &present[i];

		/*
		 * The group's file was closed and its descriptor reused: leave the other file
		 * alone.
		 */
		if (!is_same_file(group->fd, group->device, group->inode))
			continue;
		if (driver_set_timeslice(group->fd, group->client, group->handle, timeslice_us, &status) == 0 &&
		    status == 0)
			taken++;
		else
			last_refusal = status;
	}
	snprintf(answer, room, "{\"timeslice_us\":%u,\"groups\":%zu,\"taken\":%zu,\"status\":%u}", timeslice_us,
		 count, taken, last_refusal);
}

static void answer(int peer)
{
	static const char word[] = "timeslice ";
	char request[64], reply[160] = "{\"error\":\"not understood\"}";
	struct timeval patience = { .tv_sec = 2 };
	struct ucred owner;
	socklen_t size = sizeof(owner);
	uint32_t timeslice_us;
	ssize_t received;

	if (getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &owner, &size) < 0 ||
	    (owner.uid != 0 && owner.uid != geteuid()))
		return;
	setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	received = recv(peer, request, sizeof(request) - 1, 0);
	if (received <= 0)
		return;
	request[received] = '\0';
	if (strncmp(request, word, strlen(word)) == 0 && strlen(request) == (size_t)received) {
		if (settings_parse_timeslice(request + strlen(word), &timeslice_us))
			change(timeslice_us, reply, sizeof(reply));
		else
			snprintf(reply, sizeof(reply), "{\"error\":\"a timeslice is 1 to %u us\"}",
				 RM_TIMESLICE_MAX_US);
	}
	send(peer, reply, strlen(reply), MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void *serve(void *unused)
{
	(void)unused;
	while (is_same_file(listener, listener_identity.st_dev, listener_identity.st_ino)) {
		int peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		if (peer >= 0) {
			answer(peer);
			close(peer);
		} else if (errno != EINTR && errno != ECONNABORTED) {
			break;
		}
	}
	return NULL;
}

static bool listen_at(const char *prefix)
{
	int size = snprintf(address.sun_path, sizeof(address.sun_path), "%s.%d", prefix, (int)getpid());

	address.sun_family = AF_UNIX;
	if (size < 0 || (size_t)size >= sizeof(address.sun_path))
		return false;
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (listener < 0)
		return false;
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(listener, 4) < 0 ||
	    fstat(listener, &listener_identity) < 0) {
		close(listener);
		listener = -1;
		return false;
	}
	owner_pid = getpid();
	return true;
}

/*
 * Called whenever a group appears; starts the thread once in a process. The thread blocks all
 * signals, because signals are for the tenant's threads.
 */
void control_start(void)
{
	const char *prefix = settings_control_prefix();
	pthread_t thread;
	sigset_t all, before;
	int saved = errno;

	if (prefix == NULL || atomic_exchange(&started, true))
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (!listen_at(prefix))
		record("control_failed", "\"reason\":\"the socket could not be made\"");
	else if (pthread_create(&thread, NULL, serve, NULL) != 0)
		record("control_failed", "\"reason\":\"no thread\"");
	else
		pthread_detach(thread);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	errno = saved;
}

static void in_child(void)
{
	/* The tenant may have closed the listener, so that its descriptor is now another file. */
	if (listener >= 0 && is_same_file(listener, listener_identity.st_dev, listener_identity.st_ino))
		close(listener);
	listener = -1;
	atomic_store(&started, false);
}

__attribute__((constructor)) static void control_init(void)
{
	pthread_atfork(NULL, NULL, in_child);
}

/* A signal or _exit() skips this function. Then the socket file stays behind without a listener. */
__attribute__((destructor)) static void control_exit(void)
{
	if (listener >= 0 && owner_pid == getpid())
		unlink(address.sun_path);
}
