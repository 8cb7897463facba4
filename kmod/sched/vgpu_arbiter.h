/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The arbiter: lends an engine to one party at a time (uapi/vgpu_lease_page.h), in
 * the order and for the times that the scheduler decides (vgpu_lease.h).
 *
 * A party is a slice of the scheduler whose work is done by children, each of which
 * is a stream.  In the kernel module a party is a slice of a VM; in the broker it
 * is a tenant, which is a group of one slice.
 *
 * Pure: no clock, no lock, no sleep, no memory of its own.  The caller passes the
 * time (CLOCK_MONOTONIC, ns), says what children and gates have said, and carries
 * out the operations of struct vgpu_arbiter_ops.  Each public function may call any
 * of these operations, and none of them may call the arbiter.
 *
 * Rules for callers:
 *
 *  - All calls for one engine are serialized, with the calls of its scheduler, by
 *    one lock of the caller.  They may be made, and the operations must work, in
 *    any context in which that lock may be taken, hard interrupts included.
 *  - The caller owns the scheduler.  It initializes the scheduler before the
 *    arbiter; it adds, changes and removes groups and slices.  Only the arbiter
 *    calls the functions of vgpu_lease.h.
 *  - To change the scheduler, the caller first calls vgpu_arbiter_settle(), which
 *    accounts for the past and returns the time to pass to the scheduler.  Then come
 *    any number of calls of vgpu_sched.h.  vgpu_arbiter_changed() at the end reviews
 *    the present lease, or lends the engine, and arms the timer.
 *  - A slice is in the scheduler before its party is added, and its party is removed
 *    before the slice leaves the scheduler.  A party may be removed with streams and
 *    be added again.
 *
 * What a party pays for: all time from the beginning of its lease to its end, which
 * is when all its children have yielded or the gate is closed.  During a lease without
 * an end it does not pay for spans in which all its children say that they were dry.
 * Nobody else has work then, so a false statement harms nobody.
 */
#ifndef VGPU_ARBITER_H
#define VGPU_ARBITER_H

#include "vgpu_lease.h"
#include "watch.h"
/* The one header from outside this directory; it has no dependencies. */
#include "uapi/vgpu_lease_page.h"

struct vgpu_arbiter;
struct vgpu_party;
struct vgpu_stream;

/**
 * struct vgpu_arbiter_settings - of the engine
 * @grace_ns: how long after a lease's end the gate begins to close
 * @early_ns: how long before its end a lease is prolonged that nobody else waits for
 * @gate_limit_ns: a gate that does not answer for so long is lost
 * @watch: what children may use of the processor outside their leases
 */
struct vgpu_arbiter_settings {
	u64 grace_ns;
	u64 early_ns;
	u64 gate_limit_ns;
	struct vgpu_watch_settings watch;
};

/* What a child says in its stream page. */
struct vgpu_stream_view {
	u64 state;
	u64 dry_since_ns;
	u64 idle_ns;
};

/* What a lease page is to say. */
struct vgpu_arbiter_lease {
	u64 number;
	enum vgpu_lease_state state;
	u64 begun_ns;
	u64 expires_ns;
};

/**
 * struct vgpu_arbiter_ops - what the arbiter has done
 * @party: the party of a slice; only for slices of parties that are added
 * @publish: write the party's lease page, the lease word last, then a full
 *	barrier; with @wake change and wake the wake word
 * @read: copy a child's stream page
 * @gate: close or open the party's gate; the answer, with @sequence, goes to
 *	vgpu_arbiter_gate_answer().  To open an open gate changes nothing.
 * @gate_lost: the gate does not work: kill the executor with its children
 * @arm: call vgpu_arbiter_timer() at this moment; U64_MAX for never
 */
struct vgpu_arbiter_ops {
	struct vgpu_party *(*party)(struct vgpu_slice *slice);
	void (*publish)(struct vgpu_party *party,
			const struct vgpu_arbiter_lease *lease, bool wake);
	void (*read)(struct vgpu_stream *stream, struct vgpu_stream_view *view);
	void (*gate)(struct vgpu_party *party, bool close, u64 sequence);
	void (*gate_lost)(struct vgpu_party *party);
	void (*arm)(struct vgpu_arbiter *arbiter, u64 at_ns);
};

/**
 * struct vgpu_party_stats - counters of a party; all but the longest only grow
 * @leases: lent
 * @lent_ns: of leases, from beginning to end, unused spans included
 * @dries: leases that ended because all children were dry
 * @recalls: a rival came while it held the engine by itself
 * @waits: how often it had work and no lease
 * @waited_ns: all waits together
 * @longest_wait_ns: the longest
 * @gates: leases that the gate ended
 * @gate_ns: from asking to the gate's answer, all together
 * @longest_gate_ns: the longest
 * @offences: more processor time outside leases than it may use
 * @fined_ns: engine time paid for what was used outside leases
 */
struct vgpu_party_stats {
	u64 leases;
	u64 lent_ns;
	u64 dries;
	u64 recalls;
	u64 waits;
	u64 waited_ns;
	u64 longest_wait_ns;
	u64 gates;
	u64 gate_ns;
	u64 longest_gate_ns;
	u64 offences;
	u64 fined_ns;
};

/**
 * struct vgpu_stream - one child
 * @party: NULL while the stream is not added, or was detached with its party
 * @want: it has work, and no lease to start it under; kept while it is detached, and
 *	then what to say when it is added again
 *
 * Zeroed before it is added for the first time; must stay until it is removed or
 * detached.
 */
struct vgpu_stream {
	struct vgpu_party *party;
	bool want;
	/* private: */
	struct vgpu_stream *next;
	u64 idle_seen_ns;
	u64 offered_ns;
	bool asked;	/* had work when the present lease was offered to it */
	bool expected;	/* is offered the present lease, and has not started under it yet */
	bool quit;	/* has yielded the present lease, or was dry when it got its end */
};

/**
 * struct vgpu_party - a slice whose children compute in leases
 * @slice: NULL while the party is not added
 * @stats: counters, ever
 * @lease: the present lease, or the last one
 *
 * Zeroed before it is added for the first time; must stay until it is removed.
 * Counters, the number of the lease and the state of the gate are kept for the next
 * time it is added.
 */
struct vgpu_party {
	struct vgpu_slice *slice;
	struct vgpu_party_stats stats;
	struct vgpu_arbiter_lease lease;
	/* private: */
	struct vgpu_party *next;
	struct vgpu_stream *streams;
	struct vgpu_watch watch;
	u64 ready_since_ns;
	u64 gate_sequence;
	u64 gate_asked_ns;
	u64 poll_at_ns;
	u64 hint_ns;
	u32 kernel_id;
	u32 flags;	/* of the last yield */
	bool ready;
	bool polled;
	bool gate_closed;
	bool gate_pending;
};

struct vgpu_arbiter {
	struct vgpu_arbiter_settings settings;
	struct vgpu_sched *sched;
	const struct vgpu_arbiter_ops *ops;
	/* private: */
	struct vgpu_party *parties;
	struct vgpu_party *holder;
	u64 now_ns;
	u64 settled_ns;
	u64 look_at_ns;
	u64 watch_at_ns;
	u64 poll_until_ns;
	bool closing;
};

/* @sched is initialized and has lent nothing. */
void vgpu_arbiter_init(struct vgpu_arbiter *arbiter, struct vgpu_sched *sched,
		       const struct vgpu_arbiter_ops *ops,
		       const struct vgpu_arbiter_settings *settings, u64 now_ns);

/* The new settings count from now on. */
void vgpu_arbiter_configure(struct vgpu_arbiter *arbiter,
			    const struct vgpu_arbiter_settings *settings,
			    u64 now_ns);

/**
 * vgpu_arbiter_settle() - bring all counters up to date
 * @arbiter: of the engine
 * @now_ns: the present
 *
 * To be called before the caller calls the scheduler, be it to change something or
 * to ask for something.
 *
 * Return: the time to pass to the scheduler, @now_ns if time has not stepped back.
 */
u64 vgpu_arbiter_settle(struct vgpu_arbiter *arbiter, u64 now_ns);

/**
 * vgpu_arbiter_changed() - the caller has changed the scheduler
 * @arbiter: of the engine
 * @now_ns: the present
 *
 * Groups or slices were added, changed or removed, or the scheduler's parameters were
 * set.
 */
void vgpu_arbiter_changed(struct vgpu_arbiter *arbiter, u64 now_ns);

/**
 * vgpu_arbiter_party_add() - a slice computes in leases
 * @arbiter: of the engine
 * @party: not added
 * @slice: of the arbiter's scheduler, without a ready item
 * @now_ns: the present
 *
 * Publishes that there is no lease.  The party has no streams yet.
 */
void vgpu_arbiter_party_add(struct vgpu_arbiter *arbiter, struct vgpu_party *party,
			    struct vgpu_slice *slice, u64 now_ns);

/**
 * vgpu_arbiter_party_remove() - the party's slice is about to leave the scheduler
 * @arbiter: of the engine
 * @party: added
 * @now_ns: the present
 *
 * Its streams are detached and keep nothing but what they want; the caller may add
 * them again after the party.  Its lease, if it has one, is over at once.  Children
 * that are still busy under it are stopped by the gate, which is asked to close, but
 * nobody waits for its answer.  A closed gate stays closed while the party is not
 * added.
 */
void vgpu_arbiter_party_remove(struct vgpu_arbiter *arbiter,
			       struct vgpu_party *party, u64 now_ns);

/**
 * vgpu_arbiter_stream_add() - the party has another child
 * @arbiter: of the engine
 * @party: added
 * @stream: not added
 * @want: it has work already: of a stream that was detached, its own @want
 * @now_ns: the present
 *
 * A child whose page says that it is busy has work, whatever @want says.
 *
 * @want must not be said on suspicion.  A child that has no work does not answer to
 * the lease that it is offered.  Its party then is lent one lease after the other,
 * and each lasts until it expires.
 */
void vgpu_arbiter_stream_add(struct vgpu_arbiter *arbiter, struct vgpu_party *party,
			     struct vgpu_stream *stream, bool want, u64 now_ns);

/* Nothing of the child is left.  Does nothing to a stream that is not added. */
void vgpu_arbiter_stream_remove(struct vgpu_arbiter *arbiter,
				struct vgpu_stream *stream, u64 now_ns);

/**
 * vgpu_arbiter_request() - a child's datagram
 * @arbiter: of the engine
 * @stream: added or detached
 * @request: as the child wrote it; a copy that it cannot change
 * @now_ns: the present
 *
 * Of a detached stream it says only whether the stream has work.
 *
 * Return: false if it makes no sense and nothing has changed; the child is to be
 * killed.
 */
bool vgpu_arbiter_request(struct vgpu_arbiter *arbiter, struct vgpu_stream *stream,
			  const struct vgpu_stream_request *request, u64 now_ns);

/**
 * vgpu_arbiter_gate_answer() - the answer to @gate of struct vgpu_arbiter_ops
 * @arbiter: of the engine
 * @party: whose gate; it need not be added any more
 * @sequence: of the request; an answer to another than the last counts for
 *	@processor_ns only
 * @done: the gate is as asked
 * @processor_ns: used by all the party's children, ever
 * @now_ns: the present
 */
void vgpu_arbiter_gate_answer(struct vgpu_arbiter *arbiter, struct vgpu_party *party,
			      u64 sequence, bool done, u64 processor_ns, u64 now_ns);

/* The executor has died with all its children; this detaches the streams that are left. */
void vgpu_arbiter_gate_reset(struct vgpu_arbiter *arbiter, struct vgpu_party *party,
			     u64 now_ns);

/* It is as late as @arm of struct vgpu_arbiter_ops said; an earlier call is harmless. */
void vgpu_arbiter_timer(struct vgpu_arbiter *arbiter, u64 now_ns);

/* Who holds the engine, NULL for nobody. */
static inline struct vgpu_party *
vgpu_arbiter_holder(const struct vgpu_arbiter *arbiter)
{
	return arbiter->holder;
}

/* Are the party's children frozen outside their leases? */
bool vgpu_arbiter_is_confined(const struct vgpu_arbiter *arbiter,
			      const struct vgpu_party *party);

#endif /* VGPU_ARBITER_H */
