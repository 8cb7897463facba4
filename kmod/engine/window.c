// SPDX-License-Identifier: GPL-2.0
/*
 * Windows: BAR2 of the virtual function, and its use by the guest's registers and the VMM.
 * See uapi/vgpu_device.h. The executor's side is in engine/window_executor.c.
 *
 * A window is free, open, lost or closing. A closing window waits until the executor has
 * reported that nothing of its child is left, and until no process on the host has the memory
 * any more. Only then are its pages dropped, and the window is free again. A window that no
 * child ever got does not wait.
 *
 * Nothing here takes engine->lock, so other slices do not notice what a guest does with its
 * windows.
 */
#include <linux/file.h>
#include <linux/mm.h>
#include <linux/shmem_fs.h>

#include "engine/binding.h"
#include "engine/child.h"
#include "engine/engine.h"
#include "engine/window.h"

/**
 * vgpu_windows_init - initialize the windows, none in use
 * @device: the slice, being created
 */
void vgpu_windows_init(struct vgpu_device *device)
{
	spin_lock_init(&device->windows.lock);
}

/**
 * vgpu_windows_free - release memory that children of ended executors still have
 * @device: the slice, being released
 */
void vgpu_windows_free(struct vgpu_device *device)
{
	u32 i;

	for (i = 0; i < VGPU_WINDOWS_MAX; i++)
		if (device->windows.window[i].given)
			fput(device->windows.window[i].given);
}

/**
 * vgpu_windows_offered - check whether a slice has windows
 * @device: the slice; its engine does not change while the slice exists
 */
bool vgpu_windows_offered(const struct vgpu_device *device)
{
	return device->parent->engine.ops->lends;
}

/*
 * Create a file that cannot be shortened, because a process that has mapped it would then get
 * SIGBUS. A child cannot open the file again through /proc either, because it could then keep
 * the memory after @given is gone.
 */
static struct file *vgpu_window_memory(void)
{
	struct file *memory = vgpu_shmem_file_setup("vgpu-window", VGPU_WINDOW_BYTES);
	struct inode *inode;

	if (IS_ERR(memory))
		return memory;
	inode = file_inode(memory);
	inode->i_uid = GLOBAL_ROOT_UID;
	inode->i_gid = GLOBAL_ROOT_GID;
	inode->i_mode &= ~0777;
	SHMEM_I(inode)->seals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW;
	return memory;
}

/**
 * vgpu_windows_open - create memory for the windows of a slice that is being opened
 * @device: the slice, state_lock held
 *
 * Pages are allocated when they are first touched, and charged to the process that touches
 * them.
 *
 * Return: 0 or a negative errno, with nothing left behind.
 */
int vgpu_windows_open(struct vgpu_device *device)
{
	struct vgpu_windows *windows = &device->windows;
	struct file *memory;
	u32 i;

	lockdep_assert_held(&device->state_lock);
	if (!vgpu_windows_offered(device))
		return 0;
	for (i = 0; i < VGPU_WINDOWS_MAX; i++) {
		memory = vgpu_window_memory();
		if (IS_ERR(memory)) {
			vgpu_windows_close(device);
			return PTR_ERR(memory);
		}
		spin_lock_irq(&windows->lock);
		windows->window[i].memory = memory;
		spin_unlock_irq(&windows->lock);
	}
	return 0;
}

/**
 * vgpu_windows_note - mark windows that the guest is to look at
 * @windows: the windows, @lock held
 * @bits: bit n: mark window n
 *
 * Return: true if the guest must be interrupted, because no window was marked before.
 */
bool vgpu_windows_note(struct vgpu_windows *windows, u32 bits)
{
	bool first = !windows->events && bits;

	windows->events |= bits;
	return first;
}

/**
 * vgpu_window_finish - drop the pages of a closing window
 * @device: a slice
 * @number: number of the window; nobody on the host uses it
 * @notify: interrupt the guest, which waits until the window is free
 *
 * May sleep.
 */
void vgpu_window_finish(struct vgpu_device *device, u32 number, bool notify)
{
	struct vgpu_windows *windows = &device->windows;
	struct vgpu_window *window = &windows->window[number];
	struct file *memory;
	bool raise;

	spin_lock_irq(&windows->lock);
	memory = window->memory ? get_file(window->memory) : NULL;
	spin_unlock_irq(&windows->lock);
	if (memory) {
		shmem_truncate_range(file_inode(memory), 0, VGPU_WINDOW_BYTES - 1);
		fput(memory);
	}
	spin_lock_irq(&windows->lock);
	window->state = VGPU_WINDOW_FREE;
	raise = notify && vgpu_windows_note(windows, BIT(number));
	spin_unlock_irq(&windows->lock);
	if (raise)
		vgpu_reports.raise(device, VGPU_VECTOR_COMPLETION);
}

/* windows->lock held */
static void vgpu_windows_wake_executor(struct vgpu_device *device)
{
	if (device->binding)
		wake_up_interruptible(&device->binding->wait);
}

/*
 * Returns whether the window was in use. @finish: out: the window can be finished at once.
 * windows->lock held.
 */
static bool vgpu_window_begin_closing(struct vgpu_window *window, bool *finish)
{
	if (window->state != VGPU_WINDOW_OPEN && window->state != VGPU_WINDOW_LOST)
		return false;
	window->state = VGPU_WINDOW_CLOSING;
	window->told = false;
	*finish = !window->given;
	return true;
}

/**
 * vgpu_window_close - close a window for the guest
 * @device: the slice, state_lock held
 * @number: any number; a window that is not in use stays as it is
 */
void vgpu_window_close(struct vgpu_device *device, u32 number)
{
	struct vgpu_windows *windows = &device->windows;
	bool finish = false;

	if (number >= VGPU_WINDOWS_MAX || !vgpu_windows_offered(device))
		return;
	spin_lock_irq(&windows->lock);
	if (vgpu_window_begin_closing(&windows->window[number], &finish) && !finish)
		vgpu_windows_wake_executor(device);
	spin_unlock_irq(&windows->lock);
	/* No interrupt: the guest has just written the register and reads the state next. */
	if (finish)
		vgpu_window_finish(device, number, false);
}

/**
 * vgpu_windows_reset - close all windows
 * @device: the slice, state_lock held
 */
void vgpu_windows_reset(struct vgpu_device *device)
{
	u32 i;

	lockdep_assert_held(&device->state_lock);
	if (!vgpu_windows_offered(device))
		return;
	for (i = 0; i < VGPU_WINDOWS_MAX; i++)
		vgpu_window_close(device, i);
	spin_lock_irq(&device->windows.lock);
	device->windows.events = 0;
	spin_unlock_irq(&device->windows.lock);
}

/**
 * vgpu_windows_close - release the memory of the windows
 * @device: the slice, state_lock held; no window is opened any more
 *
 * Children keep their memory until they are gone, and the next VMM gets new memory.
 */
void vgpu_windows_close(struct vgpu_device *device)
{
	struct vgpu_windows *windows = &device->windows;
	struct file *memory;
	u32 i;

	lockdep_assert_held(&device->state_lock);
	for (i = 0; i < VGPU_WINDOWS_MAX; i++) {
		spin_lock_irq(&windows->lock);
		memory = windows->window[i].memory;
		windows->window[i].memory = NULL;
		spin_unlock_irq(&windows->lock);
		if (memory)
			fput(memory);
	}
}

/**
 * vgpu_windows_states - read VGPU_REG_WINDOW_STATES
 * @device: a slice
 */
u32 vgpu_windows_states(struct vgpu_device *device)
{
	struct vgpu_windows *windows = &device->windows;
	u32 states = 0;
	u32 i;

	spin_lock_irq(&windows->lock);
	for (i = 0; i < VGPU_WINDOWS_MAX; i++)
		states |= windows->window[i].state << 2 * i;
	spin_unlock_irq(&windows->lock);
	return states;
}

/**
 * vgpu_windows_take_events - read and clear VGPU_REG_WINDOW_EVENTS
 * @device: a slice
 */
u32 vgpu_windows_take_events(struct vgpu_device *device)
{
	struct vgpu_windows *windows = &device->windows;
	u32 events;

	spin_lock_irq(&windows->lock);
	events = windows->events;
	windows->events = 0;
	spin_unlock_irq(&windows->lock);
	return events;
}

/**
 * vgpu_window_open - open a window for a guest process
 * @device: the slice, state_lock held
 * @number: any number; a window that is not free stays as it is
 */
void vgpu_window_open(struct vgpu_device *device, u32 number)
{
	struct vgpu_windows *windows = &device->windows;
	struct vgpu_window *window;

	if (number >= VGPU_WINDOWS_MAX || !vgpu_windows_offered(device))
		return;
	window = &windows->window[number];
	spin_lock_irq(&windows->lock);
	if (window->state == VGPU_WINDOW_FREE && window->memory) {
		window->state = VGPU_WINDOW_OPEN;
		window->opened++;
		window->told = false;
		vgpu_windows_wake_executor(device);
	}
	spin_unlock_irq(&windows->lock);
}

/**
 * vgpu_window_bell - signal a window's child on behalf of the guest
 * @device: a slice
 * @number: number of any window
 */
void vgpu_window_bell(struct vgpu_device *device, u32 number)
{
	struct vgpu_windows *windows = &device->windows;

	if (number >= VGPU_WINDOWS_MAX)
		return;
	spin_lock_irq(&windows->lock);
	if (windows->window[number].child)
		vgpu_child_signal(windows->window[number].child);
	spin_unlock_irq(&windows->lock);
}

/**
 * vgpu_window_mmap - map a window for a VMM
 * @device: a slice that is open
 * @offset: offset in BAR2
 * @vma: a shared mapping within one window
 *
 * Return: 0 or a negative errno.
 */
int vgpu_window_mmap(struct vgpu_device *device, u64 offset, struct vm_area_struct *vma)
{
	u64 number = offset / VGPU_WINDOW_BYTES;
	u64 at = offset % VGPU_WINDOW_BYTES;
	struct file *memory = NULL;
	int ret;

	if (!vgpu_windows_offered(device) || number >= VGPU_WINDOWS_MAX ||
	    vma->vm_end - vma->vm_start > VGPU_WINDOW_BYTES - at || !(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	spin_lock_irq(&device->windows.lock);
	if (device->windows.window[number].memory)
		memory = get_file(device->windows.window[number].memory);
	spin_unlock_irq(&device->windows.lock);
	if (!memory)
		return -ENODEV;
	vma->vm_pgoff = at >> PAGE_SHIFT;
	vma_set_file(vma, memory);
	ret = vgpu_call_mmap(memory, vma);
	fput(memory);
	return ret;
}
