// SPDX-License-Identifier: Apache-2.0
/* Opens the child's descriptors, confines the child, and serves. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <syslog.h>
#include <unistd.h>

#include "executor/child/child.h"
#include "executor/child/futex.h"
#include "executor/log.h"

static void *map(int descriptor, uint64_t bytes, int protection, const char *what)
{
	void *memory = mmap(NULL, bytes, protection, MAP_SHARED, descriptor, 0);

	if (memory == MAP_FAILED)
		vgpu_child_end("%s: cannot be mapped: %s", what, strerror(errno));
	return memory;
}

static void open_pages(struct vgpu_child *child)
{
	child->window = map(VGPU_FD_WINDOW, child->options.window_bytes, PROT_READ | PROT_WRITE,
			    "the window");
	child->lease_page = map(VGPU_FD_LEASE, VGPU_LEASE_PAGE_BYTES, PROT_READ, "the lease page");
	child->stream_page = map(VGPU_FD_STREAM, VGPU_LEASE_PAGE_BYTES, PROT_READ | PROT_WRITE,
				 "the stream page");
	close(VGPU_FD_WINDOW);
	close(VGPU_FD_LEASE);
	close(VGPU_FD_STREAM);
	if (child->lease_page->magic != VGPU_LEASE_MAGIC ||
	    child->lease_page->version != VGPU_LEASE_VERSION)
		vgpu_child_end("the lease page has another version");
}

/* The main loop waits for several words at once, which requires Linux 5.16. */
static void check_kernel(void)
{
	struct futex_waitv word;
	_Atomic uint32_t value = 1;
	unsigned int count = 0;

	vgpu_futex_watch(&word, &count, &value, 0, false);
	if (vgpu_futex_wait_any(&word, count, UINT64_MAX) < 0 && errno == ENOSYS)
		vgpu_child_end("this kernel has no futex_waitv; Linux 5.16 or later is needed");
}

/*
 * Makes the child die with its supervisor, even if a change of credentials has cleared the
 * parent-death signal.
 */
static void die_with_supervisor(void)
{
	struct pollfd supervisor = { .fd = VGPU_FD_SUPERVISOR };

	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	if (poll(&supervisor, 1, 0) > 0 && supervisor.revents & (POLLHUP | POLLERR))
		_exit(1);
}

static void be_relayed(const struct vgpu_child *child)
{
	int listener, error;

	if (!child->options.sandbox.relayed)
		return;
	listener = vgpu_sandbox_listen();
	if (listener < 0)
		vgpu_child_end("calls to the driver cannot be relayed: %s", strerror(-listener));
	error = vgpu_link_relay(VGPU_FD_SUPERVISOR, listener);
	close(listener);
	if (error)
		vgpu_child_end("there is no relay: %s", strerror(error));
}

static void say_ready(const struct vgpu_child *child)
{
	struct vgpu_window *window = child->window;

	atomic_store(&window->child, VGPU_CHILD_READY);
	child->arbiter->wake_client(&window->child);
	atomic_fetch_add(&window->reply.bell, 1);
	child->arbiter->wake_client(&window->reply.bell);
}

static const struct vgpu_backend_operations *
find(const struct vgpu_backend_operations *const *backends, const char *name)
{
	for (; *backends; backends++)
		if (!strcmp((*backends)->name, name))
			return *backends;
	vgpu_child_end("there is no backend '%s'", name);
}

static _Noreturn void be_child(struct vgpu_child *child,
			       const struct vgpu_backend_operations *const *backends)
{
	char reason[VGPU_REASON_BYTES] = "";
	int error;

	child->operations = find(backends, child->options.backend);
	check_kernel();
	child->arbiter = vgpu_arbiter_find();
	open_pages(child);
	/* Record the slice's present generation: the child ends when it changes. */
	child->wake_seen = atomic_load(&child->lease_page->wake);
	vgpu_child_lease(child, VGPU_LEASE_LOOK);
	if (vgpu_sandbox_confine(&child->options.sandbox, reason))
		vgpu_child_end("%s", reason);
	die_with_supervisor();
	be_relayed(child);
	vgpu_request_ring_open(&child->requests, child->window, child->arbiter->wake_client);
	vgpu_reply_ring_open(&child->replies, child->window, child->arbiter->wake_client);
	error = vgpu_link_open(&child->link, VGPU_FD_SUPERVISOR, vgpu_child_wake, child);
	if (error)
		vgpu_child_end("the thread for the supervisor's answers: %s", strerror(error));
	error = child->arbiter->listen(vgpu_child_wake, child);
	if (error)
		vgpu_child_end("the thread for the module's stream: %s", strerror(error));

	const struct vgpu_backend_configuration configuration = {
		.library = child->options.library,
		.memory_bytes = child->options.memory_bytes,
		.window = child->window,
		.window_bytes = child->options.window_bytes,
		.services = vgpu_child_services(child),
	};

	error = child->operations->open(&configuration, &child->backend, reason);
	if (error)
		vgpu_child_end("%s: %s", reason, strerror(error));
	if (vgpu_sandbox_close(&child->options.sandbox, reason))
		vgpu_child_end("%s", reason);
	vgpu_link_say(VGPU_FD_SUPERVISOR, VGPU_LINK_SERVING, NULL);
	say_ready(child);
	vgpu_child_serve(child);
}

static int be_compiler(struct vgpu_child_options *options,
		       int (*compile)(const char *library, int job, int result))
{
	char reason[VGPU_REASON_BYTES] = "";

	if (!compile) {
		vgpu_log(LOG_ERR, "event=compiler this build has no compiler");
		return 2;
	}
	if (vgpu_sandbox_confine(&options->sandbox, reason)) {
		vgpu_log(LOG_ERR, "event=compiler %s", reason);
		return 2;
	}
	/*
	 * Repeat this call now: a change of user has cleared the setting, and seccomp will not
	 * permit the call later.
	 */
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	if (vgpu_sandbox_close(&options->sandbox, reason)) {
		vgpu_log(LOG_ERR, "event=compiler %s", reason);
		return 2;
	}
	return compile(options->library, VGPU_FD_JOB, VGPU_FD_RESULT);
}

int vgpu_child_main(int argc, char **argv, const struct vgpu_backend_operations *const *backends,
		    int (*compile)(const char *library, int job, int result))
{
	static struct vgpu_child child;

	vgpu_log_open("vgpu-child");
	vgpu_child_read_options(&child.options, argc, argv);
	if (child.options.compile)
		return be_compiler(&child.options, compile);
	be_child(&child, backends);
}
