// SPDX-License-Identifier: GPL-2.0
/*
 * Refused requests. A guest's mistake stops its slice, a VMM's mistake gets an errno, and
 * the log names slice and field. The log takes at most ten lines in five seconds for each
 * slice, so that no slice silences another. It takes at most a hundred in total, because a
 * serial console is slow.
 */
#include <linux/err.h>
#include <linux/ratelimit.h>

#include "engine/engine.h"
#include "engine/ring.h"

/* Same order as enum vgpu_error. */
static const char *const vgpu_fault_names[] = {
	[VGPU_ERROR_NONE] = "none",
	[VGPU_ERROR_RING] = "ring",
	[VGPU_ERROR_DOORBELL] = "doorbell",
	[VGPU_ERROR_STORM] = "storm",
	[VGPU_ERROR_DMA] = "dma",
	[VGPU_ERROR_OP] = "op",
	[VGPU_ERROR_FLAGS] = "flags",
	[VGPU_ERROR_SIZE] = "size",
	[VGPU_ERROR_ADDRESS] = "address",
	[VGPU_ERROR_CHUNK] = "chunk",
	[VGPU_ERROR_MASTER] = "master",
	[VGPU_ERROR_RESOURCE] = "resource",
	[VGPU_ERROR_ENGINE] = "engine",
};

/**
 * vgpu_log_init - initialize the limit of log lines of one slice or executor
 * @log: the limit, one for each slice or executor
 *
 * The kernel's summary of suppressed lines does not name the object, so it is turned off.
 */
void vgpu_log_init(struct ratelimit_state *log)
{
	ratelimit_default_init(log);
	ratelimit_set_flags(log, RATELIMIT_MSG_ON_RELEASE);
}

static DEFINE_RATELIMIT_STATE(vgpu_log_of_all, 5 * HZ, 100);

/**
 * vgpu_log_takes - check whether the log accepts a line of a slice
 * @device: the slice
 */
bool vgpu_log_takes(struct vgpu_device *device)
{
	return __ratelimit(&device->log) && __ratelimit(&vgpu_log_of_all);
}

/**
 * vgpu_refused - log a refused request of a slice's VMM
 * @device: the slice
 * @what: the request
 * @field: the field at fault
 * @ret: the reason, a negative errno
 *
 * Return: @ret.
 */
long vgpu_refused(struct vgpu_device *device, const char *what, const char *field, long ret)
{
	if (vgpu_log_takes(device))
		dev_warn(device->vdev.dev, "%s refused for %s: %pe\n", what, field, ERR_PTR(ret));
	return ret;
}

/**
 * vgpu_restoring_refused - log why a slice is not restored
 * @device: the slice
 * @fault: field of the stream, or another reason
 */
void vgpu_restoring_refused(struct vgpu_device *device, const char *fault)
{
	if (vgpu_log_takes(device))
		dev_warn(device->vdev.dev, "restore refused: %s\n", fault);
}

/**
 * vgpu_device_note_error - record why a slice stopped
 * @device: the slice, engine->lock held
 * @error: enum vgpu_error; only the first error of a slice is kept, and no error of a
 *	revoked slice
 * @index: number of the item at fault
 *
 * Return: true if @error was kept.
 */
bool vgpu_device_note_error(struct vgpu_device *device, u32 error, u32 index)
{
	struct vgpu_engine *engine = &device->parent->engine;

	lockdep_assert_held(&engine->lock);
	if (device->error || device->revoked)
		return false;
	WRITE_ONCE(device->error_index, index);
	WRITE_ONCE(device->error, error);
	device->stats.errors++;
	vgpu_event_note(engine, &device->events, VGPU_EVENT_FAULT, error, index);
	return true;
}

/**
 * vgpu_device_fault_of - put a slice into its sticky error state
 * @device: the slice
 * @ring: stop this ring; NULL when none is involved. A ring that is stopped already causes
 *	no error: failures of its worker after that are expected
 * @error: enum vgpu_error; only the first one is kept
 * @index: number of the item at fault
 * @field: field of the item that is at fault, for the log; NULL if @error is enough
 *
 * Context: May sleep, but does not wait.
 */
void vgpu_device_fault_of(struct vgpu_device *device, struct vgpu_ring *ring,
			  u32 error, u32 index, const char *field)
{
	struct vgpu_engine *engine = &device->parent->engine;
	bool noted = false;

	spin_lock_irq(&engine->lock);
	if (!ring || !ring->dead)
		noted = vgpu_device_note_error(device, error, index);
	spin_unlock_irq(&engine->lock);
	if (ring)
		vgpu_ring_stop(ring);
	if (!noted || !vgpu_log_takes(device))
		return;
	if (field)
		dev_warn(device->vdev.dev, "stopped: %s (%s), item %u\n",
			 vgpu_fault_names[error], field, index);
	else
		dev_warn(device->vdev.dev, "stopped: %s, item %u\n", vgpu_fault_names[error],
			 index);
}

/**
 * vgpu_device_fault - like vgpu_device_fault_of(), for an error without a field
 * @device: the slice
 * @ring: stop this ring; NULL when none is involved
 * @error: enum vgpu_error; only the first one is kept
 * @index: number of the item at fault
 */
void vgpu_device_fault(struct vgpu_device *device, struct vgpu_ring *ring,
		       u32 error, u32 index)
{
	vgpu_device_fault_of(device, ring, error, index, NULL);
}
