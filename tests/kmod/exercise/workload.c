// SPDX-License-Identifier: GPL-2.0
#include "workload.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "descriptor.h"
#include "reference.h"

#define ALIGNMENT 64u
#define SPOILED 0xa5

/* Offsets of one variant's data in the operand area. */
struct variant {
	uint64_t source;
	uint64_t a;
	uint64_t b;
};

/* Allocates from the start of the operand area, never across a piece. */
struct cursor {
	uint64_t used;
	uint32_t piece_bytes;
};

void workload_defaults(struct workload_options *options)
{
	*options = (struct workload_options){
		.ops = { VGPU_OP_FILL },
		.op_count = 1,
		.bytes = 4096,
		.dimension = 32,
		.delay_ns = 1000000,
		.fact_n = 20,
		.seed = 1,
		.verify_every = 1,
	};
}

static uint64_t take(struct cursor *cursor, uint64_t bytes)
{
	uint64_t at = (cursor->used + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1);

	if (at % cursor->piece_bytes + bytes > cursor->piece_bytes)
		at += cursor->piece_bytes - at % cursor->piece_bytes;
	cursor->used = at + bytes;
	return at;
}

static bool uses(const struct workload_options *options, uint16_t op)
{
	for (uint32_t i = 0; i < options->op_count; i++)
		if (options->ops[i] == op)
			return true;
	return false;
}

static uint32_t matrix_bytes(const struct workload_options *options)
{
	return 4 * options->dimension * options->dimension;
}

static uint32_t fill_pattern(const struct workload_options *options,
			     uint32_t variant)
{
	uint32_t pattern;

	reference_random(&pattern, sizeof(pattern), options->seed * 1000 + variant);
	return le32toh(pattern);
}

static int check_options(const struct workload_options *options,
			 struct transport *transport)
{
	const struct transport_limits *limits = &transport->limits;
	uint32_t largest = limits->item_bytes_max < limits->piece_bytes ?
				   limits->item_bytes_max :
				   limits->piece_bytes;

	for (uint32_t i = 0; i < options->op_count; i++)
		if (!(limits->ops >> options->ops[i] & 1))
			return transport_fail(transport, -EINVAL,
					      "the device has no operation %s",
					      op_name(options->ops[i]));
	if (uses(options, VGPU_OP_GEMM_I32) &&
	    (!options->dimension || options->dimension > VGPU_GEMM_DIM_MAX ||
	     matrix_bytes(options) > largest))
		return transport_fail(transport, -EINVAL,
				      "dimension %u: a matrix has 1 to %u rows and up to %u bytes",
				      options->dimension, VGPU_GEMM_DIM_MAX,
				      largest);
	if (!options->bytes || options->bytes % 4 || options->bytes > largest)
		return transport_fail(transport, -EINVAL,
				      "bytes %u: a multiple of 4 up to %u",
				      options->bytes, largest);
	if (uses(options, VGPU_OP_DELAY) &&
	    options->delay_ns > limits->delay_ns_max)
		return transport_fail(transport, -EINVAL,
				      "delay of %u ns: the device allows %u",
				      options->delay_ns, limits->delay_ns_max);
	return 0;
}

/* The result of @op on the data of a variant, computed on the CPU. */
static uint8_t *expect(const struct workload_options *options, uint16_t op,
		       uint32_t variant, const uint8_t *area,
		       const struct variant *data)
{
	uint32_t dim = options->dimension, pattern;
	uint8_t *expected;

	expected = malloc(op == VGPU_OP_GEMM_I32 ? matrix_bytes(options) :
						   options->bytes);
	if (!expected)
		return NULL;
	switch (op) {
	case VGPU_OP_FILL:
		pattern = htole32(fill_pattern(options, variant));
		for (uint32_t at = 0; at < options->bytes; at += 4)
			memcpy(expected + at, &pattern, 4);
		break;
	case VGPU_OP_COPY:
		memcpy(expected, area + data->source, options->bytes);
		break;
	case VGPU_OP_GEMM_I32:
		reference_gemm((uint32_t *)expected,
			       (const uint32_t *)(area + data->a),
			       (const uint32_t *)(area + data->b), dim, dim, dim);
		break;
	}
	return expected;
}

static void place_init(struct workload *workload, uint32_t number,
		       const uint8_t *area, const struct variant *variants,
		       uint64_t dst)
{
	const struct workload_options *options = &workload->options;
	uint32_t index = number % options->op_count;
	uint32_t variant = number / options->op_count % WORKLOAD_VARIANTS;
	const struct variant *data = &variants[variant];
	struct workload_place *place = &workload->places[number];
	uint16_t op = options->ops[index];
	struct operand operands[OPERANDS_MAX];
	unsigned int count;
	uint32_t factorial;

	switch (op) {
	case VGPU_OP_FILL:
		place->desc = descriptor_fill(dst, options->bytes,
					      fill_pattern(options, variant));
		break;
	case VGPU_OP_COPY:
		place->desc = descriptor_copy(dst, data->source, options->bytes);
		break;
	case VGPU_OP_CRC32C:
		place->desc = descriptor_crc32c(data->source, options->bytes);
		place->result = crc32c(area + data->source, options->bytes);
		break;
	case VGPU_OP_GEMM_I32:
		place->desc = descriptor_gemm(dst, data->a, data->b,
					      options->dimension,
					      options->dimension,
					      options->dimension);
		break;
	case VGPU_OP_DELAY:
		place->desc = descriptor_delay(options->delay_ns);
		break;
	case VGPU_OP_FACT:
		factorial = options->fact_n - (options->fact_n > variant ? variant : 0);
		place->desc = descriptor_fact(factorial);
		place->result = reference_factorial(factorial);
		break;
	default:
		place->desc = descriptor_nop();
		break;
	}
	place->desc.kernel_id = htole32(options->kernel_id + op);
	if (options->nosplit)
		descriptor_flag(&place->desc, VGPU_DESC_NOSPLIT);

	count = descriptor_operands(&place->desc, operands);
	for (unsigned int i = 0; i < count; i++) {
		place->bytes += operands[i].bytes;
		if (operands[i].written) {
			place->dst = (uint8_t *)area + dst;
			place->dst_bytes = operands[i].bytes;
			place->expected = workload->expected[variant][index];
		}
	}
}

static int fill_variants(struct workload *workload, uint8_t *area,
			 const struct variant *variants)
{
	const struct workload_options *options = &workload->options;

	for (uint32_t v = 0; v < WORKLOAD_VARIANTS; v++) {
		uint64_t seed = (options->seed << 8) + 3 * v;

		reference_random(area + variants[v].source, options->bytes, seed);
		if (uses(options, VGPU_OP_GEMM_I32)) {
			reference_random(area + variants[v].a,
					 matrix_bytes(options), seed + 1);
			reference_random(area + variants[v].b,
					 matrix_bytes(options), seed + 2);
		}
		for (uint32_t i = 0; i < options->op_count; i++) {
			uint16_t op = options->ops[i];

			if (op != VGPU_OP_FILL && op != VGPU_OP_COPY &&
			    op != VGPU_OP_GEMM_I32)
				continue;
			workload->expected[v][i] =
				expect(options, op, v, area, &variants[v]);
			if (!workload->expected[v][i])
				return -ENOMEM;
		}
	}
	return 0;
}

int workload_init(struct workload *workload,
		  const struct workload_options *options,
		  struct transport *transport, uint32_t outstanding)
{
	struct cursor cursor = { .piece_bytes = transport->limits.piece_bytes };
	struct variant variants[WORKLOAD_VARIANTS];
	uint32_t dst_bytes = options->bytes;
	bool gemm = uses(options, VGPU_OP_GEMM_I32);
	uint64_t *dsts;
	int rc;

	memset(workload, 0, sizeof(*workload));
	workload->options = *options;
	rc = check_options(options, transport);
	if (rc)
		return rc;

	/* whole rounds of operations, so that a place always has the same operation */
	workload->place_count = (outstanding + options->op_count - 1) /
				options->op_count * options->op_count;
	workload->places = calloc(workload->place_count,
				  sizeof(*workload->places));
	dsts = calloc(workload->place_count, sizeof(*dsts));
	if (!workload->places || !dsts) {
		rc = transport_fail(transport, -ENOMEM, "out of memory");
		goto out;
	}

	for (uint32_t v = 0; v < WORKLOAD_VARIANTS; v++) {
		variants[v].source = take(&cursor, options->bytes);
		variants[v].a = gemm ? take(&cursor, matrix_bytes(options)) : 0;
		variants[v].b = gemm ? take(&cursor, matrix_bytes(options)) : 0;
	}
	if (gemm && matrix_bytes(options) > dst_bytes)
		dst_bytes = matrix_bytes(options);
	for (uint32_t i = 0; i < workload->place_count; i++)
		dsts[i] = take(&cursor, dst_bytes);
	if (cursor.used > transport->limits.area_bytes_max) {
		rc = transport_fail(transport, -ENOMEM,
				    "%u items in flight need %llu bytes of operand memory, there are %llu",
				    outstanding, (unsigned long long)cursor.used,
				    (unsigned long long)
					    transport->limits.area_bytes_max);
		goto out;
	}

	rc = transport->ops->map(transport, (cursor.used + 4095) & ~4095ull);
	if (rc)
		goto out;
	rc = fill_variants(workload, transport->area, variants);
	if (rc) {
		transport_fail(transport, rc, "out of memory");
		goto out;
	}
	for (uint32_t i = 0; i < workload->place_count; i++)
		place_init(workload, i, transport->area, variants, dsts[i]);
out:
	free(dsts);
	if (rc)
		workload_free(workload);
	return rc;
}

void workload_free(struct workload *workload)
{
	for (uint32_t v = 0; v < WORKLOAD_VARIANTS; v++)
		for (uint32_t i = 0; i < WORKLOAD_OPS_MAX; i++)
			free(workload->expected[v][i]);
	free(workload->places);
	memset(workload, 0, sizeof(*workload));
}

static bool is_verified(const struct workload *workload, uint64_t number)
{
	uint64_t every = workload->options.verify_every;

	return every && number % every == 0;
}

void workload_build(struct workload *workload, uint64_t number,
		    struct vgpu_desc *desc)
{
	struct workload_place *place =
		&workload->places[number % workload->place_count];

	*desc = place->desc;
	desc->cookie = htole64(number);
	if (place->dst && is_verified(workload, number))
		memset(place->dst, SPOILED, place->dst_bytes);
}

bool workload_check(struct workload *workload, uint64_t number,
		    const struct vgpu_completion *completion)
{
	const struct workload_place *place =
		&workload->places[number % workload->place_count];
	bool right = le64toh(completion->cookie) == number &&
		     !completion->status &&
		     le64toh(completion->result) == place->result;

	if (le16toh(place->desc.op) == VGPU_OP_DELAY &&
	    le64toh(completion->run_ns) < le32toh(place->desc.arg[0]))
		right = false;
	if (is_verified(workload, number)) {
		workload->verified++;
		if (place->dst &&
		    memcmp(place->dst, place->expected, place->dst_bytes))
			right = false;
	}
	if (!right && !workload->mismatches++)
		workload->first_mismatch = number;
	return right;
}

uint64_t workload_bytes(const struct workload *workload, uint64_t number)
{
	return workload->places[number % workload->place_count].bytes;
}
