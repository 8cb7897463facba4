/* SPDX-License-Identifier: GPL-2.0 */
/* Run a few items at once and wait for all of them. */
#ifndef VGPU_TOOL_SINGLE_H
#define VGPU_TOOL_SINGLE_H

#include <stdint.h>

#include "transport.h"

#define SINGLE_ITEMS_MAX 32

/*
 * Submit @count items and wait for them, at most @timeout_ns. Completions are
 * stored if @completions is not NULL. Returns 0 or a negative errno; after -EIO
 * transport->error says why the device stopped.
 */
int single_run(struct transport *transport, const struct vgpu_desc *descs,
	       uint32_t count, unsigned int flags, uint64_t timeout_ns,
	       struct vgpu_completion *completions);

#endif
