/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VGPU_ADOPT_H
#define VGPU_ADOPT_H

#include <linux/types.h>

int vgpu_adopt(const char *name, bool attach_permit);
int vgpu_release(const char *name);

int vgpu_adoption_init(void);
void vgpu_adoption_end(void);
void vgpu_adoption_exit(void);

#endif /* VGPU_ADOPT_H */
