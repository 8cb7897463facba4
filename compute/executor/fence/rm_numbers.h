/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of ioctl() calls on files of NVIDIA's driver that are harmless whatever the caller's memory holds. */
#ifndef VGPU_EXECUTOR_RM_NUMBERS_H
#define VGPU_EXECUTOR_RM_NUMBERS_H

#include <stdint.h>

/* Low bytes of numbers with RM_MAGIC; 0 ends the list.  RM_ESC_HEAP is harmless only for a child. */
extern const uint8_t rm_continued[];
/* Whole numbers of calls on /dev/nvidia-uvm; 0 ends the list. */
extern const uint32_t rm_continued_uvm[];

#endif /* VGPU_EXECUTOR_RM_NUMBERS_H */
