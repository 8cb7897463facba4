// SPDX-License-Identifier: GPL-2.0
#include "fuzz.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#include "clock.h"
#include "descriptor.h"
#include "exit.h"
#include "report.h"
#include "single.h"

#define BATCH_MAX 16u
#define WAIT_NS (2 * NS_PER_S)
#define TIMEOUT_NS (60 * NS_PER_S)

struct fuzz {
	struct transport *transport;
	uint64_t random;
	bool wild; /* the part of the present batch that may be wrong */
	uint64_t submitted, completed, full, resets, faults, errors_seen;
	int surprise; /* the first answer that no call may return */
};

static uint64_t below(struct fuzz *fuzz, uint64_t limit)
{
	fuzz->random ^= fuzz->random << 13;
	fuzz->random ^= fuzz->random >> 7;
	fuzz->random ^= fuzz->random << 17;
	return (fuzz->random * 0x2545f4914f6cdd1dull >> 16) % limit;
}

static bool odd(struct fuzz *fuzz, uint64_t one_in)
{
	return fuzz->wild && !below(fuzz, one_in);
}

/* Anywhere in device memory; around its end or far outside if odd. */
static uint64_t some_offset(struct fuzz *fuzz)
{
	uint64_t memory_bytes = fuzz->transport->limits.memory_bytes;

	if (odd(fuzz, 16))
		return memory_bytes - 64 + 4 * below(fuzz, 32);
	if (odd(fuzz, 16))
		return below(fuzz, UINT64_MAX >> 16) << 16;
	return 4 * below(fuzz, memory_bytes / 4);
}

/* A readable address in device memory or the guest's own; an unreadable one if odd. */
static uint64_t some_source(struct fuzz *fuzz)
{
	return odd(fuzz, 8) ? fuzz->transport->unmapped : some_offset(fuzz);
}

static uint32_t some_bytes(struct fuzz *fuzz)
{
	return 4 + 4 * below(fuzz, odd(fuzz, 16) ? 1 << 19 : 1024);
}

static uint32_t some_dimension(struct fuzz *fuzz)
{
	return 1 + below(fuzz, odd(fuzz, 16) ? 1024 : 20);
}

static struct vgpu_desc some_good(struct fuzz *fuzz)
{
	uint64_t dst = some_offset(fuzz), src = some_source(fuzz);
	struct vgpu_desc desc;

	switch (below(fuzz, 6)) {
	case 0:
		desc = descriptor_fill(dst, some_bytes(fuzz), below(fuzz, 1u << 31));
		break;
	case 1:
		desc = descriptor_copy(dst, src, some_bytes(fuzz));
		break;
	case 2:
		desc = descriptor_crc32c(src, some_bytes(fuzz));
		break;
	case 3:
		desc = descriptor_gemm(dst, src, some_source(fuzz),
				       some_dimension(fuzz), some_dimension(fuzz),
				       some_dimension(fuzz));
		break;
	case 4:
		desc = descriptor_delay(1 + below(fuzz, 400 * NS_PER_US));
		break;
	default:
		desc = descriptor_nop();
	}
	desc.kernel_id = htole32(below(fuzz, 8));
	return desc;
}

static uint16_t some_flags(struct fuzz *fuzz, struct vgpu_desc *desc)
{
	static const uint16_t flags[] = { VGPU_DESC_IRQ, VGPU_DESC_NOSPLIT, VGPU_DESC_MORE,
					  VGPU_DESC_END };
	struct operand operands[OPERANDS_MAX];
	unsigned int count = descriptor_operands(desc, operands);
	bool writes = count && operands[0].written;
	uint16_t chosen = writes ? VGPU_DESC_DST_DEVICE : 0;

	if (count > writes && below(fuzz, 4))
		chosen |= VGPU_DESC_SRC_DEVICE;
	if (count == OPERANDS_MAX && below(fuzz, 4))
		chosen |= VGPU_DESC_SRC2_DEVICE;
	for (size_t i = 0; i < sizeof(flags) / sizeof(*flags); i++)
		if (!below(fuzz, 6))
			chosen |= flags[i];
	return chosen;
}

/* The guest has to survive: writes to its memory are redirected to an unmapped address. */
static void tame(struct fuzz *fuzz, struct vgpu_desc *desc)
{
	struct operand operands[OPERANDS_MAX];
	unsigned int count = descriptor_operands(desc, operands);

	for (unsigned int i = 0; i < count; i++)
		if (operands[i].written && !operands[i].device)
			*operands[i].address |= htole64(fuzz->transport->unmapped);
}

static struct vgpu_desc some_desc(struct fuzz *fuzz)
{
	struct vgpu_desc desc = some_good(fuzz);

	descriptor_flag(&desc, some_flags(fuzz, &desc));
	if (odd(fuzz, 16))
		for (size_t i = 0; i < sizeof(desc); i++)
			((uint8_t *)&desc)[i] ^= below(fuzz, 16) ? 0 : below(fuzz, 256);
	tame(fuzz, &desc);
	return desc;
}

/* @rc is 0 or one of the errors that the calls may return. */
static void judge(struct fuzz *fuzz, int rc)
{
	if (rc && rc != -EIO && rc != -EAGAIN && rc != -ETIMEDOUT && !fuzz->surprise)
		fuzz->surprise = -rc;
}

static void reset(struct fuzz *fuzz)
{
	fuzz->resets++;
	judge(fuzz, fuzz->transport->ops->reset(fuzz->transport));
}

static void count_fault(struct fuzz *fuzz)
{
	struct transport_counters counters;

	judge(fuzz, fuzz->transport->ops->counters(fuzz->transport, &counters));
	fuzz->faults++;
	if (counters.error < 64)
		fuzz->errors_seen |= 1ull << counters.error;
}

static void play(struct fuzz *fuzz)
{
	const struct transport_ops *ops = fuzz->transport->ops;
	struct vgpu_completion found[BATCH_MAX];
	uint32_t outstanding, collected = 0, count = 1 + below(fuzz, BATCH_MAX);
	struct vgpu_desc descs[BATCH_MAX];
	int rc;

	/*
	 * The device checks a whole fetched batch before any of it executes: one bad descriptor
	 * discards the good ones with it.
	 */
	fuzz->wild = below(fuzz, 2);
	for (uint32_t i = 0; i < count; i++)
		descs[i] = some_desc(fuzz);
	rc = ops->submit(fuzz->transport, descs, count, TRANSPORT_RAW, &outstanding);
	judge(fuzz, rc);
	if (!rc)
		fuzz->submitted += count;
	fuzz->full += rc == -EAGAIN;
	if (!rc || rc == -EAGAIN) {
		rc = ops->wait(fuzz->transport, found, BATCH_MAX,
			       rc ? BATCH_MAX : below(fuzz, count + 1), WAIT_NS, &collected);
		judge(fuzz, rc);
		fuzz->completed += collected;
	}
	if (rc == -EIO)
		count_fault(fuzz);
	if (rc == -EIO || !below(fuzz, 256))
		reset(fuzz);
}

int fuzz_run(struct transport *transport, uint64_t duration_ns, uint64_t seed,
	     bool json)
{
	struct fuzz fuzz = { .transport = transport,
			     .random = (seed + 1) * 0x9e3779b97f4a7c15ull };
	uint64_t end_ns = clock_now_ns() + duration_ns;
	struct vgpu_desc last = descriptor_nop();
	struct report report;
	bool works;

	while (!fuzz.surprise && clock_now_ns() < end_ns)
		play(&fuzz);
	reset(&fuzz);
	works = !single_run(transport, &last, 1, 0, TIMEOUT_NS, NULL);

	report_begin(&report, json);
	report_text(&report, "record", "fuzz");
	report_u64(&report, "seed", seed);
	report_u64(&report, "submitted", fuzz.submitted);
	report_u64(&report, "completed", fuzz.completed);
	report_u64(&report, "full", fuzz.full);
	report_u64(&report, "faults", fuzz.faults);
	report_u64(&report, "resets", fuzz.resets);
	report_hex(&report, "errors_seen", fuzz.errors_seen);
	report_u64(&report, "surprise", fuzz.surprise);
	report_bool(&report, "ok", works && !fuzz.surprise);
	if (fuzz.surprise || !works)
		report_text(&report, "message", transport->message);
	report_end(&report);
	return works && !fuzz.surprise ? EXIT_OK : EXIT_WRONG;
}
