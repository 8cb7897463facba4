// SPDX-License-Identifier: GPL-2.0
/*
 * Windows from the side of a slice's executor. The executor reads the changes of each window,
 * gives the memory of an open window to a child, and reports when the child is gone. See
 * uapi/vgpu_exec.h.
 */
#include <linux/cred.h>
#include <linux/dcache.h>
#include <linux/file.h>
#include <linux/fs.h>

#include "engine/binding.h"
#include "engine/child.h"
#include "engine/engine.h"
#include "engine/window.h"

static u32 vgpu_window_event(const struct vgpu_window *window)
{
	if (window->told)
		return 0;
	if (window->state == VGPU_WINDOW_OPEN)
		return VGPU_EXEC_WINDOW_OPENED;
	return window->state == VGPU_WINDOW_CLOSING && window->given ? VGPU_EXEC_WINDOW_CLOSED : 0;
}

/**
 * vgpu_windows_event - find a change that the executor does not know yet
 * @device: the executor's slice
 * @event: out: one change, for vgpu_window_told()
 *
 * Return: false if there is none.
 */
bool vgpu_windows_event(struct vgpu_device *device, struct vgpu_exec_event *event)
{
	struct vgpu_windows *windows = &device->windows;
	bool found = false;
	u32 i;

	spin_lock_irq(&windows->lock);
	for (i = 0; i < VGPU_WINDOWS_MAX && !found; i++) {
		*event = (struct vgpu_exec_event){
			.kind = vgpu_window_event(&windows->window[i]),
			.window = i,
		};
		found = event->kind;
	}
	spin_unlock_irq(&windows->lock);
	return found;
}

/**
 * vgpu_window_told - record that the executor knows a change of a window
 * @device: the executor's slice
 * @event: from vgpu_windows_event(); the window may have changed again since
 */
void vgpu_window_told(struct vgpu_device *device, const struct vgpu_exec_event *event)
{
	struct vgpu_windows *windows = &device->windows;
	struct vgpu_window *window = &windows->window[event->window];

	spin_lock_irq(&windows->lock);
	if (vgpu_window_event(window) == event->kind)
		window->told = true;
	spin_unlock_irq(&windows->lock);
}

/**
 * vgpu_windows_have_event - check whether vgpu_windows_event() would return a change
 * @device: a slice
 */
bool vgpu_windows_have_event(struct vgpu_device *device)
{
	struct vgpu_windows *windows = &device->windows;
	bool found = false;
	u32 i;

	spin_lock_irq(&windows->lock);
	for (i = 0; i < VGPU_WINDOWS_MAX && !found; i++)
		found = vgpu_window_event(&windows->window[i]);
	spin_unlock_irq(&windows->lock);
	return found;
}

/**
 * vgpu_windows_tell_again - report all windows again, to a new executor
 * @device: the executor's slice
 */
void vgpu_windows_tell_again(struct vgpu_device *device)
{
	struct vgpu_windows *windows = &device->windows;
	u32 i;

	spin_lock_irq(&windows->lock);
	for (i = 0; i < VGPU_WINDOWS_MAX; i++)
		windows->window[i].told = false;
	spin_unlock_irq(&windows->lock);
}

/**
 * vgpu_window_offer - get a file of an open window's memory, for a child
 * @device: a slice
 * @number: number of the window
 *
 * Return: a new file with one reference; ERR_PTR(-ENXIO) if the window is not open.
 */
struct file *vgpu_window_offer(struct vgpu_device *device, u32 number)
{
	struct vgpu_windows *windows = &device->windows;
	struct vgpu_window *window = &windows->window[number];
	struct file *memory = NULL;
	struct file *given;

	spin_lock_irq(&windows->lock);
	if (window->state == VGPU_WINDOW_OPEN && window->memory)
		memory = get_file(window->memory);
	spin_unlock_irq(&windows->lock);
	if (!memory)
		return ERR_PTR(-ENXIO);
	given = dentry_open(&memory->f_path, O_RDWR | O_LARGEFILE, current_cred());
	fput(memory);
	return given;
}

/**
 * vgpu_window_serve - give an open window its child
 * @device: a slice, engine->lock held
 * @child: the complete child; the window has no reference to it, see vgpu_child_end()
 * @given: from vgpu_window_offer(); the window takes a reference
 *
 * Return: 0; -ENXIO if the window is not open or has a child.
 */
int vgpu_window_serve(struct vgpu_device *device, struct vgpu_child *child, struct file *given)
{
	struct vgpu_windows *windows = &device->windows;
	struct vgpu_window *window = &windows->window[child->window];
	int ret = -ENXIO;

	spin_lock(&windows->lock);
	/* The window may have been closed meanwhile, and opened with other memory. */
	if (window->state == VGPU_WINDOW_OPEN && !window->given && window->memory &&
	    file_inode(window->memory) == file_inode(given)) {
		window->child = child;
		child->opened = ++window->opened;
		window->given = get_file(given);
		window->told = true;
		ret = 0;
	}
	spin_unlock(&windows->lock);
	return ret;
}

/**
 * vgpu_window_may_end - check whether an executor may report that a window's child is gone
 * @device: the executor's slice
 * @number: number of the window
 * @closing: the window must be closing; otherwise it must be open
 * @opened: out: value of the window's @opened
 */
bool vgpu_window_may_end(struct vgpu_device *device, u32 number, bool closing, u64 *opened)
{
	struct vgpu_windows *windows = &device->windows;
	struct vgpu_window *window = &windows->window[number];
	bool may;

	spin_lock_irq(&windows->lock);
	may = closing ? window->state == VGPU_WINDOW_CLOSING && window->given :
			window->state == VGPU_WINDOW_OPEN;
	*opened = window->opened;
	spin_unlock_irq(&windows->lock);
	return may;
}

/*
 * A process may have opened the file again through /proc. The new file is not @given, but has
 * the same dentry. Two references to the dentry are normal: that of @given, and that of the
 * VMM's file, which the device may have released already.
 */
static bool vgpu_memory_is_held(struct file *given)
{
	return file_count(given) > 1 || d_count(given->f_path.dentry) > 2;
}

/**
 * vgpu_window_is_held - check whether a process on the host has a window's memory
 * @device: a slice
 * @number: number of the window
 * @opened: value of the window's @opened
 *
 * The executor reports that the child is gone, and a process that has ended has released its
 * memory. This check finds a process that has not ended, or that an earlier executor left
 * behind.
 */
bool vgpu_window_is_held(struct vgpu_device *device, u32 number, u64 opened)
{
	struct vgpu_windows *windows = &device->windows;
	struct vgpu_window *window = &windows->window[number];
	bool held;

	spin_lock_irq(&windows->lock);
	held = window->opened == opened && window->given && vgpu_memory_is_held(window->given);
	spin_unlock_irq(&windows->lock);
	return held;
}

/**
 * vgpu_window_lose - mark a window as lost: its child has ended or could not be started
 * @device: a slice
 * @number: number of the window
 * @opened: value of the window's @opened
 *
 * Return: 0; -ENXIO if the window is not open, or was opened again.
 */
int vgpu_window_lose(struct vgpu_device *device, u32 number, u64 opened)
{
	struct vgpu_windows *windows = &device->windows;
	struct vgpu_window *window = &windows->window[number];
	struct file *given = NULL;
	bool raise = false;
	int ret = -ENXIO;

	spin_lock_irq(&windows->lock);
	if (window->state == VGPU_WINDOW_OPEN && window->opened == opened) {
		window->state = VGPU_WINDOW_LOST;
		swap(window->given, given);
		raise = vgpu_windows_note(windows, BIT(number));
		ret = 0;
	}
	spin_unlock_irq(&windows->lock);
	if (given)
		fput(given);
	if (raise)
		vgpu_reports.raise(device, VGPU_VECTOR_COMPLETION);
	return ret;
}

/**
 * vgpu_window_free - record that nothing is left of the child of a closing window
 * @device: a slice
 * @number: number of the window
 * @opened: value of the window's @opened
 *
 * Return: 0; -ENXIO if the window is not closing, has no child to wait for, or was opened
 * again.
 */
int vgpu_window_free(struct vgpu_device *device, u32 number, u64 opened)
{
	struct vgpu_windows *windows = &device->windows;
	struct vgpu_window *window = &windows->window[number];
	struct file *given = NULL;

	spin_lock_irq(&windows->lock);
	if (window->state == VGPU_WINDOW_CLOSING && window->opened == opened)
		swap(window->given, given);
	spin_unlock_irq(&windows->lock);
	if (!given)
		return -ENXIO;
	fput(given);
	vgpu_window_finish(device, number, true);
	return 0;
}

/**
 * vgpu_window_ring - have the guest look at a window
 * @device: a slice
 * @number: number of the window
 *
 * Return: 0; -ENXIO if the window is neither open nor lost.
 */
int vgpu_window_ring(struct vgpu_device *device, u32 number)
{
	struct vgpu_windows *windows = &device->windows;
	struct vgpu_window *window = &windows->window[number];
	bool raise = false;
	int ret = -ENXIO;

	spin_lock_irq(&windows->lock);
	if (window->state == VGPU_WINDOW_OPEN || window->state == VGPU_WINDOW_LOST) {
		raise = vgpu_windows_note(windows, BIT(number));
		ret = 0;
	}
	spin_unlock_irq(&windows->lock);
	if (raise)
		vgpu_reports.raise(device, VGPU_VECTOR_COMPLETION);
	return ret;
}

/**
 * vgpu_windows_abandon - handle the end of an executor
 * @device: a slice; engine->lock held
 *
 * The state of the executor's children is unknown from then on.
 *
 * Return: true if the caller must interrupt the guest after it has released its locks.
 */
bool vgpu_windows_abandon(struct vgpu_device *device)
{
	struct vgpu_windows *windows = &device->windows;
	u32 lost = 0;
	bool raise;
	u32 i;

	spin_lock(&windows->lock);
	for (i = 0; i < VGPU_WINDOWS_MAX; i++) {
		struct vgpu_window *window = &windows->window[i];

		if (window->state != VGPU_WINDOW_OPEN || !window->given)
			continue;
		window->state = VGPU_WINDOW_LOST;
		lost |= BIT(i);
	}
	raise = vgpu_windows_note(windows, lost);
	spin_unlock(&windows->lock);
	return raise;
}
