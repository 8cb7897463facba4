# SPDX-License-Identifier: GPL-2.0
# What the kernel at hand offers, asked of its headers: stable trees and distributions
# back-port, so that version numbers say little. The versions are where it came upstream.
# Read by Kbuild; compat.h turns the answers into one interface.

# $(call vgpu-has,NAME,HEADER,REGEX): -DVGPU_HAVE_NAME if a line of the header matches
vgpu-has = $(if $(shell grep -sE -m 1 '$(3)' $(srctree)/include/$(2)),-DVGPU_HAVE_$(1))

# 6.2: the core frees a device after its release callback
ccflags-y += $(call vgpu-has,VFIO_FREE_DEVICE,linux/vfio.h,\<vfio_free_device\>)
# 6.2: how much a device has to save
ccflags-y += $(call vgpu-has,VFIO_MIGRATION_SIZE,linux/vfio.h,int ..migration_get_data_size)
# 6.6: devices as character devices of their own, through IOMMUFD
ccflags-y += $(call vgpu-has,VFIO_DETACH_IOAS,linux/vfio.h,\<vfio_iommufd_emulated_detach_ioas\>)
# 6.19: the core answers VFIO_DEVICE_GET_REGION_INFO and asks the driver
ccflags-y += $(call vgpu-has,VFIO_REGION_INFO_CAPS,linux/vfio.h,get_region_info_caps)
# 6.6: what a dump request asked for
ccflags-y += $(call vgpu-has,GENL_INFO_DUMP,net/genetlink.h,^genl_info_dump\>)
# 6.8: a signal always adds one
ccflags-y += $(call vgpu-has,EVENTFD_SIGNAL_COUNT,linux/eventfd.h,eventfd_signal.struct eventfd_ctx .ctx. __u64)
# 6.10: the field's declaration says what to copy
ccflags-y += $(call vgpu-has,ASSIGN_STR_SOURCE,trace/stages/stage6_event_callback.h,__assign_str.dst. src)
# 6.12: moved from asm/
ccflags-y += $(call vgpu-has,LINUX_UNALIGNED,linux/unaligned.h,get_unaligned)
# 6.14: __crc32c_le() by another name
ccflags-y += $(call vgpu-has,CRC32C_LE,linux/crc32.h,\<__crc32c_le\>)
# 6.15: a timer gets its function when it is set up
ccflags-y += $(call vgpu-has,HRTIMER_SETUP,linux/hrtimer.h,\<hrtimer_setup\>.struct)
# 6.17: a file may be mapped in two ways
ccflags-y += $(call vgpu-has,VFS_MMAP,linux/fs.h,\<vfs_mmap\>.struct)
# 7.0: flags of a mapping are a type of their own
ccflags-y += $(call vgpu-has,VMA_FLAGS,linux/shmem_fs.h,shmem_file_setup.*vma_flags_t)
