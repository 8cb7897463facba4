/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Shared among the files of the arbiter only. */
#ifndef VGPU_SCHED_ARBITER_PRIVATE_H
#define VGPU_SCHED_ARBITER_PRIVATE_H

#include "vgpu_arbiter.h"

static inline u64 later(u64 at_ns, u64 by_ns)
{
	return by_ns > U64_MAX - at_ns ? U64_MAX : at_ns + by_ns;
}

/* Does the lease have an end, because another party waits or a cap applies? */
static inline bool has_end(const struct vgpu_party *party)
{
	return party->lease.expires_ns != U64_MAX;
}

/* arbiter_children.c: the state of the children */
bool vgpu_child_is_busy(const struct vgpu_stream_view *view);
bool vgpu_child_has_started(const struct vgpu_party *party,
			    const struct vgpu_stream *stream,
			    const struct vgpu_stream_view *view);
bool vgpu_child_owes_yield(const struct vgpu_party *party,
			   const struct vgpu_stream *stream,
			   const struct vgpu_stream_view *view);
void vgpu_children_expect_yields(struct vgpu_arbiter *arbiter,
				 struct vgpu_party *party);
u64 vgpu_child_idle_ns(const struct vgpu_arbiter *arbiter,
		       const struct vgpu_party *party,
		       const struct vgpu_stream_view *view);
u64 vgpu_children_unused_ns(struct vgpu_arbiter *arbiter, struct vgpu_party *party,
			    u64 elapsed_ns);
bool vgpu_children_want(const struct vgpu_party *party);
void vgpu_child_offer(const struct vgpu_arbiter *arbiter, struct vgpu_stream *stream);
void vgpu_children_detach(struct vgpu_party *party);
bool vgpu_children_have_begun(const struct vgpu_arbiter *arbiter,
			      const struct vgpu_party *party);

/* arbiter_gate.c: the gate */
void vgpu_gate_ask(struct vgpu_arbiter *arbiter, struct vgpu_party *party, bool close);
void vgpu_gate_review(struct vgpu_arbiter *arbiter, struct vgpu_party *party, bool has_busy);
bool vgpu_gate_is_watching(const struct vgpu_arbiter *arbiter);
void vgpu_gate_look_at_processors(struct vgpu_arbiter *arbiter);
void vgpu_gate_review_party(struct vgpu_arbiter *arbiter, struct vgpu_party *party);

/* arbiter_lease.c: the life of a lease */
void vgpu_arbiter_publish(const struct vgpu_arbiter *arbiter, struct vgpu_party *party,
			  enum vgpu_lease_state state, bool wake);
void vgpu_arbiter_make_ready(struct vgpu_arbiter *arbiter, struct vgpu_party *party);
void vgpu_arbiter_finish(struct vgpu_arbiter *arbiter);
void vgpu_arbiter_revoke(struct vgpu_arbiter *arbiter);
void vgpu_arbiter_sleep(struct vgpu_arbiter *arbiter, struct vgpu_party *party);
void vgpu_arbiter_take_back(struct vgpu_arbiter *arbiter);
void vgpu_arbiter_review(struct vgpu_arbiter *arbiter);
void vgpu_arbiter_review_holder(struct vgpu_arbiter *arbiter);
u64 vgpu_arbiter_lease_at_ns(const struct vgpu_arbiter *arbiter);
void vgpu_arbiter_lease_look(struct vgpu_arbiter *arbiter, u64 due_ns);
void vgpu_arbiter_let_start(struct vgpu_arbiter *arbiter, struct vgpu_stream *stream);

/* arbiter.c: the timer */
void vgpu_arbiter_arm(struct vgpu_arbiter *arbiter);

#endif /* VGPU_SCHED_ARBITER_PRIVATE_H */
