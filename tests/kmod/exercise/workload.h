/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Items on seeded data, and the check of their results.
 *
 * Item number n uses place n modulo the number of places. A place has its own
 * destination. Sources and expected results, computed here on the CPU, come
 * from a few variants. The destination of an item that will be verified is
 * corrupted when the item is built, so an item that did not run cannot pass.
 */
#ifndef VGPU_EXERCISE_WORKLOAD_H
#define VGPU_EXERCISE_WORKLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "transport.h"

#define WORKLOAD_OPS_MAX 16
#define WORKLOAD_VARIANTS 4

struct workload_options {
	uint16_t ops[WORKLOAD_OPS_MAX]; /* item n does ops[n % op_count] */
	uint32_t op_count;
	uint32_t bytes;	   /* of fill, copy and crc32c */
	uint32_t dimension; /* of gemm: m = n = k */
	uint32_t delay_ns;
	uint32_t fact_n; /* variants of an item take up to 3 less */
	uint32_t kernel_id;
	uint64_t seed;
	uint64_t verify_every; /* 1: every item, 0: none */
	bool nosplit;
};

struct workload_place {
	struct vgpu_desc desc;
	uint8_t *dst; /* NULL where the item writes no memory */
	uint32_t dst_bytes;
	const uint8_t *expected;
	uint64_t result;
	uint64_t bytes; /* operand bytes the item reads and writes */
};

struct workload {
	struct workload_options options;
	uint32_t place_count;
	struct workload_place *places;
	uint8_t *expected[WORKLOAD_VARIANTS][WORKLOAD_OPS_MAX];
	uint64_t verified;
	uint64_t mismatches;
	uint64_t first_mismatch; /* item number, where mismatches > 0 */
};

/* One-page fill, verified: the starting point for option parsing. */
void workload_defaults(struct workload_options *options);

/*
 * Map and fill the operand area for items of which up to @outstanding are
 * queued at a time. Returns 0 or a negative errno with transport->message set.
 */
int workload_init(struct workload *workload,
		  const struct workload_options *options,
		  struct transport *transport, uint32_t outstanding);
void workload_free(struct workload *workload);

/* Descriptor of item @number; no other item of its place may be outstanding. */
void workload_build(struct workload *workload, uint64_t number,
		    struct vgpu_desc *desc);

/* Check item @number against its completion and count; true when right. */
bool workload_check(struct workload *workload, uint64_t number,
		    const struct vgpu_completion *completion);

/* Operand bytes item @number reads and writes. */
uint64_t workload_bytes(const struct workload *workload, uint64_t number);

#endif
