/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The vgpumgr timeslice scheduler: which slice owns one engine, and for how long.
 *
 * There is one struct vgpu_sched per engine.  Groups (all slices of one tenant on one
 * GPU) share the engine by weight; the slices of a group share what the group gets.
 * The code is pure integer arithmetic over structs that the caller allocates: it
 * allocates nothing, reads no clock, never sleeps and takes no lock.  Every function
 * takes the current time, and the caller must serialize all calls on one struct
 * vgpu_sched.  The same files are built into vgpumgr.ko and into the Python extension
 * vgpumgr.sched, so what the tests prove is what the kernel runs.
 *
 * Invariants (the numbers are used by tests/sched/):
 *
 *  1. Charge once.  Each entry point first charges all time since the previous one to
 *     exactly one payer.  The payer is the slice that owns the engine, together with
 *     its group, whether the slice executes, holds the engine (13) or has its ghost
 *     idle in its place (16).  Without an owner the time is idle time. wall_ns ==
 *     idle_ns + sum of charges, exactly, at both levels.  A slice that is switched in
 *     pays for the switch.  If the host notices late that the engine has stopped,
 *     nobody pays for the delay (vgpu_sched_busy_until()).  Every charge moves the
 *     virtual time and the cap of its payer, in either band.
 *  2. Average.  A queue's virtual time V is the weighted mean of its members' virtual
 *     runtimes v; lag = weight * (V - v), in ns.  A member is eligible iff lag >= 0.
 *     The pick is the eligible member with the earliest virtual deadline (EEVDF); ties
 *     go to the member that has waited longest.  A request is as large as the longest
 *     legal run: timeslice plus one chunk.  (With requests of one timeslice of 1 ms,
 *     50 groups of weight 1 with pieces of up to 0.4 ms put a group of weight 100
 *     behind by a lag of 4.8 ms.)
 *  3. Debt.  A member that sleeps or is throttled leaves the average only at lag >=
 *     0.  A member in debt stays a member that cannot be picked until V has reached
 *     its v.  Debt is never clamped or forgotten (the number saturates at three days).
 *  4. Credit.  A returning entity joins at v = max(v, H - timeslice / weight), where H
 *     is the furthest V has been, and begins a new request.  (If credit were measured
 *     from V instead of H, it would be worth more while a returning light entity has
 *     pulled V back: of two equal sleepers the first to wake then got 365 ms ahead of
 *     the other.)  The credit that members have and the credit that may still be given
 *     are together at most the timeslice of the returning entity.  Their sum grows by
 *     no more than the service that the sleeping weight would have received.  An
 *     entity that finds no credit left joins at H.  A change of weight keeps lag.  V
 *     steps back (H does not) only when a member joins with credit or is removed for
 *     good while in debt.  While nobody joins or leaves, |lag| <= max timeslice + max
 *     chunk.  Returning sleepers, however many, lower a lag by at most one max
 *     timeslice; each reservation may add its reserve_ns and a chunk.  So over any
 *     window, a group that is always ready gets its part by weight among all existing
 *     groups, less at most 2 * (max timeslice + max chunk) + 2 * max timeslice times
 *     that part.  Caps, reservations and changes of weight may change that.
 *  5. Two levels.  2 to 4 hold among the groups of an engine and among the slices of a
 *     group.  More slices never change the share of their group, except under
 *     VGPU_POLICY_EQUAL_SHARE and _FIXED_SHARE, where the number of slices is the
 *     share.
 *  6. Timeslice.  A run is one uninterrupted stay of a group on the engine; its length
 *     is the engine time charged for it.  A run ends when it has lasted the timeslice
 *     that was in force when it began (at most one chunk later), when the group ran
 *     dry, when a cap ended it, when the owner was removed, or when band L cut it or
 *     its reservation budget was used up.  It ends for no other reason; a wakeup never
 *     cuts a run, only the next pick does.  At the end of a timeslice the engine is
 *     offered to everybody; a group that keeps it begins a new run.  After band L has
 *     cut a run, the group's next run in the fair band lasts for what was left of the
 *     timeslice, unless the group was not ready meanwhile.  The time that a group runs
 *     in band L is taken from its timeslice in the fair band.
 *  7. Caps.  Refill is continuous, credit never exceeds burst, and use over any window
 *     T is at most T * cap / period + burst + one chunk.  A throttled party returns
 *     once its credit reaches min(timeslice, burst).  A group whose ready slices are
 *     all throttled is throttled, and in no band.  Full credit does not grow while its
 *     party waits for its turn.  So a busy party gets all of its cap only if burst is
 *     well above one timeslice.
 *  8. Bounded work.  No call takes more than O(log n) steps, amortized (a sleeper that
 *     was in debt is dropped once, when V has reached its v).
 *  9. Determinism.  Decisions depend only on the sequence of calls and the differences
 *     of their times; neither the clock's origin nor a wrap of clock or virtual time
 *     changes them.
 * 10. Calls are atomic.  A call with bad parameters, for an object that is not on this
 *     engine or already there, out of order, or with a time before that of the last
 *     call returns a fault and changes nothing.
 * 11. Band L.  A ready group of VGPU_BAND_LATENCY with credit in its caps and budget
 *     in its reservation goes before all others, the earliest deadline of a
 *     reservation first.  For such a group the next pick cuts a run of the fair band
 *     or of a later deadline.  Without budget the group competes in the fair band (2).
 * 12. Reservation.  A constant bandwidth server (Abeni and Buttazzo, 1998) of Q =
 *     reserve_ns per P = reserve_period_ns.  Runs in band L and hold use up its
 *     budget.  At each deadline the budget grows by Q, up to Q, and the next deadline
 *     is P later; a reservation without budget waits for the first deadline that
 *     leaves it some.  A group that becomes ready with more budget than Q / P of the
 *     time until its deadline starts anew: deadline now + P, budget Q.  A run that cut
 *     another costs switch_cost_ns of budget beside its own time, because the other
 *     run pays for being switched in again.  (Only budget is charged for that:
 *     invariant 1 stays exact.)  So Q covers all that a reservation costs its
 *     neighbours.  Budget may be overdrawn by one chunk and that switch cost; the
 *     overdraft is paid back.  So use in band L over any window T is at most T * Q / P
 *     + 2 * Q + one chunk.  A reservation is admitted only if it can be kept: the sum
 *     of (Q + overdraft) / P is at most reserve_limit_permille, where overdraft is
 *     max_chunk_ns, or 0 on an engine that splits; P >= VGPU_RESERVE_CHUNKS *
 *     max_chunk_ns; Q / P is at most the group's cap and at most weight / (sum of the
 *     weights of all groups), so that a reservation is a floor inside the share.  A
 *     change that would break this for an admitted reservation is refused as well.  So
 *     a ready group has used up its budget or run dry by its deadline plus one chunk,
 *     as long as no piece is longer than max_chunk_ns.  (The chunk is a piece of
 *     another group that has just begun when this group wakes.)  On an engine that
 *     splits, each reservation adds at most min_chunk_ns to that.
 * 13. Hold.  When a group of band L with budget runs dry after an item flagged
 *     VGPU_ITEM_MORE, it holds the engine: until it has an item again, its budget or a
 *     cap is used up, hold_max_ns have passed, the caller says that the request is
 *     over, or its slice is removed.  It pays for the engine's idle time meanwhile.
 *     One group holds at a time: a group that runs dry during another group's hold
 *     begins none.  Other groups of band L do not wait for the hold to end.
 * 14. Gap gate.  While a group holds, the fair band starts an item only if the
 *     holder's inversion budget is not overdrawn and covers the expected inversion.
 *     The expected inversion is how much longer than the rest of the gap the item is
 *     predicted to take, as a mean over those of the holder's observed gaps that are
 *     longer than the present one is already.  Time that the fair band executes while
 *     the holder has a ready item again is measured and taken from that budget.  So
 *     inversion over any window T is at most T * inversion_permille / 1000 + burst +
 *     one chunk.
 * 15. Prediction.  A group's predictions come from its own completed items, by kernel
 *     id, in a table of fixed size.  A kernel is predicted to take as long as its
 *     longest recent execution.  With fewer than VGPU_PREDICT_SAMPLES samples the
 *     prediction is max_chunk_ns, or the hint if that is longer.  A gap is predicted
 *     only from at least as many samples.  The actions, hints and flags of a group
 *     never change the prediction for another group, with one exception: after a cut,
 *     the switch back in is charged to the item that was cut and so is part of that
 *     item's duration.
 * 16. Ghosts.  Under VGPU_POLICY_EQUAL_SHARE the weight of a group is its number of
 *     slices, and each slice has an equal part.  A slice without a ready item is
 *     picked all the same; the engine then idles at the slice's cost for the slice's
 *     timeslice or until the slice has an item.  VGPU_POLICY_FIXED_SHARE adds the
 *     places that are not sold, which idle at nobody's cost.  While no slice has a
 *     ready item the engine is parked without a timer, and the time is charged at once
 *     afterwards.  Each slice then pays its part by weight; the part of unsold places
 *     and the remainder of the division (less than a nanosecond per slice) are idle
 *     time.  No lag changes.
 * 17. Legal combinations of policy, mode and band: vgpu_combination_check().
 * 18. Leases (vgpu_lease.h).  A slice whose streams have work counts as one ready
 *     item.  A lease lasts for what timeslice, caps and reservation budget leave of
 *     the run, during a hold for what the gap leaves (14), and at least min_chunk_ns.
 *     It is prolonged by a timeslice as long as the slice would be chosen again at its
 *     end by 2 and 5, no other group goes first by 11, and 7 leaves credit.  It has no
 *     end while no other slice is ready and no cap applies.  When another slice
 *     becomes ready, the lease ends with the present timeslice after all; if that
 *     slice goes first by 11, the lease ends at once.  Nothing fails at expiry: the
 *     slice pays until it yields or the gate has closed, at the latest a chunk after
 *     the end.  So in 6, 7, 11, 12 and 14 a chunk means for leases what it means for
 *     items.  A lease that was prolonged counts as runs of one timeslice each, whether
 *     or not anybody looked at their ends.
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
/* The smallest cap is its period divided by this. */
#define VGPU_CAP_RATIO_MAX	10000u
#define VGPU_BURST_MAX_NS	8000000000ull
#define VGPU_CHUNK_MIN_NS	1000ull
#define VGPU_CHUNK_MAX_NS	10000000000ull
#define VGPU_SWITCH_COST_MAX_NS	10000000ull
#define VGPU_PLACES_MAX		10000u
/*
 * A piece of another group may delay a reservation by one chunk per period, and
 * another reservation may use a chunk more than its Q.  So deadlines can be kept
 * (non-preemptive EDF) as long as the sum of (Q + max_chunk_ns) / P, plus
 * max_chunk_ns / P, stays below one.
 */
#define VGPU_RESERVE_CHUNKS	4u
#define VGPU_RESERVE_LIMIT_MAX	750u
#define VGPU_RESERVE_PERIOD_MIN_NS	100000ull
#define VGPU_RESERVE_PERIOD_MAX_NS	4000000000ull
#define VGPU_HOLD_MAX_NS	1000000000ull
/* How long an unsold place idles at a time, unless the timeslice floor is higher. */
#define VGPU_UNSOLD_TIMESLICE_NS	1000000ull

/**
 * enum vgpu_sched_field - why a call was refused; the values are frozen
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
 * @VGPU_FIELD_POLICY: unknown, or differs from the present one while the engine has
 *	groups
 * @VGPU_FIELD_PLACES: not 0 without VGPU_POLICY_FIXED_SHARE; else outside
 *	1..VGPU_PLACES_MAX, below the number of slices, or all taken
 * @VGPU_FIELD_RESERVE_LIMIT: above VGPU_RESERVE_LIMIT_MAX, below what is already
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
 * @VGPU_FIELD_ITEM_FLAGS: unknown flag
 * @VGPU_FIELD_ITEM_HINT: longer than max_chunk_ns on an engine that neither splits
 *	nor preempts
 * @VGPU_FIELD_TIME: the time is before that of the last call
 * @VGPU_FIELD_ADDED: the object is on an engine already
 * @VGPU_FIELD_ABSENT: the object is not on this engine
 * @VGPU_FIELD_SLICES: the group still has slices
 * @VGPU_FIELD_NO_ITEM: the slice has no ready item
 * @VGPU_FIELD_NO_OWNER: no slice executes on the engine
 * @VGPU_FIELD_LEASE: the engine is lent although the call needs it free, is not lent,
 *	or is lent to another slice
 *
 * VGPU_FIELD_WEIGHT also means that a weight would push a reservation of another
 * group above its share; VGPU_FIELD_MAX_CHUNK, that reservations were admitted for
 * shorter chunks; VGPU_FIELD_CAP, that the policy or mode allows no cap or needs one.
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
 * enum vgpu_policy - what happens to time that its owner does not use
 * @VGPU_POLICY_BEST_EFFORT: slices that have work get that time
 * @VGPU_POLICY_EQUAL_SHARE: each attached slice has the same part of the engine,
 *	which idles while that slice has no work
 * @VGPU_POLICY_FIXED_SHARE: each place that could be sold has the same part of the
 *	engine, which idles while the place has no slice or no work
 */
enum vgpu_policy {
	VGPU_POLICY_BEST_EFFORT = 0,
	VGPU_POLICY_EQUAL_SHARE,
	VGPU_POLICY_FIXED_SHARE,
};

/**
 * enum vgpu_mode - what a tenant was sold
 * @VGPU_MODE_FAIR: its share, and more while others do not use theirs
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
 * @VGPU_BAND_LATENCY: goes before the others as long as its reservation has budget
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
 * @max_chunk_ns: the longest piece the engine executes without another pick
 * @min_chunk_ns: the shortest piece worth starting; limits are rounded up to it
 * @switch_cost_ns: measured cost of a switch; a timeslice is at least
 *	VGPU_TIMESLICE_SWITCHES times as long.  A new value applies to settings
 *	made after it.
 * @splits: the engine never executes longer than limit_ns (it can split or preempt
 *	every item).  Otherwise a run may exceed its timeslice by up to max_chunk_ns,
 *	deadlines are set for runs of that length, and items whose hint is longer than
 *	max_chunk_ns are refused.
 * @policy: cannot be changed while the engine has groups
 * @places: how many slices VGPU_POLICY_FIXED_SHARE can sell, else 0
 * @reserve_limit_permille: the largest part of the engine that may be reserved,
 *	including possible overdrafts (invariant 12); 0 for no reservations
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
 * @weight: VGPU_WEIGHT_MIN..VGPU_WEIGHT_MAX; counts under VGPU_POLICY_BEST_EFFORT only
 *	(invariant 16)
 * @timeslice_ns: the longest run before the engine is offered to others; a new value
 *	is effective from the next run
 * @cap_ns: engine time per @cap_period_ns, 0 for no cap (then @cap_period_ns and
 *	@burst_ns are ignored)
 * @cap_period_ns: see @cap_ns
 * @burst_ns: the most cap credit that can be saved up, 0 for one timeslice
 * @mode: what was sold; VGPU_MODE_STRICT needs a cap under VGPU_POLICY_BEST_EFFORT
 * @band: the fields below are 0 outside VGPU_BAND_LATENCY
 * @reserve_ns: engine time in band L per @reserve_period_ns
 * @reserve_period_ns: the longest wait for @reserve_ns of engine time
 * @hold_max_ns: the longest hold after an item flagged VGPU_ITEM_MORE, 0 for none
 * @inversion_permille: how much of all time other groups may execute while this group
 *	is ready although it held the engine; 0 if no other group may execute during
 *	its holds
 * @inversion_burst_ns: the most of that time that can be saved up, 0 for max_chunk_ns
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
 * struct vgpu_item_info - what the tenant says about a slice's first item
 * @kernel_id: the same for items that take equally long, chosen by the tenant
 * @flags: VGPU_ITEM_MORE, or 0 for the last item of its request
 * @hint_ns: how long the item takes, 0 if unknown
 *
 * The description may be wrong or a lie: invariants 14 and 15 say what it can change.
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
 * struct vgpu_group_stats - counters of a group; all except longest_run_ns only grow
 * @run_ns: engine time charged
 * @runs: ended runs
 * @uncut_runs: runs that their timeslice ended
 * @short_uncut_runs: uncut runs that were shorter than the timeslice in force when
 *	they began; always 0, counted as a check of invariant 6
 * @longest_run_ns: longest run since the present timeslice was set
 * @throttles: times a cap of the group itself ran out
 * @throttled_ns: time from such a throttle until the credit is back, counted when it
 *	is back
 * @switches: times the engine was switched to a slice of this group
 * @histogram: lengths of ended runs
 * @latency_ns: part of run_ns used from the reservation, hold included
 * @demotions: times the reservation's budget was used up
 * @holds: times the group began to hold the engine
 * @hold_ns: part of latency_ns in which the engine idled for the group
 * @fills: pieces that others executed during holds
 * @inversion_ns: time in those pieces while the group had a ready item
 * @ghost_ns: part of run_ns in which the engine idled for slices without an item
 * @debt_ns: work found afterwards, not part of run_ns (vgpu_slice_owe())
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
 * @idle_ns: part of @wall_ns in which the engine belonged to nobody, unsold places
 *	included
 * @picks: calls of vgpu_sched_pick()
 * @switches: picks that chose another slice than the last one that had the engine
 */
struct vgpu_sched_stats {
	u64 wall_ns;
	u64 idle_ns;
	u64 picks;
	u64 switches;
};

/* The following structs are internal; the caller only needs their size. */

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

/* What has been learnt about one kernel of a group.  See predict.c. */
#define VGPU_PREDICT_KERNELS	64u
#define VGPU_PREDICT_BUCKETS	64u
#define VGPU_PREDICT_SAMPLES	8u

struct vgpu_kernel {
	u32 id;
	u32 used;		/* last use, counted in records; 0 for an empty entry */
	u8 duration[VGPU_PREDICT_BUCKETS];
	u8 gap[VGPU_PREDICT_BUCKETS];
};

struct vgpu_predictor {
	u32 records;
	struct vgpu_kernel kernels[VGPU_PREDICT_KERNELS];
};

/**
 * struct vgpu_group - all slices of one tenant on one engine
 * @stats: read under the caller's lock
 * @params: parameters in force; read only
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
 * @stats: read under the caller's lock
 * @params: parameters in force; read only
 * @group: group of the slice; read only
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
 * struct vgpu_ended_run - a run that has ended
 * @valid: a run has ended; otherwise the other members mean nothing
 * @group: the group that ran
 * @start_ns: when the run began
 * @length_ns: how long the run lasted, switch-in included
 * @timeslice_ns: the timeslice in force when the run began
 * @reason: why the run ended
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
 * @VGPU_IDLE_GHOST: it is the turn of a slice without an item, or of an unsold place
 *	(invariant 16)
 */
enum vgpu_idle {
	VGPU_IDLE_EMPTY = 0,
	VGPU_IDLE_HOLD,
	VGPU_IDLE_GHOST,
};

/**
 * struct vgpu_decision - what vgpu_sched_pick() decided
 * @slice: owner of the engine from now on, NULL for nobody
 * @limit_ns: execute at most this long before the next pick: what is left of timeslice
 *	and caps, within min_chunk_ns..max_chunk_ns; 0 without @slice.  An engine that
 *	cannot split items overruns this by at most one chunk.
 * @wake_at_ns: without @slice, when to pick again if nothing happens before; U64_MAX
 *	for never.  Reasons are the end of a throttle that keeps a ready item from
 *	running, the end of a hold, a possible change of the gap gate's answer, and the
 *	end of a ghost's turn.  An earlier pick is harmless; a pick at that time may
 *	return a later time.
 * @idle: without @slice, why the engine idles
 * @payer: without @slice, which slice pays for the idle time, NULL for none
 * @band: in which band @slice runs
 * @switched: @slice is not the last slice that had the engine
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

/* The slice that holds the engine.  See hold.c. */
struct vgpu_hold {
	struct vgpu_slice *slice;
	u64 since_ns;
	u64 needs_ns;
};

/* The present lease, or the last one.  See lease.c. */
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
 * @stats: read under the caller's lock
 * @params: parameters in force; read only
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
 * Checks.  They change nothing and return VGPU_FIELD_NONE or the first fault.  The
 * setters below make the same checks themselves and return the result.
 */

/* Check the properties of an engine alone. */
enum vgpu_sched_field
vgpu_sched_params_check(const struct vgpu_sched_params *params);

/**
 * vgpu_group_params_check() - check the parameters of a group on this engine
 * @sched: scheduler of the engine
 * @group: group to update, NULL for a new one
 * @params: all parameters
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
 * vgpu_combination_check() - check whether a combination is legal (invariant 17)
 * @policy: policy of the engine
 * @mode: mode of the group
 * @band: band of the group
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
 * Under equal_share a share changes with every neighbour, so nothing strict can be
 * sold; under fixed_share nobody ever gets idle time, so nothing fair can be sold.
 * Neither policy ever cuts a turn, so neither has a band L.
 *
 * Return: VGPU_FIELD_NONE, _POLICY for an unknown policy, or whichever of _MODE and
 * _BAND must change.
 */
enum vgpu_sched_field vgpu_combination_check(enum vgpu_policy policy,
					     enum vgpu_mode mode,
					     enum vgpu_band band);

/* The shortest timeslice, and the smallest burst, that this engine accepts. */
u64 vgpu_sched_timeslice_floor(const struct vgpu_sched *sched);

/**
 * vgpu_sched_init() - initialize an engine without groups and without an owner
 * @sched: storage for the scheduler
 * @params: properties of the engine
 * @now_ns: the present
 *
 * Return: VGPU_FIELD_NONE, or the field at fault; @sched is then unusable.
 */
enum vgpu_sched_field vgpu_sched_init(struct vgpu_sched *sched,
				      const struct vgpu_sched_params *params,
				      u64 now_ns);
enum vgpu_sched_field vgpu_sched_set_params(struct vgpu_sched *sched,
					    const struct vgpu_sched_params *params,
					    u64 now_ns);

/*
 * From here on, every function that returns an enum vgpu_sched_field returns
 * VGPU_FIELD_NONE, or a fault without having changed anything (invariant 10).
 */

/* Charge the time until now, which brings all counters up to date. */
enum vgpu_sched_field vgpu_sched_advance(struct vgpu_sched *sched, u64 now_ns);

/**
 * vgpu_group_add() - add a group without slices
 * @sched: scheduler of the engine
 * @group: the group, zeroed before it is first added anywhere; must stay until
 *	vgpu_group_remove()
 * @params: checked by this function
 * @now_ns: the present
 *
 * The group starts at lag 0 with full cap credit.
 *
 * Return: _ADDED, a fault in @params, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_group_add(struct vgpu_sched *sched,
				     struct vgpu_group *group,
				     const struct vgpu_group_params *params,
				     u64 now_ns);

/**
 * vgpu_group_update() - change all parameters of a group at once
 * @sched: scheduler of the engine
 * @group: a group of this engine
 * @params: checked by this function
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
 * vgpu_group_remove() - remove a group
 * @sched: scheduler of the engine
 * @group: a group of this engine without slices
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
 * @sched: scheduler of the engine
 * @group: a group of this engine
 * @slice: the slice, zeroed before it is first added anywhere; must stay until
 *	vgpu_slice_remove()
 * @params: checked by this function
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
 * vgpu_slice_remove() - remove a slice
 * @sched: scheduler of the engine
 * @slice: the slice; if it owns or holds the engine, the engine belongs to nobody
 *	until the next pick
 * @now_ns: the present
 *
 * The time until now is charged; the debt or credit of the slice inside its group is
 * forgotten.  For a device that is only closed, call vgpu_slice_sleep(), which
 * forgets nothing.
 *
 * Return: _ABSENT, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_slice_remove(struct vgpu_sched *sched,
					struct vgpu_slice *slice, u64 now_ns);

/**
 * vgpu_slice_wake() - report a ready item about which nothing is known
 * @sched: scheduler of the engine
 * @slice: a slice of this engine
 * @now_ns: the present
 *
 * Idempotent.  Never cuts a run; if the engine is idle, call vgpu_sched_pick()
 * afterwards.
 *
 * Return: _ABSENT, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_slice_wake(struct vgpu_sched *sched,
				      struct vgpu_slice *slice, u64 now_ns);

/**
 * vgpu_slice_announce() - report and describe the slice's first ready item
 * @sched: scheduler of the engine
 * @slice: a slice of this engine
 * @item: the description; copied
 * @now_ns: the present
 *
 * Like vgpu_slice_wake().  If the slice already has an item, this one replaces it.
 *
 * Return: _ABSENT, a fault in @item, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_slice_announce(struct vgpu_sched *sched,
					  struct vgpu_slice *slice,
					  const struct vgpu_item_info *item,
					  u64 now_ns);

/**
 * vgpu_slice_item_done() - report that the first item is complete
 * @sched: scheduler of the engine
 * @slice: a slice of this engine
 * @next: the new first item; NULL if the slice has no item, and then sleeps
 * @now_ns: the present
 *
 * The item's duration is the time charged to the slice since the item became the
 * first.  An item without a description does not change the predictions.
 *
 * Return: _ABSENT, _NO_ITEM, a fault in @next, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_slice_item_done(struct vgpu_sched *sched,
					   struct vgpu_slice *slice,
					   const struct vgpu_item_info *next,
					   u64 now_ns);

/**
 * vgpu_slice_end_request() - report that no more items follow the last one after all
 * @sched: scheduler of the engine
 * @slice: a slice of this engine; if it holds the engine, the hold ends
 * @now_ns: the present
 *
 * Idempotent.  If the engine is idle, call vgpu_sched_pick() afterwards.
 *
 * Return: _ABSENT, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_slice_end_request(struct vgpu_sched *sched,
					     struct vgpu_slice *slice,
					     u64 now_ns);

/**
 * vgpu_slice_sleep() - report that the slice has no ready item
 * @sched: scheduler of the engine
 * @slice: a slice of this engine; if it owns the engine, it continues to pay until the
 *	next pick
 * @now_ns: the present
 *
 * Idempotent.  For an item that was withdrawn, or whose completion does not matter.
 *
 * Return: _ABSENT, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_slice_sleep(struct vgpu_sched *sched,
				       struct vgpu_slice *slice, u64 now_ns);

/**
 * vgpu_sched_pick() - decide who owns the engine from now on
 * @sched: scheduler of the engine
 * @now_ns: the present
 * @out: the decision; after a fault, a decision without a slice whose wake_at_ns is
 *	the time of the last call
 *
 * Call this whenever the engine stops executing (an item or chunk is done), when an
 * item becomes ready while the engine is idle, and at wake_at_ns.
 *
 * Return: _LEASE if the engine is lent, _TIME, or VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_sched_pick(struct vgpu_sched *sched, u64 now_ns,
				      struct vgpu_decision *out);

/**
 * vgpu_sched_is_urgent() - check whether a pick would cut the present run for band L
 * @sched: scheduler of the engine
 *
 * Call this after a wakeup, on an engine that can preempt the executing item.
 */
bool vgpu_sched_is_urgent(const struct vgpu_sched *sched);

/**
 * vgpu_sched_left_ns() - how much longer the executing owner may be charged
 * @sched: scheduler of the engine, brought up to date
 *
 * Return: what is left of the owner's timeslice, caps and reservation, in ns, however
 * long its item takes; 0 if nothing is left or no slice executes.
 */
u64 vgpu_sched_left_ns(const struct vgpu_sched *sched);

/**
 * vgpu_sched_busy_until() - report when the engine stops executing
 * @sched: scheduler of the engine, which executes; the slice that owns the engine may
 *	have gone to sleep meanwhile
 * @until_ns: from this moment nobody is charged until the next pick
 *
 * Use this on an engine for which the end of the work is known even if the host
 * notices it late.
 *
 * Return: _NO_OWNER, _TIME if @until_ns is before the last call, or
 * VGPU_FIELD_NONE.
 */
enum vgpu_sched_field vgpu_sched_busy_until(struct vgpu_sched *sched,
					    u64 until_ns);

/**
 * vgpu_group_lag_ns() - the time the engine owes a group, negative in debt
 * @sched: scheduler of the engine
 * @group: a group of this engine
 * @now_ns: the present; time is charged as in any other call
 *
 * Return: lag in ns.  For a group outside the average, weight * (V - v) with the v at
 * which it would join; joining then moves V and brings that lag closer to zero.
 * After a fault, the lag at the last call; 0 for a group that is not on this engine.
 */
s64 vgpu_group_lag_ns(struct vgpu_sched *sched, struct vgpu_group *group,
		      u64 now_ns);

/* Like vgpu_group_lag_ns(), for a slice among the slices of its group. */
s64 vgpu_slice_lag_ns(struct vgpu_sched *sched, struct vgpu_slice *slice,
		      u64 now_ns);

/* Bring run_ns and ghost_ns up to date (invariant 16). */
void vgpu_group_settle(struct vgpu_group *group);
void vgpu_slice_settle(struct vgpu_slice *slice);

/* How long this kernel of the group is predicted to take (invariant 15). */
u64 vgpu_predict_duration_ns(const struct vgpu_group *group,
			     const struct vgpu_item_info *item);

/**
 * vgpu_predict_inversion_ns() - the expected delay of a gap's end by a piece
 * @group: the group in the gap
 * @kernel_id: the kernel that @group executed before the gap
 * @elapsed_ns: time since the gap began
 * @piece_ns: length of another group's piece that begins now
 *
 * Return: mean over the observed gaps, U64_MAX if there are too few of them.
 */
u64 vgpu_predict_inversion_ns(const struct vgpu_group *group, u32 kernel_id,
			      u64 elapsed_ns, u64 piece_ns);

/* The histogram bucket of a run length, and the smallest length in a bucket. */
u32 vgpu_hist_bucket(u64 length_ns);
u64 vgpu_hist_bucket_start_ns(u32 bucket);

#endif /* VGPU_SCHED_H */
