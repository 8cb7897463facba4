/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What carries this process' window: the broker's socket on the same machine (socket.c),
 * or the device of a virtual machine (device.c).
 *
 * Words of the window that both sides sleep on are changed first and then waited for or
 * woken here.  Words of this process alone are futexes (connection.h).
 */
#ifndef VGPU_CARRIER_H
#define VGPU_CARRIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol/window.h"

/**
 * struct vgpu_carrier - one of the two
 * @wait: sleeps until the word may have another value than @value, at most @ns; false if
 *	the child turned out to be gone
 * @wake: wakes all that wait for the word, here and in the child
 * @has_ended: the child is gone
 * @leave: called once, when the child is gone, before anything else looks at the window.
 *	Gives the reason as a text for people, "" if there is none.
 */
struct vgpu_carrier {
	bool (*wait)(_Atomic uint32_t *word, uint32_t value, uint64_t ns);
	void (*wake)(_Atomic uint32_t *word);
	bool (*has_ended)(void);
	void (*leave)(char reason[VGPU_WINDOW_REASON_BYTES]);
};

/*
 * Connect, map the window and set the connection's carrier and descriptor.  Each returns
 * 0, or a negative error number after one line on stderr.
 */
int vgpu_socket_connect(const char *path);
/* @path: NULL for the first device that there is; -ENOENT without a line if there is none */
int vgpu_device_connect(const char *path);

/* Finds the device with the lowest number in @directory; false if none is there. */
bool vgpu_device_find(const char *directory, char *path, size_t bytes);

/* Why a device cannot be opened, for people. */
const char *vgpu_device_problem(int error);

/* connection.c: maps a window and starts what describes it; 0 or a negative error number */
int vgpu_window_map(int fd, uint64_t bytes);
/* Undoes it, unless anything uses it already. */
void vgpu_window_unmap(void);
/* The header is that of a window of this version. */
bool vgpu_window_fits(void);

/* One line on stderr; returns the negative error number. */
int vgpu_complain(const char *what, int error);

/* Makes a text of the other side one line that does nothing to a terminal. */
void vgpu_make_printable(char *text, size_t bytes);

#endif /* VGPU_CARRIER_H */
