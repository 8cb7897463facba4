// SPDX-License-Identifier: GPL-2.0
/*
 * Netlink requests about one object. A request is checked completely before
 * anything changes. A refusal names the attribute at fault.
 */
#include <linux/string.h>
#include <net/genetlink.h>

#include "control/netlink.h"

int vgpu_require(struct genl_info *info, int type)
{
	if (!GENL_REQ_ATTR_CHECK(info, type))
		return 0;
	GENL_SET_ERR_MSG(info, "a required attribute is missing");
	return -EINVAL;
}

/* Find a GPU by the attribute @type; it is locked and has a reference. */
struct vgpu_parent *vgpu_parent_lock(struct genl_info *info, int type)
{
	struct vgpu_parent *parent;

	if (vgpu_require(info, type))
		return ERR_PTR(-EINVAL);
	mutex_lock(&vgpu_parents_lock);
	parent = vgpu_parent_find(nla_data(info->attrs[type]));
	if (parent)
		kref_get(&parent->refs);
	mutex_unlock(&vgpu_parents_lock);
	if (!parent) {
		NL_SET_ERR_MSG_ATTR(info->extack, info->attrs[type], "there is no such GPU");
		return ERR_PTR(-ENODEV);
	}
	mutex_lock(&parent->lock);
	return parent;
}

/* Find a tenant by name; its GPU is locked and has a reference. */
static struct vgpu_tenant *vgpu_tenant_lock(struct genl_info *info)
{
	struct vgpu_parent *parent;
	struct vgpu_tenant *tenant;
	struct nlattr *name;

	if (vgpu_require(info, VGPUMGR_A_TENANT_TENANT))
		return ERR_PTR(-EINVAL);
	parent = vgpu_parent_lock(info, VGPUMGR_A_TENANT_GPU);
	if (IS_ERR(parent))
		return ERR_CAST(parent);
	name = info->attrs[VGPUMGR_A_TENANT_TENANT];
	tenant = vgpu_tenant_find(parent, nla_data(name));
	if (!tenant) {
		NL_SET_ERR_MSG_ATTR(info->extack, name, "tenant: unknown on this GPU");
		vgpu_parent_unlock(parent);
		return ERR_PTR(-ENOENT);
	}
	return tenant;
}

/* Find a slice by UUID; its GPU is locked and has a reference. */
static struct vgpu_device *vgpu_slice_lock(struct genl_info *info)
{
	struct vgpu_device *device;
	struct nlattr *attr;
	guid_t uuid;

	if (vgpu_require(info, VGPUMGR_A_SLICE_UUID))
		return ERR_PTR(-EINVAL);
	attr = info->attrs[VGPUMGR_A_SLICE_UUID];
	if (strlen(nla_data(attr)) != UUID_STRING_LEN || guid_parse(nla_data(attr), &uuid)) {
		NL_SET_ERR_MSG_ATTR(info->extack, attr, "uuid: malformed");
		return ERR_PTR(-EINVAL);
	}
	device = vgpu_device_lock(&uuid);
	if (!device) {
		NL_SET_ERR_MSG_ATTR(info->extack, attr, "uuid: there is no such slice");
		return ERR_PTR(-ENOENT);
	}
	return device;
}

static void vgpu_get_u32(const struct nlattr *attr, u32 *value)
{
	if (attr)
		*value = nla_get_u32(attr);
}

static void vgpu_get_us(const struct nlattr *attr, u64 *ns)
{
	if (attr)
		*ns = (u64)nla_get_u32(attr) * NSEC_PER_USEC;
}

struct sk_buff *vgpu_reply_new(struct genl_info *info, u8 command, void **header)
{
	struct sk_buff *skb = nlmsg_new(VGPU_REPLY_BYTES, GFP_KERNEL);

	if (!skb)
		return NULL;
	*header = genlmsg_put_reply(skb, info, &vgpu_family, 0, command);
	return skb;
}

int vgpu_reply_send(struct genl_info *info, struct sk_buff *skb, void *header, int ret)
{
	if (ret) {
		nlmsg_free(skb);
		return ret;
	}
	genlmsg_end(skb, header);
	return genlmsg_reply(skb, info);
}

int vgpu_gpu_get(struct sk_buff *request, struct genl_info *info)
{
	struct vgpu_parent *parent;
	struct sk_buff *skb;
	void *header;
	int ret;

	skb = vgpu_reply_new(info, VGPUMGR_CMD_GPU_GET, &header);
	if (!skb)
		return -ENOMEM;
	parent = vgpu_parent_lock(info, VGPUMGR_A_GPU_NAME);
	ret = PTR_ERR_OR_ZERO(parent);
	if (!ret) {
		ret = vgpu_put_gpu(skb, parent);
		vgpu_parent_unlock(parent);
	}
	return vgpu_reply_send(info, skb, header, ret);
}

int vgpu_tenant_get(struct sk_buff *request, struct genl_info *info)
{
	struct vgpu_tenant *tenant;
	struct sk_buff *skb;
	void *header;
	int ret;

	skb = vgpu_reply_new(info, VGPUMGR_CMD_TENANT_GET, &header);
	if (!skb)
		return -ENOMEM;
	tenant = vgpu_tenant_lock(info);
	ret = PTR_ERR_OR_ZERO(tenant);
	if (!ret) {
		ret = vgpu_put_tenant(skb, tenant);
		vgpu_parent_unlock(tenant->parent);
	}
	return vgpu_reply_send(info, skb, header, ret);
}

int vgpu_slice_get(struct sk_buff *request, struct genl_info *info)
{
	struct vgpu_device *device;
	struct sk_buff *skb;
	void *header;
	int ret;

	skb = vgpu_reply_new(info, VGPUMGR_CMD_SLICE_GET, &header);
	if (!skb)
		return -ENOMEM;
	device = vgpu_slice_lock(info);
	ret = PTR_ERR_OR_ZERO(device);
	if (!ret) {
		ret = vgpu_put_slice(skb, device);
		vgpu_parent_unlock(device->parent);
	}
	return vgpu_reply_send(info, skb, header, ret);
}

static int vgpu_tenant_check_generation(struct genl_info *info,
					const struct vgpu_tenant *tenant)
{
	struct nlattr *attr = info->attrs[VGPUMGR_A_TENANT_IF_GENERATION];

	if (!attr || nla_get_u64(attr) == (tenant ? tenant->generation : 0))
		return 0;
	NL_SET_ERR_MSG_ATTR(info->extack, attr,
			    "if-generation: differs from the tenant's generation");
	return -ESTALE;
}

/* Apply a request to a tenant's parameters. Attributes that are missing change nothing. */
static void vgpu_tenant_collect(struct genl_info *info, struct vgpu_group_params *params)
{
	struct nlattr **attrs = info->attrs;

	vgpu_get_u32(attrs[VGPUMGR_A_TENANT_WEIGHT], &params->weight);
	vgpu_get_us(attrs[VGPUMGR_A_TENANT_TIMESLICE_US], &params->timeslice_ns);
	vgpu_get_us(attrs[VGPUMGR_A_TENANT_CAP_US], &params->cap_ns);
	vgpu_get_us(attrs[VGPUMGR_A_TENANT_CAP_PERIOD_US], &params->cap_period_ns);
	vgpu_get_us(attrs[VGPUMGR_A_TENANT_BURST_US], &params->burst_ns);
	if (attrs[VGPUMGR_A_TENANT_MODE])
		params->mode = nla_get_u32(attrs[VGPUMGR_A_TENANT_MODE]);
	if (attrs[VGPUMGR_A_TENANT_BAND])
		params->band = nla_get_u32(attrs[VGPUMGR_A_TENANT_BAND]);
	if (attrs[VGPUMGR_A_TENANT_BAND] && params->band == VGPU_BAND_FAIR) {
		params->reserve_ns = 0;
		params->reserve_period_ns = 0;
		params->hold_max_ns = 0;
		params->inversion_permille = 0;
		params->inversion_burst_ns = 0;
	}
	vgpu_get_us(attrs[VGPUMGR_A_TENANT_RESERVE_US], &params->reserve_ns);
	vgpu_get_us(attrs[VGPUMGR_A_TENANT_RESERVE_PERIOD_US], &params->reserve_period_ns);
	vgpu_get_us(attrs[VGPUMGR_A_TENANT_HOLD_MAX_US], &params->hold_max_ns);
	vgpu_get_u32(attrs[VGPUMGR_A_TENANT_INVERSION_PERMILLE], &params->inversion_permille);
	vgpu_get_us(attrs[VGPUMGR_A_TENANT_INVERSION_BURST_US], &params->inversion_burst_ns);
}

static int vgpu_tenant_apply(struct genl_info *info, struct vgpu_parent *parent)
{
	struct nlattr **attrs = info->attrs;
	const char *name = nla_data(attrs[VGPUMGR_A_TENANT_TENANT]);
	struct vgpu_tenant *tenant = vgpu_tenant_find(parent, name);
	struct vgpu_group_params params = { };
	enum vgpu_sched_field fault;
	int ret;

	if (parent->removed) {
		NL_SET_ERR_MSG_ATTR(info->extack, attrs[VGPUMGR_A_TENANT_GPU],
				    "the GPU is being removed");
		return -ENODEV;
	}
	ret = vgpu_tenant_check_generation(info, tenant);
	if (ret)
		return ret;
	if (tenant && tenant->configured) {
		params = tenant->params;
	} else {
		ret = vgpu_require(info, VGPUMGR_A_TENANT_WEIGHT) ?:
		      vgpu_require(info, VGPUMGR_A_TENANT_TIMESLICE_US);
		if (ret)
			return ret;
	}
	vgpu_tenant_collect(info, &params);
	ret = vgpu_tenant_configure(parent, name, &params, &fault);
	if (ret == -ERANGE || ret == -ENOSPC)
		vgpu_refuse_tenant(info, fault, parent, &params);
	else if (ret == -EINVAL)
		NL_SET_ERR_MSG_ATTR(info->extack, attrs[VGPUMGR_A_TENANT_TENANT],
				    "tenant: not 1 to 63 characters of A-Z a-z 0-9 . _ -");
	return ret;
}

int vgpu_tenant_set(struct sk_buff *request, struct genl_info *info)
{
	struct vgpu_parent *parent;
	struct sk_buff *skb;
	u64 generation = 0;
	void *header;
	int ret;

	ret = vgpu_require(info, VGPUMGR_A_TENANT_TENANT);
	if (ret)
		return ret;
	/*
	 * Allocate the reply before the change, because a request that has
	 * changed something must not fail.
	 */
	skb = vgpu_reply_new(info, VGPUMGR_CMD_TENANT_SET, &header);
	if (!skb)
		return -ENOMEM;
	parent = vgpu_parent_lock(info, VGPUMGR_A_TENANT_GPU);
	ret = PTR_ERR_OR_ZERO(parent);
	if (!ret) {
		ret = vgpu_tenant_apply(info, parent);
		if (!ret)
			generation = vgpu_tenant_find(parent, nla_data(info->attrs
						[VGPUMGR_A_TENANT_TENANT]))->generation;
		vgpu_parent_unlock(parent);
	}
	if (!ret)
		ret = nla_put_u64_64bit(skb, VGPUMGR_A_TENANT_GENERATION, generation,
					VGPUMGR_A_TENANT_PAD);
	return vgpu_reply_send(info, skb, header, ret);
}

int vgpu_tenant_del(struct sk_buff *request, struct genl_info *info)
{
	struct vgpu_parent *parent;
	struct vgpu_tenant *tenant;
	int ret;

	tenant = vgpu_tenant_lock(info);
	if (IS_ERR(tenant))
		return PTR_ERR(tenant);
	parent = tenant->parent;
	ret = vgpu_tenant_unconfigure(tenant);
	if (ret)
		NL_SET_ERR_MSG_ATTR(info->extack, info->attrs[VGPUMGR_A_TENANT_TENANT],
				    "tenant: slices still use it");
	vgpu_parent_unlock(parent);
	return ret;
}

static int vgpu_slice_apply(struct genl_info *info, struct vgpu_device *device)
{
	struct nlattr **attrs = info->attrs;
	struct nlattr *tenant = attrs[VGPUMGR_A_SLICE_TENANT];
	struct vgpu_slice_params params = device->params;
	bool unassign = tenant && !*(const char *)nla_data(tenant);
	enum vgpu_sched_field fault;
	int ret;

	vgpu_get_u32(attrs[VGPUMGR_A_SLICE_WEIGHT], &params.weight);
	vgpu_get_us(attrs[VGPUMGR_A_SLICE_CAP_US], &params.cap_ns);
	vgpu_get_us(attrs[VGPUMGR_A_SLICE_CAP_PERIOD_US], &params.cap_period_ns);
	vgpu_get_us(attrs[VGPUMGR_A_SLICE_BURST_US], &params.burst_ns);
	if (unassign && device->tenant && READ_ONCE(device->open))
		ret = -EBUSY;
	else if (tenant && !unassign)
		ret = vgpu_device_assign(device, nla_data(tenant), &params, &fault);
	else
		ret = vgpu_device_set_params(device, &params, &fault);
	if (!ret && unassign)
		vgpu_device_unassign(device);

	if (ret == -ERANGE || ret == -ENOSPC)
		vgpu_refuse_slice(info, fault, device->parent, &params);
	else if (ret == -EINVAL)
		NL_SET_ERR_MSG_ATTR(info->extack, tenant,
				    "tenant: not 1 to 63 characters of A-Z a-z 0-9 . _ -");
	else if (ret == -EBUSY)
		NL_SET_ERR_MSG_ATTR(info->extack, tenant, "tenant: the slice is open");
	else if (ret == -ENOENT)
		NL_SET_ERR_MSG_ATTR(info->extack, attrs[VGPUMGR_A_SLICE_UUID],
				    "uuid: the slice is being removed");
	return ret;
}

int vgpu_slice_set(struct sk_buff *request, struct genl_info *info)
{
	struct vgpu_device *device;
	struct vgpu_parent *parent;
	int ret;

	device = vgpu_slice_lock(info);
	if (IS_ERR(device))
		return PTR_ERR(device);
	parent = device->parent;
	ret = vgpu_slice_apply(info, device);
	vgpu_parent_unlock(parent);
	return ret;
}
