/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Check every operation, operand placement and size against the CPU, one case
 * per record. Returns an exit status.
 */
#ifndef VGPU_TOOL_VERIFY_H
#define VGPU_TOOL_VERIFY_H

#include <stdbool.h>

#include "transport.h"

int verify_all(struct transport *transport, const char *name, bool json);

/*
 * Run one item of an operation with an operand size or dimension; returns an
 * exit status.
 */
int verify_submit(struct transport *transport, const char *op, uint32_t size,
		  bool json);

#endif
