// SPDX-License-Identifier: GPL-2.0
/*
 * The file of a bound executor: events, windows, and the answers of its gate. See
 * uapi/vgpu_exec.h.
 */
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/ktime.h>
#include <linux/uaccess.h>

#include "engine/binding.h"
#include "engine/child.h"
#include "engine/engine.h"
#include "engine/window.h"

static bool vgpu_gate_event(struct vgpu_binding *binding, struct vgpu_exec_event *event)
{
	struct vgpu_engine *engine = &binding->device->parent->engine;
	bool found;

	/*
	 * Check without the lock, because the executor may poll often and other slices
	 * need the lock.
	 */
	if (READ_ONCE(binding->gate_told) || !READ_ONCE(binding->gate_sequence))
		return false;
	spin_lock_irq(&engine->lock);
	found = !binding->gate_told;
	*event = (struct vgpu_exec_event){
		.kind = binding->gate,
		.sequence = binding->gate_sequence,
	};
	spin_unlock_irq(&engine->lock);
	return found;
}

/* The executor has read the event, which may be outdated by now. */
static void vgpu_binding_told(struct vgpu_binding *binding, const struct vgpu_exec_event *event)
{
	struct vgpu_engine *engine = &binding->device->parent->engine;

	if (!event->sequence) {
		vgpu_window_told(binding->device, event);
		return;
	}
	spin_lock_irq(&engine->lock);
	if (binding->gate_sequence == event->sequence)
		WRITE_ONCE(binding->gate_told, true);
	spin_unlock_irq(&engine->lock);
}

static bool vgpu_binding_has_event(struct vgpu_binding *binding)
{
	return READ_ONCE(binding->ended) ||
	       (READ_ONCE(binding->gate_sequence) && !READ_ONCE(binding->gate_told)) ||
	       vgpu_windows_have_event(binding->device);
}

static ssize_t vgpu_binding_read_event(struct vgpu_binding *binding, struct file *file,
				       char __user *to)
{
	struct vgpu_exec_event event;

	for (;;) {
		if (READ_ONCE(binding->ended))
			return -ENODEV;
		/* Report the gate's request first, because other slices wait for it. */
		if (vgpu_gate_event(binding, &event) ||
		    vgpu_windows_event(binding->device, &event))
			break;
		if (file->f_flags & O_NONBLOCK)
			return -EAGAIN;
		if (wait_event_interruptible(binding->wait, vgpu_binding_has_event(binding)))
			return -ERESTARTSYS;
	}
	/* An event whose copy failed is reported again. */
	if (copy_to_user(to, &event, sizeof(event)))
		return -EFAULT;
	vgpu_binding_told(binding, &event);
	return sizeof(event);
}

/**
 * vgpu_binding_read - read one event
 * @binding: the file's binding
 * @file: the file, used for its flags
 * @to: where to copy the event
 * @count: size of @to, at least one event
 *
 * Return: the size of an event or a negative errno; -EBUSY while another thread reads.
 */
ssize_t vgpu_binding_read(struct vgpu_binding *binding, struct file *file, char __user *to,
			  size_t count)
{
	ssize_t ret;

	if (count < sizeof(struct vgpu_exec_event))
		return -EINVAL;
	if (atomic_xchg(&binding->reading, 1))
		return -EBUSY;
	ret = vgpu_binding_read_event(binding, file, to);
	atomic_set(&binding->reading, 0);
	return ret;
}

/**
 * vgpu_binding_poll - check whether there is an event
 * @binding: the file's binding
 * @file: the file
 * @wait: poll table of the caller of poll()
 */
__poll_t vgpu_binding_poll(struct vgpu_binding *binding, struct file *file, poll_table *wait)
{
	/*
	 * Several threads that get here at once may all pass this check. Each of them
	 * adds one wait, and so few waits are harmless.
	 */
	if (vgpu_poll_waits(wait) && waitqueue_active(&binding->wait))
		return EPOLLERR;
	poll_wait(file, &binding->wait, wait);
	if (READ_ONCE(binding->ended))
		return EPOLLHUP;
	return vgpu_binding_has_event(binding) ? EPOLLIN | EPOLLRDNORM : 0;
}

/* The files of one window, on their way to user space. */
struct vgpu_window_files {
	struct file *file[3];
	int fd[3];
};

/* Copy the descriptor numbers to user space. They do not refer to files yet. */
static int vgpu_window_files_announce(struct vgpu_window_files *files,
				      struct vgpu_exec_window *answer, void __user *user)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(files->fd); i++) {
		files->fd[i] = get_unused_fd_flags(O_CLOEXEC);
		if (files->fd[i] < 0)
			return files->fd[i];
	}
	answer->memory = files->fd[0];
	answer->lease = files->fd[1];
	answer->stream = files->fd[2];
	return copy_to_user(user, answer, sizeof(*answer)) ? -EFAULT : 0;
}

static void vgpu_window_files_install(const struct vgpu_window_files *files)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(files->fd); i++)
		fd_install(files->fd[i], files->file[i]);
}

/* Release files that were not handed to user space. */
static void vgpu_window_files_drop(const struct vgpu_window_files *files)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(files->fd); i++) {
		if (files->fd[i] >= 0)
			put_unused_fd(files->fd[i]);
		fput(files->file[i]);
	}
}

/* Open either all of a child's files or none. */
static int vgpu_window_files_open(struct vgpu_binding *binding, struct vgpu_child *child,
				  struct vgpu_window_files *files)
{
	int ret;

	files->file[0] = vgpu_window_offer(binding->device, child->window);
	if (IS_ERR(files->file[0]))
		return PTR_ERR(files->file[0]);
	files->file[1] = vgpu_lease_file(binding->page);
	ret = PTR_ERR_OR_ZERO(files->file[1]);
	if (ret)
		goto put_memory;
	files->file[2] = vgpu_child_file(child);
	ret = PTR_ERR_OR_ZERO(files->file[2]);
	if (!ret)
		return 0;
	fput(files->file[1]);
put_memory:
	fput(files->file[0]);
	return ret;
}

/*
 * Put the child into the window. Fails if the window is not open or the binding has
 * ended.
 */
static int vgpu_child_enter(struct vgpu_binding *binding, struct vgpu_child *child,
			    struct file *given)
{
	struct vgpu_device *device = binding->device;
	struct vgpu_engine *engine = &device->parent->engine;
	int ret = -ENODEV;

	spin_lock_irq(&engine->lock);
	if (device->binding == binding)
		ret = vgpu_window_serve(device, child, given);
	if (!ret)
		vgpu_child_start(child);
	spin_unlock_irq(&engine->lock);
	return ret;
}

/* Remove the child, if the window has one. */
static void vgpu_child_leave(struct vgpu_binding *binding, u32 window, u64 opened)
{
	struct vgpu_device *device = binding->device;
	struct vgpu_engine *engine = &device->parent->engine;
	struct vgpu_child *child = NULL;

	spin_lock_irq(&engine->lock);
	if (device->binding == binding)
		child = vgpu_child_find(device, window);
	if (child && child->opened == opened)
		vgpu_child_end(child);
	spin_unlock_irq(&engine->lock);
}

static long vgpu_binding_window(struct vgpu_binding *binding, void __user *user,
				const char **field)
{
	struct vgpu_window_files files = { .fd = { -1, -1, -1 } };
	struct vgpu_exec_window window;
	struct vgpu_child *child;
	long ret;

	if (copy_from_user(&window, user, sizeof(window)))
		return -EFAULT;
	*field = window.reserved ? "reserved" : "window";
	if (window.window >= VGPU_WINDOWS_MAX || window.reserved)
		return -EINVAL;
	child = vgpu_child_create(binding->device, window.window);
	if (!child)
		return -ENOMEM;
	ret = vgpu_window_files_open(binding, child, &files);
	if (ret)
		goto put;
	/*
	 * Put the child into the window last. If a later step failed, this would have
	 * to be undone while others can see the child.
	 */
	ret = vgpu_window_files_announce(&files, &window, user) ?:
	      vgpu_child_enter(binding, child, files.file[0]);
	if (ret)
		vgpu_window_files_drop(&files);
	else
		vgpu_window_files_install(&files);
put:
	vgpu_child_put(child);
	return ret;
}

/* Handle the commands LOST, CLOSED and RING. */
static long vgpu_binding_child(struct vgpu_binding *binding, unsigned int command,
			       void __user *user, const char **field)
{
	struct vgpu_exec_child child;
	u64 opened;

	if (copy_from_user(&child, user, sizeof(child)))
		return -EFAULT;
	*field = child.reserved ? "reserved" : "window";
	if (child.window >= VGPU_WINDOWS_MAX || child.reserved)
		return -EINVAL;
	if (command == VGPU_EXEC_RING)
		return vgpu_window_ring(binding->device, child.window);
	if (!vgpu_window_may_end(binding->device, child.window, command == VGPU_EXEC_CLOSED,
				 &opened))
		return -ENXIO;
	if (vgpu_window_is_held(binding->device, child.window, opened))
		return -EBUSY;
	vgpu_child_leave(binding, child.window, opened);
	if (command == VGPU_EXEC_LOST)
		return vgpu_window_lose(binding->device, child.window, opened);
	return vgpu_window_free(binding->device, child.window, opened);
}

static long vgpu_binding_gate(struct vgpu_binding *binding, void __user *user, const char **field)
{
	struct vgpu_device *device = binding->device;
	struct vgpu_engine *engine = &device->parent->engine;
	struct vgpu_exec_gate gate;
	long ret = -ENODEV;

	if (copy_from_user(&gate, user, sizeof(gate)))
		return -EFAULT;
	*field = gate.reserved ? "reserved" : "done";
	if (gate.done > 1 || gate.reserved)
		return -EINVAL;
	spin_lock_irq(&engine->lock);
	if (device->binding == binding) {
		vgpu_lending_gate_answer(device, &gate, ktime_get_ns());
		ret = 0;
	}
	spin_unlock_irq(&engine->lock);
	return ret;
}

/**
 * vgpu_binding_ioctl - execute a command of a bound executor
 * @binding: the file's binding
 * @command: VGPU_EXEC_WINDOW and the commands after it
 * @user: argument of the command
 * @field: out, with -EINVAL and -ENXIO: which field of the argument is at fault
 */
long vgpu_binding_ioctl(struct vgpu_binding *binding, unsigned int command, void __user *user,
			const char **field)
{
	*field = "window";
	if (READ_ONCE(binding->ended))
		return -ENODEV;
	switch (command) {
	case VGPU_EXEC_WINDOW:
		return vgpu_binding_window(binding, user, field);
	case VGPU_EXEC_LOST:
	case VGPU_EXEC_CLOSED:
	case VGPU_EXEC_RING:
		return vgpu_binding_child(binding, command, user, field);
	case VGPU_EXEC_GATE:
		return vgpu_binding_gate(binding, user, field);
	default:
		return -ENOTTY;
	}
}
