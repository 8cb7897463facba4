/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of ioctl() calls on files of NVIDIA's driver that are harmless whatever the caller's memory holds. */
#ifndef VGPU_EXECUTOR_RM_NUMBERS_H
#define VGPU_EXECUTOR_RM_NUMBERS_H

#include <stdint.h>

/* Low bytes of numbers with RM_MAGIC; 0 ends the list.  RM_ESC_HEAP is one of them for a child alone. */
extern const uint8_t rm_continued[];
/* Of /dev/nvidia-uvm, whole numbers; 0 ends the list. */
extern const uint32_t rm_continued_uvm[];

#endif /* VGPU_EXECUTOR_RM_NUMBERS_H */
