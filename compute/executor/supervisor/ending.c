// SPDX-License-Identifier: Apache-2.0
/*
 * Detects processes that have ended, waits until none of their descendants is left, and accounts
 * for their processor time.
 */
#include <sched.h>
#include <signal.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "executor/gate/tree.h"
#include "executor/header.h"
#include "executor/log.h"
#include "executor/supervisor/supervisor.h"

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

static void tell_client(const struct vgpu_supervised *child)
{
	char text[VGPU_REASON_BYTES];

	vgpu_exit_text(text, child->status, child->reason);
	vgpu_header_lose(child->window, text);
}

static void release(struct vgpu_supervisor *s, struct vgpu_supervised *one)
{
	unsigned int index = (unsigned int)(one - (one->compiler ? s->compilers : s->children));

	/*
	 * Closing the descriptors is not enough: a process that was frozen before its exec has
	 * copies of all of them, and epoll reports a file as long as any process has it open.
	 */
	vgpu_watch(s, one->output.pipe, 0, VGPU_EVENT_OUTPUT, index);
	if (!one->compiler)
		vgpu_watch(s, one->link, 0, VGPU_EVENT_LINK, index);
	vgpu_output_close(&one->output, one->compiler ? "compiler" : "child", one->number,
			  vgpu_now_ns());
	vgpu_scratch_remove(&s->scratch, one);
	if (one->compiler) {
		vgpu_compilers_ended(s, one);
	} else {
		vgpu_requests_last_words(one);
		tell_client(one);
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
		vgpu_limit_memory(s);
		vgpu_control_exited(s, one->number, one->status, one->reason);
	}
}

struct orphans {
	struct vgpu_supervisor *supervisor;
	unsigned int count;
};

/*
 * Kills an orphan: a process that outlived the first process of its child or compiler, and so has
 * become a child process of the supervisor.
 */
static void kill_orphan(pid_t pid, int process, void *context)
{
	struct orphans *orphans = context;
	struct vgpu_supervisor *s = orphans->supervisor;

	if (pid == s->janitor || vgpu_natives_have(s, pid))
		return;
	for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++)
		if (s->children[i].used && (s->children[i].relay == pid ||
					    (!s->children[i].died && s->children[i].member.pid == pid)))
			return;
	for (unsigned int i = 0; i < VGPU_COMPILERS_MAX; i++)
		if (s->compilers[i].used && !s->compilers[i].died && s->compilers[i].member.pid == pid)
			return;
	pidfd_send_signal(process, SIGKILL, NULL, 0);
	orphans->count++;
}

static void kill_orphans(struct orphans *orphans)
{
	int self = pidfd_open(getpid(), 0);

	if (self < 0) {
		/* Try again when a descriptor is available. */
		orphans->count = 1;
		return;
	}
	vgpu_tree_visit(getpid(), self, 1, kill_orphan, orphans);
	close(self);
}

/* Releases a child or compiler whose first process has ended, unless other processes of it are left. */
static bool finish(struct vgpu_supervisor *s, struct vgpu_supervised *one)
{
	struct orphans orphans = { s, 0 };

	if (!one->used || !one->died)
		return true;
	if (!(one->namespaces & CLONE_NEWPID) && s->gate.kind == VGPU_GATE_SIGNAL)
		kill_orphans(&orphans);
	if (!vgpu_relay_end(one))
		return false;
	if (orphans.count || !vgpu_gate_remove(&s->gate, &one->member))
		return false;
	if (!(one->namespaces & CLONE_NEWPID))
		vgpu_janitor_tell(s, -one->member.pid);
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

/* Return: the status in the format of waitpid(). */
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

		/* glibc's waitid() does not report the resource usage. */
		if (syscall(SYS_waitid, P_ALL, 0, &information, WEXITED | WNOHANG, &used) ||
		    !information.si_pid)
			break;
		processor_ns = ((uint64_t)used.ru_utime.tv_sec + (uint64_t)used.ru_stime.tv_sec) *
				       1000000000u +
			       ((uint64_t)used.ru_utime.tv_usec + (uint64_t)used.ru_stime.tv_usec) * 1000u;
		if (vgpu_natives_note_end(s, information.si_pid, status_of(&information)))
			continue;
		vgpu_relay_note_end(s, information.si_pid, status_of(&information));
		for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++)
			note_end(&s->children[i], information.si_pid, status_of(&information), processor_ns);
		for (unsigned int i = 0; i < VGPU_COMPILERS_MAX; i++)
			note_end(&s->compilers[i], information.si_pid, status_of(&information), processor_ns);
	}
	for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++)
		done = finish(s, &s->children[i]) && done;
	for (unsigned int i = 0; i < VGPU_COMPILERS_MAX; i++)
		done = finish(s, &s->compilers[i]) && done;
	done = vgpu_natives_finish(s) && done;
	vgpu_compilers_start(s);
	return done;
}
