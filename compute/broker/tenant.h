/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tenant: its socket in the run directory, its lease page, its supervisor, and
 * its clients.
 */
#ifndef VGPU_BROKER_TENANT_H
#define VGPU_BROKER_TENANT_H

#include "broker/broker.h"

/**
 * tenant_create() - add a tenant that the scheduler's core accepts
 *
 * Return: the tenant, or NULL if it cannot be created; @fault then says why.
 */
struct tenant *tenant_create(struct broker *broker, const struct settings_tenant *settings,
			     struct settings_fault *fault);

/* Add a tenant's group and slice to a scheduler.  If they are refused, nothing has changed. */
enum vgpu_sched_field tenant_join(struct vgpu_sched *sched, struct vgpu_group *group,
				  struct vgpu_slice *slice, const struct vgpu_group_params *terms,
				  uint64_t now_ns);

/* Change everything except the scheduler's terms, which the caller has changed already. */
void tenant_configure(struct tenant *tenant, const struct settings_tenant *settings);

/* Accept no more clients and end the present ones.  The tenant is freed when no client is left. */
void tenant_leave(struct tenant *tenant);

struct tenant *tenant_find(const struct broker *broker, const char *name);

/*
 * Return the number of a tenant's children, including children that are starting or ending, and
 * admitted launchers.
 */
uint32_t tenant_process_count(const struct tenant *tenant);

/*
 * Call after a client or the supervisor is gone.  If a leaving tenant has no clients any more, its
 * supervisor is ended and then the tenant is freed, but not during this call.
 */
void tenant_review(struct tenant *tenant);

/* Called by supervisor.c */
void tenant_supervisor_said(struct tenant *tenant, const struct vgpu_supervisor_message *message);
void tenant_supervisor_lost(struct tenant *tenant);

/* The operations through which the arbiter acts on tenants. */
extern const struct vgpu_arbiter_ops tenant_arbiter_ops;

#endif /* VGPU_BROKER_TENANT_H */
