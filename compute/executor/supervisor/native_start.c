// SPDX-License-Identifier: Apache-2.0
/*
 * Starts native programs.  The launcher of a program has made one call, VGPU_FENCE_HELLO, which
 * waits for an answer.  From the waiting call the kernel reports which process the launcher is, and
 * the launcher does nothing meanwhile.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <syslog.h>
#include <unistd.h>

#include "executor/log.h"
#include "executor/supervisor/native_start.h"
#include "executor/supervisor/supervisor.h"

/* Maximum number of attempts to remove the cgroup of a killed supervisor, one per millisecond. */
#define SWEEPS	1000u

static bool refuse(char *reason, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vsnprintf(reason, VGPU_REASON_BYTES, format, list);
	va_end(list);
	return false;
}

static void *share(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

/* ---- native programs left over from supervisors that were killed with their fences */

static void end_left(const char *directory)
{
	int cgroup = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC), file;

	if (cgroup < 0)
		return;
	file = openat(cgroup, "cgroup.kill", O_WRONLY | O_CLOEXEC);
	if (file >= 0 && write(file, "1", 1) == 1)
		vgpu_log(LOG_WARNING, "event=native.left killed cgroup=%s", directory);
	if (file >= 0)
		close(file);
	close(cgroup);
	for (unsigned int i = 0; rmdir(directory) && errno == EBUSY && i < SWEEPS; i++)
		usleep(1000);
}

/* Each file is locked by the supervisor that wrote it as long as that supervisor lives. */
static void sweep(const char *path)
{
	DIR *files = opendir(path);
	struct dirent *entry;

	while (files && (entry = readdir(files))) {
		char directory[PATH_MAX] = "";
		int file;

		if (entry->d_name[0] == '.')
			continue;
		file = openat(dirfd(files), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
		if (file < 0)
			continue;
		if (!flock(file, LOCK_EX | LOCK_NB)) {
			if (read(file, directory, sizeof(directory) - 1) > 0)
				end_left(directory);
			unlinkat(dirfd(files), entry->d_name, 0);
		}
		close(file);
	}
	if (files)
		closedir(files);
}

int vgpu_natives_open(struct vgpu_natives *natives, const char *directory)
{
	natives->directory = directory;
	if (!directory)
		return 0;
	natives->quota = share(sizeof(*natives->quota));
	if (!natives->quota)
		return errno;
	if (mkdir(directory, 0700) && errno != EEXIST)
		return errno;
	sweep(directory);
	return 0;
}

static void name_file(const struct vgpu_supervisor *s, const struct vgpu_native *native, char *path)
{
	snprintf(path, PATH_MAX, "%s/%d-%llu", s->natives.directory, getpid(),
		 (unsigned long long)native->number);
}

/* The file gets its name only when it is locked and complete, because sweep() skips hidden files. */
static bool write_file(const struct vgpu_supervisor *s, struct vgpu_native *native)
{
	const char *text = native->enclosure.directory;
	char path[PATH_MAX], hidden[PATH_MAX];

	name_file(s, native, path);
	snprintf(hidden, sizeof(hidden), "%.3000s/.%d", s->natives.directory, getpid());
	native->file = open(hidden, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (native->file < 0)
		return false;
	if (!flock(native->file, LOCK_EX | LOCK_NB) &&
	    write(native->file, text, strlen(text)) == (ssize_t)strlen(text) && !rename(hidden, path))
		return true;
	unlink(hidden);
	return false;
}

/* ---- a start */

static bool has_device(const struct vgpu_supervisor *s)
{
	char path[32];
	int file;

	snprintf(path, sizeof(path), "/dev/nvidia%d", s->options.gpu);
	file = open(path, O_RDWR | O_CLOEXEC);
	if (file >= 0)
		close(file);
	return file >= 0;
}

/* Does this supervisor meet the requirements for native programs? */
static bool is_able(const struct vgpu_supervisor *s, char *reason)
{
	struct seccomp_notif_sizes sizes;

	if (s->gate_lock < 0)
		return refuse(reason, "native programs need an NVIDIA GPU with a gate (--nvidia)");
	if (geteuid())
		return refuse(reason, "the broker is not root, and cannot read a program's memory");
	if (!has_device(s))
		return refuse(reason, "/dev/nvidia%d cannot be opened: %s; is NVIDIA's driver loaded?", s->options.gpu,
			      strerror(errno));
	if (syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes) ||
	    sizes.seccomp_notif > sizeof(struct seccomp_notif) ||
	    sizes.seccomp_notif_resp > sizeof(struct seccomp_notif_resp))
		return refuse(reason, "the kernel's seccomp notifications are larger than this program supports");
	return s->natives.directory || refuse(reason, "the supervisor has no --natives directory");
}

/* Receives the launcher's call, if it is waiting. */
static bool take_hello(int listener, struct seccomp_notif *told, char *reason)
{
	struct pollfd ready = { .fd = listener, .events = POLLIN };

	memset(told, 0, sizeof(*told));
	if (poll(&ready, 1, 0) != 1 || !(ready.revents & POLLIN))
		return refuse(reason, "its launcher has ended");
	if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, told))
		return refuse(reason, "its launcher has ended: %s", strerror(errno));
	if (told->data.nr != SYS_ioctl || (uint32_t)told->data.args[1] != VGPU_FENCE_HELLO)
		return refuse(reason, "its first call was not the launcher's");
	return told->pid || refuse(reason, "it is in a PID namespace that is not visible here");
}

static bool is_waiting(int listener, const struct seccomp_notif *told)
{
	return !ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &told->id);
}

static void answer_hello(int listener, const struct seccomp_notif *told, int error)
{
	struct seccomp_notif_resp said = { .id = told->id, .error = -error };

	ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &said);
}

static bool enclose(struct vgpu_supervisor *s, struct vgpu_native *native, char *reason)
{
	char name[64];
	int error;

	/* With the time, so that it differs from what a dead supervisor with the same pid has left. */
	snprintf(name, sizeof(name), "vgpumgr-%d-%llu-%llx", getpid(), (unsigned long long)native->number,
		 (unsigned long long)vgpu_now_ns());
	error = vgpu_enclosure_make(&native->enclosure, native->pid, name);
	if (error)
		return refuse(reason, "a cgroup for it cannot be made: %s", strerror(error));
	return write_file(s, native) || refuse(reason, "%s: %s", s->natives.directory, strerror(errno));
}

static int fork_fence(const struct vgpu_supervisor *s, const struct vgpu_native *native, int listener)
{
	struct vgpu_fence fence = {
		.listener = listener, .changed = native->changed, .reopened = native->reopened,
		.kill = native->enclosure.kill, .procs = native->enclosure.cgroup,
		.cgroup = native->enclosure.path, .page = native->page, .quota = s->natives.quota,
		.gpu = s->options.gpu, .number = native->number,
	};
	pid_t pid;

	fence.supervisor = pidfd_open(getpid(), 0);
	if (fence.supervisor < 0)
		return -1;
	pid = fork();
	if (!pid)
		vgpu_fence_run(&fence);
	close(fence.supervisor);
	return pid;
}

static bool prepare_fence(struct vgpu_native *native, char *reason)
{
	native->changed = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	native->reopened = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	native->page = share(sizeof(*native->page));
	if (native->changed < 0 || native->reopened < 0 || !native->page)
		return refuse(reason, "there is no memory, or no descriptor, for its fence");
	native->channels.objects = &native->page->objects;
	return true;
}

void vgpu_native_forget(struct vgpu_supervisor *s, struct vgpu_native *native)
{
	char path[PATH_MAX];

	name_file(s, native, path);
	unlink(path);
	if (native->file >= 0)
		close(native->file);
	native->channels.objects = NULL;
	if (native->page)
		munmap(native->page, sizeof(*native->page));
	if (native->changed >= 0)
		close(native->changed);
	if (native->reopened >= 0)
		close(native->reopened);
	if (native->fence_pidfd >= 0)
		close(native->fence_pidfd);
}

static bool begin(struct vgpu_supervisor *s, struct vgpu_native *native, int listener,
		  const struct vgpu_supervisor_message *start, char *reason)
{
	struct seccomp_notif told;
	bool fine;

	if (!take_hello(listener, &told, reason))
		return false;
	native->pid = (pid_t)told.pid;
	fine = enclose(s, native, reason) && prepare_fence(native, reason) &&
	       (is_waiting(listener, &told) || refuse(reason, "its launcher has ended"));
	if (fine) {
		/*
		 * If the arbiter requested it, or if the gate has closed since the request was
		 * sent, the gate is closed for the program until the arbiter opens it for all
		 * programs.
		 */
		atomic_store(&native->page->closing, start->status || s->gate.closed ? 1 : 0);
		native->fence = fork_fence(s, native, listener);
		native->fence_pidfd = native->fence > 0 ? pidfd_open(native->fence, 0) : -1;
		fine = native->fence_pidfd >= 0 || refuse(reason, "its fence: %s", strerror(errno));
	}
	if (!fine) {
		if (native->fence > 0)
			kill(native->fence, SIGKILL);
		vgpu_enclosure_undo(&native->enclosure, native->pid);
		vgpu_native_forget(s, native);
	}
	answer_hello(listener, &told, fine ? 0 : EPERM);
	return fine;
}

bool vgpu_native_start(struct vgpu_supervisor *s, const struct vgpu_supervisor_message *start,
		       int listener, char *reason)
{
	struct vgpu_native *native = NULL;

	if (!is_able(s, reason))
		return false;
	for (unsigned int i = 0; i < VGPU_NATIVES_MAX && !native; i++)
		if (!s->natives.list[i].used)
			native = &s->natives.list[i];
	if (!native || vgpu_native_find(s, start->child))
		return refuse(reason, "there are too many native programs");
	*native = (struct vgpu_native){
		.number = start->child, .file = -1, .fence_pidfd = -1, .changed = -1, .reopened = -1,
		.enclosure = { .cgroup = -1, .kill = -1, .events = -1 },
	};
	vgpu_natives_configure(s, start->timeslice_us, start->memory_bytes);
	if (!begin(s, native, listener, start, reason))
		return false;
	native->used = true;
	vgpu_watch(s, native->changed, EPOLLIN, VGPU_EVENT_NATIVE, (unsigned int)(native - s->natives.list));
	vgpu_log(LOG_INFO, "native=%llu event=started program_pid=%d cgroup=%s",
		 (unsigned long long)native->number, native->pid, native->enclosure.path);
	return true;
}
