// SPDX-License-Identifier: Apache-2.0
/* Samplers. */
#include "guest/opencl/context.h"

void sampler_end(struct _cl_sampler *sampler)
{
	send_release(VGPU_CL_KIND_SAMPLER, sampler->object.handle);
	object_drop(sampler->context);
}

static cl_int create(cl_context context, cl_bool normalized, cl_addressing_mode addressing, cl_filter_mode filter,
		     cl_sampler *result)
{
	struct vgpu_cl_create_sampler_parts parts;
	struct _cl_sampler *sampler;
	bool images = false;
	struct call call;
	cl_int status;
	void *at;

	if (!object_check(context, VGPU_CL_KIND_CONTEXT))
		return CL_INVALID_CONTEXT;
	if (normalized > CL_TRUE || addressing < CL_ADDRESS_NONE || addressing > CL_ADDRESS_MIRRORED_REPEAT ||
	    (filter != CL_FILTER_NEAREST && filter != CL_FILTER_LINEAR))
		return CL_INVALID_VALUE;
	for (cl_uint i = 0; i < context->device_count; i++)
		images |= context->devices[i]->images;
	if (!images)
		return CL_INVALID_OPERATION;
	sampler = object_new(VGPU_CL_KIND_SAMPLER);
	if (!sampler)
		return CL_OUT_OF_HOST_MEMORY;
	sampler->context = context;
	sampler->normalized = normalized;
	sampler->addressing = addressing;
	sampler->filter = filter;
	object_hold(context);
	at = call_begin(&call, vgpu_cl_bytes_of_create_sampler());
	status = call.status;
	if (at) {
		vgpu_cl_place_create_sampler(at, &parts);
		parts.message->sampler = sampler->object.handle;
		parts.message->context = context->object.handle;
		parts.message->normalized = normalized;
		parts.message->addressing = addressing;
		parts.message->filter = filter;
		status = call_wait(&call, &parts.message->header);
		call_end(&call);
	}
	if (status) {
		object_drop(sampler);
		vgpu_cl_bury();
		return status;
	}
	*result = sampler;
	return CL_SUCCESS;
}

API(cl_sampler, clCreateSampler, cl_context context, cl_bool normalized, cl_addressing_mode addressing,
    cl_filter_mode filter, cl_int *error)
{
	cl_sampler sampler = NULL;
	cl_int status = create(context, normalized, addressing, filter, &sampler);

	if (error)
		*error = status;
	return sampler;
}

API(cl_sampler, clCreateSamplerWithProperties, cl_context context, const cl_sampler_properties *properties,
    cl_int *error)
{
	cl_bool normalized = CL_TRUE;
	cl_addressing_mode addressing = CL_ADDRESS_CLAMP;
	cl_filter_mode filter = CL_FILTER_NEAREST;
	cl_sampler sampler = NULL;
	cl_int status = CL_SUCCESS;
	size_t count = 0;

	for (; !status && properties && properties[count]; count += 2) {
		cl_sampler_properties value = properties[count + 1];

		for (size_t i = 0; i < count; i += 2)
			if (properties[i] == properties[count])
				status = CL_INVALID_VALUE;
		switch (properties[count]) {
		case CL_SAMPLER_NORMALIZED_COORDS:
			normalized = (cl_bool)value;
			break;
		case CL_SAMPLER_ADDRESSING_MODE:
			addressing = (cl_addressing_mode)value;
			break;
		case CL_SAMPLER_FILTER_MODE:
			filter = (cl_filter_mode)value;
			break;
		default:
			status = CL_INVALID_VALUE;
		}
	}
	if (!status)
		status = create(context, normalized, addressing, filter, &sampler);
	if (sampler && properties) {
		sampler->properties_bytes = (count + 1) * sizeof(*properties);
		memcpy(sampler->properties, properties, sampler->properties_bytes);
	}
	if (error)
		*error = status;
	return sampler;
}

API(cl_int, clRetainSampler, cl_sampler sampler)
{
	return object_retain(sampler, VGPU_CL_KIND_SAMPLER, CL_INVALID_SAMPLER);
}

API(cl_int, clReleaseSampler, cl_sampler sampler)
{
	return object_release(sampler, VGPU_CL_KIND_SAMPLER, CL_INVALID_SAMPLER, NULL);
}

API(cl_int, clGetSamplerInfo, cl_sampler sampler, cl_sampler_info param, size_t room, void *target, size_t *returned)
{
	if (!object_check(sampler, VGPU_CL_KIND_SAMPLER))
		return CL_INVALID_SAMPLER;
	switch (param) {
	case CL_SAMPLER_REFERENCE_COUNT:
		GIVE(cl_uint, sampler->object.references);
	case CL_SAMPLER_CONTEXT:
		GIVE(cl_context, sampler->context);
	case CL_SAMPLER_NORMALIZED_COORDS:
		GIVE(cl_bool, sampler->normalized);
	case CL_SAMPLER_ADDRESSING_MODE:
		GIVE(cl_addressing_mode, sampler->addressing);
	case CL_SAMPLER_FILTER_MODE:
		GIVE(cl_filter_mode, sampler->filter);
	case CL_SAMPLER_PROPERTIES:
		return give(sampler->properties, sampler->properties_bytes, room, target, returned);
	}
	return CL_INVALID_VALUE;
}
