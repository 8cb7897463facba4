// SPDX-License-Identifier: GPL-2.0
/*
 * A stand-in for the driver of an accelerator's vendor, for tests of adopting: it has its own
 * driver data, may
 * take its time to release a function, and may have mdev types of its own.
 */
#include <linux/device.h>
#include <linux/kobject.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/wait.h>

static DECLARE_WAIT_QUEUE_HEAD(changed);
static bool slow;
static bool waiting;
static bool shares;
static int own_data;

static int slow_set(const char *text, const struct kernel_param *param)
{
	int ret = param_set_bool(text, param);

	wake_up_all(&changed);
	return ret;
}

static const struct kernel_param_ops slow_ops = { .set = slow_set, .get = param_get_bool };
module_param_cb(slow, &slow_ops, &slow, 0600);
MODULE_PARM_DESC(slow, "let go of a function only once this is N");
module_param(waiting, bool, 0400);
MODULE_PARM_DESC(waiting, "a function is being let go of");
module_param(shares, bool, 0600);
MODULE_PARM_DESC(shares, "functions that are bound from now on have mdev types of their own");

static int vendor_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct kobject *types = NULL;

	if (shares) {
		types = kobject_create_and_add("mdev_supported_types", &pdev->dev.kobj);
		if (!types)
			return -ENOMEM;
	}
	dev_set_drvdata(&pdev->dev, types ? (void *)types : &own_data);
	return 0;
}

static void vendor_remove(struct pci_dev *pdev)
{
	void *data = dev_get_drvdata(&pdev->dev);

	WRITE_ONCE(waiting, true);
	wait_event_idle(changed, !READ_ONCE(slow));
	WRITE_ONCE(waiting, false);
	WARN_ON(!data || dev_get_drvdata(&pdev->dev) != data);
	if (data != &own_data)
		kobject_put(data);
}

/* No ids: a function is its own only when driver_override says so. */
static const struct pci_device_id vendor_ids[] = {
	{ }
};

static struct pci_driver vendor_driver = {
	.name = "vgpu_vendor",
	.id_table = vendor_ids,
	.probe = vendor_probe,
	.remove = vendor_remove,
};

module_pci_driver(vendor_driver);

MODULE_DESCRIPTION("Driver of a vendor, for tests");
MODULE_LICENSE("GPL");
