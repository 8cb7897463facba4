// SPDX-License-Identifier: GPL-2.0
/*
 * The file through which the VMM reads or writes a stream: device memory between a
 * header and a trailer. See migration_file.h.
 */
#include <linux/anon_inodes.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "engine/engine.h"
#include "migration/migration_file.h"

/**
 * vgpu_migration_bytes - length of a stream
 * @device: the slice that is saved or restored
 */
u64 vgpu_migration_bytes(const struct vgpu_device *device)
{
	return sizeof(struct vgpu_migration_header) + device->memory_bytes +
	       sizeof(struct vgpu_migration_trailer);
}

/* The part of the stream at the file's position, and how much of @count lies in it. */
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

/* Record that @bytes of @part were transferred. */
static void vgpu_migration_advance(struct vgpu_migration_file *file, const void *part,
				   size_t bytes)
{
	u64 end = sizeof(file->header) + file->device->memory_bytes;

	if (file->position >= sizeof(file->header) && file->position < end)
		file->memory_checksum = vgpu_crc32c(file->memory_checksum, part, bytes);
	file->position += bytes;
}

/* Copy the next bytes to @piece; returns 0 at the end. */
static ssize_t vgpu_migration_take(struct vgpu_migration_file *file, size_t count)
{
	struct vgpu_device *device = file->device;
	ssize_t bytes = -ENODEV;
	void *part;

	mutex_lock(&device->state_lock);
	if (device->migration == file && !READ_ONCE(device->revoked)) {
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

/* The header is complete: check whether this device accepts it. */
static int vgpu_migration_accept_header(struct vgpu_migration_file *file)
{
	const char *fault;
	int ret;

	ret = vgpu_migration_parse(&file->header, &file->target, &file->state, &fault);
	if (!ret && file->state.enabled && READ_ONCE(file->device->parent->engine.wedged)) {
		fault = "the engine is wedged";
		ret = -EIO;
	}
	file->parsed = !ret;
	if (ret)
		vgpu_restoring_refused(file->device, fault);
	return ret;
}

/* The stream is complete: check whether device memory is what was saved. */
static int vgpu_migration_accept_memory(struct vgpu_migration_file *file)
{
	file->complete = le32_to_cpu(file->trailer.checksum) == (u32)~file->memory_checksum;
	if (file->complete)
		return 0;
	vgpu_restoring_refused(file->device, "damaged");
	return -EINVAL;
}

/*
 * Check each part as soon as it is complete, because only a write can be refused.
 * Later, when the VMM reports that the VM runs, it is too late.
 */
static int vgpu_migration_accept(struct vgpu_migration_file *file)
{
	if (file->position == sizeof(file->header))
		return vgpu_migration_accept_header(file);
	if (file->position == vgpu_migration_bytes(file->device))
		return vgpu_migration_accept_memory(file);
	return 0;
}

/* Append the beginning of @piece to the stream; returns its length or a negative errno. */
static ssize_t vgpu_migration_give(struct vgpu_migration_file *file, size_t count)
{
	struct vgpu_device *device = file->device;
	ssize_t bytes = -ENODEV;
	void *part;
	int ret;

	mutex_lock(&device->state_lock);
	if (device->migration == file && !READ_ONCE(device->revoked)) {
		bytes = -EINVAL;
		if (file->position < sizeof(file->header) || file->parsed)
			bytes = vgpu_migration_part(file, count, &part) ?: -EINVAL;
		if (bytes < 0) {
			vgpu_refused(device, "stream", "position", bytes);
		} else {
			memcpy(part, file->piece, bytes);
			vgpu_migration_advance(file, part, bytes);
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
		if (bytes < 0) {
			/*
			 * Unless the stream is complete, report the error even if
			 * bytes were accepted before.
			 */
			if (!file->complete)
				done = 0;
			break;
		}
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
	kvfree_sensitive(file, sizeof(*file));
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

/**
 * vgpu_migration_forget - stop using the file, if there is one
 * @device: the slice, state_lock held
 *
 * The VMM may keep it open.
 */
void vgpu_migration_forget(struct vgpu_device *device)
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

/**
 * vgpu_migration_open - create the file of a new stream
 * @device: the slice, which has no such file yet; state_lock held
 * @save: the file is for reading; otherwise for writing
 *
 * Return: the file, which is also stored in @device->migration; or an ERR_PTR.
 */
struct file *vgpu_migration_open(struct vgpu_device *device, bool save)
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
	filp = anon_inode_getfile("vgpu-migration",
				  save ? &vgpu_migration_saving_ops : &vgpu_migration_restoring_ops,
				  file, save ? O_RDONLY : O_WRONLY);
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
