// SPDX-License-Identifier: Apache-2.0
/*
 * A filter that makes the kernel pass each ioctl() of this process to another process.  The filter
 * of filter.c is installed in addition, and permits these calls.
 *
 * An ioctl() of another architecture would bypass this filter, and the gate would not know what the
 * call has made.  So a process that makes any call of another architecture is killed, even on a
 * machine where filter.c is not available.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "executor/sandbox/architecture.h"
#include "executor/sandbox/sandbox.h"

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV	(1ul << 5)	/* Linux 5.19 */
#endif

#ifdef VGPU_SANDBOX_ARCHITECTURE

int vgpu_sandbox_listen(void)
{
	struct sock_filter code[] = {
		{ BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, arch) },
		{ BPF_JMP | BPF_JEQ | BPF_K, 1, 0, VGPU_SANDBOX_ARCHITECTURE },
		{ BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS },
		{ BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr) },
#ifdef VGPU_SANDBOX_X32
		{ BPF_JMP | BPF_JGE | BPF_K, 0, 1, VGPU_SANDBOX_X32 },
		{ BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS },
#endif
		{ BPF_JMP | BPF_JEQ | BPF_K, 0, 1, __NR_ioctl },
		{ BPF_RET | BPF_K, 0, 0, SECCOMP_RET_USER_NOTIF },
		{ BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW },
	};
	struct sock_fprog filter = { .len = sizeof(code) / sizeof(code[0]), .filter = code };
	long listener;

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -errno;
	/*
	 * Without WAIT_KILLABLE_RECV, a thread that is frozen during its call would cause a second
	 * notification when it is thawed, and the call would be made twice.
	 */
	listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
			   SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV,
			   &filter);
	return listener < 0 ? -errno : (int)listener;
}

#else

/* A child without a relay refuses to serve. */
int vgpu_sandbox_listen(void)
{
	return -ENOSYS;
}

#endif
