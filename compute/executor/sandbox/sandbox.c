// SPDX-License-Identifier: Apache-2.0
#include "executor/sandbox/sandbox.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <syslog.h>
#include <unistd.h>

#include "executor/log.h"
#include "protocol/control.h"

const struct vgpu_namespace vgpu_namespaces[] = {
	{ "user", CLONE_NEWUSER }, { "mount", CLONE_NEWNS }, { "pid", CLONE_NEWPID },
	{ "net", CLONE_NEWNET }, { "ipc", CLONE_NEWIPC }, { "uts", CLONE_NEWUTS },
	{ "cgroup", CLONE_NEWCGROUP },
};

const unsigned int vgpu_namespaces_count = sizeof(vgpu_namespaces) / sizeof(vgpu_namespaces[0]);

const char *const vgpu_sandbox_files[] = {
	"/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64", "/etc/ld.so.cache",
	"/usr/share/pocl", "/etc/OpenCL", "/proc/cpuinfo", "/proc/meminfo",
	"/sys/devices/system", "/dev/null", "/dev/zero", "/dev/urandom", NULL,
};

const char *const vgpu_sandbox_compiler_files[] = {
	"/usr/bin/ld", "/usr/bin/ld.bfd", "/usr/bin/ld.lld", NULL,
};

const char *vgpu_sandbox_gpu_file(const struct vgpu_sandbox *sandbox, unsigned int number, char *path)
{
	static const char *const shared[] = { "/dev/nvidiactl", "/dev/nvidia-uvm" };

	if (sandbox->gpu < 0 || sandbox->compiler || number > 2)
		return NULL;
	if (number < 2)
		return shared[number];
	snprintf(path, VGPU_SANDBOX_GPU_PATH, "/dev/nvidia%d", sandbox->gpu);
	return path;
}

/* Return: false if this part failed and the policy requires the part. */
static bool settle(const struct vgpu_sandbox *sandbox, const char *part, int error, char *reason)
{
	if (!error)
		return true;
	snprintf(reason, VGPU_REASON_BYTES, "sandbox: no %s: %s", part, strerror(error));
	vgpu_log(sandbox->policy == VGPU_SANDBOX_ALL ? LOG_ERR : LOG_WARNING,
		 "event=sandbox missing=%s error=%d", part, error);
	return sandbox->policy != VGPU_SANDBOX_ALL;
}

static bool has_all_namespaces(const struct vgpu_sandbox *sandbox, char *reason)
{
	for (unsigned int i = 0; i < vgpu_namespaces_count; i++) {
		char part[64];

		if (sandbox->namespaces & vgpu_namespaces[i].flag)
			continue;
		snprintf(part, sizeof(part), "%s-namespace", vgpu_namespaces[i].name);
		if (!settle(sandbox, part, EPERM, reason))
			return false;
	}
	return true;
}

/* A new root has a tmpfs instead of the host's scratch directory. */
static int make_root(struct vgpu_sandbox *sandbox)
{
	int error = sandbox->namespaces & CLONE_NEWNS ? vgpu_sandbox_root(sandbox) : 0;

	if (!error && sandbox->namespaces & CLONE_NEWNS)
		sandbox->scratch = VGPU_SANDBOX_SCRATCH;
	return error;
}

/* Without its own scratch directory, the library would keep programs where another user can put files. */
static bool has_scratch(const struct vgpu_sandbox *sandbox, char *reason)
{
	if (sandbox->scratch && !access(sandbox->scratch, W_OK | X_OK))
		return true;
	snprintf(reason, VGPU_REASON_BYTES, "sandbox: no scratch: %s",
		 sandbox->scratch ? strerror(errno) : "none was given");
	vgpu_log(LOG_ERR, "event=sandbox missing=scratch");
	return false;
}

int vgpu_sandbox_confine(struct vgpu_sandbox *sandbox, char *reason)
{
	char cache[256];

	if (sandbox->policy == VGPU_SANDBOX_NONE) {
		vgpu_log(LOG_WARNING, "event=sandbox missing=all: it was switched off");
		if (!has_scratch(sandbox, reason))
			return -1;
	} else {
		if (!has_all_namespaces(sandbox, reason))
			return -1;
		if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
		    !settle(sandbox, "no-new-privileges", errno, reason))
			return -1;
		if (!settle(sandbox, "root", make_root(sandbox), reason) || !has_scratch(sandbox, reason))
			return -1;
		if (!settle(sandbox, "limits", vgpu_sandbox_limits(sandbox), reason) ||
		    !settle(sandbox, "privileges", vgpu_sandbox_privileges(sandbox), reason) ||
		    !settle(sandbox, "landlock", vgpu_sandbox_landlock(sandbox), reason))
			return -1;
	}
	snprintf(cache, sizeof(cache), "%s/pocl", sandbox->scratch);
	setenv("POCL_CACHE_DIR", cache, 1);
	setenv("TMPDIR", sandbox->scratch, 1);
	setenv("HOME", sandbox->scratch, 1);
	return 0;
}

int vgpu_sandbox_close(const struct vgpu_sandbox *sandbox, char *reason)
{
	if (sandbox->policy == VGPU_SANDBOX_NONE)
		return 0;
	return settle(sandbox, "seccomp", vgpu_sandbox_filter(sandbox), reason) ? 0 : -1;
}
