/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate of a slice: stops all its children whatever they do, lets them go on, and
 * kills one with everything that it started.
 *
 * Three kinds: the freezer of cgroup v2, the freezer of cgroup v1, and SIGSTOP to each
 * thread group where there is no cgroup to be had.  The supervisor's one thread calls
 * all of this.
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
 * @cgroup: descriptor to be born in (cgroup v2), or -1
 * @procs: descriptor of cgroup.procs to be moved to (cgroup v1), or -1
 * @compiler: compilers are killed as children are, and not stopped
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
 * @path: directory of all cgroups of this supervisor, empty without
 * @children: directory of the cgroups of children
 * @ending: of cgroups for what was killed while @children was frozen (cgroup v1)
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
 * vgpu_gate_open() - find out which kind is to be had, and prepare it
 * @wanted: VGPU_GATE_AUTO for the best
 * @directory: cgroup directory to use, or NULL for the one the process is in
 *
 * Return: 0 or a positive errno value.  AUTO always succeeds.
 */
int vgpu_gate_open(struct vgpu_gate *gate, enum vgpu_gate_kind wanted, const char *directory);
/* Removes what open() made; no member is left. */
void vgpu_gate_release(struct vgpu_gate *gate);

/* 0 or a positive errno value.  The caller fills in @pid and @pidfd when it has them. */
int vgpu_gate_add(struct vgpu_gate *gate, struct vgpu_gate_member *member, uint64_t number,
		  bool compiler);
/* Sends SIGKILL to all processes of a member; they may take a while to be gone. */
void vgpu_gate_kill(struct vgpu_gate *gate, const struct vgpu_gate_member *member);
/* After the member's first process was reaped: false while some other process is left. */
bool vgpu_gate_remove(struct vgpu_gate *gate, struct vgpu_gate_member *member);

/* Orders the members to stop, or to go on.  Member processes that start later obey too. */
int vgpu_gate_close(struct vgpu_gate *gate, struct vgpu_gate_member *const *members,
		    unsigned int count);
int vgpu_gate_reopen(struct vgpu_gate *gate, struct vgpu_gate_member *const *members,
		     unsigned int count);
/**
 * vgpu_gate_hurry() - let threads that are about to stop run before others, or no longer
 *
 * A thread that waits for a processor stops only when it has got one, which takes long
 * on a busy host.  To be called with true after vgpu_gate_close(), when no thread can
 * get back to its own code any more, and with false before vgpu_gate_reopen().
 * Not for VGPU_GATE_SIGNAL, where SIGCONT takes a thread back to its own code.
 * Return: false if some thread could not be changed.
 */
bool vgpu_gate_hurry(const struct vgpu_gate_member *member, bool hurry);
/* Has each thread of this member stopped?  With cgroups the answer is for all members. */
bool vgpu_gate_has_stopped(struct vgpu_gate *gate, const struct vgpu_gate_member *member);

/* Processor time that children have used, ever, in ns; 0 if the kind cannot tell. */
uint64_t vgpu_gate_processor_ns(const struct vgpu_gate *gate);

/* Removes cgroups of supervisors that were killed. */
void vgpu_gate_sweep(const char *path);
/* Kills all processes in a supervisor's cgroups and removes them. */
void vgpu_gate_destroy(const char *path);

#endif /* VGPU_EXECUTOR_GATE_H */
