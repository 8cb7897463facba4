// SPDX-License-Identifier: Apache-2.0
#include "executor/fence/fence.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/kcmp.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "executor/fence/books.h"
#include "executor/fence/holders.h"
#include "executor/gate/relay_call.h"
#include "executor/gate/rm_calls.h"
#include "executor/log.h"
#include "executor/notice.h"

/* How often the fence looks for files that processes have passed to each other. */
#define LOOK_EVERY_MS	2000
/*
 * On a host with many processes the fence looks less often: it spends at most 1/LOOK_RATIO of the
 * time on this.
 */
#define LOOK_RATIO	50u
/* Maximum number of calls that wait for the gate.  At this number, the fence accepts no more calls. */
#define HELD_MAX	64u

/* The fence's descriptors. */
enum { LISTENER = 3, CHANGED, REOPENED, KILL, PROCS, SUPERVISOR, BEHIND };

/* @held: notifications that have no answer yet; @look_ns: when to look for files again */
struct fence {
	struct vgpu_fence given;
	struct fence_books books;
	struct relay_state state;
	struct vgpu_notice notice;
	struct seccomp_notif held[HELD_MAX];
	unsigned int held_count;
	uint32_t groups;
	uint64_t look_ns;
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- the beginning */

static bool place_descriptors(struct vgpu_fence *fence)
{
	int *descriptors[] = { &fence->listener, &fence->changed, &fence->reopened, &fence->kill,
			       &fence->procs, &fence->supervisor };
	const unsigned int count = BEHIND - LISTENER;

	for (unsigned int i = 0; i < count; i++) {
		*descriptors[i] = fcntl(*descriptors[i], F_DUPFD, 64);
		if (*descriptors[i] < 0)
			return false;
	}
	for (unsigned int i = 0; i < count; i++) {
		if (dup2(*descriptors[i], LISTENER + (int)i) < 0)
			return false;
		*descriptors[i] = LISTENER + (int)i;
	}
	return !close_range(BEHIND, ~0u, 0);
}

/*
 * The driver gives more rights to a client whose maker has CAP_SYS_ADMIN, so the fence drops that
 * capability.  The fence keeps the capabilities to look into the program's processes, whatever
 * their user.  The fence stays a process of root, so no process of a tenant can send it a signal.
 */
static bool drop_privileges(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct kept[_LINUX_CAPABILITY_U32S_3] = { 0 };

	kept[0].permitted = kept[0].effective =
		1u << CAP_SYS_PTRACE | 1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH;
	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !setgroups(0, NULL) && !syscall(SYS_capset, &header, kept);
}

/*
 * Opens the device and keeps it open, because the driver makes a device object only for a process
 * that has the device open.
 */
static void open_device(const struct vgpu_fence *fence)
{
	char path[32];

	snprintf(path, sizeof(path), "/dev/nvidia%d", fence->gpu);
	if (open(path, O_RDWR | O_CLOEXEC) < 0)
		vgpu_log(LOG_WARNING, "native=%llu event=fence cannot open %s, error=%d",
			 (unsigned long long)fence->number, path, errno);
}

/* ---- a call */

static pid_t find_leader(pid_t thread)
{
	char name[32], line[256];
	pid_t leader = 0;
	FILE *file;

	snprintf(name, sizeof(name), "/proc/%d/status", thread);
	file = fopen(name, "re");
	while (file && !leader && fgets(line, sizeof(line), file))
		if (sscanf(line, "Tgid: %d", &leader) != 1)
			leader = 0;
	if (file)
		fclose(file);
	return leader;
}

/*
 * A thread with its own descriptor table is rejected, because the fence resolves descriptors in the
 * table of the process, where the thread's descriptor may be another file.
 */
static bool shares_files(pid_t thread, pid_t leader)
{
	return thread == leader || !syscall(SYS_kcmp, thread, leader, KCMP_FILES, 0, 0);
}

/*
 * Opens the caller's memory and pidfd.  The caller's PID may be reused by another process
 * meanwhile.  So the results are valid only if the caller still waits afterwards.  Nothing is kept
 * for the next call.
 */
static bool enter_caller(struct fence *fence, const struct seccomp_notif *told)
{
	pid_t thread = (pid_t)told->pid, leader = find_leader(thread);
	struct relay_state *state = &fence->state;
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/mem", thread);
	state->memory = open(path, O_RDWR | O_CLOEXEC);
	state->process = leader ? pidfd_open(leader, 0) : -1;
	fence->books.caller = leader;
	return state->memory >= 0 && state->process >= 0 && shares_files(thread, leader) &&
	       fence_is_inside(&fence->given, thread);
}

static void leave_caller(struct fence *fence)
{
	if (fence->state.memory >= 0)
		close(fence->state.memory);
	if (fence->state.process >= 0)
		close(fence->state.process);
	fence->state.memory = fence->state.process = -1;
}

static bool is_waiting(const struct seccomp_notif *told)
{
	return !ioctl(LISTENER, SECCOMP_IOCTL_NOTIF_ID_VALID, &told->id);
}

static int refuse_number(struct relay_call *call, uint32_t request)
{
	relay_refuse(call, "ioctl", request);
	return _IOC_TYPE(request) == RM_MAGIC ? EPERM : ENOTTY;
}

static int perform(struct fence *fence, struct relay_call *call, uint32_t request)
{
	if (relay_is_uvm(request)) {
		call->escape = request;
		return relay_perform_uvm(&fence->state, call);
	}
	if (rm_request(request, &call->escape, &call->bytes) == RM_PERFORM ||
	    (_IOC_TYPE(request) == RM_MAGIC && call->escape == RM_ESC_HEAP &&
	     call->bytes == sizeof(struct rm_heap)))
		return relay_perform(&fence->state, call);
	return refuse_number(call, request);
}

/* Return: an errno value, or RELAY_HELD. */
static int make_call(struct fence *fence, const struct seccomp_notif *told)
{
	struct relay_call call = {
		.file = (int)told->data.args[0], .address = told->data.args[2],
	};
	int error = EPERM;

	if (!enter_caller(fence, told))
		relay_refuse(&call, "caller", told->pid);
	else if (is_waiting(told))
		error = perform(fence, &call, (uint32_t)told->data.args[1]);
	leave_caller(fence);
	if (call.refused && error != ENOTTY && error != RELAY_HELD)
		relay_say_refused(&fence->state, &fence->notice, &call, now_ns());
	return error;
}

static void answer(const struct seccomp_notif *told, int error)
{
	struct seccomp_notif_resp said = { .id = told->id, .error = -error };

	ioctl(LISTENER, SECCOMP_IOCTL_NOTIF_SEND, &said);
}

/* ---- calls that wait for the gate */

static void tell_changes(struct fence *fence)
{
	struct vgpu_fence_page *page = fence->given.page;
	uint32_t groups = 0;

	for (uint32_t i = 0; i < page->objects.count; i++)
		groups += rm_runs_kernels(&page->objects.list[i]);
	if (groups == fence->groups && atomic_load(&page->held) == fence->held_count)
		return;
	fence->groups = groups;
	atomic_store(&page->held, fence->held_count);
	eventfd_write(CHANGED, 1);
}

/* Return: false if the call has to wait and has no answer yet. */
static bool serve(struct fence *fence, const struct seccomp_notif *told)
{
	int error = make_call(fence, told);

	if (error == RELAY_HELD)
		return false;
	answer(told, error);
	return true;
}

/*
 * Serves the calls that were held back.  While the gate is closed, it only drops the calls of
 * threads that were killed.
 */
static void serve_held(struct fence *fence)
{
	bool closed = atomic_load(&fence->given.page->closing);
	unsigned int count = fence->held_count;

	fence->held_count = 0;
	for (unsigned int i = 0; i < count; i++) {
		struct seccomp_notif told = fence->held[i];

		if (is_waiting(&told) && (closed || !serve(fence, &told)))
			fence->held[fence->held_count++] = told;
	}
}

static void receive(struct fence *fence)
{
	struct seccomp_notif told;

	memset(&told, 0, sizeof(told));
	if (ioctl(LISTENER, SECCOMP_IOCTL_NOTIF_RECV, &told))
		return;
	if (!serve(fence, &told))
		fence->held[fence->held_count++] = told;
}

/* ---- the end */

static _Noreturn void kill_program(const struct fence *fence, const char *reason)
{
	vgpu_log(LOG_ERR, "native=%llu event=killed reason=\"%s\"", (unsigned long long)fence->given.number, reason);
	if (write(KILL, "1", 1) != 1)
		vgpu_log(LOG_ERR, "native=%llu event=killed error=%d", (unsigned long long)fence->given.number, errno);
	_exit(1);
}

static void look_for_files(struct fence *fence)
{
	uint64_t begin_ns = now_ns(), end_ns;

	if (!fence_reap(&fence->books, true)) {
		vgpu_log(LOG_ERR, "native=%llu event=file.handed", (unsigned long long)fence->given.number);
		kill_program(fence, "a process outside of the program has a file of its clients");
	}
	end_ns = now_ns();
	fence->look_ns = end_ns + LOOK_EVERY_MS * 1000000ull;
	if (fence->look_ns < end_ns + (end_ns - begin_ns) * LOOK_RATIO)
		fence->look_ns = end_ns + (end_ns - begin_ns) * LOOK_RATIO;
}

static int add_makers(const struct fence *fence, struct pollfd *polls)
{
	int count = 0;

	for (unsigned int i = 0; i < RM_CLIENTS_NATIVE_MAX; i++)
		if (fence->books.clients[i].file >= 0 && fence->books.clients[i].maker >= 0)
			polls[count++] = (struct pollfd){ .fd = fence->books.clients[i].maker, .events = POLLIN };
	return count;
}

static bool has_event(const struct pollfd *polls, int count)
{
	for (int i = 0; i < count; i++)
		if (polls[i].revents)
			return true;
	return false;
}

static void run(struct fence *fence)
{
	enum { ASKED, OPENED, KEEPER, MAKERS };
	struct pollfd polls[MAKERS + RM_CLIENTS_NATIVE_MAX];

	for (;;) {
		int makers = add_makers(fence, polls + MAKERS);
		eventfd_t opened;

		polls[ASKED] = (struct pollfd){
			.fd = fence->held_count < HELD_MAX ? LISTENER : -1, .events = POLLIN,
		};
		polls[OPENED] = (struct pollfd){ .fd = REOPENED, .events = POLLIN };
		polls[KEEPER] = (struct pollfd){ .fd = SUPERVISOR, .events = POLLIN };
		if (poll(polls, (nfds_t)(MAKERS + makers), LOOK_EVERY_MS) < 0)
			continue;
		if (polls[KEEPER].revents)
			kill_program(fence, "its supervisor has ended");
		if (polls[OPENED].revents)
			eventfd_read(REOPENED, &opened);
		if (has_event(polls + MAKERS, makers))
			fence_reap(&fence->books, false);
		if (polls[ASKED].revents & POLLIN)
			receive(fence);
		else if (polls[ASKED].revents)	/* no process has the filter any more */
			return;
		if (polls[OPENED].revents || fence->held_count)
			serve_held(fence);
		if (now_ns() >= fence->look_ns)
			look_for_files(fence);
		tell_changes(fence);
	}
}

_Noreturn void vgpu_fence_run(const struct vgpu_fence *given)
{
	static struct fence fence;
	sigset_t none;

	fence.given = *given;
	prctl(PR_SET_NAME, "vgpu-fence");
	setsid();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (!place_descriptors(&fence.given)) {
		vgpu_log(LOG_ERR, "native=%llu event=fence cannot start, error=%d",
			 (unsigned long long)given->number, errno);
		_exit(1);
	}
	open_device(&fence.given);
	fence_books_open(&fence.books, &fence.given);
	fence.state = (struct relay_state){
		.objects = &fence.given.page->objects, .process = -1, .memory = -1,
		.number = fence.given.number, .books = &fence.books,
	};
	if (!drop_privileges())
		kill_program(&fence, "its fence could not drop privileges");
	run(&fence);
	_exit(0);
}
