/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a window: the host's side initializes it, and marks the window as lost.
 *
 * Client and child may write to the header at any time, and in a VM a reset removes its page.  So
 * this process accesses the header only by system calls, which return an error where a direct
 * access would raise a signal.
 */
#ifndef VGPU_EXECUTOR_HEADER_H
#define VGPU_EXECUTOR_HEADER_H

#include <stdint.h>

#include "protocol/window.h"

/**
 * vgpu_header_begin() - initialize a new window, for which a child can then be started
 * @window: its descriptor
 *
 * Return: 0, EBUSY if its header is not empty because a child or a client has already used it, or
 * another positive errno value.
 */
int vgpu_header_begin(int window, uint64_t bytes);

/**
 * vgpu_header_lose() - report to the client that its child has ended
 * @window: its descriptor, or -1
 * @reason: message for the client
 */
void vgpu_header_lose(int window, const char *reason);

/* Writes how a child ended into @text (VGPU_REASON_BYTES); @status and @reason are those of EXITED. */
void vgpu_exit_text(char *text, int status, const char *reason);

#endif /* VGPU_EXECUTOR_HEADER_H */
