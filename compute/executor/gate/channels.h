/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stops and restarts a child's work on an NVIDIA GPU while the child itself is stopped.  Closing
 * disables the channels of the child's groups, even in the middle of a kernel.
 *
 * On an H100, two such calls at the same time left the groups of both callers stuck, even when the
 * callers belonged to different slices.  So a host makes one call at a time: the caller holds a
 * lock file.
 *
 * Channels of copy engines are disabled as well: copies that a child has queued could keep the
 * engine and the memory busy for minutes.
 */
#ifndef VGPU_EXECUTOR_CHANNELS_H
#define VGPU_EXECUTOR_CHANNELS_H

#include <stdbool.h>
#include <stddef.h>

#include "executor/gate/rm_objects.h"

/**
 * struct vgpu_channels - the channels of one child
 * @objects: shared with the child's relay
 * @closed: the channels are disabled, or disabling or enabling them failed halfway
 * @by_timeslice: the driver refused to disable channels, so short timeslices are used instead
 * @unpreemptible: the driver refused to make the kernels of some channels preemptible
 * @open_us: timeslice of each group while the gate is open; 0 for the default
 */
struct vgpu_channels {
	struct rm_objects *objects;
	bool closed;
	bool by_timeslice;
	bool unpreemptible;
	uint64_t open_us;
};

/* Opens the lock file @path, or the default one if @path is NULL.  Return: -1 with errno on error. */
int vgpu_channels_lock_open(const char *path);
bool vgpu_channels_lock(int lock);
void vgpu_channels_unlock(int lock);

#define VGPU_CHANNELS_REASON	96u

/**
 * vgpu_channels_set() - close or open the channels
 * @process: the child's pidfd; the child is stopped
 * @reason: out: VGPU_CHANNELS_REASON bytes for a message if the call fails
 *
 * Only one thread calls this at a time, and it holds the lock.  Return: true if the driver
 * confirmed the change for all channels.  If not, the child may still run on the GPU and has to be
 * killed.
 */
bool vgpu_channels_set(struct vgpu_channels *channels, int process, bool close, char *reason);

/*
 * Sets @open_us as the timeslice of all groups, unless the gate is closed by short timeslices.  The
 * caller holds the lock.  Errors of the driver are ignored: a group may have been freed meanwhile.
 */
void vgpu_channels_timeslice(const struct vgpu_channels *channels, int process);

#endif /* VGPU_EXECUTOR_CHANNELS_H */
