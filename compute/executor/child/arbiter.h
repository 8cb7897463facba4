/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The child's way to the arbiter, and to its client's sleep.
 *
 * With the broker, child and client run on one kernel.  VGPU_FD_ARBITER is a socket, and
 * each side sleeps on words of the window and of the lease page, which are futexes.
 *
 * In front of a VM they run on two, and VGPU_FD_ARBITER is a file of the kernel module.
 * The module wakes the guest when it is asked.  The child's main thread sleeps on its
 * private alarm only, and a thread that reads the file rings that.
 */
#ifndef VGPU_EXECUTOR_ARBITER_H
#define VGPU_EXECUTOR_ARBITER_H

#include <stdbool.h>
#include <stdint.h>

#include "uapi/vgpu_lease_page.h"

/**
 * struct vgpu_arbiter - one of the two ways
 * @wakes_by_words: the main thread sleeps on words of window and lease page as well
 * @send: a request; the child ends if the arbiter does not take it
 * @wake_client: wakes the client's threads that wait for @word, which has been changed.
 *	Any thread.
 * @listen: starts what rings the alarm when the client or the lease page wants the main
 *	thread to look.  0, or a positive errno value.
 */
struct vgpu_arbiter {
	bool wakes_by_words;
	void (*send)(const struct vgpu_stream_request *request);
	void (*wake_client)(_Atomic uint32_t *word);
	int (*listen)(void (*wake)(void *context), void *context);
};

/* The way that VGPU_FD_ARBITER is. */
const struct vgpu_arbiter *vgpu_arbiter_find(void);

#endif /* VGPU_EXECUTOR_ARBITER_H */
