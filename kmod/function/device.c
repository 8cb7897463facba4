// SPDX-License-Identifier: GPL-2.0
/*
 * The life of a slice: created and removed by the mdev core, opened by a VMM.
 *
 * Life: probe (inert, memory reserved) -> open (memory allocated, permit consumed) ->
 * enable (a ring) -> reset or close -> remove. The storage is freed with the last
 * reference, which may be after the driver was unbound. The module counts devices, and
 * is not unloaded before all of them are freed.
 */
#include <linux/atomic.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/ratelimit.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/wait.h>

#include "engine/binding.h"
#include "engine/engine.h"
#include "engine/ring.h"
#include "migration/migration.h"
#include "uapi/vgpumgr_netlink.h"

static atomic_t vgpu_devices = ATOMIC_INIT(0);
static DECLARE_WAIT_QUEUE_HEAD(vgpu_devices_gone);

/**
 * vgpu_device_disable - stop and release the ring, if there is one
 * @device: the slice, state_lock held
 *
 * Afterwards guest memory is not accessed any more. Waits for the slice's worker, not
 * for the engine.
 */
void vgpu_device_disable(struct vgpu_device *device)
{
	struct vgpu_engine *engine = &device->parent->engine;
	struct vgpu_ring *ring = device->ring;

	if (!ring)
		return;
	vgpu_ring_stop(ring);
	spin_lock_irq(&engine->lock);
	device->ring = NULL;
	spin_unlock_irq(&engine->lock);
	vgpu_ring_release(ring);
}

/* Waits for the slice's worker, not for the engine. */
static void vgpu_device_clear(struct vgpu_device *device)
{
	struct vgpu_engine *engine = &device->parent->engine;

	lockdep_assert_held(&device->state_lock);
	vgpu_device_disable(device);
	vgpu_registers_reset(device);
	vgpu_windows_reset(device);
	vgpu_binding_reset(device);
	spin_lock_irq(&engine->lock);
	WRITE_ONCE(device->error, VGPU_ERROR_NONE);
	WRITE_ONCE(device->error_index, 0);
	device->stats.resets++;
	vgpu_event_note(engine, &device->events, VGPU_EVENT_RESET, 0, 0);
	spin_unlock_irq(&engine->lock);
}

/**
 * vgpu_device_reset - return to the state after opening
 * @device: the slice, state_lock held
 *
 * Waits for the slice's worker, not for the engine; if there are too many resets, it
 * waits longer. Device memory keeps its contents, as in a reset of a real accelerator.
 */
void vgpu_device_reset(struct vgpu_device *device)
{
	vgpu_device_throttle(device, VGPU_STORM_RESET);
	vgpu_device_clear(device);
}

/**
 * vgpu_device_revoke - make a slice unusable, whoever uses it
 * @device: the slice, parent->lock held; it cannot be used again
 *
 * From here on the function behaves as if it was pulled out of a running machine: reads
 * return ones, once guest memory is not accessed any more, and writes are ignored.
 * Unfinished work is dropped and counted. The error vector notifies the guest, the
 * request eventfd asks the VMM to close the slice. This does not wait, see
 * vgpu_device_let_go(). May be called again.
 */
void vgpu_device_revoke(struct vgpu_device *device)
{
	bool before = device->revoked;

	lockdep_assert_held(&device->parent->lock);
	if (!before) {
		vgpu_device_stop(device);
		vgpu_device_raise(device, VGPU_VECTOR_ERROR);
	}
	if (!before && device->open) {
		dev_warn(device->vdev.dev, "revoked while open; pid %d (%s)\n",
			 device->opener_pid, device->opener_comm);
		vgpu_event_slice(device, VGPUMGR_CMD_REVOKED_NTF);
	}
	vgpu_device_request(device);
}

/*
 * Wait until a revoked slice does not access guest memory and is not being saved or
 * restored. This may take long because of guest memory, even that of another slice of
 * the same VM, or because a VMM is opening or closing the slice. Nobody else may wait
 * for that, so parent->lock is not held.
 */
static void vgpu_device_let_go(struct vgpu_device *device)
{
	mutex_lock(&device->state_lock);
	vgpu_device_disable(device);
	vgpu_migration_end(device);
	mutex_unlock(&device->state_lock);
}

static int vgpu_vfio_init(struct vfio_device *vdev)
{
	struct vgpu_device *device = vgpu_vdev_to_device(vdev);
	struct mdev_device *mdev = to_mdev_device(vdev->dev);

	device->parent = container_of(mdev->type->parent, struct vgpu_parent, mdev);
	kref_get(&device->parent->refs);
	device->uuid = mdev->uuid;
	vgpu_windows_init(device);
	INIT_LIST_HEAD(&device->children);
	device->memory_bytes = container_of(mdev->type, struct vgpu_memory_class,
					    type)->bytes;
	device->params.weight = 1;
	device->storm_refill_ns = ktime_get_ns();
	mutex_init(&device->dma_lock);
	mutex_init(&device->state_lock);
	spin_lock_init(&device->irq_lock);
	INIT_LIST_HEAD(&device->node);
	vgpu_event_source_init(&device->events, true);
	vgpu_log_init(&device->log);
	atomic_inc(&vgpu_devices);
	return 0;
}

static void vgpu_vfio_release(struct vfio_device *vdev)
{
	struct vgpu_device *device = vgpu_vdev_to_device(vdev);

	mutex_destroy(&device->state_lock);
	vgpu_windows_free(device);
	vgpu_parent_put(device->parent);
	vgpu_vfio_free_device(vdev);
	/*
	 * Module exit waits for the count to become 0, and then until all callers have
	 * left this section.
	 */
	rcu_read_lock();
	if (atomic_dec_and_test(&vgpu_devices))
		wake_up(&vgpu_devices_gone);
	rcu_read_unlock();
}

/* Use a permit, and prevent changes of the tenant from now on. */
bool vgpu_device_take(struct vgpu_device *device)
{
	struct vgpu_parent *parent = device->parent;
	bool permitted;

	mutex_lock(&parent->lock);
	permitted = vgpu_permit_use(device);
	if (permitted) {
		vgpu_event_opened(device);
		WRITE_ONCE(device->open, true);
	}
	mutex_unlock(&parent->lock);
	return permitted;
}

static void vgpu_device_give_back(struct vgpu_device *device)
{
	mutex_lock(&device->parent->lock);
	WRITE_ONCE(device->open, false);
	mutex_unlock(&device->parent->lock);
}

/*
 * If the engine lends, the executor provides the slice's device memory. The module then
 * allocates only one page for items.
 */
static int vgpu_device_allocate(struct vgpu_device *device)
{
	u64 bytes = vgpu_windows_offered(device) ? PAGE_SIZE : device->memory_bytes;
	int ret;

	device->memory = vgpu_memory_create(bytes);
	if (!device->memory)
		return -ENOMEM;
	ret = vgpu_worker_start(device);
	if (ret)
		goto put_memory;
	ret = vgpu_windows_open(device);
	if (ret)
		goto stop_worker;
	return 0;

stop_worker:
	vgpu_worker_stop(device);
put_memory:
	vgpu_memory_put(device->memory);
	device->memory = NULL;
	return ret;
}

static int vgpu_vfio_open(struct vfio_device *vdev)
{
	struct vgpu_device *device = vgpu_vdev_to_device(vdev);
	int ret;

	if (!vgpu_device_take(device)) {
		if (vgpu_log_takes(device))
			dev_warn(vdev->dev, "open refused: no permit (attach=permit); pid %d (%s)\n",
				 current->pid, current->comm);
		return -EPERM;
	}
	mutex_lock(&device->state_lock);
	ret = device->revoked ? -ENODEV : vgpu_device_allocate(device);
	if (!ret) {
		vgpu_config_reset(device);
		vgpu_registers_reset(device);
		device->run_ns_before = 0;
	}
	mutex_unlock(&device->state_lock);
	if (ret)
		vgpu_device_give_back(device);
	return ret;
}

static void vgpu_vfio_close(struct vfio_device *vdev)
{
	struct vgpu_device *device = vgpu_vdev_to_device(vdev);

	mutex_lock(&device->state_lock);
	vgpu_device_clear(device);
	vgpu_migration_end(device);
	vgpu_irqs_release(device);
	vgpu_windows_close(device);
	vgpu_worker_stop(device);
	vgpu_memory_put(device->memory);
	device->memory = NULL;
	mutex_unlock(&device->state_lock);
	vgpu_device_give_back(device);
}

static void vgpu_vfio_request(struct vfio_device *vdev, unsigned int count)
{
	vgpu_device_request(vgpu_vdev_to_device(vdev));
}

static const struct vfio_device_ops vgpu_vfio_ops = {
	.name = "vgpumgr",
	.init = vgpu_vfio_init,
	.release = vgpu_vfio_release,
	.open_device = vgpu_vfio_open,
	.close_device = vgpu_vfio_close,
	.read = vgpu_access_read,
	.write = vgpu_access_write,
	.ioctl = vgpu_access_ioctl,
	.mmap = vgpu_access_mmap,
	.request = vgpu_vfio_request,
	VGPU_IOMMUFD_OPS
	VGPU_REGION_INFO_OPS
};

/*
 * Make the device visible to control surfaces, if the accelerator has enough memory left
 * for it.
 */
int vgpu_device_publish(struct vgpu_device *device)
{
	struct vgpu_parent *parent = device->parent;
	int ret = 0;

	mutex_lock(&parent->lock);
	if (parent->removed)
		ret = -ENODEV;
	else if (device->memory_bytes > parent->memory_total - parent->memory_reserved)
		ret = -ENOSPC;
	if (!ret) {
		parent->memory_reserved += device->memory_bytes;
		list_add_tail(&device->node, &parent->devices);
		vgpu_migration_init(device);
		vgpu_netlink_changed();
		vgpu_event_slice(device, VGPUMGR_CMD_CREATED_NTF);
	}
	mutex_unlock(&parent->lock);
	return ret;
}

void vgpu_device_withdraw(struct vgpu_device *device)
{
	struct vgpu_parent *parent = device->parent;
	struct vgpu_engine *engine = &parent->engine;

	mutex_lock(&parent->lock);
	vgpu_event_slice(device, VGPUMGR_CMD_REMOVED_NTF);
	vgpu_device_unassign(device);
	spin_lock_irq(&engine->lock);
	WARN_ON_ONCE(engine->leaving == device);
	vgpu_event_source_forget(&device->events);
	spin_unlock_irq(&engine->lock);
	list_del_init(&device->node);
	vgpu_netlink_changed();
	parent->memory_reserved -= device->memory_bytes;
	mutex_unlock(&parent->lock);
}

static int vgpu_mdev_probe(struct mdev_device *mdev)
{
	struct vgpu_device *device;
	int ret;

	device = vfio_alloc_device(vgpu_device, vdev, &mdev->dev, &vgpu_vfio_ops);
	if (IS_ERR(device))
		return PTR_ERR(device);
	ret = vgpu_device_publish(device);
	if (ret)
		goto put;
	dev_set_drvdata(&mdev->dev, device);
	ret = vfio_register_emulated_iommu_dev(&device->vdev);
	if (ret)
		goto withdraw;
	return 0;

withdraw:
	dev_set_drvdata(&mdev->dev, NULL);
	/* An executor may have found the device already. */
	mutex_lock(&device->parent->lock);
	vgpu_device_stop(device);
	mutex_unlock(&device->parent->lock);
	vgpu_device_withdraw(device);
put:
	vfio_put_device(&device->vdev);
	return ret;
}

/*
 * Revoke first, then wait until the VMM has closed the slice; a removal cannot be
 * refused. Nobody else waits: the parent and its other slices are not affected.
 */
static void vgpu_mdev_remove(struct mdev_device *mdev)
{
	struct vgpu_device *device = dev_get_drvdata(&mdev->dev);

	mutex_lock(&device->parent->lock);
	vgpu_device_revoke(device);
	mutex_unlock(&device->parent->lock);
	vgpu_device_let_go(device);
	vfio_unregister_group_dev(&device->vdev);
	vgpu_device_withdraw(device);
	vfio_put_device(&device->vdev);
}

static unsigned int vgpu_mdev_available(struct mdev_type *type)
{
	struct vgpu_parent *parent = container_of(type->parent, struct vgpu_parent, mdev);
	u64 bytes = container_of(type, struct vgpu_memory_class, type)->bytes;
	u64 left;

	mutex_lock(&parent->lock);
	left = parent->memory_total - parent->memory_reserved;
	mutex_unlock(&parent->lock);
	return min_t(u64, div64_u64(left, bytes), UINT_MAX);
}

static ssize_t vgpu_mdev_description(struct mdev_type *type, char *text)
{
	return sysfs_emit(text, "memory_bytes=%llu\n",
			  container_of(type, struct vgpu_memory_class, type)->bytes);
}

struct mdev_driver vgpu_mdev_driver = {
	.device_api = VFIO_DEVICE_API_PCI_STRING,
	.driver = {
		.name = "vgpumgr_mdev",
		.owner = THIS_MODULE,
		.mod_name = KBUILD_MODNAME,
		.dev_groups = vgpu_device_groups,
	},
	.probe = vgpu_mdev_probe,
	.remove = vgpu_mdev_remove,
	.get_available = vgpu_mdev_available,
	.show_description = vgpu_mdev_description,
};

int vgpu_device_driver_register(void)
{
	return mdev_register_driver(&vgpu_mdev_driver);
}

/**
 * vgpu_device_driver_unregister - unregister, and wait for the last device's release
 */
void vgpu_device_driver_unregister(void)
{
	mdev_unregister_driver(&vgpu_mdev_driver);
	wait_event(vgpu_devices_gone, !atomic_read(&vgpu_devices));
	synchronize_rcu();
	/* A task that was preempted after rcu_read_unlock() is still in this module. */
	synchronize_rcu_tasks();
}
