/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate of a slice: it stops all children of the slice whatever they do, lets them continue, and
 * kills one child with everything that it started.
 *
 * There are three kinds: the freezer of cgroup v2, the freezer of cgroup v1, and, where no cgroup
 * is available, SIGSTOP to each thread group.  The supervisor's only thread calls all of these
 * functions.
 */
#ifndef VGPU_EXECUTOR_GATE_H
#define VGPU_EXECUTOR_GATE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "executor/gate/latency.h"

enum vgpu_gate_kind {
	VGPU_GATE_AUTO,
	VGPU_GATE_CGROUP2,
	VGPU_GATE_CGROUP1,
	VGPU_GATE_SIGNAL,
};

/**
 * struct vgpu_gate_member - a child or a compiler
 * @cgroup: descriptor of the cgroup to start in (cgroup v2), or -1
 * @procs: descriptor of the cgroup.procs to be moved to (cgroup v1), or -1
 * @compiler: a compiler can be killed like a child, but is never stopped
 */
struct vgpu_gate_member {
	char name[32];
	bool compiler;
	int cgroup;
	int procs;
	pid_t pid;
	int pidfd;
};

/**
 * struct vgpu_gate - one per supervisor
 * @path: directory of all cgroups of this supervisor; empty if there are none
 * @children: directory of the cgroups of children
 * @ending: directory of cgroups for members that were killed while @children was frozen (cgroup v1)
 * @freeze: cgroup.freeze or freezer.state of @children
 * @events: cgroup.events of @children, for epoll's EPOLLPRI, or -1
 * @stat: cpu.stat of @children, or -1
 */
struct vgpu_gate {
	enum vgpu_gate_kind kind;
	char path[PATH_MAX];
	int base;
	int children;
	int compilers;
	int ending;
	int freeze;
	int events;
	int stat;
	bool closed;
	struct vgpu_latency latency;
};

const char *vgpu_gate_name(enum vgpu_gate_kind kind);

/**
 * vgpu_gate_open() - find out which kind is available, and prepare it
 * @wanted: VGPU_GATE_AUTO for the best available kind
 * @directory: cgroup directory to use, or NULL for the cgroup of this process
 *
 * Return: 0 or a positive errno value.  AUTO always succeeds.
 */
int vgpu_gate_open(struct vgpu_gate *gate, enum vgpu_gate_kind wanted, const char *directory);
/* Removes what vgpu_gate_open() made.  There must be no members left. */
void vgpu_gate_release(struct vgpu_gate *gate);

/* Return: 0 or a positive errno value.  The caller sets @pid and @pidfd when the process exists. */
int vgpu_gate_add(struct vgpu_gate *gate, struct vgpu_gate_member *member, uint64_t number,
		  bool compiler);
/* Sends SIGKILL to all processes of a member.  They may need a while to end. */
void vgpu_gate_kill(struct vgpu_gate *gate, const struct vgpu_gate_member *member);
/*
 * Call it after the member's first process was reaped.  Return: false while the member has another
 * process.
 */
bool vgpu_gate_remove(struct vgpu_gate *gate, struct vgpu_gate_member *member);

/*
 * vgpu_gate_close() orders the members to stop, vgpu_gate_reopen() to continue.  Both orders also
 * apply to processes that members start later.
 */
int vgpu_gate_close(struct vgpu_gate *gate, struct vgpu_gate_member *const *members,
		    unsigned int count);
int vgpu_gate_reopen(struct vgpu_gate *gate, struct vgpu_gate_member *const *members,
		     unsigned int count);
/**
 * vgpu_gate_hurry() - raise or restore the priority of threads that are about to stop
 *
 * A thread that waits for a processor stops only when it gets a processor.  On a busy host this
 * takes long.  Call it with true after vgpu_gate_close(), when no thread can return to its own code
 * any more, and with false before vgpu_gate_reopen().  Do not use it for VGPU_GATE_SIGNAL, where
 * SIGCONT returns a thread to its own code.
 *
 * Return: false if the priority of some thread could not be changed.
 */
bool vgpu_gate_hurry(const struct vgpu_gate_member *member, bool hurry);
/* Has each thread of this member stopped?  With cgroups the answer is for all members. */
bool vgpu_gate_has_stopped(struct vgpu_gate *gate, const struct vgpu_gate_member *member);

/* Return: total processor time that children have used, in ns; 0 if this kind of gate does not report it. */
uint64_t vgpu_gate_processor_ns(const struct vgpu_gate *gate);

/* Removes cgroups of supervisors that were killed. */
void vgpu_gate_sweep(const char *path);
/* Kills all processes in a supervisor's cgroups and removes them. */
void vgpu_gate_destroy(const char *path);

#endif /* VGPU_EXECUTOR_GATE_H */
