// SPDX-License-Identifier: Apache-2.0
#include "executor/gate/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "executor/gate/cgroup.h"

/* The controller has to be enabled level by level.  A level that has processes may refuse. */
static int open_unified(struct vgpu_memory *memory, const struct vgpu_gate *gate)
{
	int above = openat(gate->base, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (above >= 0) {
		vgpu_cgroup_write(above, "cgroup.subtree_control", "+memory");
		close(above);
	}
	vgpu_cgroup_write(gate->base, "cgroup.subtree_control", "+memory");
	if (faccessat(gate->children, "memory.max", W_OK, 0))
		return errno;
	memory->directory = fcntl(gate->children, F_DUPFD_CLOEXEC, 0);
	memory->file = "memory.max";
	/* With swap, a child could push the memory of others out instead of its own. */
	vgpu_cgroup_write(gate->children, "memory.swap.max", "0");
	return memory->directory < 0 ? errno : 0;
}

static int open_v1(struct vgpu_memory *memory)
{
	char base[PATH_MAX];
	int error = vgpu_cgroup_find("memory", base);

	if (error)
		return error;
	vgpu_gate_sweep(base);
	vgpu_cgroup_name(memory->path, base);
	if (mkdir(memory->path, 0755) && errno != EEXIST) {
		error = errno;
		memory->path[0] = 0;
		return error;
	}
	memory->directory = open(memory->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	memory->procs = openat(memory->directory, "cgroup.procs", O_WRONLY | O_CLOEXEC);
	memory->file = "memory.limit_in_bytes";
	if (memory->directory >= 0 && memory->procs >= 0)
		return 0;
	error = errno;
	vgpu_memory_release(memory);
	return error;
}

int vgpu_memory_open(struct vgpu_memory *memory, const struct vgpu_gate *gate)
{
	*memory = (struct vgpu_memory){ .directory = -1, .procs = -1 };
	if (gate->kind == VGPU_GATE_CGROUP2 && !open_unified(memory, gate))
		return 0;
	return open_v1(memory);
}

int vgpu_memory_limit(struct vgpu_memory *memory, uint64_t bytes)
{
	char text[32];

	if (memory->directory < 0)
		return 0;
	snprintf(text, sizeof(text), "%llu", (unsigned long long)bytes);
	return vgpu_cgroup_write(memory->directory, memory->file, text);
}

void vgpu_memory_release(struct vgpu_memory *memory)
{
	if (memory->procs >= 0)
		close(memory->procs);
	if (memory->directory >= 0)
		close(memory->directory);
	if (memory->path[0])
		vgpu_gate_destroy(memory->path);
	*memory = (struct vgpu_memory){ .directory = -1, .procs = -1 };
}
