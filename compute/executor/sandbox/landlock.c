// SPDX-License-Identifier: Apache-2.0
/*
 * Landlock confines files in addition to the mount namespace, and is the only protection of files
 * where there is no mount namespace.  Constants that are newer than the headers are defined here.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "executor/sandbox/sandbox.h"

#define READ	(LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define REFER	(1ull << 13)	/* from ABI 2 */
#define TRUNCATE	(1ull << 14)	/* from ABI 3 */
#define IOCTL	(1ull << 15)	/* from ABI 5 */
#define NET	3ull		/* bind and connect of TCP, from ABI 4 */
#define SCOPES	3ull		/* abstract unix sockets and signals, from ABI 6 */

struct ruleset {
	uint64_t files;
	uint64_t net;
	uint64_t scoped;
};

static int allow(int ruleset, const char *path, uint64_t access)
{
	struct landlock_path_beneath_attr rule = { .allowed_access = access };
	struct stat status;
	int error = 0;

	rule.parent_fd = open(path, O_PATH | O_CLOEXEC);
	if (rule.parent_fd < 0)
		return errno == ENOENT || errno == EACCES ? 0 : errno;
	if (fstat(rule.parent_fd, &status))
		error = errno;
	else if (!S_ISDIR(status.st_mode))
		rule.allowed_access &= LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_EXECUTE |
				       LANDLOCK_ACCESS_FS_WRITE_FILE | IOCTL;
	if (!error && syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0))
		error = errno;
	close(rule.parent_fd);
	return error;
}

static int allow_all(const struct vgpu_sandbox *sandbox, int ruleset, uint64_t handled)
{
	char gpu[VGPU_SANDBOX_GPU_PATH];
	const char *const *path;
	const char *file;
	char *library, *end;
	int error = 0;

	for (path = vgpu_sandbox_files; !error && *path; path++)
		error = allow(ruleset, *path, READ | LANDLOCK_ACCESS_FS_EXECUTE);
	for (path = vgpu_sandbox_compiler_files; !error && sandbox->compiler && *path; path++)
		error = allow(ruleset, *path, READ | LANDLOCK_ACCESS_FS_EXECUTE);
	if (!error)
		error = allow(ruleset, "/dev/null", READ | LANDLOCK_ACCESS_FS_WRITE_FILE);
	for (unsigned int i = 0; !error && (file = vgpu_sandbox_gpu_file(sandbox, i, gpu)); i++)
		error = allow(ruleset, file, READ | LANDLOCK_ACCESS_FS_WRITE_FILE | (handled & IOCTL));
	if (!error && sandbox->library && strchr(sandbox->library, '/')) {
		library = realpath(sandbox->library, NULL);
		if (library) {
			end = strrchr(library, '/');
			*end = 0;
			if (end != library)
				error = allow(ruleset, library, READ | LANDLOCK_ACCESS_FS_EXECUTE);
			free(library);
		}
	}
	if (!error)
		error = allow(ruleset, sandbox->scratch,
			      handled & ~(LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_BLOCK |
					  LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO));
	return error;
}

int vgpu_sandbox_landlock(const struct vgpu_sandbox *sandbox)
{
	long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
	struct ruleset attributes = { .files = (1ull << 13) - 1 };
	size_t size = sizeof(attributes.files);
	int ruleset, error;

	if (abi < 0)
		return errno;
	if (abi >= 2)
		attributes.files |= REFER;
	if (abi >= 3)
		attributes.files |= TRUNCATE;
	if (abi >= 4) {
		attributes.net = NET;
		size += sizeof(attributes.net);
	}
	if (abi >= 5)
		attributes.files |= IOCTL;
	if (abi >= 6) {
		attributes.scoped = SCOPES;
		size += sizeof(attributes.scoped);
	}
	ruleset = (int)syscall(SYS_landlock_create_ruleset, &attributes, size, 0);
	if (ruleset < 0)
		return errno;
	error = allow_all(sandbox, ruleset, attributes.files);
	if (!error && syscall(SYS_landlock_restrict_self, ruleset, 0))
		error = errno;
	close(ruleset);
	return error;
}
