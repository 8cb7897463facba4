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
 * set is refused with generation.stale unless @generation is the present generation, or 0, which
 * matches any generation.  An answer has "ok".  If "ok" is false, it also has "code", "field" and
 * "detail".
 */
#ifndef VGPU_BROKER_CONTROL_H
#define VGPU_BROKER_CONTROL_H

#include "broker/broker.h"

/* Open the socket, which stays open until the process ends.  Return: 0 or -errno. */
int control_open(struct broker *broker);

#endif /* VGPU_BROKER_CONTROL_H */
