// SPDX-License-Identifier: GPL-2.0
/*
 * vgpumgr guest driver: /dev/vgpuN.
 *
 * One open file at a time: a ring with one owner needs no arbitration, and a device error
 * affects one user only. A guest that wants to share the slice between processes uses a
 * service for that. Threads may share the file.
 */
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/overflow.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "guest.h"

/* How long a waiter sleeps before it checks whether the device is still there. */
#define VGPU_PRESENCE_JIFFIES	HZ

static int vgpu_file_open(struct inode *inode, struct file *file)
{
	struct vgpu_guest *guest = container_of(file->private_data,
						struct vgpu_guest, misc);
	int rc;

	/* misc_open() and misc_deregister() exclude each other */
	kref_get(&guest->ref);
	file->private_data = guest;

	mutex_lock(&guest->lock);
	if (guest->gone) {
		rc = -ENODEV;
	} else if (guest->opened || vgpu_windows_busy(guest)) {
		rc = -EBUSY; /* opening resets the device */
	} else {
		rc = vgpu_ring_start(guest);
		if (rc && !guest->gone)
			vgpu_ring_stop(guest);
	}
	if (!rc) {
		guest->opened = true;
		guest->submitted = 0;
		guest->collected = 0;
	}
	mutex_unlock(&guest->lock);
	if (rc) {
		vgpu_guest_put(guest);
		return rc;
	}
	return nonseekable_open(inode, file);
}

static int vgpu_file_release(struct inode *inode, struct file *file)
{
	struct vgpu_guest *guest = file->private_data;

	mutex_lock(&guest->lock);
	if (!guest->gone)
		vgpu_ring_stop(guest);
	/* a second open waits for the lock, so it always gets an empty area */
	vgpu_area_free(&guest->area);
	guest->opened = false;
	mutex_unlock(&guest->lock);
	vgpu_guest_put(guest);
	return 0;
}

static int vgpu_file_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct vgpu_guest *guest = file->private_data;

	return vgpu_area_mmap(&guest->area, vma);
}

static int vgpu_translate(struct vgpu_guest *guest, struct vgpu_desc *descs,
			  struct vgpu_guest_submit *submit)
{
	u32 i;
	int rc;

	for (i = 0; i < submit->count; i++) {
		rc = vgpu_area_translate(&guest->area, &descs[i]);
		if (rc) {
			submit->index = i;
			return rc;
		}
	}
	return 0;
}

static int vgpu_submit(struct vgpu_guest *guest,
		       struct vgpu_guest_submit *submit)
{
	bool raw = submit->flags & VGPU_GUEST_SUBMIT_RAW;
	struct vgpu_desc *descs;
	int rc = 0;

	submit->index = 0;
	submit->outstanding = 0;
	if (submit->flags & ~VGPU_GUEST_SUBMIT_FLAGS)
		return -EINVAL;
	if (raw && !capable(CAP_SYS_RAWIO))
		return -EPERM;
	if (!submit->count || submit->count > guest->entries)
		return -EINVAL;

	descs = vmemdup_user(u64_to_user_ptr(submit->descs),
			     array_size(submit->count, sizeof(*descs)));
	if (IS_ERR(descs))
		return PTR_ERR(descs);

	mutex_lock(&guest->lock);
	if (guest->gone)
		rc = -ENODEV;
	if (!rc && !raw)
		rc = vgpu_translate(guest, descs, submit);
	if (!rc)
		rc = vgpu_ring_submit(guest, descs, submit->count,
				      submit->flags & VGPU_GUEST_SUBMIT_PHASE,
				      &submit->outstanding);
	mutex_unlock(&guest->lock);
	kvfree(descs);
	return rc;
}

/**
 * vgpu_wakeups - count the interrupts, each of which may wake a waiter
 * @guest: bound function, not locked
 */
u64 vgpu_wakeups(struct vgpu_guest *guest)
{
	return atomic64_read(&guest->interrupts) +
	       atomic64_read(&guest->error_interrupts);
}

/*
 * Sleep until something happens, or the device is silent for a while. @guest is not locked.
 * @wakeups and @resets are values from before the caller checked the device. The time slept
 * is subtracted from @left. Returns 0 or -EINTR.
 */
static int vgpu_sleep(struct vgpu_guest *guest, u64 wakeups, u64 resets, long *left)
{
	long slice = min_t(long, *left, VGPU_PRESENCE_JIFFIES), rc;

	rc = wait_event_interruptible_timeout(guest->wait,
					      vgpu_wakeups(guest) != wakeups ||
					      READ_ONCE(guest->gone) ||
					      READ_ONCE(guest->error) ||
					      READ_ONCE(guest->resets) != resets,
					      slice);
	if (rc < 0)
		return -EINTR;
	if (*left != MAX_SCHEDULE_TIMEOUT)
		*left -= slice - rc;
	return 0;
}

/*
 * Wait for @minimum completions; the lock is held on entry and return. *@ready is the
 * number that can be collected, whatever is returned.
 */
static int vgpu_wait_ready(struct vgpu_guest *guest, u32 minimum, long left,
			   u32 *ready)
{
	u64 resets = guest->resets;
	int rc;

	for (;;) {
		u64 errors = atomic64_read(&guest->error_interrupts);
		u64 wakeups = vgpu_wakeups(guest);

		*ready = 0;
		if (guest->gone)
			return -ENODEV;
		if (guest->resets != resets)
			return -ECANCELED;
		rc = vgpu_ring_ready(guest, ready);
		if (rc || *ready >= minimum)
			return rc;
		if (guest->error)
			return -EIO;
		if (minimum > guest->tail - guest->read)
			return -EINVAL;
		if (left <= 0)
			return -ETIMEDOUT;

		mutex_unlock(&guest->lock);
		rc = vgpu_sleep(guest, wakeups, resets, &left);
		mutex_lock(&guest->lock);
		if (rc) {
			*ready = 0;
			return rc;
		}
		/* silence or an error interrupt: ask the device itself */
		if (!guest->gone && guest->resets == resets &&
		    (vgpu_wakeups(guest) == wakeups ||
		     atomic64_read(&guest->error_interrupts) != errors))
			vgpu_ring_check(guest);
	}
}

static int vgpu_wait(struct vgpu_guest *guest, struct vgpu_guest_wait *wait)
{
	struct vgpu_completion *found = NULL;
	long left = MAX_SCHEDULE_TIMEOUT;
	u32 capacity, ready;
	int rc, failed;

	wait->count = 0;
	wait->error = 0;
	wait->error_index = 0;
	if (wait->minimum > wait->capacity || wait->reserved)
		return -EINVAL;
	if (wait->timeout_ms != VGPU_GUEST_WAIT_FOREVER)
		left = msecs_to_jiffies(wait->timeout_ms);
	capacity = min(wait->capacity, guest->entries);
	if (capacity) {
		found = kvmalloc_array(capacity, sizeof(*found), GFP_KERNEL);
		if (!found)
			return -ENOMEM;
	}

	mutex_lock(&guest->lock);
	rc = vgpu_wait_ready(guest, wait->minimum, left, &ready);
	ready = min(ready, capacity);
	failed = ready ? vgpu_ring_collect(guest, found, ready) : 0;
	wait->error = guest->error;
	wait->error_index = guest->error_index;
	mutex_unlock(&guest->lock);

	if (failed)
		rc = failed;
	else if (ready && copy_to_user(u64_to_user_ptr(wait->completions), found,
				       array_size(ready, sizeof(*found))))
		rc = -EFAULT;
	else
		wait->count = ready;
	kvfree(found);
	return rc;
}

static int vgpu_reset(struct vgpu_guest *guest)
{
	int rc;

	mutex_lock(&guest->lock);
	rc = guest->gone ? -ENODEV : vgpu_ring_start(guest);
	mutex_unlock(&guest->lock);
	return rc;
}

static int vgpu_info(struct vgpu_guest *guest, void __user *to)
{
	struct vgpu_guest_info info;
	int rc;

	mutex_lock(&guest->lock);
	rc = guest->gone ? -ENODEV : vgpu_ring_info(guest, &info);
	mutex_unlock(&guest->lock);
	if (rc)
		return rc;
	return copy_to_user(to, &info, sizeof(info)) ? -EFAULT : 0;
}

static long vgpu_file_ioctl(struct file *file, unsigned int command,
			    unsigned long arg)
{
	struct vgpu_guest *guest = file->private_data;
	void __user *user = (void __user *)arg;
	struct vgpu_guest_submit submit;
	struct vgpu_guest_wait wait;
	int rc;

	switch (command) {
	case VGPU_GUEST_SUBMIT:
		if (copy_from_user(&submit, user, sizeof(submit)))
			return -EFAULT;
		rc = vgpu_submit(guest, &submit);
		if (copy_to_user(user, &submit, sizeof(submit)))
			return -EFAULT;
		return rc;
	case VGPU_GUEST_WAIT:
		if (copy_from_user(&wait, user, sizeof(wait)))
			return -EFAULT;
		rc = vgpu_wait(guest, &wait);
		if (copy_to_user(user, &wait, sizeof(wait)))
			return -EFAULT;
		return rc;
	case VGPU_GUEST_INFO:
		return vgpu_info(guest, user);
	case VGPU_GUEST_RESET:
		return vgpu_reset(guest);
	}
	return -ENOTTY;
}

const struct file_operations vgpu_file_ops = {
	.owner = THIS_MODULE,
	.open = vgpu_file_open,
	.release = vgpu_file_release,
	.mmap = vgpu_file_mmap,
	.unlocked_ioctl = vgpu_file_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};
