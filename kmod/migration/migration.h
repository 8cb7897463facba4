/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VGPU_MIGRATION_H
#define VGPU_MIGRATION_H

#include "vgpu.h"

void vgpu_migration_init(struct vgpu_device *device);
void vgpu_migration_end(struct vgpu_device *device);	/* state_lock held */
void vgpu_migration_reset(struct vgpu_device *device);	/* state_lock held */

#endif /* VGPU_MIGRATION_H */
