/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Leases: the engine, lent to one slice until a moment, instead of item by item.
 *
 * An arbiter calls these in place of vgpu_slice_announce(), vgpu_slice_item_done()
 * and vgpu_sched_pick().  Invariant 18 of vgpu_sched.h says what they promise; all
 * its other invariants hold as they stand.  The rules for callers are the same:
 * calls are serialized, time never steps back, a refused call changes nothing.
 *
 * The life of a lease:
 *
 *	vgpu_slice_ready()	some streams of the slice have work
 *	vgpu_sched_lend()	the engine is free: who gets it, and until when
 *	vgpu_sched_review()	a margin before it expires, when another slice has
 *				become ready, at review_at_ns: the new expiry
 *	vgpu_slice_yield()	all streams have yielded, or the gate has closed
 *	vgpu_sched_lend()	...
 *
 * A slice that is alone and has no cap gets a lease without an end, and makes no
 * more calls until somebody else becomes ready.  What it does not use meanwhile
 * the arbiter reports by vgpu_sched_unused(), before any other call.
 *
 * struct vgpu_sched_params means for an engine that is lent:
 *
 *	max_chunk_ns	how long after the end of a lease the slice's work has left
 *			the engine at the latest, min_chunk_ns included: the gate's
 *			time to close, or how long a kernel may last at most
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
 * @flags: VGPU_YIELD_*.  None means dry.  _WANT makes _MORE meaningless, _END
 *	makes _MORE void.
 * @kernel_id: with _WANT of what is first in the queue, else of what ran last
 * @hint_ns: with _WANT, how long the first piece of work takes, 0 if unknown
 */
struct vgpu_yield {
	u32 flags;
	u32 kernel_id;
	u64 hint_ns;
};

/**
 * struct vgpu_lease - a lease, or that there is none
 * @slice: who has the engine, NULL for nobody
 * @number: with @slice, of the lease; the first of an engine is 1
 * @begun_ns: with @slice, when it was lent
 * @expires_ns: with @slice, when it expires, U64_MAX for never
 * @review_at_ns: with @slice, when to call vgpu_sched_review() if nothing happens
 *	before; without it, when to call vgpu_sched_lend().  U64_MAX for never.
 *	Both may be called at any other time.
 * @contended: another slice has work that the engine could do: yield when dry
 * @idle: without @slice, why
 * @payer: without @slice, who pays for the idle engine, NULL for nobody
 * @band: with @slice, in which band it runs; an unlimited lease uses up no
 *	reservation in either
 * @switched: @slice is not the slice that had the engine last
 * @ended: the last run that has ended since the last such report
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
 * vgpu_slice_ready() - streams of a slice have work and no lease
 * @sched: engine
 * @slice: of this engine
 * @first: what is first in the queue, NULL if unknown.  @flags is 0; @hint_ns may
 *	be of any length.
 * @now_ns: the present
 *
 * Idempotent; the last description counts.  Call vgpu_sched_lend() afterwards if
 * the engine is idle, vgpu_sched_review() if it is lent.
 *
 * Return: _ABSENT, _ITEM_FLAGS, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_slice_ready(struct vgpu_sched *sched,
				       struct vgpu_slice *slice,
				       const struct vgpu_item_info *first,
				       u64 now_ns);

/**
 * vgpu_sched_lend() - the engine is free: lend it
 * @sched: engine
 * @now_ns: the present
 * @out: the lease; after a fault one for nobody, to be asked again at the time of
 *	the last call
 *
 * To be called after a yield, when a slice becomes ready while the engine is idle,
 * after the slice that had the engine was removed, and at review_at_ns.
 *
 * Return: _LEASE if the engine is lent, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_sched_lend(struct vgpu_sched *sched, u64 now_ns,
				      struct vgpu_lease *out);

/**
 * vgpu_sched_review() - how long does the present lease last, as things are now
 * @sched: engine
 * @now_ns: the present
 * @out: the lease, number and slice as they were.  @expires_ns may be later (the
 *	slice would get the engine again), earlier (somebody became ready), or not
 *	after @now_ns: then the lease has expired, and only yield or gate follow.
 *
 * Never ends a lease, and never takes back time that has passed.  A lease that has
 * expired is not prolonged.
 *
 * Return: _LEASE if the engine is not lent, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_sched_review(struct vgpu_sched *sched, u64 now_ns,
					struct vgpu_lease *out);

/**
 * vgpu_slice_yield() - the slice's work has left the engine: its lease is over
 * @sched: engine
 * @slice: who has the lease
 * @yield: how; VGPU_YIELD_WANT if the gate has closed on it
 * @now_ns: the present; the slice pays until then
 *
 * Before expiry or after it: nothing fails.  Call vgpu_sched_lend() afterwards.
 * Nobody pays for the time in between.
 *
 * Return: _ABSENT, _LEASE if the slice has no lease, _ITEM_FLAGS, _TIME, or
 * VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_slice_yield(struct vgpu_sched *sched,
				       struct vgpu_slice *slice,
				       const struct vgpu_yield *yield,
				       u64 now_ns);

/**
 * vgpu_sched_unused() - of the time since the last call, the lease was not used
 * @sched: engine
 * @unused_ns: for so long all streams of the slice were dry; what exceeds the time
 *	since the last call of any function with a time is ignored
 * @now_ns: the present
 *
 * That time is idle, not the slice's.  Under a policy with ghosts it is the
 * slice's all the same.  Without a lease it means nothing; the time passes as by
 * vgpu_sched_advance().
 *
 * Return: _TIME or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_sched_unused(struct vgpu_sched *sched, u64 unused_ns,
					u64 now_ns);

/**
 * vgpu_slice_owe() - work of the slice was found that nobody charged it for
 * @sched: engine
 * @slice: of this engine
 * @ns: how much of the engine, or of what stands for it, that work has used
 * @now_ns: the present
 *
 * Moves the virtual times, caps and the reservation of slice and group as a charge
 * does, and is counted as debt_ns instead of run_ns, because the wall clock has
 * been charged to somebody else.
 *
 * Return: _ABSENT, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_slice_owe(struct vgpu_sched *sched,
				     struct vgpu_slice *slice, u64 ns,
				     u64 now_ns);

#endif /* VGPU_SCHED_LEASE_H */
