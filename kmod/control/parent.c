// SPDX-License-Identifier: GPL-2.0
/*
 * An accelerator: its memory classes as mdev types, its engine and the attributes of both.
 * It is a PCI function that was bound to this driver by name (driver_override), or one that
 * stays bound to its vendor's driver (adopt.c).
 */
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>

#include "control/policy.h"
#include "engine/engine.h"
#include "options.h"
#include "uapi/vgpumgr_netlink.h"

#define VGPU_ABI_VERSION	"2.0"

static struct vgpu_option vgpu_memory_mib = {
	.value = 1024,
	.min = 16, /* the smallest class of slices */
	.max = U32_MAX,
};
module_param_cb(memory_mib, &vgpu_option_ops, &vgpu_memory_mib, 0444);
MODULE_PARM_DESC(memory_mib, "device memory of each accelerator, MiB (default 1024)");

static const struct {
	const char *name;
	const char *pretty;
	u64 bytes;
} vgpu_classes[VGPU_MEMORY_CLASSES] = {
	{ "mem16m", "vgpumgr slice, 16 MiB", 16ULL << 20 },
	{ "mem64m", "vgpumgr slice, 64 MiB", 64ULL << 20 },
	{ "mem256m", "vgpumgr slice, 256 MiB", 256ULL << 20 },
	{ "mem1g", "vgpumgr slice, 1 GiB", 1ULL << 30 },
};

static ssize_t attach_show(struct device *dev, struct device_attribute *attr, char *text)
{
	struct vgpu_parent *parent = vgpu_parent_of(dev);

	return sysfs_emit(text, "%s\n", READ_ONCE(parent->attach_permit) ? "permit" : "any");
}

/**
 * vgpu_attr_refused - log that a write to an attribute changed nothing
 * @dev: the accelerator or slice
 * @attribute: name of the attribute
 * @ret: the reason, a negative errno
 *
 * Return: @ret.
 */
int vgpu_attr_refused(struct device *dev, const char *attribute, int ret)
{
	dev_warn_ratelimited(dev, "attribute %s refused: %pe\n", attribute, ERR_PTR(ret));
	return ret;
}

/**
 * vgpu_attr_refused_for - like vgpu_attr_refused(), for an attribute with several fields
 * @dev: the accelerator or slice
 * @attribute: name of the attribute
 * @field: the field at fault, possibly as the writer spelled it
 * @ret: the reason, a negative errno
 *
 * Return: @ret.
 */
int vgpu_attr_refused_for(struct device *dev, const char *attribute, const char *field, int ret)
{
	dev_warn_ratelimited(dev, "attribute %s refused for %.20s: %pe\n", attribute, field,
			     ERR_PTR(ret));
	return ret;
}

static ssize_t attach_store(struct device *dev, struct device_attribute *attr,
			    const char *text, size_t count)
{
	struct vgpu_parent *parent = vgpu_parent_of(dev);
	bool permit = sysfs_streq(text, "permit");

	if (!permit && !sysfs_streq(text, "any"))
		return vgpu_attr_refused(dev, "attach", -EINVAL);
	mutex_lock(&parent->lock);
	WRITE_ONCE(parent->attach_permit, permit);
	mutex_unlock(&parent->lock);
	return count;
}
static DEVICE_ATTR_RW(attach);

static ssize_t timeslice_min_us_show(struct device *dev, struct device_attribute *attr,
				     char *text)
{
	struct vgpu_parent *parent = vgpu_parent_of(dev);
	u64 floor_ns;

	spin_lock_irq(&parent->engine.lock);
	floor_ns = vgpu_sched_timeslice_floor(&parent->engine.sched);
	spin_unlock_irq(&parent->engine.lock);
	return sysfs_emit(text, "%llu\n", DIV_ROUND_UP_ULL(floor_ns, NSEC_PER_USEC));
}
static DEVICE_ATTR_RO(timeslice_min_us);

static ssize_t memory_total_show(struct device *dev, struct device_attribute *attr,
				 char *text)
{
	struct vgpu_parent *parent = vgpu_parent_of(dev);

	return sysfs_emit(text, "%llu\n", READ_ONCE(parent->memory_total));
}

static ssize_t memory_total_store(struct device *dev, struct device_attribute *attr,
				  const char *text, size_t count)
{
	struct vgpu_parent *parent = vgpu_parent_of(dev);
	u64 bytes;
	int ret;

	ret = kstrtou64(text, 10, &bytes);
	if (!ret && bytes < vgpu_classes[0].bytes)
		ret = -ERANGE;
	if (ret)
		return vgpu_attr_refused(dev, "memory_total", ret);
	mutex_lock(&parent->lock);
	if (bytes < parent->memory_reserved)
		ret = -EBUSY;
	else
		WRITE_ONCE(parent->memory_total, bytes);
	mutex_unlock(&parent->lock);
	return ret ? vgpu_attr_refused(dev, "memory_total", ret) : count;
}
static DEVICE_ATTR_RW(memory_total);

static ssize_t engine_show(struct device *dev, struct device_attribute *attr, char *text)
{
	struct vgpu_parent *parent = vgpu_parent_of(dev);

	return sysfs_emit(text, "%s\n", READ_ONCE(parent->engine.ops)->name);
}

static ssize_t engine_store(struct device *dev, struct device_attribute *attr,
			    const char *text, size_t count)
{
	struct vgpu_parent *parent = vgpu_parent_of(dev);
	const struct vgpu_engine_ops *ops = vgpu_engine_find(text);
	int ret;

	mutex_lock(&parent->lock);
	if (!ops)
		ret = -EINVAL;
	else if (!vgpu_engine_suits(ops, parent))
		ret = -EOPNOTSUPP;
	else if (!list_empty(&parent->devices) || !list_empty(&parent->tenants))
		ret = -EBUSY;
	else
		ret = vgpu_engine_change(&parent->engine, ops, parent->pdev);
	mutex_unlock(&parent->lock);
	return ret ? vgpu_attr_refused(dev, "engine", ret) : count;
}
static DEVICE_ATTR_RW(engine);

static ssize_t engines_show(struct device *dev, struct device_attribute *attr, char *text)
{
	struct vgpu_parent *parent = vgpu_parent_of(dev);

	return vgpu_engines_show(parent, text);
}
static DEVICE_ATTR_RO(engines);

static ssize_t engine_state_show(struct device *dev, struct device_attribute *attr,
				 char *text)
{
	struct vgpu_parent *parent = vgpu_parent_of(dev);

	return sysfs_emit(text, "%s\n",
			  READ_ONCE(parent->engine.wedged) ? "wedged" : "working");
}
static DEVICE_ATTR_RO(engine_state);

static ssize_t abi_version_show(struct device *dev, struct device_attribute *attr,
				char *text)
{
	return sysfs_emit(text, VGPU_ABI_VERSION "\n");
}
static DEVICE_ATTR_RO(abi_version);

static ssize_t features_show(struct device *dev, struct device_attribute *attr, char *text)
{
	return sysfs_emit(text, "weight timeslice cap permit renewal reservation hold policy\n");
}
static DEVICE_ATTR_RO(features);

/*
 * This attribute is readable by everybody; reading the serial number from configuration
 * space takes CAP_SYS_ADMIN. All ones mean that the function does not answer.
 */
static ssize_t serial_show(struct device *dev, struct device_attribute *attr, char *text)
{
	u64 serial = pci_get_dsn(to_pci_dev(dev));

	if (!serial || serial == U64_MAX)
		return sysfs_emit(text, "\n");
	return sysfs_emit(text, "%016llx\n", serial);
}
static DEVICE_ATTR_RO(serial);

static struct attribute *vgpu_parent_attrs[] = {
	&dev_attr_attach.attr,
	&dev_attr_max_chunk_us.attr,
	&dev_attr_timeslice_min_us.attr,
	&dev_attr_memory_total.attr,
	&dev_attr_engine.attr,
	&dev_attr_engines.attr,
	&dev_attr_engine_state.attr,
	&dev_attr_policy.attr,
	&dev_attr_places.attr,
	&dev_attr_reserve_limit_permille.attr,
	&dev_attr_abi_version.attr,
	&dev_attr_features.attr,
	&dev_attr_serial.attr,
	NULL
};

static const struct attribute_group vgpu_parent_group = {
	.name = "vgpu",
	.attrs = vgpu_parent_attrs,
};

static const struct attribute_group *vgpu_parent_groups[] = {
	&vgpu_parent_group,
	NULL
};

static void vgpu_parent_init_types(struct vgpu_parent *parent)
{
	unsigned int i;

	for (i = 0; i < VGPU_MEMORY_CLASSES; i++) {
		struct vgpu_memory_class *class = &parent->classes[i];

		class->type.sysfs_name = vgpu_classes[i].name;
		class->type.pretty_name = vgpu_classes[i].pretty;
		class->bytes = vgpu_classes[i].bytes;
		parent->types[i] = &class->type;
	}
	parent->nr_types = VGPU_MEMORY_CLASSES;
}

/**
 * vgpu_parent_create - start an engine for a function that is to be shared
 * @pdev: the function, bound to a driver and its device lock held
 * @ops: the engine; it drives @pdev
 *
 * Return: the accelerator, not visible yet; or an ERR_PTR, with nothing left behind.
 */
struct vgpu_parent *vgpu_parent_create(struct pci_dev *pdev, const struct vgpu_engine_ops *ops)
{
	struct vgpu_parent *parent;
	int ret;

	parent = kzalloc(sizeof(*parent), GFP_KERNEL);
	if (!parent)
		return ERR_PTR(-ENOMEM);
	kref_init(&parent->refs);
	mutex_init(&parent->lock);
	INIT_LIST_HEAD(&parent->tenants);
	INIT_LIST_HEAD(&parent->devices);
	parent->pdev = pdev;
	strscpy(parent->name, pci_name(pdev), sizeof(parent->name));
	strscpy(parent->driver, pdev->dev.driver->name, sizeof(parent->driver));
	parent->generation = vgpu_generation_next();
	parent->memory_total = (u64)vgpu_memory_mib.value << 20;
	vgpu_parent_init_types(parent);
	ret = vgpu_engine_start(&parent->engine, ops, pdev, parent->name);
	if (!ret)
		return parent;
	/* Nobody has seen the parent, so it can be freed at once. */
	mutex_destroy(&parent->lock);
	kfree(parent);
	return ERR_PTR(ret);
}

/**
 * vgpu_parent_revoke - revoke all slices of an accelerator, and refuse new ones
 * @parent: the accelerator, parent->lock held
 *
 * Does not wait. The mdev core removes one slice after the other. All slices are revoked
 * first, so that no slice continues to work while the mdev core waits for the VM of another
 * slice.
 */
void vgpu_parent_revoke(struct vgpu_parent *parent)
{
	struct vgpu_device *device;

	lockdep_assert_held(&parent->lock);
	parent->removed = true;
	list_for_each_entry(device, &parent->devices, node)
		vgpu_device_revoke(device);
}

/* @tell: report the removal, before the accelerator's name can be used again. */
static void vgpu_parent_forget(struct vgpu_parent *parent, bool tell)
{
	mutex_lock(&parent->lock);
	vgpu_tenants_free(parent);
	mutex_unlock(&parent->lock);
	mutex_lock(&vgpu_parents_lock);
	if (tell)
		vgpu_event_gpu(parent, VGPUMGR_CMD_REMOVED_NTF);
	list_del(&parent->node);
	vgpu_netlink_changed();
	mutex_unlock(&vgpu_parents_lock);
}

/*
 * The driver core adds and removes the attributes of a function that is bound to this
 * driver. An adopted accelerator is added to the list before its attributes, because the
 * attributes look up the accelerator in the list.
 */
static int vgpu_parent_add_attrs(struct vgpu_parent *parent)
{
	return parent->adopted ?
		sysfs_create_group(&parent->pdev->dev.kobj, &vgpu_parent_group) : 0;
}

static void vgpu_parent_remove_attrs(struct vgpu_parent *parent)
{
	if (parent->adopted)
		sysfs_remove_group(&parent->pdev->dev.kobj, &vgpu_parent_group);
}

/**
 * vgpu_parent_register - make an accelerator available for slices
 * @parent: the accelerator, from vgpu_parent_create(), the device lock of its function
 *	still held
 *
 * Return: 0, or a negative errno with the accelerator no longer visible.
 */
int vgpu_parent_register(struct vgpu_parent *parent)
{
	int ret;

	mutex_lock(&vgpu_parents_lock);
	list_add_tail(&parent->node, &vgpu_parents);
	vgpu_netlink_changed();
	mutex_unlock(&vgpu_parents_lock);
	ret = vgpu_parent_add_attrs(parent);
	if (ret)
		goto forget;
	ret = mdev_register_parent(&parent->mdev, &parent->pdev->dev, &vgpu_mdev_driver,
				   parent->types, parent->nr_types);
	if (ret)
		goto attrs;
	vgpu_event_gpu(parent, VGPUMGR_CMD_CREATED_NTF);
	pci_info(parent->pdev, "sharing by engine %s, %u MiB of device memory\n",
		 parent->engine.ops->name, vgpu_memory_mib.value);
	return 0;

attrs:
	vgpu_parent_remove_attrs(parent);
forget:
	/*
	 * Another process may have found the accelerator in the list and configured a
	 * tenant.
	 */
	mutex_lock(&parent->lock);
	vgpu_parent_revoke(parent);
	mutex_unlock(&parent->lock);
	vgpu_parent_forget(parent, false);
	return ret;
}

/**
 * vgpu_parent_unregister - the reverse of vgpu_parent_register()
 * @parent: the accelerator, revoked
 *
 * Waits until every VM has closed its slice.
 */
void vgpu_parent_unregister(struct vgpu_parent *parent)
{
	mdev_unregister_parent(&parent->mdev);
	vgpu_parent_remove_attrs(parent);
	vgpu_parent_forget(parent, true);
}

/**
 * vgpu_parent_destroy - stop the engine
 * @parent: the accelerator, not registered; the caller's reference is released
 */
void vgpu_parent_destroy(struct vgpu_parent *parent)
{
	vgpu_engine_stop(&parent->engine);
	vgpu_parent_put(parent);
}

static int vgpu_pci_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	const struct vgpu_engine_ops *ops = vgpu_engine_default;
	struct vgpu_parent *parent, *before;
	int ret;

	if (!ops->drives(pdev)) {
		pci_err(pdev, "engine %s (module parameter) cannot drive this function\n",
			ops->name);
		return -EOPNOTSUPP;
	}
	/* A parent that was adopted is only freed when the module is unloaded. */
	before = vgpu_parent_of(&pdev->dev);
	if (before && !wait_for_completion_timeout(&before->left, HZ)) {
		pci_err(pdev, "slices from its earlier adoption are still open\n");
		return -EBUSY;
	}
	parent = vgpu_parent_create(pdev, ops);
	if (IS_ERR(parent))
		return PTR_ERR(parent);
	pci_set_drvdata(pdev, parent);
	ret = vgpu_parent_register(parent);
	if (ret)
		vgpu_parent_destroy(parent);
	return ret;
}

static void vgpu_pci_remove(struct pci_dev *pdev)
{
	struct vgpu_parent *parent = pci_get_drvdata(pdev);

	mutex_lock(&parent->lock);
	vgpu_parent_revoke(parent);
	mutex_unlock(&parent->lock);
	vgpu_parent_unregister(parent);
	vgpu_parent_destroy(parent);
}

/* No ids: this driver binds a function only if driver_override names it. */
static const struct pci_device_id vgpu_pci_ids[] = {
	{ }
};

static struct pci_driver vgpu_pci_driver = {
	.name = "vgpumgr",
	.id_table = vgpu_pci_ids,
	.probe = vgpu_pci_probe,
	.remove = vgpu_pci_remove,
	.dev_groups = vgpu_parent_groups,
};

int vgpu_parent_driver_register(void)
{
	return pci_register_driver(&vgpu_pci_driver);
}

void vgpu_parent_driver_unregister(void)
{
	pci_unregister_driver(&vgpu_pci_driver);
}
