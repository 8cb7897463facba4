/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How this process got its window: from the broker's socket on the same machine (socket.c),
 * or from the device of a virtual machine (device.c).
 *
 * Both sides sleep on 32-bit words in the window.  The carrier's functions wait for a change of
 * such a word, and wake the threads that wait for it.  Change the word first, then wake.  Words
 * that only this process uses are futexes (connection.h).
 */
#ifndef VGPU_CARRIER_H
#define VGPU_CARRIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol/window.h"

/**
 * struct vgpu_carrier - one of the two ways to get a window
 * @wait: sleeps until the word may differ from @value, for at most @ns nanoseconds; returns
 *	false if it finds that the child is gone
 * @wake: wakes all threads that wait for the word, in this process and in the child
 * @has_ended: returns whether the child is gone
 * @leave: called once, when the child is gone, before other threads look at the window.
 *	Returns the reason as a text for people, "" if there is none.
 */
struct vgpu_carrier {
	bool (*wait)(_Atomic uint32_t *word, uint32_t value, uint64_t ns);
	void (*wake)(_Atomic uint32_t *word);
	bool (*has_ended)(void);
	void (*leave)(char reason[VGPU_WINDOW_REASON_BYTES]);
};

/*
 * Connect, map the window and set the connection's carrier and descriptor.  Return 0, or a
 * negative error number after one line on stderr.
 */
int vgpu_socket_connect(const char *path);
/* @path: NULL for the first device; returns -ENOENT without a line if there is no device */
int vgpu_device_connect(const char *path);

/*
 * Finds the device with the lowest number in @directory.  Returns false if there is no device.
 */
bool vgpu_device_find(const char *directory, char *path, size_t bytes);

/* Returns why a device cannot be opened, as a text for people. */
const char *vgpu_device_problem(int error);

/*
 * connection.c: maps a window and sets the pointers into it; returns 0 or a negative error
 * number
 */
int vgpu_window_map(int fd, uint64_t bytes);
/* Undoes vgpu_window_map().  Call it only before the window is in use. */
void vgpu_window_unmap(void);
/* Returns whether the header is that of a window of this version. */
bool vgpu_window_fits(void);

/* Prints one line on stderr.  Returns the negative error number. */
int vgpu_complain(const char *what, int error);

/* Makes a text from the other side safe to print on a terminal, as one line. */
void vgpu_make_printable(char *text, size_t bytes);

#endif /* VGPU_CARRIER_H */
