/* SPDX-License-Identifier: GPL-2.0 */
/* The byte channel, with an executor that sends back what it gets and adds arguments. */
#ifndef VGPU_TOOL_CHANNEL_H
#define VGPU_TOOL_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Send @bytes, expect them back, then launch an item; an exit status. The record says
 * what came back.
 */
int channel_echo(const char *path, size_t bytes, bool json);

#endif
