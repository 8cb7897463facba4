/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast a tenant starts processes: a bucket of process_burst starts, which gets
 * one back in each process_interval_ns.
 */
#ifndef VGPU_BROKER_RATE_H
#define VGPU_BROKER_RATE_H

#include "broker/broker.h"

/* A new tenant has its whole burst. */
void rate_init(struct tenant *tenant, uint64_t now_ns);

/* Take one start.  Return: 0, or in how many ns there is one. */
uint64_t rate_take(struct tenant *tenant, uint64_t now_ns);

/* Before the tenant gets @settings: what it started lately counts, and nothing else. */
void rate_change(struct tenant *tenant, const struct settings_tenant *settings, uint64_t now_ns);

#endif /* VGPU_BROKER_RATE_H */
