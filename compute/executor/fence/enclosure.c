// SPDX-License-Identifier: Apache-2.0
#include "executor/fence/enclosure.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "executor/gate/cgroup.h"

static void release(struct vgpu_enclosure *enclosure)
{
	int *descriptors[] = { &enclosure->cgroup, &enclosure->kill, &enclosure->events };

	for (unsigned int i = 0; i < 3; i++) {
		if (*descriptors[i] >= 0)
			close(*descriptors[i]);
		*descriptors[i] = -1;
	}
}

static int name_it(struct vgpu_enclosure *enclosure, pid_t pid, const char *name)
{
	char mount[PATH_MAX], own[PATH_MAX];
	int error = vgpu_cgroup_of(pid, NULL, mount, own);

	if (error)
		return error;
	/* The process's cgroup is outside of this process's cgroup namespace. */
	if (!strncmp(own, "/..", 3))
		return ENOENT;
	if (!strcmp(own, "/"))
		own[0] = '\0';
	if (strlen(mount) + strlen(own) + strlen(name) > PATH_MAX - 64)
		return ENAMETOOLONG;
	snprintf(enclosure->path, PATH_MAX, "%.2000s/%.200s", own, name);
	snprintf(enclosure->directory, PATH_MAX, "%.1800s%.2200s", mount, enclosure->path);
	return 0;
}

static int open_it(struct vgpu_enclosure *enclosure)
{
	enclosure->cgroup = open(enclosure->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (enclosure->cgroup < 0)
		return errno;
	enclosure->kill = openat(enclosure->cgroup, "cgroup.kill", O_WRONLY | O_CLOEXEC);
	if (enclosure->kill < 0)
		return errno;
	enclosure->events = openat(enclosure->cgroup, "cgroup.events", O_RDONLY | O_CLOEXEC);
	return enclosure->events < 0 ? errno : 0;
}

void vgpu_enclosure_undo(struct vgpu_enclosure *enclosure, pid_t pid)
{
	char number[16];
	int above;

	if (enclosure->cgroup < 0)
		return;
	snprintf(number, sizeof(number), "%d", pid);
	above = openat(enclosure->cgroup, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (above >= 0) {
		vgpu_cgroup_write(above, "cgroup.procs", number);
		close(above);
	}
	rmdir(enclosure->directory);
	release(enclosure);
}

int vgpu_enclosure_make(struct vgpu_enclosure *enclosure, pid_t pid, const char *name)
{
	char number[16];
	int error;

	*enclosure = (struct vgpu_enclosure){ .cgroup = -1, .kill = -1, .events = -1 };
	error = name_it(enclosure, pid, name);
	if (error)
		return error;
	if (mkdir(enclosure->directory, 0755))
		return errno;
	error = open_it(enclosure);
	snprintf(number, sizeof(number), "%d", pid);
	if (!error)
		error = vgpu_cgroup_write(enclosure->cgroup, "cgroup.procs", number);
	if (error) {
		rmdir(enclosure->directory);
		release(enclosure);
		return error;
	}
	return 0;
}

void vgpu_enclosure_kill(const struct vgpu_enclosure *enclosure)
{
	vgpu_cgroup_write(enclosure->cgroup, "cgroup.kill", "1");
}

bool vgpu_enclosure_is_empty(const struct vgpu_enclosure *enclosure)
{
	char text[256];
	ssize_t bytes = pread(enclosure->events, text, sizeof(text) - 1, 0);

	if (bytes < 0)
		return true;
	text[bytes] = '\0';
	return strstr(text, "populated 0");
}

static void remove_below(int directory, const char *name);

/* Removes the cgroups that the program made below its own. */
static void remove_children(int directory)
{
	int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *entries = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *entry;

	while (entries && (entry = readdir(entries)))
		if (entry->d_type == DT_DIR && entry->d_name[0] != '.')
			remove_below(directory, entry->d_name);
	if (entries)
		closedir(entries);
}

static void remove_below(int directory, const char *name)
{
	int below = openat(directory, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (below < 0)
		return;
	remove_children(below);
	close(below);
	unlinkat(directory, name, AT_REMOVEDIR);
}

bool vgpu_enclosure_remove(struct vgpu_enclosure *enclosure)
{
	if (!vgpu_enclosure_is_empty(enclosure))
		return false;
	remove_children(enclosure->cgroup);
	if (rmdir(enclosure->directory) && errno == EBUSY)
		return false;
	release(enclosure);
	return true;
}
