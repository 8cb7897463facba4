// SPDX-License-Identifier: GPL-2.0
/*
 * Streams that were saved from this device, or from another one, as they are or
 * spoiled; given back whole, in parts, too long, or after the device has changed.
 */
#include "vmm.h"

#include "migration_stream.h"

#define STREAM_MAX (sizeof(struct vgpu_migration_header) + (64u << 10) + 64)
#define PIECE_MAX 8192u

static struct file *file;
static u8 stream[STREAM_MAX];	/* the last one that was saved whole */
static size_t stream_bytes, taken, given;

static enum vfio_device_mig_state state_of(struct vgpu_device *device)
{
	enum vfio_device_mig_state state = VFIO_DEVICE_STATE_ERROR;

	REQUIRE(!device->vdev.mig_ops->migration_get_state(&device->vdev, &state));
	REQUIRE(state <= VFIO_DEVICE_STATE_RUNNING_P2P);
	return state;
}

bool migrate_quiet(struct vgpu_device *device)
{
	return state_of(device) != VFIO_DEVICE_STATE_RUNNING;
}

void migrate_closed(void)
{
	if (file)
		fput(file);
	file = NULL;
}

/* Fields that a checksum would betray get a new one. */
static void spoil(void)
{
	struct vgpu_migration_header *header = (struct vgpu_migration_header *)stream;
	u32 *words = (u32 *)stream;

	if (stream_bytes < sizeof(*header))
		return;
	switch (sim_below(5)) {
	case 0:
		stream[sim_below(stream_bytes)] ^= 1 << sim_below(8);
		return;
	case 1:
		words[sim_below(24)] = sim_random();
		break;
	case 2:
		header->config[sim_below(sizeof(header->config))] ^= 1 << sim_below(8);
		break;
	case 3:
		header->tail = header->completed + sim_below(9000);
		break;
	case 4:
		header->entries = 1 << sim_below(16);
		break;
	}
	header->checksum = vgpu_migration_checksum(header);
}

static void set_state(struct vgpu_device *device)
{
	enum vfio_device_mig_state before = state_of(device), after;
	enum vfio_device_mig_state wanted = sim_below(9);
	struct file *new;

	guest_quiet = false;
	new = device->vdev.mig_ops->migration_set_state(&device->vdev, wanted);
	after = state_of(device);
	guest_quiet = migrate_quiet(device);
	if (before == VFIO_DEVICE_STATE_RESUMING && after == VFIO_DEVICE_STATE_ERROR)
		vmm_counts.refused_streams++;
	/* Whether or not it went on from there. */
	if (before == VFIO_DEVICE_STATE_RESUMING && after != before &&
	    after != VFIO_DEVICE_STATE_ERROR) {
		REQUIRE(given == stream_bytes && stream_bytes);
		vmm_counts.restored++;
		vmm_restored();
	}
	if (IS_ERR(new))
		return;
	REQUIRE(after == wanted);
	if (!new)
		return;
	REQUIRE(after == VFIO_DEVICE_STATE_STOP_COPY || after == VFIO_DEVICE_STATE_RESUMING);
	migrate_closed();
	file = new;
	taken = given = 0;
	if (after == VFIO_DEVICE_STATE_RESUMING && sim_one_in(3))
		spoil();
}

static void take(void)
{
	size_t bytes = sim_below(sim_one_in(4) ? PIECE_MAX : STREAM_MAX);
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
	} else if (!done && bytes && taken) {
		stream_bytes = taken;
		vmm_counts.saved++;
	}
	free(user);
}

static void give(void)
{
	size_t bytes = stream_bytes - min(given, stream_bytes);
	loff_t position = 0;
	ssize_t done;
	u8 *user;

	if (sim_one_in(3))
		bytes = sim_below(bytes + 1);
	if (sim_one_in(16))
		bytes += sim_below(64);
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
	free(user);
}

void migrate_step(struct vgpu_device *device)
{
	for (u64 steps = 1 + sim_below(6); steps; steps--) {
		if (!file || sim_one_in(3))
			set_state(device);
		else if (sim_one_in(16))
			migrate_closed();
		else if (file->f_op->read)
			take();
		else
			give();
	}
}
