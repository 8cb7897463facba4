// SPDX-License-Identifier: GPL-2.0
/*
 * Netlink dumps. They iterate over objects in an order that does not depend on
 * the lists (GPUs by name, tenants by id, slices by UUID) and remember the last
 * object written, so objects may be added and removed meanwhile.
 */
#include <linux/string.h>
#include <net/genetlink.h>

#include "control/netlink.h"

/**
 * struct vgpu_cursor - the last object a dump has written
 * @gpu: GPU of that object, or the only GPU to dump
 * @only: dump no other GPU
 * @begun: @gpu was found
 * @gpu_done: everything of @gpu is written
 * @tenant: id of the last tenant of @gpu, 0 before the first
 * @slice: UUID of the last slice of @gpu; valid with @slice_valid
 * @slice_valid: a slice of @gpu was written
 */
struct vgpu_cursor {
	char gpu[VGPU_GPU_NAME_BYTES];
	bool only;
	bool begun;
	bool gpu_done;
	bool slice_valid;
	union {
		u64 tenant;
		guid_t slice;
	};
};

static struct vgpu_cursor *vgpu_cursor(struct netlink_callback *cb)
{
	BUILD_BUG_ON(sizeof(struct vgpu_cursor) > sizeof(cb->ctx));
	return (struct vgpu_cursor *)cb->ctx;
}

int vgpu_gpus_dump_start(struct netlink_callback *cb)
{
	cb->min_dump_alloc = VGPU_REPLY_BYTES;
	cb->prev_seq = vgpu_netlink_objects();
	return 0;
}

/* Begin a dump, optionally of one GPU. */
static int vgpu_dump_start(struct netlink_callback *cb, int type)
{
	struct nlattr *gpu = vgpu_dump_attrs(cb)[type];
	struct vgpu_cursor *cursor = vgpu_cursor(cb);

	if (gpu) {
		strscpy(cursor->gpu, nla_data(gpu), sizeof(cursor->gpu));
		cursor->only = true;
	}
	return vgpu_gpus_dump_start(cb);
}

int vgpu_tenants_dump_start(struct netlink_callback *cb)
{
	return vgpu_dump_start(cb, VGPUMGR_A_TENANT_GPU);
}

int vgpu_slices_dump_start(struct netlink_callback *cb)
{
	return vgpu_dump_start(cb, VGPUMGR_A_SLICE_GPU);
}

/* The GPU to continue with, locked and with a reference; NULL at the end. */
static struct vgpu_parent *vgpu_cursor_parent(struct vgpu_cursor *cursor)
{
	struct vgpu_parent *next = vgpu_parent_next(cursor->gpu, !cursor->gpu_done);
	bool other = next && strcmp(next->name, cursor->gpu);

	if (other && cursor->only) {
		vgpu_parent_put(next);
		return NULL;
	}
	if (!next)
		return NULL;
	if (other) {
		memset(cursor, 0, sizeof(*cursor));
		strscpy(cursor->gpu, next->name, sizeof(cursor->gpu));
	}
	mutex_lock(&next->lock);
	return next;
}

static void *vgpu_dump_put(struct sk_buff *skb, struct netlink_callback *cb, u8 command)
{
	void *header = genlmsg_put(skb, NETLINK_CB(cb->skb).portid, cb->nlh->nlmsg_seq,
				   &vgpu_family, NLM_F_MULTI, command);

	if (header)
		genl_dump_check_consistent(cb, header);
	return header;
}

static int vgpu_dump_end(struct sk_buff *skb, void *header, int ret)
{
	if (ret)
		genlmsg_cancel(skb, header);
	else
		genlmsg_end(skb, header);
	return ret;
}

static int vgpu_dump_gpu(struct sk_buff *skb, struct netlink_callback *cb,
			 struct vgpu_parent *parent)
{
	void *header = vgpu_dump_put(skb, cb, VGPUMGR_CMD_GPU_GET);

	return header ? vgpu_dump_end(skb, header, vgpu_put_gpu(skb, parent)) : -EMSGSIZE;
}

static int vgpu_dump_tenants(struct sk_buff *skb, struct netlink_callback *cb,
			     struct vgpu_parent *parent)
{
	struct vgpu_cursor *cursor = vgpu_cursor(cb);
	struct vgpu_tenant *tenant;

	list_for_each_entry(tenant, &parent->tenants, node) {
		void *header;

		if (tenant->id <= cursor->tenant)
			continue;
		header = vgpu_dump_put(skb, cb, VGPUMGR_CMD_TENANT_GET);
		if (!header || vgpu_dump_end(skb, header, vgpu_put_tenant(skb, tenant)))
			return -EMSGSIZE;
		cursor->tenant = tenant->id;
	}
	return 0;
}

static struct vgpu_device *vgpu_cursor_device(struct vgpu_cursor *cursor,
					      struct vgpu_parent *parent)
{
	struct vgpu_device *next = NULL;
	struct vgpu_device *device;

	list_for_each_entry(device, &parent->devices, node) {
		if (cursor->slice_valid &&
		    memcmp(&device->uuid, &cursor->slice, sizeof(guid_t)) <= 0)
			continue;
		if (!next || memcmp(&device->uuid, &next->uuid, sizeof(guid_t)) < 0)
			next = device;
	}
	return next;
}

static int vgpu_dump_slices(struct sk_buff *skb, struct netlink_callback *cb,
			    struct vgpu_parent *parent)
{
	struct vgpu_cursor *cursor = vgpu_cursor(cb);
	struct vgpu_device *device;

	while ((device = vgpu_cursor_device(cursor, parent))) {
		void *header = vgpu_dump_put(skb, cb, VGPUMGR_CMD_SLICE_GET);

		if (!header || vgpu_dump_end(skb, header, vgpu_put_slice(skb, device)))
			return -EMSGSIZE;
		cursor->slice = device->uuid;
		cursor->slice_valid = true;
	}
	return 0;
}

static int vgpu_dump(struct sk_buff *skb, struct netlink_callback *cb,
		     int (*dump)(struct sk_buff *skb, struct netlink_callback *cb,
				 struct vgpu_parent *parent))
{
	struct vgpu_cursor *cursor = vgpu_cursor(cb);
	struct vgpu_parent *parent;
	int ret = 0;

	cb->seq = vgpu_netlink_objects();
	while (!ret && (parent = vgpu_cursor_parent(cursor))) {
		cursor->begun = true;
		ret = dump(skb, cb, parent);
		cursor->gpu_done = !ret;
		vgpu_parent_unlock(parent);
	}
	/*
	 * No step holds all locks at once, so objects may be added or removed
	 * between steps. This number makes the next or last message report such
	 * a change.
	 */
	cb->seq = vgpu_netlink_objects();
	/*
	 * This check is not made at the start of the dump, because Linux 6.1
	 * cannot return an error text there.
	 */
	if (cursor->only && !cursor->begun) {
		NL_SET_ERR_MSG(cb->extack, "gpu: there is no such GPU");
		return -ENODEV;
	}
	return ret && skb->len ? skb->len : ret;
}

int vgpu_gpus_dump(struct sk_buff *skb, struct netlink_callback *cb)
{
	return vgpu_dump(skb, cb, vgpu_dump_gpu);
}

int vgpu_tenants_dump(struct sk_buff *skb, struct netlink_callback *cb)
{
	return vgpu_dump(skb, cb, vgpu_dump_tenants);
}

int vgpu_slices_dump(struct sk_buff *skb, struct netlink_callback *cb)
{
	return vgpu_dump(skb, cb, vgpu_dump_slices);
}
