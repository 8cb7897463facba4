/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a child may reach.
 *
 * The supervisor starts a child in namespaces of its own (spawn.h).  The child then
 * confines itself: vgpu_sandbox_confine() before it loads the accelerator's library,
 * vgpu_sandbox_close() when the library is open and before the first request.  No
 * byte of the tenant is read before the second.
 *
 * What the machine does not permit is said in one log line each, and the child goes
 * on without it, unless the policy is VGPU_SANDBOX_ALL.
 */
#ifndef VGPU_EXECUTOR_SANDBOX_H
#define VGPU_EXECUTOR_SANDBOX_H

#include <stdbool.h>
#include <stdint.h>

enum vgpu_sandbox_policy {
	VGPU_SANDBOX_BEST,	/* as much as the machine permits */
	VGPU_SANDBOX_ALL,	/* all, or the child does not start */
	VGPU_SANDBOX_NONE,	/* nothing: for a debugger or a sanitizer only */
};

/* Namespaces, by the flags of clone(2), and how the command line names them. */
struct vgpu_namespace {
	const char *name;
	uint64_t flag;
};

extern const struct vgpu_namespace vgpu_namespaces[];
extern const unsigned int vgpu_namespaces_count;

/**
 * struct vgpu_sandbox - what a child, or a compiler, is to be confined to
 * @namespaces: which the process has for itself already, as flags of clone(2)
 * @compiler: may start the linker, and has no window
 * @library: path of the accelerator's own library, or NULL
 * @scratch: an empty directory to write in, which the supervisor has made; with a new
 *	root it becomes VGPU_SANDBOX_SCRATCH, where a tmpfs is mounted
 * @scratch_bytes: of the tmpfs, and of the longest file
 * @address_bytes: address space that the process may have, and so memory, however
 *	it is made; 0 for no limit
 * @gpu: minor number of the NVIDIA GPU whose files it may open, or -1
 * @relayed: a relay answers for its ioctl() calls; else they are refused
 */
struct vgpu_sandbox {
	enum vgpu_sandbox_policy policy;
	uint64_t namespaces;
	bool compiler;
	const char *library;
	const char *scratch;
	uint64_t scratch_bytes;
	uint64_t address_bytes;
	int gpu;
	bool relayed;
};

/**
 * vgpu_sandbox_confine() - files, limits, privileges; sets POCL_CACHE_DIR
 * @reason: VGPU_REASON_BYTES for people
 *
 * Return: 0, or -1 with a reason.  To be called before other threads are started.
 */
int vgpu_sandbox_confine(struct vgpu_sandbox *sandbox, char *reason);

/* System calls, in all threads; result as above. */
int vgpu_sandbox_close(const struct vgpu_sandbox *sandbox, char *reason);

/**
 * vgpu_sandbox_listen() - have somebody else answer for each ioctl() from now on
 *
 * Before other threads are started.  The process must pass on what this returns, and close
 * it: while nobody has it open, its ioctl() calls fail with ENOSYS.  A system call of another
 * architecture kills the process from now on.
 * Return: a descriptor, or -errno.
 */
int vgpu_sandbox_listen(void);

/* The parts, for sandbox.c: 0, or a positive errno value. */
int vgpu_sandbox_root(const struct vgpu_sandbox *sandbox);
int vgpu_sandbox_landlock(const struct vgpu_sandbox *sandbox);
int vgpu_sandbox_limits(const struct vgpu_sandbox *sandbox);
int vgpu_sandbox_privileges(const struct vgpu_sandbox *sandbox);
int vgpu_sandbox_filter(const struct vgpu_sandbox *sandbox);

/* Files that a confined process sees, in the order of their mounts; ends with NULL. */
extern const char *const vgpu_sandbox_files[];
extern const char *const vgpu_sandbox_compiler_files[];
/* The files of NVIDIA's driver that @gpu gives, by number; NULL behind the last. */
#define VGPU_SANDBOX_GPU_PATH	32u
const char *vgpu_sandbox_gpu_file(const struct vgpu_sandbox *sandbox, unsigned int number, char *path);
/* Where a process in a mount namespace writes. */
#define VGPU_SANDBOX_SCRATCH	"/tmp"

#endif /* VGPU_EXECUTOR_SANDBOX_H */
