/* SPDX-License-Identifier: Apache-2.0 */
/* Programs, as other files need them. */
#ifndef VGPU_GUEST_PROGRAM_H
#define VGPU_GUEST_PROGRAM_H

#include "guest/opencl/context.h"

/* A new program of a context; @count 0: all of its devices. */
struct _cl_program *program_new(cl_context context, cl_uint count, const cl_device_id *devices);

/* Checks a list of devices that may be absent; they must be of @all. */
cl_int check_devices(cl_uint count, const cl_device_id *devices, const cl_device_id *all, cl_uint all_count);

#endif /* VGPU_GUEST_PROGRAM_H */
