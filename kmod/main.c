// SPDX-License-Identifier: GPL-2.0
/*
 * vgpumgr: shares accelerators between virtual machines and enforces how long
 * each tenant may use one.
 */
#include <linux/module.h>

#include "control/adopt.h"
#include "control/debugfs.h"
#include "control/events.h"
#include "control/executor.h"
#include "engine/ring.h"
#include "vgpu.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

static int __init vgpu_init(void)
{
	int ret;

	vgpu_numbers_init();
	ret = vgpu_rings_init();
	if (ret)
		return ret;
	ret = vgpu_events_init();
	if (ret)
		goto rings;
	vgpu_debugfs_init();
	ret = vgpu_device_driver_register();
	if (ret)
		goto events;
	ret = vgpu_adoption_init();
	if (ret)
		goto device;
	ret = vgpu_netlink_register();
	if (ret)
		goto adoption;
	ret = vgpu_parent_driver_register();
	if (ret)
		goto netlink;
	/*
	 * Register this last, because a load that fails waits for slices that
	 * are open, but not for executors.
	 */
	ret = vgpu_executor_register();
	if (ret)
		goto parent;
	return 0;

parent:
	vgpu_parent_driver_unregister();
netlink:
	vgpu_adoption_end();
	vgpu_netlink_unregister();
adoption:
	vgpu_adoption_exit();
device:
	vgpu_device_driver_unregister();
events:
	vgpu_debugfs_exit();
	vgpu_events_exit();
rings:
	vgpu_rings_exit();
	/* Registering the driver may have bound a function before it failed. */
	vgpu_parents_free();
	return ret;
}

static void __exit vgpu_exit(void)
{
	vgpu_executor_unregister();
	vgpu_parent_driver_unregister();
	vgpu_adoption_end();
	vgpu_netlink_unregister();
	vgpu_adoption_exit();
	vgpu_device_driver_unregister();
	vgpu_debugfs_exit();
	vgpu_events_exit();
	vgpu_rings_exit();
	vgpu_parents_free();
}

module_init(vgpu_init);
module_exit(vgpu_exit);

MODULE_AUTHOR("vgpumgr maintainers");
MODULE_DESCRIPTION("Mediated accelerator slices with per-tenant time shares");
MODULE_LICENSE("GPL");
MODULE_VERSION(VGPU_VERSION);
MODULE_SOFTDEP("pre: vfio_iommu_type1");
