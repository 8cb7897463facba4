// SPDX-License-Identifier: Apache-2.0
#include "executor/gate/tree.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unsigned int vgpu_tree_visit(pid_t pid, unsigned int depth,
			     void (*visit)(pid_t pid, void *context), void *context)
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
			visit(child, context);
			count += 1 + vgpu_tree_visit(child, depth - 1, visit, context);
		}
		fclose(children);
	}
	closedir(tasks);
	return count;
}

static char state_of(pid_t pid, const char *task)
{
	char path[64], line[512] = "";
	const char *end;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/task/%.16s/stat", pid, task);
	file = fopen(path, "re");
	if (!file)
		return 'X';
	if (!fgets(line, sizeof(line), file))
		line[0] = 0;
	fclose(file);
	/* The name between the parentheses is the process's own, and may hold anything. */
	end = strrchr(line, ')');
	return end && end[1] == ' ' ? end[2] : 'X';
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
