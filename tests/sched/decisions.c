// SPDX-License-Identifier: Apache-2.0
/*
 * The cost of a decision of the scheduler core: a charge and a pick, as after a
 * finished piece.  All groups always have work.
 *
 *	decisions count|time MODE GROUPS DECISIONS
 *
 * MODE is "chunk" (runs of several pieces, the usual case) or "switch" (every decision hands the
 * engine over, the most expensive case); "lease" (a yield and the next lease, which goes to another
 * slice) or "review" (of a lease that goes on).  "count" only decides, for an instruction counter
 * that watches decide_*(); "time" prints nanoseconds: the mean of processor time, then the median,
 * the 99th percentile and the 99.9th of single decisions by the clock, then the time of reading the
 * clock alone.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "vgpu_lease.h"

#define MS	1000000ull
#define LENGTHS	4096u

static struct vgpu_sched sched;
static u64 now_ns, lengths[LENGTHS];
static void (*decide)(struct vgpu_decision *out);
static struct vgpu_lease lease;

static void fail(const char *what)
{
	fprintf(stderr, "decisions: %s\n", what);
	exit(2);
}

static void lend(void)
{
	static const struct vgpu_yield want = { .flags = VGPU_YIELD_WANT };

	if (lease.slice && vgpu_slice_yield(&sched, lease.slice, &want, now_ns))
		fail("a yield was refused");
	if (vgpu_sched_lend(&sched, now_ns, &lease))
		fail("no lease was lent");
}

__attribute__((noinline)) void decide_pick(struct vgpu_decision *out)
{
	vgpu_sched_pick(&sched, now_ns, out);
}

__attribute__((noinline)) void decide_lease(struct vgpu_decision *out)
{
	(void)out;
	lend();
}

__attribute__((noinline)) void decide_review(struct vgpu_decision *out)
{
	(void)out;
	vgpu_sched_review(&sched, now_ns, &lease);
}

static void set_up(bool switches, u32 nr)
{
	struct vgpu_sched_params engine = { .max_chunk_ns = 400000, .min_chunk_ns = 1000 };
	struct vgpu_group_params granted = { .timeslice_ns = switches ? MS / 20 : MS };
	struct vgpu_slice_params device = { .weight = 1 };
	struct vgpu_group *groups = calloc(nr, sizeof(*groups));
	struct vgpu_slice *slices = calloc(nr, sizeof(*slices));
	u64 state = 88172645463325252ull;
	u32 i;

	if (!groups || !slices)
		fail("no memory");
	for (i = 0; i < LENGTHS; i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		lengths[i] = 50000 + state % 350000;
	}
	if (vgpu_sched_init(&sched, &engine, 0))
		fail("the engine was refused");
	for (i = 0; i < nr; i++) {
		/* With different weights the heavy group would run for several turns. */
		granted.weight = switches ? 1 : 1 + i % 8;
		if (vgpu_group_add(&sched, &groups[i], &granted, 0) ||
		    vgpu_slice_add(&sched, &groups[i], &slices[i], &device, 0) ||
		    vgpu_slice_wake(&sched, &slices[i], 0))
			fail("a group was refused");
	}
}

static u64 read_clock(clockid_t clock)
{
	struct timespec at;

	clock_gettime(clock, &at);
	return (u64)at.tv_sec * 1000000000ull + (u64)at.tv_nsec;
}

static void run(u64 decisions)
{
	struct vgpu_decision out;
	u64 i;

	for (i = 0; i < decisions; i++) {
		if (decide == decide_review && now_ns >= lease.expires_ns)
			lend();
		decide(&out);
		now_ns += lengths[i % LENGTHS];
	}
}

static int compare(const void *a, const void *b)
{
	u64 x = *(const u64 *)a, y = *(const u64 *)b;

	return (x > y) - (x < y);
}

static void print_times(u64 decisions)
{
	u64 *took = calloc(decisions, sizeof(*took)), i, before, empty;
	struct vgpu_decision out;

	if (!took)
		fail("no memory");
	before = read_clock(CLOCK_THREAD_CPUTIME_ID);
	run(decisions);
	printf("%.1f", (double)(read_clock(CLOCK_THREAD_CPUTIME_ID) - before) / (double)decisions);
	for (i = 0; i < decisions; i++) {
		if (decide == decide_review && now_ns >= lease.expires_ns)
			lend();
		before = read_clock(CLOCK_MONOTONIC);
		decide(&out);
		took[i] = read_clock(CLOCK_MONOTONIC) - before;
		now_ns += lengths[i % LENGTHS];
	}
	qsort(took, decisions, sizeof(*took), compare);
	printf(" %" PRIu64 " %" PRIu64 " %" PRIu64, took[decisions / 2], took[decisions / 100 * 99],
	       took[decisions / 1000 * 999]);
	before = read_clock(CLOCK_MONOTONIC);
	for (i = 0; i < decisions; i++)
		read_clock(CLOCK_MONOTONIC);
	empty = read_clock(CLOCK_MONOTONIC) - before;
	printf(" %.1f\n", (double)empty / (double)decisions);
	free(took);
}

int main(int argc, char **argv)
{
	u64 decisions;

	if (argc != 5)
		fail("count|time chunk|switch|lease|review GROUPS DECISIONS");
	decide = !strcmp(argv[2], "lease") ? decide_lease :
		 !strcmp(argv[2], "review") ? decide_review : decide_pick;
	set_up(decide == decide_lease || !strcmp(argv[2], "switch"),
	       (u32)strtoul(argv[3], NULL, 10));
	decisions = strtoull(argv[4], NULL, 10);
	if (strcmp(argv[1], "time")) {
		run(decisions);
		return 0;
	}
	run(decisions / 4);
	print_times(decisions);
	return 0;
}
