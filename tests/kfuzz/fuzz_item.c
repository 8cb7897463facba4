// SPDX-License-Identifier: GPL-2.0
/*
 * Descriptors against the parser: it accepts and refuses what the document says, and the
 * operands of an accepted descriptor lie where the document allows.
 *
 *	fuzz_item SEED CASES		or libFuzzer, with -DLIBFUZZER
 */
#include "descriptor.h"
#include "sim.h"

#include "engine/item.h"

#define MEMORY_BYTES (64u << 10)
#define RAM_BYTES (1u << 20)

static u64 cases, accepted, refused[32];

int guest_access(struct vfio_device *vdev, u64 guest, void *data, size_t bytes, bool write)
{
	(void)vdev, (void)guest, (void)data, (void)bytes, (void)write;
	REQUIRE(!"the parser touches no guest memory");
	return -EFAULT;
}

void guest_let_go(struct vfio_device *vdev) { (void)vdev; }

static void check_operand(const struct vgpu_operand *found, const struct extent *wanted,
			  const struct vgpu_memory *memory)
{
	if (!wanted->present) {
		REQUIRE(!found->bytes && !found->data && !found->staged && !found->guest);
		return;
	}
	REQUIRE(found->bytes == wanted->bytes && found->staged == !wanted->device);
	if (found->staged)
		REQUIRE(found->guest == wanted->at && !found->data);
	else
		REQUIRE((char *)found->data == (char *)memory->data + wanted->at &&
			wanted->at + wanted->bytes <= memory->bytes);
}

/*
 * The gate of holds depends on the kind of work, and on nothing else that a guest says about its
 * length.
 */
static void check_info(const struct vgpu_item *item)
{
	struct vgpu_item_info info = vgpu_item_info(item);

	REQUIRE(info.kernel_id == item->desc.kernel_id && !info.hint_ns);
	REQUIRE(info.flags == (item->desc.flags & VGPU_DESC_MORE ? VGPU_ITEM_MORE : 0));
}

static void check(const struct vgpu_desc *desc, struct vgpu_memory *memory)
{
	struct extents wanted = descriptor_extents(desc);
	u32 faults = descriptor_faults(desc, memory->bytes);
	struct vgpu_item item = { .desc = *desc };
	enum vgpu_error error = vgpu_item_parse(&item, memory);

	cases++;
	REQUIRE(!memcmp(&item.desc, desc, sizeof(*desc)));
	if (error) {
		REQUIRE(error < 32 && faults & 1u << error);
		refused[error]++;
		return;
	}
	REQUIRE(!faults);
	accepted++;
	check_operand(&item.dst, &wanted.dst, memory);
	check_operand(&item.src[0], &wanted.src[0], memory);
	check_operand(&item.src[1], &wanted.src[1], memory);
	check_info(&item);
}

/* Use the input as raw descriptors, then as choices. */
static void run(const u8 *input, size_t bytes)
{
	static u8 data[MEMORY_BYTES];
	struct vgpu_memory memory = { .bytes = MEMORY_BYTES, .data = data };
	struct vgpu_desc desc;

	for (size_t at = 0; at + sizeof(desc) <= bytes; at += sizeof(desc)) {
		memcpy(&desc, input + at, sizeof(desc));
		check(&desc, &memory);
	}
	sim_begin(input, bytes);
	while (sim_input_left) {
		descriptor_make(&desc, memory.bytes, RAM_BYTES);
		check(&desc, &memory);
	}
}

#ifdef LIBFUZZER
int LLVMFuzzerTestOneInput(const u8 *input, size_t bytes)
{
	run(input, bytes);
	return 0;
}
#else
int main(int argc, char **argv)
{
	u64 seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	u64 most = argc > 2 ? strtoull(argv[2], NULL, 0) : 100000;
	u8 input[4096];

	while (cases < most) {
		sim_begin((u8 *)&seed, sizeof(seed));
		seed++;
		sim_input_left = 0;
		for (size_t i = 0; i < sizeof(input); i++)
			input[i] = sim_random() >> 32;
		run(input, sizeof(input));
	}
	printf("{\"cases\": %lu, \"accepted\": %lu, \"refused\": [", cases, accepted);
	for (int error = 0; error < 12; error++)
		printf("%s%lu", error ? ", " : "", refused[error]);
	printf("]}\n");
	return 0;
}
#endif
