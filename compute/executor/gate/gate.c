// SPDX-License-Identifier: Apache-2.0
#include "executor/gate/gate.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "executor/gate/cgroup.h"
#include "executor/gate/tree.h"

/*
 * Maximum number of times to read the list of threads.  Stopping threads start no others, so the
 * list is stable much earlier.
 */
#define HURRY_READS	64u

static const char *const names[] = { "auto", "cgroup2", "cgroup1", "signal" };

const char *vgpu_gate_name(enum vgpu_gate_kind kind)
{
	return names[kind];
}

static void forget(struct vgpu_gate *gate)
{
	gate->path[0] = 0;
	gate->base = gate->children = gate->compilers = gate->ending = -1;
	gate->freeze = gate->events = gate->stat = -1;
}

int vgpu_gate_open(struct vgpu_gate *gate, enum vgpu_gate_kind wanted, const char *directory)
{
	int error = 0;

	memset(gate, 0, sizeof(*gate));
	forget(gate);
	if (wanted == VGPU_GATE_AUTO || wanted == VGPU_GATE_CGROUP2)
		error = vgpu_cgroup_open(gate, VGPU_GATE_CGROUP2, directory);
	if ((wanted == VGPU_GATE_AUTO && error) || wanted == VGPU_GATE_CGROUP1)
		error = vgpu_cgroup_open(gate, VGPU_GATE_CGROUP1, directory);
	if ((wanted == VGPU_GATE_AUTO && error) || wanted == VGPU_GATE_SIGNAL) {
		gate->kind = VGPU_GATE_SIGNAL;
		error = 0;
	}
	return error;
}

void vgpu_gate_release(struct vgpu_gate *gate)
{
	int *descriptors[] = {
		&gate->base, &gate->children, &gate->compilers, &gate->ending,
		&gate->freeze, &gate->events, &gate->stat,
	};

	for (unsigned int i = 0; i < sizeof(descriptors) / sizeof(descriptors[0]); i++)
		if (*descriptors[i] >= 0)
			close(*descriptors[i]);
	if (gate->path[0])
		vgpu_gate_destroy(gate->path);
	forget(gate);
}

int vgpu_gate_add(struct vgpu_gate *gate, struct vgpu_gate_member *member, uint64_t number,
		  bool compiler)
{
	*member = (struct vgpu_gate_member){
		.compiler = compiler, .cgroup = -1, .procs = -1, .pidfd = -1,
	};
	snprintf(member->name, sizeof(member->name), "%llu", (unsigned long long)number);
	return gate->kind == VGPU_GATE_SIGNAL ? 0 : vgpu_cgroup_add(gate, member);
}

struct signal_to_all {
	int number;
};

static void send_to(pid_t pid, int process, void *context)
{
	(void)pid;
	pidfd_send_signal(process, ((struct signal_to_all *)context)->number, NULL, 0);
}

/*
 * Repeats until no new process is found: a process that was made before its parent stopped is found
 * in the next pass.
 */
static void signal_tree(const struct vgpu_gate_member *member, int number)
{
	struct signal_to_all all = { number };
	unsigned int before, now = 0;

	if (pidfd_send_signal(member->pidfd, number, NULL, 0))
		return;
	do {
		before = now;
		now = vgpu_tree_visit(member->pid, member->pidfd, VGPU_TREE_ALL, send_to, &all);
	} while (now > before);
}

void vgpu_gate_kill(struct vgpu_gate *gate, const struct vgpu_gate_member *member)
{
	if (member->pidfd < 0)
		return;
	if (gate->kind == VGPU_GATE_SIGNAL)
		signal_tree(member, SIGKILL);
	else
		vgpu_cgroup_kill(gate, member);
	pidfd_send_signal(member->pidfd, SIGKILL, NULL, 0);
}

bool vgpu_gate_remove(struct vgpu_gate *gate, struct vgpu_gate_member *member)
{
	if (gate->kind != VGPU_GATE_SIGNAL && !vgpu_cgroup_remove(gate, member)) {
		vgpu_cgroup_kill(gate, member);
		return false;
	}
	if (member->cgroup >= 0)
		close(member->cgroup);
	if (member->procs >= 0)
		close(member->procs);
	if (member->pidfd >= 0)
		close(member->pidfd);
	member->cgroup = member->procs = member->pidfd = -1;
	return true;
}

int vgpu_gate_close(struct vgpu_gate *gate, struct vgpu_gate_member *const *members,
		    unsigned int count)
{
	gate->closed = true;
	if (gate->kind != VGPU_GATE_SIGNAL)
		return vgpu_cgroup_freeze(gate, true);
	for (unsigned int i = 0; i < count; i++)
		signal_tree(members[i], SIGSTOP);
	return 0;
}

int vgpu_gate_reopen(struct vgpu_gate *gate, struct vgpu_gate_member *const *members,
		     unsigned int count)
{
	gate->closed = false;
	if (gate->kind != VGPU_GATE_SIGNAL)
		return vgpu_cgroup_freeze(gate, false);
	for (unsigned int i = 0; i < count; i++)
		signal_tree(members[i], SIGCONT);
	return 0;
}

/* Reads the list of threads once.  Return: the number of threads, or negative if there is no list. */
static int set_priorities(pid_t pid, int policy, int priority, bool *changed, bool *done)
{
	struct sched_param parameters = { .sched_priority = priority };
	struct dirent *task;
	char path[64];
	int count = 0;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	tasks = opendir(path);
	if (!tasks)
		return -1;
	while ((task = readdir(tasks))) {
		pid_t thread = atoi(task->d_name);

		if (task->d_name[0] == '.')
			continue;
		count++;
		if ((sched_getscheduler(thread) & ~SCHED_RESET_ON_FORK) == policy)
			continue;
		*changed = true;
		if (sched_setscheduler(thread, policy | SCHED_RESET_ON_FORK, &parameters) &&
		    errno != ESRCH)
			*done = false;
	}
	closedir(tasks);
	return count;
}

bool vgpu_gate_hurry(const struct vgpu_gate_member *member, bool hurry)
{
	int before, now = -1;
	bool changed, done;

	/* A thread may be missed while others end: repeat until nothing is new. */
	for (unsigned int i = 0; i < HURRY_READS; i++) {
		before = now;
		changed = false;
		done = true;
		now = set_priorities(member->pid, hurry ? SCHED_RR : SCHED_OTHER, hurry, &changed, &done);
		if (now < 0)
			return errno == ENOENT;
		if (!done)
			return false;
		if (!changed && now == before)
			return true;
	}
	return false;
}

struct stopped {
	bool all;
};

static void check(pid_t pid, int process, void *context)
{
	struct stopped *stopped = context;

	(void)process;
	stopped->all = stopped->all && vgpu_tree_is_stopped(pid);
}

bool vgpu_gate_has_stopped(struct vgpu_gate *gate, const struct vgpu_gate_member *member)
{
	struct stopped stopped = { true };
	siginfo_t information = { 0 };

	if (gate->kind != VGPU_GATE_SIGNAL)
		return vgpu_cgroup_is_frozen(gate);
	/*
	 * waitid() reports a stop only when the last thread of the group has stopped, and an end
	 * when the process is dead.
	 */
	if (waitid(P_PIDFD, (id_t)member->pidfd, &information,
		   WSTOPPED | WEXITED | WNOHANG | WNOWAIT) || !information.si_pid)
		return false;
	vgpu_tree_visit(member->pid, member->pidfd, VGPU_TREE_ALL, check, &stopped);
	return stopped.all;
}

uint64_t vgpu_gate_processor_ns(const struct vgpu_gate *gate)
{
	char text[512];
	ssize_t bytes = gate->stat < 0 ? -1 : pread(gate->stat, text, sizeof(text) - 1, 0);

	if (bytes <= 0)
		return 0;
	text[bytes] = 0;
	if (strncmp(text, "usage_usec ", 11))
		return 0;
	return strtoull(text + 11, NULL, 10) * 1000;
}
