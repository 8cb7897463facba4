/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tenant: its socket in the run directory, its lease page, its supervisor, and
 * its clients.
 */
#ifndef VGPU_BROKER_TENANT_H
#define VGPU_BROKER_TENANT_H

#include "broker/broker.h"

/**
 * tenant_create() - add a tenant that the core accepts
 *
 * Return: NULL if it cannot be had; @fault says why.
 */
struct tenant *tenant_create(struct broker *broker, const struct settings_tenant *settings,
			     struct settings_fault *fault);

/* Add a tenant's group, with its slice, to a scheduler.  If it is refused nothing has changed. */
enum vgpu_sched_field tenant_join(struct vgpu_sched *sched, struct vgpu_group *group,
				  struct vgpu_slice *slice, const struct vgpu_group_params *terms,
				  uint64_t now_ns);

/* All but the scheduler's terms, which the caller has changed. */
void tenant_configure(struct tenant *tenant, const struct settings_tenant *settings);

/* Take no clients any more and end those that are there; it goes when none is left. */
void tenant_leave(struct tenant *tenant);

struct tenant *tenant_find(const struct broker *broker, const char *name);

/* How many children it has, those that start and end included, and launchers that were admitted. */
uint32_t tenant_process_count(const struct tenant *tenant);

/* A client or its supervisor is gone: one that is leaving is freed soon if that was all. */
void tenant_review(struct tenant *tenant);

/* Called by supervisor.c */
void tenant_supervisor_said(struct tenant *tenant, const struct vgpu_supervisor_message *message);
void tenant_supervisor_lost(struct tenant *tenant);

/* What the arbiter has done to tenants. */
extern const struct vgpu_arbiter_ops tenant_arbiter_ops;

#endif /* VGPU_BROKER_TENANT_H */
