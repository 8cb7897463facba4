/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The arbiter: lends the accelerator to one tenant at a time (uapi/vgpu_lease_page.h),
 * in the turns that turns.h decides.
 *
 * Pure: no clock, no socket, no memory of its own.  The caller passes the time
 * (CLOCK_MONOTONIC, ns), tells what children and supervisors say, and carries out
 * the operations of struct arbiter_ops.  Each public function may call any of
 * these; none of them may call the arbiter.  Not thread safe.
 *
 * What a tenant pays for: all time from the beginning of its lease to its end,
 * which is when all its children have yielded or the gate is closed.  During a lease
 * without an end it does not pay for spans in which all its children say that they
 * were dry: nobody else has work then, so that what they say matters to nobody.
 */
#ifndef VGPU_BROKER_ARBITER_H
#define VGPU_BROKER_ARBITER_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/turns.h"
#include "watch.h"
#include "uapi/vgpu_lease_page.h"

struct arbiter;
struct arbiter_tenant;
struct arbiter_stream;

/**
 * struct arbiter_settings - of the accelerator
 * @grace_ns: how long after a lease's end the gate begins to close
 * @early_ns: how long before its end a lease is prolonged that nobody else waits for
 * @gate_limit_ns: a gate that does not answer for so long is lost
 * @watch: what children may use of the processor outside their leases
 */
struct arbiter_settings {
	uint64_t grace_ns;
	uint64_t early_ns;
	uint64_t gate_limit_ns;
	struct watch_settings watch;
};

/* What a child says in its stream page. */
struct arbiter_view {
	uint64_t state;
	uint64_t dry_since_ns;
	uint64_t idle_ns;
};

struct arbiter_lease {
	uint64_t number;
	enum vgpu_lease_state state;
	uint64_t begun_ns;
	uint64_t expires_ns;
};

/**
 * struct arbiter_ops - what the arbiter has done
 * @publish: write the tenant's lease page, the lease word last, then a full
 *	barrier; with @wake change and wake the wake word
 * @read: copy a child's stream page
 * @gate: close or open the tenant's gate; the answer, with @sequence, goes to
 *	arbiter_gate_answer().  To open an open gate changes nothing.
 * @gate_lost: the gate does not work: kill the tenant's supervisor and children
 * @arm: call arbiter_timer() at this moment; UINT64_MAX for never
 */
struct arbiter_ops {
	void (*publish)(struct arbiter_tenant *tenant, const struct arbiter_lease *lease, bool wake);
	void (*read)(struct arbiter_stream *stream, struct arbiter_view *view);
	void (*gate)(struct arbiter_tenant *tenant, bool close, uint64_t sequence);
	void (*gate_lost)(struct arbiter_tenant *tenant);
	void (*arm)(struct arbiter *arbiter, uint64_t at_ns);
};

/**
 * struct arbiter_stats - counters of a tenant; they only grow, but for the longest
 * @leases: lent
 * @lent_ns: of leases, from beginning to end, unused spans included
 * @dries: leases that ended because all children were dry
 * @recalls: a rival came while it held the accelerator by itself
 * @waits: how often it had work and no lease
 * @waited_ns: all waits together
 * @longest_wait_ns: the longest
 * @gates: leases that the gate ended
 * @gate_ns: from asking to the gate's answer, all together
 * @longest_gate_ns: the longest
 * @offences: more processor time outside leases than it may use
 * @fined_ns: engine time paid for what was used outside leases
 */
struct arbiter_stats {
	uint64_t leases;
	uint64_t lent_ns;
	uint64_t dries;
	uint64_t recalls;
	uint64_t waits;
	uint64_t waited_ns;
	uint64_t longest_wait_ns;
	uint64_t gates;
	uint64_t gate_ns;
	uint64_t longest_gate_ns;
	uint64_t offences;
	uint64_t fined_ns;
};

/* One child.  Zeroed before it is added; must stay until it is removed. */
struct arbiter_stream {
	struct arbiter_tenant *tenant;
	/* private: */
	struct arbiter_stream *next;
	uint64_t idle_seen_ns;
	uint64_t offered_ns;
	bool want;	/* has work, and no lease to start it under */
	bool asked;	/* had work when the present lease was offered to it */
	bool expected;	/* is offered the present lease, and has not started under it yet */
	bool quit;	/* has yielded the present lease, or was dry when it got its end */
};

/* Zeroed before it is added; must stay until it is removed. */
struct arbiter_tenant {
	struct arbiter_stats stats;
	struct arbiter_lease lease;
	/* private: */
	struct turns_party party;
	struct arbiter_tenant *next;
	struct arbiter_stream *streams;
	struct watch watch;
	uint64_t ready_since_ns;
	uint64_t gate_sequence;
	uint64_t gate_asked_ns;
	uint64_t poll_at_ns;
	uint64_t hint_ns;
	uint32_t kernel_id;
	uint32_t flags;	/* of the last yield */
	bool ready;
	bool polled;
	bool gate_closed;
	bool gate_pending;
};

struct arbiter {
	struct arbiter_settings settings;
	const struct arbiter_ops *ops;
	/* private: */
	struct turns turns;
	struct arbiter_tenant *tenants;
	struct arbiter_tenant *holder;
	uint64_t now_ns;
	uint64_t settled_ns;
	uint64_t look_at_ns;
	uint64_t watch_at_ns;
	uint64_t poll_until_ns;
	bool closing;
};

/* Return: VGPU_FIELD_NONE, or the parameter at fault and nothing has changed. */
enum vgpu_sched_field arbiter_init(struct arbiter *arbiter, const struct arbiter_ops *ops,
				   const struct arbiter_settings *settings,
				   const struct vgpu_sched_params *params, uint64_t now_ns);
enum vgpu_sched_field arbiter_set(struct arbiter *arbiter, const struct arbiter_settings *settings,
				  const struct vgpu_sched_params *params, uint64_t now_ns);
enum vgpu_sched_field arbiter_tenant_add(struct arbiter *arbiter, struct arbiter_tenant *tenant,
					 const struct vgpu_group_params *params, uint64_t now_ns);
enum vgpu_sched_field arbiter_tenant_update(struct arbiter *arbiter, struct arbiter_tenant *tenant,
					    const struct vgpu_group_params *params,
					    uint64_t now_ns);
/* The tenant has no streams. */
void arbiter_tenant_remove(struct arbiter *arbiter, struct arbiter_tenant *tenant, uint64_t now_ns);

void arbiter_stream_add(struct arbiter *arbiter, struct arbiter_tenant *tenant,
			struct arbiter_stream *stream, uint64_t now_ns);
/* Nothing of the child is left. */
void arbiter_stream_remove(struct arbiter *arbiter, struct arbiter_stream *stream, uint64_t now_ns);

/**
 * arbiter_request() - a child's datagram
 *
 * Return: false if it makes no sense and nothing has changed; the child is to be
 * killed.
 */
bool arbiter_request(struct arbiter *arbiter, struct arbiter_stream *stream,
		     const struct vgpu_stream_request *request, uint64_t now_ns);

/**
 * arbiter_gate_answer() - a supervisor's answer to FREEZE or THAW
 * @sequence: of the request; an answer to another than the last counts for
 *	@processor_ns only
 * @done: the gate is as asked
 * @processor_ns: used by all the tenant's children, ever
 */
void arbiter_gate_answer(struct arbiter *arbiter, struct arbiter_tenant *tenant, uint64_t sequence,
			 bool done, uint64_t processor_ns, uint64_t now_ns);

/* The supervisor has died with all its children, whose streams are removed next. */
void arbiter_gate_reset(struct arbiter *arbiter, struct arbiter_tenant *tenant, uint64_t now_ns);

void arbiter_timer(struct arbiter *arbiter, uint64_t now_ns);

/* Bring the counters up to date. */
void arbiter_settle(struct arbiter *arbiter, uint64_t now_ns);

/* Who holds the accelerator, NULL for nobody. */
static inline struct arbiter_tenant *arbiter_holder(const struct arbiter *arbiter)
{
	return arbiter->holder;
}

/* Are the tenant's children frozen outside their leases? */
bool arbiter_is_confined(const struct arbiter *arbiter, const struct arbiter_tenant *tenant);

#endif /* VGPU_BROKER_ARBITER_H */
