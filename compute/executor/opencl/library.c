/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "library.h"

typedef cl_int CL_API_CALL get_platforms(cl_uint, cl_platform_id *, cl_uint *);
typedef void *CL_API_CALL get_function(const char *);

static get_platforms *find_get_platforms(void *handle)
{
	get_function *get;
	get_platforms *found;

	*(void **)&found = dlsym(handle, "clIcdGetPlatformIDsKHR");
	if (found)
		return found;
	*(void **)&get = dlsym(handle, "clGetExtensionFunctionAddress");
	if (get)
		*(void **)&found = get("clIcdGetPlatformIDsKHR");
	return found;
}

/* Make PoCL use the same code for all work group sizes, so that the first launch compiles nothing. */
static void set_environment(void)
{
	setenv("POCL_WORK_GROUP_SPECIALIZATION", "0", 1);
}

bool opencl_library_open(struct opencl_library *library, const char *path, char *reason)
{
	get_platforms *get;
	cl_uint count = 0;
	cl_int error;

	set_environment();
	library->handle = dlopen(path ? path : "", RTLD_NOW | RTLD_LOCAL);
	if (!path || !library->handle) {
		snprintf(reason, VGPU_REASON_BYTES, "%s", path ? dlerror() : "no library was given");
		return false;
	}
	get = find_get_platforms(library->handle);
	error = get ? get(1, &library->platform, &count) : CL_INVALID_OPERATION;
	if (error || !count) {
		snprintf(reason, VGPU_REASON_BYTES, "%s: no OpenCL platform: %d", path, error);
		return false;
	}
	/* The dispatch table is the first member of each object in a library that supports the ICD loader. */
	library->dispatch = *(const cl_icd_dispatch **)library->platform;
	error = library->dispatch->clGetDeviceIDs(library->platform, CL_DEVICE_TYPE_ALL,
						  VGPU_CL_DEVICES_MAX, library->devices, &count);
	if (error || !count) {
		snprintf(reason, VGPU_REASON_BYTES, "%s: no OpenCL device: %d", path, error);
		return false;
	}
	library->device_count = count < VGPU_CL_DEVICES_MAX ? count : VGPU_CL_DEVICES_MAX;
	return true;
}
