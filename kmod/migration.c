// SPDX-License-Identifier: GPL-2.0
/*
 * Saving and restoring a slice: VFIO migration, version 2, with STOP_COPY and P2P.
 *
 * Leaving RUNNING pauses the ring: nothing more is fetched, the item that has begun
 * is finished, what the engine has finished is answered. Then there is no access to
 * guest memory, no interrupt and no work of this slice on the engine. Items that
 * have not begun stay where they are; in the stream they do not travel, because the
 * guest still has them in its ring: the other host fetches them again, from the
 * first one that was not answered.
 *
 * Device and file hold each other until the state in which the file is of use ends,
 * by the VMM's wish, a reset, revocation or close; then it only returns errors. Its
 * lock keeps readers and writers in order and may be held over a page fault;
 * state_lock, taken inside it, never is.
 */
#include <linux/anon_inodes.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "engine.h"
#include "migration.h"
#include "migration_stream.h"
#include "ring.h"

#define VGPU_MIGRATION_PIECE_BYTES	(64U << 10)

/**
 * struct vgpu_migration_file - one saving or restoring
 * @device: holds a reference
 * @filp: what the VMM has; the device holds a reference while it names this
 * @lock: one reader or writer at a time; outside state_lock
 * @position: bytes of the stream behind us; a writer changes it under both locks
 * @memory_checksum: of device memory up to @position, not inverted; as @position
 * @header: of the stream
 * @trailer: of the stream
 * @target: the device, as a header has to fit it
 * @state: from a restored header
 * @parsed: @state is valid
 * @piece: on its way from or to the VMM
 */
struct vgpu_migration_file {
	struct vgpu_device *device;
	struct file *filp;
	struct mutex lock;	/* readers and writers */
	u64 position;
	u32 memory_checksum;
	struct vgpu_migration_header header;
	struct vgpu_migration_trailer trailer;
	struct vgpu_migration_target target;
	struct vgpu_migration_state state;
	bool parsed;
	u8 piece[VGPU_MIGRATION_PIECE_BYTES];
};

static u64 vgpu_migration_bytes(const struct vgpu_device *device)
{
	return sizeof(struct vgpu_migration_header) + device->memory_bytes +
	       sizeof(struct vgpu_migration_trailer);
}

/* Where the stream at its position lies, and how much of @count in one part of it. */
static size_t vgpu_migration_part(struct vgpu_migration_file *file, size_t count, void **part)
{
	struct vgpu_device *device = file->device;
	u64 at = file->position;

	if (at < sizeof(file->header)) {
		*part = (u8 *)&file->header + at;
		return min_t(u64, count, sizeof(file->header) - at);
	}
	at -= sizeof(file->header);
	if (at < device->memory_bytes) {
		*part = device->memory->data + at;
		return min_t(u64, count, device->memory_bytes - at);
	}
	at -= device->memory_bytes;
	*part = (u8 *)&file->trailer + at;
	return min_t(u64, count, sizeof(file->trailer) - at);
}

/* @bytes of @part have passed. */
static void vgpu_migration_advance(struct vgpu_migration_file *file, const void *part,
				   size_t bytes)
{
	u64 end = sizeof(file->header) + file->device->memory_bytes;

	if (file->position >= sizeof(file->header) && file->position < end)
		file->memory_checksum = vgpu_crc32c(file->memory_checksum, part, bytes);
	file->position += bytes;
}

/* Copy what comes next to @piece; 0 at the end. */
static ssize_t vgpu_migration_take(struct vgpu_migration_file *file, size_t count)
{
	struct vgpu_device *device = file->device;
	ssize_t bytes = -ENODEV;
	void *part;

	mutex_lock(&device->state_lock);
	if (device->migration == file) {
		if (file->position == sizeof(file->header) + device->memory_bytes)
			file->trailer.checksum = cpu_to_le32(~file->memory_checksum);
		bytes = vgpu_migration_part(file, count, &part);
		memcpy(file->piece, part, bytes);
	}
	mutex_unlock(&device->state_lock);
	return bytes;
}

static ssize_t vgpu_migration_read(struct file *filp, char __user *to, size_t count,
				   loff_t *position)
{
	struct vgpu_migration_file *file = filp->private_data;
	ssize_t bytes = 0;
	size_t done = 0;

	if (mutex_lock_interruptible(&file->lock))
		return -ERESTARTSYS;
	while (done < count) {
		bytes = vgpu_migration_take(file, min_t(size_t, count - done,
							sizeof(file->piece)));
		if (bytes <= 0)
			break;
		if (copy_to_user(to + done, file->piece, bytes)) {
			bytes = -EFAULT;
			break;
		}
		vgpu_migration_advance(file, file->piece, bytes);
		done += bytes;
		cond_resched();
	}
	mutex_unlock(&file->lock);
	return done ?: bytes;
}

/* The header is complete: will this device take it? */
static int vgpu_migration_accept(struct vgpu_migration_file *file)
{
	const char *fault;
	int ret;

	ret = vgpu_migration_parse(&file->header, &file->target, &file->state, &fault);
	file->parsed = !ret;
	if (ret)
		dev_warn_ratelimited(file->device->vdev.dev, "restoring refused: %s\n", fault);
	return ret;
}

/* Put the beginning of @piece into the stream; how much, or a negative errno. */
static ssize_t vgpu_migration_give(struct vgpu_migration_file *file, size_t count)
{
	struct vgpu_device *device = file->device;
	ssize_t bytes = -ENODEV;
	void *part;
	int ret;

	mutex_lock(&device->state_lock);
	if (device->migration == file) {
		bytes = -EINVAL;
		if (file->position < sizeof(file->header) || file->parsed)
			bytes = vgpu_migration_part(file, count, &part) ?: -EINVAL;
		if (bytes > 0) {
			memcpy(part, file->piece, bytes);
			vgpu_migration_advance(file, part, bytes);
		}
		if (bytes > 0 && file->position == sizeof(file->header)) {
			ret = vgpu_migration_accept(file);
			bytes = ret ?: bytes;
		}
	}
	mutex_unlock(&device->state_lock);
	return bytes;
}

static ssize_t vgpu_migration_write(struct file *filp, const char __user *from, size_t count,
				    loff_t *position)
{
	struct vgpu_migration_file *file = filp->private_data;
	ssize_t bytes = 0;
	size_t done = 0;

	if (mutex_lock_interruptible(&file->lock))
		return -ERESTARTSYS;
	while (done < count) {
		size_t wanted = min_t(size_t, count - done, sizeof(file->piece));

		if (copy_from_user(file->piece, from + done, wanted)) {
			bytes = -EFAULT;
			break;
		}
		bytes = vgpu_migration_give(file, wanted);
		if (bytes < 0)
			break;
		done += bytes;
		cond_resched();
	}
	mutex_unlock(&file->lock);
	return done ?: bytes;
}

static int vgpu_migration_release(struct inode *inode, struct file *filp)
{
	struct vgpu_migration_file *file = filp->private_data;

	put_device(&file->device->vdev.device);
	kvfree(file);
	return 0;
}

static const struct file_operations vgpu_migration_saving_ops = {
	.owner = THIS_MODULE,
	.read = vgpu_migration_read,
	.release = vgpu_migration_release,
};

static const struct file_operations vgpu_migration_restoring_ops = {
	.owner = THIS_MODULE,
	.write = vgpu_migration_write,
	.release = vgpu_migration_release,
};

static void vgpu_migration_forget(struct vgpu_device *device)
{
	struct vgpu_migration_file *file = device->migration;

	device->migration = NULL;
	if (file)
		fput(file->filp);
}

static void vgpu_migration_describe(const struct vgpu_device *device,
				    struct vgpu_migration_target *target)
{
	const struct vgpu_engine_ops *ops = device->parent->engine.ops;

	target->memory_bytes = device->memory_bytes;
	strscpy_pad(target->engine, ops->name, sizeof(target->engine));
	target->operations = ops->operations;
	vgpu_config_describe(target->config, target->config_writable);
	vgpu_msix_describe(target->msix, target->msix_writable);
}

static struct file *vgpu_migration_open(struct vgpu_device *device,
					const struct file_operations *ops, int flags)
{
	struct vgpu_migration_file *file;
	struct file *filp;

	file = kvzalloc(sizeof(*file), GFP_KERNEL_ACCOUNT);
	if (!file)
		return ERR_PTR(-ENOMEM);
	file->device = device;
	file->memory_checksum = ~0U;
	mutex_init(&file->lock);
	vgpu_migration_describe(device, &file->target);
	filp = anon_inode_getfile("vgpu-migration", ops, file, flags);
	if (IS_ERR(filp)) {
		kvfree(file);
		return filp;
	}
	stream_open(filp->f_inode, filp);
	get_device(&device->vdev.device);
	get_file(filp);
	file->filp = filp;
	device->migration = file;
	return filp;
}

/* STOP -> STOP_COPY */
static struct file *vgpu_migration_save(struct vgpu_device *device)
{
	struct vgpu_ring *ring = device->ring;
	struct vgpu_migration_state state = {
		.setup = device->setup,
		.run_ns = vgpu_device_run_ns(device),
		.run_ns_hi = device->run_ns_hi,
		.error = READ_ONCE(device->error),
		.error_index = READ_ONCE(device->error_index),
	};
	struct vgpu_migration_file *file;
	struct file *filp;

	filp = vgpu_migration_open(device, &vgpu_migration_saving_ops, O_RDONLY);
	if (IS_ERR(filp))
		return filp;
	if (ring) {
		state.enabled = true;
		state.reported = ring->reported;
		state.tail = ring->tail;
		state.completed = ring->completed;
	}
	file = device->migration;
	memcpy(file->header.config, device->config, sizeof(file->header.config));
	memcpy(file->header.msix, device->msix_table, sizeof(file->header.msix));
	vgpu_migration_format(&file->header, &state, &file->target);
	return filp;
}

/*
 * STOP -> RESUMING. An item dropped a moment ago may still be at work on device
 * memory, for a chunk; nothing else can be.
 */
static struct file *vgpu_migration_prepare(struct vgpu_device *device)
{
	vgpu_device_disable(device);
	if (kref_read(&device->memory->refs) > 1)
		return ERR_PTR(-EBUSY);
	return vgpu_migration_open(device, &vgpu_migration_restoring_ops, O_WRONLY);
}

/* Enable the ring as it was, paused; what was not answered is fetched again. */
static int vgpu_migration_load_ring(struct vgpu_device *device,
				    const struct vgpu_migration_state *state)
{
	struct vgpu_ring *ring = vgpu_ring_create(device);

	if (!ring)
		return -ENOMEM;
	ring->tail = state->tail;
	ring->fetched = state->completed;
	ring->completed = state->completed;
	ring->reported = state->reported;
	if (!vgpu_ring_publish(ring)) {
		dev_warn_ratelimited(device->vdev.dev, "restoring refused: the engine is wedged\n");
		vgpu_ring_release(ring);
		return -EIO;
	}
	if (state->error)
		vgpu_ring_stop(ring);
	return 0;
}

/* RESUMING -> STOP */
static int vgpu_migration_load(struct vgpu_device *device)
{
	struct vgpu_engine *engine = &device->parent->engine;
	struct vgpu_migration_file *file = device->migration;
	const struct vgpu_migration_state *state;

	if (!file || !file->parsed || file->position != vgpu_migration_bytes(device) ||
	    le32_to_cpu(file->trailer.checksum) != (u32)~file->memory_checksum) {
		dev_warn_ratelimited(device->vdev.dev,
				     "restoring refused: incomplete or damaged\n");
		return -EINVAL;
	}
	state = &file->state;
	/* The VMM may have enabled it since. */
	vgpu_device_disable(device);
	device->setup = state->setup;
	device->run_ns_hi = state->run_ns_hi;
	device->run_ns_before += state->run_ns - vgpu_device_run_ns(device);
	memcpy(device->config, file->header.config, sizeof(device->config));
	memcpy(device->msix_table, file->header.msix, sizeof(device->msix_table));
	spin_lock_irq(&engine->lock);
	WRITE_ONCE(device->error_index, state->error_index);
	WRITE_ONCE(device->error, state->error);
	spin_unlock_irq(&engine->lock);
	return state->enabled ? vgpu_migration_load_ring(device, state) : 0;
}

/* Nothing stays of a stream that was refused or not finished: as after opening. */
static void vgpu_migration_discard(struct vgpu_device *device)
{
	struct vgpu_engine *engine = &device->parent->engine;

	vgpu_device_disable(device);
	vgpu_config_reset(device);
	vgpu_registers_reset(device);
	vgpu_memory_clear(device->memory);
	spin_lock_irq(&engine->lock);
	WRITE_ONCE(device->error, VGPU_ERROR_NONE);
	WRITE_ONCE(device->error_index, 0);
	spin_unlock_irq(&engine->lock);
}

static struct file *vgpu_migration_step(struct vgpu_device *device,
					enum vfio_device_mig_state next)
{
	enum vfio_device_mig_state now = device->migration_state;
	int ret = 0;

	if (now == VFIO_DEVICE_STATE_STOP && next == VFIO_DEVICE_STATE_STOP_COPY)
		return vgpu_migration_save(device);
	if (now == VFIO_DEVICE_STATE_STOP && next == VFIO_DEVICE_STATE_RESUMING)
		return vgpu_migration_prepare(device);
	if (now == VFIO_DEVICE_STATE_RUNNING && device->ring)
		ret = vgpu_ring_pause(device->ring);
	else if (next == VFIO_DEVICE_STATE_RUNNING && device->ring)
		vgpu_ring_continue(device->ring);
	else if (now == VFIO_DEVICE_STATE_RESUMING)
		ret = vgpu_migration_load(device);
	if (ret && now == VFIO_DEVICE_STATE_RESUMING) {
		vgpu_migration_discard(device);
		device->migration_state = VFIO_DEVICE_STATE_ERROR;
	}
	if (!ret || device->migration_state == VFIO_DEVICE_STATE_ERROR)
		vgpu_migration_forget(device);
	return ERR_PTR(ret);
}

static struct file *vgpu_migration_set_state(struct vfio_device *vdev,
					     enum vfio_device_mig_state wanted)
{
	struct vgpu_device *device = vgpu_vdev_to_device(vdev);
	struct file *filp = NULL;
	int ret = 0;

	mutex_lock(&device->state_lock);
	if (device->revoked)
		ret = -ENODEV;
	else if (device->migration_state == VFIO_DEVICE_STATE_ERROR)
		ret = -EINVAL;
	while (!ret && device->migration_state != wanted) {
		enum vfio_device_mig_state next;

		ret = vfio_mig_get_next_state(vdev, device->migration_state, wanted, &next);
		if (ret)
			break;
		filp = vgpu_migration_step(device, next);
		ret = PTR_ERR_OR_ZERO(filp);
		if (!ret)
			device->migration_state = next;
	}
	mutex_unlock(&device->state_lock);
	return ret ? ERR_PTR(ret) : filp;
}

static int vgpu_migration_get_state(struct vfio_device *vdev, enum vfio_device_mig_state *state)
{
	struct vgpu_device *device = vgpu_vdev_to_device(vdev);

	mutex_lock(&device->state_lock);
	*state = device->migration_state;
	mutex_unlock(&device->state_lock);
	return 0;
}

static int __maybe_unused vgpu_migration_get_data_size(struct vfio_device *vdev,
						       unsigned long *bytes)
{
	*bytes = vgpu_migration_bytes(vgpu_vdev_to_device(vdev));
	return 0;
}

/* No logging of dirty pages: the container notes what vfio_dma_rw() writes. */
static const struct vfio_migration_ops vgpu_migration_ops = {
	.migration_set_state = vgpu_migration_set_state,
	.migration_get_state = vgpu_migration_get_state,
	VGPU_MIGRATION_SIZE_OPS
};

/**
 * vgpu_migration_init - say whether a slice can be saved and restored
 * @device: not registered yet; parent->lock held
 *
 * What an executor knows of its slice cannot be saved.
 */
void vgpu_migration_init(struct vgpu_device *device)
{
	device->migration_state = VFIO_DEVICE_STATE_RUNNING;
	if (device->parent->engine.ops->executors)
		return;
	device->vdev.migration_flags = VFIO_MIGRATION_STOP_COPY | VFIO_MIGRATION_P2P;
	device->vdev.mig_ops = &vgpu_migration_ops;
}

/**
 * vgpu_migration_end - back to running, whatever was under way
 * @device: state_lock held, not enabled, its memory is not used again
 */
void vgpu_migration_end(struct vgpu_device *device)
{
	vgpu_migration_forget(device);
	device->migration_state = VFIO_DEVICE_STATE_RUNNING;
}

/**
 * vgpu_migration_reset - the same, of a device that will be used again
 * @device: state_lock held, not enabled
 */
void vgpu_migration_reset(struct vgpu_device *device)
{
	if (device->migration_state == VFIO_DEVICE_STATE_RESUMING)
		vgpu_migration_discard(device);
	vgpu_migration_end(device);
}
