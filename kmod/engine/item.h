/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VGPU_ITEM_H
#define VGPU_ITEM_H

#include "vgpu.h"

struct vgpu_item_info vgpu_item_info(const struct vgpu_item *item);
bool vgpu_item_restarts(const struct vgpu_item *item);
enum vgpu_error vgpu_item_parse(struct vgpu_item *item, struct vgpu_memory *memory);

#endif /* VGPU_ITEM_H */
