// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/vgpumgr-exec: how an executor binds its file to a slice. binding_file.c handles calls
 * on a bound file, and uapi/vgpu_exec.h describes each call.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/ratelimit.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "control/executor.h"
#include "engine/binding.h"
#include "vgpu.h"

static int vgpu_executor_open(struct inode *inode, struct file *file)
{
	struct vgpu_executor *executor;

	executor = kzalloc(sizeof(*executor), GFP_KERNEL_ACCOUNT);
	if (!executor)
		return -ENOMEM;
	mutex_init(&executor->lock);
	vgpu_log_init(&executor->log);
	file->private_data = executor;
	return stream_open(inode, file);
}

static int vgpu_executor_close(struct inode *inode, struct file *file)
{
	struct vgpu_executor *executor = file->private_data;

	if (executor->binding)
		vgpu_binding_release(executor->binding);
	mutex_destroy(&executor->lock);
	kfree(executor);
	return 0;
}

/* The binding of the executor, NULL if it is not bound. It never changes once set. */
static struct vgpu_binding *vgpu_executor_binding(struct vgpu_executor *executor)
{
	/* Pairs with vgpu_executor_bind(). */
	return smp_load_acquire(&executor->binding);
}

static ssize_t vgpu_executor_read(struct file *file, char __user *to, size_t count,
				  loff_t *position)
{
	struct vgpu_binding *binding = vgpu_executor_binding(file->private_data);

	return binding ? vgpu_binding_read(binding, file, to, count) : -ENOTCONN;
}

static __poll_t vgpu_executor_poll(struct file *file, poll_table *wait)
{
	struct vgpu_binding *binding = vgpu_executor_binding(file->private_data);

	return binding ? vgpu_binding_poll(binding, file, wait) : 0;
}

/*
 * Log which @field of an executor's call was refused. @uuid: the slice, NULL if the call
 * names none. Returns @ret.
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

/* Return the name of what prevented the binding of an unbound file to a slice. */
static const char *vgpu_executor_bind_fault(int ret)
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
		return "memory";
	}
}

static int vgpu_executor_bind(struct vgpu_executor *executor, const guid_t *uuid)
{
	struct vgpu_binding *binding;
	struct vgpu_device *device;
	int ret = -ENOENT;

	lockdep_assert_held(&executor->lock);
	if (executor->binding)
		return -EBUSY;
	binding = vgpu_binding_create();
	if (!binding)
		return -ENOMEM;
	device = vgpu_device_lock(uuid);
	if (device) {
		ret = vgpu_binding_attach(binding, device);
		vgpu_parent_unlock(device->parent);
	}
	if (ret) {
		vgpu_binding_put(binding);
		return ret;
	}
	/*
	 * Pairs with vgpu_executor_binding(): the binding is complete when it becomes
	 * visible.
	 */
	smp_store_release(&executor->binding, binding);
	return 0;
}

static long vgpu_executor_ioctl_bind(struct vgpu_executor *executor, void __user *user)
{
	const struct vgpu_binding *bound;
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
	bound = executor->binding;
	ret = vgpu_executor_bind(executor, &uuid);
	mutex_unlock(&executor->lock);
	/* The fault lies with the file, not with the slice that this call names. */
	if (ret && bound)
		return vgpu_executor_refused(executor, &bound->device->uuid, "BIND", "file", ret);
	if (ret)
		return vgpu_executor_refused(executor, &uuid, "BIND",
					     vgpu_executor_bind_fault(ret), ret);
	bind.windows = VGPU_WINDOWS_MAX;
	bind.window_bytes = VGPU_WINDOW_BYTES;
	bind.memory_bytes = executor->binding->device->memory_bytes;
	return copy_to_user(user, &bind, sizeof(bind)) ? -EFAULT : 0;
}

static long vgpu_executor_ioctl(struct file *file, unsigned int command, unsigned long arg)
{
	struct vgpu_executor *executor = file->private_data;
	void __user *user = (void __user *)arg;
	struct vgpu_binding *binding;
	const char *field;
	long ret;

	if (command == VGPU_EXEC_BIND)
		return vgpu_executor_ioctl_bind(executor, user);
	binding = vgpu_executor_binding(executor);
	if (!binding)
		return -ENOTTY;
	ret = vgpu_binding_ioctl(binding, command, user, &field);
	if (ret == -EINVAL)
		vgpu_executor_refused(executor, &binding->device->uuid, "command", field, ret);
	return ret;
}

static const struct file_operations vgpu_executor_ops = {
	.owner = THIS_MODULE,
	.open = vgpu_executor_open,
	.release = vgpu_executor_close,
	.read = vgpu_executor_read,
	.poll = vgpu_executor_poll,
	.unlocked_ioctl = vgpu_executor_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice vgpu_executor_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "vgpumgr-exec",
	.fops = &vgpu_executor_ops,
	.mode = 0600,	/* the module does not check which process serves which slice */
};

int vgpu_executor_register(void)
{
	return misc_register(&vgpu_executor_misc);
}

void vgpu_executor_unregister(void)
{
	misc_deregister(&vgpu_executor_misc);
}
