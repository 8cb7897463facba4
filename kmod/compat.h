/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Differences between the kernels that this module is built for: Linux 6.1, 6.6
 * and later. configure.mk detects the features of a kernel and lists the
 * versions. All other code uses the newer interface directly.
 */
#ifndef VGPU_COMPAT_H
#define VGPU_COMPAT_H

#include <linux/crc32.h>
#include <linux/eventfd.h>
#include <linux/fs.h>
#include <linux/hrtimer.h>
#include <linux/poll.h>
#include <linux/shmem_fs.h>
#ifdef VGPU_HAVE_LINUX_UNALIGNED
#include <linux/unaligned.h>
#else
#include <asm/unaligned.h>
#endif
#include <linux/vfio.h>
#include <net/genetlink.h>

static inline void vgpu_eventfd_signal(struct eventfd_ctx *ctx)
{
#ifdef VGPU_HAVE_EVENTFD_SIGNAL_COUNT
	eventfd_signal(ctx, 1);
#else
	eventfd_signal(ctx);
#endif
}

/*
 * Call this from the release callback, because older cores do not free the
 * device themselves.
 */
static inline void vgpu_vfio_free_device(struct vfio_device *vdev)
{
#ifdef VGPU_HAVE_VFIO_FREE_DEVICE
	vfio_free_device(vdev);
#endif
}

/* Mandatory where the kernel has IOMMUFD. */
#ifdef VGPU_HAVE_VFIO_DETACH_IOAS
#define VGPU_IOMMUFD_OPS \
	.bind_iommufd = vfio_iommufd_emulated_bind, \
	.unbind_iommufd = vfio_iommufd_emulated_unbind, \
	.attach_ioas = vfio_iommufd_emulated_attach_ioas, \
	.detach_ioas = vfio_iommufd_emulated_detach_ioas,
#else
#define VGPU_IOMMUFD_OPS
#endif

/*
 * If the core handles VFIO_DEVICE_GET_REGION_INFO itself, it needs this
 * callback to answer.
 */
#ifdef VGPU_HAVE_VFIO_REGION_INFO_CAPS
#define VGPU_REGION_INFO_OPS .get_region_info_caps = vgpu_access_region_info,
#else
#define VGPU_REGION_INFO_OPS
#endif

/*
 * Mandatory for a device that migrates: reports how much data the device has to
 * save.
 */
#ifdef VGPU_HAVE_VFIO_MIGRATION_SIZE
#define VGPU_MIGRATION_SIZE_OPS .migration_get_data_size = vgpu_migration_get_data_size,
#else
#define VGPU_MIGRATION_SIZE_OPS
#endif

static inline struct nlattr **vgpu_dump_attrs(struct netlink_callback *cb)
{
#ifdef VGPU_HAVE_GENL_INFO_DUMP
	return genl_info_dump(cb)->attrs;
#else
	return genl_dumpit_info(cb)->attrs;
#endif
}

#ifdef VGPU_HAVE_ASSIGN_STR_SOURCE
#define vgpu_assign_str(field, value) __assign_str(field, value)
#else
#define vgpu_assign_str(field, value) do { (void)(value); __assign_str(field); } while (0)
#endif

/*
 * CRC-32C without the initial and the final inversion, so that a checksum can
 * be continued.
 */
static inline u32 vgpu_crc32c(u32 crc, const void *data, size_t bytes)
{
#ifdef VGPU_HAVE_CRC32C_LE
	return __crc32c_le(crc, data, bytes);
#else
	return crc32c(crc, data, bytes);
#endif
}

/* Create an unnamed file whose memory is accounted. */
static inline struct file *vgpu_shmem_file_setup(const char *name, loff_t bytes)
{
#ifdef VGPU_HAVE_VMA_FLAGS
	return shmem_file_setup(name, bytes, EMPTY_VMA_FLAGS);
#else
	return shmem_file_setup(name, bytes, 0);
#endif
}

/* Have another file handle the mapping. */
static inline int vgpu_call_mmap(struct file *file, struct vm_area_struct *vma)
{
#ifdef VGPU_HAVE_VFS_MMAP
	return vfs_mmap(file, vma);
#else
	return call_mmap(file, vma);
#endif
}

/* Does poll_wait() add a wait? Newer kernels have no function for that. */
static inline bool vgpu_poll_waits(const poll_table *wait)
{
	return wait && wait->_qproc;
}

static inline void vgpu_hrtimer_setup(struct hrtimer *timer,
				      enum hrtimer_restart (*function)(struct hrtimer *),
				      clockid_t clock, enum hrtimer_mode mode)
{
#ifdef VGPU_HAVE_HRTIMER_SETUP
	hrtimer_setup(timer, function, clock, mode);
#else
	hrtimer_init(timer, clock, mode);
	timer->function = function;
#endif
}

#endif /* VGPU_COMPAT_H */
