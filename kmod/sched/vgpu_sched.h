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
 *     one to the slice that owns the engine and to its group, or to idle.
 *     wall_ns == idle_ns + sum of charges, exactly, at both levels.  Who is
 *     switched in pays for being switched in.  Nobody pays for a host that
 *     looks late at an engine which has stopped (vgpu_sched_busy_until()).
 *  2. Average.  A queue's virtual time V is the weighted mean of its members'
 *     virtual runtimes v; lag = weight * (V - v), in ns.  A member is eligible
 *     iff lag >= 0.  The pick is the eligible member with the earliest virtual
 *     deadline (EEVDF); ties go to the one that has waited longest.  A request
 *     is as large as the longest legal run: timeslice plus one chunk.
 *  3. Debt.  Who sleeps or is throttled leaves the average only at lag >= 0.
 *     In debt it stays a member that cannot be picked, until V has reached it.
 *     Debt is never clamped or forgotten (the number saturates at three days).
 *  4. Credit.  Who returns joins at v = max(v, H - timeslice / weight), where H
 *     is the furthest V has been, and an unfinished request keeps its virtual
 *     deadline.  A change of weight keeps lag.  V steps back (H does not) only
 *     when a member joins with credit, by at most its part of that credit,
 *     timeslice / (W + weight), or is removed for good while in debt.
 *     While nobody joins or leaves, |lag| <= max timeslice + max chunk.
 *  5. Two levels.  2 to 4 hold among the groups of an engine and among the
 *     slices of a group.  More slices never change the share of their group.
 *  6. Timeslice.  A run is one uninterrupted stay of a group on the engine,
 *     as long as the engine time charged for it.  It ends when it has lasted
 *     the timeslice that was in force when it began
 *     (at most one chunk later), when the group ran dry, when a cap ended it or
 *     when the owner was removed, and for no other reason; a wakeup never cuts
 *     a run.  At the end of a timeslice the engine is offered to everybody; a
 *     group that keeps it begins a new run.
 *  7. Caps.  Refill is continuous, credit never exceeds burst, and use over any
 *     window T is at most T * cap / period + burst + one chunk.  A throttled
 *     party returns once its credit reaches min(timeslice, burst).  A group
 *     whose ready slices are all throttled is throttled.  Credit that is full
 *     earns nothing while its party waits for its turn, so only a burst well
 *     above one timeslice gets a busy party all of its cap.
 *  8. Bounded work.  No call takes more than O(log n) steps, amortized (a
 *     sleeper that was in debt is dropped once, when V has reached it).
 *  9. Determinism.  Decisions depend on the sequence of calls and the
 *     differences of their times only; neither the clock's origin nor a wrap of
 *     clock or virtual time changes them.
 * 10. Setters are atomic: bad parameters are named by the *_check() functions,
 *     and then nothing has changed.
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

/**
 * enum vgpu_sched_field - the parameter at fault, for an error message
 * @VGPU_FIELD_NONE: all parameters are good
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
};

/**
 * enum vgpu_run_reason - why a run ended
 * @VGPU_RUN_TIMESLICE: it had lasted its timeslice
 * @VGPU_RUN_DRY: no slice of the group had a ready item
 * @VGPU_RUN_CAP: the group, or every slice of it with a ready item, is throttled
 * @VGPU_RUN_REMOVED: the slice that owned the engine was removed
 */
enum vgpu_run_reason {
	VGPU_RUN_TIMESLICE = 0,
	VGPU_RUN_DRY,
	VGPU_RUN_CAP,
	VGPU_RUN_REMOVED,
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
 *	max_chunk_ns, and deadlines are set for runs of that length.
 */
struct vgpu_sched_params {
	u64 max_chunk_ns;
	u64 min_chunk_ns;
	u64 switch_cost_ns;
	bool splits;
};

/**
 * struct vgpu_group_params - what a tenant was granted on this engine
 * @weight: VGPU_WEIGHT_MIN..VGPU_WEIGHT_MAX
 * @timeslice_ns: the longest run before the engine is offered to others; a new
 *	value is effective from the next run
 * @cap_ns: engine time per @cap_period_ns, 0 for no cap (then the next two are
 *	ignored)
 * @cap_period_ns: see @cap_ns
 * @burst_ns: the most cap credit that can be saved up, 0 for one timeslice
 */
struct vgpu_group_params {
	u32 weight;
	u64 timeslice_ns;
	u64 cap_ns;
	u64 cap_period_ns;
	u64 burst_ns;
};

/**
 * struct vgpu_slice_params - a slice inside its group
 * @weight: against the other slices of the group
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
};

/**
 * struct vgpu_slice_stats - counters of a slice
 * @run_ns: engine time charged
 * @runs: times the slice was chosen: at the start of a run of its group, or in
 *	the middle of one because the slice before it could not go on
 * @throttles: times the slice's own cap ran out
 * @throttled_ns: as in struct vgpu_group_stats
 * @switches: times the engine was switched to this slice
 */
struct vgpu_slice_stats {
	u64 run_ns;
	u64 runs;
	u64 throttles;
	u64 throttled_ns;
	u64 switches;
};

/**
 * struct vgpu_sched_stats - counters of an engine
 * @wall_ns: time since vgpu_sched_init()
 * @idle_ns: of it, time the engine belonged to nobody
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
};

/* A cap.  See bucket.c. */
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

/**
 * struct vgpu_group - all slices of one tenant on one engine
 * @stats: to be read under the caller's lock
 * @params: what is in force; read only
 */
struct vgpu_group {
	struct vgpu_group_stats stats;
	struct vgpu_group_params params;
	/* private: */
	struct vgpu_entity entity;
	struct vgpu_bucket bucket;
	struct vgpu_queue queue;
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
	bool has_item;
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
 * struct vgpu_decision - what vgpu_sched_pick() decided
 * @slice: owner of the engine from now on, NULL for nobody
 * @limit_ns: execute at most this long before the next pick: what is left of
 *	timeslice and caps, within min_chunk_ns..max_chunk_ns; 0 without @slice.
 *	An engine that cannot split overruns by at most one chunk.
 * @wake_at_ns: without @slice, when a throttle will end that keeps a ready item
 *	from running; U64_MAX if none does.  A pick before it changes nothing; a
 *	pick then may find a second throttle and name a later time.
 * @switched: @slice is not the slice that had the engine last
 * @ended: the run that this pick, or a remove before it, ended
 */
struct vgpu_decision {
	struct vgpu_slice *slice;
	u64 limit_ns;
	u64 wake_at_ns;
	bool switched;
	struct vgpu_ended_run ended;
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
	struct vgpu_slice *owner;
	struct vgpu_slice *last_owner;
	u64 run_start_ns;
	u64 run_charged_ns;
	u64 run_timeslice_ns;
	u64 busy_until_ns;
	bool busy_bounded;
	struct vgpu_ended_run ended;
};

/*
 * Checks.  Pure; VGPU_FIELD_NONE or the first field at fault.  The setters
 * below make the same check themselves and return its result.
 */
enum vgpu_sched_field
vgpu_sched_params_check(const struct vgpu_sched_params *params);
enum vgpu_sched_field
vgpu_group_params_check(const struct vgpu_sched *sched,
			const struct vgpu_group_params *params);
enum vgpu_sched_field
vgpu_slice_params_check(const struct vgpu_sched *sched,
			const struct vgpu_slice_params *params);

/* The shortest timeslice, and the least burst, that this engine accepts. */
u64 vgpu_sched_timeslice_floor(const struct vgpu_sched *sched);

/**
 * vgpu_sched_init() - make an engine without groups, owned by nobody
 * @sched: any memory
 * @params: properties of the engine
 * @now_ns: the present; time that steps back later is taken as standing still
 *
 * Return: VGPU_FIELD_NONE, or the field at fault and @sched is unusable.
 */
enum vgpu_sched_field vgpu_sched_init(struct vgpu_sched *sched,
				      const struct vgpu_sched_params *params,
				      u64 now_ns);
enum vgpu_sched_field vgpu_sched_set_params(struct vgpu_sched *sched,
					    const struct vgpu_sched_params *params,
					    u64 now_ns);

/**
 * vgpu_group_add() - add a group without slices
 * @sched: engine
 * @group: any memory; must stay until vgpu_group_remove()
 * @params: checked
 * @now_ns: the present
 *
 * It starts at lag 0 with full cap credit.
 *
 * Return: VGPU_FIELD_NONE, or the field at fault and nothing has changed.
 */
enum vgpu_sched_field vgpu_group_add(struct vgpu_sched *sched,
				     struct vgpu_group *group,
				     const struct vgpu_group_params *params,
				     u64 now_ns);
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
 * Return: false, and nothing has changed, if the group still has slices.  An
 * ended run of the group that no pick has reported yet is dropped.
 */
bool vgpu_group_remove(struct vgpu_sched *sched, struct vgpu_group *group,
		       u64 now_ns);

/**
 * vgpu_slice_add() - add a slice without a ready item
 * @sched: engine
 * @group: of this engine
 * @slice: any memory; must stay until vgpu_slice_remove()
 * @params: checked
 * @now_ns: the present
 *
 * Return: VGPU_FIELD_NONE, or the field at fault and nothing has changed.
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
 * @slice: may own the engine, which then belongs to nobody until the next pick
 * @now_ns: the present
 *
 * The time until now is charged; the debt or credit of the slice inside its
 * group is forgotten.  For a device that only closes, vgpu_slice_sleep() is the
 * call that forgets nothing.
 */
void vgpu_slice_remove(struct vgpu_sched *sched, struct vgpu_slice *slice,
		       u64 now_ns);

/**
 * vgpu_slice_wake() - the slice has a ready item
 * @sched: engine
 * @slice: of this engine
 * @now_ns: the present
 *
 * Idempotent.  Never cuts a run; on an idle engine, pick afterwards.
 */
void vgpu_slice_wake(struct vgpu_sched *sched, struct vgpu_slice *slice,
		     u64 now_ns);

/**
 * vgpu_slice_sleep() - the slice has no ready item
 * @sched: engine
 * @slice: of this engine; if it owns the engine it goes on paying until the
 *	next pick
 * @now_ns: the present
 *
 * Idempotent.
 */
void vgpu_slice_sleep(struct vgpu_sched *sched, struct vgpu_slice *slice,
		      u64 now_ns);

/**
 * vgpu_sched_pick() - decide who owns the engine from now on
 * @sched: engine
 * @now_ns: the present
 * @out: the decision
 *
 * To be called whenever the engine stops executing (an item or chunk is done),
 * when an item becomes ready while the engine is idle, and at wake_at_ns.
 */
void vgpu_sched_pick(struct vgpu_sched *sched, u64 now_ns,
		     struct vgpu_decision *out);

/**
 * vgpu_sched_busy_until() - say when the engine stops executing
 * @sched: engine, which has an owner
 * @until_ns: the moment from which on nobody is charged until the next pick
 *
 * For an engine whose end of work is known although the host may look late.
 * Changes nothing on an engine that belongs to nobody.
 */
void vgpu_sched_busy_until(struct vgpu_sched *sched, u64 until_ns);

/**
 * vgpu_group_lag_ns() - what the engine owes a group, negative if it is in debt
 * @sched: engine
 * @group: of this engine
 * @now_ns: the present; charged as by any other call
 *
 * Return: lag in ns; for a group outside the average, weight * (V - v) with the
 * v it would join at, which its own joining then brings closer to zero.
 */
s64 vgpu_group_lag_ns(struct vgpu_sched *sched, struct vgpu_group *group,
		      u64 now_ns);

/* The same for a slice among the slices of its group. */
s64 vgpu_slice_lag_ns(struct vgpu_sched *sched, struct vgpu_slice *slice,
		      u64 now_ns);

/* The histogram bucket of a run length, and the least length in a bucket. */
u32 vgpu_hist_bucket(u64 length_ns);
u64 vgpu_hist_bucket_start_ns(u32 bucket);

#endif /* VGPU_SCHED_H */
