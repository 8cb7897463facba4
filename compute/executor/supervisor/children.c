// SPDX-License-Identifier: Apache-2.0
/* Starts children and compilers, and kills them. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <syslog.h>
#include <unistd.h>

#include "executor/log.h"
#include "executor/supervisor/supervisor.h"

#define NAMESPACES	(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | \
			 CLONE_NEWUTS | CLONE_NEWCGROUP)
#define ARGUMENTS	32u
#define VARIABLES	64u

struct arguments {
	char *list[ARGUMENTS];
	unsigned int count;
	char numbers[8][24];
	unsigned int numbers_count;
};

static void add(struct arguments *arguments, const char *name, const char *value)
{
	arguments->list[arguments->count++] = (char *)name;
	if (value)
		arguments->list[arguments->count++] = (char *)value;
}

static void add_number(struct arguments *arguments, const char *name, uint64_t value)
{
	char *number = arguments->numbers[arguments->numbers_count++];

	snprintf(number, sizeof(arguments->numbers[0]), "%llu", (unsigned long long)value);
	add(arguments, name, number);
}

/* Passes only the library's own variables to the child. */
static void copy_environment(char **environment)
{
	static const char *const kept[] = {
		"POCL_", "VGPUMGR_DEBUG=", "LD_LIBRARY_PATH=", "ASAN_", "UBSAN_",
	};
	unsigned int count = 0;

	environment[count++] = "PATH=/usr/bin:/bin";
	environment[count++] = "LANG=C.UTF-8";
	for (char **variable = environ; *variable && count < VARIABLES - 1; variable++)
		for (unsigned int i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
			if (!strncmp(*variable, kept[i], strlen(kept[i])))
				environment[count++] = *variable;
	environment[count] = NULL;
}

/*
 * Return: limit on the address space; 0 for no limit.  A child on an NVIDIA GPU has no limit,
 * because NVIDIA's library reserves addresses for all memory of host and GPU, but uses little
 * memory.
 */
static uint64_t address_bytes(const struct vgpu_supervisor *s, const struct vgpu_supervised *one,
			      uint64_t own_bytes)
{
	if (one->compiler)
		return s->options.compiler_bytes;
	return s->options.gpu < 0 ? own_bytes + s->options.overhead_bytes : 0;
}

int vgpu_start(struct vgpu_supervisor *s, struct vgpu_supervised *one, uint64_t memory_bytes,
	       uint64_t window_bytes, const int *descriptors, unsigned int count)
{
	struct arguments arguments = { 0 };
	char *environment[VARIABLES], scratch[96];
	struct vgpu_spawned spawned;
	struct vgpu_spawn spawn = {
		.program = s->program, .environment = environment, .arguments = arguments.list,
		.namespaces = strcmp(s->options.sandbox, "none") ? NAMESPACES : 0,
	};
	int pipe[2], error;

	error = vgpu_gate_add(&s->gate, &one->member, one->number, one->compiler);
	if (error)
		return error;
	if (pipe2(pipe, O_CLOEXEC)) {
		error = errno;
		vgpu_gate_remove(&s->gate, &one->member);
		return error;
	}
	error = vgpu_scratch_make(&s->scratch, one, strcmp(s->options.sandbox, "none"), scratch,
				  sizeof(scratch));
	if (error) {
		vgpu_log(LOG_ERR, "event=scratch %s error=%d", scratch, error);
		close(pipe[0]);
		close(pipe[1]);
		vgpu_gate_remove(&s->gate, &one->member);
		return EIO;
	}
	add(&arguments, "vgpu-child", NULL);
	add(&arguments, "--namespaces", "");
	spawn.namespaces_argument = arguments.count - 1;
	if (one->compiler)
		add(&arguments, "--compile", NULL);
	if (s->options.library)
		add(&arguments, "--library", s->options.library);
	add(&arguments, "--backend", s->options.backend);
	add(&arguments, "--sandbox", s->options.sandbox);
	add(&arguments, "--scratch", scratch);
	add_number(&arguments, "--scratch-bytes", s->options.scratch_bytes);
	add_number(&arguments, "--window-bytes", window_bytes);
	add_number(&arguments, "--memory-bytes", memory_bytes);
	add_number(&arguments, "--spin-us", s->options.spin_us);
	add_number(&arguments, "--address-bytes", address_bytes(s, one, memory_bytes + window_bytes));
	if (s->options.gpu >= 0 && !one->compiler)
		add_number(&arguments, "--nvidia", (uint64_t)s->options.gpu);
	copy_environment(environment);
	memcpy(spawn.descriptors, descriptors, count * sizeof(int));
	spawn.descriptors_count = count;
	spawn.output = pipe[1];
	spawn.cgroup = one->member.cgroup;
	/* Move it to the frozen cgroup last: the process cannot be moved any more after that. */
	spawn.cgroup_procs[0] = one->compiler ? -1 : s->memory.procs;
	spawn.cgroup_procs[1] = one->member.procs;
	error = vgpu_spawn(&spawn, &spawned);
	close(pipe[1]);
	if (error) {
		close(pipe[0]);
		vgpu_scratch_remove(&s->scratch, one);
		vgpu_gate_remove(&s->gate, &one->member);
		return error;
	}
	fcntl(pipe[0], F_SETFL, O_NONBLOCK);
	one->member.pid = spawned.pid;
	one->member.pidfd = spawned.pidfd;
	one->namespaces = spawned.namespaces;
	one->started_ns = vgpu_now_ns();
	one->used = true;
	if (!(one->namespaces & CLONE_NEWPID))
		vgpu_janitor_tell(s, spawned.pid);
	vgpu_output_open(&one->output, pipe[0], one->started_ns);
	vgpu_watch(s, pipe[0], EPOLLIN, one->compiler ? VGPU_EVENT_COMPILER_OUTPUT : VGPU_EVENT_OUTPUT,
		   (unsigned int)(one - (one->compiler ? s->compilers : s->children)));
	/* Without a freezer, a closed gate has to be closed for the new child separately. */
	if (!one->compiler && s->gate.closed && s->gate.kind == VGPU_GATE_SIGNAL) {
		struct vgpu_gate_member *member = &one->member;

		vgpu_gate_close(&s->gate, &member, 1);
	}
	return 0;
}

/*
 * Limits the children's memory to that of the slice plus, for each child, its window and the needs
 * of its library.
 */
void vgpu_limit_memory(struct vgpu_supervisor *s)
{
	uint64_t bytes = s->memory_bytes;
	int error;

	for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++)
		if (s->children[i].used)
			bytes += s->children[i].window_bytes + s->options.resident_bytes;
	error = vgpu_memory_limit(&s->memory, bytes);
	if (error)
		vgpu_log(LOG_WARNING, "event=memory cannot be limited to %llu bytes, error=%d",
			 (unsigned long long)bytes, error);
}

struct vgpu_supervised *vgpu_child_find(struct vgpu_supervisor *s, uint64_t number)
{
	for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++)
		if (s->children[i].used && s->children[i].number == number)
			return &s->children[i];
	return NULL;
}

int vgpu_child_start(struct vgpu_supervisor *s, const struct vgpu_supervisor_message *start,
		     const int *descriptors)
{
	struct vgpu_supervised *child = NULL;
	int all[VGPU_SPAWN_DESCRIPTORS], link[2], error;

	if (vgpu_child_find(s, start->child))
		return EEXIST;
	for (unsigned int i = 0; i < VGPU_CHILDREN_MAX && !child; i++)
		if (!s->children[i].used)
			child = &s->children[i];
	if (!child)
		return EMFILE;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, link))
		return errno;
	*child = (struct vgpu_supervised){
		.number = start->child, .link = link[0], .window = -1,
	};
	vgpu_requests_open(child);
	memcpy(all, descriptors, 4 * sizeof(int));
	all[VGPU_FD_SUPERVISOR - VGPU_FD_WINDOW] = link[1];
	child->window = fcntl(descriptors[0], F_DUPFD_CLOEXEC, 0);
	error = child->window < 0 ? errno : vgpu_start(s, child, start->memory_bytes,
						       start->window_bytes, all, 5);
	close(link[1]);
	if (error) {
		close(child->link);
		if (child->window >= 0)
			close(child->window);
		return error;
	}
	s->memory_bytes = start->memory_bytes;
	child->window_bytes = start->window_bytes;
	vgpu_limit_memory(s);
	vgpu_watch(s, child->link, EPOLLIN, VGPU_EVENT_LINK, (unsigned int)(child - s->children));
	vgpu_log(LOG_INFO, "child=%llu event=started child_pid=%d window_bytes=%llu namespaces=%s",
		 (unsigned long long)child->number, child->member.pid,
		 (unsigned long long)start->window_bytes, child->namespaces ? "own" : "none");
	return 0;
}

void vgpu_kill(struct vgpu_supervisor *s, struct vgpu_supervised *one, const char *reason)
{
	if (!one->killed && !one->died && reason && !one->reason[0])
		snprintf(one->reason, sizeof(one->reason), "%s", reason);
	one->killed = true;
	vgpu_gate_kill(&s->gate, &one->member);
}
