// SPDX-License-Identifier: GPL-2.0
/*
 * Permits: the one-shot permission to open a slice's device. An operator or the agent
 * grants it just before a VM starts (attach=permit). It ends after VGPU_PERMIT_SECONDS.
 * The parent's lock protects permits, and all functions here need it held.
 */
#include <linux/jiffies.h>
#include <linux/math.h>

#include "vgpu.h"

#define VGPU_PERMIT_SECONDS	120

/**
 * vgpu_device_permitted - whether there is a permit that can still be used
 * @device: the slice
 */
bool vgpu_device_permitted(const struct vgpu_device *device)
{
	return device->permit_until && time_before(jiffies, device->permit_until);
}

/**
 * vgpu_permit_left_s - how long the permit can still be used
 * @device: the slice
 *
 * Return: seconds, rounded up; 0 without a permit.
 */
unsigned int vgpu_permit_left_s(const struct vgpu_device *device)
{
	unsigned long now = jiffies;

	if (!device->permit_until || !time_before(now, device->permit_until))
		return 0;
	return DIV_ROUND_UP(device->permit_until - now, HZ);
}

/**
 * vgpu_permit_grant - let the device be opened once, within VGPU_PERMIT_SECONDS
 * @device: the slice
 */
void vgpu_permit_grant(struct vgpu_device *device)
{
	/* 0 means that there is no permit, also when jiffies wrap. */
	device->permit_until = (jiffies + VGPU_PERMIT_SECONDS * HZ) ?: 1;
}

/**
 * vgpu_permit_withdraw - end a permit that has not been used
 * @device: the slice
 */
void vgpu_permit_withdraw(struct vgpu_device *device)
{
	device->permit_until = 0;
}

/**
 * vgpu_permit_use - spend the permit, if the parent requires one
 * @device: the slice
 *
 * The permit is spent even if opening the device fails later.
 *
 * Return: whether the device may be opened.
 */
bool vgpu_permit_use(struct vgpu_device *device)
{
	if (device->parent->attach_permit && !vgpu_device_permitted(device))
		return false;
	vgpu_permit_withdraw(device);
	return true;
}
