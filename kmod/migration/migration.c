// SPDX-License-Identifier: GPL-2.0
/*
 * Saving and restoring a slice: VFIO migration, version 2, with STOP_COPY and P2P.
 *
 * Leaving RUNNING pauses the ring. No more descriptors are fetched, an item that has
 * begun is finished, and items that the engine has finished are answered. Dropped
 * items that are still executing are waited for. After that the slice does not access
 * guest memory, does not interrupt and has no work on the engine. Items that have not
 * begun stay in the ring. The stream does not contain them, because the guest still
 * has them in its ring: the other host fetches them again, beginning with the first
 * item that was not answered.
 */
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/jiffies.h>
#include <linux/sched/signal.h>

#include "engine/engine.h"
#include "engine/ring.h"
#include "migration/migration.h"
#include "migration/migration_file.h"

/* STOP -> STOP_COPY */
static struct file *vgpu_migration_save(struct vgpu_device *device)
{
	struct vgpu_ring *ring = device->ring;
	struct vgpu_migration_state state = {
		.setup = device->setup,
		.run_ns = vgpu_device_run_ns(device),
		.run_ns_hi = device->run_ns_hi,
		.error = READ_ONCE(device->error),
		.error_index = READ_ONCE(device->error_index),
	};
	struct vgpu_migration_file *file;
	struct file *filp;

	filp = vgpu_migration_open(device, true);
	if (IS_ERR(filp))
		return filp;
	if (ring) {
		state.enabled = true;
		state.reported = ring->reported;
		state.tail = ring->tail;
		state.completed = ring->completed;
	}
	file = device->migration;
	memcpy(file->header.config, device->config, sizeof(file->header.config));
	memcpy(file->header.msix, device->msix_table, sizeof(file->header.msix));
	vgpu_migration_format(&file->header, &state, &file->target);
	return filp;
}

/* A slice without a tenant cannot get one while it is open. */
static bool vgpu_migration_has_tenant(struct vgpu_device *device)
{
	struct vgpu_engine *engine = &device->parent->engine;
	bool has_tenant;

	spin_lock_irq(&engine->lock);
	has_tenant = device->tenant;
	spin_unlock_irq(&engine->lock);
	return has_tenant;
}

/*
 * Does a dropped item still use device memory? An item of an earlier ring, or of this
 * ring if it is dead, may do so until its chunk ends. Nothing else uses device memory
 * while the ring is paused.
 */
static bool vgpu_migration_memory_is_used(struct vgpu_device *device)
{
	struct vgpu_ring *ring = device->ring;

	if (!ring)
		return kref_read(&device->memory->refs) > 1;
	return (READ_ONCE(ring->dead) && kref_read(&ring->refs) > 1) ||
	       kref_read(&device->memory->refs) > 2;
}

/* Poll, because the end of such an item notifies nobody. */
static int vgpu_migration_await_memory(struct vgpu_device *device, unsigned long deadline)
{
	while (vgpu_migration_memory_is_used(device)) {
		if (READ_ONCE(device->revoked))
			return -ENODEV;
		if (!time_before(jiffies, deadline))
			return -EBUSY;
		schedule_timeout_killable(msecs_to_jiffies(1));
		if (fatal_signal_pending(current))
			return -EINTR;
	}
	return 0;
}

/* Leave RUNNING; on error the slice continues to run. */
static int vgpu_migration_pause(struct vgpu_device *device)
{
	struct vgpu_ring *ring = device->ring;
	unsigned long deadline;
	int ret;

	vgpu_device_throttle(device, VGPU_STORM_RESET);
	deadline = vgpu_dma_deadline();
	ret = ring ? vgpu_ring_pause(ring, deadline) : 0;
	if (ret)
		return ret;
	ret = vgpu_migration_await_memory(device, deadline);
	if (ret && ring)
		vgpu_ring_continue(ring);
	return ret;
}

/*
 * STOP -> RESUMING. A restored slice has work to continue. Without a tenant that work
 * would wait forever, so the restore is refused and the VM stays on its host. A
 * refusal changes nothing.
 */
static struct file *vgpu_migration_prepare(struct vgpu_device *device)
{
	struct file *filp;

	if (!vgpu_migration_has_tenant(device)) {
		vgpu_restoring_refused(device, "no tenant");
		return ERR_PTR(-EPERM);
	}
	filp = vgpu_migration_open(device, false);
	if (!IS_ERR(filp))
		vgpu_device_disable(device);
	return filp;
}

/*
 * Enable the ring with its saved state, paused. Items that were not answered are
 * fetched again.
 */
static int vgpu_migration_load_ring(struct vgpu_device *device,
				    const struct vgpu_migration_state *state)
{
	struct vgpu_ring *ring = vgpu_ring_create(device);

	if (!ring)
		return -ENOMEM;
	ring->tail = state->tail;
	ring->fetched = state->completed;
	ring->completed = state->completed;
	ring->reported = state->reported;
	if (!vgpu_ring_publish(ring)) {
		vgpu_restoring_refused(device, READ_ONCE(device->revoked) ?
					       "the slice is being removed" :
					       "the engine is wedged");
		vgpu_ring_release(ring);
		return -EIO;
	}
	if (state->error)
		vgpu_ring_stop(ring);
	return 0;
}

/* RESUMING -> STOP */
static int vgpu_migration_load(struct vgpu_device *device)
{
	struct vgpu_engine *engine = &device->parent->engine;
	struct vgpu_migration_file *file = device->migration;
	const struct vgpu_migration_state *state;
	int ret = 0;

	if (!file || !file->complete) {
		vgpu_restoring_refused(device, "incomplete");
		return -EINVAL;
	}
	state = &file->state;
	/* The VMM may have enabled the ring since. */
	vgpu_device_disable(device);
	device->setup = state->setup;
	device->run_ns_hi = state->run_ns_hi;
	memcpy(device->config, file->header.config, sizeof(device->config));
	memcpy(device->msix_table, file->header.msix, sizeof(device->msix_table));
	spin_lock_irq(&engine->lock);
	WRITE_ONCE(device->error_index, state->error_index);
	WRITE_ONCE(device->error, state->error);
	spin_unlock_irq(&engine->lock);
	if (state->enabled)
		ret = vgpu_migration_load_ring(device, state);
	if (!ret)
		device->run_ns_before += state->run_ns - vgpu_device_run_ns(device);
	return ret;
}

/* Discard a stream that was refused or not finished: return to the state after opening. */
static void vgpu_migration_discard(struct vgpu_device *device)
{
	struct vgpu_engine *engine = &device->parent->engine;

	vgpu_device_disable(device);
	vgpu_config_reset(device);
	vgpu_registers_reset(device);
	vgpu_memory_clear(device->memory);
	spin_lock_irq(&engine->lock);
	WRITE_ONCE(device->error, VGPU_ERROR_NONE);
	WRITE_ONCE(device->error_index, 0);
	spin_unlock_irq(&engine->lock);
}

static struct file *vgpu_migration_step(struct vgpu_device *device,
					enum vfio_device_mig_state next)
{
	enum vfio_device_mig_state now = device->migration_state;
	int ret = 0;

	if (now == VFIO_DEVICE_STATE_STOP && next == VFIO_DEVICE_STATE_STOP_COPY)
		return vgpu_migration_save(device);
	if (now == VFIO_DEVICE_STATE_STOP && next == VFIO_DEVICE_STATE_RESUMING)
		return vgpu_migration_prepare(device);
	if (now == VFIO_DEVICE_STATE_RUNNING)
		ret = vgpu_migration_pause(device);
	else if (next == VFIO_DEVICE_STATE_RUNNING && device->ring)
		vgpu_ring_continue(device->ring);
	else if (now == VFIO_DEVICE_STATE_RESUMING)
		ret = vgpu_migration_load(device);
	if (ret && now == VFIO_DEVICE_STATE_RESUMING) {
		vgpu_migration_discard(device);
		device->migration_state = VFIO_DEVICE_STATE_ERROR;
	}
	if (!ret || device->migration_state == VFIO_DEVICE_STATE_ERROR)
		vgpu_migration_forget(device);
	return ERR_PTR(ret);
}

static struct file *vgpu_migration_set_state(struct vfio_device *vdev,
					     enum vfio_device_mig_state wanted)
{
	struct vgpu_device *device = vgpu_vdev_to_device(vdev);
	struct file *filp = NULL;
	int ret = 0;

	mutex_lock(&device->state_lock);
	if (device->revoked)
		ret = -ENODEV;
	else if (device->migration_state == VFIO_DEVICE_STATE_ERROR)
		ret = vgpu_refused(device, "migration", "state", -EINVAL);
	while (!ret && device->migration_state != wanted) {
		enum vfio_device_mig_state next;

		ret = vfio_mig_get_next_state(vdev, device->migration_state, wanted, &next);
		if (ret) {
			vgpu_refused(device, "migration", "state", ret);
			break;
		}
		filp = vgpu_migration_step(device, next);
		ret = PTR_ERR_OR_ZERO(filp);
		if (!ret)
			device->migration_state = next;
	}
	mutex_unlock(&device->state_lock);
	return ret ? ERR_PTR(ret) : filp;
}

static int vgpu_migration_get_state(struct vfio_device *vdev, enum vfio_device_mig_state *state)
{
	struct vgpu_device *device = vgpu_vdev_to_device(vdev);

	mutex_lock(&device->state_lock);
	*state = device->migration_state;
	mutex_unlock(&device->state_lock);
	return 0;
}

static int __maybe_unused vgpu_migration_get_data_size(struct vfio_device *vdev,
						       unsigned long *bytes)
{
	*bytes = vgpu_migration_bytes(vgpu_vdev_to_device(vdev));
	return 0;
}

/*
 * No logging of dirty pages, because a container of type 1 records what vfio_dma_rw()
 * writes.
 */
static const struct vfio_migration_ops vgpu_migration_ops = {
	.migration_set_state = vgpu_migration_set_state,
	.migration_get_state = vgpu_migration_get_state,
	VGPU_MIGRATION_SIZE_OPS
};

/**
 * vgpu_migration_init - declare whether a slice can be saved and restored
 * @device: the slice, not registered yet; parent->lock held
 *
 * A slice of an engine that lends cannot be saved, because part of its state is in
 * its executor.
 */
void vgpu_migration_init(struct vgpu_device *device)
{
	device->migration_state = VFIO_DEVICE_STATE_RUNNING;
	if (device->parent->engine.ops->lends)
		return;
	device->vdev.migration_flags = VFIO_MIGRATION_STOP_COPY | VFIO_MIGRATION_P2P;
	device->vdev.mig_ops = &vgpu_migration_ops;
}

/**
 * vgpu_migration_end - return to RUNNING from any state
 * @device: the slice, state_lock held, not enabled, its memory is not used again
 */
void vgpu_migration_end(struct vgpu_device *device)
{
	vgpu_migration_forget(device);
	device->migration_state = VFIO_DEVICE_STATE_RUNNING;
}

/**
 * vgpu_migration_reset - like vgpu_migration_end(), for a device that will be used
 * again
 * @device: the slice, state_lock held, not enabled
 */
void vgpu_migration_reset(struct vgpu_device *device)
{
	if (device->migration_state == VFIO_DEVICE_STATE_RESUMING)
		vgpu_migration_discard(device);
	vgpu_migration_end(device);
}
