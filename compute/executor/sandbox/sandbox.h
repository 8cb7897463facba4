/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Confines a child.
 *
 * The supervisor starts a child in its own namespaces (spawn.h).  The child then confines itself:
 * it calls vgpu_sandbox_confine() before it loads the accelerator's library, and
 * vgpu_sandbox_close() when the library is open and before the first request.  It reads no byte of
 * the tenant before vgpu_sandbox_close() has returned.
 *
 * For each part that the machine does not permit, the child logs one line and continues without
 * that part, unless the policy is VGPU_SANDBOX_ALL.
 */
#ifndef VGPU_EXECUTOR_SANDBOX_H
#define VGPU_EXECUTOR_SANDBOX_H

#include <stdbool.h>
#include <stdint.h>

enum vgpu_sandbox_policy {
	VGPU_SANDBOX_BEST,	/* as much as the machine permits */
	VGPU_SANDBOX_ALL,	/* everything, or the child does not start */
	VGPU_SANDBOX_NONE,	/* nothing: for a debugger or a sanitizer only */
};

/* Namespaces: flags of clone(2), and their names on the command line. */
struct vgpu_namespace {
	const char *name;
	uint64_t flag;
};

extern const struct vgpu_namespace vgpu_namespaces[];
extern const unsigned int vgpu_namespaces_count;

/**
 * struct vgpu_sandbox - how to confine a child or a compiler
 * @namespaces: namespaces that the process already has to itself, as flags of clone(2)
 * @compiler: may start the linker, and has no window
 * @library: path of the accelerator's own library, or NULL
 * @scratch: an empty directory to write in, made by the supervisor; with a new root it becomes
 *	VGPU_SANDBOX_SCRATCH, where a tmpfs is mounted
 * @scratch_bytes: size limit of the tmpfs, and of each file
 * @address_bytes: limit on the process's address space and so on its memory, however it is
 *	allocated; 0 for no limit
 * @gpu: minor number of the NVIDIA GPU whose files it may open, or -1
 * @relayed: a relay answers its ioctl() calls; otherwise they are refused
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
 * vgpu_sandbox_confine() - confine files, limits and privileges; sets POCL_CACHE_DIR
 * @reason: out: VGPU_REASON_BYTES for a message
 *
 * Call it before other threads are started.  Return: 0, or -1 with a reason.
 */
int vgpu_sandbox_confine(struct vgpu_sandbox *sandbox, char *reason);

/* Confines the system calls of all threads.  Return: like vgpu_sandbox_confine(). */
int vgpu_sandbox_close(const struct vgpu_sandbox *sandbox, char *reason);

/**
 * vgpu_sandbox_listen() - have another process answer each ioctl() from now on
 *
 * Call it before other threads are started.  The caller must pass on the descriptor that this
 * returns, and close its own: while no process has it open, ioctl() calls fail with ENOSYS.  From
 * now on, a system call of another architecture kills the process.
 *
 * Return: a descriptor, or -errno.
 */
int vgpu_sandbox_listen(void);

/* The parts, called by sandbox.c.  They return 0 or a positive errno value. */
int vgpu_sandbox_root(const struct vgpu_sandbox *sandbox);
int vgpu_sandbox_landlock(const struct vgpu_sandbox *sandbox);
int vgpu_sandbox_limits(const struct vgpu_sandbox *sandbox);
int vgpu_sandbox_privileges(const struct vgpu_sandbox *sandbox);
int vgpu_sandbox_filter(const struct vgpu_sandbox *sandbox);

/* Files that a confined process can see, in the order in which they are mounted; ends with NULL. */
extern const char *const vgpu_sandbox_files[];
extern const char *const vgpu_sandbox_compiler_files[];
/* Return: path number @number of the NVIDIA driver's files for @gpu; NULL after the last. */
#define VGPU_SANDBOX_GPU_PATH	32u
const char *vgpu_sandbox_gpu_file(const struct vgpu_sandbox *sandbox, unsigned int number, char *path);
/* Scratch directory of a process in a mount namespace. */
#define VGPU_SANDBOX_SCRATCH	"/tmp"

#endif /* VGPU_EXECUTOR_SANDBOX_H */
