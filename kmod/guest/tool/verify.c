// SPDX-License-Identifier: GPL-2.0
#include "verify.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "crc32c.h"
#include "descriptor.h"
#include "exit.h"
#include "report.h"
#include "single.h"
#include "reference.h"

#define TIMEOUT_NS (60 * NS_PER_S)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define PIECE 0x100000u /* operand area: source, destination, second source */
#define SOURCE 0u
#define RESULT PIECE
#define SOURCE2 (2 * PIECE)
#define AREA_BYTES (3 * PIECE)

struct verify {
	struct transport *transport;
	const char *name;
	bool json;
	unsigned int cases;
	unsigned int failed;
	int rc; /* the transport failed: no use in going on */
};

static uint8_t *at(struct verify *verify, uint64_t offset)
{
	return verify->transport->area + offset;
}

static void outcome(struct verify *verify, const char *what, uint64_t size,
		    bool right, uint64_t run_ns)
{
	struct report report;

	verify->cases++;
	verify->failed += !right;
	report_begin(&report, verify->json);
	report_text(&report, "record", "verify");
	report_text(&report, "name", verify->name);
	report_text(&report, "case", what);
	report_u64(&report, "size", size);
	report_bool(&report, "ok", right);
	report_u64(&report, "run_ns", run_ns);
	if (verify->rc)
		report_text(&report, "message", verify->transport->message);
	report_end(&report);
}

/* Run items; the total engine time, and the last item's result. */
static bool run(struct verify *verify, const struct vgpu_desc *descs,
		uint32_t count, uint64_t *run_ns, uint64_t *result)
{
	struct vgpu_completion found[SINGLE_ITEMS_MAX];

	*run_ns = 0;
	*result = 0;
	if (verify->rc)
		return false;
	verify->rc = single_run(verify->transport, descs, count, 0, TIMEOUT_NS,
				found);
	if (verify->rc)
		return false;
	for (uint32_t i = 0; i < count; i++)
		*run_ns += le64toh(found[i].run_ns);
	*result = le64toh(found[count - 1].result);
	return true;
}

static void spoil(struct verify *verify, uint64_t offset, size_t bytes)
{
	memset(at(verify, offset), 0xa5, bytes);
}

/* Bytes next to the destination must stay as they were. */
static bool untouched(struct verify *verify, uint64_t offset, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (at(verify, offset)[i] != 0xa5)
			return false;
	return true;
}

static bool filled(const uint8_t *data, size_t bytes, uint32_t pattern)
{
	uint32_t word = htole32(pattern);

	for (size_t i = 0; i < bytes; i += 4)
		if (memcmp(data + i, &word, 4))
			return false;
	return true;
}

static void check_fill(struct verify *verify, uint32_t bytes, uint32_t shift)
{
	struct vgpu_desc desc = descriptor_fill(RESULT + 64 + shift, bytes,
						0x1234abcd);
	uint64_t run_ns, result;
	bool right;

	spoil(verify, RESULT, bytes + 192);
	right = run(verify, &desc, 1, &run_ns, &result) && !result &&
		filled(at(verify, RESULT + 64 + shift), bytes, 0x1234abcd) &&
		untouched(verify, RESULT, 64 + shift) &&
		untouched(verify, RESULT + 64 + shift + bytes, 64);
	outcome(verify, "fill", bytes, right, run_ns);
}

static void check_copy(struct verify *verify, uint32_t bytes, uint32_t shift)
{
	struct vgpu_desc desc = descriptor_copy(RESULT + 64 + shift, SOURCE + 3,
						bytes);
	uint64_t run_ns, result;
	bool right;

	reference_random(at(verify, SOURCE), bytes + 3, bytes);
	spoil(verify, RESULT, bytes + 192);
	right = run(verify, &desc, 1, &run_ns, &result) && !result &&
		!memcmp(at(verify, RESULT + 64 + shift), at(verify, SOURCE + 3),
			bytes) &&
		untouched(verify, RESULT, 64 + shift) &&
		untouched(verify, RESULT + 64 + shift + bytes, 64);
	outcome(verify, "copy", bytes, right, run_ns);
}

static void check_crc32c(struct verify *verify, uint32_t bytes, uint32_t shift)
{
	struct vgpu_desc desc = descriptor_crc32c(SOURCE + shift, bytes);
	uint64_t run_ns, result;
	bool right;

	reference_random(at(verify, SOURCE + shift), bytes, bytes + 1);
	right = run(verify, &desc, 1, &run_ns, &result) &&
		result == crc32c(at(verify, SOURCE + shift), bytes);
	outcome(verify, "crc32c", bytes, right, run_ns);
}

static void check_gemm(struct verify *verify, uint32_t m, uint32_t n, uint32_t k)
{
	struct vgpu_desc desc = descriptor_gemm(RESULT, SOURCE, SOURCE2, m, n, k);
	uint32_t *expected = malloc(4 * m * n);
	uint64_t run_ns, result;
	bool right;

	if (!expected) {
		verify->rc = transport_fail(verify->transport, -ENOMEM,
					    "out of memory");
		return;
	}
	reference_random(at(verify, SOURCE), 4 * m * k, m + 1);
	reference_random(at(verify, SOURCE2), 4 * k * n, n + 2);
	spoil(verify, RESULT, 4 * m * n);
	right = run(verify, &desc, 1, &run_ns, &result) && !result;
	reference_gemm(expected, (uint32_t *)at(verify, SOURCE),
		       (uint32_t *)at(verify, SOURCE2), m, n, k);
	right = right && !memcmp(expected, at(verify, RESULT), 4 * m * n);
	free(expected);
	outcome(verify, "gemm", (uint64_t)m * n * k, right, run_ns);
}

static void check_delay(struct verify *verify, uint32_t delay_ns)
{
	struct vgpu_desc desc = descriptor_delay(delay_ns);
	uint64_t run_ns, result;
	bool right;

	right = run(verify, &desc, 1, &run_ns, &result) && !result &&
		run_ns >= delay_ns;
	outcome(verify, "delay", delay_ns, right, run_ns);
}

static void check_fact(struct verify *verify, uint32_t n)
{
	struct vgpu_desc desc = descriptor_fact(n);
	uint64_t run_ns, result;
	bool right;

	right = run(verify, &desc, 1, &run_ns, &result) &&
		result == reference_factorial(n);
	outcome(verify, "fact", n, right, run_ns);
}

/* Later items overwrite what earlier ones wrote. */
static void check_order(struct verify *verify)
{
	struct vgpu_desc descs[] = {
		descriptor_fill(RESULT, 4096, 1),
		descriptor_fill(RESULT + 1024, 1024, 2),
		descriptor_fill(RESULT + 2048, 2048, 3),
		descriptor_fill(RESULT + 3072, 64, 4),
	};
	uint64_t run_ns, result;
	bool right;

	spoil(verify, RESULT, 4096);
	right = run(verify, descs, COUNT(descs), &run_ns, &result) &&
		filled(at(verify, RESULT), 1024, 1) &&
		filled(at(verify, RESULT + 1024), 1024, 2) &&
		filled(at(verify, RESULT + 2048), 1024, 3) &&
		filled(at(verify, RESULT + 3072), 64, 4) &&
		filled(at(verify, RESULT + 3136), 960, 3);
	outcome(verify, "order", COUNT(descs), right, run_ns);
}

/* More items than the ring has entries, so that every entry is used again. */
static void check_wrap(struct verify *verify)
{
	uint32_t rounds = 2 * verify->transport->limits.ring_entries /
			  SINGLE_ITEMS_MAX + 2;
	struct vgpu_completion found[SINGLE_ITEMS_MAX];
	struct vgpu_desc descs[SINGLE_ITEMS_MAX];
	bool right = true;

	for (uint32_t round = 0; round < rounds && !verify->rc; round++) {
		for (uint32_t i = 0; i < SINGLE_ITEMS_MAX; i++) {
			descs[i] = descriptor_nop();
			descs[i].cookie = htole64(round * 100 + i);
		}
		verify->rc = single_run(verify->transport, descs,
					SINGLE_ITEMS_MAX, 0, TIMEOUT_NS, found);
		for (uint32_t i = 0; i < SINGLE_ITEMS_MAX && !verify->rc; i++)
			right = right && le64toh(found[i].cookie) == round * 100 + i;
	}
	outcome(verify, "wrap", rounds * SINGLE_ITEMS_MAX, right && !verify->rc,
		0);
}

static struct vgpu_desc flagged(struct vgpu_desc desc, uint16_t flags)
{
	descriptor_flag(&desc, flags);
	return desc;
}

static void check_memory_zeroed(struct verify *verify)
{
	uint64_t last = verify->transport->limits.memory_bytes - 4096;
	struct vgpu_desc descs[] = {
		flagged(descriptor_copy(RESULT, 0, 4096), VGPU_DESC_SRC_DEVICE),
		flagged(descriptor_copy(RESULT + 4096, last, 4096),
			VGPU_DESC_SRC_DEVICE),
	};
	uint64_t run_ns, result;
	bool right;

	spoil(verify, RESULT, 8192);
	right = run(verify, descs, COUNT(descs), &run_ns, &result) &&
		filled(at(verify, RESULT), 8192, 0);
	outcome(verify, "memory-zeroed", 8192, right, run_ns);
}

static void check_memory_roundtrip(struct verify *verify)
{
	uint64_t last = verify->transport->limits.memory_bytes - 5000;
	struct vgpu_desc descs[] = {
		flagged(descriptor_copy(last, SOURCE, 5000),
			VGPU_DESC_DST_DEVICE),
		flagged(descriptor_copy(8192, last, 5000),
			VGPU_DESC_DST_DEVICE | VGPU_DESC_SRC_DEVICE),
		flagged(descriptor_copy(RESULT, 8192, 5000),
			VGPU_DESC_SRC_DEVICE),
		flagged(descriptor_crc32c(8192, 5000), VGPU_DESC_SRC_DEVICE),
	};
	uint64_t run_ns, result;
	bool right;

	reference_random(at(verify, SOURCE), 5000, 77);
	spoil(verify, RESULT, 5064);
	right = run(verify, descs, COUNT(descs), &run_ns, &result) &&
		!memcmp(at(verify, SOURCE), at(verify, RESULT), 5000) &&
		untouched(verify, RESULT + 5000, 64) &&
		result == crc32c(at(verify, SOURCE), 5000);
	outcome(verify, "memory-roundtrip", 5000, right, run_ns);
}

/* Overlapping ranges in device memory move as with memmove(). */
static void check_memory_overlap(struct verify *verify, uint64_t from,
				 uint64_t to)
{
	struct vgpu_desc descs[] = {
		flagged(descriptor_copy(0, SOURCE, 8192), VGPU_DESC_DST_DEVICE),
		flagged(descriptor_copy(to, from, 6000),
			VGPU_DESC_DST_DEVICE | VGPU_DESC_SRC_DEVICE),
		flagged(descriptor_copy(RESULT, 0, 8192), VGPU_DESC_SRC_DEVICE),
	};
	uint8_t expected[8192];
	uint64_t run_ns, result;
	bool right;

	reference_random(at(verify, SOURCE), 8192, from);
	memcpy(expected, at(verify, SOURCE), 8192);
	memmove(expected + to, expected + from, 6000);
	spoil(verify, RESULT, 8192);
	right = run(verify, descs, COUNT(descs), &run_ns, &result) &&
		!memcmp(expected, at(verify, RESULT), 8192);
	outcome(verify, "memory-overlap", 6000, right, run_ns);
}

/* Matrices in every mixture of guest and device memory. */
static void check_memory_gemm(struct verify *verify, uint16_t flags)
{
	const uint32_t m = 17, n = 9, k = 23;
	const uint64_t a = 0, b = 4096, c = 8192;
	bool a_device = flags & VGPU_DESC_SRC_DEVICE;
	bool b_device = flags & VGPU_DESC_SRC2_DEVICE;
	bool c_device = flags & VGPU_DESC_DST_DEVICE;
	struct vgpu_desc descs[] = {
		flagged(descriptor_copy(a, SOURCE, 4 * m * k),
			VGPU_DESC_DST_DEVICE),
		flagged(descriptor_copy(b, SOURCE2, 4 * k * n),
			VGPU_DESC_DST_DEVICE),
		flagged(descriptor_gemm(c_device ? c : RESULT,
					a_device ? a : SOURCE,
					b_device ? b : SOURCE2, m, n, k),
			flags),
		flagged(descriptor_copy(RESULT, c, 4 * m * n),
			VGPU_DESC_SRC_DEVICE),
	};
	uint32_t expected[17 * 9];
	uint64_t run_ns, result;
	bool right;

	reference_random(at(verify, SOURCE), 4 * m * k, 5);
	reference_random(at(verify, SOURCE2), 4 * k * n, 6);
	reference_gemm(expected, (uint32_t *)at(verify, SOURCE),
		       (uint32_t *)at(verify, SOURCE2), m, n, k);
	spoil(verify, RESULT, sizeof(expected));
	right = run(verify, descs, c_device ? 4 : 3, &run_ns, &result) &&
		!memcmp(expected, at(verify, RESULT), sizeof(expected));
	outcome(verify, "memory-gemm", flags, right, run_ns);
}

/* Each item finds in device memory what the one before left there. */
static void check_memory_order(struct verify *verify)
{
	struct vgpu_desc descs[] = {
		flagged(descriptor_fill(0, 4096, 1), VGPU_DESC_DST_DEVICE),
		flagged(descriptor_fill(1024, 1024, 2), VGPU_DESC_DST_DEVICE),
		flagged(descriptor_copy(4096, 0, 4096),
			VGPU_DESC_DST_DEVICE | VGPU_DESC_SRC_DEVICE),
		flagged(descriptor_fill(0, 4096, 3), VGPU_DESC_DST_DEVICE),
		flagged(descriptor_copy(RESULT, 0, 8192), VGPU_DESC_SRC_DEVICE),
	};
	uint64_t run_ns, result;
	bool right;

	spoil(verify, RESULT, 8192);
	right = run(verify, descs, COUNT(descs), &run_ns, &result) &&
		filled(at(verify, RESULT), 4096, 3) &&
		filled(at(verify, RESULT + 4096), 1024, 1) &&
		filled(at(verify, RESULT + 5120), 1024, 2) &&
		filled(at(verify, RESULT + 6144), 2048, 1);
	outcome(verify, "memory-order", COUNT(descs), right, run_ns);
}

/* It is left as it was found, zeroed, so that this can be asked again. */
static void check_memory_left(struct verify *verify)
{
	uint64_t last = verify->transport->limits.memory_bytes - 5000;
	struct vgpu_desc descs[] = {
		flagged(descriptor_fill(0, 16384, 0), VGPU_DESC_DST_DEVICE),
		flagged(descriptor_fill(last, 5000, 0), VGPU_DESC_DST_DEVICE),
	};
	uint64_t run_ns, result;
	bool right = run(verify, descs, COUNT(descs), &run_ns, &result);

	outcome(verify, "memory-left", 16384, right, run_ns);
}

static void check_memory(struct verify *verify)
{
	check_memory_zeroed(verify);
	check_memory_roundtrip(verify);
	check_memory_overlap(verify, 0, 1001);
	check_memory_overlap(verify, 1001, 0);
	check_memory_order(verify);
	for (uint16_t flags = 0; flags <= 7; flags++)
		check_memory_gemm(verify, flags);
	check_memory_left(verify);
}

static bool begin(struct verify *verify, struct transport *transport,
		  const char *name, bool json)
{
	*verify = (struct verify){
		.transport = transport, .name = name, .json = json,
	};
	verify->rc = transport->ops->map(transport, AREA_BYTES);
	return !verify->rc;
}

static int finish(struct verify *verify)
{
	struct report report;

	report_begin(&report, verify->json);
	report_text(&report, "record", "summary");
	report_text(&report, "name", verify->name);
	report_u64(&report, "cases", verify->cases);
	report_u64(&report, "failed", verify->failed);
	report_u64(&report, "rc", -verify->rc);
	if (verify->rc) {
		report_text(&report, "error_name",
			    error_name(verify->transport->error));
		report_text(&report, "message", verify->transport->message);
	}
	report_end(&report);
	if (verify->rc == -ETIMEDOUT)
		return EXIT_SILENT;
	if (verify->rc == -EIO)
		return EXIT_ERROR;
	if (verify->rc)
		return EXIT_DEVICE;
	return verify->failed ? EXIT_WRONG : EXIT_OK;
}

static bool has(const struct verify *verify, uint16_t op)
{
	return verify->transport->limits.ops >> op & 1;
}

static void check_data(struct verify *verify)
{
	static const uint32_t sizes[] = { 4, 60, 4096, 10000, 65536, PIECE - 256 };

	for (size_t i = 0; i < COUNT(sizes) && !verify->rc; i++) {
		if (sizes[i] > verify->transport->limits.item_bytes_max)
			continue;
		check_fill(verify, sizes[i], i % 2 * 4);
		check_copy(verify, sizes[i], i % 3);
		check_copy(verify, sizes[i] - 1, 1);
		check_crc32c(verify, sizes[i], 0);
		check_crc32c(verify, sizes[i] - 3, i % 3);
	}
	if (!verify->rc)
		check_order(verify);
}

static void check_matrices(struct verify *verify)
{
	check_gemm(verify, 1, 1, 1);
	check_gemm(verify, 3, 5, 7);
	check_gemm(verify, 64, 64, 64);
	check_gemm(verify, VGPU_GEMM_DIM_MAX, 1, 2);
	check_gemm(verify, 1, VGPU_GEMM_DIM_MAX, VGPU_GEMM_DIM_MAX);
}

static void check_factorials(struct verify *verify)
{
	static const uint32_t numbers[] = { 0, 1, 2, 12, 13, 20, 33, 34, 100000 };

	for (size_t i = 0; i < COUNT(numbers) && !verify->rc; i++)
		check_fact(verify, numbers[i]);
}

/* An engine has all of the operations on memory or none. */
int verify_all(struct transport *transport, const char *name, bool json)
{
	struct verify verify;

	if (!begin(&verify, transport, name, json))
		return finish(&verify);
	/* first, before anything is written to it */
	if (has(&verify, VGPU_OP_COPY) && transport->limits.memory_bytes >= 65536)
		check_memory(&verify);
	if (!verify.rc && has(&verify, VGPU_OP_COPY))
		check_data(&verify);
	if (!verify.rc && has(&verify, VGPU_OP_GEMM_I32))
		check_matrices(&verify);
	if (!verify.rc && has(&verify, VGPU_OP_DELAY)) {
		check_delay(&verify, 1);
		check_delay(&verify, 3000000);
	}
	if (!verify.rc && has(&verify, VGPU_OP_FACT))
		check_factorials(&verify);
	if (!verify.rc)
		check_wrap(&verify);
	return finish(&verify);
}

int verify_submit(struct transport *transport, const char *op, uint32_t size,
		  bool json)
{
	struct verify verify;

	if (!begin(&verify, transport, op, json))
		return finish(&verify);
	switch (op_by_name(op)) {
	case VGPU_OP_NOP:
		check_wrap(&verify);
		break;
	case VGPU_OP_FILL:
		check_fill(&verify, size, 0);
		break;
	case VGPU_OP_COPY:
		check_copy(&verify, size, 0);
		break;
	case VGPU_OP_CRC32C:
		check_crc32c(&verify, size, 0);
		break;
	case VGPU_OP_GEMM_I32:
		check_gemm(&verify, size, size, size);
		break;
	case VGPU_OP_DELAY:
		check_delay(&verify, size);
		break;
	case VGPU_OP_FACT:
		check_fact(&verify, size);
		break;
	}
	return finish(&verify);
}
