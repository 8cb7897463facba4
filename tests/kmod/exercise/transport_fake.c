// SPDX-License-Identifier: GPL-2.0
#include "transport_fake.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "crc32c.h"
#include "descriptor.h"
#include "reference.h"

#define ENTRIES 1024u
#define ITEM_BYTES_MAX 0x100000u
#define MEMORY_BYTES 0x100000u
#define DELAY_NS_MAX 100000000u
#define CHUNK_NS_MAX 1000000u

struct fake {
	struct transport base;
	struct fake_options options;
	struct vgpu_desc ring[ENTRIES];
	struct vgpu_completion completions[ENTRIES];
	uint32_t tail;
	uint32_t completed;
	uint32_t read;
	uint32_t error;
	uint32_t error_index;
	uint64_t run_ns;
	uint32_t flagged[16]; /* items with each flag */
	uint8_t memory[MEMORY_BYTES];
};

static struct fake *to_fake(struct transport *transport)
{
	return (struct fake *)transport;
}

static int fake_map(struct transport *transport, size_t bytes)
{
	uint8_t *area = calloc(1, bytes);

	if (!area)
		return transport_fail(transport, -ENOMEM, "out of memory");
	free(transport->area);
	transport->area = area;
	transport->area_bytes = bytes;
	return 0;
}

static uint32_t check_operand(struct fake *fake, const struct operand *operand)
{
	uint64_t address = le64toh(*operand->address);
	uint64_t limit = operand->device ? MEMORY_BYTES : fake->base.area_bytes;

	if (!operand->bytes)
		return VGPU_ERROR_SIZE;
	if (address + operand->bytes < address)
		return VGPU_ERROR_ADDRESS;
	if (!operand->device && operand->bytes > ITEM_BYTES_MAX)
		return VGPU_ERROR_SIZE;
	if (address + operand->bytes > limit)
		return operand->device ? VGPU_ERROR_ADDRESS : VGPU_ERROR_DMA;
	return VGPU_ERROR_NONE;
}

static bool unused_addresses_clear(struct vgpu_desc desc)
{
	struct operand operands[OPERANDS_MAX];
	unsigned int count = descriptor_operands(&desc, operands);

	for (unsigned int i = 0; i < count; i++)
		*operands[i].address = 0;
	return !desc.dst && !desc.src && !desc.src2;
}

static uint32_t check_arguments(const struct vgpu_desc *desc)
{
	static const uint8_t used[] = { 0, 2, 1, 1, 3, 1, 1 };
	uint16_t op = le16toh(desc->op);
	uint32_t arg = le32toh(desc->arg[0]);

	if (op > VGPU_OP_FACT)
		return VGPU_ERROR_OP;
	if (le16toh(desc->flags) & ~VGPU_DESC_FLAGS || desc->reserved ||
	    !unused_addresses_clear(*desc))
		return VGPU_ERROR_FLAGS;
	for (int i = used[op]; i < 4; i++)
		if (desc->arg[i])
			return VGPU_ERROR_FLAGS;
	if (op == VGPU_OP_FILL && arg % 4)
		return VGPU_ERROR_SIZE;
	if (op == VGPU_OP_DELAY && (!arg || arg > DELAY_NS_MAX))
		return VGPU_ERROR_SIZE;
	if (op == VGPU_OP_DELAY && le16toh(desc->flags) & VGPU_DESC_NOSPLIT &&
	    arg > CHUNK_NS_MAX)
		return VGPU_ERROR_CHUNK;
	for (int i = 0; op == VGPU_OP_GEMM_I32 && i < 3; i++)
		if (!desc->arg[i] || le32toh(desc->arg[i]) > VGPU_GEMM_DIM_MAX)
			return VGPU_ERROR_SIZE;
	return VGPU_ERROR_NONE;
}

static bool overlap(const struct operand *a, const struct operand *b)
{
	uint64_t a_at = le64toh(*a->address), b_at = le64toh(*b->address);

	return a->device == b->device && a_at < b_at + b->bytes &&
	       b_at < a_at + a->bytes;
}

static uint8_t *operand_data(struct fake *fake, const struct operand *operand)
{
	uint8_t *base = operand->device ? fake->memory : fake->base.area;

	return base + le64toh(*operand->address);
}

static uint64_t compute(const struct vgpu_desc *desc, uint8_t *data[])
{
	uint32_t arg[3];

	for (int i = 0; i < 3; i++)
		arg[i] = le32toh(desc->arg[i]);
	switch (le16toh(desc->op)) {
	case VGPU_OP_FILL:
		for (uint32_t at = 0; at < arg[0]; at += 4)
			memcpy(data[0] + at, &desc->arg[1], 4);
		break;
	case VGPU_OP_COPY:
		memmove(data[0], data[1], arg[0]);
		break;
	case VGPU_OP_CRC32C:
		return crc32c(data[0], arg[0]);
	case VGPU_OP_GEMM_I32:
		reference_gemm((uint32_t *)data[0], (uint32_t *)data[1],
			       (uint32_t *)data[2], arg[0], arg[1], arg[2]);
		break;
	case VGPU_OP_FACT:
		return reference_factorial(arg[0]);
	}
	return 0;
}

static void execute(struct fake *fake)
{
	uint32_t number = fake->completed, at = number % ENTRIES;
	struct vgpu_desc desc = fake->ring[at];
	struct operand operands[OPERANDS_MAX];
	uint8_t *data[OPERANDS_MAX] = { 0 };
	uint64_t result = 0, cookie = le64toh(desc.cookie), run_ns = 100;
	unsigned int count = 0;
	uint32_t error = check_arguments(&desc);

	if (!error)
		count = descriptor_operands(&desc, operands);
	for (unsigned int i = 0; i < count && !error; i++) {
		error = check_operand(fake, &operands[i]);
		if (!error)
			data[i] = operand_data(fake, &operands[i]);
	}
	if (!error && le16toh(desc.op) == VGPU_OP_GEMM_I32 &&
	    (overlap(&operands[0], &operands[1]) ||
	     overlap(&operands[0], &operands[2])))
		error = VGPU_ERROR_ADDRESS;
	if (error) {
		fake->error = error;
		fake->error_index = number;
		return;
	}

	if (number != fake->options.skip)
		result = compute(&desc, data);
	if (le16toh(desc.op) == VGPU_OP_DELAY)
		run_ns = le32toh(desc.arg[0]);
	if (number == fake->options.corrupt_memory && data[0])
		data[0][operands[0].bytes - 1] ^= 1;
	if (number == fake->options.corrupt_result)
		result ^= 1;
	if (number == fake->options.corrupt_cookie)
		cookie++;
	fake->completions[at] = (struct vgpu_completion){
		.cookie = htole64(cookie),
		.result = htole64(result),
		.run_ns = htole64(run_ns),
		.seq = htole32(number + 1),
	};
	fake->run_ns += run_ns;
	fake->completed++;
}

static bool runnable(const struct fake *fake)
{
	return !fake->error && fake->completed != fake->tail &&
	       fake->completed < fake->options.stop_at;
}

static int fake_submit(struct transport *transport, const struct vgpu_desc *descs,
		       uint32_t count, unsigned int flags, uint32_t *outstanding)
{
	struct fake *fake = to_fake(transport);

	(void)flags;
	if (fake->error)
		return transport_fail(transport, -EIO, "device error");
	if (count > ENTRIES - (fake->tail - fake->read))
		return transport_fail(transport, -EAGAIN, "no room");
	*outstanding = fake->tail - fake->completed;
	for (uint32_t i = 0; i < count; i++) {
		for (int bit = 0; bit < 16; bit++)
			fake->flagged[bit] += le16toh(descs[i].flags) >> bit & 1;
		fake->ring[fake->tail++ % ENTRIES] = descs[i];
	}
	while (fake->options.eager && runnable(fake))
		execute(fake);
	return 0;
}

static int fake_wait(struct transport *transport,
		     struct vgpu_completion *completions, uint32_t capacity,
		     uint32_t minimum, uint64_t timeout_ns, uint32_t *count)
{
	struct fake *fake = to_fake(transport);
	uint32_t ready;

	(void)timeout_ns;
	while (fake->completed - fake->read < minimum && runnable(fake))
		execute(fake);
	ready = fake->completed - fake->read;
	*count = ready < capacity ? ready : capacity;
	for (uint32_t i = 0; i < *count; i++)
		completions[i] = fake->completions[fake->read++ % ENTRIES];
	if (ready >= minimum)
		return 0;
	transport->error = fake->error;
	transport->error_index = fake->error_index;
	return transport_fail(transport, fake->error ? -EIO : -ETIMEDOUT,
			      "waiting for %u items", minimum);
}

static int fake_counters(struct transport *transport,
			 struct transport_counters *counters)
{
	struct fake *fake = to_fake(transport);

	*counters = (struct transport_counters){
		.status = VGPU_STATUS_ENABLED |
			  (fake->error ? VGPU_STATUS_ERROR : 0),
		.error = fake->error,
		.error_index = fake->error_index,
		.fetched = fake->tail,
		.completed = fake->completed,
		.outstanding = fake->tail - fake->completed,
		.run_ns = fake->run_ns,
	};
	return 0;
}

static int fake_reset(struct transport *transport)
{
	struct fake *fake = to_fake(transport);

	fake->tail = 0;
	fake->completed = 0;
	fake->read = 0;
	fake->error = 0;
	fake->error_index = 0;
	transport->error = 0;
	transport->error_index = 0;
	return 0;
}

static void fake_close(struct transport *transport)
{
	free(transport->area);
	free(transport);
}

static const struct transport_ops fake_ops = {
	.map = fake_map,
	.submit = fake_submit,
	.wait = fake_wait,
	.counters = fake_counters,
	.reset = fake_reset,
	.close = fake_close,
};

uint32_t transport_fake_flagged(const struct transport *transport, uint16_t flag)
{
	const struct fake *fake = (const struct fake *)transport;

	return fake->flagged[ffs(flag) - 1];
}

struct transport *transport_fake_open(const struct fake_options *options)
{
	struct fake *fake = calloc(1, sizeof(*fake));

	if (!fake)
		abort();
	fake->options = *options;
	fake->base.ops = &fake_ops;
	fake->base.unmapped = 1ull << 45;
	fake->base.limits = (struct transport_limits){
		.abi = VGPU_ABI,
		.ops = 0x7f,
		.flags = VGPU_DESC_FLAGS,
		.ring_entries = ENTRIES,
		.item_bytes_max = ITEM_BYTES_MAX,
		.delay_ns_max = DELAY_NS_MAX,
		.chunk_ns_max = CHUNK_NS_MAX,
		.fact_ps = 1000,
		.piece_bytes = 0x100000,
		.area_bytes_max = 16 << 20,
		.memory_bytes = MEMORY_BYTES,
	};
	return &fake->base;
}
