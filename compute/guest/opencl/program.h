/* SPDX-License-Identifier: Apache-2.0 */
/* Programs, for other files. */
#ifndef VGPU_GUEST_PROGRAM_H
#define VGPU_GUEST_PROGRAM_H

#include "guest/opencl/context.h"

/* Creates a program of a context.  @count 0 means all of its devices. */
struct _cl_program *program_new(cl_context context, cl_uint count, const cl_device_id *devices);

/* Checks an optional list of devices; all must be in @all. */
cl_int check_devices(cl_uint count, const cl_device_id *devices, const cl_device_id *all, cl_uint all_count);

#endif /* VGPU_GUEST_PROGRAM_H */
