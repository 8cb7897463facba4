/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VGPU_DEBUGFS_H
#define VGPU_DEBUGFS_H

void vgpu_debugfs_init(void);
void vgpu_debugfs_exit(void);

#endif /* VGPU_DEBUGFS_H */
