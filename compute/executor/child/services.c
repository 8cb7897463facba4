// SPDX-License-Identifier: Apache-2.0
/* The services of the main loop for a backend: executor/backend.h. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "executor/child/child.h"
#include "executor/child/futex.h"
#include "executor/log.h"

void vgpu_child_wake(void *context)
{
	struct vgpu_child *child = context;

	atomic_fetch_add(&child->alarm, 1);
	if (atomic_load(&child->asleep))
		vgpu_futex_wake(&child->alarm, false);
}

static void wake(struct vgpu_child *child)
{
	vgpu_child_wake(child);
}

static void reply(struct vgpu_child *child, const struct vgpu_message *message)
{
	if (!vgpu_reply_ring_put(&child->replies, message))
		vgpu_child_end("replies: %s", atomic_load(&child->replies.broken));
	/* The main thread may be asleep without waiting for room, so wake it. */
	if (atomic_load(&child->replies.waiting))
		vgpu_child_wake(child);
}

static bool reply_room(struct vgpu_child *child)
{
	return !atomic_load(&child->replies.waiting);
}

static bool may_submit(struct vgpu_child *child, uint64_t until_ns)
{
	uint64_t expires_ns;

	if (!child->lease.busy || vgpu_child_lease(child, VGPU_LEASE_CHECK) != VGPU_LEASE_GO)
		return false;
	expires_ns = atomic_load(&child->lease_page->expires_ns);
	if (child->pieces && (expires_ns < until_ns || expires_ns - until_ns < child->lease.now_ns)) {
		child->unfit = true;
		return false;
	}
	child->pieces++;
	return true;
}

static bool rivals(struct vgpu_child *child)
{
	return atomic_load(&child->lease_page->expires_ns) != UINT64_MAX;
}

/*
 * Reports all memory that the supervisor counts for this child, including what the backend keeps
 * for later.
 */
static void show_memory(struct vgpu_child *child)
{
	atomic_store_explicit(&child->stream_page->memory_bytes, child->link.reserved_bytes,
			      memory_order_relaxed);
}

static int reserve(struct vgpu_child *child, uint64_t bytes)
{
	int error = vgpu_link_reserve(&child->link, bytes);

	show_memory(child);
	return error;
}

static void release(struct vgpu_child *child, uint64_t bytes)
{
	vgpu_link_release(&child->link, bytes);
	show_memory(child);
}

static int compile(struct vgpu_child *child, int job, uint64_t token)
{
	return vgpu_link_compile(&child->link, job, token);
}

static void log_line(struct vgpu_child *child, int level, const char *format, ...)
{
	va_list list;

	(void)child;
	va_start(list, format);
	vgpu_log_list(level, format, list);
	va_end(list);
}

struct vgpu_child_services vgpu_child_services(struct vgpu_child *child)
{
	return (struct vgpu_child_services){
		.child = child,
		.reply = reply,
		.reply_room = reply_room,
		.wake = wake,
		.may_submit = may_submit,
		.rivals = rivals,
		.reserve = reserve,
		.release = release,
		.compile = compile,
		.log = log_line,
	};
}

int vgpu_child_thread(pthread_t *thread, void *(*run)(void *argument), void *argument)
{
	sigset_t all, before;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(thread, NULL, run, argument);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}

_Noreturn void vgpu_child_end(const char *format, ...)
{
	char reason[VGPU_REASON_BYTES];
	va_list list;

	va_start(list, format);
	vsnprintf(reason, sizeof(reason), format, list);
	va_end(list);
	vgpu_link_say(VGPU_FD_SUPERVISOR, VGPU_LINK_FAILED, reason);
	_exit(1);
}
