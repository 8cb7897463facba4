// SPDX-License-Identifier: GPL-2.0
/*
 * vgpumgr guest driver: the windows of a device.
 *
 * Unless stated otherwise, vgpu_guest.lock is held when a function here is called. The
 * device keeps the states of its windows; the driver records which open file has which
 * window, and does not trust the states and sizes that it reads.
 */
#include <linux/bitops.h>
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "guest.h"

#define VGPU_WINDOWS_BAR	2

/**
 * vgpu_windows_states - read the states of all windows
 * @guest: bound function, not gone
 * @states: out: VGPU_REG_WINDOW_STATES
 *
 * Return: 0, or -ENODEV when the device is gone.
 */
int vgpu_windows_states(struct vgpu_guest *guest, u32 *states)
{
	*states = readl(guest->bar + VGPU_REG_WINDOW_STATES);
	/* All ones mean that the device is gone, or that sixteen windows are lost. */
	if (*states == U32_MAX && readl(guest->bar + VGPU_REG_ID) != VGPU_ID)
		return vgpu_ring_lost(guest);
	return 0;
}

static int vgpu_windows_map(struct vgpu_windows *windows)
{
	struct pci_dev *pdev = windows->guest->pdev;
	void __iomem *bar = windows->guest->bar;
	u64 bytes;
	int rc;

	windows->count = readl(bar + VGPU_REG_WINDOWS);
	windows->bytes = readl(bar + VGPU_REG_WINDOW_BYTES);
	bytes = (u64)windows->count * windows->bytes;
	if (!windows->count || windows->count > VGPU_WINDOWS_MAX || !windows->bytes ||
	    !PAGE_ALIGNED(windows->bytes) ||
	    bytes > pci_resource_len(pdev, VGPU_WINDOWS_BAR)) {
		pci_err(pdev, "%u windows of %#x bytes are not in BAR2\n",
			windows->count, windows->bytes);
		return -ENODEV;
	}

	rc = pci_request_region(pdev, VGPU_WINDOWS_BAR, KBUILD_MODNAME);
	if (rc)
		return rc;
	windows->start = pci_resource_start(pdev, VGPU_WINDOWS_BAR);
	/*
	 * This mapping is only used for single 32-bit words, so it does not matter
	 * which cache mode x86 really uses.
	 */
	windows->memory = memremap(windows->start, bytes, MEMREMAP_WB);
	if (windows->memory)
		return 0;
	pci_release_region(pdev, VGPU_WINDOWS_BAR);
	return -ENOMEM;
}

/**
 * vgpu_windows_start - set up the windows of a device, if it has some
 * @guest: bound function that nobody else can use yet; no lock is held
 *
 * Return: 0, also without windows; -ENODEV, -EBUSY or -ENOMEM.
 */
int vgpu_windows_start(struct vgpu_guest *guest)
{
	struct vgpu_windows *windows;
	u32 number;
	int rc;

	if (!(readl(guest->bar + VGPU_REG_FEATURES) & VGPU_FEATURE_WINDOWS))
		return 0;
	/* The previous user of the windows may not have closed them. */
	rc = vgpu_ring_stop(guest);
	if (rc)
		return rc;
	windows = kzalloc(sizeof(*windows), GFP_KERNEL);
	if (!windows)
		return -ENOMEM;
	windows->guest = guest;
	for (number = 0; number < VGPU_WINDOWS_MAX; number++)
		init_waitqueue_head(&windows->slots[number].wait);
	rc = vgpu_windows_map(windows);
	if (rc) {
		kfree(windows);
		return rc;
	}
	vgpu_node_init(windows);
	guest->windows = windows;
	return 0;
}

/**
 * vgpu_windows_stop - undo vgpu_windows_start()
 * @guest: bound function; its windows have ended, and its device does not interrupt
 *
 * Context: Process context, no lock held.
 */
void vgpu_windows_stop(struct vgpu_guest *guest)
{
	struct vgpu_windows *windows = guest->windows;

	if (!windows)
		return;
	mutex_lock(&guest->lock);
	guest->windows = NULL;
	mutex_unlock(&guest->lock);
	memunmap(windows->memory);
	pci_release_region(guest->pdev, VGPU_WINDOWS_BAR);
	put_device(&windows->node);
}

/**
 * vgpu_windows_busy - check whether a process has a window
 * @guest: the function, with or without windows
 */
bool vgpu_windows_busy(struct vgpu_guest *guest)
{
	u32 number;

	if (!guest->windows)
		return false;
	for (number = 0; number < guest->windows->count; number++) {
		if (guest->windows->slots[number].owner)
			return true;
	}
	return false;
}

/* Take the window from its file. Calls on the file return @error from now on. */
static void vgpu_window_end(struct vgpu_window *window, int error)
{
	struct vgpu_slot *slot = &window->windows->slots[window->number];

	mutex_lock(&window->lock);
	WRITE_ONCE(window->error, error);
	mutex_unlock(&window->lock);
	/* A page fault after this sees the error. */
	unmap_mapping_range(window->space->i_mapping, 0, 0, 1);
	slot->owner = NULL;
	wake_up_all(&slot->wait);
}

/**
 * vgpu_windows_end - take all windows from their files and remove their mappings
 * @guest: the function, with or without windows
 * @error: -EPIPE before a reset, -ENODEV when the device is removed
 */
void vgpu_windows_end(struct vgpu_guest *guest, int error)
{
	struct vgpu_windows *windows = guest->windows;
	u32 number;

	if (!windows)
		return;
	for (number = 0; number < windows->count; number++) {
		if (windows->slots[number].owner)
			vgpu_window_end(windows->slots[number].owner, error);
	}
}

static int vgpu_window_claim(struct vgpu_window *window, u32 number)
{
	struct vgpu_windows *windows = window->windows;
	struct vgpu_slot *slot = &windows->slots[number];
	enum vgpu_window_state state;
	u32 states;
	int rc;

	/*
	 * The device reports the window as free although a file has it, so another user
	 * has reset the device.
	 */
	if (slot->owner)
		vgpu_window_end(slot->owner, -EPIPE);
	window->seen = atomic_read(&slot->events);
	writel(number, windows->guest->bar + VGPU_REG_WINDOW_OPEN);
	rc = vgpu_windows_states(windows->guest, &states);
	if (rc)
		return rc;
	state = vgpu_window_state(states, number);
	if (state != VGPU_WINDOW_OPEN && state != VGPU_WINDOW_LOST)
		return -EIO;
	window->lost = state == VGPU_WINDOW_LOST;
	window->number = number;
	slot->owner = window;
	return 0;
}

/**
 * vgpu_window_take - open a window of the device for a file that has none
 * @window: the file's window, not taken
 *
 * Return: 0; -EAGAIN if a window is being released; or an error of open().
 */
int vgpu_window_take(struct vgpu_window *window)
{
	struct vgpu_windows *windows = window->windows;
	struct vgpu_guest *guest = windows->guest;
	bool closing = false;
	u32 states, number;
	int rc;

	if (guest->gone)
		return -ENODEV;
	if (guest->opened)
		return -EBUSY;
	rc = vgpu_windows_states(guest, &states);
	if (rc)
		return rc;
	for (number = 0; number < windows->count; number++) {
		switch (vgpu_window_state(states, number)) {
		case VGPU_WINDOW_FREE:
			return vgpu_window_claim(window, number);
		case VGPU_WINDOW_CLOSING:
			closing = true;
			break;
		default:
			break;
		}
	}
	return closing ? -EAGAIN : -ENOSPC;
}

/**
 * vgpu_window_give - close the window of a file in the device
 * @window: the window, taken; without mappings
 */
void vgpu_window_give(struct vgpu_window *window)
{
	struct vgpu_windows *windows = window->windows;

	if (window->error)
		return;
	windows->slots[window->number].owner = NULL;
	writel(window->number, windows->guest->bar + VGPU_REG_WINDOW_CLOSE);
}

/**
 * vgpu_window_check - check that a file still has its window, and that the window has
 * its child
 * @window: the window, taken
 * @ask: read the state from the device even without a new event
 *
 * Return: 0, -EPIPE or -ENODEV.
 */
int vgpu_window_check(struct vgpu_window *window, bool ask)
{
	struct vgpu_slot *slot = &window->windows->slots[window->number];
	u32 states, events = atomic_read(&slot->events);
	enum vgpu_window_state state;
	int rc;

	if (window->windows->guest->gone)
		return -ENODEV;
	if (window->error)
		return window->error;
	if (ask || events != window->seen) {
		rc = vgpu_windows_states(window->windows->guest, &states);
		if (rc)
			return rc;
		window->seen = events;
		state = vgpu_window_state(states, window->number);
		if (state == VGPU_WINDOW_LOST)
			window->lost = true;
		else if (state != VGPU_WINDOW_OPEN)
			vgpu_window_end(window, -EPIPE);
	}
	return window->error ?: window->lost ? -EPIPE : 0;
}

/**
 * vgpu_windows_interrupt - wake the waiters of windows that the device reports
 * @windows: the windows of a device
 *
 * During a reset the register reads as ones. Then all waiters wake up, check the
 * device, and wait for the end of the reset.
 *
 * Context: Hard interrupt, or process context without a lock.
 */
void vgpu_windows_interrupt(struct vgpu_windows *windows)
{
	unsigned long events = readl(windows->guest->bar + VGPU_REG_WINDOW_EVENTS);
	u32 number;

	for_each_set_bit(number, &events, windows->count) {
		atomic_inc(&windows->slots[number].events);
		wake_up_all(&windows->slots[number].wait);
	}
}

/**
 * vgpu_windows_wake - wake all waiters of all windows, so that they check the device
 * @windows: the windows of a device
 *
 * Context: Hard interrupt, or process context without a lock.
 */
void vgpu_windows_wake(struct vgpu_windows *windows)
{
	u32 number;

	for (number = 0; number < windows->count; number++) {
		atomic_inc(&windows->slots[number].events);
		wake_up_all(&windows->slots[number].wait);
	}
}
