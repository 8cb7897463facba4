// SPDX-License-Identifier: Apache-2.0
/*
 * Devices: what the child's library reports about them, without the features that this library
 * does not support.
 */
#include "guest/opencl/context.h"

/* Returns a number of a device, or 0 if the child did not report it. */
static uint64_t device_number(cl_device_id device, cl_device_info param)
{
	size_t bytes;
	const void *value = information(VGPU_CL_INFORMATION_KIND_DEVICE, device->index, param, &bytes);
	uint64_t number = 0;

	if (value && bytes <= sizeof(number))
		memcpy(&number, value, bytes);
	return number;
}

void device_start(struct _cl_device_id *device)
{
	size_t bytes;
	const void *sizes = information(VGPU_CL_INFORMATION_KIND_DEVICE, device->index, CL_DEVICE_MAX_WORK_ITEM_SIZES,
					&bytes);

	device->type = device_number(device, CL_DEVICE_TYPE);
	device->images = device_number(device, CL_DEVICE_IMAGE_SUPPORT);
	device->non_uniform = device_number(device, CL_DEVICE_NON_UNIFORM_WORK_GROUP_SUPPORT);
	device->dimensions = (cl_uint)device_number(device, CL_DEVICE_MAX_WORK_ITEM_DIMENSIONS);
	if (device->dimensions > 3)	/* a launch message has room for three dimensions */
		device->dimensions = 3;
	device->alignment_bits = (cl_uint)device_number(device, CL_DEVICE_MEM_BASE_ADDR_ALIGN);
	device->allocation_bytes = device_number(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
	device->queue_properties = device_number(device, CL_DEVICE_QUEUE_ON_HOST_PROPERTIES);
	if (sizes && bytes >= sizeof(device->item_sizes))
		memcpy(device->item_sizes, sizes, sizeof(device->item_sizes));
}

int device_find(cl_device_id device, const cl_device_id *devices, cl_uint count)
{
	for (cl_uint i = 0; i < count; i++)
		if (devices[i] == device)
			return (int)i;
	return -1;
}

/* Does a device match a type?  The default device is the first one. */
static bool of_type(cl_uint index, cl_device_type type)
{
	cl_device_type own = vgpu_devices[index].type;

	if (type == CL_DEVICE_TYPE_ALL)
		return !(own & CL_DEVICE_TYPE_CUSTOM);
	return (own & type & ~(cl_device_type)CL_DEVICE_TYPE_DEFAULT) ||
	       ((type & CL_DEVICE_TYPE_DEFAULT) && index == 0);
}

API(cl_int, clGetDeviceIDs, cl_platform_id platform, cl_device_type type, cl_uint count, cl_device_id *devices,
    cl_uint *returned)
{
	const cl_device_type known = CL_DEVICE_TYPE_CPU | CL_DEVICE_TYPE_GPU | CL_DEVICE_TYPE_ACCELERATOR |
				     CL_DEVICE_TYPE_DEFAULT | CL_DEVICE_TYPE_CUSTOM;
	cl_uint found = 0;

	if (platform && !object_check(platform, KIND_PLATFORM))
		return CL_INVALID_PLATFORM;
	if (vgpu_platform_start())
		return CL_INVALID_PLATFORM;
	if (type != CL_DEVICE_TYPE_ALL && (!type || (type & ~known)))
		return CL_INVALID_DEVICE_TYPE;
	if ((!count && devices) || (!devices && !returned))
		return CL_INVALID_VALUE;
	if (!vgpu_usable())
		return CL_DEVICE_NOT_FOUND;
	for (cl_uint i = 0; i < vgpu_device_count; i++) {
		if (!of_type(i, type))
			continue;
		if (devices && found < count)
			devices[found] = &vgpu_devices[i];
		found++;
	}
	if (returned)
		*returned = found;
	return found ? CL_SUCCESS : CL_DEVICE_NOT_FOUND;
}

/*
 * Returns whether this library offers an extension.  It offers extensions that only change the
 * kernel language, and extensions that need only features that it supports anyway.  Other
 * extensions would need entry points, handles or pointers.
 */
static bool extension_carried(const char *name, size_t length)
{
	static const char *const whole[] = {
		"cl_khr_byte_addressable_store", "cl_khr_global_int32_base_atomics",
		"cl_khr_global_int32_extended_atomics", "cl_khr_local_int32_base_atomics",
		"cl_khr_local_int32_extended_atomics", "cl_khr_int64_base_atomics", "cl_khr_int64_extended_atomics",
		"cl_khr_fp16", "cl_khr_fp64", "cl_khr_3d_image_writes", "cl_khr_select_fprounding_mode",
		"cl_khr_integer_dot_product", "cl_khr_expect_assume", "cl_khr_extended_bit_ops",
		"cl_khr_depth_images", "cl_khr_image2d_from_buffer", "cl_khr_device_uuid", "cl_khr_pci_bus_info",
		"cl_nv_compiler_options", "cl_nv_device_attribute_query", "cl_nv_pragma_unroll",
		"cl_ext_float_atomics",
	};

	for (size_t i = 0; i < sizeof(whole) / sizeof(*whole); i++)
		if (strlen(whole[i]) == length && !memcmp(whole[i], name, length))
			return true;
	return length > 15 && !memcmp(name, "cl_khr_subgroup", 15);
}

static cl_int give_extensions(const char *text, size_t bytes, size_t room, void *target, size_t *returned)
{
	char *carried = malloc(bytes + 1);
	size_t used = 0;
	cl_int status;

	if (!carried)
		return CL_OUT_OF_HOST_MEMORY;
	for (size_t at = 0; at < bytes && text[at];) {
		size_t length = 0;

		while (at + length < bytes && text[at + length] && text[at + length] != ' ')
			length++;
		if (extension_carried(text + at, length)) {
			if (used)
				carried[used++] = ' ';
			memcpy(carried + used, text + at, length);
			used += length;
		}
		at += length;
		while (at < bytes && text[at] == ' ')
			at++;
	}
	carried[used++] = 0;
	status = give(carried, used, room, target, returned);
	free(carried);
	return status;
}

static cl_int give_versioned(const cl_name_version *all, size_t bytes, size_t room, void *target, size_t *returned)
{
	size_t count = bytes / sizeof(*all), used = 0;
	cl_name_version *carried = malloc(bytes + 1);
	cl_int status;

	if (!carried)
		return CL_OUT_OF_HOST_MEMORY;
	for (size_t i = 0; i < count; i++)
		if (extension_carried(all[i].name, strnlen(all[i].name, sizeof(all[i].name))))
			carried[used++] = all[i];
	status = give(carried, used * sizeof(*all), room, target, returned);
	free(carried);
	return status;
}

API(cl_int, clGetDeviceInfo, cl_device_id device, cl_device_info param, size_t room, void *target, size_t *returned)
{
	const void *value;
	size_t bytes;

	if (!object_check(device, KIND_DEVICE))
		return CL_INVALID_DEVICE;
	switch (param) {
	case CL_DEVICE_PLATFORM:
		GIVE(cl_platform_id, &vgpu_platform);
	case CL_DEVICE_PARENT_DEVICE:
		GIVE(cl_device_id, NULL);
	case CL_DEVICE_REFERENCE_COUNT:
		GIVE(cl_uint, 1);
	case CL_DEVICE_PARTITION_MAX_SUB_DEVICES:
		GIVE(cl_uint, 0);
	case CL_DEVICE_PARTITION_PROPERTIES:
		GIVE(cl_device_partition_property, 0);
	case CL_DEVICE_PARTITION_TYPE:
		return give(NULL, 0, room, target, returned);
	case CL_DEVICE_PARTITION_AFFINITY_DOMAIN:
		GIVE(cl_device_affinity_domain, 0);
	case CL_DEVICE_AVAILABLE:
		GIVE(cl_bool, vgpu_usable());
	}
	value = information(VGPU_CL_INFORMATION_KIND_DEVICE, device->index, param, &bytes);
	if (!value)
		return CL_INVALID_VALUE;
	switch (param) {
	case CL_DEVICE_EXTENSIONS:
		return give_extensions(value, bytes, room, target, returned);
	case CL_DEVICE_EXTENSIONS_WITH_VERSION:
		return give_versioned(value, bytes, room, target, returned);
	case CL_DEVICE_EXECUTION_CAPABILITIES:
		GIVE(cl_device_exec_capabilities,
		     device_number(device, param) & ~(cl_device_exec_capabilities)CL_EXEC_NATIVE_KERNEL);
	case CL_DEVICE_SVM_CAPABILITIES:
		GIVE(cl_device_svm_capabilities, 0);
	case CL_DEVICE_PIPE_SUPPORT:
	case CL_DEVICE_DEVICE_ENQUEUE_CAPABILITIES:
		GIVE(cl_uint, 0);
	case CL_DEVICE_QUEUE_ON_DEVICE_PROPERTIES:
		GIVE(cl_command_queue_properties, 0);
	case CL_DEVICE_IL_VERSION:
		return give_text("", room, target, returned);
	case CL_DEVICE_ILS_WITH_VERSION:
		return give(NULL, 0, room, target, returned);
	}
	return give(value, bytes, room, target, returned);
}

API(cl_int, clRetainDevice, cl_device_id device)
{
	return object_check(device, KIND_DEVICE) ? CL_SUCCESS : CL_INVALID_DEVICE;
}

API(cl_int, clReleaseDevice, cl_device_id device)
{
	return object_check(device, KIND_DEVICE) ? CL_SUCCESS : CL_INVALID_DEVICE;
}
