// SPDX-License-Identifier: GPL-2.0
/*
 * The kernel's side of an executor's children. Each child has a window, a page in which it
 * publishes whether it works, and the files to access them. Its threads send requests for
 * leases and signals for their guest with write(), and wait with read().
 *
 * A child runs code of its tenant. It gets no other files, and what it writes is not trusted
 * where that matters to other tenants.
 */
#include <linux/anon_inodes.h>
#include <linux/gfp.h>
#include <linux/hrtimer.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "engine/child.h"
#include "engine/engine.h"
#include "engine/window.h"

/*
 * All children of a slice together may send one request per this time, because each request
 * takes the lock that all slices of the engine need. The broker allows its tenants a tenth of
 * that rate.
 */
#define VGPU_REQUEST_NS		(20 * NSEC_PER_USEC)
#define VGPU_REQUEST_BURST	1000
/*
 * How long a thread sleeps before it tries again to send a request. This is less than the time
 * in which a full burst is earned, so the full rate can be reached.
 */
#define VGPU_REQUEST_WAIT_NS	NSEC_PER_MSEC

/**
 * vgpu_child_create - create a child without a binding
 * @device: the child's slice
 * @window: number of the child's window
 *
 * Return: the child with one reference, or NULL without memory.
 */
struct vgpu_child *vgpu_child_create(struct vgpu_device *device, u32 window)
{
	struct vgpu_child *child;

	child = kzalloc(sizeof(*child), GFP_KERNEL_ACCOUNT);
	if (!child)
		return NULL;
	child->page = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (!child->page) {
		kfree(child);
		return NULL;
	}
	kref_init(&child->refs);
	INIT_LIST_HEAD(&child->node);
	init_waitqueue_head(&child->wait);
	get_device(&device->vdev.device);
	child->device = device;
	child->window = window;
	return child;
}

static void vgpu_child_free(struct kref *refs)
{
	struct vgpu_child *child = container_of(refs, struct vgpu_child, refs);

	put_page(child->page);
	put_device(&child->device->vdev.device);
	kfree(child);
}

/**
 * vgpu_child_put - release a reference
 * @child: the child
 */
void vgpu_child_put(struct vgpu_child *child)
{
	kref_put(&child->refs, vgpu_child_free);
}

/**
 * vgpu_child_start - add a child to its slice and the arbiter
 * @child: the child, in the window, engine->lock held; its slice keeps a reference until the
 *	child ends
 */
void vgpu_child_start(struct vgpu_child *child)
{
	struct vgpu_device *device = child->device;

	lockdep_assert_held(&device->parent->engine.lock);
	kref_get(&child->refs);
	list_add_tail(&child->node, &device->children);
	if (device->scheduled)
		vgpu_lending_attach(child, false, ktime_get_ns());
}

/**
 * vgpu_child_end - remove a child
 * @child: the child, in its slice's list, engine->lock held; the list's reference to it is
 *	released
 */
void vgpu_child_end(struct vgpu_child *child)
{
	struct vgpu_device *device = child->device;
	struct vgpu_windows *windows = &device->windows;

	lockdep_assert_held(&device->parent->engine.lock);
	spin_lock(&windows->lock);
	if (windows->window[child->window].child == child)
		windows->window[child->window].child = NULL;
	spin_unlock(&windows->lock);
	vgpu_lending_detach(child, ktime_get_ns());
	list_del_init(&child->node);
	WRITE_ONCE(child->ended, true);
	wake_up_interruptible(&child->wait);
	vgpu_child_put(child);
}

/**
 * vgpu_child_find - find the child of a window
 * @device: a slice, engine->lock held
 * @window: any number
 *
 * Return: the child or NULL.
 */
struct vgpu_child *vgpu_child_find(struct vgpu_device *device, u32 window)
{
	struct vgpu_child *child;

	lockdep_assert_held(&device->parent->engine.lock);
	list_for_each_entry(child, &device->children, node)
		if (child->window == window)
			return child;
	return NULL;
}

static bool vgpu_child_has_news(const struct vgpu_child *child)
{
	return atomic64_read(&child->signals) || READ_ONCE(child->ended);
}

/*
 * The child is woken under engine->lock, which other slices need, so waking must be fast.
 * Therefore only one thread waits at a time, and poll() does not wait. Any number of other
 * epolls could watch an epoll that watches the file, and all of them would be woken under that
 * lock.
 */
static int vgpu_child_await_news(struct vgpu_child *child)
{
	int ret;

	if (atomic_xchg(&child->reading, 1))
		return -EBUSY;
	ret = wait_event_interruptible(child->wait, vgpu_child_has_news(child));
	atomic_set(&child->reading, 0);
	return ret;
}

static ssize_t vgpu_child_read(struct file *file, char __user *to, size_t count,
			       loff_t *position)
{
	struct vgpu_child *child = file->private_data;
	u64 signals;
	int ret;

	if (count != sizeof(signals))
		return -EINVAL;
	if (file->f_flags & O_NONBLOCK && !vgpu_child_has_news(child))
		return -EAGAIN;
	ret = vgpu_child_await_news(child);
	if (ret)
		return ret;
	if (READ_ONCE(child->ended))
		return 0;
	signals = atomic64_xchg(&child->signals, 0);
	return copy_to_user(to, &signals, sizeof(signals)) ? -EFAULT : sizeof(signals);
}

/*
 * Take one request from the slice's allowance, but leave @left_ns of the saved time to other
 * threads. This takes no lock, so threads that send too many requests delay nobody else. The
 * time up to which a slice has paid is never further in the past than one burst.
 */
static bool vgpu_request_take(struct vgpu_device *device, s64 left_ns)
{
	s64 now_ns = ktime_get_ns();
	s64 oldest_ns = now_ns - VGPU_REQUEST_BURST * (s64)VGPU_REQUEST_NS;
	s64 paid_ns = atomic64_read(&device->requests_paid_ns);
	s64 next_ns;

	do {
		next_ns = max(paid_ns, oldest_ns) + (s64)VGPU_REQUEST_NS;
		if (next_ns > now_ns - left_ns)
			return false;
	} while (!atomic64_try_cmpxchg(&device->requests_paid_ns, &paid_ns, next_ns));
	return true;
}

/*
 * Wait until the slice may send another request. Any signal ends the wait, not only a fatal
 * one, because the gate may have to freeze the child at once. Non-blocking threads could
 * otherwise take all requests, so they leave what is earned during one wait to blocking
 * threads.
 */
static int vgpu_child_await_request(struct vgpu_child *child, const struct file *file)
{
	bool waits = !(file->f_flags & O_NONBLOCK);
	ktime_t until;

	while (!vgpu_request_take(child->device, waits ? 0 : VGPU_REQUEST_WAIT_NS)) {
		if (!waits)
			return -EAGAIN;
		if (signal_pending(current))
			return -ERESTARTSYS;
		if (READ_ONCE(child->ended))
			return -ENODEV;
		until = ktime_get_ns() + VGPU_REQUEST_WAIT_NS;
		set_current_state(TASK_INTERRUPTIBLE);
		schedule_hrtimeout_range(&until, 0, HRTIMER_MODE_ABS);
	}
	return 0;
}

/*
 * Returns 0 or a negative errno. A child whose request is invalid gets -EINVAL and ends itself.
 */
static int vgpu_child_request(struct vgpu_child *child, const struct file *file,
			      const struct vgpu_stream_request *request)
{
	struct vgpu_engine *engine = &child->device->parent->engine;
	bool sensible;
	int ret;

	ret = vgpu_child_await_request(child, file);
	if (ret)
		return ret;
	spin_lock_irq(&engine->lock);
	sensible = child->ended || vgpu_lending_request(child, request, ktime_get_ns());
	spin_unlock_irq(&engine->lock);
	return sensible ? 0 : -EINVAL;
}

static int vgpu_child_ring(struct vgpu_child *child, const struct vgpu_stream_request *request)
{
	const struct vgpu_stream_request plain = { .op = VGPU_STREAM_RING };

	if (memcmp(request, &plain, sizeof(plain)))
		return -EINVAL;
	/* A guest that has closed the window needs no signal. */
	vgpu_window_ring(child->device, child->window);
	return 0;
}

static ssize_t vgpu_child_write(struct file *file, const char __user *from, size_t count,
				loff_t *position)
{
	struct vgpu_child *child = file->private_data;
	struct vgpu_stream_request request;
	int ret;

	if (count != sizeof(request))
		return -EINVAL;
	if (copy_from_user(&request, from, sizeof(request)))
		return -EFAULT;
	if (READ_ONCE(child->ended))
		return -ENODEV;
	ret = request.op == VGPU_STREAM_RING ? vgpu_child_ring(child, &request) :
					       vgpu_child_request(child, file, &request);
	return ret ?: count;
}

/* Map one page, whole and shared. The page lives until its last mapping is gone. */
static int vgpu_page_mmap(struct page *page, struct vm_area_struct *vma)
{
	if (vma->vm_pgoff || vma->vm_end - vma->vm_start != PAGE_SIZE ||
	    !(vma->vm_flags & VM_MAYSHARE))
		return -EINVAL;
	return vm_insert_page(vma, vma->vm_start, page);
}

static int vgpu_child_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct vgpu_child *child = file->private_data;

	return vgpu_page_mmap(child->page, vma);
}

static int vgpu_child_release(struct inode *inode, struct file *file)
{
	vgpu_child_put(file->private_data);
	return 0;
}

static const struct file_operations vgpu_child_ops = {
	.owner = THIS_MODULE,
	.read = vgpu_child_read,
	.write = vgpu_child_write,
	.mmap = vgpu_child_mmap,
	.release = vgpu_child_release,
};

/**
 * vgpu_child_file - create the file for a child's requests and waits
 * @child: the child; the file gets a reference to it
 *
 * Return: the file or an ERR_PTR.
 */
struct file *vgpu_child_file(struct vgpu_child *child)
{
	struct file *file;

	file = anon_inode_getfile("vgpu-stream", &vgpu_child_ops, child, O_RDWR);
	if (!IS_ERR(file))
		kref_get(&child->refs);
	return file;
}

static int vgpu_lease_mmap(struct file *file, struct vm_area_struct *vma)
{
	return vgpu_page_mmap(file->private_data, vma);
}

static int vgpu_lease_release(struct inode *inode, struct file *file)
{
	put_page(file->private_data);
	return 0;
}

static const struct file_operations vgpu_lease_ops = {
	.owner = THIS_MODULE,
	.mmap = vgpu_lease_mmap,
	.release = vgpu_lease_release,
};

/**
 * vgpu_lease_file - create a file that maps a lease page
 * @page: the page; the file gets a reference to it
 *
 * The file is open for reading only, so it can never be mapped for writing.
 *
 * Return: the file or an ERR_PTR.
 */
struct file *vgpu_lease_file(struct page *page)
{
	struct file *file;

	file = anon_inode_getfile("vgpu-lease", &vgpu_lease_ops, page, O_RDONLY);
	if (!IS_ERR(file))
		get_page(page);
	return file;
}
