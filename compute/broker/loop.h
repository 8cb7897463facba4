/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The broker's event loop, on its only thread: watched descriptors, and timers.
 *
 * Watches and timers are the caller's memory.  They may be freed as soon as they are
 * removed, from any callback.  All times are CLOCK_MONOTONIC in ns.
 */
#ifndef VGPU_BROKER_LOOP_H
#define VGPU_BROKER_LOOP_H

#include <stdbool.h>
#include <stdint.h>

/* @ready may remove and free its watch. */
struct loop_watch {
	int fd;
	void (*ready)(struct loop_watch *watch, uint32_t events);
};

/* Zero a timer before its first use. */
struct loop_timer {
	void (*due)(struct loop_timer *timer, uint64_t now_ns);
	/* private: */
	struct loop_timer *next;
	uint64_t at_ns;
	bool armed;
};

struct loop {
	/* private: */
	int epoll;
	struct loop_watch clock;
	struct loop_timer *timers;
	uint64_t clock_at_ns;
	bool stopped;
};

uint64_t loop_now_ns(void);

/* Return: 0 or -errno. */
int loop_init(struct loop *loop);

/* @events: EPOLLIN, EPOLLOUT.  Return: 0 or -errno. */
int loop_add(struct loop *loop, struct loop_watch *watch, uint32_t events);
void loop_change(struct loop *loop, struct loop_watch *watch, uint32_t events);

/* Also closes the descriptor.  A watch that was never added, with fd -1, is allowed. */
void loop_remove(struct loop *loop, struct loop_watch *watch);

/* @at_ns: UINT64_MAX for never. */
void loop_arm(struct loop *loop, struct loop_timer *timer, uint64_t at_ns);

/* Runs until loop_stop(). */
void loop_run(struct loop *loop);
void loop_stop(struct loop *loop);

#endif /* VGPU_BROKER_LOOP_H */
