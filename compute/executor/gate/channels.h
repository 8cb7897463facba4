/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stops and starts what a child has under way on an NVIDIA GPU, while the child itself is
 * stopped: disables the channels of its groups, also in the middle of a kernel.
 *
 * Two such calls at once, of whichever slices, left the groups of both stuck on an H100.
 * So they are made one at a time on a host: whoever makes one holds a lock file.
 *
 * Channels of copy engines are disabled as well: what a child has queued there could keep
 * the engine and the memory busy for minutes.
 */
#ifndef VGPU_EXECUTOR_CHANNELS_H
#define VGPU_EXECUTOR_CHANNELS_H

#include <stdbool.h>
#include <stddef.h>

#include "executor/gate/rm_objects.h"

/**
 * struct vgpu_channels - a child's
 * @objects: shared with its relay
 * @closed: they are disabled, or were being when something failed
 * @by_timeslice: the driver refused to disable them, and short timeslices stand in
 * @unpreemptible: the driver refused to make kernels of some preemptible
 * @open_us: timeslice of each group while the gate is open; 0 for the usual one
 */
struct vgpu_channels {
	struct rm_objects *objects;
	bool closed;
	bool by_timeslice;
	bool unpreemptible;
	uint64_t open_us;
};

/* The file to lock; -1 with errno.  @path: NULL for the usual one. */
int vgpu_channels_lock_open(const char *path);
bool vgpu_channels_lock(int lock);
void vgpu_channels_unlock(int lock);

#define VGPU_CHANNELS_REASON	96u

/**
 * vgpu_channels_set() - close or open
 * @process: the child's pidfd; the child is stopped
 * @reason: VGPU_CHANNELS_REASON bytes for people, if it fails
 *
 * One thread at a time.  The caller holds the lock.  Return: whether the driver said that all is as asked.  A
 * child of which it did not may run on, and has to be killed.
 */
bool vgpu_channels_set(struct vgpu_channels *channels, int process, bool close, char *reason);

/*
 * Tells the driver @open_us of all groups, unless short timeslices stand in for a closed gate.
 * With the lock.  What the driver refuses stays as it is: a group may have been freed meanwhile.
 */
void vgpu_channels_timeslice(const struct vgpu_channels *channels, int process);

#endif /* VGPU_EXECUTOR_CHANNELS_H */
