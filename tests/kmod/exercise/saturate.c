// SPDX-License-Identifier: GPL-2.0
#include "saturate.h"

#include <errno.h>
#include <endian.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "descriptor.h"
#include "single.h"

#define DEPTH_MAX_CHOSEN 256u
#define DEPTH_MIN_CHOSEN 16u
#define DEPTH_NS_CHOSEN (50 * NS_PER_MS) /* limit of the queued engine time */

static volatile sig_atomic_t ended;

static uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Enough that a late refill finds the queue filled, and few enough to drain. */
static int choose_depth(struct saturate *run)
{
	const struct saturate_options *options = run->options;
	struct transport *transport = run->transport;
	struct saturate_result *result = &run->result;
	bool delays = options->work.op_count == 1 &&
		      options->work.ops[0] == VGPU_OP_DELAY;
	uint32_t depth = options->depth, batch = options->batch;
	uint64_t fitting;

	if ((options->lie || options->end) && !options->request)
		return transport_fail(transport, -EINVAL,
				      "--lie and --end are about a --request");
	if (options->end && !saturate_is_paced(options))
		return transport_fail(transport, -EINVAL, "--end needs --gap-us");
	if (saturate_is_napping(options)) {
		batch = batch && !saturate_is_paced(options) ? batch : 1;
		depth = batch;
	}
	if (!depth) {
		depth = DEPTH_MAX_CHOSEN;
		if (delays && options->work.delay_ns) {
			fitting = DEPTH_NS_CHOSEN / options->work.delay_ns;
			if (fitting < depth)
				depth = fitting;
			if (depth < DEPTH_MIN_CHOSEN)
				depth = DEPTH_MIN_CHOSEN;
		}
		depth = min_u32(depth, transport->limits.ring_entries);
	}
	if (!batch)
		batch = depth < 8 ? 1 : depth / 8;
	if (depth > transport->limits.ring_entries)
		return transport_fail(transport, -EINVAL,
				      "depth %u exceeds the ring's %u entries",
				      depth, transport->limits.ring_entries);
	if (batch > depth)
		return transport_fail(transport, -EINVAL,
				      "batch %u exceeds depth %u", batch, depth);
	result->depth = depth;
	result->batch = batch;
	return 0;
}

int saturate_prepare(struct saturate *run)
{
	int rc;

	memset(&run->result, 0, sizeof(run->result));
	run->result.min_queued = UINT32_MAX;
	run->submitted = 0;
	run->descs = NULL;
	run->completions = NULL;
	memset(&run->workload, 0, sizeof(run->workload));
	rc = choose_depth(run);
	if (!rc)
		rc = workload_init(&run->workload, &run->options->work,
				   run->transport, run->result.depth);
	if (!rc) {
		run->descs = calloc(run->result.batch, sizeof(*run->descs));
		run->completions =
			calloc(run->result.depth, sizeof(*run->completions));
		if (!run->descs || !run->completions)
			rc = transport_fail(run->transport, -ENOMEM,
					    "out of memory");
	}
	run->result.rc = rc;
	return rc;
}

void saturate_finish(struct saturate *run)
{
	workload_free(&run->workload);
	free(run->descs);
	free(run->completions);
	run->descs = NULL;
	run->completions = NULL;
}

static uint64_t goal(const struct saturate *run)
{
	return run->options->items ? run->options->items : UINT64_MAX;
}

static void count_queued(struct saturate *run, uint32_t queued)
{
	run->result.min_queued = min_u32(run->result.min_queued, queued);
}

/* Does item @number announce that more of its request follow? */
static bool has_more(const struct saturate_options *options, uint64_t number)
{
	return options->request && (options->lie || options->end ||
				    (number + 1) % options->request);
}

/* Submit one batch, or the rest of the goal; false when nothing is left. */
static bool submit_batch(struct saturate *run, unsigned int flags, bool counts)
{
	uint64_t left = goal(run) - run->submitted;
	uint32_t count = left < run->result.batch ? left : run->result.batch;
	uint32_t queued;

	if (!count)
		return false;
	for (uint32_t i = 0; i < count; i++) {
		workload_build(&run->workload, run->submitted + i,
			       &run->descs[i]);
		if (has_more(run->options, run->submitted + i))
			descriptor_flag(&run->descs[i], VGPU_DESC_MORE);
	}
	run->result.rc = run->transport->ops->submit(run->transport, run->descs,
						     count, flags, &queued);
	if (run->result.rc)
		return false;
	run->submitted += count;
	if (counts)
		count_queued(run, queued);
	return true;
}

static uint32_t outstanding(const struct saturate *run)
{
	return run->submitted - run->result.collected;
}

/*
 * Collect completions, at least @minimum of them unless the time is over. Returns
 * -ETIMEDOUT then; other errors are also stored in the result.
 */
static int collect(struct saturate *run, uint32_t minimum, uint64_t timeout_ns)
{
	struct saturate_result *result = &run->result;
	struct transport *transport = run->transport;
	uint32_t count = 0;
	int rc;

	rc = transport->ops->wait(transport, run->completions, result->depth,
				  minimum, timeout_ns, &count);
	for (uint32_t i = 0; i < count; i++) {
		uint64_t run_ns = le64toh(run->completions[i].run_ns);

		workload_check(&run->workload, result->collected,
			       &run->completions[i]);
		result->collected++;
		result->item_run_ns += run_ns;
		if (run_ns > result->item_run_ns_max)
			result->item_run_ns_max = run_ns;
	}
	if (rc && rc != -ETIMEDOUT)
		result->rc = rc;
	return rc;
}

static void report_progress(struct saturate *run, uint64_t now_ns)
{
	struct report report;

	if (!run->options->progress_ns ||
	    now_ns - run->progressed_ns < run->options->progress_ns)
		return;
	run->progressed_ns += (now_ns - run->progressed_ns) /
			      run->options->progress_ns *
			      run->options->progress_ns;
	report_begin(&report, run->json);
	report_text(&report, "record", "progress");
	report_text(&report, "name", run->name);
	report_u64(&report, "wall_ns", now_ns - run->begun_ns);
	report_u64(&report, "items", run->result.collected);
	report_u64(&report, "item_run_ns", run->result.item_run_ns);
	report_u64(&report, "mismatches", run->workload.mismatches);
	report_end(&report);
}

/* The end of the next wait, at most @limit_ns. */
static uint64_t next_event(const struct saturate *run, uint64_t now_ns,
			   uint64_t limit_ns)
{
	uint64_t when = run->progressed_ns + run->options->progress_ns;

	if (run->options->progress_ns && when < limit_ns)
		limit_ns = when;
	return limit_ns > now_ns ? limit_ns - now_ns : 0;
}

/* Wait for @minimum completions or the end of the phase; false at its end. */
static bool await(struct saturate *run, uint32_t minimum, uint64_t end_ns)
{
	uint64_t now_ns = clock_now_ns();
	uint64_t silent_ns = now_ns + run->options->timeout_ns;

	for (;;) {
		uint64_t before = run->result.collected;
		uint64_t limit_ns = end_ns < silent_ns ? end_ns : silent_ns;
		int rc = collect(run, minimum, next_event(run, now_ns, limit_ns));

		now_ns = clock_now_ns();
		if (ended)
			end_ns = now_ns;
		report_progress(run, now_ns);
		if (rc && rc != -ETIMEDOUT)
			return false;
		if (!rc)
			return now_ns < end_ns;
		if (now_ns >= end_ns)
			return false;
		if (run->result.collected != before)
			return true;
		if (now_ns >= silent_ns) {
			unsigned long long limit_s = run->options->timeout_ns / NS_PER_S;

			run->result.rc = transport_fail(run->transport,
							-ETIMEDOUT,
							"no item completed for %llu s",
							limit_s);
			return false;
		}
	}
}

static void run_saturating(struct saturate *run, uint64_t end_ns)
{
	uint32_t depth = run->result.depth, batch = run->result.batch;
	bool more = true;

	while (more && outstanding(run) + batch <= depth)
		more = submit_batch(run, TRANSPORT_PHASE, false);
	while (!run->result.rc && run->result.collected < goal(run)) {
		if (!await(run, min_u32(batch, outstanding(run)), end_ns))
			return;
		more = true;
		while (more && outstanding(run) + batch <= depth)
			more = submit_batch(run, 0, true);
	}
}

static void run_napping(struct saturate *run, uint64_t end_ns)
{
	while (submit_batch(run, 0, false)) {
		while (outstanding(run))
			if (!await(run, outstanding(run), end_ns))
				return;
		clock_sleep_ns(run->options->nap_ns);
		run->result.naps++;
	}
}

/* Take the announcement of further items back. */
static bool end_request(struct saturate *run)
{
	struct vgpu_desc desc = descriptor_nop();
	struct vgpu_completion completion;

	descriptor_flag(&desc, VGPU_DESC_END);
	run->result.rc = single_run(run->transport, &desc, 1, 0,
				    run->options->timeout_ns, &completion);
	return !run->result.rc;
}

/* Submit one request, item by item; false when the phase is over. */
static bool run_request(struct saturate *run, uint64_t end_ns)
{
	const struct saturate_options *options = run->options;

	for (uint32_t i = 0; i < options->request; i++) {
		if (i)
			clock_sleep_ns(options->gap_ns);
		if (!submit_batch(run, 0, false) || !await(run, 1, end_ns))
			return false;
	}
	return true;
}

static void run_requests(struct saturate *run, uint64_t end_ns)
{
	const struct saturate_options *options = run->options;
	struct saturate_result *result = &run->result;

	for (;;) {
		uint64_t begun_ns = clock_now_ns(), request_ns;

		if (!run_request(run, end_ns))
			return;
		request_ns = clock_now_ns() - begun_ns;
		result->requests++;
		result->request_ns += request_ns;
		if (request_ns > result->request_ns_max)
			result->request_ns_max = request_ns;
		if (options->end && !end_request(run))
			return;
		if (options->nap_ns) {
			clock_sleep_ns(options->nap_ns);
			result->naps++;
		}
	}
}

/* The result of the measured phase, from the device's own counters. */
static void measure(struct saturate *run, const struct transport_counters *before)
{
	struct saturate_result *result = &run->result;
	struct transport_counters after;

	result->wall_ns = clock_now_ns() - run->begun_ns;
	result->items = result->collected;
	if (result->rc != -ENODEV &&
	    run->transport->ops->counters(run->transport, &after) == 0) {
		result->run_ns = after.run_ns - before->run_ns;
		result->interrupts = after.interrupts - before->interrupts;
		result->error = after.error;
		result->error_index = after.error_index;
		/* a reset or a stop clears the device's counters */
		if (!result->rc && !saturate_is_paced(run->options))
			result->items = (uint32_t)(after.completed -
						   before->completed);
		if (run->options->duration_ns && !saturate_is_napping(run->options) &&
		    !result->rc)
			count_queued(run, after.outstanding);
	}
	for (uint64_t number = 0; number < result->items; number++)
		result->bytes += workload_bytes(&run->workload, number);
}

static void drain(struct saturate *run)
{
	struct saturate_result *result = &run->result;
	uint64_t now_ns = clock_now_ns();
	uint64_t end_ns = now_ns + run->options->drain_ns;

	while (!result->rc && outstanding(run) && now_ns < end_ns) {
		if (collect(run, outstanding(run), end_ns - now_ns) == 0)
			break;
		now_ns = clock_now_ns();
	}
	result->drained = !outstanding(run);
}

void saturate_end(void)
{
	ended = 1;
}

void saturate_run(struct saturate *run)
{
	const struct saturate_options *options = run->options;
	struct saturate_result *result = &run->result;
	struct transport_counters before = { 0 };
	uint64_t end_ns = UINT64_MAX;

	result->rc = run->transport->ops->counters(run->transport, &before);
	run->begun_ns = clock_now_ns();
	run->progressed_ns = run->begun_ns;
	if (options->duration_ns)
		end_ns = run->begun_ns + options->duration_ns;
	if (!result->rc && saturate_is_paced(options))
		run_requests(run, end_ns);
	else if (!result->rc && options->nap_ns)
		run_napping(run, end_ns);
	else if (!result->rc)
		run_saturating(run, end_ns);

	measure(run, &before);
	drain(run);
	result->verified = run->workload.verified;
	result->mismatches = run->workload.mismatches;
	result->first_mismatch = run->workload.first_mismatch;
	result->saturated = !saturate_is_napping(options) && !result->rc &&
			    result->min_queued != UINT32_MAX &&
			    result->min_queued >= options->queued_min;
	if (result->rc == -EIO && !result->error) {
		result->error = run->transport->error;
		result->error_index = run->transport->error_index;
	}
}
