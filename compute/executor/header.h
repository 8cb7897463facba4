/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a window, as the host's side of it begins and ends it.
 *
 * Client and child may write to the header at any time, and in a VM a reset takes its
 * page away.  So the kernel makes each access: it fails where one of this process's own
 * would be a signal.
 */
#ifndef VGPU_EXECUTOR_HEADER_H
#define VGPU_EXECUTOR_HEADER_H

#include <stdint.h>

#include "protocol/window.h"

/**
 * vgpu_header_begin() - make a new window one that a child can be started for
 * @window: its descriptor
 *
 * Return: 0, EBUSY if its header is not empty, because a child or a client has used it
 * already, or another positive errno value.
 */
int vgpu_header_begin(int window, uint64_t bytes);

/**
 * vgpu_header_lose() - tell the client that its child is gone
 * @window: its descriptor, or -1
 * @reason: for people
 */
void vgpu_header_lose(int window, const char *reason);

/* @text: VGPU_REASON_BYTES; gets how a child ended, from what EXITED says of it. */
void vgpu_exit_text(char *text, int status, const char *reason);

#endif /* VGPU_EXECUTOR_HEADER_H */
