// SPDX-License-Identifier: GPL-2.0
/*
 * Guest memory has no contents: each read returns other bytes, as if the guest rewrote it all
 * the time. The device's reads are recorded. Everything it does later must follow from them
 * and from nothing else: where it reads operands, what it writes where, what it answers.
 */
#include "guest.h"

#include "descriptor.h"
#include "engine/engine.h"
#include "engine/ring.h"

#define ITEMS 4096u		/* more than can be in progress */
#define DMA_BYTES_MAX (64u << 10)

struct seen {
	struct vgpu_desc desc;
	u32 faults;
	u32 crc, written_crc;	/* of its first source, and of the bytes it wrote */
	u64 read, written;
	bool good;
};

struct guest_counts guest_counts;
bool guest_mapped, guest_quiet, guest_silent;

static struct vgpu_device *opened;
static struct vgpu_ring *ring;
static struct rings rings;
static struct seen items[ITEMS];
static u64 enabled_ns;
static u64 counted_before, moved;	/* bytes, since the device was opened */
static u64 errors_before, stops_before;

void guest_begin(struct vgpu_device *device)
{
	opened = device;
	ring = NULL;
	counted_before = device ? device->stats.dma_bytes : 0;
	moved = 0;
	errors_before = device ? device->stats.errors : 0;
	stops_before = sim_counts.told_stops;
	guest_mapped = true;
	guest_quiet = guest_silent = false;
}

void guest_enabled(struct vgpu_ring *new)
{
	if (ring == new)
		return;
	ring = new;
	rings = (struct rings){ .submission = new->base, .completion = new->completion,
				.shadow = new->shadow, .entries = new->entries };
	enabled_ns = sim_now_ns;
	memset(items, 0, sizeof(items));
}

void guest_disabled(void)
{
	ring = NULL;
	/* However the item ended, its transfers are counted, and the log has each mistake. */
	REQUIRE(opened->stats.dma_bytes - counted_before == moved);
	REQUIRE(opened->stats.errors - errors_before == sim_counts.told_stops - stops_before);
}

static struct seen *item(u32 number) { return &items[number % ITEMS]; }

bool guest_deserves(u32 number, u32 error)
{
	const struct seen *is = item(number);

	if (error == VGPU_ERROR_CHUNK)
		return is->desc.flags & VGPU_DESC_NOSPLIT && is->desc.op != VGPU_OP_NOP;
	return is->faults & 1u << error;
}

static bool inside(u64 at, u64 bytes, u64 from, u64 size)
{
	return at >= from && at - from <= size && bytes <= size - (at - from);
}

/* Descriptors are read in order, none beyond the doorbell, none across the ring's end. */
static bool fetches(u64 at, void *data, size_t bytes)
{
	u32 number = ring->fetched, index = number & (rings.entries - 1);
	u32 count = bytes / sizeof(struct vgpu_desc);
	struct vgpu_desc *descs = data;

	if (at != rings.submission + index * sizeof(*descs) || bytes % sizeof(*descs) ||
	    !count || count > rings.entries - index || count > ring->tail - number)
		return false;
	for (u32 i = 0; i < count; i++) {
		struct seen *is = item(number + i);

		descriptor_make(&descs[i], opened->memory_bytes, RAM_BYTES);
		guest_counts.descriptors++;
		*is = (struct seen){ .desc = descs[i], .crc = ~0U, .written_crc = ~0U };
		is->faults = vgpu_engine_executes(&opened->parent->engine, descs[i].op) ?
			     descriptor_faults(&descs[i], opened->memory_bytes) :
			     1u << VGPU_ERROR_OP;
		is->good = !is->faults;
		guest_counts.good += is->good;
	}
	return true;
}

static void fill(u8 *data, size_t bytes)
{
	u64 word = sim_random();

	for (size_t i = 0; i < bytes; i++)
		data[i] = word >> (i % 8 * 8) ^ i;
	word = SIM_GUESTS | (word & 0xffff);
	if (bytes >= sizeof(word))
		memcpy(data + ((bytes - sizeof(word)) & ~3ul), &word, sizeof(word));
}

/* An operand is read once from start to end; sources are read in their order. */
static bool reads_operand(u64 at, u8 *data, size_t bytes)
{
	struct seen *is = item(ring->fetched);
	struct extents extents = descriptor_extents(&is->desc);
	u64 before = 0;

	if (!is->good)
		return false;
	for (int i = 0; i < 2; i++) {
		const struct extent *src = &extents.src[i];

		if (!src->present || src->device)
			continue;
		if (is->read < before + src->bytes) {
			if (at != src->at + (is->read - before) ||
			    bytes > before + src->bytes - is->read)
				return false;
			fill(data, bytes);
			is->read += bytes;
			if (!i)
				is->crc = vgpu_crc32c(is->crc, data, bytes);
			return true;
		}
		before += src->bytes;
	}
	return false;
}

static bool writes_operand(u64 at, const u8 *data, size_t bytes)
{
	struct seen *is = item(ring->completed);
	struct extent dst = descriptor_extents(&is->desc).dst;

	if (!is->good || !dst.present || dst.device || at != dst.at + is->written ||
	    bytes > dst.bytes - is->written)
		return false;
	if (is->desc.op == VGPU_OP_FILL) {
		for (size_t i = 0; i < bytes; i++)
			REQUIRE(data[i] == (u8)(is->desc.arg[1] >> ((is->written + i) % 4 * 8)));
		guest_counts.checked_results++;
	}
	is->written_crc = vgpu_crc32c(is->written_crc, data, bytes);
	is->written += bytes;
	return true;
}

static u32 factorial(u32 n)
{
	u32 product = 1;

	/* from 34! on all are multiples of 2^32 */
	for (u32 factor = 2; factor <= n && product; factor++)
		product *= factor;
	return product;
}

/* The result is made of the bytes that were read once, even if memory has changed since. */
static void check_result(const struct seen *is, u64 result)
{
	bool staged = !(is->desc.flags & VGPU_DESC_SRC_DEVICE);

	if (is->desc.op == VGPU_OP_FACT)
		REQUIRE(result == factorial(is->desc.arg[0]));
	else if (is->desc.op != VGPU_OP_CRC32C)
		REQUIRE(!result);
	if (!staged || (is->desc.op != VGPU_OP_CRC32C && is->desc.op != VGPU_OP_COPY))
		return;
	if (is->desc.op == VGPU_OP_CRC32C)
		REQUIRE(result == (u32)~is->crc);
	else if (is->written)
		REQUIRE(is->written_crc == is->crc);
	guest_counts.checked_results++;
}

static bool completes(u64 at, const void *data, size_t bytes)
{
	const struct vgpu_completion *completion = data;
	u32 number = ring->completed;
	struct seen *is = item(number);
	struct extent dst = descriptor_extents(&is->desc).dst;

	if (at != rings.completion + (number & (rings.entries - 1)) * sizeof(*completion) ||
	    bytes != sizeof(*completion))
		return false;
	REQUIRE(is->good && number != ring->fetched);
	REQUIRE(completion->cookie == is->desc.cookie && completion->seq == number + 1);
	REQUIRE(completion->status == VGPU_ITEM_OK);
	REQUIRE(completion->run_ns <= sim_now_ns - enabled_ns);
	REQUIRE(dst.device || !dst.present || is->written == dst.bytes);
	check_result(is, completion->result);
	guest_counts.completions++;
	return true;
}

static bool shadows(u64 at, const void *data, size_t bytes)
{
	const struct vgpu_shadow *shadow = data;

	if (!rings.shadow || at != rings.shadow || bytes != sizeof(*shadow))
		return false;
	REQUIRE(shadow->fetched == ring->fetched && shadow->completed == ring->completed);
	for (size_t i = 0; i < ARRAY_SIZE(shadow->reserved); i++)
		REQUIRE(!shadow->reserved[i]);
	guest_counts.shadows++;
	return true;
}

/* Does not answer until the accessing thread is killed, or until it does. */
static bool answers(void)
{
	if (!guest_silent && !sim_one_in(250))
		return true;
	for (u64 turns = guest_silent || sim_one_in(4) ? U64_MAX : sim_below(300);
	     turns && !signal_pending(current); turns--)
		kfuzz_wait();
	return !signal_pending(current);
}

static bool is_ram(u64 at, size_t bytes)
{
	return guest_mapped && inside(at, bytes, 0, RAM_BYTES);
}

int guest_access(struct vfio_device *vdev, u64 guest, void *data, size_t bytes, bool write)
{
	bool allowed;

	REQUIRE(opened && vdev == &opened->vdev);
	if (opened->ring)	/* the call that enables it has not returned yet */
		guest_enabled(opened->ring);
	REQUIRE(ring && current->coroutine == ring->worker->coroutine);
	REQUIRE(bytes && bytes <= DMA_BYTES_MAX && guest + bytes > guest);
	REQUIRE(!guest_quiet);
	REQUIRE(opened->config[PCI_COMMAND] & PCI_COMMAND_MASTER);
	if (!is_ram(guest, bytes) || !answers() || sim_one_in(800)) {
		guest_counts.refused_accesses++;
		return -EFAULT;
	}
	/* it may have been told to stop while it waited; the VMM still waits for it */
	REQUIRE(ring);
	if (write)
		allowed = writes_operand(guest, data, bytes) || completes(guest, data, bytes) ||
			  shadows(guest, data, bytes);
	else
		allowed = fetches(guest, data, bytes) || reads_operand(guest, data, bytes);
	REQUIRE(allowed);
	moved += bytes;
	return 0;
}
