/* SPDX-License-Identifier: Apache-2.0 */
/* The one platform, its devices, and what HELLO's answer said of them. */
#ifndef VGPU_GUEST_PLATFORM_H
#define VGPU_GUEST_PLATFORM_H

#include "guest/opencl/call.h"

extern struct _cl_platform_id vgpu_platform;
extern struct _cl_device_id vgpu_devices[VGPU_CL_DEVICES_MAX];
extern cl_uint vgpu_device_count;

/* Connects and says HELLO, once; CL_SUCCESS or CL_PLATFORM_NOT_FOUND_KHR. */
cl_int vgpu_platform_start(void);

/* The child's answer to a platform's or device's query; NULL if it had none.  Valid for ever. */
const void *information(uint32_t kind, uint32_t device, uint32_t param, size_t *bytes);

/* Keeps what commands check of a new device; what the child did not tell is 0. */
void device_start(struct _cl_device_id *device);

/* The place of a device in a list, or -1. */
int device_find(cl_device_id device, const cl_device_id *devices, cl_uint count);

#endif /* VGPU_GUEST_PLATFORM_H */
