// SPDX-License-Identifier: GPL-2.0
/*
 * An executor and the slice that it serves. The binding lasts until the executor's file is
 * closed, the slice is removed, or the gate fails. The binding holds a reference to its slice,
 * never the other way around.
 *
 * The executor is not monitored. It may hang, or die while other processes still have its file
 * open. The module notices that only at the next request to its gate: an executor that does
 * not answer within the gate's limit (lending.c) is killed and unbound. Until then such an
 * executor harms only its own slice.
 *
 * When an executor ends, the state of its children is unknown. Their windows are lost, and
 * stay closed until the next executor has reported that none of those children is left.
 */
#include <linux/ktime.h>
#include <linux/pid.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "engine/binding.h"
#include "engine/child.h"
#include "engine/engine.h"
#include "engine/window.h"

static void vgpu_binding_free(struct kref *refs)
{
	struct vgpu_binding *binding = container_of(refs, struct vgpu_binding, refs);

	if (binding->device)
		put_device(&binding->device->vdev.device);
	put_page(binding->page);
	put_pid(binding->pid);
	kfree(binding);
}

/* End the binding, unless it has ended or another executor serves the slice by now. */
static void vgpu_binding_leave(struct vgpu_binding *binding)
{
	struct vgpu_device *device = binding->device;
	struct vgpu_engine *engine = &device->parent->engine;
	bool raise = false;

	spin_lock_irq(&engine->lock);
	if (device->binding == binding)
		raise = vgpu_binding_end(device);
	spin_unlock_irq(&engine->lock);
	if (raise)
		vgpu_reports.raise(device, VGPU_VECTOR_COMPLETION);
}

/*
 * Work item: ends a binding whose gate was found not to work. The finder holds a lock under
 * which the binding cannot end.
 */
static void vgpu_binding_end_later(struct work_struct *work)
{
	struct vgpu_binding *binding = container_of(work, struct vgpu_binding, end);

	vgpu_binding_leave(binding);
	kref_put(&binding->refs, vgpu_binding_free);
}

/**
 * vgpu_binding_put - release a reference
 * @binding: the binding
 */
void vgpu_binding_put(struct vgpu_binding *binding)
{
	kref_put(&binding->refs, vgpu_binding_free);
}

/**
 * vgpu_binding_create - create a binding of the caller, without a slice yet
 *
 * Return: the binding with one reference, or NULL without memory.
 */
struct vgpu_binding *vgpu_binding_create(void)
{
	struct vgpu_binding *binding;
	struct vgpu_lease_page *lease;

	binding = kzalloc(sizeof(*binding), GFP_KERNEL_ACCOUNT);
	if (!binding)
		return NULL;
	binding->page = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (!binding->page) {
		kfree(binding);
		return NULL;
	}
	lease = vgpu_binding_lease(binding);
	lease->magic = VGPU_LEASE_MAGIC;
	lease->version = VGPU_LEASE_VERSION;
	lease->expires_ns = U64_MAX;
	kref_init(&binding->refs);
	init_waitqueue_head(&binding->wait);
	INIT_WORK(&binding->end, vgpu_binding_end_later);
	binding->pid = get_pid(task_tgid(current));
	return binding;
}

/**
 * vgpu_binding_attach - make the caller the executor of a slice
 * @binding: the binding, just created
 * @device: the slice, parent->lock held, so that the engine does not change and the slice is
 *	not removed
 *
 * Return: 0 or a negative errno; struct vgpu_exec_bind lists them.
 */
int vgpu_binding_attach(struct vgpu_binding *binding, struct vgpu_device *device)
{
	struct vgpu_engine *engine = &device->parent->engine;
	int ret = 0;

	lockdep_assert_held(&device->parent->lock);
	if (!engine->ops->lends)
		return -EOPNOTSUPP;
	if (device->revoked)
		return -ENODEV;
	spin_lock_irq(&engine->lock);
	spin_lock(&device->windows.lock);
	if (device->binding) {
		ret = -EBUSY;
	} else {
		get_device(&device->vdev.device);
		binding->device = device;
		device->binding = binding;
	}
	spin_unlock(&device->windows.lock);
	spin_unlock_irq(&engine->lock);
	if (!ret)
		vgpu_windows_tell_again(device);
	return ret;
}

/**
 * vgpu_binding_end - release a slice's executor, if it has one
 * @device: the slice, engine->lock held
 *
 * Return: true if the caller must interrupt the guest after it has released its locks.
 */
bool vgpu_binding_end(struct vgpu_device *device)
{
	struct vgpu_binding *binding = device->binding;
	struct vgpu_child *child, *next;

	lockdep_assert_held(&device->parent->engine.lock);
	if (!binding)
		return false;
	list_for_each_entry_safe(child, next, &device->children, node)
		vgpu_child_end(child);
	/*
	 * Report the loss of the gate together with the end of the last child. Otherwise the
	 * arbiter would send the gate another request, and the next executor would be charged
	 * for it.
	 */
	vgpu_lending_gate_is_gone(device, ktime_get_ns());
	spin_lock(&device->windows.lock);
	device->binding = NULL;
	spin_unlock(&device->windows.lock);
	WRITE_ONCE(binding->ended, true);
	wake_up_interruptible(&binding->wait);
	return vgpu_windows_abandon(device);
}

/**
 * vgpu_binding_release - handle the closing of the file
 * @binding: the binding; no call on its file is in progress
 */
void vgpu_binding_release(struct vgpu_binding *binding)
{
	vgpu_binding_leave(binding);
	/*
	 * Cancel the work or wait for it, because the module may be unloaded soon after its
	 * files are closed. The work is not queued again after vgpu_binding_leave().
	 */
	if (cancel_work_sync(&binding->end))
		kref_put(&binding->refs, vgpu_binding_free);
	kref_put(&binding->refs, vgpu_binding_free);
}

/**
 * vgpu_binding_ask_gate - request that a slice's gate be closed or opened
 * @device: the slice, engine->lock held
 * @close: close the gate; otherwise open it
 * @sequence: number of the request
 */
void vgpu_binding_ask_gate(struct vgpu_device *device, bool close, u64 sequence)
{
	struct vgpu_binding *binding = device->binding;

	lockdep_assert_held(&device->parent->engine.lock);
	if (!binding)
		return;
	binding->gate = close ? VGPU_EXEC_GATE_CLOSE : VGPU_EXEC_GATE_OPEN;
	binding->gate_sequence = sequence;
	binding->gate_told = false;
	wake_up_interruptible(&binding->wait);
}

/**
 * vgpu_binding_kill - kill and unbind an executor whose gate does not work
 * @device: the slice, engine->lock held
 */
void vgpu_binding_kill(struct vgpu_device *device)
{
	struct vgpu_binding *binding = device->binding;

	lockdep_assert_held(&device->parent->engine.lock);
	if (!binding)
		return;
	kill_pid(binding->pid, SIGKILL, 1);
	kref_get(&binding->refs);
	if (!schedule_work(&binding->end))
		kref_put(&binding->refs, vgpu_binding_free);
}

/**
 * vgpu_binding_reset - tell a slice's children that the slice was reset
 * @device: the slice
 */
void vgpu_binding_reset(struct vgpu_device *device)
{
	struct vgpu_engine *engine = &device->parent->engine;
	struct vgpu_lease_page *lease;
	struct vgpu_child *child;

	spin_lock_irq(&engine->lock);
	if (device->binding) {
		lease = vgpu_binding_lease(device->binding);
		WRITE_ONCE(lease->generation, lease->generation + 1);
		/* Pairs with the child's load of the wake word. */
		smp_store_release(&lease->wake, lease->wake + 1);
		list_for_each_entry(child, &device->children, node)
			vgpu_child_signal(child);
	}
	spin_unlock_irq(&engine->lock);
}
