/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Native programs of a tenant: each is a tree of processes that hold NVIDIA's device
 * themselves, in a cgroup of its own (gate/enclosure.h), with a fence (gate/fence.h).
 *
 * The gate stops what they have under way on the GPU, and lets their processes go on.
 *
 * A program whose fence has ended is killed.  A fence whose supervisor has ended kills its
 * program.  For when both end at once, files in a directory of the broker's say which
 * cgroups there are, and are locked; the next supervisor of any tenant kills what is in
 * those of files that nobody has locked any more.
 */
#ifndef VGPU_EXECUTOR_NATIVES_H
#define VGPU_EXECUTOR_NATIVES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "executor/gate/channels.h"
#include "executor/gate/enclosure.h"
#include "executor/gate/fence.h"
#include "protocol/control.h"

#define VGPU_NATIVES_MAX	64u

struct vgpu_supervisor;

/**
 * struct vgpu_native - one program
 * @number: the arbiter's
 * @pid: of its first process, for people
 * @file: of those that say which cgroups there are
 * @fence: its fence's process, 0 when that has ended; @fence_pidfd goes with it
 * @changed, @reopened: as in struct vgpu_fence
 * @runs_on: the driver did not say that its channels are as asked
 * @works: it has channels, or waits for the gate to make some, as the arbiter knows
 * @groups: how many groups run kernels, when timeslices were set last
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
 * struct vgpu_natives - all of a tenant's
 * @directory: where the files are that say which cgroups there are, or NULL
 * @timeslice_us: of all together, by the driver's scheduler; 0 to leave it alone
 */
struct vgpu_natives {
	struct vgpu_native list[VGPU_NATIVES_MAX];
	struct vgpu_fence_quota *quota;
	const char *directory;
	uint64_t timeslice_us;
};

/* Kills what supervisors left that are gone.  0 or a positive errno value. */
int vgpu_natives_open(struct vgpu_natives *natives, const char *directory);

/**
 * vgpu_native_start() - take a program that a launcher has announced
 * @listener: where its first call waits; stays the caller's
 * @reason: VGPU_REASON_BYTES for people
 */
bool vgpu_native_start(struct vgpu_supervisor *s, const struct vgpu_supervisor_message *start,
		       int listener, char *reason);
struct vgpu_native *vgpu_native_find(struct vgpu_supervisor *s, uint64_t number);
void vgpu_native_kill(struct vgpu_native *native, const char *reason);

/* The fence has said that something changed. */
void vgpu_native_changed(struct vgpu_supervisor *s, unsigned int index);
/* What the tenant may have from now on. */
void vgpu_natives_configure(struct vgpu_supervisor *s, uint64_t timeslice_us, uint64_t memory_bytes);

/* As vgpu_relays_close() and vgpu_relays_reopen(). */
bool vgpu_natives_close(struct vgpu_supervisor *s);
bool vgpu_natives_reopen(struct vgpu_supervisor *s);
/* Those that are not closed in time. */
void vgpu_natives_kill_open(struct vgpu_supervisor *s);

/* A process of the supervisor's has ended; false if it was no fence. */
bool vgpu_natives_note_end(struct vgpu_supervisor *s, pid_t pid, int status);
bool vgpu_natives_have(const struct vgpu_supervisor *s, pid_t pid);
/* Lets go of those that have ended; false while processes of one are left: call it again soon. */
bool vgpu_natives_finish(struct vgpu_supervisor *s);
bool vgpu_natives_are_some(const struct vgpu_supervisor *s);
void vgpu_natives_kill_all(struct vgpu_supervisor *s, const char *reason);
/* Memory of the GPU that they have. */
uint64_t vgpu_natives_bytes(const struct vgpu_supervisor *s);

#endif /* VGPU_EXECUTOR_NATIVES_H */
