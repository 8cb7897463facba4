// SPDX-License-Identifier: GPL-2.0
/*
 * Adopted accelerators: PCI functions that stay bound to their vendor's driver, through
 * which executors use them. This module adds an mdev parent and the attributes to the
 * function's directory. It neither reads nor writes the function itself.
 *
 * The function's device lock serializes adoption with the driver core: if a holder of that
 * lock sees a bound driver, BUS_NOTIFY_UNBIND_DRIVER will follow. The handler of that
 * notification revokes every slice at once and does not wait. A work item then unregisters
 * the parent, which takes as long as a VM keeps a slice open. Meanwhile the function may be
 * bound to another driver, but it can neither be adopted again nor be bound to this driver.
 *
 * The function's directory in sysfs must not be removed before the parent's entries in it.
 * So the function's removal waits for that work item, like removing a function from vfio-pci
 * waits for its VM. The removal waits in a notifier. Until that notifier returns, nobody can
 * register or unregister a notifier for the PCI bus, and a caller that tries to do so blocks
 * all further notifications. There is no other place to wait: the rest of the removal is
 * inside the driver core.
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
static bool vgpu_adoption_ended;	/* vgpu_adoption_lock */
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

/* Returns a reference; NULL if the device is not an adopted accelerator. */
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
 * Waits for nothing except the lock. The work is queued under the same lock that protects
 * @removed, so a caller that sees @removed can wait for that work.
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
 * Wait for the parent to be unregistered if it was revoked. A driver may be bound again
 * while its function is being removed. It is then unbound after BUS_NOTIFY_DEL_DEVICE, and
 * always before BUS_NOTIFY_REMOVED_DEVICE.
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

/* Check first, because the kernel warns about an entry that is added twice. */
static bool vgpu_adopt_finds(struct pci_dev *pdev, const char *entry)
{
	struct kernfs_node *found = kernfs_find_and_get(pdev->dev.kobj.sd, entry);

	kernfs_put(found);
	return found;
}

/* Returns why a function cannot be adopted, or 0; device lock held. */
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
		/*
		 * The function's removal may have found the parent in the list, and may be
		 * waiting for @left.
		 */
		complete_all(&parent->left);
		vgpu_parent_destroy(parent);
		pci_dev_put(pdev);
	}
	return ret;
}

/**
 * vgpu_adopt - share a function that stays bound to its driver
 * @name: PCI address
 * @attach_permit: initial value of the setting by which opening a slice consumes a permit
 *
 * Does not wait while a driver is being bound or unbound, because that may never end.
 *
 * Return: 0; -ENODEV if there is no such function; -ENXIO if no driver is bound to it;
 * -EAGAIN while a driver is being bound or unbound; -EEXIST if the function is shared
 * already; -EBUSY while slices of an earlier adoption are open; -EOPNOTSUPP if its driver
 * has mdev types itself; -ESHUTDOWN while the module is being unloaded; or -ENOMEM.
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

/* Refuse if there are slices. Otherwise accept nothing new and begin to unregister. */
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
 * The accelerator's tenants are removed with it.
 *
 * Return: 0; -ENODEV if it was not adopted, or is being removed; -EBUSY while it has slices;
 * -EINPROGRESS if the removal has begun but takes long. That happens if a slice was being
 * created, because its creation resumes the function through its driver.
 */
int vgpu_release(const char *name)
{
	struct vgpu_parent *parent = vgpu_adopted_get(name);
	int ret;

	if (!parent)
		return -ENODEV;
	/*
	 * This lock is taken because an accelerator is in the list before it is registered
	 * with the mdev core.
	 */
	mutex_lock(&vgpu_adoption_lock);
	ret = vgpu_adopted_close(parent);
	mutex_unlock(&vgpu_adoption_lock);
	/*
	 * No VM has a slice open, so no VM delays the removal. The wait is limited
	 * nevertheless, because it blocks other netlink families.
	 */
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
 * vgpu_adoption_end - release all adopted accelerators, and refuse new adoptions
 *
 * No VM has a slice open at that time. This waits for processes that have a slice's
 * character device open without having bound it: VFIO does not report them.
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
 * vgpu_adoption_exit - the reverse of vgpu_adoption_init(), after the last request
 */
void vgpu_adoption_exit(void)
{
	bus_unregister_notifier(&pci_bus_type, &vgpu_adopted_block);
	destroy_workqueue(vgpu_adoption_wq);
}
