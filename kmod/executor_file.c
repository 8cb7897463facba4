// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/vgpumgr-exec: how an executor attaches, takes and completes grants, and moves the
 * bytes of its slice's channel. What each call means is in uapi/vgpu_exec.h.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/ratelimit.h>
#include <linux/uaccess.h>

#include "binding.h"
#include "channel.h"
#include "engine.h"
#include "executor.h"
#include "ring.h"

static int vgpu_executor_open(struct inode *inode, struct file *file)
{
	file->private_data = vgpu_executor_create();
	return file->private_data ? stream_open(inode, file) : -ENOMEM;
}

static int vgpu_executor_close(struct inode *inode, struct file *file)
{
	struct vgpu_executor *executor = file->private_data;

	if (executor->binding)
		vgpu_binding_release(executor->binding);
	vgpu_executor_release(executor);
	return 0;
}

/* What the executor is bound to, NULL if nothing. Once it is, it stays so. */
static struct vgpu_binding *vgpu_executor_binding(struct vgpu_executor *executor)
{
	/* Pairs with vgpu_executor_bind(). */
	return smp_load_acquire(&executor->binding);
}

/* The slice if the executor is attached. Once it is, it stays so. */
static struct vgpu_device *vgpu_executor_device(struct vgpu_executor *executor)
{
	/* Pairs with vgpu_executor_attach_to(). */
	return smp_load_acquire(&executor->device);
}

/* Its channel, NULL while there is none; a negative errno at the end. */
static struct vgpu_channel *vgpu_executor_channel(struct vgpu_executor *executor)
{
	struct vgpu_executor_view view;

	if (!vgpu_executor_device(executor))
		return ERR_PTR(-ENOTCONN);
	vgpu_executor_look(executor, &view);
	return view.ended ? ERR_PTR(-ENODEV) : view.channel;
}

/* How much can be moved at once and where; 0 for nothing yet, or a negative errno. */
static ssize_t vgpu_executor_bytes(struct vgpu_executor *executor, bool write, u8 **at)
{
	struct vgpu_channel *channel = vgpu_executor_channel(executor);

	if (IS_ERR_OR_NULL(channel))
		return PTR_ERR_OR_ZERO(channel);
	if (write)
		return vgpu_pipe_room(&channel->to_guest, at);
	return vgpu_pipe_ready(&channel->to_host, at);
}

/* Bytes have moved: the worker has something to do. */
static void vgpu_executor_kick(struct vgpu_executor *executor)
{
	struct vgpu_device *device = executor->device;
	struct vgpu_engine *engine = &device->parent->engine;

	spin_lock_irq(&engine->lock);
	if (device->executor == executor && device->ring && !device->ring->dead)
		vgpu_ring_kick(device->ring);
	spin_unlock_irq(&engine->lock);
}

static bool vgpu_executor_can_move(struct vgpu_executor *executor, bool write)
{
	u8 *at;

	return vgpu_executor_bytes(executor, write, &at);
}

/* Wait for something to move and lock the executor: 1, or 0 and a negative errno. */
static ssize_t vgpu_executor_await(struct file *file, bool write, u8 **at)
{
	struct vgpu_executor *executor = file->private_data;
	ssize_t bytes;

	for (;;) {
		if (mutex_lock_interruptible(&executor->lock))
			return -ERESTARTSYS;
		bytes = vgpu_executor_bytes(executor, write, at);
		if (bytes > 0)
			return bytes;
		mutex_unlock(&executor->lock);
		if (bytes < 0)
			return bytes;
		if (file->f_flags & O_NONBLOCK)
			return -EAGAIN;
		if (wait_event_interruptible(executor->wait,
					     vgpu_executor_can_move(executor, write)))
			return -ERESTARTSYS;
	}
}

/* Move what can be moved at once between @user and a pipe. */
static ssize_t vgpu_executor_move(struct file *file, void __user *user, size_t count, bool write)
{
	struct vgpu_executor *executor = file->private_data;
	struct vgpu_channel *channel;
	unsigned long left;
	ssize_t bytes;
	u8 *at;

	if (!count)
		return 0;
	bytes = vgpu_executor_await(file, write, &at);
	if (bytes < 0)
		return bytes;
	channel = executor->channel;
	bytes = min_t(size_t, bytes, count);
	left = write ? copy_from_user(at, user, bytes) : copy_to_user(user, at, bytes);
	if (left)
		bytes = -EFAULT;
	else if (write)
		vgpu_pipe_put(&channel->to_guest, bytes);
	else
		vgpu_pipe_take(&channel->to_host, bytes);
	mutex_unlock(&executor->lock);
	if (bytes > 0)
		vgpu_executor_kick(executor);
	return bytes;
}

static ssize_t vgpu_executor_read(struct file *file, char __user *to, size_t count,
				  loff_t *position)
{
	struct vgpu_binding *binding = vgpu_executor_binding(file->private_data);

	if (binding)
		return vgpu_binding_read(binding, file, to, count);
	return vgpu_executor_move(file, to, count, false);
}

static ssize_t vgpu_executor_write(struct file *file, const char __user *from, size_t count,
				   loff_t *position)
{
	return vgpu_executor_move(file, (void __user *)from, count, true);
}

static __poll_t vgpu_executor_poll(struct file *file, poll_table *wait)
{
	struct vgpu_executor *executor = file->private_data;
	struct vgpu_executor_view view;
	struct vgpu_binding *binding = vgpu_executor_binding(executor);
	__poll_t events = 0;

	if (binding)
		return vgpu_binding_poll(binding, file, wait);
	poll_wait(file, &executor->wait, wait);
	if (!vgpu_executor_device(executor))
		return 0;
	vgpu_executor_look(executor, &view);
	if (view.ended)
		return EPOLLHUP;
	if (view.state == VGPU_GRANT_OFFERED || view.state == VGPU_GRANT_REVOKED)
		events |= EPOLLPRI;
	if (vgpu_executor_can_move(executor, false))
		events |= EPOLLIN | EPOLLRDNORM;
	if (vgpu_executor_can_move(executor, true))
		events |= EPOLLOUT | EPOLLWRNORM;
	return events;
}

/*
 * Tell the log which @field of what an executor said was refused; @uuid: of the slice, NULL
 * if it said none. Returns @ret.
 */
static long vgpu_executor_refused(struct vgpu_executor *executor, const guid_t *uuid,
				  const char *what, const char *field, long ret)
{
	if (!__ratelimit(&executor->log))
		return ret;
	if (uuid)
		pr_warn("vgpumgr-exec: slice %pUl: %s refused for %s: %pe\n", uuid, what, field,
			ERR_PTR(ret));
	else
		pr_warn("vgpumgr-exec: %s refused for %s: %pe\n", what, field, ERR_PTR(ret));
	return ret;
}

/* What kept a file that is not attached from a slice. */
static const char *vgpu_executor_attach_fault(int ret)
{
	switch (ret) {
	case -EBUSY:
		return "executor";
	case -EOPNOTSUPP:
		return "engine";
	case -ENODEV:
		return "slice";
	case -ENOENT:
		return "uuid";
	default:
		return "thread";
	}
}

static long vgpu_executor_ioctl_attach(struct vgpu_executor *executor, void __user *user)
{
	const struct vgpu_device *attached;
	struct vgpu_exec_attach attach;
	guid_t uuid;
	int ret;

	if (copy_from_user(&attach, user, sizeof(attach)))
		return -EFAULT;
	if (strnlen(attach.uuid, sizeof(attach.uuid)) != UUID_STRING_LEN ||
	    guid_parse(attach.uuid, &uuid))
		return vgpu_executor_refused(executor, NULL, "ATTACH", "uuid", -EINVAL);
	mutex_lock(&executor->lock);
	attached = executor->device;
	ret = vgpu_executor_attach(executor, &uuid);
	mutex_unlock(&executor->lock);
	if (!ret)
		return 0;
	/* No fault of the slice that it names now. */
	if (attached)
		return vgpu_executor_refused(executor, &attached->uuid, "ATTACH", "file", ret);
	return vgpu_executor_refused(executor, &uuid, "ATTACH", vgpu_executor_attach_fault(ret),
				     ret);
}

static long vgpu_executor_ioctl_take(struct vgpu_executor *executor, void __user *user)
{
	struct vgpu_executor_view view;

	vgpu_executor_look(executor, &view);
	if (view.ended)
		return -ENODEV;
	if (view.state == VGPU_GRANT_NONE || view.state == VGPU_GRANT_DONE)
		return -EAGAIN;
	if (copy_to_user(user, &view.grant, sizeof(view.grant)))
		return -EFAULT;
	if (view.state == VGPU_GRANT_OFFERED)
		vgpu_executor_take(executor, view.grant.number);
	return 0;
}

static long vgpu_executor_ioctl_complete(struct vgpu_executor *executor, void __user *user)
{
	struct vgpu_exec_complete complete;
	const char *field = "number";
	int ret;

	if (copy_from_user(&complete, user, sizeof(complete)))
		return -EFAULT;
	ret = vgpu_executor_complete(executor, &complete);
	if (ret != -EINVAL)
		return ret;
	if (complete.reserved)
		field = "reserved";
	else if (complete.status > VGPU_ITEM_FAILED)
		field = "status";
	return vgpu_executor_refused(executor, &executor->device->uuid, "COMPLETE", field, ret);
}

static int vgpu_executor_bind(struct vgpu_executor *executor, const guid_t *uuid)
{
	struct vgpu_binding *binding;

	lockdep_assert_held(&executor->lock);
	if (executor->device || executor->binding)
		return -EBUSY;
	binding = vgpu_binding_create(uuid);
	if (IS_ERR(binding))
		return PTR_ERR(binding);
	/* Pairs with vgpu_executor_binding(): complete when it can be seen. */
	smp_store_release(&executor->binding, binding);
	return 0;
}

static long vgpu_executor_ioctl_bind(struct vgpu_executor *executor, void __user *user)
{
	struct vgpu_exec_bind bind;
	guid_t uuid;
	int ret;

	if (copy_from_user(&bind, user, sizeof(bind)))
		return -EFAULT;
	if (strnlen(bind.uuid, sizeof(bind.uuid)) != UUID_STRING_LEN ||
	    guid_parse(bind.uuid, &uuid))
		return vgpu_executor_refused(executor, NULL, "BIND", "uuid", -EINVAL);
	if (bind.reserved)
		return vgpu_executor_refused(executor, NULL, "BIND", "reserved", -EINVAL);
	mutex_lock(&executor->lock);
	ret = vgpu_executor_bind(executor, &uuid);
	mutex_unlock(&executor->lock);
	if (ret)
		return vgpu_executor_refused(executor, &uuid, "BIND",
					     vgpu_executor_attach_fault(ret), ret);
	bind.windows = VGPU_WINDOWS_MAX;
	bind.window_bytes = VGPU_WINDOW_BYTES;
	bind.memory_bytes = executor->binding->device->memory_bytes;
	return copy_to_user(user, &bind, sizeof(bind)) ? -EFAULT : 0;
}

static long vgpu_executor_ioctl_bound(struct vgpu_executor *executor, unsigned int command,
				      void __user *user)
{
	struct vgpu_binding *binding = executor->binding;
	const char *field;
	long ret;

	ret = vgpu_binding_ioctl(binding, command, user, &field);
	if (ret == -EINVAL)
		vgpu_executor_refused(executor, &binding->device->uuid, "command", field, ret);
	return ret;
}

static long vgpu_executor_ioctl(struct file *file, unsigned int command, unsigned long arg)
{
	struct vgpu_executor *executor = file->private_data;
	void __user *user = (void __user *)arg;

	if (command == VGPU_EXEC_BIND)
		return vgpu_executor_ioctl_bind(executor, user);
	if (vgpu_executor_binding(executor))
		return vgpu_executor_ioctl_bound(executor, command, user);
	if (command == VGPU_EXEC_ATTACH)
		return vgpu_executor_ioctl_attach(executor, user);
	if (command != VGPU_EXEC_TAKE && command != VGPU_EXEC_COMPLETE)
		return -ENOTTY;
	if (!vgpu_executor_device(executor))
		return -ENOTCONN;
	if (command == VGPU_EXEC_TAKE)
		return vgpu_executor_ioctl_take(executor, user);
	return vgpu_executor_ioctl_complete(executor, user);
}

static const struct file_operations vgpu_executor_ops = {
	.owner = THIS_MODULE,
	.open = vgpu_executor_open,
	.release = vgpu_executor_close,
	.read = vgpu_executor_read,
	.write = vgpu_executor_write,
	.poll = vgpu_executor_poll,
	.unlocked_ioctl = vgpu_executor_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice vgpu_executor_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "vgpumgr-exec",
	.fops = &vgpu_executor_ops,
	.mode = 0600,
};

int vgpu_executor_register(void)
{
	return misc_register(&vgpu_executor_misc);
}

void vgpu_executor_unregister(void)
{
	misc_deregister(&vgpu_executor_misc);
}
