# SPDX-License-Identifier: GPL-2.0
# Detects the features of the kernel from its headers, because version numbers are not reliable:
# stable trees and distributions back-port. The comments give the upstream version of each feature.
# Kbuild includes this file; compat.h turns the results into one interface.

# $(call vgpu-has,NAME,HEADER,REGEX): -DVGPU_HAVE_NAME if a line of the header matches
vgpu-has = $(if $(shell grep -sE -m 1 '$(3)' $(srctree)/include/$(2)),-DVGPU_HAVE_$(1))

# 6.2: the core frees a device after its release callback
ccflags-y += $(call vgpu-has,VFIO_FREE_DEVICE,linux/vfio.h,\<vfio_free_device\>)
# 6.2: a callback for the amount of data that a device has to save
ccflags-y += $(call vgpu-has,VFIO_MIGRATION_SIZE,linux/vfio.h,int ..migration_get_data_size)
# 6.6: each device as a separate character device, through IOMMUFD
ccflags-y += $(call vgpu-has,VFIO_DETACH_IOAS,linux/vfio.h,\<vfio_iommufd_emulated_detach_ioas\>)
# 6.19: the core answers VFIO_DEVICE_GET_REGION_INFO with a callback of the driver
ccflags-y += $(call vgpu-has,VFIO_REGION_INFO_CAPS,linux/vfio.h,get_region_info_caps)
# 6.6: access to the attributes of a dump request
ccflags-y += $(call vgpu-has,GENL_INFO_DUMP,net/genetlink.h,^genl_info_dump\>)
# 6.8: eventfd_signal() has no count, it always adds one
ccflags-y += $(call vgpu-has,EVENTFD_SIGNAL_COUNT,linux/eventfd.h,eventfd_signal.struct eventfd_ctx .ctx. __u64)
# 6.10: __assign_str() takes the source from the field's declaration
ccflags-y += $(call vgpu-has,ASSIGN_STR_SOURCE,trace/stages/stage6_event_callback.h,__assign_str.dst. src)
# 6.12: moved from asm/
ccflags-y += $(call vgpu-has,LINUX_UNALIGNED,linux/unaligned.h,get_unaligned)
# 6.14: __crc32c_le() was renamed
ccflags-y += $(call vgpu-has,CRC32C_LE,linux/crc32.h,\<__crc32c_le\>)
# 6.15: a timer's function is an argument of its setup
ccflags-y += $(call vgpu-has,HRTIMER_SETUP,linux/hrtimer.h,\<hrtimer_setup\>.struct)
# 6.17: a file may be mapped in two ways, which vfs_mmap() hides
ccflags-y += $(call vgpu-has,VFS_MMAP,linux/fs.h,\<vfs_mmap\>.struct)
# 7.0: the flags of a mapping have a separate type
ccflags-y += $(call vgpu-has,VMA_FLAGS,linux/shmem_fs.h,shmem_file_setup.*vma_flags_t)
