/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VGPU_NETLINK_H
#define VGPU_NETLINK_H

#include <net/genetlink.h>

#include "vgpu.h"
#include "uapi/vgpumgr_netlink.h"

/* Fits any reply; the longest is a tenant with every bucket of its histogram. */
#define VGPU_REPLY_BYTES	8192

/* Index into vgpu_family.mcgrps. */
#define VGPU_GROUP_EVENTS	0

#define VGPU_GPU_NAME_BYTES	sizeof_field(struct vgpu_parent, name)

/* netlink.c */
extern struct genl_family vgpu_family;
unsigned int vgpu_netlink_objects(void);	/* changes when objects are added or removed */

/* netlink_request.c */
int vgpu_require(struct genl_info *info, int type);
struct vgpu_parent *vgpu_parent_lock(struct genl_info *info, int type);
struct sk_buff *vgpu_reply_new(struct genl_info *info, u8 command, void **header);
int vgpu_reply_send(struct genl_info *info, struct sk_buff *skb, void *header, int ret);
int vgpu_gpu_get(struct sk_buff *request, struct genl_info *info);
int vgpu_tenant_get(struct sk_buff *request, struct genl_info *info);
int vgpu_tenant_set(struct sk_buff *request, struct genl_info *info);
int vgpu_tenant_del(struct sk_buff *request, struct genl_info *info);
int vgpu_slice_get(struct sk_buff *request, struct genl_info *info);
int vgpu_slice_set(struct sk_buff *request, struct genl_info *info);

/* netlink_gpu.c */
int vgpu_gpu_set(struct sk_buff *request, struct genl_info *info);
int vgpu_gpu_adopt(struct sk_buff *request, struct genl_info *info);
int vgpu_gpu_release(struct sk_buff *request, struct genl_info *info);

/* netlink_refuse.c */
void vgpu_refuse_adoption(struct genl_info *info, int ret);
void vgpu_refuse_gpu(struct genl_info *info, enum vgpu_sched_field fault, bool in_use);
void vgpu_refuse_tenant(struct genl_info *info, enum vgpu_sched_field fault,
			const struct vgpu_parent *parent, const struct vgpu_group_params *params);
void vgpu_refuse_slice(struct genl_info *info, enum vgpu_sched_field fault,
		       const struct vgpu_parent *parent, const struct vgpu_slice_params *params);

/* netlink_dump.c */
int vgpu_gpus_dump_start(struct netlink_callback *cb);
int vgpu_gpus_dump(struct sk_buff *skb, struct netlink_callback *cb);
int vgpu_tenants_dump_start(struct netlink_callback *cb);
int vgpu_tenants_dump(struct sk_buff *skb, struct netlink_callback *cb);
int vgpu_slices_dump_start(struct netlink_callback *cb);
int vgpu_slices_dump(struct sk_buff *skb, struct netlink_callback *cb);

/* netlink_reply.c: parent->lock held */
int vgpu_put_gpu(struct sk_buff *skb, struct vgpu_parent *parent);
int vgpu_put_tenant(struct sk_buff *skb, struct vgpu_tenant *tenant);
int vgpu_put_slice(struct sk_buff *skb, struct vgpu_device *device);

#endif /* VGPU_NETLINK_H */
