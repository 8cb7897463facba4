// SPDX-License-Identifier: Apache-2.0
/* The dispatch table for the loader, and the symbols that it looks up. */
#include "guest/opencl/context.h"

#include <stdio.h>

/* Logs one line for a refused function.  Each function calls it once. */
static void vgpu_cl_log_refused(const char *function, const char *why)
{
	fprintf(stderr, "vgpumgr: %s is not available: %s\n", function, why);
}

#include "opencl_stubs.h"

#define ENTRY_FULL(name) .name = vgpu_##name,
#define ENTRY_REFUSED(name) .name = (void *)refused_##name,
#define ENTRY_EMPTY(name)

cl_icd_dispatch vgpu_cl_dispatch = {
	VGPU_CL_FUNCTIONS(ENTRY_FULL, ENTRY_REFUSED, ENTRY_EMPTY)
};

#define EXPORTED __attribute__((visibility("default")))

/*
 * The loader passes the arguments of the program's clGetPlatformIDs() to this function.  It also
 * calls this function once by itself, without room for platforms.
 */
EXPORTED cl_int CL_API_CALL clIcdGetPlatformIDsKHR(cl_uint count, cl_platform_id *platforms, cl_uint *returned)
{
	return vgpu_clGetPlatformIDs(count, platforms, returned);
}

API(void *, clGetExtensionFunctionAddress, const char *name)
{
	if (!name)
		return NULL;
	if (!strcmp(name, "clIcdGetPlatformIDsKHR"))
		return (void *)clIcdGetPlatformIDsKHR;
	if (!strcmp(name, "clGetKernelSubGroupInfoKHR"))
		return (void *)vgpu_clGetKernelSubGroupInfoKHR;
	return NULL;
}

API(void *, clGetExtensionFunctionAddressForPlatform, cl_platform_id platform, const char *name)
{
	return object_check(platform, KIND_PLATFORM) ? vgpu_clGetExtensionFunctionAddress(name) : NULL;
}

EXPORTED void *CL_API_CALL clGetExtensionFunctionAddress(const char *name)
{
	return vgpu_clGetExtensionFunctionAddress(name);
}

EXPORTED cl_int CL_API_CALL clGetPlatformInfo(cl_platform_id platform, cl_platform_info param, size_t room,
					      void *target, size_t *returned)
{
	return vgpu_clGetPlatformInfo(platform, param, room, target, returned);
}
