// SPDX-License-Identifier: GPL-2.0
/*
 * Adopted accelerators: PCI functions that stay bound to their vendor's driver, by which
 * executors reach them. This module adds an mdev parent and the attributes to the
 * function's directory, and neither reads nor writes anything of the function itself.
 *
 * The function's device lock orders adoption and the driver core: who holds it and sees a
 * driver will hear of BUS_NOTIFY_UNBIND_DRIVER. There every slice is revoked at once, and
 * nobody is waited for: a work item unregisters the parent, which may last as long as a
 * VM keeps a slice open. Meanwhile the function may be bound again, but neither be
 * adopted again nor be bound to this driver.
 *
 * The function's directory must not go before what is in it. So its removal waits for that
 * work item, as removing a function from vfio-pci waits for its VM. It waits in a notifier:
 * until then nobody can register or unregister one for the PCI bus, and who tries holds up
 * all others that notify. There is no other place: what is left of the removal is the driver
 * core's own.
 */
#include <linux/completion.h>
#include <linux/device/bus.h>
#include <linux/kernfs.h>
#include <linux/notifier.h>
#include <linux/pci.h>
#include <linux/workqueue.h>

#include "control/adopt.h"
#include "engine/engine.h"

/* Held while a function is being adopted. */
static DEFINE_MUTEX(vgpu_adoption_lock);
static bool vgpu_adoption_ended;	/* the lock above */
static struct workqueue_struct *vgpu_adoption_wq;

static void vgpu_adopted_leave(struct work_struct *work)
{
	struct vgpu_parent *parent = container_of(work, struct vgpu_parent, leave);
	struct pci_dev *pdev = parent->pdev;

	vgpu_parent_unregister(parent);
	pci_info(pdev, "not shared any more\n");
	complete_all(&parent->left);
	vgpu_parent_destroy(parent);
	pci_dev_put(pdev);
}

/* With a reference; NULL if the device is no adopted accelerator. */
static struct vgpu_parent *vgpu_adopted_get(const char *name)
{
	struct vgpu_parent *parent;

	mutex_lock(&vgpu_parents_lock);
	parent = vgpu_parent_find(name);
	if (parent && parent->adopted)
		kref_get(&parent->refs);
	else
		parent = NULL;
	mutex_unlock(&vgpu_parents_lock);
	return parent;
}

/*
 * Waits for nothing but the lock. The work is queued under it, so that whoever finds the
 * parent removed can wait for that work.
 */
static void vgpu_adopted_cut_off(struct vgpu_parent *parent)
{
	mutex_lock(&parent->lock);
	if (!parent->removed)
		queue_work(vgpu_adoption_wq, &parent->leave);
	vgpu_parent_revoke(parent);
	mutex_unlock(&parent->lock);
}

/*
 * A driver that is bound again while its function is being removed is unbound after
 * BUS_NOTIFY_DEL_DEVICE, and always before BUS_NOTIFY_REMOVED_DEVICE.
 */
static void vgpu_adopted_await(struct vgpu_parent *parent)
{
	if (READ_ONCE(parent->removed))
		wait_for_completion_state(&parent->left, TASK_IDLE);
}

static int vgpu_adopted_notify(struct notifier_block *block, unsigned long action, void *data)
{
	const struct device *dev = data;
	struct vgpu_parent *parent;

	if (action != BUS_NOTIFY_UNBIND_DRIVER && action != BUS_NOTIFY_DEL_DEVICE &&
	    action != BUS_NOTIFY_REMOVED_DEVICE)
		return NOTIFY_DONE;
	parent = vgpu_adopted_get(dev_name(dev));
	if (!parent)
		return NOTIFY_DONE;
	if (action == BUS_NOTIFY_UNBIND_DRIVER)
		vgpu_adopted_cut_off(parent);
	else
		vgpu_adopted_await(parent);
	vgpu_parent_put(parent);
	return NOTIFY_DONE;
}

static struct notifier_block vgpu_adopted_block = {
	.notifier_call = vgpu_adopted_notify,
};

/* Looked for first, because adding one that is there is a complaint of the kernel. */
static bool vgpu_adopt_finds(struct pci_dev *pdev, const char *entry)
{
	struct kernfs_node *found = kernfs_find_and_get(pdev->dev.kobj.sd, entry);

	kernfs_put(found);
	return found;
}

/* Why a function cannot be adopted; device lock held. */
static int vgpu_adopt_check(struct pci_dev *pdev)
{
	const struct vgpu_parent *parent = vgpu_parent_of(&pdev->dev);

	if (parent)
		return READ_ONCE(parent->removed) ? -EBUSY : -EEXIST;
	if (!pdev->dev.driver)
		return -ENXIO;
	if (vgpu_adopt_finds(pdev, "mdev_supported_types") || vgpu_adopt_finds(pdev, "vgpu"))
		return -EOPNOTSUPP;
	return 0;
}

static int vgpu_adopt_function(struct pci_dev *pdev, bool attach_permit)
{
	struct vgpu_parent *parent;
	int ret;

	device_lock_assert(&pdev->dev);
	ret = vgpu_adopt_check(pdev);
	if (ret)
		return ret;
	parent = vgpu_parent_create(pdev, &vgpu_lease_engine);
	if (IS_ERR(parent))
		return PTR_ERR(parent);
	parent->adopted = true;
	parent->attach_permit = attach_permit;
	INIT_WORK(&parent->leave, vgpu_adopted_leave);
	init_completion(&parent->left);
	pci_dev_get(pdev);
	ret = vgpu_parent_register(parent);
	if (ret) {
		/* Removal of the function may have found it in the list. */
		complete_all(&parent->left);
		vgpu_parent_destroy(parent);
		pci_dev_put(pdev);
	}
	return ret;
}

/**
 * vgpu_adopt - share a function that stays bound to its driver
 * @name: PCI address
 * @attach_permit: opening a slice consumes a permit, from the beginning
 *
 * Does not wait for a driver that is being bound or unbound, which may take for ever.
 *
 * Return: 0; -ENODEV if there is no such function; -ENXIO if no driver is bound to it;
 * -EAGAIN while one is being bound or unbound; -EEXIST if it is shared already; -EBUSY
 * while slices of an earlier adoption are open; -EOPNOTSUPP if its driver shares it by
 * itself; -ESHUTDOWN while the module is being unloaded; or -ENOMEM.
 */
int vgpu_adopt(const char *name, bool attach_permit)
{
	struct device *dev = bus_find_device_by_name(&pci_bus_type, NULL, name);
	int ret = -EAGAIN;

	if (!dev)
		return -ENODEV;
	mutex_lock(&vgpu_adoption_lock);
	if (vgpu_adoption_ended) {
		ret = -ESHUTDOWN;
	} else if (device_trylock(dev)) {
		ret = vgpu_adopt_function(to_pci_dev(dev), attach_permit);
		device_unlock(dev);
	}
	mutex_unlock(&vgpu_adoption_lock);
	put_device(dev);
	return ret;
}

/* From here on it accepts nothing new, unless it has slices. */
static int vgpu_adopted_close(struct vgpu_parent *parent)
{
	int ret = 0;

	mutex_lock(&parent->lock);
	if (parent->removed)
		ret = -ENODEV;
	else if (!list_empty(&parent->devices))
		ret = -EBUSY;
	if (!ret) {
		parent->removed = true;
		queue_work(vgpu_adoption_wq, &parent->leave);
	}
	mutex_unlock(&parent->lock);
	return ret;
}

/**
 * vgpu_release - the reverse of vgpu_adopt()
 * @name: PCI address
 *
 * Its tenants go with it.
 *
 * Return: 0; -ENODEV if it was not adopted, or is being removed; -EBUSY while it has
 * slices; -EINPROGRESS: it goes, but somebody was making a slice, and the function's driver
 * that this wakes takes long.
 */
int vgpu_release(const char *name)
{
	struct vgpu_parent *parent = vgpu_adopted_get(name);
	int ret;

	if (!parent)
		return -ENODEV;
	/* An accelerator is in the list before the mdev core has it. */
	mutex_lock(&vgpu_adoption_lock);
	ret = vgpu_adopted_close(parent);
	mutex_unlock(&vgpu_adoption_lock);
	/* For no VM; but whoever waits here keeps other families of netlink waiting. */
	if (!ret && !wait_for_completion_timeout(&parent->left, HZ))
		ret = -EINPROGRESS;
	vgpu_parent_put(parent);
	return ret;
}

int vgpu_adoption_init(void)
{
	int ret;

	vgpu_adoption_wq = alloc_workqueue("vgpumgr_adopted", WQ_UNBOUND, 0);
	if (!vgpu_adoption_wq)
		return -ENOMEM;
	ret = bus_register_notifier(&pci_bus_type, &vgpu_adopted_block);
	if (ret)
		destroy_workqueue(vgpu_adoption_wq);
	return ret;
}

static void vgpu_adopted_cut_off_all(void)
{
	char name[sizeof_field(struct vgpu_parent, name)] = "";
	struct vgpu_parent *parent;

	while ((parent = vgpu_parent_next(name, false))) {
		strscpy(name, parent->name, sizeof(name));
		if (parent->adopted)
			vgpu_adopted_cut_off(parent);
		vgpu_parent_put(parent);
	}
}

/**
 * vgpu_adoption_end - let go of all that was adopted, and adopt nothing more
 *
 * No VM has a slice open then. This waits for processes that have a slice's character device
 * open without having bound it: VFIO tells nobody of them.
 */
void vgpu_adoption_end(void)
{
	mutex_lock(&vgpu_adoption_lock);
	vgpu_adoption_ended = true;
	mutex_unlock(&vgpu_adoption_lock);
	vgpu_adopted_cut_off_all();
	flush_workqueue(vgpu_adoption_wq);
}

/**
 * vgpu_adoption_exit - the reverse of vgpu_adoption_init(); nobody asks to adopt any more
 */
void vgpu_adoption_exit(void)
{
	bus_unregister_notifier(&pci_bus_type, &vgpu_adopted_block);
	destroy_workqueue(vgpu_adoption_wq);
}
