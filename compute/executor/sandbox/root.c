// SPDX-License-Identifier: Apache-2.0
/*
 * An empty root directory with read-only libraries, and a tmpfs of limited size to write in.
 *
 * The trees are cloned before anything is mounted, because the new root covers /tmp, which may
 * contain some of them.  Flags are only added to a clone: in a user namespace, the flags of an
 * inherited mount must not be cleared.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "executor/sandbox/sandbox.h"

#define NEW_ROOT	"/tmp"
#define TREES		48u
/* Maximum number of symbolic links from a name to the file. */
#define LINKS		8u

struct tree {
	char path[PATH_MAX];
	char link[PATH_MAX];	/* target of a symbolic link, otherwise empty */
	int clone;		/* a detached mount if it is no link, otherwise -1 */
	bool directory;
};

struct trees {
	struct tree *list;
	unsigned int count;
};

static bool has(const struct trees *trees, const char *path)
{
	for (unsigned int i = 0; i < trees->count; i++) {
		size_t length = strlen(trees->list[i].path);

		if (!strncmp(trees->list[i].path, path, length) &&
		    (!path[length] || (path[length] == '/' && !trees->list[i].link[0])))
			return true;
	}
	return false;
}

/* Makes the target of a link an absolute path. */
static void resolve(const struct tree *tree, char *target)
{
	const char *end = strrchr(tree->path, '/');

	if (tree->link[0] == '/')
		snprintf(target, PATH_MAX, "%s", tree->link);
	else
		snprintf(target, PATH_MAX, "%.*s/%.2000s", (int)(end - tree->path), tree->path,
			 tree->link);
}

static int add(struct trees *trees, const char *path)
{
	char target[PATH_MAX];
	struct stat status;

	snprintf(target, sizeof(target), "%s", path);
	for (unsigned int links = 0; links < LINKS; links++) {
		struct tree *tree = &trees->list[trees->count];
		struct mount_attr attributes = {
			.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID,
		};

		if (lstat(target, &status) || has(trees, target))
			return 0;
		if (trees->count == TREES)
			return E2BIG;
		memset(tree, 0, sizeof(*tree));
		tree->clone = -1;
		snprintf(tree->path, sizeof(tree->path), "%s", target);
		if (S_ISLNK(status.st_mode)) {
			if (readlink(target, tree->link, sizeof(tree->link) - 1) < 0)
				return errno;
			trees->count++;
			resolve(tree, target);
			continue;
		}
		tree->directory = S_ISDIR(status.st_mode);
		if (!S_ISCHR(status.st_mode))
			attributes.attr_set |= MOUNT_ATTR_NODEV;
		tree->clone = open_tree(AT_FDCWD, target, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC |
							  (tree->directory ? AT_RECURSIVE : 0));
		if (tree->clone < 0)
			return errno;
		trees->count++;
		if (mount_setattr(tree->clone, "", AT_EMPTY_PATH | AT_RECURSIVE, &attributes,
				  sizeof(attributes)))
			return errno;
		return 0;
	}
	return ELOOP;
}

static int add_library(struct trees *trees, const char *library)
{
	char path[PATH_MAX];
	char *end;

	/* The loader searches its directories for a name without a slash. */
	if (!library || !strchr(library, '/') || !realpath(library, path))
		return 0;
	end = strrchr(path, '/');
	*end = 0;
	return end == path ? EINVAL : add(trees, path);
}

static int make_parents(const char *path)
{
	char partial[PATH_MAX];

	for (const char *slash = strchr(path + strlen(NEW_ROOT) + 1, '/'); slash;
	     slash = strchr(slash + 1, '/')) {
		snprintf(partial, sizeof(partial), "%.*s", (int)(slash - path), path);
		if (mkdir(partial, 0755) && errno != EEXIST)
			return errno;
	}
	return 0;
}

static int place(const struct tree *tree)
{
	char path[PATH_MAX + sizeof(NEW_ROOT)];
	int error, file;

	snprintf(path, sizeof(path), NEW_ROOT "%s", tree->path);
	error = make_parents(path);
	if (error)
		return error;
	if (tree->link[0])
		return symlink(tree->link, path) ? errno : 0;
	if (tree->directory) {
		if (mkdir(path, 0755) && errno != EEXIST)
			return errno;
	} else {
		file = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0444);
		if (file < 0)
			return errno;
		close(file);
	}
	return move_mount(tree->clone, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH) ? errno : 0;
}

static int enter(uint64_t scratch_bytes)
{
	struct mount_attr read_only = { .attr_set = MOUNT_ATTR_RDONLY };
	char options[96];

	snprintf(options, sizeof(options), "size=%llu,nr_inodes=16384,mode=0700",
		 (unsigned long long)scratch_bytes);
	if (mkdir(NEW_ROOT VGPU_SANDBOX_SCRATCH, 0755) ||
	    mount("tmpfs", NEW_ROOT VGPU_SANDBOX_SCRATCH, "tmpfs", MS_NOSUID | MS_NODEV, options) ||
	    mount_setattr(AT_FDCWD, NEW_ROOT, 0, &read_only, sizeof(read_only)) ||
	    chdir(NEW_ROOT) ||
	    /* pivot_root() stacks the old root on top of the new one, and umount2() then detaches it. */
	    syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/"))
		return errno;
	return 0;
}

static int add_gpu(struct trees *trees, const struct vgpu_sandbox *sandbox)
{
	char path[VGPU_SANDBOX_GPU_PATH];
	const char *file;
	int error = 0;

	for (unsigned int i = 0; !error && (file = vgpu_sandbox_gpu_file(sandbox, i, path)); i++)
		error = add(trees, file);
	return error;
}

int vgpu_sandbox_root(const struct vgpu_sandbox *sandbox)
{
	struct trees trees = { .list = calloc(TREES, sizeof(struct tree)) };
	const char *const *path;
	int error = trees.list ? 0 : ENOMEM;

	if (!error && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		error = errno;
	for (path = vgpu_sandbox_files; !error && *path; path++)
		error = add(&trees, *path);
	for (path = vgpu_sandbox_compiler_files; !error && sandbox->compiler && *path; path++)
		error = add(&trees, *path);
	if (!error)
		error = add_gpu(&trees, sandbox);
	if (!error)
		error = add_library(&trees, sandbox->library);
	if (!error && mount("tmpfs", NEW_ROOT, "tmpfs", MS_NOSUID | MS_NODEV,
			    "size=256k,nr_inodes=512,mode=0755"))
		error = errno;
	for (unsigned int i = 0; !error && i < trees.count; i++)
		error = place(&trees.list[i]);
	if (!error)
		error = enter(sandbox->scratch_bytes);
	for (unsigned int i = 0; i < trees.count; i++)
		if (trees.list[i].clone >= 0)
			close(trees.list[i].clone);
	free(trees.list);
	return error;
}
