/* SPDX-License-Identifier: Apache-2.0 */
/* The accelerator's own OpenCL library, used without an ICD loader. */
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
 * Loads the library at @path and finds its first platform and devices.  Return: false with the
 * error in @reason (VGPU_REASON_BYTES).  The library stays loaded.
 */
bool opencl_library_open(struct opencl_library *library, const char *path, char *reason);

#endif /* VGPU_OPENCL_LIBRARY_H */
