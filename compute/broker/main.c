// SPDX-License-Identifier: Apache-2.0
/*
 * vgpu-broker --directory DIR --settings FD
 *
 * Shares one accelerator of this host between tenants.  DIR is for its sockets, and no other user
 * may be able to write there.  FD is a file with the first configuration, in the format of
 * "settings" in the control socket's `set`. `vgpumgr broker run` starts this program.  The program
 * ends on SIGTERM, on SIGINT and on the request to stop.
 *
 * Exit status: 0 stopped, 1 failed, 2 wrong configuration, 4 another broker uses DIR.  With 1, 2
 * and 4, one line on standard error has code, field and reason.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <syslog.h>
#include <unistd.h>

#include "broker/apply.h"
#include "broker/broker.h"
#include "broker/client.h"
#include "broker/control.h"
#include "broker/firmware.h"
#include "broker/json.h"
#include "broker/supervisor.h"
#include "broker/tenant.h"
#include "executor/log.h"
#include "executor/priority.h"

#define DOCUMENT_MAX_BYTES	(4u << 20)
/*
 * How long the broker waits for supervisors to exit before it kills them, and then how long it
 * waits for the killed supervisors.
 */
#define STOP_WITHIN_NS	5000000000ull

enum status {
	STATUS_STOPPED = 0,
	STATUS_FAILED = 1,
	STATUS_SETTINGS = 2,
	STATUS_RUNNING = 4,
};

static struct broker broker;

/* Print an error in the format of the command line. */
static int say(int status, const struct settings_fault *fault)
{
	fprintf(stderr, "vgpumgr: %s: %s%s%s\n", fault->code, fault->field, *fault->field ? ": " : "",
		fault->detail);
	return status;
}

static int fail(int status, const char *code, const char *what, int error)
{
	struct settings_fault fault = { 0 };

	settings_refuse(&fault, code, "", "%s: %s", what, strerror(error));
	return say(status, &fault);
}

static void arbiter_due(struct loop_timer *timer, uint64_t now_ns)
{
	(void)timer;
	vgpu_arbiter_timer(&broker.arbiter, now_ns);
}

/* ---- stop */

static void farewell_due(struct loop_timer *timer, uint64_t now_ns)
{
	static bool killed;
	struct tenant *tenant;

	if (killed) {
		loop_stop(&broker.loop);
		return;
	}
	killed = true;
	for (tenant = broker.tenants; tenant; tenant = tenant->next)
		supervisor_kill(&tenant->supervisor);
	loop_arm(&broker.loop, timer, now_ns + STOP_WITHIN_NS);
}

void broker_stop(struct broker *broker)
{
	struct tenant *tenant;

	if (broker->stopping)
		return;
	broker->stopping = true;
	vgpu_log(LOG_INFO, "event=broker.stopping");
	for (tenant = broker->tenants; tenant; tenant = tenant->next)
		tenant_leave(tenant);
	loop_arm(&broker->loop, &broker->farewell, loop_now_ns() + STOP_WITHIN_NS);
	broker_review_stop(broker);
}

void broker_review_stop(struct broker *broker)
{
	if (broker->stopping && !broker->tenants)
		loop_stop(&broker->loop);
}

static void signal_ready(struct loop_watch *watch, uint32_t events)
{
	struct signalfd_siginfo info;

	(void)events;
	if (read(watch->fd, &info, sizeof(info)) == sizeof(info))
		broker_stop(&broker);
}

static int watch_signals(void)
{
	static struct loop_watch watch = { .ready = signal_ready };
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	watch.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return watch.fd < 0 ? -errno : loop_add(&broker.loop, &watch, EPOLLIN);
}

/* ---- start */

/* Each client process takes a few descriptors of the broker. */
static void raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (!getrlimit(RLIMIT_NOFILE, &limit)) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

/* The lock is held until the process ends. */
static int lock_directory(const char *directory)
{
	int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	return flock(fd, LOCK_EX | LOCK_NB) ? -errno : 0;
}

/* Return the PID of the broker that uses @directory, or 0. */
static pid_t pid_of_other(const char *directory)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct ucred peer = { 0 };
	socklen_t size = sizeof(peer);
	int length = snprintf(address.sun_path, sizeof(address.sun_path), "%s/control", directory);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (length < (int)sizeof(address.sun_path) && fd >= 0 &&
	    !connect(fd, (struct sockaddr *)&address, sizeof(address)))
		getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
	if (fd >= 0)
		close(fd);
	return peer.pid;
}

static int say_running(const char *directory)
{
	struct settings_fault fault = { 0 };
	pid_t pid = pid_of_other(directory);
	char name[32] = "another broker";

	if (pid)
		snprintf(name, sizeof(name), "the broker with pid %d", pid);
	settings_refuse(&fault, "broker.running", "", "%s has this directory", name);
	return say(STATUS_RUNNING, &fault);
}

/*
 * Remove the sockets of a killed broker, so that programs do not connect to a tenant
 * that does not exist.
 */
static void remove_old_sockets(const char *directory)
{
	DIR *entries = opendir(directory);
	struct dirent *entry;

	while (entries && (entry = readdir(entries))) {
		size_t length = strlen(entry->d_name);

		if (length > 5 && !strcmp(entry->d_name + length - 5, ".sock"))
			unlinkat(dirfd(entries), entry->d_name, 0);
	}
	if (entries)
		closedir(entries);
}

static struct json *read_document(int fd, char **text, const char **error)
{
	size_t used = 0;
	ssize_t got;

	*text = malloc(DOCUMENT_MAX_BYTES);
	*error = "it cannot be read";
	if (!*text)
		return NULL;
	while (used < DOCUMENT_MAX_BYTES) {
		got = read(fd, *text + used, DOCUMENT_MAX_BYTES - used);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return NULL;
		if (!got)
			return json_parse(*text, used, error);
		used += (size_t)got;
	}
	*error = "it is too large";
	return NULL;
}

static bool configure(int fd, struct settings_fault *fault)
{
	struct settings settings = { 0 };
	enum vgpu_sched_field refused;
	struct json *document;
	const char *error;
	uint64_t now_ns;
	char *text;
	bool done = false;

	document = read_document(fd, &text, &error);
	close(fd);
	if (!document) {
		settings_refuse(fault, "request.invalid", "", "the configuration is no document: %s", error);
		free(text);
		return false;
	}
	if (settings_read(&settings, document, fault)) {
		now_ns = loop_now_ns();
		refused = vgpu_sched_init(&broker.sched, &settings.engine, now_ns);
		if (refused) {
			settings_refuse(fault, "field.invalid", "engine", "%s is not accepted",
					settings_field_name(refused));
		} else {
			vgpu_arbiter_init(&broker.arbiter, &broker.sched, &tenant_arbiter_ops,
					  &settings.arbiter, now_ns);
			done = apply(&broker, &settings, fault);
		}
	}
	settings_free(&settings);
	json_free(document);
	free(text);
	return done;
}

/* Notify systemd if it expects a notification (sd_notify(3)). */
static void notify_ready(void)
{
	static const char text[] = "READY=1";
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const char *path = getenv("NOTIFY_SOCKET");
	size_t length = path ? strlen(path) : 0;
	int fd;

	if (length < 2 || length >= sizeof(address.sun_path))
		return;
	memcpy(address.sun_path, path, length);
	if (address.sun_path[0] == '@')
		address.sun_path[0] = '\0';
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	if (sendto(fd, text, sizeof(text) - 1, MSG_NOSIGNAL, (struct sockaddr *)&address,
		   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)) < 0)
		vgpu_log(LOG_WARNING, "event=notify.failed %m");
	close(fd);
}

static int usage(void)
{
	fprintf(stderr, "vgpu-broker: usage: vgpu-broker --directory DIR --settings FD; see `vgpumgr broker run`\n");
	return STATUS_SETTINGS;
}

int main(int count, char **arguments)
{
	struct settings_fault fault = { 0 };
	char *end;
	long settings;
	int error;

	if (count != 5 || strcmp(arguments[1], "--directory") || strcmp(arguments[3], "--settings"))
		return usage();
	settings = strtol(arguments[4], &end, 10);
	if (end == arguments[4] || *end || settings < 0 || settings > 1000000)
		return usage();
	vgpu_log_open("vgpu-broker");
	raise_descriptor_limit();
	error = vgpu_priority_raise();
	if (error)
		vgpu_log(LOG_NOTICE, "event=priority.ordinary hand-overs are slow while all processors are busy: %s",
			 strerror(-error));
	broker.directory = arguments[2];
	broker.started_ns = loop_now_ns();
	broker.arbiter_timer.due = arbiter_due;
	broker.firmware_timer.due = firmware_due;
	broker.farewell.due = farewell_due;
	broker.refusals.due = client_refusals_due;
	error = lock_directory(broker.directory);
	if (error == -EWOULDBLOCK)
		return say_running(broker.directory);
	if (error)
		return fail(STATUS_FAILED, "broker.failed", broker.directory, -error);
	remove_old_sockets(broker.directory);
	error = loop_init(&broker.loop);
	error = error ? error : watch_signals();
	error = error ? error : control_open(&broker);
	if (error)
		return fail(STATUS_FAILED, "broker.failed", "it cannot start", -error);
	if (!configure((int)settings, &fault))
		return say(STATUS_SETTINGS, &fault);
	vgpu_log(LOG_INFO, "event=ready directory=%s tenants=%u", broker.directory,
		 broker.settings.tenant_count);
	notify_ready();
	loop_run(&broker.loop);
	vgpu_log(LOG_INFO, "event=broker.stopped");
	return STATUS_STOPPED;
}
