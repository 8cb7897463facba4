/* SPDX-License-Identifier: GPL-2.0 */
/* One window of /dev/vgpuN-compute, opened and mapped. */
#ifndef VGPU_EXERCISE_WINDOW_H
#define VGPU_EXERCISE_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#define WINDOW_FOREVER UINT64_MAX

struct window {
	int fd;
	uint32_t number;
	uint64_t bytes;
	volatile uint32_t *words;
};

static inline uint32_t window_word(const struct window *window, uint32_t offset)
{
	return window->words[offset / 4];
}

static inline void window_set_word(const struct window *window, uint32_t offset, uint32_t value)
{
	window->words[offset / 4] = value;
}

/* A word of each page, and all of the first and the last one. */
void window_fill(const struct window *window, uint32_t value);
bool window_is_filled(const struct window *window, uint32_t value);

/* All return 0 or a negative errno. @flags: O_NONBLOCK or none. */
int window_open(struct window *window, const char *path, int flags);
void window_close(struct window *window);
int window_wait(const struct window *window, uint32_t offset, uint32_t value,
		uint64_t timeout_ns);
int window_ring(const struct window *window);
int window_info(const struct window *window);
/* The result of poll() now. */
int window_events(const struct window *window);

#endif
