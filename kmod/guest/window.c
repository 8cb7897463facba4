// SPDX-License-Identifier: GPL-2.0
/*
 * vgpumgr guest driver: the calls on a process's window.
 *
 * A guest process and a process of the host share the window's memory. Neither can wake the
 * other through a futex in that memory, so WAIT and RING replace futexes.
 */
#include <linux/hrtimer.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/overflow.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "guest.h"

/* How long a waiter sleeps before it checks whether the device is still there. */
#define VGPU_PRESENCE_NS	NSEC_PER_SEC

static int vgpu_window_insert(pte_t *pte, unsigned long address, void *data)
{
	struct vm_area_struct *vma = data;
	struct vgpu_window *window = vma->vm_private_data;
	struct vgpu_windows *windows = window->windows;
	u64 start = windows->start + (u64)window->number * windows->bytes;
	unsigned long page = vma->vm_pgoff + ((address - vma->vm_start) >> PAGE_SHIFT);

	if (pte_none(ptep_get(pte)))
		set_pte_at(vma->vm_mm, address, pte,
			   pte_mkspecial(pfn_pte(PHYS_PFN(start) + page,
						 pgprot_decrypted(vma->vm_page_prot))));
	return 0;
}

/*
 * Insert all pages at once. vmf_insert_pfn() is not used, because it would take the cache
 * mode from the processor's MTRRs, and firmware declares everything below 4 GiB that is not
 * RAM as uncachable. BAR2 is backed by memory of the host, so a processor that honours the
 * guest's cache mode would then access that memory uncached.
 */
static vm_fault_t vgpu_window_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct vgpu_window *window = vma->vm_private_data;
	vm_fault_t rc = VM_FAULT_SIGBUS;

	mutex_lock(&window->lock);
	if (!window->error)
		rc = apply_to_page_range(vma->vm_mm, vma->vm_start, vma->vm_end - vma->vm_start,
					 vgpu_window_insert, vma) ?
		     VM_FAULT_OOM : VM_FAULT_NOPAGE;
	mutex_unlock(&window->lock);
	return rc;
}

static const struct vm_operations_struct vgpu_window_vm_ops = {
	.fault = vgpu_window_fault,
};

/**
 * vgpu_window_mmap - map a part of the window
 * @window: the file's window
 * @vma: range in the window
 *
 * Pages are inserted when they are used, so no page is inserted after the window has ended.
 *
 * Return: 0, -EINVAL outside the window or for a private mapping, -EPERM for an executable
 * mapping, -EPIPE after a reset, -ENODEV.
 */
int vgpu_window_mmap(struct vgpu_window *window, struct vm_area_struct *vma)
{
	unsigned long end;
	int rc;

	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (vma->vm_flags & VM_EXEC)
		return -EPERM;
	if (check_add_overflow(vma->vm_pgoff, vma_pages(vma), &end) ||
	    end > window->windows->bytes >> PAGE_SHIFT)
		return -EINVAL;
	mutex_lock(&window->lock);
	rc = window->error;
	mutex_unlock(&window->lock);
	if (rc)
		return rc;

	vgpu_vm_flags_mod(vma, VM_IO | VM_PFNMAP | VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP,
			  VM_MAYEXEC);
	vma->vm_private_data = window;
	vma->vm_ops = &vgpu_window_vm_ops;
	return 0;
}

static int vgpu_window_info(struct vgpu_window *window, void __user *to)
{
	struct vgpu_guest_window info = {
		.bytes = window->windows->bytes,
		.number = window->number,
	};
	struct vgpu_guest *guest = window->windows->guest;
	int rc;

	mutex_lock(&guest->lock);
	rc = guest->gone ? -ENODEV : window->error;
	mutex_unlock(&guest->lock);
	if (rc)
		return rc;
	return copy_to_user(to, &info, sizeof(info)) ? -EFAULT : 0;
}

static int vgpu_window_ring(struct vgpu_window *window)
{
	struct vgpu_windows *windows = window->windows;
	struct vgpu_guest *guest = windows->guest;
	int rc;

	mutex_lock(&guest->lock);
	rc = guest->gone ? -ENODEV : window->error;
	if (!rc && window->lost)
		rc = -EPIPE;
	if (!rc)
		writel(window->number, guest->bar + VGPU_BAR0_WINDOW_BELL);
	mutex_unlock(&guest->lock);

	atomic_inc(&window->rings);
	wake_up_all(&windows->slots[window->number].wait);
	return rc;
}

/* Values that WAIT reads before it checks the window, to detect later changes. */
struct vgpu_window_waiter {
	ktime_t end;
	u32 events;
	u32 rings;
};

/*
 * Return: 0 if the caller must look again, -EAGAIN if it must sleep. The word in the window
 * is checked first, because asking the device exits to the host.
 */
static int vgpu_window_look(struct vgpu_window *window,
			    const struct vgpu_guest_window_wait *wait, u32 events, bool ask)
{
	struct vgpu_windows *windows = window->windows;
	const void *base = windows->memory + (u64)window->number * windows->bytes;
	const u32 *word = base + wait->offset;
	int rc;

	if (windows->guest->gone)
		return -ENODEV;
	if (window->error)
		return window->error;
	if (READ_ONCE(*word) != wait->value)
		return 0;
	rc = vgpu_window_check(window, ask);
	if (rc)
		return rc;
	return atomic_read(&windows->slots[window->number].events) == events ? -EAGAIN : 0;
}

/* Return: 0, -EINTR or -ETIMEDOUT; *@silent: nothing has happened for a long time. */
static int vgpu_window_sleep(struct vgpu_window *window,
			     const struct vgpu_window_waiter *waiter, bool *silent)
{
	struct vgpu_slot *slot = &window->windows->slots[window->number];
	ktime_t left = ktime_sub(waiter->end, ktime_get());
	int rc;

	if (left <= 0)
		return -ETIMEDOUT;
	rc = wait_event_interruptible_hrtimeout(slot->wait,
						atomic_read(&slot->events) != waiter->events ||
						atomic_read(&window->rings) != waiter->rings ||
						READ_ONCE(window->error),
						min_t(ktime_t, left, VGPU_PRESENCE_NS));
	*silent = rc == -ETIME && left >= VGPU_PRESENCE_NS;
	return rc == -ERESTARTSYS ? -EINTR : 0;
}

static int vgpu_window_wait(struct vgpu_window *window,
			    const struct vgpu_guest_window_wait *wait)
{
	struct vgpu_windows *windows = window->windows;
	struct vgpu_window_waiter waiter = { .end = KTIME_MAX };
	bool silent = false;
	int rc;

	if (!IS_ALIGNED(wait->offset, sizeof(u32)) || wait->offset >= windows->bytes)
		return -EINVAL;
	if (wait->timeout_ns <= KTIME_MAX)
		waiter.end = ktime_add_safe(ktime_get(), wait->timeout_ns);
	waiter.events = atomic_read(&windows->slots[window->number].events);

	for (;;) {
		waiter.rings = atomic_read(&window->rings);
		mutex_lock(&windows->guest->lock);
		rc = vgpu_window_look(window, wait, waiter.events, silent);
		mutex_unlock(&windows->guest->lock);
		if (rc != -EAGAIN)
			return rc;
		rc = vgpu_window_sleep(window, &waiter, &silent);
		if (rc)
			return rc;
	}
}

/**
 * vgpu_window_ioctl - execute a call of vgpu_guest.h
 * @window: the file's window
 * @command: VGPU_GUEST_WINDOW_*
 * @arg: argument of the call
 *
 * Return: see the header.
 */
long vgpu_window_ioctl(struct vgpu_window *window, unsigned int command, unsigned long arg)
{
	void __user *user = (void __user *)arg;
	struct vgpu_guest_window_wait wait;

	switch (command) {
	case VGPU_GUEST_WINDOW_INFO:
		return vgpu_window_info(window, user);
	case VGPU_GUEST_WINDOW_WAIT:
		if (copy_from_user(&wait, user, sizeof(wait)))
			return -EFAULT;
		return vgpu_window_wait(window, &wait);
	case VGPU_GUEST_WINDOW_RING:
		return vgpu_window_ring(window);
	}
	return -ENOTTY;
}
