// SPDX-License-Identifier: GPL-2.0
/*
 * How a VMM accesses the function: reads and writes of its regions, and VFIO ioctls.
 *
 * A region's index is in the upper bits of the file offset. Every region exists; all are
 * empty except configuration space, BAR0 and, where there are windows, BAR2. BAR2 can only
 * be mapped: reads return ones, and writes are ignored. A slice that was revoked behaves
 * like a function that was pulled out: reads return ones, writes are ignored.
 */
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "engine/engine.h"
#include "migration/migration.h"

#define VGPU_REGION_SHIFT	40
#define VGPU_REGION_OFFSET(i)	((u64)(i) << VGPU_REGION_SHIFT)
#define VGPU_REGION_MASK	(VGPU_REGION_OFFSET(1) - 1)

/* The size of the longest naturally aligned access at @offset within @bytes. */
static u32 vgpu_access_bytes(u64 offset, size_t bytes)
{
	u32 size = sizeof(u64);

	while (size > bytes || offset % size)
		size /= 2;
	return size;
}

static ssize_t vgpu_region_bytes(const struct vgpu_device *device, u32 index)
{
	switch (index) {
	case VFIO_PCI_CONFIG_REGION_INDEX:
		return VGPU_CONFIG_BYTES;
	case VFIO_PCI_BAR0_REGION_INDEX:
		return VGPU_BAR0_BYTES;
	case VFIO_PCI_BAR2_REGION_INDEX:
		return vgpu_windows_offered(device) ? VGPU_BAR2_BYTES : 0;
	default:
		return index < VFIO_PCI_NUM_REGIONS ? 0 : -EINVAL;
	}
}

/* The device is not revoked, state_lock held. */
static void vgpu_region_move(struct vgpu_device *device, u32 index, u32 offset,
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

/*
 * Wait until an access to guest memory in progress has ended. As on PCI, the answer to a
 * read must not overtake earlier writes, so that a guest that reads ones may reuse its
 * memory. Only guest memory that does not answer can delay this, so the guest waits for
 * nobody except itself.
 */
static void vgpu_device_await_dma(struct vgpu_device *device)
{
	if (!mutex_lock_killable(&device->dma_lock))
		mutex_unlock(&device->dma_lock);
}

/*
 * Check for revocation without the lock first, because the task that revokes the slice may
 * hold the lock for long, and no access may wait for that.
 */
static void vgpu_region_access(struct vgpu_device *device, u32 index, u32 offset,
			       u8 *data, u32 bytes, bool write)
{
	bool absent = READ_ONCE(device->revoked) || index == VFIO_PCI_BAR2_REGION_INDEX;

	if (!absent) {
		mutex_lock(&device->state_lock);
		absent = READ_ONCE(device->revoked);
		if (!absent)
			vgpu_region_move(device, index, offset, data, bytes, write);
		mutex_unlock(&device->state_lock);
	}
	if (absent && !write) {
		vgpu_device_await_dma(device);
		memset(data, 0xff, bytes);
	}
}

/* How much of an access lies inside its region; a negative errno if nothing does. */
static ssize_t vgpu_access_clip(struct vgpu_device *device, loff_t at, size_t count)
{
	u32 index = (u64)at >> VGPU_REGION_SHIFT;
	u64 offset = at & VGPU_REGION_MASK;
	ssize_t size = vgpu_region_bytes(device, index);

	if (at < 0 || size < 0 || offset >= size)
		return vgpu_refused(device, "access", "offset", -EINVAL);
	return min_t(u64, count, size - offset);
}

ssize_t vgpu_access_read(struct vfio_device *vdev, char __user *buffer, size_t count,
			 loff_t *position)
{
	struct vgpu_device *device = vgpu_vdev_to_device(vdev);
	ssize_t left = vgpu_access_clip(device, *position, count);
	ssize_t done = 0;

	while (left > 0) {
		u32 index = *position >> VGPU_REGION_SHIFT;
		u64 offset = *position & VGPU_REGION_MASK;
		u32 bytes = vgpu_access_bytes(offset, left);
		u8 data[sizeof(u64)];

		vgpu_region_access(device, index, offset, data, bytes, false);
		if (copy_to_user(buffer + done, data, bytes))
			return done ?: -EFAULT;
		*position += bytes;
		done += bytes;
		left -= bytes;
	}
	return left < 0 ? left : done;
}

ssize_t vgpu_access_write(struct vfio_device *vdev, const char __user *buffer, size_t count,
			  loff_t *position)
{
	struct vgpu_device *device = vgpu_vdev_to_device(vdev);
	ssize_t left = vgpu_access_clip(device, *position, count);
	ssize_t done = 0;

	while (left > 0) {
		u32 index = *position >> VGPU_REGION_SHIFT;
		u64 offset = *position & VGPU_REGION_MASK;
		u32 bytes = vgpu_access_bytes(offset, left);
		u8 data[sizeof(u64)];

		if (copy_from_user(data, buffer + done, bytes))
			return done ?: -EFAULT;
		vgpu_region_access(device, index, offset, data, bytes, true);
		*position += bytes;
		done += bytes;
		left -= bytes;
	}
	return left < 0 ? left : done;
}

int vgpu_access_mmap(struct vfio_device *vdev, struct vm_area_struct *vma)
{
	struct vgpu_device *device = vgpu_vdev_to_device(vdev);
	u64 at = (u64)vma->vm_pgoff << PAGE_SHIFT;
	int ret = -EINVAL;

	if (at >> VGPU_REGION_SHIFT == VFIO_PCI_BAR2_REGION_INDEX)
		ret = vgpu_window_mmap(device, at & VGPU_REGION_MASK, vma);
	return ret == -EINVAL ? vgpu_refused(device, "mmap", "offset", ret) : ret;
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

static long vgpu_get_info(struct vgpu_device *device, void __user *arg)
{
	const unsigned long size = offsetofend(struct vfio_device_info, num_irqs);
	struct vfio_device_info info;

	if (copy_from_user(&info, arg, size))
		return -EFAULT;
	if (info.argsz < size)
		return vgpu_refused(device, "GET_INFO", "argsz", -EINVAL);
	info.flags = VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET;
	info.num_regions = VFIO_PCI_NUM_REGIONS;
	info.num_irqs = VFIO_PCI_NUM_IRQS;
	return copy_to_user(arg, &info, size) ? -EFAULT : 0;
}

/* Fill in the description of region @info->index. */
static int vgpu_region_describe(struct vgpu_device *device, struct vfio_region_info *info)
{
	ssize_t bytes = vgpu_region_bytes(device, info->index);

	if (bytes < 0)
		return vgpu_refused(device, "GET_REGION_INFO", "index", bytes);
	info->size = bytes;
	info->offset = VGPU_REGION_OFFSET(info->index);
	info->flags = bytes ? VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE : 0;
	if (bytes && info->index == VFIO_PCI_BAR2_REGION_INDEX)
		info->flags |= VFIO_REGION_INFO_FLAG_MMAP;
	return 0;
}

/* Each window is a separate mapping, because each is a separate file. */
static int vgpu_region_describe_windows(const struct vfio_region_info *info,
					struct vfio_info_cap *caps)
{
	struct vfio_region_info_cap_sparse_mmap *sparse;
	size_t bytes = struct_size(sparse, areas, VGPU_WINDOWS_MAX);
	u32 i;
	int ret;

	if (!(info->flags & VFIO_REGION_INFO_FLAG_MMAP))
		return 0;
	sparse = kzalloc(bytes, GFP_KERNEL);
	if (!sparse)
		return -ENOMEM;
	sparse->header.id = VFIO_REGION_INFO_CAP_SPARSE_MMAP;
	sparse->header.version = 1;
	sparse->nr_areas = VGPU_WINDOWS_MAX;
	for (i = 0; i < VGPU_WINDOWS_MAX; i++) {
		sparse->areas[i].offset = i * VGPU_WINDOW_BYTES;
		sparse->areas[i].size = VGPU_WINDOW_BYTES;
	}
	ret = vfio_info_add_capability(caps, &sparse->header, bytes);
	kfree(sparse);
	return ret;
}

#ifdef VGPU_HAVE_VFIO_REGION_INFO_CAPS
int vgpu_access_region_info(struct vfio_device *vdev, struct vfio_region_info *info,
			    struct vfio_info_cap *caps)
{
	return vgpu_region_describe(vgpu_vdev_to_device(vdev), info) ?:
	       vgpu_region_describe_windows(info, caps);
}
#else
/* Copy @caps to user space if there is room; report the size needed. */
static long vgpu_region_info_put_caps(struct vfio_region_info *info, struct vfio_info_cap *caps,
				      void __user *arg)
{
	u32 given = info->argsz;

	info->argsz = sizeof(*info);
	info->cap_offset = 0;
	if (!caps->size)
		return 0;
	info->flags |= VFIO_REGION_INFO_FLAG_CAPS;
	info->argsz += caps->size;
	if (given < info->argsz)
		return 0;
	vfio_info_cap_shift(caps, sizeof(*info));
	if (copy_to_user(arg + sizeof(*info), caps->buf, caps->size))
		return -EFAULT;
	info->cap_offset = sizeof(*info);
	return 0;
}

static long vgpu_get_region_info(struct vgpu_device *device, void __user *arg)
{
	const unsigned long size = offsetofend(struct vfio_region_info, offset);
	struct vfio_info_cap caps = {};
	struct vfio_region_info info;
	long ret;

	if (copy_from_user(&info, arg, size))
		return -EFAULT;
	if (info.argsz < size)
		return vgpu_refused(device, "GET_REGION_INFO", "argsz", -EINVAL);
	ret = vgpu_region_describe(device, &info) ?: vgpu_region_describe_windows(&info, &caps);
	ret = ret ?: vgpu_region_info_put_caps(&info, &caps, arg);
	kfree(caps.buf);
	if (ret)
		return ret;
	return copy_to_user(arg, &info, size) ? -EFAULT : 0;
}
#endif

static long vgpu_get_irq_info(struct vgpu_device *device, void __user *arg)
{
	const unsigned long size = offsetofend(struct vfio_irq_info, count);
	struct vfio_irq_info info;

	if (copy_from_user(&info, arg, size))
		return -EFAULT;
	if (info.argsz < size)
		return vgpu_refused(device, "GET_IRQ_INFO", "argsz", -EINVAL);
	if (info.index >= VFIO_PCI_NUM_IRQS)
		return vgpu_refused(device, "GET_IRQ_INFO", "index", -EINVAL);
	info.count = vgpu_irq_count(info.index);
	info.flags = info.count ? VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE : 0;
	return copy_to_user(arg, &info, size) ? -EFAULT : 0;
}

/* Why vfio_set_irqs_validate_and_prepare() refused @set. */
static const char *vgpu_irq_set_fault(const struct vfio_irq_set *set)
{
	u32 count = vgpu_irq_count(set->index);

	if (set->argsz < offsetofend(struct vfio_irq_set, count))
		return "argsz";
	if (!count)
		return "index";
	if (set->start >= count)
		return "start";
	if (set->count > count - set->start)
		return "count";
	if (set->flags & ~(VFIO_IRQ_SET_DATA_TYPE_MASK | VFIO_IRQ_SET_ACTION_TYPE_MASK))
		return "flags";
	switch (set->flags & VFIO_IRQ_SET_DATA_TYPE_MASK) {
	case VFIO_IRQ_SET_DATA_BOOL:
	case VFIO_IRQ_SET_DATA_EVENTFD:
		return "argsz";	/* too little for the data */
	default:
		return "flags";
	}
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
	ret = vfio_set_irqs_validate_and_prepare(&set, vgpu_irq_count(set.index),
						 VFIO_PCI_NUM_IRQS, &data_bytes);
	if (ret)
		return vgpu_refused(device, "SET_IRQS", vgpu_irq_set_fault(&set), ret);
	if (data_bytes) {
		data = memdup_user(arg + size, data_bytes);
		if (IS_ERR(data))
			return PTR_ERR(data);
	}
	mutex_lock(&device->state_lock);
	ret = vgpu_irqs_set(device, &set, data);
	mutex_unlock(&device->state_lock);
	kfree(data);
	if (!ret)
		return 0;
	return vgpu_refused(device, "SET_IRQS", data_bytes && ret != -ENOTTY ? "data" : "flags",
			    ret);
}

static long vgpu_reset(struct vgpu_device *device)
{
	long ret = -ENODEV;

	mutex_lock(&device->state_lock);
	if (!READ_ONCE(device->revoked)) {
		/* Reset first, because losing bus mastering while enabled is an error. */
		vgpu_device_reset(device);
		vgpu_config_reset(device);
		vgpu_migration_reset(device);
		ret = 0;
	}
	mutex_unlock(&device->state_lock);
	return ret;
}

long vgpu_access_ioctl(struct vfio_device *vdev, unsigned int command, unsigned long arg)
{
	struct vgpu_device *device = vgpu_vdev_to_device(vdev);
	void __user *user = (void __user *)arg;

	switch (command) {
	case VFIO_DEVICE_GET_INFO:
		return vgpu_get_info(device, user);
#ifndef VGPU_HAVE_VFIO_REGION_INFO_CAPS
	case VFIO_DEVICE_GET_REGION_INFO:
		return vgpu_get_region_info(device, user);
#endif
	case VFIO_DEVICE_GET_IRQ_INFO:
		return vgpu_get_irq_info(device, user);
	case VFIO_DEVICE_SET_IRQS:
		return vgpu_set_irqs(device, user);
	case VFIO_DEVICE_RESET:
		return vgpu_reset(device);
	default:
		return -ENOTTY;
	}
}
