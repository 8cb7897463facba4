// SPDX-License-Identifier: Apache-2.0
/* Running native programs: the gate, timeslices, and the end.  native_start.c starts them. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <syslog.h>
#include <unistd.h>

#include "executor/log.h"
#include "executor/supervisor/native_start.h"
#include "executor/supervisor/supervisor.h"

/* Delay until a supervisor that did not get the gate's lock tries again. */
#define RETRY_NS	5000000u
/* With a shorter timeslice, switching would cost too much. */
#define TIMESLICE_MIN_US	100u

struct vgpu_native *vgpu_native_find(struct vgpu_supervisor *s, uint64_t number)
{
	for (unsigned int i = 0; i < VGPU_NATIVES_MAX; i++)
		if (s->natives.list[i].used && s->natives.list[i].number == number)
			return &s->natives.list[i];
	return NULL;
}

bool vgpu_natives_have(const struct vgpu_supervisor *s, pid_t pid)
{
	for (unsigned int i = 0; i < VGPU_NATIVES_MAX; i++)
		if (s->natives.list[i].used && s->natives.list[i].fence == pid)
			return true;
	return false;
}

bool vgpu_natives_are_some(const struct vgpu_supervisor *s)
{
	for (unsigned int i = 0; i < VGPU_NATIVES_MAX; i++)
		if (s->natives.list[i].used)
			return true;
	return false;
}

uint64_t vgpu_natives_bytes(const struct vgpu_supervisor *s)
{
	return s->natives.quota ? atomic_load(&s->natives.quota->used_bytes) : 0;
}

void vgpu_native_kill(struct vgpu_native *native, const char *reason)
{
	if (!native->killed && !native->reason[0])
		snprintf(native->reason, sizeof(native->reason), "%s", reason);
	native->killed = true;
	vgpu_enclosure_kill(&native->enclosure);
}

void vgpu_natives_kill_all(struct vgpu_supervisor *s, const char *reason)
{
	for (unsigned int i = 0; i < VGPU_NATIVES_MAX; i++)
		if (s->natives.list[i].used)
			vgpu_native_kill(&s->natives.list[i], reason);
}

/* ---- the programs' work on the GPU */

static uint32_t count_groups(const struct vgpu_native *native)
{
	uint32_t count = 0, known = native->page->objects.count;

	for (uint32_t i = 0; i < known && i < RM_OBJECTS_MAX; i++)
		count += rm_runs_kernels(&native->page->objects.list[i]);
	return count;
}

/*
 * All groups of a tenant share its timeslice.  The supervisor does not wait for the gate's lock,
 * because it may have to close its own gate meanwhile.  If another supervisor has the lock, the
 * remaining groups get their timeslices later.
 */
static void set_timeslices(struct vgpu_supervisor *s)
{
	struct vgpu_natives *natives = &s->natives;
	uint64_t groups = 0, each_us;

	natives->retry_ns = 0;
	for (unsigned int i = 0; i < VGPU_NATIVES_MAX; i++)
		if (natives->list[i].used && !natives->list[i].killed)
			groups += natives->list[i].groups = count_groups(&natives->list[i]);
	if (!groups || !natives->timeslice_us)
		return;
	each_us = natives->timeslice_us / groups;
	if (each_us < TIMESLICE_MIN_US)
		each_us = TIMESLICE_MIN_US;
	for (unsigned int i = 0; i < VGPU_NATIVES_MAX; i++) {
		struct vgpu_native *native = &natives->list[i];

		if (!native->used || native->killed || !native->groups)
			continue;
		if (!vgpu_channels_lock(s->gate_lock)) {
			natives->retry_ns = vgpu_now_ns() + RETRY_NS;
			return;
		}
		native->channels.open_us = each_us;
		vgpu_channels_timeslice(&native->channels, native->fence_pidfd);
		vgpu_channels_unlock(s->gate_lock);
	}
}

uint64_t vgpu_natives_retry(struct vgpu_supervisor *s, uint64_t now_ns)
{
	if (!s->natives.retry_ns || s->freezing)
		return UINT64_MAX;
	if (now_ns >= s->natives.retry_ns)
		set_timeslices(s);
	return s->natives.retry_ns ? s->natives.retry_ns : UINT64_MAX;
}

void vgpu_natives_configure(struct vgpu_supervisor *s, uint64_t timeslice_us, uint64_t memory_bytes)
{
	if (!s->natives.quota)
		return;
	atomic_store(&s->natives.quota->limit_bytes, memory_bytes);
	if (s->natives.timeslice_us == timeslice_us)
		return;
	s->natives.timeslice_us = timeslice_us;
	set_timeslices(s);
}

void vgpu_native_changed(struct vgpu_supervisor *s, unsigned int index)
{
	struct vgpu_native *native = &s->natives.list[index];
	bool works;
	eventfd_t count;

	if (!native->used)
		return;
	eventfd_read(native->changed, &count);
	works = count_groups(native) || atomic_load(&native->page->held);
	if (works != native->works) {
		native->works = works;
		vgpu_control_works(s, native->number, works);
	}
	if (count_groups(native) != native->groups)
		set_timeslices(s);
}

/* ---- the gate */

/*
 * If the driver does not confirm the change, the program may still run on the GPU, so the program
 * is killed.
 */
static bool turn(struct vgpu_supervisor *s, struct vgpu_native *native, bool close)
{
	if (vgpu_turn_channels(s, native->number, &native->channels, native->fence_pidfd, close))
		return true;
	native->runs_on = true;
	vgpu_native_kill(native, close ? "its work on the GPU could not be stopped" :
					 "its work on the GPU could not be restarted");
	return false;
}

bool vgpu_natives_close(struct vgpu_supervisor *s)
{
	bool all = true;

	for (unsigned int i = 0; i < VGPU_NATIVES_MAX; i++)
		if (s->natives.list[i].used)
			atomic_store(&s->natives.list[i].page->closing, 1);
	for (unsigned int i = 0; i < VGPU_NATIVES_MAX; i++) {
		struct vgpu_native *native = &s->natives.list[i];

		if (!native->used)
			continue;
		/*
		 * If the fence has ended, no process has the program's files open, so nothing can
		 * be closed: the program's work on the GPU ends when the program ends.  A killed
		 * program may take long to end inside the driver, so close the other programs
		 * without waiting for it.
		 */
		if (native->runs_on || !native->fence || atomic_load(&native->page->busy)) {
			all = false;
		} else if (!native->channels.closed) {
			if (!vgpu_channels_lock(s->gate_lock))
				return false;
			all = turn(s, native, true) && all;
			vgpu_channels_unlock(s->gate_lock);
		}
	}
	return all;
}

bool vgpu_natives_reopen(struct vgpu_supervisor *s)
{
	for (unsigned int i = 0; i < VGPU_NATIVES_MAX; i++) {
		struct vgpu_native *native = &s->natives.list[i];

		if (!native->used || native->killed || !native->fence)
			continue;
		if (native->channels.closed) {
			if (!vgpu_gate_lock(s))
				return false;
			turn(s, native, false);
			vgpu_channels_unlock(s->gate_lock);
		}
		atomic_store(&native->page->closing, 0);
		eventfd_write(native->reopened, 1);
	}
	return true;
}

void vgpu_natives_kill_open(struct vgpu_supervisor *s)
{
	for (unsigned int i = 0; i < VGPU_NATIVES_MAX; i++) {
		struct vgpu_native *native = &s->natives.list[i];

		if (!native->used || native->channels.closed)
			continue;
		vgpu_log(LOG_ERR, "native=%llu event=gate the program's channels did not close in time",
			 (unsigned long long)native->number);
		vgpu_native_kill(native, "its channels did not close in time");
		/*
		 * Kill the fence as well: it may be in a driver call that keeps the work on the GPU
		 * alive.
		 */
		if (native->fence)
			kill(native->fence, SIGKILL);
	}
}

/* ---- the end */

bool vgpu_natives_note_end(struct vgpu_supervisor *s, pid_t pid, int status)
{
	for (unsigned int i = 0; i < VGPU_NATIVES_MAX; i++) {
		struct vgpu_native *native = &s->natives.list[i];

		if (!native->used || native->fence != pid)
			continue;
		native->fence = 0;
		/* With status 0, no process has the filter any more. */
		if (status)
			vgpu_native_kill(native, "its fence has ended");
		return true;
	}
	return false;
}

static void count_back(struct vgpu_supervisor *s, const struct vgpu_native *native)
{
	uint64_t used = atomic_load(&s->natives.quota->used_bytes), bytes;

	do {
		bytes = atomic_load(&native->page->memory_bytes);
		if (bytes > used)
			bytes = used;
	} while (!atomic_compare_exchange_weak(&s->natives.quota->used_bytes, &used, used - bytes));
}

static void release(struct vgpu_supervisor *s, struct vgpu_native *native)
{
	const unsigned int index = (unsigned int)(native - s->natives.list);

	count_back(s, native);
	vgpu_watch(s, native->changed, 0, VGPU_EVENT_NATIVE, index);
	vgpu_native_forget(s, native);
	vgpu_log(LOG_INFO, "native=%llu event=exited program_pid=%d reason=\"%s\"",
		 (unsigned long long)native->number, native->pid, native->reason);
	native->used = false;
	vgpu_control_exited(s, native->number, native->killed ? SIGKILL : 0, native->reason);
	set_timeslices(s);
}

bool vgpu_natives_finish(struct vgpu_supervisor *s)
{
	bool all = true;

	for (unsigned int i = 0; i < VGPU_NATIVES_MAX; i++) {
		struct vgpu_native *native = &s->natives.list[i];

		if (!native->used || (native->fence && !native->killed))
			continue;
		if (native->fence) {
			/* The fence would end by itself, but the supervisor does not wait for that. */
			if (vgpu_enclosure_is_empty(&native->enclosure))
				kill(native->fence, SIGKILL);
			all = false;
			continue;
		}
		/*
		 * Processes that are left or were started meanwhile have no fence any more, so they
		 * are killed.
		 */
		if (!vgpu_enclosure_is_empty(&native->enclosure))
			vgpu_native_kill(native, "its fence has ended");
		if (vgpu_enclosure_remove(&native->enclosure))
			release(s, native);
		else
			all = false;
	}
	return all;
}
