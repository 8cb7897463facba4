/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulator: host programs launch kernels on slices, one engine executes
 * them, and a scheduler selects which.  engine.c is the event loop, host.c the
 * host programs, record.c the results.  Every scheduler is one file with a
 * table (struct sim_scheduler); core.c is the one that calls kmod/sched.
 *
 * vgpumgr/sim/engine.py checks all arguments and documents what they mean.
 * Only record.c allocates memory during an event.  If memory runs out,
 * sim_run() returns SIM_NO_MEMORY and the simulation is over.
 */
#ifndef SIM_H
#define SIM_H

#include "vgpu_sched.h"

#define SIM_NEVER	U64_MAX
#define SIM_NO_LIMIT	U64_MAX

/* Error codes, returned in place of an index or 0. */
enum sim_error {
	SIM_NO_MEMORY = -1,
	/* A kernel of a non-preemptible engine is longer than max_chunk_ns. */
	SIM_TOO_LONG = -2,
	SIM_HAS_SLICES = -3,
	/* SIM_BAD_FIELD - enum vgpu_sched_field */
	SIM_BAD_FIELD = -1000,
};

enum sim_kind {
	SIM_NON_PREEMPTIBLE,
	SIM_SPLITTABLE,
	SIM_PREEMPTIBLE,
};

/* Why a run ended: enum vgpu_run_reason, or one of these. */
enum sim_reason {
	SIM_RUN_SLICE = 16,
	SIM_RUN_PREEMPTED = 17,
	SIM_RUN_STILL = 18,
};

enum sim_claim {
	SIM_CLAIM_MORE = 1,
	SIM_CLAIM_END = 2,
};

struct sim_model {
	u32 kind;
	u64 max_chunk_ns;
	u64 min_chunk_ns;
	u64 switch_cost_ns;
	u64 split_cost_ns;
	u64 preempt_latency_ns;
};

/* A host program.  The arrays belong to the caller and must outlive it. */
struct sim_program {
	u32 nr_kernels;
	const u64 *work_ns;
	const u64 *launch_ns;
	const u64 *sync_ns;
	const u64 *hint_ns;
	const u32 *kernel_id;
	const unsigned char *sync;
	const unsigned char *claims;
	u32 nr_requests;
	const u32 *request_first;	/* nr_requests + 1 entries */
	const u64 *think_ns;
	const u64 *arrivals_ns;		/* count entries if is_open */
	bool is_open;
	bool endless;
	u64 count;
	u64 start_ns;
	u32 queue_depth;
	u32 work_jitter_permille;
	u32 host_jitter_permille;
};

/* A launched kernel. */
struct sim_item {
	u64 submitted_ns;
	u64 seq;			/* orders launches on the engine */
	u64 ready_ns;			/* when earlier kernels were done */
	u64 start_ns;			/* SIM_NEVER: not begun */
	u64 work_ns;
	u64 left_ns;
	u32 kernel;			/* index in the program */
};

struct sim_slice_counters {
	u64 work_ns;
	u64 overhead_ns;
	u64 hold_ns;
	u64 switches;
	u64 items;
	u64 wait_ns;
	u64 max_wait_ns;
	u64 requests_begun;
	u64 requests_done;
};

struct sim_counters {
	u64 idle_ns;
	u64 decisions;
	u64 picks;
	u64 switches;
	u64 preemptions;
	u64 events;
};

/* Results in the layout that numpy reads. */
struct sim_request {
	u64 arrival_ns;
	u64 start_ns;
	u64 end_ns;
	u64 work_ns;
};

struct sim_item_record {
	u64 submitted_ns;
	u64 ready_ns;
	u64 start_ns;
	u64 end_ns;
	u64 work_ns;
	u32 kernel_id;
	u32 slice;
};

struct sim_run {
	u64 start_ns;
	u64 length_ns;
	u32 group;
	u32 slice;
	u32 reason;
	u64 timeslice_ns;		/* 0: scheduler has none */
};

struct sim_log {
	char *data;
	u64 nr;
	u64 room;
	u32 size;
};

struct sim_group {
	u32 index;
	u32 nr_slices;
	bool removed;
	struct vgpu_group_params params;
	u32 priority;			/* 0 is served first */
	void *sched;			/* the scheduler's data */
};

/* The next step of a slice's host program, after `event_ns` or a wait. */
enum sim_phase {
	SIM_BEGIN_REQUEST,
	SIM_LAUNCH,
	SIM_DRAINED,
	SIM_FINISHED,
};

enum sim_wait {
	SIM_WAIT_TIME,
	SIM_WAIT_ROOM,
	SIM_WAIT_DRAIN,
	SIM_WAIT_GATE,
	SIM_WAIT_NOTHING,
};

struct sim_slice {
	u32 index;
	bool removed;
	bool parked;
	bool ready;			/* as the scheduler knows it */
	struct sim_group *group;
	struct vgpu_slice_params params;
	void *sched;			/* the scheduler's data */

	/* Queue: a ring of launched kernels. */
	struct sim_item *ring;
	u32 ring_mask;
	u32 head;
	u32 queued;

	/* Host program. */
	struct sim_program program;
	enum sim_phase phase;
	enum sim_wait wait;
	u32 variant;
	u32 kernel;
	u64 random;
	struct sim_request request;
	u64 event_ns;
	u64 event_seq;
	u32 heap_place;			/* 0: no event */

	struct sim_slice_counters counters;
	struct sim_log requests;
};

/**
 * struct sim_decision - which slice gets the engine
 *
 * @slice: a ready slice, or NULL
 * @limit_ns: longest execution, including the cost of the switch
 * @wake_at_ns: without @slice, when to ask again
 * @holder: without @slice, the slice that pays for the idle engine, or NULL
 * @run_ended: a new run begins even if @slice continues
 * @reason: why the run before ended, if it did
 * @timeslice_ns: length granted to the run that begins, for the record
 */
struct sim_decision {
	struct sim_slice *slice;
	u64 limit_ns;
	u64 wake_at_ns;
	struct sim_slice *holder;
	bool run_ended;
	u32 reason;
	u64 timeslice_ns;
};

struct sim;

struct sim_parameter {
	const char *name;
	u64 preset;
	u64 least;
	u64 most;
};

/**
 * struct sim_scheduler - a scheduler; every function except @pick is optional
 *
 * @name: its name in scenarios
 * @parameters: ends with a NULL name; their values are sim->parameters
 * @state_size: of sim->sched, zeroed
 * @group_size: of group->sched, zeroed
 * @slice_size: of slice->sched, zeroed
 * @create: return 0 or an error
 * @add_group: group->params already has the new values; return 0 or an error.
 *	This function and @update_group check parameters; without them
 *	tenants.c does.
 * @update_group: return 0, or an error with nothing changed
 * @add_slice: like @add_group
 * @update_slice: like @update_group
 * @wake: the slice now has an item to execute
 * @sleep: the slice has no more items
 * @next: called after @item_done, when the item has left the queue: @item is the
 *	new head, or NULL if there is none (then @sleep follows)
 * @gate: the host wants to launch a kernel.  Return when it may try again:
 *	sim->now_ns or earlier if it may launch now, SIM_NEVER if it must wait
 *	for sim_open_gate()
 * @submitted: a kernel was launched; it is the last in its slice's queue
 * @ran: the slice has had the engine for @ns
 * @item_done: the head item is done; it is still the head, and the host does
 *	not know yet
 * @pick: the engine is free: decide
 * @preempts: return whether to preempt the engine, which executes for
 *	sim->running.  Called when slices woke, for preemptible engines only.
 * @timer: sim->timer_ns has come; set it again
 * @destroy: free what @create allocated
 */
struct sim_scheduler {
	const char *name;
	const struct sim_parameter *parameters;
	size_t state_size;
	size_t group_size;
	size_t slice_size;
	int (*create)(struct sim *sim);
	int (*add_group)(struct sim *sim, struct sim_group *group);
	int (*update_group)(struct sim *sim, struct sim_group *group,
			    const struct vgpu_group_params *params);
	void (*remove_group)(struct sim *sim, struct sim_group *group);
	int (*add_slice)(struct sim *sim, struct sim_slice *slice);
	int (*update_slice)(struct sim *sim, struct sim_slice *slice,
			    const struct vgpu_slice_params *params);
	void (*remove_slice)(struct sim *sim, struct sim_slice *slice);
	void (*wake)(struct sim *sim, struct sim_slice *slice);
	void (*sleep)(struct sim *sim, struct sim_slice *slice);
	u64 (*gate)(struct sim *sim, struct sim_slice *slice, u32 kernel);
	void (*submitted)(struct sim *sim, struct sim_slice *slice,
			  const struct sim_item *item);
	void (*ran)(struct sim *sim, struct sim_slice *slice, u64 ns);
	void (*item_done)(struct sim *sim, struct sim_slice *slice,
			  const struct sim_item *item);
	void (*next)(struct sim *sim, struct sim_slice *slice,
		     const struct sim_item *item);
	void (*pick)(struct sim *sim, struct sim_decision *decision);
	bool (*preempts)(struct sim *sim);
	void (*timer)(struct sim *sim);
	void (*destroy)(struct sim *sim);
};

#define SIM_PARAMETERS_MAX	16

/**
 * struct sim - one engine
 *
 * @running: the slice whose kernel the engine executes, or NULL
 * @last: the slice that had the engine last; NULL at first
 * @timer_ns: when to call the scheduler's timer
 */
struct sim {
	u64 now_ns;
	const struct sim_scheduler *scheduler;
	u64 parameters[SIM_PARAMETERS_MAX];
	void *sched;
	struct sim_model model;
	u64 seed;
	struct sim_counters counters;
	u64 hash;
	int error;

	struct sim_group **groups;
	u32 nr_groups;
	struct sim_slice **slices;
	u32 nr_slices;

	/* The engine. */
	struct sim_slice *running;
	struct sim_slice *last;
	struct sim_slice *holder;
	u64 piece_start_ns;
	u64 piece_overhead_ns;
	u64 piece_end_ns;
	u64 charged_until_ns;
	u64 wake_at_ns;
	u64 timer_ns;
	bool dirty;			/* a slice woke since the last pick */
	bool interrupted;		/* last piece left an item unfinished */

	/* The present run, as runs() reports it. */
	struct sim_slice *run_slice;
	u64 run_start_ns;
	u64 run_timeslice_ns;

	/* Heap of host events, the earliest first. */
	struct sim_slice **heap;
	u32 nr_events;
	u64 event_seq;
	u64 submit_seq;

	bool record_runs;
	bool record_items;
	struct sim_log runs;
	struct sim_log items;

	/* Only checks parameters; executes nothing. */
	struct vgpu_sched checks;
};

/* Functions for the Python side. */
extern const struct sim_scheduler *const sim_schedulers[];	/* ends with NULL */
struct sim *sim_new(const struct sim_model *model,
		    const struct sim_scheduler *scheduler,
		    const u64 *parameters, u64 seed, int *error);
void sim_free(struct sim *sim);
int sim_add_group(struct sim *sim, const struct vgpu_group_params *params,
		  u32 priority);
int sim_update_group(struct sim *sim, u32 group,
		     const struct vgpu_group_params *params, u32 priority);
int sim_remove_group(struct sim *sim, u32 group);
int sim_add_slice(struct sim *sim, u32 group,
		  const struct vgpu_slice_params *params,
		  const struct sim_program *program);
int sim_update_slice(struct sim *sim, u32 slice,
		     const struct vgpu_slice_params *params);
void sim_remove_slice(struct sim *sim, u32 slice);
void sim_park_slice(struct sim *sim, u32 slice, bool parked);
int sim_run(struct sim *sim, u64 until_ns);
void sim_present_run(const struct sim *sim, struct sim_run *run);
/*
 * The core's group, charged until now; NULL if it is gone or under a baseline.
 */
struct vgpu_group *sim_core_group(struct sim *sim, u32 group);

/* engine.c */
void sim_settle(struct sim *sim, struct sim_slice *slice);
void sim_end_run(struct sim *sim, u32 reason);
void sim_drop_piece(struct sim *sim);

/* tenants.c */
struct vgpu_sched_params sim_core_params(const struct sim_model *model);

/* host.c */
void sim_host_begin(struct sim *sim, struct sim_slice *slice);
void sim_host_go_on(struct sim *sim, struct sim_slice *slice);
void sim_host_after_item(struct sim *sim, struct sim_slice *slice);
void sim_open_gate(struct sim *sim, struct sim_slice *slice);
struct sim_slice *sim_first_event(const struct sim *sim);
void sim_cancel_event(struct sim *sim, struct sim_slice *slice);

/* record.c */
void sim_log_init(struct sim_log *log, u32 size);
void *sim_log_add(struct sim *sim, struct sim_log *log);
void sim_log_free(struct sim_log *log);

static inline struct sim_item *sim_head(const struct sim_slice *slice)
{
	return &slice->ring[slice->head & slice->ring_mask];
}

#endif /* SIM_H */
