// SPDX-License-Identifier: Apache-2.0
#include "native/contained.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * A Landlock domain permits every access that its ruleset does not handle, except renaming
 * between directories.  So the ruleset handles renaming, too, and then allows it everywhere.
 */
#define GOVERNED	(LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_REFER)

static int allow_renaming(int rules)
{
	struct landlock_path_beneath_attr below = { .allowed_access = LANDLOCK_ACCESS_FS_REFER };
	int error = 0;

	below.parent_fd = open("/", O_PATH | O_CLOEXEC);
	if (below.parent_fd < 0)
		return -errno;
	if (syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &below, 0))
		error = -errno;
	close(below.parent_fd);
	return error;
}

int vgpu_contain(void)
{
	struct landlock_ruleset_attr governed = { .handled_access_fs = GOVERNED };
	int rules = (int)syscall(SYS_landlock_create_ruleset, &governed, sizeof(governed.handled_access_fs), 0);
	int error;

	if (rules < 0)
		return -errno;
	error = allow_renaming(rules);
	if (!error && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		error = -errno;
	if (!error && syscall(SYS_landlock_restrict_self, rules, 0))
		error = -errno;
	close(rules);
	return error;
}
