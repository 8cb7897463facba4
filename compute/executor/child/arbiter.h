/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the child talks to the arbiter and wakes its client.
 *
 * With the broker, child and client run on the same kernel.  VGPU_FD_ARBITER is a socket, and each
 * side sleeps on words of the window and of the lease page, which are futexes.
 *
 * With a VM, they run on two kernels, and VGPU_FD_ARBITER is a file of the kernel module.  The
 * module wakes the guest when the child asks it to.  The child's main thread sleeps only on its
 * private alarm.  A second thread reads the file and rings the alarm.
 */
#ifndef VGPU_EXECUTOR_ARBITER_H
#define VGPU_EXECUTOR_ARBITER_H

#include <stdbool.h>
#include <stdint.h>

#include "uapi/vgpu_lease_page.h"

/**
 * struct vgpu_arbiter - one kind of arbiter
 * @wakes_by_words: the main thread also sleeps on words of the window and the lease page
 * @send: send a request; the child ends if the arbiter does not accept it
 * @wake_client: wake the client's threads that wait on @word, which has been changed.  Any thread.
 * @listen: start the thread, if there is one, that rings the alarm for events of the client or the
 *	lease page.  Returns 0 or a positive errno value.
 */
struct vgpu_arbiter {
	bool wakes_by_words;
	void (*send)(const struct vgpu_stream_request *request);
	void (*wake_client)(_Atomic uint32_t *word);
	int (*listen)(void (*wake)(void *context), void *context);
};

/* Return: the kind of arbiter that VGPU_FD_ARBITER is connected to. */
const struct vgpu_arbiter *vgpu_arbiter_find(void);

#endif /* VGPU_EXECUTOR_ARBITER_H */
