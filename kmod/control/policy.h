/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VGPU_POLICY_H
#define VGPU_POLICY_H

#include <linux/device.h>

#include "vgpu.h"

void vgpu_policy_choose(struct vgpu_sched_params *params, enum vgpu_policy policy);
int vgpu_parent_configure(struct vgpu_parent *parent, const struct vgpu_sched_params *params,
			  enum vgpu_sched_field *fault);

/* Attributes of an accelerator; its other attributes are in parent.c. */
extern struct device_attribute dev_attr_policy;
extern struct device_attribute dev_attr_places;
extern struct device_attribute dev_attr_reserve_limit_permille;
extern struct device_attribute dev_attr_max_chunk_us;

#endif /* VGPU_POLICY_H */
