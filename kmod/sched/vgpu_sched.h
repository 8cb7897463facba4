/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The vgpumgr timeslice scheduler: who owns one engine, and for how long.
 *
 * One struct vgpu_sched per engine.  Groups (all slices of one tenant on one
 * GPU) share the engine by weight; the slices of a group share what the group
 * gets.  Pure integer arithmetic over structs the caller allocates: no
 * allocation, clock, sleep or lock inside.  Every function takes the current
 * time, and all calls on one struct vgpu_sched must be serialized by the
 * caller.  The same files are built into vgpumgr.ko and into the Python
 * extension vgpumgr.sched, so what the tests prove is what the kernel runs.
 *
 * Invariants (the numbers are used by tests/sched/):
 *
 *  1. Charge once.  Each entry point first charges all time since the previous
 *     one to exactly one payer: the slice that owns the engine and its group,
 *     whether it executes, holds the engine (13) or has its ghost idle in its
 *     place (16), or else to idle.  wall_ns == idle_ns + sum of charges, exactly,
 *     at both levels.  Who is switched in pays for being switched in.  Nobody
 *     pays for a host that looks late at an engine which has stopped
 *     (vgpu_sched_busy_until()).  Every charge moves the virtual time and the cap
 *     of its payer, in either band.
 *  2. Average.  A queue's virtual time V is the weighted mean of its members'
 *     virtual runtimes v; lag = weight * (V - v), in ns.  A member is eligible
 *     iff lag >= 0.  The pick is the eligible member with the earliest virtual
 *     deadline (EEVDF); ties go to the one that has waited longest.  A request
 *     is as large as the longest legal run: timeslice plus one chunk.  (With
 *     requests of one timeslice, 50 groups of weight 1 whose pieces of up to
 *     0.4 ms overrun 1 ms put one of weight 100 a lag of 4.8 ms behind.)
 *  3. Debt.  Who sleeps or is throttled leaves the average only at lag >= 0.
 *     In debt it stays a member that cannot be picked, until V has reached it.
 *     Debt is never clamped or forgotten (the number saturates at three days).
 *  4. Credit.  Who returns joins at v = max(v, H - timeslice / weight), where H
 *     is the furthest V has been, and begins a new request.  (Measured from V
 *     instead of H, credit is worth more while a light returner has pulled V back:
 *     of two equal sleepers the first to wake then got 365 ms ahead of the other.)
 *     All credit together, what is out and what may still be given, is at most the
 *     timeslice of who returns, and grows by no more than the weight that sleeps
 *     would have been served; who finds none left joins at H.  A change of weight
 *     keeps lag.  V steps back (H does not) only when a member joins with credit or
 *     is removed for good while in debt.  While nobody joins or leaves, |lag| <=
 *     max timeslice + max chunk; sleepers that return, however many, make a lag at
 *     most one max timeslice less; each reservation may add its reserve_ns and a
 *     chunk.  So a group that is always ready gets over any window its part by
 *     weight, among all that there are, less at most 2 * (max timeslice + max
 *     chunk) + 2 * max timeslice times that part, unless caps or reservations or
 *     changes of weight say otherwise.
 *  5. Two levels.  2 to 4 hold among the groups of an engine and among the
 *     slices of a group.  More slices never change the share of their group
 *     (but under VGPU_POLICY_EQUAL_SHARE and _FIXED_SHARE they are the share).
 *  6. Timeslice.  A run is one uninterrupted stay of a group on the engine,
 *     as long as the engine time charged for it.  It ends when it has lasted
 *     the timeslice that was in force when it began (at most one chunk later),
 *     when the group ran dry, when a cap ended it, when the owner was removed,
 *     when band L cut it or its reservation budget was used up, and for no
 *     other reason; a wakeup never cuts a run, only the next pick does.  At the
 *     end of a timeslice the engine is offered to everybody; a group that keeps
 *     it begins a new run.  A run that band L cut goes on later with what was
 *     left of its timeslice, unless its group was not ready meanwhile.  What a
 *     group runs in band L is taken from its timeslice in the fair band.
 *  7. Caps.  Refill is continuous, credit never exceeds burst, and use over any
 *     window T is at most T * cap / period + burst + one chunk.  A throttled
 *     party returns once its credit reaches min(timeslice, burst).  A group
 *     whose ready slices are all throttled is throttled, and in no band.  Credit
 *     that is full earns nothing while its party waits for its turn, so only a
 *     burst well above one timeslice gets a busy party all of its cap.
 *  8. Bounded work.  No call takes more than O(log n) steps, amortized (a
 *     sleeper that was in debt is dropped once, when V has reached it).
 *  9. Determinism.  Decisions depend on the sequence of calls and the
 *     differences of their times only; neither the clock's origin nor a wrap of
 *     clock or virtual time changes them.
 * 10. Calls are atomic.  A call with bad parameters, for an object that is not
 *     on this engine or already there, out of order, or with a time before that
 *     of the last call returns a fault, and then nothing has changed.
 * 11. Band L.  A ready group of VGPU_BAND_LATENCY with credit in its caps and
 *     budget in its reservation goes before all others, the earliest deadline of
 *     a reservation first; the next pick cuts a run of a later deadline or of the
 *     fair band for it.  Without budget it competes in the fair band (2).
 * 12. Reservation.  A constant bandwidth server (Abeni and Buttazzo, 1998) of
 *     Q = reserve_ns per P = reserve_period_ns.  Runs in band L and hold use up
 *     its budget.  At each deadline it gets Q more, up to Q, and the next deadline
 *     is P later; without budget it waits for the first that leaves some.  Who
 *     becomes ready with more budget than Q / P of the time until its deadline
 *     starts anew: deadline now + P, budget Q.  A run that cut another costs,
 *     beside its own time, switch_cost_ns of budget for the way back in that the
 *     other pays (of nothing else: invariant 1 stays exact), so that Q covers all
 *     that a reservation costs its neighbours.
 *     Budget may be overdrawn by one chunk and that, which is paid back.  So use
 *     in band L over any window T is at most T * Q / P + 2 * Q + one chunk.
 *     Admitted is only what can be kept: the sum of (Q + overdraft) / P is at most
 *     reserve_limit_permille, where overdraft is max_chunk_ns, but 0 on an engine
 *     that splits; P >= VGPU_RESERVE_CHUNKS * max_chunk_ns; Q / P is at most the
 *     group's cap and at most weight / (sum of the weights of all groups), so that
 *     a reservation is a floor inside the share.  What would break this for a
 *     reservation already given is refused as well.  So who is ready has used up
 *     its budget, or run dry, by its deadline plus one chunk (it may wake when a
 *     piece of somebody else has just begun), as long as no piece is longer than
 *     max_chunk_ns; on an engine that splits, at most min_chunk_ns later than that
 *     for each reservation.
 * 13. Hold.  When a group of band L with budget runs dry after an item flagged
 *     VGPU_ITEM_MORE, it holds the engine: until it has an item again, its
 *     budget or a cap is used up, hold_max_ns have passed, the request is said to
 *     be over, or its slice is removed.  It pays for the engine's idling
 *     meanwhile.  One group holds at a time: who runs dry during the hold of
 *     another begins none.  Other groups of band L do not wait for it.
 * 14. Gap gate.  While a group holds, the fair band starts an item only if the
 *     holder's inversion budget is not overdrawn and covers the expected
 *     inversion: the mean, over the holder's observed gaps that are not over yet,
 *     of how much longer than the rest of the gap the item is predicted to take.
 *     Time that the fair band executes while the holder has a ready item again is
 *     measured and taken from that budget.  So inversion over any window T is at
 *     most T * inversion_permille / 1000 + burst + one chunk.
 * 15. Prediction.  A group's predictions come from its own completed items, by
 *     kernel id, in a table of fixed size.  A kernel is predicted to take as long
 *     as its longest recent execution; with fewer than VGPU_PREDICT_SAMPLES
 *     samples max_chunk_ns, or its hint if that is longer.  A gap is predicted
 *     only from as many samples.  What a group does, hints or flags never changes
 *     the prediction for another, but for the way back in after its cuts, which
 *     is charged to the item that was cut and so part of how long that took.
 * 16. Ghosts.  Under VGPU_POLICY_EQUAL_SHARE a group weighs as much as it has
 *     slices and each slice has an equal part; one without a ready item is
 *     picked all the same, and the engine idles at its cost for its timeslice
 *     or until it has an item.  VGPU_POLICY_FIXED_SHARE adds the places that are
 *     not sold, which idle at nobody's cost.  While no slice has a ready item the
 *     engine is parked without a timer, and the time is charged at once
 *     afterwards: everybody's part by weight (the rest of the division, less than
 *     a nanosecond per slice, to idle), no lag changes.
 * 17. Legal combinations of policy, mode and band: vgpu_combination_check().
 * 18. Leases (vgpu_lease.h).  A slice whose streams have work is one ready item.
 *     A lease lasts what timeslice, caps and reservation budget leave of the run,
 *     during a hold what the gap leaves (14), and at least min_chunk_ns.  It is
 *     prolonged by a timeslice as long as the slice would be chosen again at its
 *     end by 2 and 5, 11 has nobody better, and 7 leaves credit; without end while
 *     no other slice is ready and no cap applies.  Who becomes ready brings the
 *     end of the present timeslice back, who is of band L the present moment.
 *     Expiry fails nothing: the slice pays until it yields or the gate has closed,
 *     at the latest a chunk after the end, so a chunk is to 6, 7, 11, 12 and 14
 *     what it is for items.  A lease that was prolonged counts as runs of one
 *     timeslice each, whether or not anybody looked at their ends.
 *
 * Times are nanoseconds, weights have no unit.
 */
#ifndef VGPU_SCHED_H
#define VGPU_SCHED_H

#include "port.h"

#define VGPU_WEIGHT_MIN		1u
#define VGPU_WEIGHT_MAX		10000u
/* A timeslice is at least this many switch costs long. */
#define VGPU_TIMESLICE_SWITCHES	20u
#define VGPU_TIMESLICE_MIN_NS	10000ull
#define VGPU_TIMESLICE_MAX_NS	1000000000ull
#define VGPU_CAP_PERIOD_MIN_NS	100000ull
#define VGPU_CAP_PERIOD_MAX_NS	1000000000ull
/* The smallest cap is one part in this many of its period. */
#define VGPU_CAP_RATIO_MAX	10000u
#define VGPU_BURST_MAX_NS	8000000000ull
#define VGPU_CHUNK_MIN_NS	1000ull
#define VGPU_CHUNK_MAX_NS	10000000000ull
#define VGPU_SWITCH_COST_MAX_NS	10000000ull
#define VGPU_PLACES_MAX		10000u
/*
 * A piece of somebody else may delay a reservation by one chunk per period, and
 * another reservation may use a chunk more than its Q, so deadlines can be kept
 * (non-preemptive EDF) as long as the sum of (Q + max_chunk_ns) / P and
 * max_chunk_ns / P stays below one.
 */
#define VGPU_RESERVE_CHUNKS	4u
#define VGPU_RESERVE_LIMIT_MAX	750u
#define VGPU_RESERVE_PERIOD_MIN_NS	100000ull
#define VGPU_RESERVE_PERIOD_MAX_NS	4000000000ull
#define VGPU_HOLD_MAX_NS	1000000000ull
/* How long a place that is not sold idles at a time, if the floor is not above. */
#define VGPU_UNSOLD_TIMESLICE_NS	1000000ull

/**
 * enum vgpu_sched_field - what a call is refused for; the values are frozen
 * @VGPU_FIELD_NONE: nothing, the call was carried out
 * @VGPU_FIELD_MAX_CHUNK: outside VGPU_CHUNK_MIN_NS..VGPU_CHUNK_MAX_NS
 * @VGPU_FIELD_MIN_CHUNK: zero, or above max_chunk_ns
 * @VGPU_FIELD_SWITCH_COST: above VGPU_SWITCH_COST_MAX_NS
 * @VGPU_FIELD_WEIGHT: outside VGPU_WEIGHT_MIN..VGPU_WEIGHT_MAX
 * @VGPU_FIELD_TIMESLICE: below its floor (vgpu_sched_timeslice_floor()) or
 *	above VGPU_TIMESLICE_MAX_NS
 * @VGPU_FIELD_CAP: above the period, or below period / VGPU_CAP_RATIO_MAX
 * @VGPU_FIELD_CAP_PERIOD: outside VGPU_CAP_PERIOD_MIN_NS..VGPU_CAP_PERIOD_MAX_NS
 * @VGPU_FIELD_BURST: not 0 and below the floor of a timeslice, or above
 *	VGPU_BURST_MAX_NS
 * @VGPU_FIELD_POLICY: unknown, or another one while the engine has groups
 * @VGPU_FIELD_PLACES: not 0 without VGPU_POLICY_FIXED_SHARE; else outside
 *	1..VGPU_PLACES_MAX, below the number of slices, or all taken
 * @VGPU_FIELD_RESERVE_LIMIT: above VGPU_RESERVE_LIMIT_MAX, below what is
 *	reserved, or not 0 under a policy without reservations
 * @VGPU_FIELD_MODE: unknown, or not legal under the policy (invariant 17)
 * @VGPU_FIELD_BAND: unknown, or not legal under the policy (invariant 17)
 * @VGPU_FIELD_RESERVE: zero or above the period, or more than the limit, the
 *	share or the cap leaves (invariant 12); not 0 outside band L
 * @VGPU_FIELD_RESERVE_PERIOD: outside VGPU_RESERVE_PERIOD_MIN_NS..
 *	VGPU_RESERVE_PERIOD_MAX_NS, or below VGPU_RESERVE_CHUNKS chunks
 * @VGPU_FIELD_HOLD: above VGPU_HOLD_MAX_NS; not 0 outside band L
 * @VGPU_FIELD_INVERSION: above 1000; not 0 outside band L
 * @VGPU_FIELD_INVERSION_BURST: above VGPU_BURST_MAX_NS
 * @VGPU_FIELD_ITEM_FLAGS: unknown
 * @VGPU_FIELD_ITEM_HINT: longer than max_chunk_ns on an engine that neither
 *	splits nor preempts
 * @VGPU_FIELD_TIME: before the time of the last call
 * @VGPU_FIELD_ADDED: the object is on an engine already
 * @VGPU_FIELD_ABSENT: the object is not on this engine
 * @VGPU_FIELD_SLICES: the group still has slices
 * @VGPU_FIELD_NO_ITEM: the slice has no ready item
 * @VGPU_FIELD_NO_OWNER: nobody's work is on the engine
 * @VGPU_FIELD_LEASE: the engine is lent, or is not, or to another slice
 *
 * VGPU_FIELD_WEIGHT also says that a weight would push a reservation of another
 * group above its share, VGPU_FIELD_MAX_CHUNK that some were admitted for shorter
 * chunks, VGPU_FIELD_CAP that the policy or mode allows no cap, or needs one.
 */
enum vgpu_sched_field {
	VGPU_FIELD_NONE = 0,
	VGPU_FIELD_MAX_CHUNK,
	VGPU_FIELD_MIN_CHUNK,
	VGPU_FIELD_SWITCH_COST,
	VGPU_FIELD_WEIGHT,
	VGPU_FIELD_TIMESLICE,
	VGPU_FIELD_CAP,
	VGPU_FIELD_CAP_PERIOD,
	VGPU_FIELD_BURST,
	VGPU_FIELD_POLICY,
	VGPU_FIELD_PLACES,
	VGPU_FIELD_RESERVE_LIMIT,
	VGPU_FIELD_MODE,
	VGPU_FIELD_BAND,
	VGPU_FIELD_RESERVE,
	VGPU_FIELD_RESERVE_PERIOD,
	VGPU_FIELD_HOLD,
	VGPU_FIELD_INVERSION,
	VGPU_FIELD_INVERSION_BURST,
	VGPU_FIELD_ITEM_FLAGS,
	VGPU_FIELD_ITEM_HINT,
	VGPU_FIELD_TIME,
	VGPU_FIELD_ADDED,
	VGPU_FIELD_ABSENT,
	VGPU_FIELD_SLICES,
	VGPU_FIELD_NO_ITEM,
	VGPU_FIELD_NO_OWNER,
	VGPU_FIELD_LEASE,
};

/**
 * enum vgpu_policy - what becomes of time that nobody uses
 * @VGPU_POLICY_BEST_EFFORT: who has work gets it
 * @VGPU_POLICY_EQUAL_SHARE: each attached slice has the same part of the engine,
 *	which idles while that slice has no work
 * @VGPU_POLICY_FIXED_SHARE: the same for each place that could be sold
 */
enum vgpu_policy {
	VGPU_POLICY_BEST_EFFORT = 0,
	VGPU_POLICY_EQUAL_SHARE,
	VGPU_POLICY_FIXED_SHARE,
};

/**
 * enum vgpu_mode - what a tenant was sold
 * @VGPU_MODE_FAIR: its share, and more while others leave it
 * @VGPU_MODE_STRICT: never more than its share: the cap under
 *	VGPU_POLICY_BEST_EFFORT, its places under VGPU_POLICY_FIXED_SHARE
 */
enum vgpu_mode {
	VGPU_MODE_FAIR = 0,
	VGPU_MODE_STRICT,
};

/**
 * enum vgpu_band - how a group competes
 * @VGPU_BAND_FAIR: by weight
 * @VGPU_BAND_LATENCY: before the others as long as its reservation lasts
 */
enum vgpu_band {
	VGPU_BAND_FAIR = 0,
	VGPU_BAND_LATENCY,
};

/**
 * enum vgpu_run_reason - why a run ended
 * @VGPU_RUN_TIMESLICE: it had lasted its timeslice
 * @VGPU_RUN_DRY: no slice of the group had a ready item
 * @VGPU_RUN_CAP: the group, or every slice of it with a ready item, is throttled
 * @VGPU_RUN_REMOVED: the slice that owned the engine was removed
 * @VGPU_RUN_LATENCY: cut for band L, or because the next item does not pass the
 *	gap gate
 * @VGPU_RUN_BUDGET: it was in band L and used up the budget
 */
enum vgpu_run_reason {
	VGPU_RUN_TIMESLICE = 0,
	VGPU_RUN_DRY,
	VGPU_RUN_CAP,
	VGPU_RUN_REMOVED,
	VGPU_RUN_LATENCY,
	VGPU_RUN_BUDGET,
};

/**
 * struct vgpu_sched_params - properties of the engine
 * @max_chunk_ns: the longest piece the engine executes without asking again
 * @min_chunk_ns: the shortest piece worth starting; limits are rounded up to it
 * @switch_cost_ns: measured cost of a switch; a timeslice is at least
 *	VGPU_TIMESLICE_SWITCHES times as long.  A new value applies to settings
 *	made after it.
 * @splits: the engine never executes longer than limit_ns (it can split or
 *	preempt every item).  Otherwise a run may exceed its timeslice by up to
 *	max_chunk_ns, deadlines are set for runs of that length, and items said to
 *	be longer than max_chunk_ns are refused.
 * @policy: cannot be changed while the engine has groups
 * @places: how many slices VGPU_POLICY_FIXED_SHARE can sell, else 0
 * @reserve_limit_permille: the most of the engine that may be reserved, with
 *	what can be overdrawn (invariant 12); 0 for no reservations
 */
struct vgpu_sched_params {
	u64 max_chunk_ns;
	u64 min_chunk_ns;
	u64 switch_cost_ns;
	bool splits;
	enum vgpu_policy policy;
	u32 places;
	u32 reserve_limit_permille;
};

/**
 * struct vgpu_group_params - what a tenant was granted on this engine
 * @weight: VGPU_WEIGHT_MIN..VGPU_WEIGHT_MAX; counts under
 *	VGPU_POLICY_BEST_EFFORT only (invariant 16)
 * @timeslice_ns: the longest run before the engine is offered to others; a new
 *	value is effective from the next run
 * @cap_ns: engine time per @cap_period_ns, 0 for no cap (then the next two are
 *	ignored)
 * @cap_period_ns: see @cap_ns
 * @burst_ns: the most cap credit that can be saved up, 0 for one timeslice
 * @mode: what was sold; VGPU_MODE_STRICT needs a cap under
 *	VGPU_POLICY_BEST_EFFORT
 * @band: all that follows is 0 outside VGPU_BAND_LATENCY
 * @reserve_ns: engine time in band L per @reserve_period_ns
 * @reserve_period_ns: the longest wait for it
 * @hold_max_ns: the longest hold after an item flagged VGPU_ITEM_MORE, 0 for none
 * @inversion_permille: of all time, how much others may execute while this group,
 *	which held the engine, is ready; 0 if nobody may execute during its holds
 * @inversion_burst_ns: the most that can be saved up of that, 0 for max_chunk_ns
 */
struct vgpu_group_params {
	u32 weight;
	u64 timeslice_ns;
	u64 cap_ns;
	u64 cap_period_ns;
	u64 burst_ns;
	enum vgpu_mode mode;
	enum vgpu_band band;
	u64 reserve_ns;
	u64 reserve_period_ns;
	u64 hold_max_ns;
	u32 inversion_permille;
	u64 inversion_burst_ns;
};

/**
 * struct vgpu_slice_params - a slice inside its group
 * @weight: against the other slices of the group; counts under
 *	VGPU_POLICY_BEST_EFFORT only
 * @cap_ns: as in struct vgpu_group_params
 * @cap_period_ns: as in struct vgpu_group_params
 * @burst_ns: 0 for one timeslice of the group
 */
struct vgpu_slice_params {
	u32 weight;
	u64 cap_ns;
	u64 cap_period_ns;
	u64 burst_ns;
};

/* The next item of the same request follows: hold the engine for it. */
#define VGPU_ITEM_MORE		(1u << 0)
#define VGPU_ITEM_FLAGS		VGPU_ITEM_MORE

/**
 * struct vgpu_item_info - what is said of a slice's first item
 * @kernel_id: the same for items that take equally long, chosen by the tenant
 * @flags: VGPU_ITEM_MORE, or 0 for the last item of its request
 * @hint_ns: how long it takes, 0 if unknown
 *
 * It may be wrong or a lie: see invariants 14 and 15 for what it can change.
 */
struct vgpu_item_info {
	u32 kernel_id;
	u32 flags;
	u64 hint_ns;
};

/*
 * Run lengths are counted in a log-linear histogram with four buckets per
 * octave.  Bucket 0 holds lengths below 1024 ns, the last bucket lengths of
 * 2^34 ns (17 s) and more.  In between, with e = floor(log2(length)):
 *	bucket = 1 + 4 * (e - 10) + ((length >> (e - 2)) & 3)
 * so that bucket b = 1 + 4 * o + q begins at (4 + q) << (8 + o) ns.
 */
#define VGPU_HIST_FIRST_LOG2	10
#define VGPU_HIST_LAST_LOG2	34
#define VGPU_HIST_BUCKETS	(4 * (VGPU_HIST_LAST_LOG2 - VGPU_HIST_FIRST_LOG2) + 2)

/**
 * struct vgpu_group_stats - counters of a group; all but the longest only grow
 * @run_ns: engine time charged
 * @runs: ended runs
 * @uncut_runs: of them, ended by the timeslice
 * @short_uncut_runs: of those, shorter than the timeslice in force when they
 *	began; always 0, counted as a check of invariant 6
 * @longest_run_ns: since the present timeslice was set
 * @throttles: times a cap of the group itself ran out
 * @throttled_ns: time between such an event and the return of the credit,
 *	counted at the return
 * @switches: times the engine was switched to a slice of this group
 * @histogram: lengths of ended runs
 * @latency_ns: of run_ns, used from the reservation, hold included
 * @demotions: times the reservation's budget was used up
 * @holds: times the group began to hold the engine
 * @hold_ns: of latency_ns, time the engine idled for the group
 * @fills: pieces that others executed during holds
 * @inversion_ns: of them, time the group had a ready item
 * @ghost_ns: of run_ns, time the engine idled for slices without an item
 * @debt_ns: beside run_ns, work that was found afterwards (vgpu_slice_owe())
 *
 * Under a policy with ghosts vgpu_group_settle() brings run_ns and ghost_ns up to
 * date.
 */
struct vgpu_group_stats {
	u64 run_ns;
	u64 runs;
	u64 uncut_runs;
	u64 short_uncut_runs;
	u64 longest_run_ns;
	u64 throttles;
	u64 throttled_ns;
	u64 switches;
	u64 histogram[VGPU_HIST_BUCKETS];
	u64 latency_ns;
	u64 demotions;
	u64 holds;
	u64 hold_ns;
	u64 fills;
	u64 inversion_ns;
	u64 ghost_ns;
	u64 debt_ns;
};

/**
 * struct vgpu_slice_stats - counters of a slice
 * @run_ns: engine time charged
 * @runs: times the slice was chosen: at the start of a run of its group, or in
 *	the middle of one because the slice before it could not go on
 * @throttles: times the slice's own cap ran out
 * @throttled_ns: as in struct vgpu_group_stats
 * @switches: times the engine was switched to this slice
 * @ghost_ns: as in struct vgpu_group_stats
 * @debt_ns: as in struct vgpu_group_stats
 */
struct vgpu_slice_stats {
	u64 run_ns;
	u64 runs;
	u64 throttles;
	u64 throttled_ns;
	u64 switches;
	u64 ghost_ns;
	u64 debt_ns;
};

/**
 * struct vgpu_sched_stats - counters of an engine
 * @wall_ns: time since vgpu_sched_init()
 * @idle_ns: of it, time the engine belonged to nobody; places not sold included
 * @picks: calls of vgpu_sched_pick()
 * @switches: picks whose slice differs from the slice that had the engine last
 */
struct vgpu_sched_stats {
	u64 wall_ns;
	u64 idle_ns;
	u64 picks;
	u64 switches;
};

/* The following structs are internal; only their size is the caller's matter. */

/* A node of a balanced tree ordered by @key; @best has the least (rank, seq). */
struct vgpu_node {
	struct vgpu_node *parent, *left, *right, *best;
	u64 key;
	u64 rank;
	u64 seq;
	int height;
};

/* A queue: the entities of one level and their average.  See queue.c. */
struct vgpu_queue {
	struct vgpu_node *ready;
	struct vgpu_node *debtors;
	u64 vtime;
	u64 vtime_high;
	u64 vtime_rem;
	u64 vtime_mark;
	u64 laps;
	u64 weight;
	u64 asleep;
	u64 credit;
	u64 credit_mark;
	u64 seq;
	u64 overrun_ns;
	u32 nr_ready;
};

/* A party in a queue: a group on its engine, a slice in its group. */
struct vgpu_entity {
	struct vgpu_node node;		/* key: virtual runtime, rank: deadline */
	u64 timeslice_ns;
	u64 remainder;
	u64 left_lap;
	u32 weight;
	bool ready;
	bool running;
	bool member;
	bool added;
};

/* A cap, or an inversion budget.  See bucket.c. */
struct vgpu_bucket {
	struct vgpu_node timer;		/* key: end of the throttle */
	u64 cap_ns;
	u64 period_ns;
	u64 burst_ns;
	s64 credit_ns;
	u64 remainder;
	u64 last_ns;
	u64 throttled_since_ns;
	bool throttled;
	bool armed;
	bool of_group;
};

/* A reservation.  See reserve.c. */
struct vgpu_reserve {
	struct vgpu_node node;		/* in band L, or waiting until key */
	struct vgpu_node grant;		/* key: most total weight, rank: period */
	struct vgpu_node **tree;
	u64 deadline_ns;
	s64 budget_ns;
};

/* What is known of one kernel of a group.  See predict.c. */
#define VGPU_PREDICT_KERNELS	64u
#define VGPU_PREDICT_BUCKETS	64u
#define VGPU_PREDICT_SAMPLES	8u

struct vgpu_kernel {
	u32 id;
	u32 used;		/* when, counted in records; 0 for an empty place */
	u8 duration[VGPU_PREDICT_BUCKETS];
	u8 gap[VGPU_PREDICT_BUCKETS];
};

struct vgpu_predictor {
	u32 records;
	struct vgpu_kernel kernels[VGPU_PREDICT_KERNELS];
};

/**
 * struct vgpu_group - all slices of one tenant on one engine
 * @stats: to be read under the caller's lock
 * @params: what is in force; read only
 */
struct vgpu_group {
	struct vgpu_group_stats stats;
	struct vgpu_group_params params;
	/* private: */
	struct vgpu_sched *sched;
	struct vgpu_entity entity;
	struct vgpu_bucket bucket;
	struct vgpu_bucket inversion;
	struct vgpu_reserve reserve;
	struct vgpu_queue queue;
	struct vgpu_predictor predictor;
	u64 rest_ns;
	u64 parked_mark;
	u32 nr_slices;
	u32 nr_with_item;
};

/**
 * struct vgpu_slice - one device of a group
 * @stats: to be read under the caller's lock
 * @params: what is in force; read only
 * @group: read only
 */
struct vgpu_slice {
	struct vgpu_slice_stats stats;
	struct vgpu_slice_params params;
	struct vgpu_group *group;
	/* private: */
	struct vgpu_entity entity;
	struct vgpu_bucket bucket;
	struct vgpu_item_info item;
	u32 done_kernel_id;
	u64 item_ns;
	u64 done_at_ns;
	u64 parked_mark;
	bool has_item;
	bool described;
	bool more;
};

/**
 * struct vgpu_ended_run - a run that is over
 * @valid: there is one; else the other members mean nothing
 * @group: whose run it was
 * @start_ns: when it began
 * @length_ns: how long it lasted, switch-in included
 * @timeslice_ns: the timeslice it was given
 * @reason: why it ended
 */
struct vgpu_ended_run {
	bool valid;
	struct vgpu_group *group;
	u64 start_ns;
	u64 length_ns;
	u64 timeslice_ns;
	enum vgpu_run_reason reason;
};

/**
 * enum vgpu_idle - why an engine idles
 * @VGPU_IDLE_EMPTY: nobody can use it
 * @VGPU_IDLE_HOLD: a group holds it (invariant 13)
 * @VGPU_IDLE_GHOST: it is the turn of a slice without an item, or of a place that
 *	is not sold (invariant 16)
 */
enum vgpu_idle {
	VGPU_IDLE_EMPTY = 0,
	VGPU_IDLE_HOLD,
	VGPU_IDLE_GHOST,
};

/**
 * struct vgpu_decision - what vgpu_sched_pick() decided
 * @slice: owner of the engine from now on, NULL for nobody
 * @limit_ns: execute at most this long before the next pick: what is left of
 *	timeslice and caps, within min_chunk_ns..max_chunk_ns; 0 without @slice.
 *	An engine that cannot split overruns by at most one chunk.
 * @wake_at_ns: without @slice, when to pick again if nothing happens before:
 *	when a throttle will end that keeps a ready item from running, when a hold
 *	ends or the gap gate may decide differently, or when the turn of a ghost is
 *	over; U64_MAX for never.  A pick before it is harmless, a pick then may name
 *	a later time.
 * @idle: without @slice, why
 * @payer: without @slice, who pays for it, NULL for nobody
 * @band: with @slice, in which band it runs
 * @switched: @slice is not the slice that had the engine last
 * @ended: the run that this pick, or a remove before it, ended
 */
struct vgpu_decision {
	struct vgpu_slice *slice;
	u64 limit_ns;
	u64 wake_at_ns;
	enum vgpu_idle idle;
	struct vgpu_slice *payer;
	enum vgpu_band band;
	bool switched;
	struct vgpu_ended_run ended;
};

/* Who holds the engine.  See hold.c. */
struct vgpu_hold {
	struct vgpu_slice *slice;
	u64 since_ns;
	u64 needs_ns;
};

/* The lease that is out, or was.  See lease.c. */
struct vgpu_loan {
	u64 number;
	u64 begun_ns;
	u64 until_ns;
	u64 gap_end_ns;
	u64 unused_ns;
	bool lends;
	bool lent;
	bool open;
	bool kept;
};

/**
 * struct vgpu_sched - the scheduler of one engine
 * @stats: to be read under the caller's lock
 * @params: what is in force; read only
 * @now_ns: time of the last call
 */
struct vgpu_sched {
	struct vgpu_sched_stats stats;
	struct vgpu_sched_params params;
	u64 now_ns;
	/* private: */
	struct vgpu_queue queue;
	struct vgpu_node *throttled;
	struct vgpu_node *latency;
	struct vgpu_node *demoted;
	struct vgpu_node *grants;
	struct vgpu_slice *owner;
	struct vgpu_slice *last_owner;
	struct vgpu_hold hold;
	struct vgpu_loan loan;
	struct vgpu_entity unsold;
	u64 run_start_ns;
	u64 run_charged_ns;
	u64 run_timeslice_ns;
	enum vgpu_band run_band;
	bool run_cuts;
	u64 busy_until_ns;
	u64 weight;
	u64 reserved_ppm;
	u64 deadlines;
	u64 parked_ns;
	u32 nr_groups;
	u32 nr_slices;
	u32 nr_with_item;
	bool busy_bounded;
	bool executing;
	bool holding;
	bool parked;
	struct vgpu_ended_run ended;
};

/*
 * Checks.  Nothing changes; VGPU_FIELD_NONE or the first fault.  The setters
 * below make the same checks themselves and return their result.
 */

/* Properties of an engine, by themselves. */
enum vgpu_sched_field
vgpu_sched_params_check(const struct vgpu_sched_params *params);

/**
 * vgpu_group_params_check() - can a group have these parameters on this engine
 * @sched: engine
 * @group: whose they would be, NULL for a new one
 * @params: all of them
 *
 * Return: VGPU_FIELD_NONE or the first field at fault.
 */
enum vgpu_sched_field
vgpu_group_params_check(const struct vgpu_sched *sched,
			const struct vgpu_group *group,
			const struct vgpu_group_params *params);
enum vgpu_sched_field
vgpu_slice_params_check(const struct vgpu_sched *sched,
			const struct vgpu_slice_params *params);
enum vgpu_sched_field vgpu_item_check(const struct vgpu_sched *sched,
				      const struct vgpu_item_info *item);

/**
 * vgpu_combination_check() - is a combination legal (invariant 17)
 * @policy: of the engine
 * @mode: of the group
 * @band: of the group
 *
 * ============  ======  ============  =====================
 * policy        mode    fair band     band L
 * ============  ======  ============  =====================
 * best_effort   fair    legal         legal
 * best_effort   strict  legal         legal
 * equal_share   fair    legal         VGPU_FIELD_BAND
 * equal_share   strict  MODE          VGPU_FIELD_MODE
 * fixed_share   fair    MODE          VGPU_FIELD_MODE
 * fixed_share   strict  legal         VGPU_FIELD_BAND
 * ============  ======  ============  =====================
 *
 * Under equal_share a share changes with every neighbour, so nothing strict can
 * be sold; under fixed_share nobody ever gets idle time, so nothing fair can.
 * Under both nobody's turn is cut, so there is no band L.
 *
 * Return: VGPU_FIELD_NONE, _POLICY for an unknown policy, or which of _MODE and
 * _BAND to change.
 */
enum vgpu_sched_field vgpu_combination_check(enum vgpu_policy policy,
					     enum vgpu_mode mode,
					     enum vgpu_band band);

/* The shortest timeslice, and the least burst, that this engine accepts. */
u64 vgpu_sched_timeslice_floor(const struct vgpu_sched *sched);

/**
 * vgpu_sched_init() - make an engine without groups, owned by nobody
 * @sched: any memory
 * @params: properties of the engine
 * @now_ns: the present
 *
 * Return: VGPU_FIELD_NONE, or the field at fault and @sched is unusable.
 */
enum vgpu_sched_field vgpu_sched_init(struct vgpu_sched *sched,
				      const struct vgpu_sched_params *params,
				      u64 now_ns);
enum vgpu_sched_field vgpu_sched_set_params(struct vgpu_sched *sched,
					    const struct vgpu_sched_params *params,
					    u64 now_ns);

/*
 * From here on every function whose return is an enum vgpu_sched_field returns
 * VGPU_FIELD_NONE, or a fault and nothing has changed (invariant 10).
 */

/* Charge the time until now, so that counters are those of the present. */
enum vgpu_sched_field vgpu_sched_advance(struct vgpu_sched *sched, u64 now_ns);

/**
 * vgpu_group_add() - add a group without slices
 * @sched: engine
 * @group: zeroed before it is first added anywhere; must stay until
 *	vgpu_group_remove()
 * @params: checked
 * @now_ns: the present
 *
 * It starts at lag 0 with full cap credit.
 *
 * Return: _ADDED, a fault in @params, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_group_add(struct vgpu_sched *sched,
				     struct vgpu_group *group,
				     const struct vgpu_group_params *params,
				     u64 now_ns);

/**
 * vgpu_group_update() - change all parameters of a group at once
 * @sched: engine
 * @group: of this engine
 * @params: checked
 * @now_ns: the present
 *
 * A reservation that stays keeps its deadline, and its budget up to the new
 * reserve_ns.
 *
 * Return: _ABSENT, a fault in @params, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_group_update(struct vgpu_sched *sched,
					struct vgpu_group *group,
					const struct vgpu_group_params *params,
					u64 now_ns);

/**
 * vgpu_group_remove() - forget a group
 * @sched: engine
 * @group: must have no slices
 * @now_ns: the present
 *
 * An ended run of the group that no pick has reported yet is dropped.
 *
 * Return: _ABSENT, _SLICES, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_group_remove(struct vgpu_sched *sched,
					struct vgpu_group *group, u64 now_ns);

/**
 * vgpu_slice_add() - add a slice without a ready item
 * @sched: engine
 * @group: of this engine
 * @slice: zeroed before it is first added anywhere; must stay until
 *	vgpu_slice_remove()
 * @params: checked
 * @now_ns: the present
 *
 * Return: _ABSENT for @group, _ADDED for @slice, a fault in @params, _PLACES,
 * _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_slice_add(struct vgpu_sched *sched,
				     struct vgpu_group *group,
				     struct vgpu_slice *slice,
				     const struct vgpu_slice_params *params,
				     u64 now_ns);
enum vgpu_sched_field vgpu_slice_update(struct vgpu_sched *sched,
					struct vgpu_slice *slice,
					const struct vgpu_slice_params *params,
					u64 now_ns);

/**
 * vgpu_slice_remove() - forget a slice
 * @sched: engine
 * @slice: may own or hold the engine, which then belongs to nobody until the
 *	next pick
 * @now_ns: the present
 *
 * The time until now is charged; the debt or credit of the slice inside its
 * group is forgotten.  For a device that only closes, vgpu_slice_sleep() is the
 * call that forgets nothing.
 *
 * Return: _ABSENT, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_slice_remove(struct vgpu_sched *sched,
					struct vgpu_slice *slice, u64 now_ns);

/**
 * vgpu_slice_wake() - the slice has a ready item, of which nothing is known
 * @sched: engine
 * @slice: of this engine
 * @now_ns: the present
 *
 * Idempotent.  Never cuts a run; on an idle engine, pick afterwards.
 *
 * Return: _ABSENT, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_slice_wake(struct vgpu_sched *sched,
				      struct vgpu_slice *slice, u64 now_ns);

/**
 * vgpu_slice_announce() - the slice has a ready item, and this is the first
 * @sched: engine
 * @slice: of this engine
 * @item: what is said of it; copied
 * @now_ns: the present
 *
 * As vgpu_slice_wake(); a slice that has an item already has this one instead.
 *
 * Return: _ABSENT, a fault in @item, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_slice_announce(struct vgpu_sched *sched,
					  struct vgpu_slice *slice,
					  const struct vgpu_item_info *item,
					  u64 now_ns);

/**
 * vgpu_slice_item_done() - the first item is complete
 * @sched: engine
 * @slice: of this engine
 * @next: the first item now, NULL if there is none and the slice sleeps
 * @now_ns: the present
 *
 * The time charged to the slice since the item became the first is what it took.
 * An item of which nothing was said teaches nothing.
 *
 * Return: _ABSENT, _NO_ITEM, a fault in @next, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_slice_item_done(struct vgpu_sched *sched,
					   struct vgpu_slice *slice,
					   const struct vgpu_item_info *next,
					   u64 now_ns);

/**
 * vgpu_slice_end_request() - no more items follow the last one after all
 * @sched: engine
 * @slice: of this engine; if it holds the engine it does not any more
 * @now_ns: the present
 *
 * Idempotent.  On an idle engine, pick afterwards.
 *
 * Return: _ABSENT, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_slice_end_request(struct vgpu_sched *sched,
					     struct vgpu_slice *slice,
					     u64 now_ns);

/**
 * vgpu_slice_sleep() - the slice has no ready item
 * @sched: engine
 * @slice: of this engine; if it owns the engine it goes on paying until the
 *	next pick
 * @now_ns: the present
 *
 * Idempotent.  For an item that was withdrawn, or whose end is of no interest.
 *
 * Return: _ABSENT, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_slice_sleep(struct vgpu_sched *sched,
				       struct vgpu_slice *slice, u64 now_ns);

/**
 * vgpu_sched_pick() - decide who owns the engine from now on
 * @sched: engine
 * @now_ns: the present
 * @out: the decision; after a fault one for nobody, to be asked again at the time
 *	of the last call
 *
 * To be called whenever the engine stops executing (an item or chunk is done),
 * when an item becomes ready while the engine is idle, and at wake_at_ns.
 *
 * Return: _LEASE if the engine is lent, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_sched_pick(struct vgpu_sched *sched, u64 now_ns,
				      struct vgpu_decision *out);

/**
 * vgpu_sched_is_urgent() - would a pick cut the present run for band L
 * @sched: engine
 *
 * For an engine that can preempt what it executes, after a wakeup.
 */
bool vgpu_sched_is_urgent(const struct vgpu_sched *sched);

/**
 * vgpu_sched_left_ns() - how much longer the owner, which executes, may be charged
 * @sched: engine, brought up to date
 *
 * Return: what is left of its timeslice, its caps and what is reserved for it, in ns,
 * whatever the item that it executes takes; 0 if nothing is, or nobody executes.
 */
u64 vgpu_sched_left_ns(const struct vgpu_sched *sched);

/**
 * vgpu_sched_busy_until() - say when the engine stops executing
 * @sched: engine, which executes; the owner may have gone to sleep meanwhile
 * @until_ns: the moment from which on nobody is charged until the next pick
 *
 * For an engine whose end of work is known although the host may look late.
 *
 * Return: _NO_OWNER, _TIME if @until_ns is before the last call, or
 * VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_sched_busy_until(struct vgpu_sched *sched,
					    u64 until_ns);

/**
 * vgpu_group_lag_ns() - what the engine owes a group, negative if it is in debt
 * @sched: engine
 * @group: of this engine
 * @now_ns: the present; charged as by any other call
 *
 * Return: lag in ns; for a group outside the average, weight * (V - v) with the
 * v it would join at, which its own joining then brings closer to zero.  After a
 * fault, what it was at the last call; 0 for a group that is not on this engine.
 */
s64 vgpu_group_lag_ns(struct vgpu_sched *sched, struct vgpu_group *group,
		      u64 now_ns);

/* The same for a slice among the slices of its group. */
s64 vgpu_slice_lag_ns(struct vgpu_sched *sched, struct vgpu_slice *slice,
		      u64 now_ns);

/* Bring run_ns and ghost_ns up to date (invariant 16). */
void vgpu_group_settle(struct vgpu_group *group);
void vgpu_slice_settle(struct vgpu_slice *slice);

/* What this group's kernel is predicted to take (invariant 15). */
u64 vgpu_predict_duration_ns(const struct vgpu_group *group,
			     const struct vgpu_item_info *item);

/**
 * vgpu_predict_inversion_ns() - how long a piece is expected to delay a gap's end
 * @group: who is in the gap
 * @kernel_id: what it executed before
 * @elapsed_ns: since then
 * @piece_ns: of somebody else, begun now
 *
 * Return: mean over the observed gaps, U64_MAX if there are too few of them.
 */
u64 vgpu_predict_inversion_ns(const struct vgpu_group *group, u32 kernel_id,
			      u64 elapsed_ns, u64 piece_ns);

/* The histogram bucket of a run length, and the least length in a bucket. */
u32 vgpu_hist_bucket(u64 length_ns);
u64 vgpu_hist_bucket_start_ns(u32 bucket);

#endif /* VGPU_SCHED_H */
