// SPDX-License-Identifier: GPL-2.0
/* vgpumgr guest driver: sysfs attributes of /dev/vgpuN-compute. */
#include <linux/sysfs.h>

#include "guest.h"

static const char *const vgpu_state_names[] = {
	[VGPU_WINDOW_FREE] = "free",
	[VGPU_WINDOW_OPEN] = "open",
	[VGPU_WINDOW_CLOSING] = "closing",
	[VGPU_WINDOW_LOST] = "lost",
};

static ssize_t size_show(struct device *node, struct device_attribute *attr, char *buf)
{
	struct vgpu_windows *windows = container_of(node, struct vgpu_windows, node);

	return sysfs_emit(buf, "%u\n", windows->bytes);
}
static DEVICE_ATTR_RO(size);

static ssize_t states_show(struct device *node, struct device_attribute *attr, char *buf)
{
	struct vgpu_windows *windows = container_of(node, struct vgpu_windows, node);
	struct vgpu_guest *guest = windows->guest;
	u32 states, number;
	ssize_t length = 0;
	int rc;

	mutex_lock(&guest->lock);
	rc = guest->gone ? -ENODEV : vgpu_windows_states(guest, &states);
	mutex_unlock(&guest->lock);
	if (rc)
		return rc;
	for (number = 0; number < windows->count; number++)
		length += sysfs_emit_at(buf, length, "%s%s", number ? " " : "",
					vgpu_state_names[vgpu_window_state(states, number)]);
	return length + sysfs_emit_at(buf, length, "\n");
}
static DEVICE_ATTR_RO(states);

static struct attribute *vgpu_node_attrs[] = {
	&dev_attr_size.attr,
	&dev_attr_states.attr,
	NULL
};

static const struct attribute_group vgpu_node_group = {
	.attrs = vgpu_node_attrs,
};

const struct attribute_group *vgpu_node_groups[] = {
	&vgpu_node_group,
	NULL
};
