// SPDX-License-Identifier: Apache-2.0
/* The main loop of a child: executor/backend.h describes one round. */
#include <errno.h>
#include <syslog.h>

#include "executor/child/child.h"
#include "executor/child/futex.h"
#include "executor/log.h"

/*
 * Maximum number of requests per round, so that a client that floods the ring delays lease
 * operations only for a limited time.
 */
#define REQUESTS_PER_ROUND	64u
/*
 * Maximum of the spin counter.  A successful spin sets the counter to this value, a failed spin
 * decrements it, and a short sleep increments it.  While it is negative, the child does not spin.
 */
#define SPINS_MOST		4
/* Maximum number of lease operations per round. */
#define TURNS_PER_ROUND		8u

static void look_out(struct vgpu_child *child)
{
	struct vgpu_stream_page *page = child->stream_page;
	struct vgpu_backend_outlook *outlook = &child->outlook;
	uint64_t submitted = outlook->submitted, finished = outlook->finished;
	uint64_t failed = outlook->failed;

	child->operations->outlook(child->backend, outlook);
	if (outlook->submitted != submitted)
		atomic_store_explicit(&page->submitted, outlook->submitted, memory_order_relaxed);
	if (outlook->finished != finished)
		atomic_store_explicit(&page->finished, outlook->finished, memory_order_relaxed);
	if (outlook->failed != failed)
		atomic_store_explicit(&page->failed, outlook->failed, memory_order_relaxed);
}

/* Gives work to the library.  Return: false if nothing more can be done now. */
static bool submit(struct vgpu_child *child)
{
	uint64_t before = child->outlook.submitted;

	child->unfit = false;
	child->operations->submit(child->backend);
	look_out(child);
	if (child->lease.halted)
		return true;
	if (child->unfit && child->outlook.queued && !child->outlook.under_way) {
		/* The next piece would outlast the lease, so wait for a longer lease. */
		vgpu_child_lease(child, VGPU_LEASE_STOP);
		return true;
	}
	return child->outlook.submitted != before && !child->outlook.under_way;
}

/* Runs the lease operations that are needed.  Return: false if one round was not enough. */
static bool take_turns(struct vgpu_child *child)
{
	for (unsigned int turn = 0; turn < TURNS_PER_ROUND; turn++) {
		look_out(child);
		switch (vgpu_lease_need(&child->lease, child->outlook.queued,
					child->outlook.under_way, child->wake_seen)) {
		case VGPU_LEASE_NEED_START:
			child->pieces = 0;
			vgpu_child_lease(child, VGPU_LEASE_START);
			break;
		case VGPU_LEASE_NEED_CHECK:
			if (!submit(child))
				return true;
			break;
		case VGPU_LEASE_NEED_DRY:
			vgpu_child_lease(child, VGPU_LEASE_DRY);
			break;
		case VGPU_LEASE_NEED_STOP:
			vgpu_child_lease(child, VGPU_LEASE_STOP);
			break;
		case VGPU_LEASE_NEED_SLEEP:
			return true;
		}
	}
	return false;
}

/*
 * If all work has ended, reports that before looking at the next request, so that the time in
 * between counts as idle.
 */
static void note_end(struct vgpu_child *child)
{
	look_out(child);
	if (vgpu_lease_need(&child->lease, child->outlook.queued, child->outlook.under_way,
			    child->wake_seen) == VGPU_LEASE_NEED_DRY)
		vgpu_child_lease(child, VGPU_LEASE_DRY);
}

/* Takes requests out of the ring.  Return: false if there may be more. */
static bool take_requests(struct vgpu_child *child)
{
	const struct vgpu_message *message;
	unsigned int taken = 0;

	for (; taken < REQUESTS_PER_ROUND; taken++) {
		if (atomic_load(&child->replies.waiting) ||
		    child->operations->full(child->backend))
			break;
		message = vgpu_request_ring_next(&child->requests);
		if (!message)
			break;
		if (!child->operations->handle(child->backend, message))
			vgpu_child_end("request: %s", child->operations->malformed(child->backend));
	}
	if (child->requests.broken)
		vgpu_child_end("requests: %s", child->requests.broken);
	vgpu_request_ring_publish(&child->requests);
	return taken < REQUESTS_PER_ROUND;
}

static void take_compiled(struct vgpu_child *child)
{
	struct vgpu_link_compiled compiled;

	while (vgpu_link_take_compiled(&child->link, &compiled)) {
		child->operations->compiled(child->backend, compiled.token, compiled.status,
					    compiled.exit_status, compiled.result);
		if (compiled.result >= 0)
			close(compiled.result);
	}
}

static bool has_news(const struct vgpu_child *child, uint32_t alarm, bool listens)
{
	return atomic_load_explicit(&child->alarm, memory_order_relaxed) != alarm ||
	       atomic_load_explicit(&child->lease_page->wake, memory_order_relaxed) !=
		       child->wake_seen ||
	       (listens && vgpu_request_ring_has_some(&child->requests));
}

/*
 * Polls for events without sleeping, if spinning has been successful recently.  If the client takes
 * longer than a spin for its own work, spinning would only deprive the client of a processor.
 */
static bool spin(struct vgpu_child *child, uint32_t alarm, bool listens)
{
	uint64_t end_ns;

	if (!child->options.spin_ns || child->spins < 0)
		return false;
	end_ns = vgpu_child_now_ns() + child->options.spin_ns;
	do {
		for (unsigned int i = 0; i < 32; i++) {
			if (has_news(child, alarm, listens)) {
				child->spins = SPINS_MOST;
				return true;
			}
			vgpu_relax();
		}
	} while (vgpu_child_now_ns() < end_ns);
	child->spins--;
	return false;
}

/* If the sleep was so short that a spin would have been enough, spin again soon. */
static void note_sleep(struct vgpu_child *child, uint64_t slept_ns)
{
	if (slept_ns >= child->options.spin_ns)
		return;
	if (child->spins < SPINS_MOST)
		child->spins++;
}

/*
 * Adds a word that the main thread sleeps on.  With a VM, the main thread does not sleep on these
 * words, because the thread of arbiter.c rings the alarm instead.
 */
static void watch_word(const struct vgpu_child *child, struct futex_waitv *words,
		       unsigned int *count, const _Atomic uint32_t *word, uint32_t value)
{
	if (child->arbiter->wakes_by_words)
		vgpu_futex_watch(words, count, word, value, true);
}

static void sleep_until_news(struct vgpu_child *child, uint32_t alarm)
{
	struct futex_waitv words[4];
	unsigned int count = 0;
	uint32_t value;
	uint64_t until_ns = UINT64_MAX, asleep_ns = 0;
	bool listens = !atomic_load(&child->replies.waiting) &&
		       !child->operations->full(child->backend);
	bool fine = true;

	if (child->operations->settle)
		until_ns = child->operations->settle(child->backend);
	if (spin(child, alarm, listens))
		return;
	if (child->options.spin_ns && child->spins < 0)
		asleep_ns = vgpu_child_now_ns();
	atomic_store(&child->asleep, true);
	vgpu_futex_watch(words, &count, &child->alarm, alarm, false);
	watch_word(child, words, &count, &child->lease_page->wake, child->wake_seen);
	if (listens) {
		fine = vgpu_request_ring_sleep(&child->requests, &value);
		watch_word(child, words, &count, &child->requests.ring->bell, value);
	} else if (atomic_load(&child->replies.waiting)) {
		fine = vgpu_reply_ring_sleep(&child->replies, &value);
		watch_word(child, words, &count, &child->replies.ring->space, value);
	}
	if (fine && vgpu_futex_wait_any(words, count, until_ns) < 0 && errno != EAGAIN &&
	    errno != EINTR && errno != ETIMEDOUT)
		vgpu_child_end("sleeping: error %d", errno);
	if (child->options.spin_ns && child->spins < 0)
		note_sleep(child, vgpu_child_now_ns() - asleep_ns);
	if (listens)
		vgpu_request_ring_wake(&child->requests);
	else
		vgpu_reply_ring_wake(&child->replies);
	atomic_store(&child->asleep, false);
}

_Noreturn void vgpu_child_serve(struct vgpu_child *child)
{
	for (;;) {
		uint32_t alarm = atomic_load(&child->alarm);
		uint32_t wake = atomic_load_explicit(&child->lease_page->wake, memory_order_acquire);
		bool done;

		if (wake != child->wake_seen)
			vgpu_child_lease(child, VGPU_LEASE_LOOK);
		child->wake_seen = wake;
		child->operations->collect(child->backend);
		take_compiled(child);
		if (!vgpu_reply_ring_flush(&child->replies))
			vgpu_child_end("replies: %s", atomic_load(&child->replies.broken));
		note_end(child);
		done = take_requests(child);
		done = take_turns(child) && done;
		if (done)
			sleep_until_news(child, alarm);
	}
}
