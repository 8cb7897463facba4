// SPDX-License-Identifier: Apache-2.0
#include "executor/child/child.h"
#include "executor/child/sleep_backend.h"

/* Weak symbols, so that a build without the OpenCL backend still has the sleep backend. */
extern const struct vgpu_backend_operations vgpu_opencl_backend __attribute__((weak));
extern int vgpu_opencl_compile(const char *library, int job, int result) __attribute__((weak));

int main(int argc, char **argv)
{
	const struct vgpu_backend_operations *const backends[] = {
		&vgpu_sleep_backend, &vgpu_opencl_backend, NULL,
	};

	return vgpu_child_main(argc, argv, backends, vgpu_opencl_compile);
}
