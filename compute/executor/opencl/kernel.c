/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels.  Every program is built with -cl-kernel-arg-info, so the child knows which arguments are
 * handles.  The client gets this information once, when the kernel is created.
 */
#include <stdlib.h>
#include <string.h>

#include "program.h"

/* Maximum length of a reported name of a type or argument. */
#define WORD_MAX	1024u
#define TEXT_MAX	(32u << 10)

static void destroy_kernel(struct vgpu_backend *backend, struct object *object)
{
	struct kernel *kernel = (struct kernel *)object;

	if (kernel->library)
		backend->library->clReleaseKernel(kernel->library);
	for (uint32_t i = 0; kernel->set && i < kernel->argument_count; i++)
		free(kernel->set[i].data);
	free(kernel->set);
	free(kernel->kinds);
	free(kernel->name);
	if (kernel->program)
		kernel->program->kernels--;
	opencl_unref(backend, kernel->program);
}

/* Return: size of a scalar or vector type, by its name in OpenCL C; 0 for other types. */
static uint32_t bytes_of_type(const char *name)
{
	static const struct {
		const char *name;
		uint32_t bytes;
	} types[] = {
		{ "char", 1 }, { "uchar", 1 }, { "short", 2 }, { "ushort", 2 }, { "int", 4 },
		{ "uint", 4 }, { "long", 8 }, { "ulong", 8 }, { "half", 2 }, { "float", 4 },
		{ "double", 8 }, { "size_t", 8 }, { "ptrdiff_t", 8 }, { "intptr_t", 8 },
		{ "uintptr_t", 8 },
	};

	for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
		size_t length = strlen(types[i].name);
		unsigned long count;
		char *end;

		if (strncmp(name, types[i].name, length))
			continue;
		if (!name[length])
			return types[i].bytes;
		count = strtoul(name + length, &end, 10);
		if (*end || (count != 2 && count != 3 && count != 4 && count != 8 && count != 16))
			continue;
		return types[i].bytes * (count == 3 ? 4 : count);
	}
	return 0;
}

static void get_word(struct vgpu_backend *backend, const struct kernel *kernel, uint32_t i,
		     cl_kernel_arg_info param, char *word)
{
	word[0] = '\0';
	if (backend->library->clGetKernelArgInfo(kernel->library, i, param, WORD_MAX, word, NULL))
		word[0] = '\0';
	word[WORD_MAX - 1] = '\0';
}

/*
 * Only images have an access qualifier, because pipes are not supported.  The type's name is not
 * reliable: a program may define a type named image_row.
 */
static bool is_image(cl_kernel_arg_address_qualifier address,
		     cl_kernel_arg_access_qualifier access)
{
	return address == CL_KERNEL_ARG_ADDRESS_GLOBAL &&
	       (access == CL_KERNEL_ARG_ACCESS_READ_ONLY ||
		access == CL_KERNEL_ARG_ACCESS_WRITE_ONLY ||
		access == CL_KERNEL_ARG_ACCESS_READ_WRITE);
}

static void describe(struct vgpu_backend *backend, struct kernel *kernel, uint32_t i,
		     const char *type, struct vgpu_cl_argument_information *out)
{
	const cl_icd_dispatch *library = backend->library;
	cl_kernel_arg_address_qualifier address = 0;
	cl_kernel_arg_access_qualifier access = 0;
	cl_kernel_arg_type_qualifier qualifier = 0;

	*out = (struct vgpu_cl_argument_information){ .kind = VGPU_CL_ARGUMENT_KIND_UNKNOWN };
	if (library->clGetKernelArgInfo(kernel->library, i, CL_KERNEL_ARG_ADDRESS_QUALIFIER,
					sizeof(address), &address, NULL) ||
	    library->clGetKernelArgInfo(kernel->library, i, CL_KERNEL_ARG_ACCESS_QUALIFIER,
					sizeof(access), &access, NULL))
		return;
	library->clGetKernelArgInfo(kernel->library, i, CL_KERNEL_ARG_TYPE_QUALIFIER,
				    sizeof(qualifier), &qualifier, NULL);
	out->address = address;
	out->access = access;
	out->type = qualifier;
	if (address == CL_KERNEL_ARG_ADDRESS_LOCAL) {
		out->kind = VGPU_CL_ARGUMENT_KIND_LOCAL;
	} else if (is_image(address, access)) {
		out->kind = VGPU_CL_ARGUMENT_KIND_IMAGE;
	} else if (!strcmp(type, "sampler_t")) {
		out->kind = VGPU_CL_ARGUMENT_KIND_SAMPLER;
	} else if (address == CL_KERNEL_ARG_ADDRESS_GLOBAL ||
		   address == CL_KERNEL_ARG_ADDRESS_CONSTANT) {
		out->kind = VGPU_CL_ARGUMENT_KIND_BUFFER;
	} else {
		out->kind = VGPU_CL_ARGUMENT_KIND_VALUE;
		out->bytes = bytes_of_type(type);
	}
}

static void describe_work_group(struct vgpu_backend *backend, const struct kernel *kernel,
				uint32_t device, struct vgpu_cl_work_group *out)
{
	const cl_icd_dispatch *library = backend->library;
	cl_device_id id = backend->devices[device];
	size_t size = 0, required[3] = { 0 }, multiple = 0;
	cl_ulong local = 0, private_bytes = 0;

	library->clGetKernelWorkGroupInfo(kernel->library, id, CL_KERNEL_WORK_GROUP_SIZE,
					  sizeof(size), &size, NULL);
	library->clGetKernelWorkGroupInfo(kernel->library, id, CL_KERNEL_COMPILE_WORK_GROUP_SIZE,
					  sizeof(required), required, NULL);
	library->clGetKernelWorkGroupInfo(kernel->library, id, CL_KERNEL_LOCAL_MEM_SIZE,
					  sizeof(local), &local, NULL);
	library->clGetKernelWorkGroupInfo(kernel->library, id, CL_KERNEL_PRIVATE_MEM_SIZE,
					  sizeof(private_bytes), &private_bytes, NULL);
	library->clGetKernelWorkGroupInfo(kernel->library, id,
					  CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE,
					  sizeof(multiple), &multiple, NULL);
	*out = (struct vgpu_cl_work_group){
		.work_group_bytes = size,
		.required = { required[0], required[1], required[2] },
		.local_bytes = local,
		.private_bytes = private_bytes,
		.multiple = multiple,
	};
}

struct text {
	char bytes[TEXT_MAX];
	uint32_t used;
	bool overflow;
};

static void add_word(struct text *text, const char *word)
{
	size_t length = strlen(word) + 1;

	if (length > TEXT_MAX - text->used)
		text->overflow = true;
	if (text->overflow)
		return;
	memcpy(text->bytes + text->used, word, length);
	text->used += length;
}

/* Collects the kernel's attributes, and type name and name of each argument. */
static void collect_text(struct vgpu_backend *backend, const struct kernel *kernel,
			 struct text *text)
{
	char word[WORD_MAX];

	word[0] = '\0';
	backend->library->clGetKernelInfo(kernel->library, CL_KERNEL_ATTRIBUTES, sizeof(word), word,
					  NULL);
	word[WORD_MAX - 1] = '\0';
	add_word(text, word);
	for (uint32_t i = 0; i < kernel->argument_count; i++) {
		get_word(backend, kernel, i, CL_KERNEL_ARG_TYPE_NAME, word);
		add_word(text, word);
		get_word(backend, kernel, i, CL_KERNEL_ARG_NAME, word);
		add_word(text, word);
	}
	if (text->overflow)
		text->used = 0;
}

static void answer_kernel(struct vgpu_backend *backend, const struct vgpu_message *message,
			  struct kernel *kernel)
{
	struct context *context = kernel->program->context;
	struct vgpu_cl_create_kernel_answer_parts parts;
	struct text *text = calloc(1, sizeof(*text));
	char type[WORD_MAX];

	if (text)
		collect_text(backend, kernel, text);
	vgpu_cl_place_create_kernel_answer(backend->answer, kernel->argument_count,
					   context->device_count, text ? text->used : 0, &parts);
	for (uint32_t i = 0; i < kernel->argument_count; i++) {
		get_word(backend, kernel, i, CL_KERNEL_ARG_TYPE_NAME, type);
		describe(backend, kernel, i, type, &parts.arguments[i]);
		kernel->kinds[i] = parts.arguments[i].kind;
	}
	for (uint32_t i = 0; i < context->device_count; i++)
		describe_work_group(backend, kernel, context->devices[i], &parts.work_groups[i]);
	if (text)
		memcpy(parts.text, text->bytes, text->used);
	free(text);
	opencl_answer_placed(backend, message, CL_SUCCESS);
}

static cl_int make_kernel(struct vgpu_backend *backend, struct program *program,
			  struct kernel *kernel)
{
	cl_uint count = 0;
	cl_int error;

	if (!program->library)
		return CL_INVALID_PROGRAM_EXECUTABLE;
	kernel->library = backend->library->clCreateKernel(program->library, kernel->name, &error);
	if (error)
		return error;
	kernel->program = opencl_ref(program);
	program->kernels++;
	error = backend->library->clGetKernelInfo(kernel->library, CL_KERNEL_NUM_ARGS,
						  sizeof(count), &count, NULL);
	if (error)
		return error;
	if (count > VGPU_CL_ARGUMENTS_MAX)
		return CL_OUT_OF_RESOURCES;
	kernel->set = calloc(count ? count : 1, sizeof(*kernel->set));
	kernel->kinds = calloc(count ? count : 1, sizeof(*kernel->kinds));
	if (!kernel->set || !kernel->kinds)
		return CL_OUT_OF_HOST_MEMORY;
	kernel->argument_count = count;
	kernel->hash = opencl_hash(program->hash, kernel->name, strlen(kernel->name));
	return CL_SUCCESS;
}

bool opencl_create_kernel(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	struct vgpu_cl_create_kernel_view view;
	const struct vgpu_cl_create_kernel *m;
	struct vgpu_message silent = *message;
	struct program *program;
	struct kernel *kernel = NULL;
	cl_int error;

	if (!vgpu_cl_decode_create_kernel(message, message->bytes, backend->bulk_bytes, &view))
		return false;
	m = view.message;
	program = opencl_use(backend, VGPU_CL_KIND_PROGRAM, m->program, &error);
	if (program)
		kernel = opencl_new(backend, VGPU_CL_KIND_KERNEL, sizeof(*kernel), destroy_kernel);
	if (kernel)
		kernel->name = opencl_copy_blob(backend, m->name_offset, m->name_bytes, view.name,
						VGPU_CL_NAME_MAX, &error);
	if (kernel && !error)
		error = make_kernel(backend, program, kernel);
	if (!kernel || error || opencl_find(backend, VGPU_CL_KIND_KERNEL, m->kernel)) {
		opencl_created(backend, message, VGPU_CL_KIND_KERNEL, m->kernel, kernel, error);
		return true;
	}
	silent.call = 0;
	opencl_created(backend, &silent, VGPU_CL_KIND_KERNEL, m->kernel, kernel, CL_SUCCESS);
	if (opencl_find(backend, VGPU_CL_KIND_KERNEL, m->kernel) == &kernel->object)
		answer_kernel(backend, message, kernel);
	else
		opencl_answer(backend, message, CL_OUT_OF_HOST_MEMORY);
	return true;
}
