// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "executor/log.h"
#include "executor/supervisor/supervisor.h"

/* How often to check a child that is dying. */
#define POLL_NS		1000000u
/*
 * How often to check a gate that is closing, during the first 10 ms: the v1 freezer sends no event,
 * and cgroup.events reports a change 10 ms late if another change was reported just before.
 */
#define GATE_POLL_NS	30000u
#define GATE_SOON_NS	10000000u
/* How long a supervisor that ends waits after it has killed all children. */
#define END_LIMIT_NS	10000000000ull

uint64_t vgpu_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void vgpu_watch(struct vgpu_supervisor *s, int descriptor, uint32_t events, enum vgpu_event event,
		unsigned int index)
{
	struct epoll_event change = {
		.events = events, .data.u64 = (uint64_t)event << 32 | index,
	};

	if (!events) {
		epoll_ctl(s->epoll, EPOLL_CTL_DEL, descriptor, NULL);
		return;
	}
	if (epoll_ctl(s->epoll, EPOLL_CTL_MOD, descriptor, &change) && errno == ENOENT &&
	    epoll_ctl(s->epoll, EPOLL_CTL_ADD, descriptor, &change))
		vgpu_log(LOG_ERR, "event=watch error=%d", errno);
}

/*
 * Raises the supervisor's priority above the children, which keep all processors busy when it has
 * to close the gate.
 */
static void hurry(struct vgpu_supervisor *s)
{
	struct sched_param priority = { .sched_priority = 1 };

	s->options.hurry = !sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &priority);
	if (!s->options.hurry)
		vgpu_log(LOG_INFO, "event=priority no real-time priority: the gate closes more slowly on a busy host");
}

static void open_supervisor(struct vgpu_supervisor *s)
{
	char reason[VGPU_REASON_BYTES] = "";
	sigset_t signals;
	int error;

	s->program = open(s->options.child, O_PATH | O_CLOEXEC);
	if (s->program < 0) {
		fprintf(stderr, "vgpu-supervisor: --child: %s: %s\n", s->options.child, strerror(errno));
		exit(2);
	}
	fcntl(VGPU_CONTROL_SOCKET, F_SETFD, FD_CLOEXEC);
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	sigemptyset(&signals);
	sigaddset(&signals, SIGCHLD);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	signal(SIGPIPE, SIG_IGN);
	s->signals = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
	s->epoll = epoll_create1(EPOLL_CLOEXEC);
	s->pending = calloc(4 * VGPU_CHILDREN_MAX, sizeof(*s->pending));
	error = vgpu_gate_open(&s->gate, s->options.gate, s->options.cgroup);
	if (error || s->signals < 0 || s->epoll < 0 || !s->pending) {
		fprintf(stderr, "vgpu-supervisor: --gate %s: %s\n", vgpu_gate_name(s->options.gate),
			strerror(error ? error : errno));
		exit(1);
	}
	error = vgpu_scratch_open(&s->scratch);
	if (error) {
		fprintf(stderr, "vgpu-supervisor: %s: %s\n", s->scratch.path, strerror(error));
		exit(1);
	}
	error = vgpu_memory_open(&s->memory, &s->gate);
	if (error)
		vgpu_log(LOG_WARNING, "event=memory no memory controller, error=%d: only the address space is limited",
			 error);
	error = vgpu_janitor_start(s);
	if (error)
		vgpu_log(LOG_WARNING, "event=janitor cannot be started, error=%d", error);
	if (!vgpu_relays_open(s, reason, sizeof(reason))) {
		fprintf(stderr, "vgpu-supervisor: --nvidia: %s\n", reason);
		exit(1);
	}
	error = vgpu_natives_open(&s->natives, s->options.natives);
	if (error) {
		fprintf(stderr, "vgpu-supervisor: --natives %s: %s\n", s->options.natives, strerror(error));
		exit(1);
	}
	vgpu_compilers_open(s);
	hurry(s);
	vgpu_watch(s, VGPU_CONTROL_SOCKET, EPOLLIN, VGPU_EVENT_CONTROL, 0);
	vgpu_watch(s, s->signals, EPOLLIN, VGPU_EVENT_SIGNAL, 0);
	if (s->gate.events >= 0)
		vgpu_watch(s, s->gate.events, EPOLLPRI, VGPU_EVENT_GATE, 0);
	vgpu_log(LOG_INFO, "event=ready gate=%s cgroup=%s memory=%s sandbox=%s",
		 vgpu_gate_name(s->gate.kind), s->gate.path[0] ? s->gate.path : "none",
		 s->memory.directory < 0 ? "address-space" : s->memory.file, s->options.sandbox);
}

static void take_signals(struct vgpu_supervisor *s)
{
	struct signalfd_siginfo information;

	while (read(s->signals, &information, sizeof(information)) == sizeof(information))
		if (information.ssi_signo != SIGCHLD)
			s->ending = true;
}

static void handle(struct vgpu_supervisor *s, const struct epoll_event *event)
{
	unsigned int index = (uint32_t)event->data.u64;
	struct vgpu_supervised *one;

	switch ((enum vgpu_event)(event->data.u64 >> 32)) {
	case VGPU_EVENT_CONTROL:
		if (event->events & EPOLLOUT)
			vgpu_control_flush(s);
		if (event->events & ~(uint32_t)EPOLLOUT)
			vgpu_control_receive(s);
		break;
	case VGPU_EVENT_SIGNAL:
		take_signals(s);
		break;
	case VGPU_EVENT_GATE:
		if (!s->freezing)
			vgpu_gate_has_stopped(&s->gate, NULL);	/* reading the file re-arms it */
		break;
	case VGPU_EVENT_NATIVE:
		vgpu_native_changed(s, index);
		break;
	case VGPU_EVENT_LINK:
		vgpu_requests_receive(s, &s->children[index]);
		break;
	case VGPU_EVENT_OUTPUT:
	case VGPU_EVENT_COMPILER_OUTPUT:
		one = event->data.u64 >> 32 == VGPU_EVENT_OUTPUT ? &s->children[index] :
								   &s->compilers[index];
		if (!vgpu_output_read(&one->output, one->compiler ? "compiler" : "child",
				      one->number, vgpu_now_ns()))
			vgpu_watch(s, one->output.pipe, 0, VGPU_EVENT_OUTPUT, index);
		break;
	}
}

/* Return: the timeout for epoll_pwait2(); NULL for no timeout. */
static const struct timespec *patience(struct vgpu_supervisor *s, bool dying, struct timespec *span)
{
	uint64_t now_ns = vgpu_now_ns(), next_ns = vgpu_compilers_poll(s, now_ns), span_ns;
	uint64_t memory_ns = vgpu_control_memory(s, now_ns), retry_ns = vgpu_natives_retry(s, now_ns);

	vgpu_requests_unmute(s, now_ns);
	if (memory_ns < next_ns)
		next_ns = memory_ns;
	if (retry_ns < next_ns)
		next_ns = retry_ns;
	for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++)
		if (s->children[i].used && s->children[i].muted_until_ns &&
		    s->children[i].muted_until_ns < next_ns)
			next_ns = s->children[i].muted_until_ns;
	if (s->freezing && now_ns - s->gate_asked_ns < GATE_SOON_NS)
		span_ns = GATE_POLL_NS;
	else if (s->freezing || dying)
		span_ns = POLL_NS;
	else if (next_ns == UINT64_MAX)
		return NULL;
	else
		span_ns = next_ns > now_ns ? next_ns - now_ns : 0;
	span->tv_sec = (time_t)(span_ns / 1000000000u);
	span->tv_nsec = (long)(span_ns % 1000000000u);
	return span;
}

static bool has_some(const struct vgpu_supervisor *s)
{
	for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++)
		if (s->children[i].used)
			return true;
	for (unsigned int i = 0; i < VGPU_COMPILERS_MAX; i++)
		if (s->compilers[i].used)
			return true;
	return vgpu_natives_are_some(s);
}

static void end(struct vgpu_supervisor *s)
{
	uint64_t limit_ns = vgpu_now_ns() + END_LIMIT_NS;

	for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++)
		if (s->children[i].used)
			vgpu_kill(s, &s->children[i], "the supervisor ends");
	for (unsigned int i = 0; i < VGPU_COMPILERS_MAX; i++)
		if (s->compilers[i].used)
			vgpu_kill(s, &s->compilers[i], "the supervisor ends");
	vgpu_natives_kill_all(s, "the supervisor ends");
	while (vgpu_reap(s), has_some(s) && vgpu_now_ns() < limit_ns)
		usleep(POLL_NS / 1000);
	if (s->gate.latency.count)
		vgpu_freeze_report(s);
	vgpu_gate_release(&s->gate);
	vgpu_memory_release(&s->memory);
	vgpu_scratch_close(&s->scratch);
	vgpu_log(LOG_INFO, "event=ended");
}

int main(int argc, char **argv)
{
	static struct vgpu_supervisor supervisor;
	struct vgpu_supervisor *s = &supervisor;
	static char prefix[96];

	vgpu_supervisor_read_options(&s->options, argc, argv);
	snprintf(prefix, sizeof(prefix), "vgpu-supervisor tenant=%.64s", s->options.tenant);
	vgpu_log_open(prefix);
	open_supervisor(s);
	while (!s->ending) {
		bool dying = !vgpu_reap(s);
		struct epoll_event event;
		struct timespec span;

		vgpu_freeze_poll(s);
		/* Take one event at a time: handling it may release the object of the next event. */
		if (epoll_pwait2(s->epoll, &event, 1, patience(s, dying, &span), NULL) > 0)
			handle(s, &event);
	}
	end(s);
	return 0;
}
