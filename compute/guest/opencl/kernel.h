/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels, for other files. */
#ifndef VGPU_GUEST_KERNEL_H
#define VGPU_GUEST_KERNEL_H

#include "guest/opencl/context.h"

/*
 * Returns the index of a device in the context, or -1.  If the context has only one device, it may be
 * NULL.
 */
int kernel_device(cl_kernel kernel, cl_device_id device);

#endif /* VGPU_GUEST_KERNEL_H */
