/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control socket: `control` in the run directory, mode 0600.
 *
 * A request is one line of JSON, and so is its answer:
 *
 *	{"op": "show"}
 *	{"op": "set", "generation": 3, "settings": {...}}
 *	{"op": "stop"}
 *
 * set is refused with generation.stale unless @generation is the present one; 0
 * means whichever.  An answer has "ok"; if that is false also "code", "field" and
 * "detail".
 */
#ifndef VGPU_BROKER_CONTROL_H
#define VGPU_BROKER_CONTROL_H

#include "broker/broker.h"

/* Return: 0 or -errno.  It lasts as long as the process. */
int control_open(struct broker *broker);

#endif /* VGPU_BROKER_CONTROL_H */
