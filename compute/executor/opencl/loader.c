/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "loader.h"

struct loader {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t change;
	struct build *wanted, **wanted_end;
	struct build *loaded, **loaded_end;
	atomic_bool some;	/* @loaded is not empty */
	bool stop;
};

static void load(struct vgpu_backend *backend, struct build *build)
{
	const cl_icd_dispatch *library = backend->library;
	const unsigned char *binaries[VGPU_CL_DEVICES_MAX];
	cl_device_id devices[VGPU_CL_DEVICES_MAX];
	size_t sizes[VGPU_CL_DEVICES_MAX];
	cl_uint count = 0;

	for (uint32_t i = 0; i < build->device_count; i++) {
		if (!build->devices[i].binary_bytes)
			continue;
		devices[count] = build->library_devices[i];
		binaries[count] = build->devices[i].binary;
		sizes[count++] = build->devices[i].binary_bytes;
	}
	build->library = library->clCreateProgramWithBinary(build->context, count, devices, sizes,
							    binaries, NULL, &build->load_error);
	if (build->load_error)
		return;
	build->load_error = library->clBuildProgram(build->library, count, devices,
						    "-cl-kernel-arg-info", NULL, NULL);
	if (!build->load_error)
		return;
	library->clReleaseProgram(build->library);
	build->library = NULL;
}

static void append(struct build ***end, struct build *build)
{
	build->next = NULL;
	**end = build;
	*end = &build->next;
}

static void *run(void *argument)
{
	struct vgpu_backend *backend = argument;
	struct loader *loader = backend->loader;
	struct build *build;

	pthread_mutex_lock(&loader->lock);
	for (;;) {
		while (!loader->wanted && !loader->stop)
			pthread_cond_wait(&loader->change, &loader->lock);
		build = loader->wanted;
		if (!build)
			break;
		loader->wanted = build->next;
		if (!loader->wanted)
			loader->wanted_end = &loader->wanted;
		if (!loader->stop) {
			pthread_mutex_unlock(&loader->lock);
			load(backend, build);
			pthread_mutex_lock(&loader->lock);
		}
		append(&loader->loaded_end, build);
		atomic_store(&loader->some, true);
		backend->services.wake(backend->services.child);
	}
	pthread_mutex_unlock(&loader->lock);
	return NULL;
}

bool opencl_loader_open(struct vgpu_backend *backend)
{
	struct loader *loader = calloc(1, sizeof(*loader));

	if (!loader)
		return false;
	pthread_mutex_init(&loader->lock, NULL);
	pthread_cond_init(&loader->change, NULL);
	loader->wanted_end = &loader->wanted;
	loader->loaded_end = &loader->loaded;
	backend->loader = loader;
	if (!pthread_create(&loader->thread, NULL, run, backend))
		return true;
	free(loader);
	backend->loader = NULL;
	return false;
}

void opencl_loader_close(struct vgpu_backend *backend)
{
	struct loader *loader = backend->loader;

	if (!loader)
		return;
	pthread_mutex_lock(&loader->lock);
	loader->stop = true;
	pthread_cond_signal(&loader->change);
	pthread_mutex_unlock(&loader->lock);
	pthread_join(loader->thread, NULL);
}

void opencl_load(struct vgpu_backend *backend, struct build *build)
{
	struct loader *loader = backend->loader;

	pthread_mutex_lock(&loader->lock);
	append(&loader->wanted_end, build);
	pthread_cond_signal(&loader->change);
	pthread_mutex_unlock(&loader->lock);
}

struct build *opencl_loaded(struct vgpu_backend *backend)
{
	struct loader *loader = backend->loader;
	struct build *build;

	if (!loader || !atomic_load_explicit(&loader->some, memory_order_relaxed))
		return NULL;
	pthread_mutex_lock(&loader->lock);
	build = loader->loaded;
	if (build) {
		loader->loaded = build->next;
		if (!loader->loaded)
			loader->loaded_end = &loader->loaded;
	}
	atomic_store(&loader->some, loader->loaded != NULL);
	pthread_mutex_unlock(&loader->lock);
	return build;
}
