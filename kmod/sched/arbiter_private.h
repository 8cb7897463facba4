/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What the files of the arbiter share with each other only. */
#ifndef VGPU_BROKER_ARBITER_PRIVATE_H
#define VGPU_BROKER_ARBITER_PRIVATE_H

#include "vgpu_arbiter.h"

static inline uint64_t later(uint64_t at_ns, uint64_t by_ns)
{
	return by_ns > UINT64_MAX - at_ns ? UINT64_MAX : at_ns + by_ns;
}

static inline uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Does anybody else wait for the tenant's lease, or a cap end it? */
static inline bool has_end(const struct arbiter_tenant *tenant)
{
	return tenant->lease.expires_ns != UINT64_MAX;
}

/* arbiter_children.c: what children say */
bool child_is_busy(const struct arbiter_view *view);
bool child_has_started(const struct arbiter_tenant *tenant, const struct arbiter_stream *stream,
		       const struct arbiter_view *view);
bool child_owes_yield(const struct arbiter_tenant *tenant, const struct arbiter_stream *stream,
		      const struct arbiter_view *view);
void children_expect_yields(struct arbiter *arbiter, struct arbiter_tenant *tenant);
uint64_t child_idle_ns(const struct arbiter *arbiter, const struct arbiter_tenant *tenant,
		       const struct arbiter_view *view);
uint64_t children_unused_ns(struct arbiter *arbiter, struct arbiter_tenant *tenant,
			    uint64_t elapsed_ns);
bool children_want(const struct arbiter_tenant *tenant);
void child_offer(const struct arbiter *arbiter, struct arbiter_stream *stream);
bool children_have_begun(const struct arbiter *arbiter, const struct arbiter_tenant *tenant);

/* arbiter_gate.c: the gate */
void gate_ask(struct arbiter *arbiter, struct arbiter_tenant *tenant, bool close);
void gate_review(struct arbiter *arbiter, struct arbiter_tenant *tenant, bool has_busy);
bool gate_is_watching(const struct arbiter *arbiter);
void gate_look_at_processors(struct arbiter *arbiter);
void gate_review_tenant(struct arbiter *arbiter, struct arbiter_tenant *tenant);

/* arbiter_lease.c: the life of a lease */
void lease_publish(const struct arbiter *arbiter, struct arbiter_tenant *tenant,
		   enum vgpu_lease_state state, bool wake);
void lease_become_ready(struct arbiter *arbiter, struct arbiter_tenant *tenant);
void lease_finish(struct arbiter *arbiter);
void lease_take_back(struct arbiter *arbiter);
void lease_review(struct arbiter *arbiter);
void lease_review_holder(struct arbiter *arbiter);
uint64_t lease_at_ns(const struct arbiter *arbiter);
void lease_look(struct arbiter *arbiter, uint64_t due_ns);
void lease_let_start(struct arbiter *arbiter, struct arbiter_stream *stream);

/* arbiter.c: when to look again */
void arbiter_arm(struct arbiter *arbiter);

#endif /* VGPU_BROKER_ARBITER_PRIVATE_H */
