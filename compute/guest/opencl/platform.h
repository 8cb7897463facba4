/* SPDX-License-Identifier: Apache-2.0 */
/* The only platform, its devices, and the information in HELLO's answer. */
#ifndef VGPU_GUEST_PLATFORM_H
#define VGPU_GUEST_PLATFORM_H

#include "guest/opencl/call.h"

extern struct _cl_platform_id vgpu_platform;
extern struct _cl_device_id vgpu_devices[VGPU_CL_DEVICES_MAX];
extern cl_uint vgpu_device_count;

/* Connects and sends HELLO, once.  Returns CL_SUCCESS or CL_PLATFORM_NOT_FOUND_KHR. */
cl_int vgpu_platform_start(void);

/*
 * Returns the child's answer to a query of the platform or a device, or NULL if the child had
 * no answer.  The answer is never freed.
 */
const void *information(uint32_t kind, uint32_t device, uint32_t param, size_t *bytes);

/*
 * Stores the limits of a new device against which commands are checked.  Limits that the child
 * did not report are 0.
 */
void device_start(struct _cl_device_id *device);

/* Returns the index of a device in a list, or -1. */
int device_find(cl_device_id device, const cl_device_id *devices, cl_uint count);

#endif /* VGPU_GUEST_PLATFORM_H */
