// SPDX-License-Identifier: Apache-2.0
/*
 * The OpenCL backend without rings, lease and sandbox.  A test plays the client: its messages come on
 * standard input, and the backend's messages go to standard output.
 * Frames both ways: u32 kind, u32 bytes, and that many bytes.
 *
 *	dispatch-driver LIBRARY MEMORY-BYTES WINDOW-BYTES
 */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl_icd.h>
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "executor/backend.h"
#include "executor/link.h"

/* Descriptors of a compiler, beyond those that the driver has open. */
#define JOB_FD		900
#define RESULT_FD	901

enum to_driver { REQUEST = 1, WRITE, READ, LEASE, STATE, QUIT, ROOM, FAIL };
enum from_driver { REPLY = 1, WINDOW, NEWS, MALFORMED, CLOSED };

struct lease {
	uint32_t lent;
	uint32_t rivals;
	uint64_t longest_ns;	/* may_submit() refuses commands that are expected to take longer */
};

struct state {
	uint32_t queued, under_way, kernel_id, full;
	uint64_t hint_ns, submitted, finished, failed, reserved, compilations;
};

struct vgpu_child {
	const char *library;
	int out, wake;
	pthread_mutex_t lock;
	struct lease lease;
	bool room;
	uint64_t reserved, limit, compilations;
	struct {
		uint64_t token;
		int status, exit_status, result;
	} compiled[256];
	unsigned int compiled_count;
};

struct compilation {
	struct vgpu_child *child;
	int job, result;
	uint64_t token;
};

static const struct vgpu_backend_operations *const operations = &vgpu_opencl_backend;

static void write_all(int file, const void *bytes, size_t count)
{
	const char *at = bytes;

	while (count) {
		ssize_t wrote = write(file, at, count);

		if (wrote < 0 && errno == EINTR)
			continue;
		if (wrote <= 0)
			_exit(4);
		at += wrote;
		count -= wrote;
	}
}

static void frame(struct vgpu_child *child, uint32_t kind, const void *bytes, uint32_t count)
{
	uint32_t head[2] = { kind, count };

	pthread_mutex_lock(&child->lock);
	write_all(child->out, head, sizeof(head));
	write_all(child->out, bytes, count);
	pthread_mutex_unlock(&child->lock);
}

static void reply(struct vgpu_child *child, const struct vgpu_message *message)
{
	frame(child, REPLY, message, message->bytes);
}

static bool reply_room(struct vgpu_child *child)
{
	return __atomic_load_n(&child->room, __ATOMIC_SEQ_CST);
}

static void wake(struct vgpu_child *child)
{
	uint64_t one = 1;

	if (write(child->wake, &one, sizeof(one)) < 0)
		_exit(4);
}

static bool may_submit(struct vgpu_child *child, uint64_t until_ns)
{
	return child->lease.lent && until_ns <= child->lease.longest_ns;
}

static bool rivals(struct vgpu_child *child)
{
	return child->lease.rivals;
}

static int reserve(struct vgpu_child *child, uint64_t bytes)
{
	if (bytes > child->limit - child->reserved)
		return ENOMEM;
	child->reserved += bytes;
	return 0;
}

static void release(struct vgpu_child *child, uint64_t bytes)
{
	child->reserved -= bytes;
}

static void *run_compiler(void *argument)
{
	struct compilation *compilation = argument;
	struct vgpu_child *child = compilation->child;
	int status = 0;
	pid_t process = fork();

	if (!process) {
		dup2(compilation->job, JOB_FD);
		dup2(compilation->result, RESULT_FD);
		execl("/proc/self/exe", "dispatch-driver", "--compile", child->library, NULL);
		_exit(127);
	}
	close(compilation->job);
	waitpid(process, &status, 0);
	pthread_mutex_lock(&child->lock);
	child->compiled[child->compiled_count].token = compilation->token;
	child->compiled[child->compiled_count].status =
		status && WEXITSTATUS(status) != VGPU_COMPILER_REFUSED ? EIO : 0;
	child->compiled[child->compiled_count].result = compilation->result;
	child->compiled[child->compiled_count++].exit_status = status;
	pthread_mutex_unlock(&child->lock);
	wake(child);
	free(compilation);
	return NULL;
}

static int compile(struct vgpu_child *child, int job, uint64_t token)
{
	struct compilation *compilation = malloc(sizeof(*compilation));
	pthread_t thread;

	child->compilations++;
	*compilation = (struct compilation){
		child, job, memfd_create("result", MFD_CLOEXEC), token,
	};
	if (pthread_create(&thread, NULL, run_compiler, compilation))
		abort();
	pthread_detach(thread);
	return 0;
}

static void say(struct vgpu_child *child, int level, const char *format, ...)
{
	va_list arguments;

	(void)child;
	if (level > 4 && !getenv("DISPATCH_DEBUG"))
		return;
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
}

static bool read_all(void *bytes, size_t count)
{
	char *at = bytes;

	while (count) {
		ssize_t got = read(STDIN_FILENO, at, count);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return false;
		at += got;
		count -= got;
	}
	return true;
}

static void take_compiled(struct vgpu_child *child, struct vgpu_backend *backend)
{
	pthread_mutex_lock(&child->lock);
	while (child->compiled_count) {
		unsigned int i = --child->compiled_count;
		uint64_t token = child->compiled[i].token;
		int status = child->compiled[i].status, exit_status = child->compiled[i].exit_status;
		int result = child->compiled[i].result;

		pthread_mutex_unlock(&child->lock);
		operations->compiled(backend, token, status, exit_status, result);
		close(result);
		pthread_mutex_lock(&child->lock);
	}
	pthread_mutex_unlock(&child->lock);
}

static void say_state(struct vgpu_child *child, struct vgpu_backend *backend)
{
	struct vgpu_backend_outlook outlook;
	struct state state;

	operations->outlook(backend, &outlook);
	state = (struct state){
		.queued = outlook.queued,
		.under_way = outlook.under_way,
		.kernel_id = outlook.kernel_id,
		.full = operations->full(backend),
		.hint_ns = outlook.hint_ns,
		.submitted = outlook.submitted,
		.finished = outlook.finished,
		.failed = outlook.failed,
		.reserved = child->reserved,
		.compilations = child->compilations,
	};
	frame(child, NEWS, &state, sizeof(state));
}

static uint32_t markers_to_fail;
static cl_api_clEnqueueMarkerWithWaitList real_marker;

static cl_int CL_API_CALL marker(cl_command_queue queue, cl_uint count, const cl_event *waits,
				 cl_event *event)
{
	if (!markers_to_fail)
		return real_marker(queue, count, waits, event);
	markers_to_fail--;
	return CL_OUT_OF_HOST_MEMORY;
}

/* Makes the library's next markers fail, like they do when memory runs out. */
static void fail_markers(struct vgpu_child *child, uint32_t count)
{
	void *library = dlopen(child->library, RTLD_NOW | RTLD_LOCAL);
	void *(CL_API_CALL *function)(const char *);
	clIcdGetPlatformIDsKHR_fn get;
	cl_icd_dispatch *dispatch;
	cl_platform_id platform;

	*(void **)&function = library ? dlsym(library, "clGetExtensionFunctionAddress") : NULL;
	*(void **)&get = function ? function("clIcdGetPlatformIDsKHR") : NULL;
	if (!get || get(1, &platform, NULL))
		exit(4);
	dispatch = *(cl_icd_dispatch **)platform;
	if (!real_marker)
		real_marker = dispatch->clEnqueueMarkerWithWaitList;
	dispatch->clEnqueueMarkerWithWaitList = marker;
	markers_to_fail = count;
}

/* Handles one frame of the test.  Returns false at the end. */
static bool take_frame(struct vgpu_child *child, struct vgpu_backend *backend, uint8_t *bulk)
{
	uint32_t head[2];
	uint64_t range[2];
	uint32_t count;
	uint8_t *bytes;
	bool more = true;

	if (!read_all(head, sizeof(head)))
		return false;
	bytes = aligned_alloc(8, (head[1] + 15) & ~7u);
	if (!bytes || !read_all(bytes, head[1]))
		exit(4);
	switch (head[0]) {
	case REQUEST:
		if (!operations->handle(backend, (struct vgpu_message *)bytes)) {
			const char *text = operations->malformed(backend);

			frame(child, MALFORMED, text, strlen(text));
		}
		break;
	case WRITE:
		memcpy(range, bytes, 8);
		memcpy(bulk + range[0], bytes + 8, head[1] - 8);
		break;
	case READ:
		memcpy(range, bytes, 16);
		frame(child, WINDOW, bulk + range[0], range[1]);
		break;
	case LEASE:
		memcpy(&child->lease, bytes, sizeof(child->lease));
		break;
	case STATE:
		say_state(child, backend);
		break;
	case FAIL:
		memcpy(&count, bytes, sizeof(count));
		fail_markers(child, count);
		break;
	case ROOM:
		__atomic_store_n(&child->room, bytes[0], __ATOMIC_SEQ_CST);
		break;
	default:
		more = false;
	}
	free(bytes);
	return more;
}

/* Returns the timeout for poll() until a time of the monotonic clock. */
static int timeout_ms(uint64_t until_ns)
{
	struct timespec now;
	uint64_t now_ns;

	if (until_ns == UINT64_MAX)
		return -1;
	clock_gettime(CLOCK_MONOTONIC, &now);
	now_ns = now.tv_sec * 1000000000ull + now.tv_nsec;
	return until_ns > now_ns ? (until_ns - now_ns + 999999) / 1000000 : 0;
}

static void serve(struct vgpu_child *child, struct vgpu_backend *backend, uint8_t *bulk)
{
	struct pollfd fds[2] = {
		{ .fd = STDIN_FILENO, .events = POLLIN },
		{ .fd = child->wake, .events = POLLIN },
	};
	uint64_t count, until_ns = UINT64_MAX;

	for (;;) {
		poll(fds, 2, timeout_ms(until_ns));
		if (fds[1].revents && read(child->wake, &count, sizeof(count)) < 0)
			exit(4);
		operations->collect(backend);
		take_compiled(child, backend);
		if (fds[0].revents && !take_frame(child, backend, bulk))
			break;
		operations->submit(backend);
		until_ns = operations->settle(backend);
	}
	while (!operations->quiesce(backend))
		if (read(child->wake, &count, sizeof(count)) < 0)
			exit(4);
	operations->close(backend);
	frame(child, CLOSED, &child->reserved, sizeof(child->reserved));
}

int main(int argc, char **argv)
{
	static struct vgpu_child child = {
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.lease = { .lent = 1, .longest_ns = UINT64_MAX },
		.room = true,
	};
	struct vgpu_backend_configuration configuration = {
		.services = { &child, reply, reply_room, wake, may_submit, rivals, reserve, release,
			      compile, say },
	};
	char reason[VGPU_REASON_BYTES] = "";
	struct vgpu_backend *backend;

	if (argc == 3 && !strcmp(argv[1], "--compile"))
		return vgpu_opencl_compile(argv[2], JOB_FD, RESULT_FD);
	if (argc != 4)
		return 2;
	child.library = configuration.library = argv[1];
	child.limit = configuration.memory_bytes = strtoull(argv[2], NULL, 0);
	configuration.window_bytes = strtoull(argv[3], NULL, 0);
	configuration.window = mmap(NULL, configuration.window_bytes, PROT_READ | PROT_WRITE,
				    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	child.out = dup(STDOUT_FILENO);
	child.wake = eventfd(0, EFD_CLOEXEC);
	if (operations->open(&configuration, &backend, reason)) {
		fprintf(stderr, "%s\n", reason);
		return 1;
	}
	serve(&child, backend, (uint8_t *)configuration.window + VGPU_WINDOW_BULK);
	return 0;
}
