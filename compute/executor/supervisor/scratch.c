// SPDX-License-Identifier: Apache-2.0
/*
 * Scratch directories for children without a mount namespace.
 *
 * Any user can create files in /tmp, even under a name that a program is about to use.  So a
 * supervisor makes one directory with a name that nobody can guess, and in it a directory for each
 * child.  A tenant can replace its files by links at any moment, so files are opened and removed
 * only relative to the descriptor of their directory.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "executor/supervisor/supervisor.h"

#define DIRECTORY	(O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define NAME_BYTES	48u

int vgpu_scratch_open(struct vgpu_scratch *scratch)
{
	scratch->directory = -1;
	snprintf(scratch->path, sizeof(scratch->path), "/tmp/vgpu-XXXXXX");
	if (!mkdtemp(scratch->path))
		return errno;
	scratch->directory = open(scratch->path, DIRECTORY);
	/* A child with another user needs to pass through the directory. */
	return scratch->directory < 0 || fchmod(scratch->directory, 0711) ? errno : 0;
}

static void write_name(char *name, const struct vgpu_supervised *one)
{
	snprintf(name, NAME_BYTES, "%s-%llu", one->compiler ? "compiler" : "child",
		 (unsigned long long)one->number);
}

int vgpu_scratch_make(const struct vgpu_scratch *scratch, const struct vgpu_supervised *one,
		      bool as_nobody, char *path, size_t bytes)
{
	char name[NAME_BYTES];

	write_name(name, one);
	snprintf(path, bytes, "%s/%s", scratch->path, name);
	if (mkdirat(scratch->directory, name, 0700))
		return errno;
	/*
	 * If root lacks the capability to change the owner, it cannot change the child's user to
	 * nobody either.
	 */
	if (as_nobody && !geteuid() &&
	    fchownat(scratch->directory, name, VGPU_NOBODY, VGPU_NOBODY, AT_SYMLINK_NOFOLLOW) &&
	    errno != EPERM && errno != EINVAL) {
		int error = errno;

		unlinkat(scratch->directory, name, AT_REMOVEDIR);
		return error;
	}
	return 0;
}

/*
 * Removes one directory.  Subdirectories that are not empty are first moved to the top, under the
 * number @moved: a tenant can nest directories more deeply than the supervisor's descriptors or
 * stack permit.
 */
static void remove_flat(int top, const char *name, unsigned long long *moved)
{
	int file = openat(top, name, DIRECTORY);
	DIR *directory = file < 0 ? NULL : fdopendir(file);
	struct dirent *entry;
	char number[NAME_BYTES];

	while (directory && (entry = readdir(directory))) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") ||
		    !unlinkat(file, entry->d_name, 0) || !unlinkat(file, entry->d_name, AT_REMOVEDIR))
			continue;
		snprintf(number, sizeof(number), "moved-%llu", *moved);
		if (!renameat(file, entry->d_name, top, number))
			++*moved;
	}
	if (directory)
		closedir(directory);
	else if (file >= 0)
		close(file);
	if (unlinkat(top, name, AT_REMOVEDIR))
		unlinkat(top, name, 0);
}

static void remove_tree(int top, const char *name)
{
	static unsigned long long removed, moved;
	char number[NAME_BYTES];

	remove_flat(top, name, &moved);
	for (; removed < moved; removed++) {
		snprintf(number, sizeof(number), "moved-%llu", removed);
		remove_flat(top, number, &moved);
	}
}

void vgpu_scratch_remove(const struct vgpu_scratch *scratch, const struct vgpu_supervised *one)
{
	char name[NAME_BYTES];

	write_name(name, one);
	remove_tree(scratch->directory, name);
}

void vgpu_scratch_close(const struct vgpu_scratch *scratch)
{
	int file = openat(scratch->directory, ".", DIRECTORY);
	DIR *directory = file < 0 ? NULL : fdopendir(file);
	struct stat ours, named;
	struct dirent *entry;

	while (directory && (entry = readdir(directory)))
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
			remove_tree(scratch->directory, entry->d_name);
	if (directory)
		closedir(directory);
	/* The supervisor may have removed the directory before its janitor gets here. */
	if (!fstat(scratch->directory, &ours) &&
	    !fstatat(AT_FDCWD, scratch->path, &named, AT_SYMLINK_NOFOLLOW) &&
	    ours.st_dev == named.st_dev && ours.st_ino == named.st_ino)
		rmdir(scratch->path);
}
