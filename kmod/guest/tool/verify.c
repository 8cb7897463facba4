// SPDX-License-Identifier: GPL-2.0
#include "verify.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "descriptor.h"
#include "reference.h"
#include "single.h"
#include "verify_case.h"

static void check_fill(struct verify *verify, uint32_t bytes, uint32_t shift)
{
	struct vgpu_desc desc = descriptor_fill(RESULT + 64 + shift, bytes,
						0x1234abcd);
	uint64_t run_ns, result;
	bool right;

	verify_spoil(verify, RESULT, bytes + 192);
	right = verify_run(verify, &desc, 1, &run_ns, &result) && !result &&
		verify_filled(verify_at(verify, RESULT + 64 + shift), bytes, 0x1234abcd) &&
		verify_untouched(verify, RESULT, 64 + shift) &&
		verify_untouched(verify, RESULT + 64 + shift + bytes, 64);
	verify_outcome(verify, "fill", bytes, right, run_ns);
}

static void check_copy(struct verify *verify, uint32_t bytes, uint32_t shift)
{
	struct vgpu_desc desc = descriptor_copy(RESULT + 64 + shift, SOURCE + 3,
						bytes);
	uint64_t run_ns, result;
	bool right;

	reference_random(verify_at(verify, SOURCE), bytes + 3, bytes);
	verify_spoil(verify, RESULT, bytes + 192);
	right = verify_run(verify, &desc, 1, &run_ns, &result) && !result &&
		!memcmp(verify_at(verify, RESULT + 64 + shift), verify_at(verify, SOURCE + 3),
			bytes) &&
		verify_untouched(verify, RESULT, 64 + shift) &&
		verify_untouched(verify, RESULT + 64 + shift + bytes, 64);
	verify_outcome(verify, "copy", bytes, right, run_ns);
}

static void check_crc32c(struct verify *verify, uint32_t bytes, uint32_t shift)
{
	struct vgpu_desc desc = descriptor_crc32c(SOURCE + shift, bytes);
	uint64_t run_ns, result;
	bool right;

	reference_random(verify_at(verify, SOURCE + shift), bytes, bytes + 1);
	right = verify_run(verify, &desc, 1, &run_ns, &result) &&
		result == crc32c(verify_at(verify, SOURCE + shift), bytes);
	verify_outcome(verify, "crc32c", bytes, right, run_ns);
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
	reference_random(verify_at(verify, SOURCE), 4 * m * k, m + 1);
	reference_random(verify_at(verify, SOURCE2), 4 * k * n, n + 2);
	verify_spoil(verify, RESULT, 4 * m * n);
	right = verify_run(verify, &desc, 1, &run_ns, &result) && !result;
	reference_gemm(expected, (uint32_t *)verify_at(verify, SOURCE),
		       (uint32_t *)verify_at(verify, SOURCE2), m, n, k);
	right = right && !memcmp(expected, verify_at(verify, RESULT), 4 * m * n);
	free(expected);
	verify_outcome(verify, "gemm", (uint64_t)m * n * k, right, run_ns);
}

static void check_delay(struct verify *verify, uint32_t delay_ns)
{
	struct vgpu_desc desc = descriptor_delay(delay_ns);
	uint64_t run_ns, result;
	bool right;

	right = verify_run(verify, &desc, 1, &run_ns, &result) && !result &&
		run_ns >= delay_ns;
	verify_outcome(verify, "delay", delay_ns, right, run_ns);
}

static void check_fact(struct verify *verify, uint32_t n)
{
	struct vgpu_desc desc = descriptor_fact(n);
	uint64_t run_ns, result;
	bool right;

	right = verify_run(verify, &desc, 1, &run_ns, &result) &&
		result == reference_factorial(n);
	verify_outcome(verify, "fact", n, right, run_ns);
}

/* Later items overwrite the data of earlier ones. */
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

	verify_spoil(verify, RESULT, 4096);
	right = verify_run(verify, descs, COUNT(descs), &run_ns, &result) &&
		verify_filled(verify_at(verify, RESULT), 1024, 1) &&
		verify_filled(verify_at(verify, RESULT + 1024), 1024, 2) &&
		verify_filled(verify_at(verify, RESULT + 2048), 1024, 3) &&
		verify_filled(verify_at(verify, RESULT + 3072), 64, 4) &&
		verify_filled(verify_at(verify, RESULT + 3136), 960, 3);
	verify_outcome(verify, "order", COUNT(descs), right, run_ns);
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
	verify_outcome(verify, "wrap", rounds * SINGLE_ITEMS_MAX, right && !verify->rc,
		       0);
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

/* An engine has either all operations on memory or none. */
int verify_all(struct transport *transport, const char *name, bool json)
{
	struct verify verify;

	if (!verify_begin(&verify, transport, name, json))
		return verify_finish(&verify);
	/* first, while device memory must still be zero */
	if (has(&verify, VGPU_OP_COPY) && transport->limits.memory_bytes >= 65536)
		verify_memory(&verify);
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
	return verify_finish(&verify);
}

int verify_submit(struct transport *transport, const char *op, uint32_t size,
		  bool json)
{
	struct verify verify;

	if (!verify_begin(&verify, transport, op, json))
		return verify_finish(&verify);
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
	return verify_finish(&verify);
}
