// SPDX-License-Identifier: GPL-2.0
/*
 * The list of accelerators, look-up of accelerators and slices, and the lifetime of
 * accelerators.
 */
#include <linux/slab.h>

#include "vgpu.h"

/* Protects the list below. A holder of this lock never waits for an accelerator. */
DEFINE_MUTEX(vgpu_parents_lock);
LIST_HEAD(vgpu_parents);

struct vgpu_parent *vgpu_parent_find(const char *name)
{
	struct vgpu_parent *parent;

	lockdep_assert_held(&vgpu_parents_lock);
	list_for_each_entry(parent, &vgpu_parents, node)
		if (!strcmp(parent->name, name))
			return parent;
	return NULL;
}

/**
 * vgpu_parent_of - find the accelerator of a device
 * @dev: a PCI function. Either its device lock is held, or one of the attributes in its
 *	directory ``vgpu`` is in use: these attributes are removed before the accelerator is
 *
 * The driver data cannot be used for this, because an adopted function has another driver.
 *
 * Return: the accelerator, or NULL if the device is not an accelerator.
 */
struct vgpu_parent *vgpu_parent_of(const struct device *dev)
{
	struct vgpu_parent *parent;

	mutex_lock(&vgpu_parents_lock);
	parent = vgpu_parent_find(dev_name(dev));
	mutex_unlock(&vgpu_parents_lock);
	return parent;
}

/**
 * vgpu_parent_next - iterate over all accelerators without blocking additions or removals
 * @name: name of the last accelerator visited, or an empty string
 * @inclusive: the accelerator called @name is still to be visited
 *
 * A caller may wait for parent->lock for a long time, so the list is not locked meanwhile.
 *
 * Return: the accelerator with the next name, with a reference, or NULL.
 */
struct vgpu_parent *vgpu_parent_next(const char *name, bool inclusive)
{
	struct vgpu_parent *next = NULL;
	struct vgpu_parent *parent;

	mutex_lock(&vgpu_parents_lock);
	list_for_each_entry(parent, &vgpu_parents, node) {
		int order = strcmp(parent->name, name);

		if (order < 0 || (!order && !inclusive))
			continue;
		if (!next || strcmp(parent->name, next->name) < 0)
			next = parent;
	}
	if (next)
		kref_get(&next->refs);
	mutex_unlock(&vgpu_parents_lock);
	return next;
}

/*
 * The mdev core may use a device's type after the device has been released, and has no hook
 * that reports the last use. So parents stay until the module is unloaded. Each time that root
 * unbinds or releases an accelerator costs the memory of one parent; nobody else can cause
 * that.
 */
static LLIST_HEAD(vgpu_parents_gone);

static void vgpu_parent_release(struct kref *refs)
{
	struct vgpu_parent *parent = container_of(refs, struct vgpu_parent, refs);

	llist_add(&parent->gone, &vgpu_parents_gone);
}

/**
 * vgpu_parents_free - free all parents; no device is left
 */
void vgpu_parents_free(void)
{
	struct vgpu_parent *parent, *next;

	llist_for_each_entry_safe(parent, next, llist_del_all(&vgpu_parents_gone), gone) {
		mutex_destroy(&parent->lock);
		kfree(parent);
	}
}

void vgpu_parent_put(struct vgpu_parent *parent)
{
	kref_put(&parent->refs, vgpu_parent_release);
}

static struct vgpu_device *vgpu_device_find(struct vgpu_parent *parent, const guid_t *uuid)
{
	struct vgpu_device *device;

	list_for_each_entry(device, &parent->devices, node)
		if (guid_equal(&device->uuid, uuid))
			return device;
	return NULL;
}

/**
 * vgpu_device_lock - find a slice and prevent its removal
 * @uuid: name of the slice
 *
 * Return: the slice, its parent locked and with a reference (vgpu_parent_unlock()), or
 * NULL.
 */
struct vgpu_device *vgpu_device_lock(const guid_t *uuid)
{
	char name[sizeof_field(struct vgpu_parent, name)] = "";
	struct vgpu_parent *parent;

	while ((parent = vgpu_parent_next(name, false))) {
		struct vgpu_device *device;

		mutex_lock(&parent->lock);
		device = vgpu_device_find(parent, uuid);
		if (device)
			return device;
		strscpy(name, parent->name, sizeof(name));
		vgpu_parent_unlock(parent);
	}
	return NULL;
}
