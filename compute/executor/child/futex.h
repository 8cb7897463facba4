/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Futex calls that glibc does not wrap.  Words in a window or in a lease or stream page are shared;
 * all others are private.
 */
#ifndef VGPU_EXECUTOR_FUTEX_H
#define VGPU_EXECUTOR_FUTEX_H

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Call it in a loop that spins. */
static inline void vgpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static inline void vgpu_futex_wake(_Atomic uint32_t *word, bool shared)
{
	syscall(SYS_futex, word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static inline void vgpu_futex_wait_private(_Atomic uint32_t *word, uint32_t value)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

/* Adds a word to a list for vgpu_futex_wait_any(). */
static inline void vgpu_futex_watch(struct futex_waitv *list, unsigned int *count,
				    const _Atomic uint32_t *word, uint32_t value, bool shared)
{
	list[*count] = (struct futex_waitv){
		.val = value,
		.uaddr = (uintptr_t)word,
		.flags = FUTEX_32 | (shared ? 0 : FUTEX_PRIVATE_FLAG),
	};
	(*count)++;
}

/**
 * vgpu_futex_wait_any() - sleep until one of several words has changed
 * @until_ns: CLOCK_MONOTONIC, or UINT64_MAX for no timeout
 *
 * Return: 0 or more, or -1 with errno: EAGAIN (a word has already changed), ETIMEDOUT, EINTR,
 * ENOSYS (before Linux 5.16), EFAULT (a word is not mapped any more).
 */
static inline int vgpu_futex_wait_any(struct futex_waitv *list, unsigned int count,
				      uint64_t until_ns)
{
	struct timespec until = {
		.tv_sec = (time_t)(until_ns / 1000000000u),
		.tv_nsec = (long)(until_ns % 1000000000u),
	};

	return (int)syscall(SYS_futex_waitv, list, count, 0,
			    until_ns == UINT64_MAX ? NULL : &until, CLOCK_MONOTONIC);
}

#endif /* VGPU_EXECUTOR_FUTEX_H */
