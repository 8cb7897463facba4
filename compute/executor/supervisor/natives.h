/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Native programs of a tenant: each is a tree of processes that have NVIDIA's device open
 * themselves, in its own cgroup (fence/enclosure.h), with a fence (fence/fence.h).
 *
 * The gate stops their work on the GPU, while their processes continue.
 *
 * A program whose fence has ended is killed.  A fence whose supervisor has ended kills its
 * program.  Supervisor and fence may also end at the same time.  For this case, each supervisor
 * lists the cgroups of its programs in files, which it locks, in a directory of the broker.  The
 * next supervisor of any tenant kills the processes in the cgroups whose files are not locked any
 * more.
 */
#ifndef VGPU_EXECUTOR_NATIVES_H
#define VGPU_EXECUTOR_NATIVES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "executor/fence/enclosure.h"
#include "executor/fence/fence.h"
#include "executor/gate/channels.h"
#include "protocol/control.h"

#define VGPU_NATIVES_MAX	64u

struct vgpu_supervisor;

/**
 * struct vgpu_native - one program
 * @number: the arbiter's number of the program
 * @pid: PID of its first process, for messages
 * @file: the locked file with the path of its cgroup
 * @fence: PID of its fence, 0 when the fence has ended; @fence_pidfd is the fence's pidfd
 * @changed, @reopened: as in struct vgpu_fence
 * @runs_on: the driver did not confirm that its channels were disabled or enabled
 * @works: the program has channels, or waits until the gate opens to make channels, as last
 *	reported to the arbiter
 * @groups: number of groups that ran kernels when timeslices were last set
 */
struct vgpu_native {
	bool used;
	bool killed;
	bool runs_on;
	bool works;
	uint64_t number;
	pid_t pid;
	int file;
	pid_t fence;
	int fence_pidfd;
	int changed;
	int reopened;
	uint32_t groups;
	struct vgpu_fence_page *page;
	struct vgpu_channels channels;
	struct vgpu_enclosure enclosure;
	char reason[VGPU_REASON_BYTES];
};

/**
 * struct vgpu_natives - all native programs of a tenant
 * @directory: directory of the files with the cgroups' paths, or NULL
 * @timeslice_us: timeslice of all of them together in the driver's scheduler; 0 to leave it
 *	unchanged
 * @retry_ns: when to retry timeslices that could not be set, or 0
 */
struct vgpu_natives {
	struct vgpu_native list[VGPU_NATIVES_MAX];
	struct vgpu_fence_quota *quota;
	const char *directory;
	uint64_t timeslice_us;
	uint64_t retry_ns;
};

/* Kills the native programs of supervisors that have ended.  Return: 0 or a positive errno value. */
int vgpu_natives_open(struct vgpu_natives *natives, const char *directory);

/**
 * vgpu_native_start() - accept a program that a launcher has announced
 * @listener: descriptor on which its first call waits; still owned by the caller
 * @reason: out: VGPU_REASON_BYTES for a message
 */
bool vgpu_native_start(struct vgpu_supervisor *s, const struct vgpu_supervisor_message *start,
		       int listener, char *reason);
struct vgpu_native *vgpu_native_find(struct vgpu_supervisor *s, uint64_t number);
void vgpu_native_kill(struct vgpu_native *native, const char *reason);

/* Called when the fence has reported a change. */
void vgpu_native_changed(struct vgpu_supervisor *s, unsigned int index);
/* Sets the limits of the tenant from now on. */
void vgpu_natives_configure(struct vgpu_supervisor *s, uint64_t timeslice_us, uint64_t memory_bytes);

/*
 * Retries timeslices that could not be set, if @retry_ns has passed.  Return: when to call this
 * again, or UINT64_MAX.
 */
uint64_t vgpu_natives_retry(struct vgpu_supervisor *s, uint64_t now_ns);

/* Like vgpu_relays_close() and vgpu_relays_reopen(), for native programs. */
bool vgpu_natives_close(struct vgpu_supervisor *s);
bool vgpu_natives_reopen(struct vgpu_supervisor *s);
/* Kills the programs whose channels did not close in time. */
void vgpu_natives_kill_open(struct vgpu_supervisor *s);

/* Records that a child process of the supervisor has ended.  Return: false if it was not a fence. */
bool vgpu_natives_note_end(struct vgpu_supervisor *s, pid_t pid, int status);
bool vgpu_natives_have(const struct vgpu_supervisor *s, pid_t pid);
/*
 * Releases the programs that have ended.  Return: false while some of their processes are left;
 * call it again soon.
 */
bool vgpu_natives_finish(struct vgpu_supervisor *s);
bool vgpu_natives_are_some(const struct vgpu_supervisor *s);
void vgpu_natives_kill_all(struct vgpu_supervisor *s, const char *reason);
/* Return: GPU memory of all native programs. */
uint64_t vgpu_natives_bytes(const struct vgpu_supervisor *s);

#endif /* VGPU_EXECUTOR_NATIVES_H */
