/* SPDX-License-Identifier: Apache-2.0 */
/* The accelerator's own OpenCL library, without a loader between. */
#ifndef VGPU_OPENCL_LIBRARY_H
#define VGPU_OPENCL_LIBRARY_H

#include "backend_private.h"

struct opencl_library {
	void *handle;
	const cl_icd_dispatch *dispatch;
	cl_platform_id platform;
	uint32_t device_count;
	cl_device_id devices[VGPU_CL_DEVICES_MAX];
};

/*
 * Load the library at @path and find its first platform and devices.  False: it
 * failed, and @reason (VGPU_REASON_BYTES) says why.  It stays loaded.
 */
bool opencl_library_open(struct opencl_library *library, const char *path, char *reason);

#endif /* VGPU_OPENCL_LIBRARY_H */
