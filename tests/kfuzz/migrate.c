// SPDX-License-Identifier: GPL-2.0
/*
 * Streams that were saved from this device, or from another one, unchanged or
 * corrupted; restored whole, in parts, too long, or after the device has changed.
 */
#include "vmm.h"

#include "engine/item.h"
#include "migration/migration_stream.h"

#define STREAM_MAX (sizeof(struct vgpu_migration_header) + (64u << 10) + 64)
#define PIECE_MAX 8192u
#define PATIENCE_NS (40 * NSEC_PER_SEC)		/* dma_timeout_ms and ten seconds */
#define THROTTLE_NS (100 * NSEC_PER_MSEC)	/* the most that a storm of resets may add */

static struct file *file;
static u8 stream[STREAM_MAX] __attribute__((aligned(8)));	/* the last complete one */
static size_t stream_bytes, taken, given;
static bool memory_held;	/* by a reference that only the fuzzer has */
static bool spoiled;		/* or not restored unchanged */

enum vfio_device_mig_state migrate_state(struct vgpu_device *device)
{
	enum vfio_device_mig_state state = VFIO_DEVICE_STATE_ERROR;

	if (!device->vdev.mig_ops)
		return VFIO_DEVICE_STATE_RUNNING;
	REQUIRE(!device->vdev.mig_ops->migration_get_state(&device->vdev, &state));
	REQUIRE(state <= VFIO_DEVICE_STATE_RUNNING_P2P);
	return state;
}

void migrate_closed(void)
{
	if (file)
		fput(file);
	file = NULL;
}

static bool block(u64 at, u64 bytes, u64 align)
{
	return !(at % align) && at <= U64_MAX - bytes;
}

static u32 crc32c_slowly(const u8 *data, size_t bytes)
{
	u32 crc = ~0u;

	while (bytes--) {
		crc ^= *data++;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	return ~crc;
}

/* Length of a stream of this device. */
static size_t whole(const struct vgpu_device *device)
{
	return sizeof(struct vgpu_migration_header) + device->memory_bytes +
	       sizeof(struct vgpu_migration_trailer);
}

/* Could a device have saved this state? vmm.c checks configuration space all the time. */
static bool possible(struct vgpu_device *device)
{
	const struct vgpu_migration_header *h = (struct vgpu_migration_header *)stream;
	bool enabled = h->flags & 1, reported = h->flags & 2;

	if (stream_bytes != whole(device) || h->memory_bytes != device->memory_bytes)
		return false;
	if (memcmp(&h->magic, "VGPUMIG1", 8) || h->version != 1 || h->header_bytes != sizeof(*h) ||
	    h->abi >> 16 != VGPU_ABI_MAJOR || (h->abi & 0xffff) > VGPU_ABI_MINOR)
		return false;
	if (h->flags > 3 || memcmp(h->engine, "soft\0\0\0\0\0\0\0\0\0\0\0", 16) ||
	    h->operations & ~device->parent->engine.ops->operations || h->error > VGPU_ERROR_ENGINE ||
	    (!h->error && (h->error_index || reported)) || (reported && !enabled) || h->run_ns >> 63)
		return false;
	if (h->checksum != crc32c_slowly(stream, offsetof(typeof(*h), checksum)) ||
	    *(u32 *)(stream + sizeof(*h) + device->memory_bytes) !=
		    crc32c_slowly(stream + sizeof(*h), device->memory_bytes))
		return false;
	if (!enabled)
		return !h->tail && !h->completed;
	return h->entries >= 8 && h->entries <= 4096 && __builtin_popcount(h->entries) == 1 &&
	       h->tail - h->completed <= h->entries && h->config[PCI_COMMAND] & PCI_COMMAND_MASTER &&
	       block(h->ring, h->entries * 64ull, 64) && block(h->completion, h->entries * 32ull, 32) &&
	       block(h->shadow, 64, 64);
}

/* Change one field, mostly a little; a checksum that would reveal the change is computed anew. */
static void spoil(void)
{
	struct vgpu_migration_header *header = (struct vgpu_migration_header *)stream;
	u32 *words = (u32 *)stream, *word = &words[sim_below(offsetof(typeof(*header), config) / 4)];

	spoiled = true;
	if (stream_bytes < sizeof(*header))
		return;
	switch (sim_below(14)) {
	case 0:
		stream[sim_below(stream_bytes)] ^= 1 << sim_below(8);
		return;
	case 1:
		header->config[sim_below(sizeof(header->config))] ^= 1 << sim_below(8);
		break;
	case 2:
		header->config[PCI_COMMAND] ^= PCI_COMMAND_MASTER;
		break;
	case 3:
		header->msix[sim_below(sizeof(header->msix))] ^= 1 << sim_below(8);
		break;
	case 4:
		header->tail = header->completed + sim_below(9000);
		break;
	case 5:
		header->entries = 1 << sim_below(16);
		break;
	case 6:
		*word = sim_random();
		break;
	case 7: case 8:
		*word += sim_below(2) ? 1 : -1;
		break;
	case 9:
		header->engine[sim_below(sizeof(header->engine))] ^= 1 << sim_below(8);
		break;
	case 10:
		header->operations ^= 1u << sim_below(32);
		break;
	default:
		*word ^= 1u << sim_below(32);
	}
	header->checksum = vgpu_migration_checksum(header);
}

/* The log's message about a state that was not reached, if it has one. */
static void check_told(enum vfio_device_mig_state before, enum vfio_device_mig_state wanted,
		       long error)
{
	switch (error) {
	case -EINVAL:
		if (before == VFIO_DEVICE_STATE_ERROR || wanted == VFIO_DEVICE_STATE_ERROR ||
		    wanted > VFIO_DEVICE_STATE_RUNNING_P2P)
			REQUIRE(sim_told("state"));
		else
			REQUIRE(sim_told_restoring("incomplete\n"));
		break;
	case -EPERM:
		REQUIRE(sim_told_restoring("no tenant\n"));
		break;
	case -EIO:
		REQUIRE(sim_told_restoring("the "));	/* engine or slice */
		break;
	default:
		REQUIRE(sim_told_nothing());
	}
}

/* Is an item of this slice on the engine? */
static bool at_work(const struct vgpu_device *device)
{
	const struct vgpu_item *item = device->parent->engine.executing;

	return item && item->ring->memory == device->memory;
}

/* May a pause take the maximum time? Not for the rest of an item that can begin anew. */
static bool may_be_late(const struct vgpu_device *device)
{
	const struct vgpu_item *item;

	if (memory_held || guest_silent || at_work(device) || !device->ring)
		return true;
	if (device->dma_lock.owner)	/* guest memory has not answered yet */
		return true;
	item = list_first_entry_or_null(&device->ring->ready, struct vgpu_item, node);
	return (item && item->run_ns && !vgpu_item_restarts(item)) ||
	       !list_empty(&device->ring->done);
}

static void set_state(struct vgpu_device *device, enum vfio_device_mig_state wanted)
{
	enum vfio_device_mig_state before = migrate_state(device), after;
	const struct vgpu_ring *ring = device->ring;
	u64 begun_ns = sim_now_ns;
	struct file *new;

	guest_quiet = false;
	sim_forget_told();
	new = device->vdev.mig_ops->migration_set_state(&device->vdev, wanted);
	check_told(before, wanted, PTR_ERR_OR_ZERO(new));
	after = migrate_state(device);
	REQUIRE(sim_now_ns - begun_ns <= PATIENCE_NS + THROTTLE_NS);
	guest_quiet = after != VFIO_DEVICE_STATE_RUNNING;
	if (before == VFIO_DEVICE_STATE_RESUMING && after == VFIO_DEVICE_STATE_ERROR) {
		REQUIRE(spoiled || given != stream_bytes || !stream_bytes || sim_has_failed);
		vmm_discarded();
		vmm_counts.refused_streams++;
	}
	/* This holds whether or not it went on from there. */
	if (before == VFIO_DEVICE_STATE_RESUMING && after != before &&
	    after != VFIO_DEVICE_STATE_ERROR) {
		REQUIRE(given == stream_bytes && possible(device));
		if (after == VFIO_DEVICE_STATE_STOP)
			REQUIRE(!memcmp(device->memory->data,
					stream + sizeof(struct vgpu_migration_header),
					device->memory_bytes));
		vmm_counts.restored++;
		vmm_restored(((struct vgpu_migration_header *)stream)->run_ns);
	}
	if (before == VFIO_DEVICE_STATE_RUNNING && after != before && !device->revoked)
		REQUIRE(!at_work(device));
	if (PTR_ERR_OR_ZERO(new) == -EBUSY)
		REQUIRE(may_be_late(device));
	if (IS_ERR(new) && before != VFIO_DEVICE_STATE_RESUMING)
		REQUIRE(device->ring == ring);
	if (IS_ERR(new))
		return;
	REQUIRE(after == wanted);
	if (!new)
		return;
	REQUIRE(after == VFIO_DEVICE_STATE_STOP_COPY ||
		(after == VFIO_DEVICE_STATE_RESUMING && device->tenant));
	if (after == VFIO_DEVICE_STATE_RESUMING)
		REQUIRE(!device->ring && kref_read(&device->memory->refs) == 1);
	migrate_closed();
	file = new;
	taken = given = 0;
	if (after == VFIO_DEVICE_STATE_RESUMING && sim_one_in(2))
		spoil();
}

/* Bring the worker into the middle of an access, if there is anything to fetch. */
static void fall_silent(struct vgpu_device *device)
{
	struct vgpu_ring *ring = device->ring;

	guest_silent = true;
	vmm_doorbell(ring->tail + 1);
	sim_sleep(NSEC_PER_MSEC);
	vmm_counts.silent_stops += device->ring->watchdog.armed;
}

/*
 * Nothing is stopped, saved or restored while a dropped item may still use device memory.
 * This takes no longer if the worker has to wait for guest memory first.
 */
static void stop_too_early(struct vgpu_device *device)
{
	struct vgpu_ring *ring = device->ring;
	struct kref *item = &device->memory->refs;	/* of an earlier ring */

	if (migrate_state(device) != VFIO_DEVICE_STATE_RUNNING)
		return;
	if (ring && sim_random() & 1)
		fall_silent(device);
	if (ring && ring->dead && sim_random() & 1)
		item = &ring->refs;
	kref_get(item);
	memory_held = true;
	set_state(device, VFIO_DEVICE_STATE_STOP_COPY + sim_random() % 3);
	REQUIRE(migrate_state(device) == VFIO_DEVICE_STATE_RUNNING);
	memory_held = false;
	item->count--;
	guest_silent = false;
}

static void take(size_t bytes)
{
	u8 *user = malloc(bytes ?: 1);
	loff_t position = 0;
	ssize_t done;

	REQUIRE(user);
	sim_user(user, bytes);
	done = file->f_op->read(file, (char *)user, bytes, &position);
	sim_user(NULL, 0);
	REQUIRE(done <= (ssize_t)bytes && done > -4096);
	if (done > 0) {
		REQUIRE(taken + done <= STREAM_MAX);
		memcpy(stream + taken, user, done);
		taken += done;
		stream_bytes = 0;
		spoiled = false;
	} else if (!done && bytes && taken) {
		stream_bytes = taken;
		vmm_counts.saved++;
	}
	free(user);
}

static size_t left(void)
{
	return stream_bytes - min(given, stream_bytes);
}

static void give(struct vgpu_device *device, size_t bytes)
{
	size_t before = given;
	loff_t position = 0;
	ssize_t done;
	u8 *user;

	user = calloc(1, bytes ?: 1);
	REQUIRE(user);
	if (given < stream_bytes)
		memcpy(user, stream + given, min(bytes, stream_bytes - given));
	sim_user(user, sim_one_in(32) ? bytes / 2 : bytes);
	done = file->f_op->write(file, (char *)user, bytes, &position);
	sim_user(NULL, 0);
	REQUIRE(done <= (ssize_t)bytes && done > -4096);
	if (done > 0)
		given += done;
	if (done == -EINVAL && before >= whole(device))
		REQUIRE(sim_told("position"));
	else if (done == -EINVAL)
		REQUIRE(sim_told("position") || sim_told_restoring(""));
	else if (done == -EFAULT || done == -ENODEV)
		REQUIRE(sim_told_nothing());
	/*
	 * The writer of a stream that cannot be restored gets an error, not the caller that starts
	 * the VM.
	 */
	if (done > 0 && given == whole(device))
		REQUIRE(possible(device));
	free(user);
}

/* The steps of a VMM, from the beginning to the end unless one is refused. */
static void round_trip(struct vgpu_device *device)
{
	if (migrate_state(device) == VFIO_DEVICE_STATE_ERROR)
		vmm_reset();
	if (sim_one_in(2)) {
		set_state(device, VFIO_DEVICE_STATE_STOP_COPY);
		for (int reads = 0; file && file->f_op->read && !stream_bytes && reads < 4; reads++)
			take(STREAM_MAX);
	}
	set_state(device, VFIO_DEVICE_STATE_RESUMING);
	while (file && file->f_op->write && left()) {
		size_t before = given;

		give(device, sim_one_in(4) ? sim_below(left() + 1) : left());
		if (given == before)
			break;
	}
	set_state(device, sim_one_in(2) ? VFIO_DEVICE_STATE_STOP : VFIO_DEVICE_STATE_RUNNING);
}

void migrate_step(struct vgpu_device *device)
{
	/* The state that an executor has cannot be saved. */
	REQUIRE(!device->vdev.mig_ops == device->parent->engine.ops->lends);
	if (!device->vdev.mig_ops)
		return;
	if (!(sim_random() & 31) && !device->revoked)
		stop_too_early(device);
	if (sim_one_in(3)) {
		round_trip(device);
		return;
	}
	for (u64 steps = 1 + sim_below(6); steps; steps--) {
		if (!file || sim_one_in(3))
			set_state(device, sim_below(9));
		else if (sim_one_in(16))
			migrate_closed();
		else if (file->f_op->read)
			take(sim_below(sim_one_in(4) ? PIECE_MAX : STREAM_MAX));
		else
			give(device, (sim_one_in(3) ? sim_below(left() + 1) : left()) +
			     (sim_one_in(16) ? sim_below(64) : 0));
	}
}
