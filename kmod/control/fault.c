// SPDX-License-Identifier: GPL-2.0
/*
 * What is refused: a guest's mistake stops its slice, a VMM's gets an errno, and the log
 * names slice and field. Of each slice it takes at most ten lines in five seconds, so that
 * one does not silence another, and a hundred of all together: a serial console is slow.
 */
#include <linux/err.h>
#include <linux/ratelimit.h>

#include "engine/engine.h"
#include "engine/ring.h"

/* As in enum vgpu_error. */
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
 * vgpu_log_init - begin to limit the lines of one slice or executor
 * @log: its own
 *
 * The kernel's word on lines that were left out names nobody: it does not come.
 */
void vgpu_log_init(struct ratelimit_state *log)
{
	ratelimit_default_init(log);
	ratelimit_set_flags(log, RATELIMIT_MSG_ON_RELEASE);
}

static DEFINE_RATELIMIT_STATE(vgpu_log_of_all, 5 * HZ, 100);

/**
 * vgpu_log_takes - whether the log takes a line of a slice
 * @device: the slice
 */
bool vgpu_log_takes(struct vgpu_device *device)
{
	return __ratelimit(&device->log) && __ratelimit(&vgpu_log_of_all);
}

/**
 * vgpu_refused - tell the log what of a slice's VMM was refused
 * @device: the slice
 * @what: was asked for
 * @field: at fault
 * @ret: why, a negative errno
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
 * vgpu_restoring_refused - tell the log why a slice is not restored
 * @device: the slice
 * @fault: field of the stream, or what else
 */
void vgpu_restoring_refused(struct vgpu_device *device, const char *fault)
{
	if (vgpu_log_takes(device))
		dev_warn(device->vdev.dev, "restoring refused: %s\n", fault);
}

/**
 * vgpu_device_note_error - say why a slice stopped
 * @device: the slice, engine->lock held
 * @error: enum vgpu_error; the first one stays, and a slice that is revoked has none
 * @index: number of the item at fault
 *
 * Return: true for the first one.
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
 * @ring: stop this ring; NULL when none is involved. One that was stopped is at fault no
 *	more: what its worker meets on its way out is nobody's error
 * @error: enum vgpu_error; the first one stays
 * @index: number of the item at fault
 * @field: what of it is at fault, for the log; NULL where @error says it all
 *
 * Any context that may sleep; does not wait.
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
		dev_warn(device->vdev.dev, "stopped for %s (%s), item %u\n",
			 vgpu_fault_names[error], field, index);
	else
		dev_warn(device->vdev.dev, "stopped for %s, item %u\n", vgpu_fault_names[error],
			 index);
}

/**
 * vgpu_device_fault - the same for an error that says it all
 * @device: the slice
 * @ring: stop this ring; NULL when none is involved
 * @error: enum vgpu_error; the first one stays
 * @index: number of the item at fault
 */
void vgpu_device_fault(struct vgpu_device *device, struct vgpu_ring *ring,
		       u32 error, u32 index)
{
	vgpu_device_fault_of(device, ring, error, index, NULL);
}
