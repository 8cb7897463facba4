// SPDX-License-Identifier: Apache-2.0
/* Resource limits and privileges of a confined process. */
#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "executor/sandbox/sandbox.h"
#include "executor/sandbox/spawn.h"

/*
 * Twice VGPU_JOBS_MAX and some more.  The number is limited because no other limit here counts the
 * memory of memfds.
 */
#define DESCRIPTORS	160u
/* Limit for threads and processes: the library has a few for each processor. */
#define TASKS		256u
/* The address sanitizer needs terabytes of address space. */
#ifdef __SANITIZE_ADDRESS__
#define SANITIZED	1
#else
#define SANITIZED	0
#endif
/* Processor time of a compiler, in addition to the supervisor's limit on its elapsed time. */
#define COMPILER_SECONDS	600u

static int limit(int resource, uint64_t value)
{
	struct rlimit limits, bound = { value, value };

	if (getrlimit(resource, &limits))
		return errno;
	/* A lower limit of the supervisor also applies to its children. */
	if (limits.rlim_max < bound.rlim_max)
		bound.rlim_cur = bound.rlim_max = limits.rlim_max;
	return setrlimit(resource, &bound) ? errno : 0;
}

int vgpu_sandbox_limits(const struct vgpu_sandbox *sandbox)
{
	static const int none[] = {
		RLIMIT_CORE, RLIMIT_MEMLOCK, RLIMIT_MSGQUEUE, RLIMIT_NICE, RLIMIT_RTPRIO,
	};
	int error = 0;

	for (unsigned int i = 0; i < sizeof(none) / sizeof(none[0]) && !error; i++)
		error = limit(none[i], 0);
	if (!error)
		error = limit(RLIMIT_NOFILE, DESCRIPTORS);
	if (!error)
		error = limit(RLIMIT_FSIZE, sandbox->scratch_bytes);
	if (!error && sandbox->address_bytes && !SANITIZED)
		error = limit(RLIMIT_AS, sandbox->address_bytes);
	if (!error && sandbox->compiler)
		error = limit(RLIMIT_CPU, COMPILER_SECONDS);
	/*
	 * The limit counts processes per user in the namespace.  Without a namespace it would count
	 * all processes of the host's user.
	 */
	if (!error && sandbox->namespaces & CLONE_NEWUSER)
		error = limit(RLIMIT_NPROC, TASKS);
	return error;
}

int vgpu_sandbox_privileges(const struct vgpu_sandbox *sandbox)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = { 0 };
	bool owns_user = sandbox->namespaces & CLONE_NEWUSER;
	int error = 0;

	for (unsigned long capability = 0; !prctl(PR_CAPBSET_READ, capability, 0, 0, 0) ||
					   prctl(PR_CAPBSET_READ, capability, 0, 0, 0) == 1;
	     capability++)
		if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) && errno != EPERM)
			return errno;
	if (!owns_user && !geteuid() &&
	    (setgroups(0, NULL) || setresgid(VGPU_NOBODY, VGPU_NOBODY, VGPU_NOBODY) ||
	     setresuid(VGPU_NOBODY, VGPU_NOBODY, VGPU_NOBODY)))
		error = errno;
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) && !error)
		error = errno;
	if (syscall(SYS_capset, &header, none))
		error = errno;
	return error;
}
