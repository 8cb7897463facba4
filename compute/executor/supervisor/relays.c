// SPDX-License-Identifier: Apache-2.0
/*
 * Children that compute on an NVIDIA GPU: a relay for each child, and the gate for the GPU.
 *
 * A child is stopped before its channels are disabled, so that it makes no other channels
 * meanwhile.  It continues after its channels are enabled again.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "executor/gate/relay.h"
#include "executor/gate/rm_calls.h"
#include "executor/log.h"
#include "executor/supervisor/supervisor.h"

/* Other supervisors hold the lock for one or two calls of half a millisecond. */
#define LOCK_LIMIT_NS	200000000u
#define LOCK_LOOK_NS	50000

/*
 * Checks the version of the kernel module.  In addition, each child's relay gets the version from
 * the driver itself.
 */
static bool is_driver_known(char *reason, size_t bytes)
{
	char version[64] = "";
	int file = open("/sys/module/nvidia/version", O_RDONLY | O_CLOEXEC);
	ssize_t length = file < 0 ? 0 : read(file, version, sizeof(version) - 1);

	if (file >= 0)
		close(file);
	if (length <= 0 || rm_is_known(version, sizeof(version)))
		return true;
	version[strcspn(version, "\n")] = '\0';
	vgpu_log_clean(version, strlen(version));
	snprintf(reason, bytes, "the gate is not known to work on driver %s, only on %d", version, RM_GATE_MAJOR);
	return false;
}

bool vgpu_relays_open(struct vgpu_supervisor *s, char *reason, size_t bytes)
{
	s->gate_lock = -1;
	if (s->options.gpu < 0)
		return true;
	if (!is_driver_known(reason, bytes))
		return false;
	s->gate_lock = vgpu_channels_lock_open(s->options.gate_lock);
	if (s->gate_lock < 0)
		snprintf(reason, bytes, "there is no lock for the gate: %s", strerror(errno));
	return s->gate_lock >= 0;
}

static int fork_relay(const struct vgpu_relay *relay)
{
	pid_t pid = fork();

	if (!pid)
		vgpu_relay_run(relay);
	return pid;
}

int vgpu_relay_start(struct vgpu_supervisor *s, struct vgpu_supervised *child, int listener)
{
	struct vgpu_relay relay = {
		.listener = listener, .process = child->member.pidfd, .memory = -1,
		.gpu = s->options.gpu, .number = child->number, .user = VGPU_NOBODY, .parent = getpid(),
		.has_namespace = child->namespaces & CLONE_NEWUSER,
	};
	char path[32];
	int error;

	relay.objects = mmap(NULL, sizeof(*relay.objects), PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (relay.objects == MAP_FAILED)
		return errno;
	/* The supervisor has not reaped the child, so the PID is still the child's. */
	snprintf(path, sizeof(path), "/proc/%d/mem", child->member.pid);
	relay.memory = open(path, O_RDWR | O_CLOEXEC);
	child->relay = relay.memory < 0 ? -1 : fork_relay(&relay);
	error = errno;
	if (relay.memory >= 0)
		close(relay.memory);
	if (child->relay > 0) {
		child->channels.objects = relay.objects;
		return 0;
	}
	child->relay = 0;
	munmap(relay.objects, sizeof(*relay.objects));
	return error;
}

void vgpu_relay_note_end(struct vgpu_supervisor *s, pid_t pid, int status)
{
	for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++) {
		struct vgpu_supervised *child = &s->children[i];

		if (!child->used || child->relay != pid)
			continue;
		child->relay = 0;
		/*
		 * With status 0 the relay ended because the child has ended, which may not have
		 * been noticed yet.
		 */
		if (status)
			vgpu_kill(s, child, "its relay has ended");
	}
}

bool vgpu_relay_end(struct vgpu_supervised *child)
{
	/*
	 * The relay may be in a call on a file of the child.  The child's work stays on the GPU
	 * until the relay ends, so kill the relay.
	 */
	if (child->relay) {
		kill(child->relay, SIGKILL);
		return false;
	}
	if (child->channels.objects)
		munmap(child->channels.objects, sizeof(*child->channels.objects));
	child->channels.objects = NULL;
	return true;
}

bool vgpu_turn_channels(struct vgpu_supervisor *s, uint64_t number, struct vgpu_channels *channels,
			int process, bool close)
{
	char reason[VGPU_CHANNELS_REASON] = "";
	const struct vgpu_channels before = *channels;

	if (!vgpu_channels_set(channels, process, close, reason)) {
		vgpu_log(LOG_ERR, "child=%llu event=gate its channels cannot be %s: %s",
			 (unsigned long long)number, close ? "closed" : "opened", reason);
		return false;
	}
	s->by_timeslice = s->by_timeslice || channels->by_timeslice;
	if (channels->unpreemptible && !before.unpreemptible)
		vgpu_log(LOG_WARNING, "child=%llu event=gate its kernels may run to their end: the driver does not make them preemptible",
			 (unsigned long long)number);
	if (channels->by_timeslice != before.by_timeslice)
		vgpu_log(LOG_WARNING, "child=%llu event=gate uses timeslices instead: %s",
			 (unsigned long long)number, reason);
	return true;
}

/* The caller holds the host's lock, and releases it after each child. */
static bool set(struct vgpu_supervisor *s, struct vgpu_supervised *child, bool close)
{
	if (vgpu_turn_channels(s, child->number, &child->channels, child->member.pidfd, close))
		return true;
	vgpu_kill(s, child, close ? "its work on the GPU could not be stopped" :
				    "its work on the GPU could not be restarted");
	return false;
}

bool vgpu_relays_close(struct vgpu_supervisor *s)
{
	bool all = true;

	if (s->gate_lock < 0)
		return true;
	for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++) {
		struct vgpu_supervised *child = &s->children[i];

		if (!child->used || !child->channels.objects)
			continue;
		/*
		 * The child's work on the GPU ends with the child.  The work is certain to have
		 * ended when the child's entry is not in use any more.
		 */
		if (child->died || child->killed) {
			all = false;
		} else if (!child->channels.closed) {
			if (!vgpu_channels_lock(s->gate_lock))
				return false;
			all = set(s, child, true) && all;
			vgpu_channels_unlock(s->gate_lock);
		}
	}
	return all;
}

bool vgpu_gate_lock(const struct vgpu_supervisor *s)
{
	const struct timespec look = { 0, LOCK_LOOK_NS };
	uint64_t end_ns = vgpu_now_ns() + LOCK_LIMIT_NS;

	while (!vgpu_channels_lock(s->gate_lock)) {
		if (vgpu_now_ns() >= end_ns)
			return false;
		nanosleep(&look, NULL);
	}
	return true;
}

bool vgpu_relays_reopen(struct vgpu_supervisor *s)
{
	for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++) {
		struct vgpu_supervised *child = &s->children[i];

		if (!child->used || child->died || child->killed || !child->channels.closed)
			continue;
		if (!vgpu_gate_lock(s))
			return false;
		set(s, child, false);
		vgpu_channels_unlock(s->gate_lock);
	}
	return true;
}
