/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What differs between the kernels this module is built for: Debian 6.1, 6.12.
 * Everything else uses the newer interface directly.
 */
#ifndef VGPU_COMPAT_H
#define VGPU_COMPAT_H

#include <linux/eventfd.h>
#include <linux/version.h>
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0)
#include <linux/unaligned.h>
#else
#include <asm/unaligned.h>
#endif
#include <linux/vfio.h>
#include <net/genetlink.h>

/* Since 6.8 eventfd_signal() always adds one. */
static inline void vgpu_eventfd_signal(struct eventfd_ctx *ctx)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 8, 0)
	eventfd_signal(ctx);
#else
	eventfd_signal(ctx, 1);
#endif
}

/* Before 6.2 the release callback frees the device itself. */
static inline void vgpu_vfio_free_device(struct vfio_device *vdev)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0)
	vfio_free_device(vdev);
#endif
}

/* Mandatory since 6.2 (detach_ioas 6.6) where the kernel has IOMMUFD. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
#define VGPU_IOMMUFD_OPS \
	.bind_iommufd = vfio_iommufd_emulated_bind, \
	.unbind_iommufd = vfio_iommufd_emulated_unbind, \
	.attach_ioas = vfio_iommufd_emulated_attach_ioas, \
	.detach_ioas = vfio_iommufd_emulated_detach_ioas,
#else
#define VGPU_IOMMUFD_OPS
#endif

/* The attributes of a dump request moved in 6.6. */
static inline struct nlattr **vgpu_dump_attrs(struct netlink_callback *cb)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
	return genl_info_dump(cb)->attrs;
#else
	return genl_dumpit_info(cb)->attrs;
#endif
}

/* Since 6.10 the value is known from the declaration of the field. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)
#define vgpu_assign_str(field, value) __assign_str(field)
#else
#define vgpu_assign_str(field, value) __assign_str(field, value)
#endif

#endif /* VGPU_COMPAT_H */
