/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast a tenant may start processes: a bucket of process_burst starts, which
 * regains one start every process_interval_ns.
 */
#ifndef VGPU_BROKER_RATE_H
#define VGPU_BROKER_RATE_H

#include "broker/broker.h"

/* A new tenant has its full burst. */
void rate_init(struct tenant *tenant, uint64_t now_ns);

/* Take one start.  Return: 0, or the time in ns until one is available. */
uint64_t rate_take(struct tenant *tenant, uint64_t now_ns);

/* Call this before the tenant gets @settings.  Recent starts still count. */
void rate_change(struct tenant *tenant, const struct settings_tenant *settings, uint64_t now_ns);

#endif /* VGPU_BROKER_RATE_H */
