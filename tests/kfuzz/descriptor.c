// SPDX-License-Identifier: GPL-2.0
#include "descriptor.h"

#include "sim.h"

#define OPERAND_GUEST_MAX (1u << 20)
#define DELAY_NS_MAX 1000000000u
#define FAULT(name) (1u << VGPU_ERROR_##name)

static u64 product(u32 a, u32 b) { return 4ull * a * b; }

struct extents descriptor_extents(const struct vgpu_desc *desc)
{
	const __le32 *arg = desc->arg;
	struct extents is = {
		.dst = { .at = desc->dst, .device = desc->flags & VGPU_DESC_DST_DEVICE },
		.src = { { .at = desc->src, .device = desc->flags & VGPU_DESC_SRC_DEVICE },
			 { .at = desc->src2, .device = desc->flags & VGPU_DESC_SRC2_DEVICE } },
	};

	switch (desc->op) {
	case VGPU_OP_FILL:
		is.dst.bytes = arg[0];
		is.dst.present = true;
		break;
	case VGPU_OP_COPY:
		is.dst.bytes = is.src[0].bytes = arg[0];
		is.dst.present = is.src[0].present = true;
		break;
	case VGPU_OP_CRC32C:
		is.src[0].bytes = arg[0];
		is.src[0].present = true;
		break;
	case VGPU_OP_GEMM_I32:
		is.dst.bytes = product(arg[0], arg[1]);
		is.src[0].bytes = product(arg[0], arg[2]);
		is.src[1].bytes = product(arg[2], arg[1]);
		is.dst.present = is.src[0].present = is.src[1].present = true;
		break;
	}
	return is;
}

static u32 extent_faults(const struct extent *is, u32 align, u64 memory_bytes)
{
	u32 faults = 0;

	if (!is->present)
		return is->at || is->device ? FAULT(FLAGS) : 0;
	if (!is->bytes || is->bytes % align || (!is->device && is->bytes > OPERAND_GUEST_MAX))
		faults |= FAULT(SIZE);
	if ((unsigned __int128)is->at + is->bytes >= (unsigned __int128)1 << 64)
		faults |= FAULT(ADDRESS);
	if (is->device && (is->at > memory_bytes || is->bytes > memory_bytes - is->at))
		faults |= FAULT(ADDRESS);
	if (is->device && is->at % align)
		faults |= FAULT(ADDRESS);
	return faults;
}

static bool meet(const struct extent *a, const struct extent *b)
{
	return a->device && b->device && (unsigned __int128)a->at < (unsigned __int128)b->at + b->bytes &&
	       (unsigned __int128)b->at < (unsigned __int128)a->at + a->bytes;
}

static u32 argument_faults(const struct vgpu_desc *desc, unsigned int used)
{
	u32 faults = desc->reserved ? FAULT(FLAGS) : 0;

	for (unsigned int i = used; i < 4; i++)
		if (desc->arg[i])
			faults |= FAULT(FLAGS);
	return faults;
}

u32 descriptor_faults(const struct vgpu_desc *desc, u64 memory_bytes)
{
	static const unsigned int arguments[] = { 0, 2, 1, 1, 3, 1, 1 };
	const u32 align = desc->op == VGPU_OP_FILL || desc->op == VGPU_OP_GEMM_I32 ? 4 : 1;
	struct extents is = descriptor_extents(desc);
	u32 faults = 0;

	if (desc->op > VGPU_OP_FACT)
		return FAULT(OP);
	if (desc->flags & ~VGPU_DESC_FLAGS)
		faults |= FAULT(FLAGS);
	faults |= argument_faults(desc, arguments[desc->op]);
	faults |= extent_faults(&is.dst, align, memory_bytes);
	faults |= extent_faults(&is.src[0], align, memory_bytes);
	faults |= extent_faults(&is.src[1], align, memory_bytes);
	if (desc->op == VGPU_OP_DELAY && (!desc->arg[0] || desc->arg[0] > DELAY_NS_MAX))
		faults |= FAULT(SIZE);
	if (desc->op == VGPU_OP_GEMM_I32) {
		for (int i = 0; i < 3; i++)
			if (!desc->arg[i] || desc->arg[i] > VGPU_GEMM_DIM_MAX)
				faults |= FAULT(SIZE);
		if (meet(&is.dst, &is.src[0]) || meet(&is.dst, &is.src[1]))
			faults |= FAULT(ADDRESS);
	}
	return faults;
}

/* ---- making them */

static u64 edge(void)
{
	static const u64 edges[] = { 0, 1, 3, 4, 0xffff, 1u << 20, (1u << 20) + 1, U32_MAX,
				     1ull << 32, 1ull << 40, 1ull << 63, U64_MAX - 3, U64_MAX };

	return edges[sim_below(ARRAY_SIZE(edges))];
}

static u64 place(bool device, u64 memory_bytes, u64 ram_bytes)
{
	u64 most = device ? memory_bytes : ram_bytes;

	return sim_below(most / 2) & ~3ull;
}

static void spoil(struct vgpu_desc *desc)
{
	switch (sim_below(11)) {
	case 0: desc->op = sim_below(65536); break;
	case 1: desc->flags = sim_below(65536); break;
	case 2: desc->dst = edge(); break;
	case 3: desc->src = edge(); break;
	case 4: desc->src2 = edge(); break;
	case 5: desc->arg[sim_below(4)] = edge(); break;
	case 6: desc->reserved = edge(); break;
	case 7: desc->flags ^= 1u << sim_below(16); break;
	case 8: desc->dst = desc->src + sim_below(64); break;
	case 9: desc->arg[0] = edge(); break;
	case 10:
		for (size_t i = 0; i < sizeof(*desc); i += 8)
			memcpy((u8 *)desc + i, &(u64){ sim_random() }, 8);
	}
}

void descriptor_make(struct vgpu_desc *desc, u64 memory_bytes, u64 ram_bytes)
{
	u64 kind = sim_below(512);
	u16 flags = 0;

	*desc = (struct vgpu_desc){ .op = kind % 7, .kernel_id = kind & 31,
				    .cookie = SIM_GUESTS | (sim_random() & 0xffff) };
	if (sim_below(2))
		flags |= VGPU_DESC_IRQ;
	if (sim_one_in(8))
		flags |= VGPU_DESC_NOSPLIT;
	if (sim_one_in(3))
		flags |= VGPU_DESC_MORE;
	if (sim_one_in(12))
		flags |= VGPU_DESC_END;
	switch (desc->op) {
	case VGPU_OP_FILL:
		desc->arg[0] = 4 + 4 * sim_below(sim_one_in(16) ? 40000 : 64);
		desc->arg[1] = sim_random();
		flags |= sim_below(2) ? VGPU_DESC_DST_DEVICE : 0;
		break;
	case VGPU_OP_COPY:
		desc->arg[0] = 1 + sim_below(sim_one_in(64) ? 200000 : 256);
		flags |= sim_below(4);
		break;
	case VGPU_OP_CRC32C:
		desc->arg[0] = 1 + sim_below(sim_one_in(64) ? 200000 : 256);
		flags |= sim_below(2) ? VGPU_DESC_SRC_DEVICE : 0;
		break;
	case VGPU_OP_GEMM_I32:
		for (int i = 0; i < 3; i++)
			desc->arg[i] = 1 + sim_below(sim_one_in(16) ? 60 : 5);
		flags |= sim_below(8);
		desc->src2 = place(flags & VGPU_DESC_SRC2_DEVICE, memory_bytes, ram_bytes);
		break;
	case VGPU_OP_DELAY:
		desc->arg[0] = 1 + sim_below(sim_one_in(16) ? DELAY_NS_MAX : 300000);
		break;
	case VGPU_OP_FACT:
		desc->arg[0] = sim_below(sim_one_in(16) ? 100000 : 40);
		break;
	}
	desc->flags = flags;
	if (descriptor_extents(desc).dst.present)
		desc->dst = place(flags & VGPU_DESC_DST_DEVICE, memory_bytes, ram_bytes);
	if (descriptor_extents(desc).src[0].present)
		desc->src = place(flags & VGPU_DESC_SRC_DEVICE, memory_bytes, ram_bytes);
	if (kind < 4)
		spoil(desc);
}
