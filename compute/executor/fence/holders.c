// SPDX-License-Identifier: Apache-2.0
#include "executor/fence/holders.h"

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

#define NAME_BYTES	128u

/* @names: targets of the links in /proc/self/fd.  Files with different names need not be compared. */
struct wanted {
	const int *files;
	unsigned int count;
	char names[RM_CLIENTS_NATIVE_MAX][NAME_BYTES];
	enum fence_held *held;
};

static bool read_name(int directory, const char *number, char *name)
{
	ssize_t length = readlinkat(directory, number, name, NAME_BYTES - 1);

	if (length < 0)
		return false;
	name[length] = '\0';
	return true;
}

/* Compares one descriptor of a process with all wanted files. */
static void compare(const struct vgpu_fence *fence, struct wanted *wanted, pid_t pid, const char *number,
		    const char *name)
{
	for (unsigned int i = 0; i < wanted->count; i++) {
		if (wanted->held[i] == FENCE_HELD_OUTSIDE || strcmp(wanted->names[i], name) ||
		    syscall(SYS_kcmp, getpid(), pid, KCMP_FILE, (unsigned long)wanted->files[i],
			    strtoul(number, NULL, 10)))
			continue;
		wanted->held[i] = fence_is_inside(fence, pid) ? FENCE_HELD_INSIDE : FENCE_HELD_OUTSIDE;
	}
}

static void look_into(const struct vgpu_fence *fence, struct wanted *wanted, pid_t pid)
{
	char path[32], name[NAME_BYTES];
	struct dirent *entry;
	DIR *files;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	files = opendir(path);
	while (files && (entry = readdir(files)))
		if (entry->d_name[0] != '.' && read_name(dirfd(files), entry->d_name, name))
			compare(fence, wanted, pid, entry->d_name, name);
	if (files)
		closedir(files);
}

void fence_find_holders(const struct vgpu_fence *fence, const int *files, unsigned int count,
			enum fence_held *held)
{
	struct wanted wanted = { .files = files, .count = count, .held = held };
	DIR *processes = opendir("/proc");
	struct dirent *entry;
	char number[16];
	int own = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	for (unsigned int i = 0; i < count; i++) {
		snprintf(number, sizeof(number), "%d", files[i]);
		held[i] = FENCE_HELD_BY_NOBODY;
		/* A file that cannot be searched for counts as held. */
		if (!processes || own < 0 || !read_name(own, number, wanted.names[i]))
			held[i] = FENCE_HELD_INSIDE;
	}
	while (processes && (entry = readdir(processes))) {
		pid_t pid = atoi(entry->d_name);

		if (pid > 0 && pid != getpid() && pid != getppid())
			look_into(fence, &wanted, pid);
	}
	if (processes)
		closedir(processes);
	if (own >= 0)
		close(own);
}
