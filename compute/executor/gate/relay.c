// SPDX-License-Identifier: Apache-2.0
#include "executor/gate/relay.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "executor/gate/relay_call.h"
#include "executor/gate/rm_calls.h"
#include "executor/log.h"
#include "executor/notice.h"

/* The relay's descriptors. */
enum { LISTENER = 3, PROCESS, MEMORY, BEHIND };

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Keeps only the capability to look into the child, in the relay's present user namespace. */
static bool keep_look(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct kept[_LINUX_CAPABILITY_U32S_3] = { 0 };

	kept[0].permitted = kept[0].effective = 1u << CAP_SYS_PTRACE;
	return !syscall(SYS_capset, &header, kept);
}

/*
 * Enters the child's own user namespace.  There the relay is the child's user, and can look into no
 * process outside.
 */
static bool enter_namespace(void)
{
	if (!geteuid() && setgroups(0, NULL))
		return false;
	return !setns(PROCESS, CLONE_NEWUSER) && !setresgid(0, 0, 0) && !setresuid(0, 0, 0) && keep_look();
}

static bool drop_privileges(const struct vgpu_relay *relay)
{
	uid_t user = relay->user;

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return false;
	if (relay->has_namespace)
		return enter_namespace();
	if (geteuid())
		return true;
	return !prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) && !setgroups(0, NULL) &&
	       !setresgid(user, user, user) && !setresuid(user, user, user) && keep_look();
}

/* The kernel writes structures of its own size, whatever the size of the caller's buffer. */
static bool fits(void)
{
	struct seccomp_notif_sizes sizes;

	if (syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes))
		return false;
	errno = E2BIG;
	return sizes.seccomp_notif <= sizeof(struct seccomp_notif) &&
	       sizes.seccomp_notif_resp <= sizeof(struct seccomp_notif_resp);
}

/* Moves the descriptors to their fixed numbers, and closes all others. */
static bool place_descriptors(struct vgpu_relay *relay)
{
	int *descriptors[] = { &relay->listener, &relay->process, &relay->memory };

	for (unsigned int i = 0; i < 3; i++) {
		int above = dup2(*descriptors[i], 64 + (int)i);

		if (above < 0)
			return false;
		*descriptors[i] = above;
	}
	for (unsigned int i = 0; i < 3; i++)
		if (dup2(*descriptors[i], LISTENER + (int)i) < 0)
			return false;
	relay->listener = LISTENER;
	relay->process = PROCESS;
	relay->memory = MEMORY;
	return !close_range(BEHIND, ~0u, 0);
}

static void answer_rm(uint32_t request, struct seccomp_notif_resp *said, struct relay_state *state,
		      struct relay_call *call)
{
	switch (rm_request(request, &call->escape, &call->bytes)) {
	case RM_CONTINUE:
		said->flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
		break;
	case RM_PERFORM:
		said->error = -relay_perform(state, call);
		break;
	case RM_REFUSE:
		said->error = _IOC_TYPE(request) == RM_MAGIC ? -EPERM : -ENOTTY;
		call->refused = "ioctl";
		call->detail = request;
	}
}

static void answer(const struct seccomp_notif *told, struct seccomp_notif_resp *said,
		   struct relay_state *state, struct vgpu_notice *notice)
{
	struct relay_call call = {
		.file = (int)told->data.args[0], .address = told->data.args[2],
	};
	uint32_t request = (uint32_t)told->data.args[1];

	*said = (struct seccomp_notif_resp){ .id = told->id };
	if (relay_is_uvm(request)) {
		call.escape = request;
		said->error = -relay_perform_uvm(state, &call);
	} else {
		answer_rm(request, said, state, &call);
	}
	if (call.refused && said->error != -ENOTTY)
		relay_say_refused(state, notice, &call, now_ns());
}

static void serve(struct relay_state *state)
{
	struct pollfd listener = { .fd = LISTENER, .events = POLLIN };
	struct vgpu_notice notice = { 0 };
	struct seccomp_notif_resp said;
	struct seccomp_notif told;

	for (;;) {
		if (poll(&listener, 1, -1) < 0)
			continue;
		if (!(listener.revents & POLLIN))	/* no process has the filter any more */
			return;
		memset(&told, 0, sizeof(told));
		/* The thread may have been killed meanwhile.  Then there is no call to answer. */
		if (ioctl(LISTENER, SECCOMP_IOCTL_NOTIF_RECV, &told))
			continue;
		answer(&told, &said, state, &notice);
		ioctl(LISTENER, SECCOMP_IOCTL_NOTIF_SEND, &said);
	}
}

_Noreturn void vgpu_relay_run(const struct vgpu_relay *given)
{
	static struct relay_state state;
	static struct vgpu_relay relay;
	char path[32];
	sigset_t none;

	relay = *given;
	state = (struct relay_state){
		.objects = relay.objects, .process = PROCESS, .memory = MEMORY, .number = relay.number,
	};
	prctl(PR_SET_NAME, "vgpu-relay");
	setsid();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (!place_descriptors(&relay) || !drop_privileges(&relay) || !fits()) {
		vgpu_log(LOG_ERR, "child=%llu event=relay cannot start, error=%d",
			 (unsigned long long)relay.number, errno);
		_exit(1);
	}
	/* A change of user has cleared the parent-death signal. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) || getppid() != relay.parent)
		_exit(1);
	snprintf(path, sizeof(path), "/dev/nvidia%d", relay.gpu);
	if (open(path, O_RDWR | O_CLOEXEC) < 0)
		vgpu_log(LOG_WARNING, "child=%llu event=relay cannot open %s, error=%d",
			 (unsigned long long)relay.number, path, errno);
	serve(&state);
	_exit(0);
}
