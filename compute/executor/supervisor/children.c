// SPDX-License-Identifier: Apache-2.0
/* Starts children and compilers, kills them, and notices that they have ended. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "executor/gate/tree.h"
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

/* The library's own variables, and nothing else of the host's. */
static void copy_environment(char **environment)
{
	static const char *const kept[] = { "POCL_", "VGPUMGR_DEBUG=", "LD_LIBRARY_PATH=", "ASAN_", "UBSAN_" };
	unsigned int count = 0;

	environment[count++] = "PATH=/usr/bin:/bin";
	environment[count++] = "LANG=C.UTF-8";
	for (char **variable = environ; *variable && count < VARIABLES - 1; variable++)
		for (unsigned int i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
			if (!strncmp(*variable, kept[i], strlen(kept[i])))
				environment[count++] = *variable;
	environment[count] = NULL;
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
	vgpu_scratch_path(scratch, sizeof(scratch), getpid(), one->compiler, one->number);
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
	add_number(&arguments, "--address-bytes", one->compiler ? s->options.compiler_bytes :
						  window_bytes + memory_bytes + s->options.overhead_bytes);
	copy_environment(environment);
	memcpy(spawn.descriptors, descriptors, count * sizeof(int));
	spawn.descriptors_count = count;
	spawn.output = pipe[1];
	spawn.cgroup = one->member.cgroup;
	/* Into the frozen cgroup last: nothing of it moves from then on. */
	spawn.cgroup_procs[0] = one->compiler ? -1 : s->memory.procs;
	spawn.cgroup_procs[1] = one->member.procs;
	error = vgpu_spawn(&spawn, &spawned);
	close(pipe[1]);
	if (error) {
		close(pipe[0]);
		vgpu_gate_remove(&s->gate, &one->member);
		return error;
	}
	fcntl(pipe[0], F_SETFL, O_NONBLOCK);
	one->member.pid = spawned.pid;
	one->member.pidfd = spawned.pidfd;
	one->namespaces = spawned.namespaces;
	one->started_ns = vgpu_now_ns();
	one->used = true;
	vgpu_output_open(&one->output, pipe[0], one->started_ns);
	vgpu_watch(s, pipe[0], EPOLLIN, one->compiler ? VGPU_EVENT_COMPILER_OUTPUT : VGPU_EVENT_OUTPUT,
		   (unsigned int)(one - (one->compiler ? s->compilers : s->children)));
	/* With signals only, a closed gate has to be closed for this one as well. */
	if (!one->compiler && s->gate.closed && s->gate.kind == VGPU_GATE_SIGNAL) {
		struct vgpu_gate_member *member = &one->member;

		vgpu_gate_close(&s->gate, &member, 1);
	}
	return 0;
}

/* The slice's memory, and of each child its window and what its library needs. */
static void limit_memory(struct vgpu_supervisor *s)
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
		.permits = VGPU_LINK_BURST, .permits_at_ns = vgpu_now_ns(),
	};
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
	limit_memory(s);
	vgpu_watch(s, child->link, EPOLLIN, VGPU_EVENT_LINK, (unsigned int)(child - s->children));
	vgpu_log(LOG_INFO, "child=%llu event=started pid=%d window_bytes=%llu namespaces=%s",
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

static uint64_t clock_ns(const struct vgpu_supervised *child)
{
	struct timespec used;
	clockid_t clock;

	if (child->died)
		return child->processor_ns;
	if (clock_getcpuclockid(child->member.pid, &clock) || clock_gettime(clock, &used))
		return 0;
	return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

uint64_t vgpu_processor_ns(struct vgpu_supervisor *s)
{
	uint64_t sum = vgpu_gate_processor_ns(&s->gate);

	if (sum || s->gate.kind == VGPU_GATE_CGROUP2)
		return sum;
	sum = s->gone_ns;
	for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++)
		if (s->children[i].used)
			sum += clock_ns(&s->children[i]);
	return sum;
}

static void release(struct vgpu_supervisor *s, struct vgpu_supervised *one)
{
	char scratch[96];

	vgpu_output_close(&one->output, one->compiler ? "compiler" : "child", one->number,
			  vgpu_now_ns());
	if (!(one->namespaces & CLONE_NEWNS)) {
		vgpu_scratch_path(scratch, sizeof(scratch), getpid(), one->compiler, one->number);
		vgpu_scratch_remove(scratch);
	}
	if (one->compiler) {
		vgpu_compilers_ended(s, one);
	} else {
		vgpu_requests_last_words(one);
		vgpu_mark_lost(one->window);
		close(one->window);
		close(one->link);
		s->reserved_bytes -= one->reserved_bytes;
		s->gone_ns += one->processor_ns;
		vgpu_compilers_forget(s, one->number);
		vgpu_log(LOG_INFO, "child=%llu event=exited status=0x%x processor_us=%llu reason=\"%s\"",
			 (unsigned long long)one->number, (unsigned int)one->status,
			 (unsigned long long)one->processor_ns / 1000, one->reason);
	}
	one->used = false;
	if (!one->compiler) {
		limit_memory(s);
		vgpu_control_exited(s, one);
	}
}

struct orphans {
	struct vgpu_supervisor *supervisor;
	unsigned int count;
};

/* What outlived the first process of a child has become the supervisor's own child. */
static void kill_orphan(pid_t pid, void *context)
{
	struct orphans *orphans = context;
	struct vgpu_supervisor *s = orphans->supervisor;

	if (pid == s->janitor)
		return;
	for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++)
		if (s->children[i].used && !s->children[i].died && s->children[i].member.pid == pid)
			return;
	for (unsigned int i = 0; i < VGPU_COMPILERS_MAX; i++)
		if (s->compilers[i].used && !s->compilers[i].died && s->compilers[i].member.pid == pid)
			return;
	kill(pid, SIGKILL);
	orphans->count++;
}

/* Lets go of a child whose first process has ended, unless some other process of it is left. */
static bool finish(struct vgpu_supervisor *s, struct vgpu_supervised *one)
{
	struct orphans orphans = { s, 0 };

	if (!one->used || !one->died)
		return true;
	if (!(one->namespaces & CLONE_NEWPID) && s->gate.kind == VGPU_GATE_SIGNAL)
		vgpu_tree_visit(getpid(), 1, kill_orphan, &orphans);
	if (orphans.count || !vgpu_gate_remove(&s->gate, &one->member))
		return false;
	release(s, one);
	return true;
}

static void note_end(struct vgpu_supervised *one, pid_t pid, int status, uint64_t processor_ns)
{
	if (!one->used || one->died || one->member.pid != pid)
		return;
	one->died = true;
	one->status = status;
	one->processor_ns = processor_ns;
}

/* As waitpid() would have given it. */
static int status_of(const siginfo_t *information)
{
	switch (information->si_code) {
	case CLD_EXITED:
		return (information->si_status & 0xff) << 8;
	case CLD_DUMPED:
		return information->si_status | 0x80;
	default:
		return information->si_status;
	}
}

bool vgpu_reap(struct vgpu_supervisor *s)
{
	bool done = true;

	for (;;) {
		siginfo_t information = { 0 };
		struct rusage used;
		uint64_t processor_ns;

		/* glibc's waitid() does not tell what was used. */
		if (syscall(SYS_waitid, P_ALL, 0, &information, WEXITED | WNOHANG, &used) ||
		    !information.si_pid)
			break;
		processor_ns = ((uint64_t)used.ru_utime.tv_sec + (uint64_t)used.ru_stime.tv_sec) *
				       1000000000u +
			       ((uint64_t)used.ru_utime.tv_usec + (uint64_t)used.ru_stime.tv_usec) * 1000u;
		for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++)
			note_end(&s->children[i], information.si_pid, status_of(&information), processor_ns);
		for (unsigned int i = 0; i < VGPU_COMPILERS_MAX; i++)
			note_end(&s->compilers[i], information.si_pid, status_of(&information), processor_ns);
	}
	for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++)
		done = finish(s, &s->children[i]) && done;
	for (unsigned int i = 0; i < VGPU_COMPILERS_MAX; i++)
		done = finish(s, &s->compilers[i]) && done;
	vgpu_compilers_start(s);
	return done;
}
