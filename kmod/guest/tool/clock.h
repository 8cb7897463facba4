/* SPDX-License-Identifier: GPL-2.0 */
/* The time of this machine; it is virtual if the machine's time is. */
#ifndef VGPU_TOOL_CLOCK_H
#define VGPU_TOOL_CLOCK_H

#include <errno.h>
#include <stdint.h>
#include <time.h>

#define NS_PER_US 1000ull
#define NS_PER_MS 1000000ull
#define NS_PER_S 1000000000ull

static inline uint64_t clock_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * NS_PER_S + now.tv_nsec;
}

static inline void clock_sleep_until_ns(uint64_t when_ns)
{
	struct timespec when = {
		.tv_sec = when_ns / NS_PER_S,
		.tv_nsec = when_ns % NS_PER_S,
	};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) ==
	       EINTR)
		;
}

static inline void clock_sleep_ns(uint64_t ns)
{
	clock_sleep_until_ns(clock_now_ns() + ns);
}

#endif
