// SPDX-License-Identifier: GPL-2.0
/*
 * The software engine: the reference for every operation.
 *
 * It works in small steps and reads the clock between them, so it can stop an item
 * after any chunk and continue it later. VGPU_OP_DELAY occupies the engine; if it is
 * long enough to sleep, it does not use the processor. item->done counts finished steps
 * in the unit of each operation: bytes, cells of the result, or nanoseconds.
 */
#include <linux/ktime.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "engine/engine.h"
#include "engine/processor.h"

#define SOFT_STEP_BYTES		4096U
#define SOFT_STEP_MACS		4096U
#define SOFT_CALIBRATION_RUNS	16

/**
 * struct soft - measured costs of one engine; only used for predictions
 * @step_ns: engine time of one step
 * @fact_ps: time of one multiplication of a factorial, ps
 */
struct soft {
	u64 step_ns;
	u32 fact_ps;
};

/*
 * If the host begins an item later than VGPU_ENGINE_NOTICE_NS, nobody is charged for
 * the rest of the delay.
 */
static void soft_delay(struct vgpu_engine *engine, u64 ns)
{
	u64 until_ns = ktime_get_ns() + ns;

	vgpu_engine_busy_until(engine,
			       min(until_ns, engine->began_ns + VGPU_ENGINE_NOTICE_NS + ns));
	vgpu_engine_set_pace(engine, ns < VGPU_ENGINE_BRIEF_NS ?
			     VGPU_ENGINE_BRIEF : VGPU_ENGINE_WAITS);
	while (ktime_get_ns() < until_ns) {
		if (ns < VGPU_ENGINE_SLEEP_NS) {
			cpu_relax();
			continue;
		}
		set_current_state(TASK_IDLE);
		vgpu_engine_sleep(engine, until_ns);
	}
}

static void soft_fill_step(struct vgpu_item *item, u32 bytes)
{
	u32 *to = item->dst.data + item->done;
	u32 pattern = le32_to_cpu(item->desc.arg[1]);

	memset32(to, pattern, bytes / sizeof(*to));
}

/* Copy backwards when the destination overlaps the end of the source. */
static void soft_copy_step(struct vgpu_item *item, u32 bytes)
{
	u64 at = item->done;

	if (item->dst.data > item->src[0].data)
		at = item->dst.bytes - item->done - bytes;
	memmove(item->dst.data + at, item->src[0].data + at, bytes);
}

static void soft_crc_step(struct vgpu_item *item, u32 bytes)
{
	u32 crc = item->done ? item->result : ~0U;

	crc = vgpu_crc32c(crc, item->src[0].data + item->done, bytes);
	item->result = crc;
}

static void soft_fact_step(struct vgpu_item *item, u32 factors)
{
	u32 product = item->result;

	for (; factors; factors--) {
		item->done++;
		product *= (u32)item->done;
	}
	item->result = product;
}

static void soft_gemm_cell(struct vgpu_item *item, u32 n, u32 k)
{
	const u32 *a = item->src[0].data;
	const u32 *b = item->src[1].data;
	u32 *c = item->dst.data;
	u32 row = (u32)item->done / n;
	u32 column = (u32)item->done % n;
	u32 sum = 0;
	u32 i;

	for (i = 0; i < k; i++)
		sum += a[row * k + i] * b[i * n + column];
	c[item->done] = sum;
}

/* How much work an item has, in the unit of item->done. */
static u64 soft_total(const struct vgpu_item *item)
{
	switch (le16_to_cpu(item->desc.op)) {
	case VGPU_OP_FILL:
	case VGPU_OP_COPY:
	case VGPU_OP_CRC32C:
	case VGPU_OP_DELAY:
	case VGPU_OP_FACT:
		return le32_to_cpu(item->desc.arg[0]);
	case VGPU_OP_GEMM_I32:
		return (u64)le32_to_cpu(item->desc.arg[0]) *
		       le32_to_cpu(item->desc.arg[1]);
	default:
		return 0;
	}
}

static void soft_step(struct vgpu_item *item, u64 total)
{
	u32 bytes = min_t(u64, total - item->done, SOFT_STEP_BYTES);
	u32 cells, n, k;

	switch (le16_to_cpu(item->desc.op)) {
	case VGPU_OP_FILL:
		soft_fill_step(item, bytes);
		item->done += bytes;
		return;
	case VGPU_OP_COPY:
		soft_copy_step(item, bytes);
		item->done += bytes;
		return;
	case VGPU_OP_CRC32C:
		soft_crc_step(item, bytes);
		item->done += bytes;
		if (item->done == total)
			item->result = ~(u32)item->result;
		return;
	case VGPU_OP_GEMM_I32:
		n = le32_to_cpu(item->desc.arg[1]);
		k = le32_to_cpu(item->desc.arg[2]);
		for (cells = SOFT_STEP_MACS / k; cells; cells--) {
			soft_gemm_cell(item, n, k);
			if (++item->done == total)
				return;
		}
		return;
	case VGPU_OP_FACT:
		soft_fact_step(item, min_t(u64, total - item->done, SOFT_STEP_MACS));
		return;
	}
}

/*
 * The thread leaves real-time priority for an item that computes for long, whatever the
 * item's estimate. A step in which the thread lost the processor does not count,
 * because it is unknown for how much of the step the thread had the processor.
 */
static void soft_compute(struct vgpu_engine *engine, struct vgpu_item *item, u64 total,
			 u64 limit_ns)
{
	u64 start_ns = ktime_get_ns();
	u64 brief_until_ns = start_ns + VGPU_ENGINE_BRIEF_NS;
	u64 now_ns = start_ns;

	while (item->done < total) {
		unsigned long lost = current->nivcsw;
		u64 step_ns = now_ns;

		soft_step(item, total);
		cond_resched();
		now_ns = ktime_get_ns();
		if (now_ns - start_ns >= limit_ns)
			break;
		if (current->nivcsw != lost)
			brief_until_ns += now_ns - step_ns;
		if (now_ns >= brief_until_ns && item->done < total)
			vgpu_engine_set_pace(engine, VGPU_ENGINE_COMPUTES);
	}
}

/* An item in one piece may exceed @limit_ns, but not max_chunk, whatever was predicted. */
static u64 soft_limit_ns(const struct vgpu_engine *engine, const struct vgpu_item *item,
			 u64 limit_ns)
{
	if (le16_to_cpu(item->desc.flags) & VGPU_DESC_NOSPLIT)
		return READ_ONCE(engine->sched.params.max_chunk_ns);
	return limit_ns;
}

static u64 soft_lasts_ns(const struct vgpu_engine *engine, const struct vgpu_item *item,
			 u64 limit_ns)
{
	if (le16_to_cpu(item->desc.op) != VGPU_OP_DELAY)
		return U64_MAX;
	return min(soft_total(item) - item->done, soft_limit_ns(engine, item, limit_ns));
}

static u64 soft_estimate_ns(struct vgpu_engine *engine,
			    const struct vgpu_item *item)
{
	const struct soft *soft = engine->state;
	u64 total = soft_total(item);

	switch (le16_to_cpu(item->desc.op)) {
	case VGPU_OP_DELAY:
		return total;
	case VGPU_OP_FACT:
		return div_u64(total * soft->fact_ps, 1000);
	case VGPU_OP_GEMM_I32:
		total *= le32_to_cpu(item->desc.arg[2]);
		return DIV_ROUND_UP_ULL(total, SOFT_STEP_MACS) * soft->step_ns;
	default:
		return DIV_ROUND_UP_ULL(total, SOFT_STEP_BYTES) * soft->step_ns;
	}
}

static bool soft_execute(struct vgpu_engine *engine, struct vgpu_item *item,
			 u64 limit_ns)
{
	u64 total = soft_total(item);

	if (le16_to_cpu(item->desc.op) == VGPU_OP_DELAY) {
		soft_delay(engine, limit_ns);
		item->done += limit_ns;
		return item->done == total;
	}
	limit_ns = soft_limit_ns(engine, item, limit_ns);
	if (le16_to_cpu(item->desc.op) == VGPU_OP_FACT && !item->done)
		item->result = 1;
	vgpu_engine_set_pace(engine, soft_estimate_ns(engine, item) < VGPU_ENGINE_BRIEF_NS ?
			     VGPU_ENGINE_BRIEF : VGPU_ENGINE_COMPUTES);
	soft_compute(engine, item, total, limit_ns);
	return item->done >= total;
}

/* The shortest of several runs: interruptions only ever add time. */
static u64 soft_least_ns(struct vgpu_item *item, void (*step)(struct vgpu_item *, u32),
			 u32 units)
{
	u64 best = U64_MAX;
	int i;

	for (i = 0; i < SOFT_CALIBRATION_RUNS; i++) {
		u64 start = ktime_get_ns();

		item->done = 0;
		step(item, units);
		best = min(best, ktime_get_ns() - start);
	}
	return clamp_t(u64, best, 1, 50 * NSEC_PER_USEC);
}

static bool soft_drives(struct pci_dev *pdev)
{
	return true;
}

/*
 * Switching between tenants only costs this engine the decision, which is bounded by
 * the cost of a step.
 */
static void *soft_start(struct vgpu_engine *engine, struct pci_dev *pdev,
			struct vgpu_calibration *calibration)
{
	struct vgpu_item item = {};
	struct soft *soft;

	soft = kzalloc(sizeof(*soft), GFP_KERNEL);
	if (!soft)
		return ERR_PTR(-ENOMEM);
	item.src[0].data = kzalloc(SOFT_STEP_BYTES, GFP_KERNEL);
	if (!item.src[0].data) {
		kfree(soft);
		return ERR_PTR(-ENOMEM);
	}
	soft->step_ns = soft_least_ns(&item, soft_crc_step, SOFT_STEP_BYTES);
	kfree(item.src[0].data);
	soft->fact_ps = max_t(u64, 1, div_u64(soft_least_ns(&item, soft_fact_step,
							    SOFT_STEP_MACS) * 1000,
					      SOFT_STEP_MACS));
	calibration->switch_cost_ns = soft->step_ns;
	calibration->fact_ps = soft->fact_ps;
	return soft;
}

static void soft_stop(void *state)
{
	kfree(state);
}

const struct vgpu_engine_ops vgpu_soft_engine = {
	.name = "soft",
	.operations = BIT(VGPU_OP_NOP) | BIT(VGPU_OP_FILL) | BIT(VGPU_OP_COPY) |
		      BIT(VGPU_OP_CRC32C) | BIT(VGPU_OP_GEMM_I32) | BIT(VGPU_OP_DELAY) |
		      BIT(VGPU_OP_FACT),
	.drives = soft_drives,
	.start = soft_start,
	.stop = soft_stop,
	.lasts_ns = soft_lasts_ns,
	.execute = soft_execute,
	.estimate_ns = soft_estimate_ns,
};
