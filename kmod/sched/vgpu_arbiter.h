/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The arbiter lends an engine to one party at a time (uapi/vgpu_lease_page.h), in the
 * order and for the times that the scheduler decides (vgpu_lease.h).
 *
 * A party is a slice of the scheduler whose work is done by children, each of which is
 * a stream.  In the kernel module a party is a slice of a VM; in the broker it is a
 * tenant, which is a group of one slice.
 *
 * The arbiter has no clock, lock or memory of its own and never sleeps.  The caller
 * passes the time (CLOCK_MONOTONIC, ns), passes on the messages of children and gates,
 * and carries out the operations of struct vgpu_arbiter_ops.  Each public function may
 * call any of these operations, and no operation may call the arbiter.
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
 * A party pays for all time from the beginning of its lease to its end.  The lease
 * ends when all its children have yielded or the gate is closed.  During a lease
 * without an end it does not pay for spans in which all its children say that they
 * were dry.  Nobody else has work then, so a false statement harms nobody.
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
 * struct vgpu_arbiter_settings - settings of the engine
 * @grace_ns: time from a lease's end until the gate begins to close
 * @early_ns: a lease that no other party waits for is prolonged this long before its
 *	end
 * @gate_limit_ns: a gate that does not answer within this time is lost
 * @watch: what children may use of the processor outside their leases
 */
struct vgpu_arbiter_settings {
	u64 grace_ns;
	u64 early_ns;
	u64 gate_limit_ns;
	struct vgpu_watch_settings watch;
};

/* Contents of a child's stream page. */
struct vgpu_stream_view {
	u64 state;
	u64 dry_since_ns;
	u64 idle_ns;
};

/* What to write into a lease page. */
struct vgpu_arbiter_lease {
	u64 number;
	enum vgpu_lease_state state;
	u64 begun_ns;
	u64 expires_ns;
};

/**
 * struct vgpu_arbiter_ops - operations of the caller
 * @party: the party of a slice; only for slices of parties that are added
 * @publish: write the party's lease page, the lease word last, then a full barrier;
 *	with @wake, change the wake word and wake its waiters
 * @read: copy a child's stream page
 * @gate: close or open the party's gate; the answer, with @sequence, goes to
 *	vgpu_arbiter_gate_answer().  Opening an open gate changes nothing.
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
 * struct vgpu_party_stats - counters of a party, which only grow
 * @leases: leases lent
 * @lent_ns: total time of leases from beginning to end, unused spans included
 * @dries: leases that ended because all children were dry
 * @recalls: times another party became ready while the lease had no end
 * @waits: times the party had work and no lease
 * @waited_ns: sum of all waits
 * @longest_wait_ns: the longest wait
 * @gates: leases that the gate ended
 * @gate_ns: sum of the times from a request to the gate until its answer
 * @longest_gate_ns: the longest of those times
 * @offences: times the party used more processor time outside leases than it may
 * @fined_ns: engine time paid for use outside leases
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
 * @want: the child has work but no lease under which to start; kept while the stream
 *	is detached, and passed on when the stream is added again
 *
 * The caller zeroes the struct before the stream is added for the first time.  The
 * struct must stay until the stream is removed or detached.
 */
struct vgpu_stream {
	struct vgpu_party *party;
	bool want;
	/* private: */
	struct vgpu_stream *next;
	u64 idle_seen_ns;
	u64 offered_ns;
	bool asked;	/* had work when it was offered the present lease */
	bool expected;	/* was offered the present lease and has not started yet */
	bool quit;	/* has yielded the lease, or was dry when it got an end */
};

/**
 * struct vgpu_party - a slice whose children compute in leases
 * @slice: NULL while the party is not added
 * @stats: counters since the party was zeroed
 * @lease: the present lease, or the last one
 *
 * The caller zeroes the struct before the party is added for the first time.  The
 * struct must stay until the party is removed.  Counters, the number of the lease and
 * the state of the gate are kept for the next time the party is added.
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
	u32 flags;	/* of the last yield, without WANT */
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

/* @sched: initialized, has lent nothing yet. */
void vgpu_arbiter_init(struct vgpu_arbiter *arbiter, struct vgpu_sched *sched,
		       const struct vgpu_arbiter_ops *ops,
		       const struct vgpu_arbiter_settings *settings, u64 now_ns);

/* The new settings apply from now on. */
void vgpu_arbiter_configure(struct vgpu_arbiter *arbiter,
			    const struct vgpu_arbiter_settings *settings,
			    u64 now_ns);

/**
 * vgpu_arbiter_settle() - bring all counters up to date
 * @arbiter: arbiter of the engine
 * @now_ns: the present
 *
 * Call this before any call of the scheduler, whether it changes or only reads
 * something.
 *
 * Return: the time to pass to the scheduler; it is @now_ns unless time has stepped
 * back.
 */
u64 vgpu_arbiter_settle(struct vgpu_arbiter *arbiter, u64 now_ns);

/**
 * vgpu_arbiter_changed() - report that the caller has changed the scheduler
 * @arbiter: arbiter of the engine
 * @now_ns: the present
 *
 * Call this after groups or slices were added, changed or removed, or the scheduler's
 * parameters were set.
 */
void vgpu_arbiter_changed(struct vgpu_arbiter *arbiter, u64 now_ns);

/**
 * vgpu_arbiter_party_add() - add a slice that computes in leases
 * @arbiter: arbiter of the engine
 * @party: the party, not added
 * @slice: a slice of the arbiter's scheduler, without a ready item
 * @now_ns: the present
 *
 * Publishes a page without a lease.  The party has no streams yet.
 */
void vgpu_arbiter_party_add(struct vgpu_arbiter *arbiter, struct vgpu_party *party,
			    struct vgpu_slice *slice, u64 now_ns);

/**
 * vgpu_arbiter_party_remove() - remove a party before its slice leaves the scheduler
 * @arbiter: arbiter of the engine
 * @party: the party, added
 * @now_ns: the present
 *
 * The party's streams are detached and only keep whether they want a lease; the caller
 * may add them again after adding the party again.  A lease of the party ends at once.
 * If children are still busy under that lease, the gate is asked to close and stops
 * them, but the arbiter does not wait for the gate's answer.  A closed gate stays
 * closed while the party is not added.
 */
void vgpu_arbiter_party_remove(struct vgpu_arbiter *arbiter,
			       struct vgpu_party *party, u64 now_ns);

/**
 * vgpu_arbiter_stream_add() - add another child to the party
 * @arbiter: arbiter of the engine
 * @party: the party, added
 * @stream: the stream, not added
 * @want: the child has work already; for a stream that was detached, pass the stream's
 *	own @want
 * @now_ns: the present
 *
 * A child whose page says that it is busy has work, whatever @want is.
 *
 * Set @want only if the child is known to have work.  A child without work does not
 * respond to the lease that it is offered.  Its party then gets one lease after the
 * other, and each of these leases lasts until it expires.
 */
void vgpu_arbiter_stream_add(struct vgpu_arbiter *arbiter, struct vgpu_party *party,
			     struct vgpu_stream *stream, bool want, u64 now_ns);

/* Remove a stream and its state.  A stream that is not added is ignored. */
void vgpu_arbiter_stream_remove(struct vgpu_arbiter *arbiter,
				struct vgpu_stream *stream, u64 now_ns);

/**
 * vgpu_arbiter_request() - handle a child's datagram
 * @arbiter: arbiter of the engine
 * @stream: the stream, added or detached
 * @request: copy of the request that the child wrote; the child cannot change it
 * @now_ns: the present
 *
 * For a detached stream, the request only records whether the stream has work.
 *
 * Return: false if the request is invalid; nothing has changed, and the caller must
 * kill the child.
 */
bool vgpu_arbiter_request(struct vgpu_arbiter *arbiter, struct vgpu_stream *stream,
			  const struct vgpu_stream_request *request, u64 now_ns);

/**
 * vgpu_arbiter_gate_answer() - handle the answer to @gate of struct vgpu_arbiter_ops
 * @arbiter: arbiter of the engine
 * @party: owner of the gate; it may have been removed
 * @sequence: number of the request; if it is not the last request, only @processor_ns
 *	is used
 * @done: the gate is in the requested state
 * @processor_ns: processor time that all the party's children have ever used
 * @now_ns: the present
 */
void vgpu_arbiter_gate_answer(struct vgpu_arbiter *arbiter, struct vgpu_party *party,
			      u64 sequence, bool done, u64 processor_ns, u64 now_ns);

/* The executor has died with all its children.  Detaches the streams that are left. */
void vgpu_arbiter_gate_reset(struct vgpu_arbiter *arbiter, struct vgpu_party *party,
			     u64 now_ns);

/*
 * Call this at the time that @arm of struct vgpu_arbiter_ops gave; an earlier call is
 * harmless.
 */
void vgpu_arbiter_timer(struct vgpu_arbiter *arbiter, u64 now_ns);

/* The party that holds the engine, NULL for none. */
static inline struct vgpu_party *
vgpu_arbiter_holder(const struct vgpu_arbiter *arbiter)
{
	return arbiter->holder;
}

/* Are the party's children frozen outside their leases? */
bool vgpu_arbiter_is_confined(const struct vgpu_arbiter *arbiter,
			      const struct vgpu_party *party);

#endif /* VGPU_ARBITER_H */
