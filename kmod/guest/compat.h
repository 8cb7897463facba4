/* SPDX-License-Identifier: GPL-2.0 */
/*
 * vgpumgr guest driver: differences between the kernels it is built for, Linux 6.1
 * and later. Kbuild detects the features of a kernel and lists the versions.
 */
#ifndef _VGPU_GUEST_COMPAT_H
#define _VGPU_GUEST_COMPAT_H

#include <linux/device.h>
#include <linux/mm.h>

#ifdef VGPU_HAVE_CONST_DEVNODE
#define VGPU_DEVNODE_DEVICE const struct device
#else
#define VGPU_DEVNODE_DEVICE struct device
#endif

static inline void vgpu_vm_flags_mod(struct vm_area_struct *vma, unsigned long set,
				     unsigned long clear)
{
#ifdef VGPU_HAVE_VM_FLAGS_MOD
	vm_flags_mod(vma, set, clear);
#else
	vma->vm_flags = (vma->vm_flags | set) & ~clear;
#endif
}

#endif /* _VGPU_GUEST_COMPAT_H */
