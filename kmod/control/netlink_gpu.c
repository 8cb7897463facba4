// SPDX-License-Identifier: GPL-2.0
/* Netlink requests that change how a GPU is shared, or that adopt or release it. */
#include <net/genetlink.h>

#include "control/adopt.h"
#include "control/netlink.h"
#include "control/policy.h"
#include "engine/engine.h"

static void vgpu_gpu_collect(struct genl_info *info, struct vgpu_sched_params *params)
{
	struct nlattr **attrs = info->attrs;

	if (attrs[VGPUMGR_A_GPU_POLICY])
		vgpu_policy_choose(params, nla_get_u32(attrs[VGPUMGR_A_GPU_POLICY]));
	if (attrs[VGPUMGR_A_GPU_PLACES])
		params->places = nla_get_u32(attrs[VGPUMGR_A_GPU_PLACES]);
	if (attrs[VGPUMGR_A_GPU_RESERVE_LIMIT_PERMILLE])
		params->reserve_limit_permille =
			nla_get_u32(attrs[VGPUMGR_A_GPU_RESERVE_LIMIT_PERMILLE]);
	if (attrs[VGPUMGR_A_GPU_MAX_CHUNK_US])
		params->max_chunk_ns =
			(u64)nla_get_u32(attrs[VGPUMGR_A_GPU_MAX_CHUNK_US]) * NSEC_PER_USEC;
}

static int vgpu_gpu_apply(struct genl_info *info, struct vgpu_parent *parent)
{
	struct nlattr *generation = info->attrs[VGPUMGR_A_GPU_IF_GENERATION];
	struct vgpu_sched_params params;
	enum vgpu_sched_field fault;
	int ret;

	if (parent->removed) {
		NL_SET_ERR_MSG_ATTR(info->extack, info->attrs[VGPUMGR_A_GPU_NAME],
				    "the GPU is being removed");
		return -ENODEV;
	}
	if (generation && nla_get_u64(generation) != parent->generation) {
		NL_SET_ERR_MSG_ATTR(info->extack, generation,
				    "if-generation: differs from the GPU's generation");
		return -ESTALE;
	}
	params = vgpu_engine_params(&parent->engine);
	vgpu_gpu_collect(info, &params);
	ret = vgpu_parent_configure(parent, &params, &fault);
	if (ret)
		vgpu_refuse_gpu(info, fault, ret == -EBUSY);
	return ret;
}

int vgpu_gpu_set(struct sk_buff *request, struct genl_info *info)
{
	struct vgpu_parent *parent;
	struct sk_buff *skb;
	u64 generation = 0;
	void *header;
	int ret;

	/*
	 * Allocate the reply before the change, because a request that has
	 * changed something must not fail.
	 */
	skb = vgpu_reply_new(info, VGPUMGR_CMD_GPU_SET, &header);
	if (!skb)
		return -ENOMEM;
	parent = vgpu_parent_lock(info, VGPUMGR_A_GPU_NAME);
	ret = PTR_ERR_OR_ZERO(parent);
	if (!ret) {
		ret = vgpu_gpu_apply(info, parent);
		generation = parent->generation;
		vgpu_parent_unlock(parent);
	}
	if (!ret)
		ret = nla_put_u64_64bit(skb, VGPUMGR_A_GPU_GENERATION, generation,
					VGPUMGR_A_GPU_PAD);
	return vgpu_reply_send(info, skb, header, ret);
}

int vgpu_gpu_adopt(struct sk_buff *request, struct genl_info *info)
{
	struct nlattr *attach = info->attrs[VGPUMGR_A_GPU_ATTACH];
	int ret;

	ret = vgpu_require(info, VGPUMGR_A_GPU_NAME);
	if (ret)
		return ret;
	ret = vgpu_adopt(nla_data(info->attrs[VGPUMGR_A_GPU_NAME]),
			 attach && nla_get_u32(attach) == VGPUMGR_ATTACH_PERMIT);
	if (ret)
		vgpu_refuse_adoption(info, ret);
	return ret;
}

int vgpu_gpu_release(struct sk_buff *request, struct genl_info *info)
{
	struct nlattr *name = info->attrs[VGPUMGR_A_GPU_NAME];
	int ret;

	ret = vgpu_require(info, VGPUMGR_A_GPU_NAME);
	if (ret)
		return ret;
	ret = vgpu_release(nla_data(name));
	if (ret == -ENODEV)
		NL_SET_ERR_MSG_ATTR(info->extack, name, "name: there is no such adopted GPU");
	else if (ret == -EBUSY)
		NL_SET_ERR_MSG_ATTR(info->extack, name, "name: the GPU has slices");
	return ret;
}
