/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels, as other files need them. */
#ifndef VGPU_GUEST_KERNEL_H
#define VGPU_GUEST_KERNEL_H

#include "guest/opencl/context.h"

/* The place of a device among the context's, where the only one may be NULL; -1 if it is none of them. */
int kernel_device(cl_kernel kernel, cl_device_id device);

#endif /* VGPU_GUEST_KERNEL_H */
