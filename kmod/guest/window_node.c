// SPDX-License-Identifier: GPL-2.0
/*
 * vgpumgr guest driver: /dev/vgpuN-compute.
 *
 * Opening may wait for a window. A misc device would block every other open of any
 * misc device meanwhile, so this is a separate character device.
 */
#include <linux/fs.h>
#include <linux/jiffies.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "compat.h"
#include "guest.h"

static dev_t vgpu_node_numbers;

static char *vgpu_node_mode(VGPU_DEVNODE_DEVICE *node, umode_t *mode)
{
	if (mode)
		*mode = 0666;
	return NULL;
}

static struct class vgpu_node_class = {
	.name = "vgpu_guest",
	.dev_groups = vgpu_node_groups,
	.devnode = vgpu_node_mode,
};

/* Wait for an event of the device, at most *@left jiffies. Return: 0 or -EINTR. */
static int vgpu_window_await_event(struct vgpu_guest *guest, u64 wakeups, long *left)
{
	long slice = min_t(long, *left, HZ), rc;

	rc = wait_event_interruptible_timeout(guest->wait,
					      vgpu_wakeups(guest) != wakeups ||
					      READ_ONCE(guest->gone), slice);
	if (rc < 0)
		return -EINTR;
	*left -= slice - rc;
	return 0;
}

static int vgpu_window_obtain(struct vgpu_window *window, bool patient)
{
	struct vgpu_guest *guest = window->windows->guest;
	long left = patient ? msecs_to_jiffies(VGPU_GUEST_WINDOW_OPEN_MS) : 0;
	int rc;

	for (;;) {
		u64 wakeups = vgpu_wakeups(guest);

		mutex_lock(&guest->lock);
		rc = vgpu_window_take(window);
		mutex_unlock(&guest->lock);
		if (rc != -EAGAIN)
			return rc;
		if (left <= 0)
			return -ENOSPC;
		rc = vgpu_window_await_event(guest, wakeups, &left);
		if (rc)
			return rc;
	}
}

static struct vgpu_window *vgpu_window_create(struct vgpu_windows *windows)
{
	struct vgpu_window *window = kzalloc(sizeof(*window), GFP_KERNEL_ACCOUNT);
	struct inode *space;

	if (!window)
		return ERR_PTR(-ENOMEM);
	space = vgpu_space_create();
	if (IS_ERR(space)) {
		kfree(window);
		return ERR_CAST(space);
	}
	window->space = space;
	window->windows = windows;
	mutex_init(&window->lock);
	get_device(&windows->node);
	return window;
}

static void vgpu_window_free(struct vgpu_window *window)
{
	put_device(&window->windows->node);
	vgpu_space_free(window->space);
	kfree(window);
}

static int vgpu_node_open(struct inode *inode, struct file *file)
{
	struct vgpu_windows *windows = container_of(inode->i_cdev, struct vgpu_windows, cdev);
	struct vgpu_window *window = vgpu_window_create(windows);
	int rc;

	if (IS_ERR(window))
		return PTR_ERR(window);
	rc = vgpu_window_obtain(window, !(file->f_flags & O_NONBLOCK));
	if (rc) {
		vgpu_window_free(window);
		return rc;
	}
	file->private_data = window;
	file->f_mapping = window->space->i_mapping;
	return nonseekable_open(inode, file);
}

/* Each mapping has held a reference to the file, so no mapping is left. */
static int vgpu_node_release(struct inode *inode, struct file *file)
{
	struct vgpu_window *window = file->private_data;
	struct vgpu_guest *guest = window->windows->guest;

	mutex_lock(&guest->lock);
	vgpu_window_give(window);
	mutex_unlock(&guest->lock);
	vgpu_window_free(window);
	return 0;
}

static int vgpu_node_mmap(struct file *file, struct vm_area_struct *vma)
{
	return vgpu_window_mmap(file->private_data, vma);
}

static long vgpu_node_ioctl(struct file *file, unsigned int command, unsigned long arg)
{
	return vgpu_window_ioctl(file->private_data, command, arg);
}

static __poll_t vgpu_node_poll(struct file *file, poll_table *wait)
{
	struct vgpu_window *window = file->private_data;
	struct vgpu_guest *guest = window->windows->guest;
	int rc;

	poll_wait(file, &window->windows->slots[window->number].wait, wait);
	mutex_lock(&guest->lock);
	rc = vgpu_window_check(window, false);
	mutex_unlock(&guest->lock);
	return rc ? EPOLLHUP : 0;
}

static const struct file_operations vgpu_node_ops = {
	.owner = THIS_MODULE,
	.open = vgpu_node_open,
	.release = vgpu_node_release,
	.poll = vgpu_node_poll,
	.mmap = vgpu_node_mmap,
	.unlocked_ioctl = vgpu_node_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static void vgpu_node_free(struct device *node)
{
	struct vgpu_windows *windows = container_of(node, struct vgpu_windows, node);

	vgpu_guest_put(windows->guest);
	kfree(windows);
}

/**
 * vgpu_node_init - initialize the node
 * @windows: the windows of a device
 *
 * The last put_device() of the node frees it with the windows.
 */
void vgpu_node_init(struct vgpu_windows *windows)
{
	struct vgpu_guest *guest = windows->guest;

	kref_get(&guest->ref);
	device_initialize(&windows->node);
	windows->node.class = &vgpu_node_class;
	windows->node.parent = &guest->pdev->dev;
	windows->node.devt = MKDEV(MAJOR(vgpu_node_numbers), guest->id);
	windows->node.release = vgpu_node_free;
	cdev_init(&windows->cdev, &vgpu_node_ops);
	windows->cdev.owner = THIS_MODULE;
}

/**
 * vgpu_node_add - allow processes to open windows, if the device has some
 * @guest: bound function with its interrupts requested
 *
 * Return: 0 or a negative errno.
 */
int vgpu_node_add(struct vgpu_guest *guest)
{
	struct vgpu_windows *windows = guest->windows;
	int rc;

	if (!windows)
		return 0;
	/*
	 * Read events that came without an interrupt: until they are read, no other
	 * event interrupts.
	 */
	vgpu_windows_interrupt(windows);
	rc = dev_set_name(&windows->node, "%s-compute", guest->name);
	return rc ?: cdev_device_add(&windows->cdev, &windows->node);
}

/**
 * vgpu_node_remove - undo vgpu_node_add()
 * @guest: bound function
 *
 * Files may still be open afterwards, or an open may be in progress.
 */
void vgpu_node_remove(struct vgpu_guest *guest)
{
	if (guest->windows)
		cdev_device_del(&guest->windows->cdev, &guest->windows->node);
}

/**
 * vgpu_nodes_register - prepare for device nodes; called before the first node is
 * added
 *
 * Return: 0 or a negative errno.
 */
int vgpu_nodes_register(void)
{
	int rc;

	rc = alloc_chrdev_region(&vgpu_node_numbers, 0, MINORMASK + 1, "vgpu_guest");
	if (rc)
		return rc;
	rc = class_register(&vgpu_node_class);
	if (rc)
		unregister_chrdev_region(vgpu_node_numbers, MINORMASK + 1);
	return rc;
}

/**
 * vgpu_nodes_unregister - undo vgpu_nodes_register()
 */
void vgpu_nodes_unregister(void)
{
	class_unregister(&vgpu_node_class);
	unregister_chrdev_region(vgpu_node_numbers, MINORMASK + 1);
}
