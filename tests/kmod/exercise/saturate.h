/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Keep a slice busy, and prove it.
 *
 * Between two submissions the number of queued items only falls, so the smallest number is
 * one that a submission finds. The transport counts it after it rings the doorbell, so the
 * count can only be too small.
 */
#ifndef VGPU_EXERCISE_SATURATE_H
#define VGPU_EXERCISE_SATURATE_H

#include <stdbool.h>
#include <stdint.h>

#include "report.h"
#include "transport.h"
#include "workload.h"

#define SATURATE_QUEUED_MIN 8

struct saturate_options {
	struct workload_options work;
	uint32_t depth; /* items queued after each refill; 0: automatic */
	uint32_t batch; /* items per interrupt and refill; 0: automatic */
	uint64_t duration_ns; /* end of the measured phase; 0: @items ends it */
	uint64_t items;
	uint64_t nap_ns;	/* sleep this long after each finished batch */
	uint32_t request; /* number of items of a request; 0: not announced */
	uint64_t gap_ns;  /* wait for each item, then this long */
	bool lie;	  /* a request's last item announces more, too */
	bool end;	  /* the same, but an empty item takes it back */
	uint64_t progress_ns;	/* interval of reports; 0: none */
	uint64_t timeout_ns;	/* give up when nothing completes for this long */
	uint64_t drain_ns;	/* wait this long at the end for queued items */
	uint32_t queued_min;	/* queued items that count as saturated */
};

struct saturate_result {
	int rc; /* 0 or the reason of an early end, see transport */
	uint32_t depth;
	uint32_t batch;
	uint64_t items;	      /* completed in the measured phase */
	uint64_t bytes;	      /* operand bytes of these items */
	uint64_t collected;   /* completions seen, including the drain's */
	uint64_t run_ns;      /* charged by the device in the measured phase */
	uint64_t item_run_ns; /* sum over collected completions */
	uint64_t item_run_ns_max;
	uint64_t wall_ns; /* of the measured phase */
	uint64_t naps;
	uint64_t requests;	 /* finished requests, where items are waited for */
	uint64_t request_ns;	 /* sum, from first doorbell to last completion */
	uint64_t request_ns_max;
	uint64_t interrupts;
	uint32_t min_queued; /* UINT32_MAX if never counted */
	uint32_t error;
	uint32_t error_index;
	uint64_t verified;
	uint64_t mismatches;
	uint64_t first_mismatch;
	bool saturated;
	bool drained; /* every submitted item was answered */
};

/* A run, from preparation to its result. */
struct saturate {
	const struct saturate_options *options;
	struct transport *transport;
	const char *name; /* its name in reports */
	bool json;
	struct workload workload;
	struct saturate_result result;
	struct vgpu_desc *descs;
	struct vgpu_completion *completions;
	uint64_t submitted;
	uint64_t begun_ns;
	uint64_t progressed_ns;
};

void saturate_defaults(struct saturate_options *options);

/*
 * Set one option by its command line name, e.g. "delay-us", "50"; returns NULL
 * or the error text.
 */
const char *saturate_option(struct saturate_options *options, const char *key,
			    const char *value);
/* Choose a duration if neither a duration nor a number of items was given. */
void saturate_complete(struct saturate_options *options);
/* Is each item waited for? */
bool saturate_is_paced(const struct saturate_options *options);
/* Is the queue sometimes empty? */
bool saturate_is_napping(const struct saturate_options *options);
/* Options that take no value. */
bool saturate_option_is_flag(const char *key);
extern const char saturate_help[];

/* Prepare data and memory, so that run() starts at once. 0 or -errno. */
int saturate_prepare(struct saturate *run);
void saturate_run(struct saturate *run);
/* End the measured phase of all runs soon; safe in a signal handler. */
void saturate_end(void);
void saturate_finish(struct saturate *run);

void saturate_report(const struct saturate *run);

/* Exit status that says how the run ended, see exit.h. */
int saturate_exit(const struct saturate *run);

#endif
