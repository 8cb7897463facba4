/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VGPU_DEBUGFS_H
#define VGPU_DEBUGFS_H

struct dentry;

extern struct dentry *vgpu_debugfs;	/* directory of the module */

void vgpu_debugfs_init(void);
void vgpu_debugfs_exit(void);

#endif /* VGPU_DEBUGFS_H */
