// SPDX-License-Identifier: Apache-2.0
/*
 * The cgroups are BASE/vgpu-PID/children/N and BASE/vgpu-PID/compilers/N, in the unified hierarchy
 * or in the hierarchy of the v1 freezer.  BASE is the supervisor's own cgroup, or a cgroup that was
 * delegated to it.
 */
#include "executor/gate/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX	"vgpu-"

static int write_text(int directory, const char *name, const char *text)
{
	int file = openat(directory, name, O_WRONLY | O_CLOEXEC), error = 0;

	if (file < 0)
		return errno;
	if (write(file, text, strlen(text)) < 0)
		error = errno;
	close(file);
	return error;
}

/* Finds the mount point of a hierarchy: of type "cgroup2", or "cgroup" with the controller in its options. */
static bool find_mount(const char *controller, char *mount)
{
	const char *type = controller ? "cgroup" : "cgroup2";
	char line[4096], point[PATH_MAX], found[32], options[512];
	FILE *file = fopen("/proc/self/mountinfo", "re");
	bool is_found = false;

	while (file && !is_found && fgets(line, sizeof(line), file)) {
		const char *separator = strstr(line, " - ");

		if (!separator || sscanf(line, "%*s %*s %*s %*s %4095s", point) != 1 ||
		    sscanf(separator, " - %31s %*s %511s", found, options) != 2)
			continue;
		is_found = !strcmp(found, type) && (!controller || strstr(options, controller));
	}
	if (file)
		fclose(file);
	if (is_found)
		snprintf(mount, PATH_MAX, "%s", point);
	return is_found;
}

/* Finds the cgroup of a process. */
static bool find_own(pid_t pid, const char *controller, char *path)
{
	char line[4096], name[32];
	FILE *file;
	bool is_found = false;

	snprintf(name, sizeof(name), "/proc/%d/cgroup", pid);
	file = fopen(name, "re");

	while (file && !is_found && fgets(line, sizeof(line), file)) {
		char *controllers = strchr(line, ':');
		char *own = controllers ? strchr(controllers + 1, ':') : NULL;

		if (!own)
			continue;
		*own++ = 0;
		own[strcspn(own, "\n")] = 0;
		controllers++;
		is_found = controller ? strstr(controllers, controller) != NULL : !*controllers;
		if (is_found)
			snprintf(path, PATH_MAX, "%.4000s", own);
	}
	if (file)
		fclose(file);
	return is_found;
}

int vgpu_cgroup_of(pid_t pid, const char *controller, char *mount, char *own)
{
	return find_mount(controller, mount) && find_own(pid, controller, own) ? 0 : ENOENT;
}

int vgpu_cgroup_find(const char *controller, char *base)
{
	char mount[PATH_MAX], own[PATH_MAX];
	int error = vgpu_cgroup_of(getpid(), controller, mount, own);

	if (error)
		return error;
	if (!strcmp(own, "/"))
		own[0] = 0;
	if (snprintf(base, PATH_MAX, "%.2000s%.2000s", mount, own) >= PATH_MAX - 64)
		return ENAMETOOLONG;
	/* In a container, the mount may start at the process's own cgroup. */
	if (access(base, F_OK))
		snprintf(base, PATH_MAX, "%.4000s", mount);
	return 0;
}

int vgpu_cgroup_write(int directory, const char *name, const char *text)
{
	return write_text(directory, name, text);
}

static int make(int parent, const char *name)
{
	if (mkdirat(parent, name, 0755) && errno != EEXIST)
		return -1;
	return openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

void vgpu_cgroup_name(char *path, const char *base)
{
	snprintf(path, PATH_MAX, "%.4000s/" PREFIX "%d", base, getpid());
}

int vgpu_cgroup_open(struct vgpu_gate *gate, enum vgpu_gate_kind kind, const char *directory)
{
	bool unified = kind == VGPU_GATE_CGROUP2;
	char base[PATH_MAX];
	int error = 0;

	if (directory)
		snprintf(base, sizeof(base), "%.4000s", directory);
	else
		error = vgpu_cgroup_find(unified ? NULL : "freezer", base);
	if (error)
		return error;
	vgpu_gate_sweep(base);
	vgpu_cgroup_name(gate->path, base);
	if (mkdir(gate->path, 0755) && errno != EEXIST)
		error = errno;
	gate->kind = kind;
	gate->base = open(gate->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	gate->children = make(gate->base, "children");
	gate->compilers = make(gate->base, "compilers");
	gate->ending = unified ? -1 : make(gate->base, "ending");
	if (gate->children >= 0) {
		gate->freeze = openat(gate->children, unified ? "cgroup.freeze" : "freezer.state",
				      O_RDWR | O_CLOEXEC);
		if (unified) {
			gate->events = openat(gate->children, "cgroup.events", O_RDONLY | O_CLOEXEC);
			gate->stat = openat(gate->children, "cpu.stat", O_RDONLY | O_CLOEXEC);
		}
	}
	if (gate->children >= 0 && gate->compilers >= 0 && gate->freeze >= 0 &&
	    (unified ? gate->events : gate->ending) >= 0)
		return 0;
	error = error ? error : errno ? errno : ENOENT;
	vgpu_gate_release(gate);
	return error;
}

int vgpu_cgroup_add(struct vgpu_gate *gate, struct vgpu_gate_member *member)
{
	int directory = make(member->compiler ? gate->compilers : gate->children, member->name);

	if (directory < 0)
		return errno;
	if (gate->kind == VGPU_GATE_CGROUP2) {
		member->cgroup = directory;
		return 0;
	}
	member->procs = openat(directory, "cgroup.procs", O_RDWR | O_CLOEXEC);
	close(directory);
	return member->procs < 0 ? errno : 0;
}

static bool is_listed(int directory, int wanted)
{
	int procs = openat(directory, "cgroup.procs", O_RDONLY | O_CLOEXEC);
	FILE *list = procs < 0 ? NULL : fdopen(procs, "r");
	bool listed = false;
	int pid;

	while (list && !listed && fscanf(list, "%d", &pid) == 1)
		listed = pid == wanted;
	if (list)
		fclose(list);
	return listed;
}

/* Kills all processes in cgroup @directory, and moves them to cgroup @to unless @to is -1. */
static void kill_listed(int directory, int to)
{
	int procs = openat(directory, "cgroup.procs", O_RDONLY | O_CLOEXEC);
	FILE *list = procs < 0 ? NULL : fdopen(procs, "r");
	char number[16];
	int pid;

	if (!list)
		return;
	while (fscanf(list, "%d", &pid) == 1) {
		int process = pidfd_open(pid, 0);

		if (process < 0)
			continue;
		/* The process may have ended, and its PID may have been reused, before pidfd_open(). */
		if (is_listed(directory, pid) && !pidfd_send_signal(process, SIGKILL, NULL, 0) && to >= 0) {
			snprintf(number, sizeof(number), "%d", pid);
			write_text(to, "cgroup.procs", number);
		}
		close(process);
	}
	fclose(list);
}

/*
 * A frozen process of a v1 cgroup dies only when it is thawed, so it is moved to a cgroup that is
 * not frozen.
 */
static void kill_in_v1(struct vgpu_gate *gate, const struct vgpu_gate_member *member)
{
	int parent = member->compiler ? gate->compilers : gate->children;
	int directory = openat(parent, member->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int ending = openat(gate->ending, member->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (ending < 0 && gate->closed && !member->compiler)
		ending = make(gate->ending, member->name);
	if (directory >= 0) {
		kill_listed(directory, ending);
		close(directory);
	}
	if (ending >= 0) {
		kill_listed(ending, -1);
		close(ending);
	}
}

static bool remove_one(int parent, const char *name)
{
	return parent < 0 || !unlinkat(parent, name, AT_REMOVEDIR) || errno != EBUSY;
}

void vgpu_cgroup_kill(struct vgpu_gate *gate, const struct vgpu_gate_member *member)
{
	/* cgroup.kill exists since Linux 5.14; the child needs a later version anyway. */
	if (gate->kind == VGPU_GATE_CGROUP2)
		write_text(member->cgroup, "cgroup.kill", "1");
	else
		kill_in_v1(gate, member);
}

bool vgpu_cgroup_remove(struct vgpu_gate *gate, const struct vgpu_gate_member *member)
{
	bool removed = remove_one(member->compiler ? gate->compilers : gate->children, member->name);

	return (member->compiler || remove_one(gate->ending, member->name)) && removed;
}

int vgpu_cgroup_freeze(struct vgpu_gate *gate, bool freeze)
{
	const char *text = gate->kind == VGPU_GATE_CGROUP2 ? (freeze ? "1" : "0") :
							     (freeze ? "FROZEN" : "THAWED");

	return pwrite(gate->freeze, text, strlen(text), 0) < 0 ? errno : 0;
}

bool vgpu_cgroup_is_frozen(struct vgpu_gate *gate)
{
	char text[256];
	bool unified = gate->kind == VGPU_GATE_CGROUP2;
	ssize_t bytes = pread(unified ? gate->events : gate->freeze, text, sizeof(text) - 1, 0);

	if (bytes < 0)
		return false;
	text[bytes] = 0;
	return unified ? strstr(text, "frozen 1") != NULL : !strncmp(text, "FROZEN", 6);
}

static void remove_below(const char *path, bool kill_first)
{
	struct dirent *entry;
	DIR *directory = opendir(path);

	if (!directory)
		return;
	/*
	 * Killed processes in a frozen v1 cgroup die only when thawed.  The parent cgroup is
	 * already thawed.
	 */
	if (kill_first)
		write_text(dirfd(directory), "freezer.state", "THAWED");
	while ((entry = readdir(directory))) {
		char below[PATH_MAX];

		if (entry->d_type != DT_DIR || entry->d_name[0] == '.')
			continue;
		snprintf(below, sizeof(below), "%.3800s/%.255s", path, entry->d_name);
		remove_below(below, kill_first);
	}
	if (kill_first && write_text(dirfd(directory), "cgroup.kill", "1") == ENOENT)
		kill_listed(dirfd(directory), -1);
	closedir(directory);
	/* The kernel may need a moment to release processes that were just killed. */
	for (unsigned int i = 0; rmdir(path) && errno == EBUSY && kill_first && i < 1000; i++)
		usleep(1000);
}

void vgpu_gate_destroy(const char *path)
{
	remove_below(path, true);
}

void vgpu_gate_sweep(const char *path)
{
	struct dirent *entry;
	DIR *directory = opendir(path);

	while (directory && (entry = readdir(directory))) {
		char *end, below[PATH_MAX];
		long pid;

		if (strncmp(entry->d_name, PREFIX, strlen(PREFIX)))
			continue;
		pid = strtol(entry->d_name + strlen(PREFIX), &end, 10);
		if (*end || pid <= 0 || !kill((pid_t)pid, 0) || errno != ESRCH)
			continue;
		snprintf(below, sizeof(below), "%.3800s/%.255s", path, entry->d_name);
		remove_below(below, true);
	}
	if (directory)
		closedir(directory);
}
