// SPDX-License-Identifier: GPL-2.0
/*
 * vgpumgr guest driver: an address space for the mappings of one open window.
 *
 * A mapping can only be removed through the address space of its file. The address
 * space of the node's inode cannot be used: all windows share it, and a container
 * with its own node has another one.
 */
#include <linux/fs.h>
#include <linux/mount.h>
#include <linux/pseudo_fs.h>

#include "guest.h"

static struct vfsmount *vgpu_space_mount;
static int vgpu_space_count;

static int vgpu_space_init_context(struct fs_context *context)
{
	return init_pseudo(context, VGPU_ID) ? 0 : -ENOMEM;
}

static struct file_system_type vgpu_space_type = {
	.name = "vgpu_guest",
	.owner = THIS_MODULE,
	.init_fs_context = vgpu_space_init_context,
	.kill_sb = kill_anon_super,
};

/**
 * vgpu_space_create - create an inode for one window only
 *
 * Return: the inode, or -ENOMEM as a pointer.
 */
struct inode *vgpu_space_create(void)
{
	struct inode *space;
	int rc;

	rc = simple_pin_fs(&vgpu_space_type, &vgpu_space_mount, &vgpu_space_count);
	if (rc)
		return ERR_PTR(rc);
	space = alloc_anon_inode(vgpu_space_mount->mnt_sb);
	if (IS_ERR(space))
		simple_release_fs(&vgpu_space_mount, &vgpu_space_count);
	return space;
}

/**
 * vgpu_space_free - undo vgpu_space_create()
 * @space: the inode, without mappings
 */
void vgpu_space_free(struct inode *space)
{
	iput(space);
	simple_release_fs(&vgpu_space_mount, &vgpu_space_count);
}
