// SPDX-License-Identifier: Apache-2.0
#include "broker/loop.h"

#include <errno.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_SECOND	1000000000ull

uint64_t loop_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_SECOND + (uint64_t)now.tv_nsec;
}

/* Set the timerfd to the earliest timer. */
static void set_clock(struct loop *loop)
{
	uint64_t at_ns = loop->timers ? loop->timers->at_ns : UINT64_MAX;
	struct itimerspec when = { 0 };

	if (at_ns == loop->clock_at_ns)
		return;
	loop->clock_at_ns = at_ns;
	if (at_ns != UINT64_MAX) {
		/* Zero would disarm the timerfd. */
		at_ns = at_ns ? at_ns : 1;
		when.it_value.tv_sec = at_ns / NS_PER_SECOND;
		when.it_value.tv_nsec = at_ns % NS_PER_SECOND;
	}
	timerfd_settime(loop->clock.fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static void disarm(struct loop *loop, struct loop_timer *timer)
{
	struct loop_timer **link = &loop->timers;

	if (!timer->armed)
		return;
	while (*link != timer)
		link = &(*link)->next;
	*link = timer->next;
	timer->armed = false;
}

void loop_arm(struct loop *loop, struct loop_timer *timer, uint64_t at_ns)
{
	struct loop_timer **link = &loop->timers;

	if (timer->armed ? timer->at_ns == at_ns : at_ns == UINT64_MAX)
		return;
	disarm(loop, timer);
	if (at_ns != UINT64_MAX) {
		timer->at_ns = at_ns;
		while (*link && (*link)->at_ns <= at_ns)
			link = &(*link)->next;
		timer->next = *link;
		*link = timer;
		timer->armed = true;
	}
	set_clock(loop);
}

static void clock_ready(struct loop_watch *watch, uint32_t events)
{
	struct loop *loop = (struct loop *)((char *)watch - offsetof(struct loop, clock));
	uint64_t now_ns = loop_now_ns();
	uint64_t count;
	ssize_t got = read(watch->fd, &count, sizeof(count));

	(void)events;
	(void)got;
	loop->clock_at_ns = UINT64_MAX;
	while (loop->timers && loop->timers->at_ns <= now_ns) {
		struct loop_timer *timer = loop->timers;

		disarm(loop, timer);
		timer->due(timer, now_ns);
	}
	set_clock(loop);
}

int loop_init(struct loop *loop)
{
	*loop = (struct loop){ .clock_at_ns = UINT64_MAX };
	loop->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (loop->epoll < 0)
		return -errno;
	loop->clock.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (loop->clock.fd < 0)
		return -errno;
	loop->clock.ready = clock_ready;
	return loop_add(loop, &loop->clock, EPOLLIN);
}

int loop_add(struct loop *loop, struct loop_watch *watch, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = watch };

	return epoll_ctl(loop->epoll, EPOLL_CTL_ADD, watch->fd, &event) ? -errno : 0;
}

void loop_change(struct loop *loop, struct loop_watch *watch, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = watch };

	epoll_ctl(loop->epoll, EPOLL_CTL_MOD, watch->fd, &event);
}

void loop_remove(struct loop *loop, struct loop_watch *watch)
{
	if (watch->fd < 0)
		return;
	epoll_ctl(loop->epoll, EPOLL_CTL_DEL, watch->fd, NULL);
	close(watch->fd);
	watch->fd = -1;
}

/*
 * Fetch one event at a time.  Otherwise a callback could free the watch of an event
 * that is already fetched.
 */
void loop_run(struct loop *loop)
{
	struct epoll_event event;

	while (!loop->stopped) {
		if (epoll_wait(loop->epoll, &event, 1, -1) != 1)
			continue;
		((struct loop_watch *)event.data.ptr)->ready(event.data.ptr, event.events);
	}
}

void loop_stop(struct loop *loop)
{
	loop->stopped = true;
}
