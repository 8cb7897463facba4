// SPDX-License-Identifier: GPL-2.0
#include "lend.h"

#include "executor.h"
#include "ring.h"

struct lend_counts lend_counts;

/* The last grant. How long the thread found that it took cannot always be told from outside. */
static struct {
	const struct vgpu_executor *executor;
	u64 number;
	enum { UNKNOWN, LONG, BRIEF } took;
} last;

static const struct vgpu_executor *executor_of(const struct vgpu_item *item)
{
	return item->ring->dead ? NULL : item->ring->device->executor;
}

/*
 * The thread sleeps with the priority of who waits for who took long before, or comes
 * anew, and does so from the beginning; for who was brief only once he no longer is.
 */
static void check_sleeps(u64 begun_ns, u64 brief_ns)
{
	bool brief = sim_sleeps.brief;

	REQUIRE(!brief || sim_sleeps.brief_until_ns < begun_ns + SIM_CLOCK_NS + brief_ns);
	if (last.took == LONG) {
		REQUIRE(!brief);
		lend_counts.after_long++;
	} else if (last.took == BRIEF) {
		REQUIRE(!sim_sleeps.waits_ns || sim_sleeps.waits_ns >= begun_ns + brief_ns);
		lend_counts.after_brief += brief;
		lend_counts.no_longer_brief += brief && sim_sleeps.waits_ns;
	}
}

static bool execute(struct vgpu_engine *engine, struct vgpu_item *item, u64 limit_ns)
{
	u64 brief_ns = min(engine->sched.params.max_chunk_ns, (u64)VGPU_ENGINE_BRIEF_NS);
	const struct vgpu_executor *executor = executor_of(item);
	u64 number = executor ? executor->grant.number : 0;
	u64 begun_ns = sim_now_ns;
	bool finished;

	sim_sleeps = (struct sim_sleeps){};
	finished = vgpu_exec_engine.execute(engine, item, limit_ns);
	if (!executor || executor != executor_of(item) || executor->grant.number == number)
		return finished;
	if (!number)
		last.took = LONG;
	else if (executor != last.executor || number != last.number)
		last.took = UNKNOWN;
	check_sleeps(begun_ns, brief_ns);
	last.executor = executor;
	last.number = number + 1;
	if (sim_now_ns < begun_ns + brief_ns)
		last.took = BRIEF;
	else if (sim_sleeps.woken_ns >= begun_ns + SIM_CLOCK_NS + brief_ns)
		last.took = LONG;
	else
		last.took = UNKNOWN;
	return finished;
}

/* The module's own but for the eye on it. */
const struct vgpu_engine_ops *lend_engine(void)
{
	static struct vgpu_engine_ops ops;

	ops = vgpu_exec_engine;
	ops.execute = execute;
	return &ops;
}
