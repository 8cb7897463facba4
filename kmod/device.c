// SPDX-License-Identifier: GPL-2.0
/*
 * A slice as VFIO sees it: created and removed by the mdev core, opened by a
 * VMM, read and written as a PCI function.
 *
 * Life: probe (inert, memory reserved) -> open (memory allocated, permit
 * consumed) -> enable (a ring) -> reset or close -> remove. The storage goes
 * when the last reference does, which may be after the driver was unbound; the
 * module counts devices and does not unload before.
 */
#include <linux/atomic.h>
#include <linux/jiffies.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/wait.h>

#include "engine.h"
#include "ring.h"

#define VGPU_REGION_SHIFT	40
#define VGPU_REGION_OFFSET(i)	((u64)(i) << VGPU_REGION_SHIFT)
#define VGPU_REGION_MASK	(VGPU_REGION_OFFSET(1) - 1)

static atomic_t vgpu_devices = ATOMIC_INIT(0);
static DECLARE_WAIT_QUEUE_HEAD(vgpu_devices_gone);

static struct vgpu_device *vgpu_vdev_to_device(struct vfio_device *vdev)
{
	return container_of(vdev, struct vgpu_device, vdev);
}

/**
 * vgpu_device_fault - put a slice into its sticky error state
 * @device: the slice
 * @ring: stop this ring; NULL when none is involved
 * @error: enum vgpu_error; the first one stays
 * @index: number of the item at fault
 *
 * Any context that may sleep; does not wait.
 */
void vgpu_device_fault(struct vgpu_device *device, struct vgpu_ring *ring,
		       u32 error, u32 index)
{
	struct vgpu_engine *engine = &device->parent->engine;

	spin_lock_irq(&engine->lock);
	if (!device->error) {
		WRITE_ONCE(device->error_index, index);
		WRITE_ONCE(device->error, error);
		device->stats.errors++;
	}
	spin_unlock_irq(&engine->lock);
	if (ring)
		vgpu_ring_stop(ring);
}

/**
 * vgpu_device_disable - stop and forget the ring, if there is one
 * @device: state_lock held
 *
 * Afterwards guest memory is not accessed any more. Waits for the slice's worker,
 * not for the engine.
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

/**
 * vgpu_device_reset - back to the state after opening
 * @device: state_lock held
 *
 * Waits for the slice's worker, not for the engine. Device memory keeps its
 * contents, as it does across a reset of a real accelerator.
 */
void vgpu_device_reset(struct vgpu_device *device)
{
	struct vgpu_engine *engine = &device->parent->engine;

	lockdep_assert_held(&device->state_lock);
	vgpu_device_disable(device);
	vgpu_registers_reset(device);
	spin_lock_irq(&engine->lock);
	WRITE_ONCE(device->error, VGPU_ERROR_NONE);
	WRITE_ONCE(device->error_index, 0);
	device->stats.resets++;
	spin_unlock_irq(&engine->lock);
}

static int vgpu_vfio_init(struct vfio_device *vdev)
{
	struct vgpu_device *device = vgpu_vdev_to_device(vdev);
	struct mdev_device *mdev = to_mdev_device(vdev->dev);

	device->parent = container_of(mdev->type->parent, struct vgpu_parent, mdev);
	kref_get(&device->parent->refs);
	device->uuid = mdev->uuid;
	device->memory_bytes = container_of(mdev->type, struct vgpu_memory_class,
					    type)->bytes;
	device->params.weight = 1;
	device->storm_refill_ns = ktime_get_ns();
	mutex_init(&device->state_lock);
	spin_lock_init(&device->irq_lock);
	INIT_LIST_HEAD(&device->node);
	atomic_inc(&vgpu_devices);
	return 0;
}

static void vgpu_vfio_release(struct vfio_device *vdev)
{
	struct vgpu_device *device = vgpu_vdev_to_device(vdev);

	mutex_destroy(&device->state_lock);
	vgpu_parent_put(device->parent);
	vgpu_vfio_free_device(vdev);
	/* Module exit waits for the grace period in which this function ends. */
	rcu_read_lock();
	if (atomic_dec_and_test(&vgpu_devices))
		wake_up(&vgpu_devices_gone);
	rcu_read_unlock();
}

/*
 * Consume a permit when the parent asks for one, and keep the tenant from being
 * changed from now on. A permit is spent even if opening fails later.
 */
static bool vgpu_device_take(struct vgpu_device *device)
{
	struct vgpu_parent *parent = device->parent;
	bool permitted;

	mutex_lock(&parent->lock);
	permitted = !parent->attach_permit ||
		    (device->permit_until && time_before(jiffies, device->permit_until));
	if (permitted) {
		device->permit_until = 0;
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

static int vgpu_vfio_open(struct vfio_device *vdev)
{
	struct vgpu_device *device = vgpu_vdev_to_device(vdev);
	int ret = 0;

	if (!vgpu_device_take(device)) {
		dev_warn_ratelimited(vdev->dev,
				     "open refused: no permit (attach=permit); pid %d (%s)\n",
				     current->pid, current->comm);
		return -EPERM;
	}
	mutex_lock(&device->state_lock);
	if (device->revoked)
		ret = -ENODEV;
	else
		device->memory = vgpu_memory_create(device->memory_bytes);
	if (!ret && !device->memory)
		ret = -ENOMEM;
	if (!ret) {
		vgpu_config_reset(device);
		vgpu_registers_reset(device);
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
	vgpu_device_reset(device);
	vgpu_irqs_release(device);
	vgpu_memory_put(device->memory);
	device->memory = NULL;
	mutex_unlock(&device->state_lock);
	vgpu_device_give_back(device);
}

/* The longest naturally aligned access at @offset within @bytes. */
static u32 vgpu_access_bytes(u64 offset, size_t bytes)
{
	u32 size = sizeof(u64);

	while (size > bytes || offset % size)
		size /= 2;
	return size;
}

static ssize_t vgpu_region_bytes(u32 index)
{
	switch (index) {
	case VFIO_PCI_CONFIG_REGION_INDEX:
		return VGPU_CONFIG_BYTES;
	case VFIO_PCI_BAR0_REGION_INDEX:
		return VGPU_BAR0_BYTES;
	default:
		return index < VFIO_PCI_NUM_REGIONS ? 0 : -EINVAL;
	}
}

static void vgpu_region_access(struct vgpu_device *device, u32 index, u32 offset,
			       u8 *data, u32 bytes, bool write)
{
	if (index == VFIO_PCI_CONFIG_REGION_INDEX && write)
		vgpu_config_write(device, offset, data, bytes);
	else if (index == VFIO_PCI_CONFIG_REGION_INDEX)
		vgpu_config_read(device, offset, data, bytes);
	else if (write)
		vgpu_bar0_write(device, offset, data, bytes);
	else
		vgpu_bar0_read(device, offset, data, bytes);
}

/* How much of an access lies inside its region; a negative errno if nothing. */
static ssize_t vgpu_access_clip(loff_t at, size_t count)
{
	u32 index = (u64)at >> VGPU_REGION_SHIFT;
	u64 offset = at & VGPU_REGION_MASK;
	ssize_t size = vgpu_region_bytes(index);

	if (at < 0 || size < 0 || offset >= size)
		return -EINVAL;
	return min_t(u64, count, size - offset);
}

static ssize_t vgpu_vfio_read(struct vfio_device *vdev, char __user *buffer,
			      size_t count, loff_t *position)
{
	struct vgpu_device *device = vgpu_vdev_to_device(vdev);
	ssize_t left = vgpu_access_clip(*position, count);
	ssize_t done = 0;

	while (left > 0) {
		u32 index = *position >> VGPU_REGION_SHIFT;
		u64 offset = *position & VGPU_REGION_MASK;
		u32 bytes = vgpu_access_bytes(offset, left);
		u8 data[sizeof(u64)];

		mutex_lock(&device->state_lock);
		vgpu_region_access(device, index, offset, data, bytes, false);
		mutex_unlock(&device->state_lock);
		if (copy_to_user(buffer + done, data, bytes))
			return done ?: -EFAULT;
		*position += bytes;
		done += bytes;
		left -= bytes;
	}
	return left < 0 ? left : done;
}

static ssize_t vgpu_vfio_write(struct vfio_device *vdev, const char __user *buffer,
			       size_t count, loff_t *position)
{
	struct vgpu_device *device = vgpu_vdev_to_device(vdev);
	ssize_t left = vgpu_access_clip(*position, count);
	ssize_t done = 0;

	while (left > 0) {
		u32 index = *position >> VGPU_REGION_SHIFT;
		u64 offset = *position & VGPU_REGION_MASK;
		u32 bytes = vgpu_access_bytes(offset, left);
		u8 data[sizeof(u64)];

		if (copy_from_user(data, buffer + done, bytes))
			return done ?: -EFAULT;
		mutex_lock(&device->state_lock);
		vgpu_region_access(device, index, offset, data, bytes, true);
		mutex_unlock(&device->state_lock);
		*position += bytes;
		done += bytes;
		left -= bytes;
	}
	return left < 0 ? left : done;
}

static u32 vgpu_irq_count(u32 index)
{
	switch (index) {
	case VFIO_PCI_MSIX_IRQ_INDEX:
		return VGPU_VECTORS;
	case VFIO_PCI_REQ_IRQ_INDEX:
		return 1;
	default:
		return 0;
	}
}

static long vgpu_get_info(void __user *arg)
{
	const unsigned long size = offsetofend(struct vfio_device_info, num_irqs);
	struct vfio_device_info info;

	if (copy_from_user(&info, arg, size))
		return -EFAULT;
	if (info.argsz < size)
		return -EINVAL;
	info.flags = VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET;
	info.num_regions = VFIO_PCI_NUM_REGIONS;
	info.num_irqs = VFIO_PCI_NUM_IRQS;
	return copy_to_user(arg, &info, size) ? -EFAULT : 0;
}

static long vgpu_get_region_info(void __user *arg)
{
	const unsigned long size = offsetofend(struct vfio_region_info, offset);
	struct vfio_region_info info;
	ssize_t bytes;

	if (copy_from_user(&info, arg, size))
		return -EFAULT;
	if (info.argsz < size)
		return -EINVAL;
	bytes = vgpu_region_bytes(info.index);
	if (bytes < 0)
		return bytes;
	info.argsz = size;
	info.cap_offset = 0;
	info.size = bytes;
	info.offset = VGPU_REGION_OFFSET(info.index);
	info.flags = bytes ? VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE : 0;
	return copy_to_user(arg, &info, size) ? -EFAULT : 0;
}

static long vgpu_get_irq_info(void __user *arg)
{
	const unsigned long size = offsetofend(struct vfio_irq_info, count);
	struct vfio_irq_info info;

	if (copy_from_user(&info, arg, size))
		return -EFAULT;
	if (info.argsz < size || info.index >= VFIO_PCI_NUM_IRQS)
		return -EINVAL;
	info.count = vgpu_irq_count(info.index);
	info.flags = info.count ? VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE : 0;
	return copy_to_user(arg, &info, size) ? -EFAULT : 0;
}

static long vgpu_set_irqs(struct vgpu_device *device, void __user *arg)
{
	const unsigned long size = offsetofend(struct vfio_irq_set, count);
	struct vfio_irq_set set;
	size_t data_bytes = 0;
	void *data = NULL;
	long ret;

	if (copy_from_user(&set, arg, size))
		return -EFAULT;
	if (set.index >= VFIO_PCI_NUM_IRQS)
		return -EINVAL;
	ret = vfio_set_irqs_validate_and_prepare(&set, vgpu_irq_count(set.index),
						 VFIO_PCI_NUM_IRQS, &data_bytes);
	if (ret)
		return ret;
	if (data_bytes) {
		data = memdup_user(arg + size, data_bytes);
		if (IS_ERR(data))
			return PTR_ERR(data);
	}
	mutex_lock(&device->state_lock);
	ret = vgpu_irqs_set(device, &set, data);
	mutex_unlock(&device->state_lock);
	kfree(data);
	return ret;
}

static long vgpu_vfio_ioctl(struct vfio_device *vdev, unsigned int command,
			    unsigned long arg)
{
	struct vgpu_device *device = vgpu_vdev_to_device(vdev);
	void __user *user = (void __user *)arg;

	switch (command) {
	case VFIO_DEVICE_GET_INFO:
		return vgpu_get_info(user);
	case VFIO_DEVICE_GET_REGION_INFO:
		return vgpu_get_region_info(user);
	case VFIO_DEVICE_GET_IRQ_INFO:
		return vgpu_get_irq_info(user);
	case VFIO_DEVICE_SET_IRQS:
		return vgpu_set_irqs(device, user);
	case VFIO_DEVICE_RESET:
		mutex_lock(&device->state_lock);
		vgpu_config_reset(device);
		vgpu_device_reset(device);
		mutex_unlock(&device->state_lock);
		return 0;
	default:
		return -ENOTTY;
	}
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
	.read = vgpu_vfio_read,
	.write = vgpu_vfio_write,
	.ioctl = vgpu_vfio_ioctl,
	.request = vgpu_vfio_request,
	VGPU_IOMMUFD_OPS
};

/* Make the device known to control surfaces, if its memory fits. */
static int vgpu_device_publish(struct vgpu_device *device)
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
		vgpu_netlink_changed();
	}
	mutex_unlock(&parent->lock);
	return ret;
}

static void vgpu_device_withdraw(struct vgpu_device *device)
{
	struct vgpu_parent *parent = device->parent;

	mutex_lock(&parent->lock);
	vgpu_device_unassign(device);
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
	vgpu_device_withdraw(device);
put:
	vfio_put_device(&device->vdev);
	return ret;
}

/* Revoke first, then wait for the VMM to let go. */
static void vgpu_mdev_remove(struct mdev_device *mdev)
{
	struct vgpu_device *device = dev_get_drvdata(&mdev->dev);

	mutex_lock(&device->state_lock);
	device->revoked = true;
	vgpu_device_disable(device);
	mutex_unlock(&device->state_lock);
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
	return div64_u64(left, bytes);
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
 * vgpu_device_driver_unregister - also waits for the last device's release
 */
void vgpu_device_driver_unregister(void)
{
	mdev_unregister_driver(&vgpu_mdev_driver);
	wait_event(vgpu_devices_gone, !atomic_read(&vgpu_devices));
	synchronize_rcu();
}
