// SPDX-License-Identifier: GPL-2.0
/*
 * vgpumgr guest driver: the windows of a device.
 *
 * Unless said otherwise the functions here are called with vgpu_guest.lock held. The
 * device keeps the states of its windows; the driver knows which open file has which
 * of them, and trusts neither a state nor a size that it reads.
 */
#include <linux/bitops.h>
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "guest.h"

#define VGPU_WINDOWS_BAR	2

/**
 * vgpu_windows_states - read the states of all windows
 * @guest: not gone
 * @states: out: VGPU_REG_WINDOW_STATES
 *
 * Return: 0, or -ENODEV when the device is gone.
 */
int vgpu_windows_states(struct vgpu_guest *guest, u32 *states)
{
	*states = readl(guest->bar + VGPU_REG_WINDOW_STATES);
	/* So reads a device that is gone, and one whose sixteen windows are lost. */
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
	/* For single words, so that it does not matter how x86 really maps it. */
	windows->memory = memremap(windows->start, bytes, MEMREMAP_WB);
	if (windows->memory)
		return 0;
	pci_release_region(pdev, VGPU_WINDOWS_BAR);
	return -ENOMEM;
}

/**
 * vgpu_windows_start - use the windows of a device if it has some
 * @guest: bound function that nobody else can use yet; no lock is held
 *
 * Return: 0 also without any, -ENODEV, -EBUSY or -ENOMEM.
 */
int vgpu_windows_start(struct vgpu_guest *guest)
{
	struct vgpu_windows *windows;
	u32 number;
	int rc;

	if (!(readl(guest->bar + VGPU_REG_FEATURES) & VGPU_FEATURE_WINDOWS))
		return 0;
	/* Whoever had windows before did not necessarily close them. */
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
 * @guest: whose windows are ended, and whose device does not interrupt; no lock is held
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
 * vgpu_windows_busy - whether a process has a window
 * @guest: any
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

/* The window is not its file's any more: @error is what calls get from now on. */
static void vgpu_window_end(struct vgpu_window *window, int error)
{
	struct vgpu_slot *slot = &window->windows->slots[window->number];

	mutex_lock(&window->lock);
	WRITE_ONCE(window->error, error);
	mutex_unlock(&window->lock);
	/* A page fault from here on sees the error. */
	unmap_mapping_range(window->space->i_mapping, 0, 0, 1);
	slot->owner = NULL;
	wake_up_all(&slot->wait);
}

/**
 * vgpu_windows_end - take all windows from their files, and their mappings away
 * @guest: any
 * @error: -EPIPE before a reset, -ENODEV when the device goes
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

	/* Free though somebody has it: the device was reset behind our back. */
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
 * @window: of the file
 *
 * Return: 0, -EAGAIN if one is being given back, or what open() says.
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
 * @window: that was taken; nothing of it is mapped
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
 * vgpu_window_check - whether a file still has its window, and that its child
 * @window: that was taken
 * @ask: the device, even if it has told of nothing since the last time
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
 * vgpu_windows_interrupt - find out which windows the device tells of
 * @windows: any; in hard interrupt context or without a lock
 *
 * In a reset the register reads as ones: then everybody looks, and waits for its end.
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
 * vgpu_windows_wake - let everybody who waits for a window ask the device
 * @windows: any; in hard interrupt context or without a lock
 */
void vgpu_windows_wake(struct vgpu_windows *windows)
{
	u32 number;

	for (number = 0; number < windows->count; number++) {
		atomic_inc(&windows->slots[number].events);
		wake_up_all(&windows->slots[number].wait);
	}
}
