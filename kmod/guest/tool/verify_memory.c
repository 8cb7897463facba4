// SPDX-License-Identifier: GPL-2.0
/* Device memory: zeroed at first, read and written by every operation, and left zeroed. */
#include <string.h>

#include "crc32c.h"
#include "descriptor.h"
#include "reference.h"
#include "verify_case.h"

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

	verify_spoil(verify, RESULT, 8192);
	right = verify_run(verify, descs, COUNT(descs), &run_ns, &result) &&
		verify_filled(verify_at(verify, RESULT), 8192, 0);
	verify_outcome(verify, "memory-zeroed", 8192, right, run_ns);
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

	reference_random(verify_at(verify, SOURCE), 5000, 77);
	verify_spoil(verify, RESULT, 5064);
	right = verify_run(verify, descs, COUNT(descs), &run_ns, &result) &&
		!memcmp(verify_at(verify, SOURCE), verify_at(verify, RESULT), 5000) &&
		verify_untouched(verify, RESULT + 5000, 64) &&
		result == crc32c(verify_at(verify, SOURCE), 5000);
	verify_outcome(verify, "memory-roundtrip", 5000, right, run_ns);
}

/* Overlapping ranges in device memory are copied as with memmove(). */
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

	reference_random(verify_at(verify, SOURCE), 8192, from);
	memcpy(expected, verify_at(verify, SOURCE), 8192);
	memmove(expected + to, expected + from, 6000);
	verify_spoil(verify, RESULT, 8192);
	right = verify_run(verify, descs, COUNT(descs), &run_ns, &result) &&
		!memcmp(expected, verify_at(verify, RESULT), 8192);
	verify_outcome(verify, "memory-overlap", 6000, right, run_ns);
}

/* Matrices in every combination of guest and device memory. */
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

	reference_random(verify_at(verify, SOURCE), 4 * m * k, 5);
	reference_random(verify_at(verify, SOURCE2), 4 * k * n, 6);
	reference_gemm(expected, (uint32_t *)verify_at(verify, SOURCE),
		       (uint32_t *)verify_at(verify, SOURCE2), m, n, k);
	verify_spoil(verify, RESULT, sizeof(expected));
	right = verify_run(verify, descs, c_device ? 4 : 3, &run_ns, &result) &&
		!memcmp(expected, verify_at(verify, RESULT), sizeof(expected));
	verify_outcome(verify, "memory-gemm", flags, right, run_ns);
}

/* Each item finds in device memory what the previous item left there. */
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

	verify_spoil(verify, RESULT, 8192);
	right = verify_run(verify, descs, COUNT(descs), &run_ns, &result) &&
		verify_filled(verify_at(verify, RESULT), 4096, 3) &&
		verify_filled(verify_at(verify, RESULT + 4096), 1024, 1) &&
		verify_filled(verify_at(verify, RESULT + 5120), 1024, 2) &&
		verify_filled(verify_at(verify, RESULT + 6144), 2048, 1);
	verify_outcome(verify, "memory-order", COUNT(descs), right, run_ns);
}

/* Zero the memory again, so that the checks can be repeated. */
static void check_memory_left(struct verify *verify)
{
	uint64_t last = verify->transport->limits.memory_bytes - 5000;
	struct vgpu_desc descs[] = {
		flagged(descriptor_fill(0, 16384, 0), VGPU_DESC_DST_DEVICE),
		flagged(descriptor_fill(last, 5000, 0), VGPU_DESC_DST_DEVICE),
	};
	uint64_t run_ns, result;
	bool right = verify_run(verify, descs, COUNT(descs), &run_ns, &result);

	verify_outcome(verify, "memory-left", 16384, right, run_ns);
}

void verify_memory(struct verify *verify)
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
