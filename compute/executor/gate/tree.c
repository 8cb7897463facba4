// SPDX-License-Identifier: Apache-2.0
#include "executor/gate/tree.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

/* Reads the part of a stat file after the process name; "" if there is none. */
static void read_stat(const char *path, char *rest, size_t bytes)
{
	char line[512] = "";
	const char *end;
	FILE *file = fopen(path, "re");

	rest[0] = 0;
	if (!file)
		return;
	if (!fgets(line, sizeof(line), file))
		line[0] = 0;
	fclose(file);
	/* The process chooses the name between the parentheses, which may contain any character. */
	end = strrchr(line, ')');
	if (end && end[1] == ' ')
		snprintf(rest, bytes, "%s", end + 2);
}

static pid_t parent_of(pid_t pid)
{
	char path[64], rest[512];
	int parent;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	read_stat(path, rest, sizeof(rest));
	return sscanf(rest, "%*c %d", &parent) == 1 ? parent : -1;
}

/*
 * Both PIDs are valid as long as neither process has been reaped.  So check last that neither has
 * been reaped.
 */
static bool is_child(pid_t child, int process, pid_t parent, int parent_process)
{
	return parent_of(child) == parent && !pidfd_send_signal(process, 0, NULL, 0) &&
	       !pidfd_send_signal(parent_process, 0, NULL, 0);
}

unsigned int vgpu_tree_visit(pid_t pid, int process, unsigned int depth,
			     void (*visit)(pid_t pid, int process, void *context), void *context)
{
	char path[64];
	struct dirent *task;
	unsigned int count = 0;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	tasks = depth ? opendir(path) : NULL;
	if (!tasks)
		return 0;
	while ((task = readdir(tasks))) {
		char file[128];
		FILE *children;
		int child;

		if (task->d_name[0] == '.')
			continue;
		snprintf(file, sizeof(file), "/proc/%d/task/%.16s/children", pid, task->d_name);
		children = fopen(file, "re");
		if (!children)
			continue;
		while (fscanf(children, "%d", &child) == 1) {
			int found = pidfd_open(child, 0);

			if (found < 0)
				continue;
			if (is_child(child, found, pid, process)) {
				visit(child, found, context);
				count += 1 + vgpu_tree_visit(child, found, depth - 1, visit, context);
			}
			close(found);
		}
		fclose(children);
	}
	closedir(tasks);
	return count;
}

static char state_of(pid_t pid, const char *task)
{
	char path[64], rest[512];

	snprintf(path, sizeof(path), "/proc/%d/task/%.16s/stat", pid, task);
	read_stat(path, rest, sizeof(rest));
	return rest[0] ? rest[0] : 'X';
}

bool vgpu_tree_is_stopped(pid_t pid)
{
	char path[64];
	struct dirent *task;
	bool stopped = true;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	tasks = opendir(path);
	if (!tasks)
		return true;
	while (stopped && (task = readdir(tasks)))
		if (task->d_name[0] != '.')
			stopped = strchr("TtXZ", state_of(pid, task->d_name));
	closedir(tasks);
	return stopped;
}
