/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Leases: the engine is lent to one slice until a given time, instead of item by
 * item.
 *
 * An arbiter calls these functions in place of vgpu_slice_announce(),
 * vgpu_slice_item_done() and vgpu_sched_pick().  Invariant 18 of vgpu_sched.h says
 * what they promise; all other invariants hold unchanged.  The rules for callers
 * are the same: calls are serialized, time never steps back, a refused call
 * changes nothing.
 *
 * The life of a lease:
 *
 *	vgpu_slice_ready()	some streams of the slice have work
 *	vgpu_sched_lend()	the engine is free: returns the lease
 *	vgpu_sched_review()	a margin before the lease expires, when another slice
 *				has become ready, and at review_at_ns: returns the
 *				new expiry
 *	vgpu_slice_yield()	all streams have yielded, or the gate has closed
 *	vgpu_sched_lend()	...
 *
 * A slice that is alone and has no cap gets a lease without an end, and makes no
 * more calls until another slice becomes ready.  Before any other call, the arbiter
 * calls vgpu_sched_unused() to report the time that the slice has not used
 * meanwhile.
 *
 * For an engine that is lent, struct vgpu_sched_params means:
 *
 *	max_chunk_ns	after the end of a lease, the time by which the slice's work
 *			has left the engine at the latest, min_chunk_ns included: the
 *			gate's time to close, or the longest kernel
 *	min_chunk_ns	the shortest lease worth lending
 *	splits		false, unless nothing is ever left on the engine at expiry
 */
#ifndef VGPU_SCHED_LEASE_H
#define VGPU_SCHED_LEASE_H

#include "vgpu_sched.h"

/* Flags of struct vgpu_yield; the values are those of uapi/vgpu_lease_page.h. */
#define VGPU_YIELD_WANT	(1u << 0)	/* work is queued: ready again at once */
#define VGPU_YIELD_MORE	(1u << 1)	/* more follows soon (invariant 13) */
#define VGPU_YIELD_END	(1u << 2)	/* the request is over */
#define VGPU_YIELD_FLAGS	(VGPU_YIELD_WANT | VGPU_YIELD_MORE | VGPU_YIELD_END)

/**
 * struct vgpu_yield - how a lease ends
 * @flags: VGPU_YIELD_*.  No flag means dry.  _MORE has no effect together with
 *	_WANT or _END.
 * @kernel_id: with _WANT the first kernel in the queue, else the kernel that ran
 *	last
 * @hint_ns: with _WANT, how long the first piece of work takes, 0 if unknown
 */
struct vgpu_yield {
	u32 flags;
	u32 kernel_id;
	u64 hint_ns;
};

/**
 * struct vgpu_lease - a lease, or the information that there is none
 * @slice: the slice that has the engine, NULL for none
 * @number: with @slice, number of the lease; the first lease of an engine is 1
 * @begun_ns: with @slice, when the lease began
 * @expires_ns: with @slice, when the lease expires, U64_MAX for never
 * @review_at_ns: with @slice, when to call vgpu_sched_review() if nothing happens
 *	before; without it, when to call vgpu_sched_lend().  U64_MAX for never.
 *	Both may be called at any other time.
 * @contended: another slice has work that the engine could do: yield when dry
 * @idle: without @slice, why the engine idles
 * @payer: without @slice, which slice pays for the idle engine, NULL for none
 * @band: in which band @slice runs; an unlimited lease uses up no reservation in
 *	either band
 * @switched: @slice is not the last slice that had the engine
 * @ended: the last run that has ended and was not reported before
 */
struct vgpu_lease {
	struct vgpu_slice *slice;
	u64 number;
	u64 begun_ns;
	u64 expires_ns;
	u64 review_at_ns;
	bool contended;
	enum vgpu_idle idle;
	struct vgpu_slice *payer;
	enum vgpu_band band;
	bool switched;
	struct vgpu_ended_run ended;
};

/**
 * vgpu_slice_ready() - report that streams of a slice have work and no lease
 * @sched: scheduler of the engine
 * @slice: a slice of this engine
 * @first: the first item in the queue, NULL if unknown.  @flags is 0; @hint_ns may
 *	be of any length.
 * @now_ns: the present
 *
 * Idempotent; the last description counts.  Afterwards call vgpu_sched_lend() if
 * the engine is idle, vgpu_sched_review() if it is lent.
 *
 * Return: _ABSENT, _ITEM_FLAGS, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_slice_ready(struct vgpu_sched *sched,
				       struct vgpu_slice *slice,
				       const struct vgpu_item_info *first,
				       u64 now_ns);

/**
 * vgpu_sched_lend() - lend the engine, which is free
 * @sched: scheduler of the engine
 * @now_ns: the present
 * @out: the lease; after a fault, a lease to nobody whose review_at_ns is the time
 *	of the last call
 *
 * Call this after a yield, when a slice becomes ready while the engine is idle,
 * after the slice that had the engine was removed, and at review_at_ns.
 *
 * Return: _LEASE if the engine is lent, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_sched_lend(struct vgpu_sched *sched, u64 now_ns,
				      struct vgpu_lease *out);

/**
 * vgpu_sched_review() - decide again how long the present lease lasts
 * @sched: scheduler of the engine
 * @now_ns: the present
 * @out: the lease, with unchanged number and slice.  @expires_ns may be later (the
 *	slice would get the engine again), earlier (another slice became ready), or
 *	not after @now_ns: then the lease has expired, and only a yield or the gate
 *	can follow.
 *
 * This never ends a lease, and never takes back time that has passed.  A lease that
 * has expired is not prolonged.
 *
 * Return: _LEASE if the engine is not lent, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_sched_review(struct vgpu_sched *sched, u64 now_ns,
					struct vgpu_lease *out);

/**
 * vgpu_slice_yield() - end the lease of a slice whose work has left the engine
 * @sched: scheduler of the engine
 * @slice: the slice that has the lease
 * @yield: how the lease ends; VGPU_YIELD_WANT if the gate has closed on it
 * @now_ns: the present; the slice pays until then
 *
 * May be called before or after expiry.  Call vgpu_sched_lend() afterwards.
 * Nobody pays for the time between the two calls.
 *
 * Return: _ABSENT, _LEASE if the slice has no lease, _ITEM_FLAGS, _TIME, or
 * VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_slice_yield(struct vgpu_sched *sched,
				       struct vgpu_slice *slice,
				       const struct vgpu_yield *yield,
				       u64 now_ns);

/**
 * vgpu_sched_unused() - report how much of the lease was not used
 * @sched: scheduler of the engine
 * @unused_ns: how long all streams of the slice were dry since the last call of any
 *	function that takes a time; a longer time is cut to the time since that call
 * @now_ns: the present
 *
 * The unused time counts as idle instead of being charged to the slice.  Under a
 * policy with ghosts the slice pays for it all the same.  Unless the
 * present lease has no end, @unused_ns is ignored and the call is the same as
 * vgpu_sched_advance().
 *
 * Return: _TIME or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_sched_unused(struct vgpu_sched *sched, u64 unused_ns,
					u64 now_ns);

/**
 * vgpu_slice_owe() - charge a slice for work that was found afterwards
 * @sched: scheduler of the engine
 * @slice: a slice of this engine
 * @ns: how much time of the engine, or of its equivalent, that work has used
 * @now_ns: the present
 *
 * Moves the virtual times, caps and the reservation of slice and group like a
 * charge.  It is counted as debt_ns instead of run_ns, because the wall clock time
 * has already been charged to another payer.
 *
 * Return: _ABSENT, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_slice_owe(struct vgpu_sched *sched,
				     struct vgpu_slice *slice, u64 ns,
				     u64 now_ns);

#endif /* VGPU_SCHED_LEASE_H */
