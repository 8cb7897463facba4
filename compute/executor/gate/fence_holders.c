// SPDX-License-Identifier: Apache-2.0
#include "executor/gate/fence_holders.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/kcmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

bool fence_is_inside(const struct vgpu_fence *fence, pid_t pid)
{
	size_t length = strlen(fence->cgroup);
	char name[32], line[PATH_MAX + 8];
	bool inside = false;
	FILE *file;

	snprintf(name, sizeof(name), "/proc/%d/cgroup", pid);
	file = fopen(name, "re");
	while (file && !inside && fgets(line, sizeof(line), file))
		inside = !strncmp(line, "0::", 3) && !strncmp(line + 3, fence->cgroup, length) &&
			 (line[3 + length] == '\n' || line[3 + length] == '/');
	if (file)
		fclose(file);
	return inside;
}

/* Files with another name need not be compared. */
static bool has_name(int directory, const char *number, const char *wanted)
{
	char name[PATH_MAX];
	ssize_t length = readlinkat(directory, number, name, sizeof(name) - 1);

	if (length < 0)
		return false;
	name[length] = '\0';
	return !strcmp(name, wanted);
}

static bool holds(pid_t pid, int file, const char *name)
{
	char path[32];
	struct dirent *entry;
	bool found = false;
	DIR *files;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	files = opendir(path);
	while (files && !found && (entry = readdir(files)))
		found = entry->d_name[0] != '.' && has_name(dirfd(files), entry->d_name, name) &&
			!syscall(SYS_kcmp, getpid(), pid, KCMP_FILE, (unsigned long)file,
				 strtoul(entry->d_name, NULL, 10));
	if (files)
		closedir(files);
	return found;
}

enum fence_held fence_find_holder(const struct vgpu_fence *fence, int file)
{
	enum fence_held found = FENCE_HELD_BY_NOBODY;
	char own[32], name[PATH_MAX];
	struct dirent *entry;
	DIR *processes;
	ssize_t length;

	snprintf(own, sizeof(own), "/proc/self/fd/%d", file);
	length = readlink(own, name, sizeof(name) - 1);
	if (length < 0)
		return FENCE_HELD_INSIDE;
	name[length] = '\0';
	processes = opendir("/proc");
	if (!processes)
		return FENCE_HELD_INSIDE;
	while (found != FENCE_HELD_OUTSIDE && (entry = readdir(processes))) {
		pid_t pid = atoi(entry->d_name);

		if (pid <= 0 || pid == getpid() || pid == getppid() || !holds(pid, file, name))
			continue;
		found = fence_is_inside(fence, pid) ? FENCE_HELD_INSIDE : FENCE_HELD_OUTSIDE;
	}
	closedir(processes);
	return found;
}
