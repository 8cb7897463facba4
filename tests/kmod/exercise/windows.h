/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Checks the promises of vgpu_guest.h about /dev/vgpuN-compute. The executor at the other
 * end is part of the tests (tests/rig/window_executor.py): a window's first words tell its
 * child what to do.
 */
#ifndef VGPU_EXERCISE_WINDOWS_H
#define VGPU_EXERCISE_WINDOWS_H

#include <stdbool.h>
#include <stdint.h>

#include "window.h"

/* Offsets in a window of the words that guest and child exchange. */
#define WINDOWS_COMMAND	0
#define WINDOWS_REQUEST	4	/* changed by the guest for each command */
#define WINDOWS_ANSWER	8	/* the child copies it here when it is done */
#define WINDOWS_FREE	4096	/* the child reads nothing from here on */

enum windows_command {
	WINDOWS_NOTHING = 0,
	WINDOWS_ECHO = 1, /* answer, and ring */
	WINDOWS_RING = 2, /* ring, and change nothing */
	WINDOWS_END = 3,  /* end */
};

struct windows_test {
	const char *path;
	bool json;
	char why[160]; /* the first broken promise */
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

/* Record why a case fails; returns false, for the case to return. */
bool windows_fail(struct windows_test *test, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Whether a call returned what it had to; records the failure if not. */
bool windows_expect(struct windows_test *test, const char *call, int rc, int expected);
/* Open a window; records the reason if that fails. */
bool windows_open(struct windows_test *test, struct window *window);
/* Open all windows; returns their number. Records the reason unless that is VGPU_WINDOWS_MAX. */
int windows_open_all(struct windows_test *test, struct window *windows);
void windows_close_all(struct window *windows, int count);
/* Print a record of an event that the caller of the program waits for. */
void windows_say(const struct windows_test *test, const char *what, uint64_t value);

/* Run the case called @name, or all; exit status. -1 when no case has that name. */
int windows_run(const char *path, const char *name, bool json);
void windows_list(void);

#endif
