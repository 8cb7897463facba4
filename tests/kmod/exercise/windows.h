/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What vgpu_guest.h promises of /dev/vgpuN-compute, kept or not. The executor at the other
 * end is one of tests (tests/rig/window_executor.py): a window's first words say what its
 * child is to do.
 */
#ifndef VGPU_EXERCISE_WINDOWS_H
#define VGPU_EXERCISE_WINDOWS_H

#include <stdbool.h>
#include <stdint.h>

#include "window.h"

/* Offsets in a window of what guest and child tell each other. */
#define WINDOWS_COMMAND	0
#define WINDOWS_REQUEST	4	/* changed by the guest for each command */
#define WINDOWS_ANSWER	8	/* made equal by the child when it is done */
#define WINDOWS_FREE	4096	/* the child looks no further */

enum windows_command {
	WINDOWS_NOTHING = 0,
	WINDOWS_ECHO = 1, /* answer, and ring */
	WINDOWS_RING = 2, /* ring, and change nothing */
	WINDOWS_END = 3,  /* end */
};

struct windows_test {
	const char *path;
	bool json;
	char why[160]; /* the first promise that was not kept */
};

/* Cases. Up to windows_here() they need no executor. */
bool windows_memory(struct windows_test *test);
bool windows_again(struct windows_test *test);
bool windows_four(struct windows_test *test);
bool windows_full(struct windows_test *test);
bool windows_exclusive(struct windows_test *test);
bool windows_not_inherited(struct windows_test *test);
bool windows_mappings(struct windows_test *test);
bool windows_waiting(struct windows_test *test);
bool windows_here(struct windows_test *test);
bool windows_echo(struct windows_test *test);
bool windows_rung(struct windows_test *test);
bool windows_lost(struct windows_test *test);
bool windows_hold(struct windows_test *test);
bool windows_patience(struct windows_test *test);

/* Note why a case fails; false, for it to return. */
bool windows_fail(struct windows_test *test, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Whether a call answered what it had to; notes it if not. */
bool windows_expect(struct windows_test *test, const char *call, int rc, int expected);
/* Open a window, noting why if that fails. */
bool windows_open(struct windows_test *test, struct window *window);
/* Open all there are; how many. VGPU_WINDOWS_MAX unless it is noted why. */
int windows_open_all(struct windows_test *test, struct window *windows);
void windows_close_all(struct window *windows, int count);
/* A record of something that the caller waits for. */
void windows_say(const struct windows_test *test, const char *what, uint64_t value);

/* Run the case called @name, or all; exit status. -1 when no case has that name. */
int windows_run(const char *path, const char *name, bool json);
void windows_list(void);

#endif
