// SPDX-License-Identifier: GPL-2.0
/*
 * Windows: BAR2 of the virtual function, what a guest's registers do with it, and what its
 * executor is told. See uapi/vgpu_device.h and uapi/vgpu_exec.h.
 *
 * A window is free, or open, or closing until the executor says that nothing of its child is
 * left, and nothing of it has the memory any more; only then are its pages dropped and the
 * window is free again. If no child ever got it, there is nobody to wait for.
 *
 * Nothing here takes engine->lock: whatever a guest does with its windows, other slices do
 * not notice.
 */
#include <linux/cred.h>
#include <linux/dcache.h>
#include <linux/delay.h>
#include <linux/file.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/shmem_fs.h>

#include "binding.h"
#include "child.h"
#include "engine.h"
#include "window.h"

/* How long who says that a child is gone waits for its files, and how often it looks. */
#define VGPU_RELEASE_MS		2000U
#define VGPU_RELEASE_STEP_MS	5U

/**
 * vgpu_windows_init - no windows yet
 * @device: being created
 */
void vgpu_windows_init(struct vgpu_device *device)
{
	spin_lock_init(&device->windows.lock);
}

/**
 * vgpu_windows_free - forget what children of executors that are gone still have
 * @device: being released
 */
void vgpu_windows_free(struct vgpu_device *device)
{
	u32 i;

	for (i = 0; i < VGPU_WINDOWS_MAX; i++)
		if (device->windows.window[i].given)
			fput(device->windows.window[i].given);
}

/**
 * vgpu_windows_offered - whether a slice has windows
 * @device: its engine does not change while it exists
 */
bool vgpu_windows_offered(const struct vgpu_device *device)
{
	return device->parent->engine.ops->lends;
}

/*
 * A file that nobody can make shorter: who has mapped it would meet SIGBUS. Nor can a child
 * open it again, through /proc: it would keep the memory when @given is gone.
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
 * vgpu_windows_open - memory for the windows of a slice that is being opened
 * @device: state_lock held
 *
 * Pages come when they are first touched, and are charged to who does.
 *
 * Return: 0 or a negative errno, and nothing is left behind.
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

/* The guest has not been told of anything, and now is to be. windows->lock held. */
static bool vgpu_windows_note(struct vgpu_windows *windows, u32 bits)
{
	bool first = !windows->events && bits;

	windows->events |= bits;
	return first;
}

/*
 * Drop the pages of a window that is closing, and that nobody on the host uses; @notify: a
 * guest that waits for that. May sleep.
 */
static void vgpu_window_finish(struct vgpu_device *device, u32 number, bool notify)
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
		vgpu_device_raise(device, VGPU_VECTOR_COMPLETION);
}

/* windows->lock held */
static void vgpu_windows_wake_executor(struct vgpu_device *device)
{
	if (device->binding)
		wake_up_interruptible(&device->binding->wait);
}

/* Whether it was in use; @finish: and can be finished at once. windows->lock held. */
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
 * vgpu_window_close - the guest is done with a window
 * @device: state_lock held
 * @number: of any window; one that is not in use stays as it is
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
	/* Who wrote the register looks at the state next. */
	if (finish)
		vgpu_window_finish(device, number, false);
}

/**
 * vgpu_windows_reset - close all windows
 * @device: state_lock held
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
 * vgpu_windows_close - give the memory of the windows back
 * @device: state_lock held; nobody opens a window any more
 *
 * Children keep theirs until they are gone, and the next VMM gets other memory.
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
 * vgpu_windows_states - VGPU_REG_WINDOW_STATES
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
 * vgpu_windows_take_events - VGPU_REG_WINDOW_EVENTS
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
 * vgpu_window_open - the guest gives a window to a process
 * @device: state_lock held
 * @number: of any window; one that is not free stays as it is
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
 * vgpu_window_bell - the guest rings for a window's child
 * @device: a slice
 * @number: of any window
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
 * vgpu_window_mmap - a VMM maps a window
 * @device: a slice that is open
 * @offset: in BAR2
 * @vma: shared, within one window
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

static u32 vgpu_window_event(const struct vgpu_window *window)
{
	if (window->told)
		return 0;
	if (window->state == VGPU_WINDOW_OPEN)
		return VGPU_EXEC_WINDOW_OPENED;
	return window->state == VGPU_WINDOW_CLOSING && window->given ? VGPU_EXEC_WINDOW_CLOSED : 0;
}

/**
 * vgpu_windows_event - what an executor does not know yet
 * @device: its slice
 * @event: out: one change; it counts as told
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
		if (found)
			windows->window[i].told = true;
	}
	spin_unlock_irq(&windows->lock);
	return found;
}

/**
 * vgpu_windows_have_event - whether vgpu_windows_event() has something to say
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
 * vgpu_windows_tell_again - a new executor knows nothing
 * @device: its slice
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
 * vgpu_window_offer - an open window's memory for a child
 * @device: a slice
 * @number: of the window
 *
 * Return: a file of its own with one reference; ERR_PTR(-ENXIO) if the window is not open.
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
 * vgpu_window_serve - an open window gets its child
 * @device: a slice, engine->lock held
 * @child: complete; the window has no reference to it, see vgpu_child_end()
 * @given: of vgpu_window_offer(); the window takes a reference
 *
 * Return: 0; -ENXIO if it is not open, or has a child.
 */
int vgpu_window_serve(struct vgpu_device *device, struct vgpu_child *child, struct file *given)
{
	struct vgpu_windows *windows = &device->windows;
	struct vgpu_window *window = &windows->window[child->window];
	int ret = -ENXIO;

	spin_lock(&windows->lock);
	/* It may have been closed meanwhile, and opened with other memory. */
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
 * vgpu_window_may_end - whether an executor may say that a window's child is gone
 * @device: its slice
 * @number: of the window
 * @closing: of a window that the guest is done with, or of one that is open
 * @opened: out: which of its openings that is about
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
 * A file that was opened anew through /proc is not @given any more, but has its name, as have
 * @given and the VMM's, which the device may have let go of.
 */
static bool vgpu_memory_is_held(struct file *given)
{
	return file_count(given) > 1 || d_count(given->f_path.dentry) > 2;
}

static bool vgpu_window_is_held(struct vgpu_device *device, u32 number, u64 opened)
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
 * vgpu_window_await_release - until nobody on the host has a window's memory
 * @device: a slice
 * @number: of the window
 * @opened: which of its openings
 *
 * Its executor says that the child is gone, and a process that has ended has let go of all.
 * This is for one that has not, or that an earlier executor has left.
 *
 * Return: 0; -EBUSY if it does not come to that soon; -EINTR.
 */
int vgpu_window_await_release(struct vgpu_device *device, u32 number, u64 opened)
{
	unsigned long until = jiffies + msecs_to_jiffies(VGPU_RELEASE_MS);

	while (vgpu_window_is_held(device, number, opened)) {
		if (time_after(jiffies, until))
			return -EBUSY;
		if (msleep_interruptible(VGPU_RELEASE_STEP_MS))
			return -EINTR;
	}
	return 0;
}

/**
 * vgpu_window_lose - a window's child has ended, or does not come
 * @device: a slice
 * @number: of the window
 * @opened: which of its openings
 *
 * Return: 0; -ENXIO if it is not open, or was opened again.
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
		vgpu_device_raise(device, VGPU_VECTOR_COMPLETION);
	return ret;
}

/**
 * vgpu_window_free - nothing is left of the child of a window that is closing
 * @device: a slice
 * @number: of the window
 * @opened: which of its openings
 *
 * Return: 0; -ENXIO if it is not closing, has no child to wait for, or was opened again.
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
 * vgpu_window_ring - the guest is to look at a window
 * @device: a slice
 * @number: of the window
 *
 * Return: 0; -ENXIO if it is neither open nor lost.
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
		vgpu_device_raise(device, VGPU_VECTOR_COMPLETION);
	return ret;
}

/**
 * vgpu_windows_abandon - the executor is gone, and what became of the children is unknown
 * @device: a slice; engine->lock held
 *
 * Return: true if the guest is to be interrupted, which the caller does without locks.
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
