// SPDX-License-Identifier: GPL-2.0
/*
 * The generic netlink family "vgpumgr" of GPUs, tenants and slices. Anybody can read them;
 * changes need CAP_NET_ADMIN. See uapi/vgpumgr.yaml.
 */
#include <linux/atomic.h>
#include <linux/module.h>
#include <net/genetlink.h>

#include "control/netlink.h"

/*
 * Counts additions and removals of objects in steps of two. It is odd, so it never wraps to 0,
 * which means unknown in a dump.
 */
static atomic_t vgpu_objects_seq = ATOMIC_INIT(1);

/* Not const, because the policy takes a plain pointer before 6.8. */
static struct netlink_range_validation vgpu_weight_range = {
	.min = VGPU_WEIGHT_MIN,
	.max = VGPU_WEIGHT_MAX,
};

static struct netlink_range_validation vgpu_timeslice_us_range = {
	.max = VGPU_TIMESLICE_MAX_NS / NSEC_PER_USEC,
};

static struct netlink_range_validation vgpu_cap_us_range = {
	.max = VGPU_CAP_PERIOD_MAX_NS / NSEC_PER_USEC,
};

static struct netlink_range_validation vgpu_cap_period_us_range = {
	.min = VGPU_CAP_PERIOD_MIN_NS / NSEC_PER_USEC,
	.max = VGPU_CAP_PERIOD_MAX_NS / NSEC_PER_USEC,
};

static struct netlink_range_validation vgpu_burst_us_range = {
	.max = VGPU_BURST_MAX_NS / NSEC_PER_USEC,
};

static struct netlink_range_validation vgpu_max_chunk_us_range = {
	.min = VGPU_CHUNK_MIN_NS / NSEC_PER_USEC,
	.max = VGPU_CHUNK_MAX_NS / NSEC_PER_USEC,
};

static struct netlink_range_validation vgpu_reserve_us_range = {
	.max = VGPU_RESERVE_PERIOD_MAX_NS / NSEC_PER_USEC,
};

static struct netlink_range_validation vgpu_hold_us_range = {
	.max = VGPU_HOLD_MAX_NS / NSEC_PER_USEC,
};

/* The numbers on the wire are those of the scheduler. */
static_assert((int)VGPUMGR_POLICY_BEST_EFFORT == VGPU_POLICY_BEST_EFFORT);
static_assert((int)VGPUMGR_POLICY_EQUAL_SHARE == VGPU_POLICY_EQUAL_SHARE);
static_assert((int)VGPUMGR_POLICY_FIXED_SHARE == VGPU_POLICY_FIXED_SHARE);
static_assert((int)VGPUMGR_MODE_FAIR == VGPU_MODE_FAIR);
static_assert((int)VGPUMGR_MODE_STRICT == VGPU_MODE_STRICT);
static_assert((int)VGPUMGR_BAND_FAIR == VGPU_BAND_FAIR);
static_assert((int)VGPUMGR_BAND_LATENCY == VGPU_BAND_LATENCY);

static const struct nla_policy vgpu_gpu_policy[VGPUMGR_A_GPU_NAME + 1] = {
	[VGPUMGR_A_GPU_NAME] = { .type = NLA_NUL_STRING, .len = VGPU_GPU_NAME_BYTES - 1 },
};

static const struct nla_policy vgpu_gpu_adopt_policy[VGPUMGR_A_GPU_ATTACH + 1] = {
	[VGPUMGR_A_GPU_NAME] = { .type = NLA_NUL_STRING, .len = VGPU_GPU_NAME_BYTES - 1 },
	[VGPUMGR_A_GPU_ATTACH] = NLA_POLICY_MAX(NLA_U32, VGPUMGR_ATTACH_PERMIT),
};

static const struct nla_policy vgpu_gpu_set_policy[VGPUMGR_A_GPU_IF_GENERATION + 1] = {
	[VGPUMGR_A_GPU_NAME] = { .type = NLA_NUL_STRING, .len = VGPU_GPU_NAME_BYTES - 1 },
	[VGPUMGR_A_GPU_MAX_CHUNK_US] =
		NLA_POLICY_FULL_RANGE(NLA_U32, &vgpu_max_chunk_us_range),
	[VGPUMGR_A_GPU_POLICY] = NLA_POLICY_MAX(NLA_U32, VGPUMGR_POLICY_FIXED_SHARE),
	[VGPUMGR_A_GPU_PLACES] = NLA_POLICY_MAX(NLA_U32, VGPU_PLACES_MAX),
	[VGPUMGR_A_GPU_RESERVE_LIMIT_PERMILLE] =
		NLA_POLICY_MAX(NLA_U32, VGPU_RESERVE_LIMIT_MAX),
	[VGPUMGR_A_GPU_IF_GENERATION] = { .type = NLA_U64 },
};

static const struct nla_policy vgpu_tenant_policy[VGPUMGR_A_TENANT_TENANT + 1] = {
	[VGPUMGR_A_TENANT_GPU] = { .type = NLA_NUL_STRING, .len = VGPU_GPU_NAME_BYTES - 1 },
	[VGPUMGR_A_TENANT_TENANT] = { .type = NLA_NUL_STRING,
				      .len = VGPU_TENANT_NAME_BYTES - 1 },
};

static const struct nla_policy
vgpu_tenant_set_policy[VGPUMGR_A_TENANT_INVERSION_BURST_US + 1] = {
	[VGPUMGR_A_TENANT_GPU] = { .type = NLA_NUL_STRING, .len = VGPU_GPU_NAME_BYTES - 1 },
	[VGPUMGR_A_TENANT_TENANT] = { .type = NLA_NUL_STRING,
				      .len = VGPU_TENANT_NAME_BYTES - 1 },
	[VGPUMGR_A_TENANT_WEIGHT] = NLA_POLICY_FULL_RANGE(NLA_U32, &vgpu_weight_range),
	[VGPUMGR_A_TENANT_TIMESLICE_US] =
		NLA_POLICY_FULL_RANGE(NLA_U32, &vgpu_timeslice_us_range),
	[VGPUMGR_A_TENANT_CAP_US] = NLA_POLICY_FULL_RANGE(NLA_U32, &vgpu_cap_us_range),
	[VGPUMGR_A_TENANT_CAP_PERIOD_US] =
		NLA_POLICY_FULL_RANGE(NLA_U32, &vgpu_cap_period_us_range),
	[VGPUMGR_A_TENANT_BURST_US] = NLA_POLICY_FULL_RANGE(NLA_U32, &vgpu_burst_us_range),
	[VGPUMGR_A_TENANT_IF_GENERATION] = { .type = NLA_U64 },
	[VGPUMGR_A_TENANT_MODE] = NLA_POLICY_MAX(NLA_U32, VGPUMGR_MODE_STRICT),
	[VGPUMGR_A_TENANT_BAND] = NLA_POLICY_MAX(NLA_U32, VGPUMGR_BAND_LATENCY),
	[VGPUMGR_A_TENANT_RESERVE_US] = NLA_POLICY_FULL_RANGE(NLA_U32, &vgpu_reserve_us_range),
	[VGPUMGR_A_TENANT_RESERVE_PERIOD_US] =
		NLA_POLICY_FULL_RANGE(NLA_U32, &vgpu_reserve_us_range),
	[VGPUMGR_A_TENANT_HOLD_MAX_US] = NLA_POLICY_FULL_RANGE(NLA_U32, &vgpu_hold_us_range),
	[VGPUMGR_A_TENANT_INVERSION_PERMILLE] = NLA_POLICY_MAX(NLA_U32, 1000),
	[VGPUMGR_A_TENANT_INVERSION_BURST_US] =
		NLA_POLICY_FULL_RANGE(NLA_U32, &vgpu_burst_us_range),
};

static const struct nla_policy vgpu_slice_policy[VGPUMGR_A_SLICE_UUID + 1] = {
	[VGPUMGR_A_SLICE_GPU] = { .type = NLA_NUL_STRING, .len = VGPU_GPU_NAME_BYTES - 1 },
	[VGPUMGR_A_SLICE_UUID] = { .type = NLA_NUL_STRING, .len = UUID_STRING_LEN },
};

static const struct nla_policy vgpu_slice_set_policy[VGPUMGR_A_SLICE_BURST_US + 1] = {
	[VGPUMGR_A_SLICE_UUID] = { .type = NLA_NUL_STRING, .len = UUID_STRING_LEN },
	[VGPUMGR_A_SLICE_TENANT] = { .type = NLA_NUL_STRING,
				     .len = VGPU_TENANT_NAME_BYTES - 1 },
	[VGPUMGR_A_SLICE_WEIGHT] = NLA_POLICY_FULL_RANGE(NLA_U32, &vgpu_weight_range),
	[VGPUMGR_A_SLICE_CAP_US] = NLA_POLICY_FULL_RANGE(NLA_U32, &vgpu_cap_us_range),
	[VGPUMGR_A_SLICE_CAP_PERIOD_US] =
		NLA_POLICY_FULL_RANGE(NLA_U32, &vgpu_cap_period_us_range),
	[VGPUMGR_A_SLICE_BURST_US] = NLA_POLICY_FULL_RANGE(NLA_U32, &vgpu_burst_us_range),
};

/*
 * Reading and listening need no privilege, but only work in the initial network namespace: the
 * agent does both and has no privilege. Names and counters are not secret among the host's own
 * processes, like those of cgroups. CAP_NET_ADMIN, permits, and the modes of VFIO's devices
 * and of /dev/vgpumgr-exec protect the objects that a name refers to.
 */
static const struct genl_ops vgpu_ops[] = {
	{
		.cmd = VGPUMGR_CMD_GPU_GET,
		.doit = vgpu_gpu_get,
		.start = vgpu_gpus_dump_start,
		.dumpit = vgpu_gpus_dump,
		.policy = vgpu_gpu_policy,
		.maxattr = VGPUMGR_A_GPU_NAME,
	},
	{
		.cmd = VGPUMGR_CMD_GPU_SET,
		.flags = GENL_ADMIN_PERM,
		.doit = vgpu_gpu_set,
		.policy = vgpu_gpu_set_policy,
		.maxattr = VGPUMGR_A_GPU_IF_GENERATION,
	},
	{
		.cmd = VGPUMGR_CMD_GPU_ADOPT,
		.flags = GENL_ADMIN_PERM,
		.doit = vgpu_gpu_adopt,
		.policy = vgpu_gpu_adopt_policy,
		.maxattr = VGPUMGR_A_GPU_ATTACH,
	},
	{
		.cmd = VGPUMGR_CMD_GPU_RELEASE,
		.flags = GENL_ADMIN_PERM,
		.doit = vgpu_gpu_release,
		.policy = vgpu_gpu_policy,
		.maxattr = VGPUMGR_A_GPU_NAME,
	},
	{
		.cmd = VGPUMGR_CMD_TENANT_GET,
		.doit = vgpu_tenant_get,
		.start = vgpu_tenants_dump_start,
		.dumpit = vgpu_tenants_dump,
		.policy = vgpu_tenant_policy,
		.maxattr = VGPUMGR_A_TENANT_TENANT,
	},
	{
		.cmd = VGPUMGR_CMD_TENANT_SET,
		.flags = GENL_ADMIN_PERM,
		.doit = vgpu_tenant_set,
		.policy = vgpu_tenant_set_policy,
		.maxattr = VGPUMGR_A_TENANT_INVERSION_BURST_US,
	},
	{
		.cmd = VGPUMGR_CMD_TENANT_DEL,
		.flags = GENL_ADMIN_PERM,
		.doit = vgpu_tenant_del,
		.policy = vgpu_tenant_policy,
		.maxattr = VGPUMGR_A_TENANT_TENANT,
	},
	{
		.cmd = VGPUMGR_CMD_SLICE_GET,
		.doit = vgpu_slice_get,
		.start = vgpu_slices_dump_start,
		.dumpit = vgpu_slices_dump,
		.policy = vgpu_slice_policy,
		.maxattr = VGPUMGR_A_SLICE_UUID,
	},
	{
		.cmd = VGPUMGR_CMD_SLICE_SET,
		.flags = GENL_ADMIN_PERM,
		.doit = vgpu_slice_set,
		.policy = vgpu_slice_set_policy,
		.maxattr = VGPUMGR_A_SLICE_BURST_US,
	},
};

static const struct genl_multicast_group vgpu_groups[] = {
	[VGPU_GROUP_EVENTS] = { .name = VGPUMGR_MCGRP_EVENTS },
};

struct genl_family vgpu_family = {
	.name = VGPUMGR_FAMILY_NAME,
	.version = VGPUMGR_FAMILY_VERSION,
	.module = THIS_MODULE,
	.parallel_ops = true,
	.ops = vgpu_ops,
	.n_ops = ARRAY_SIZE(vgpu_ops),
	.mcgrps = vgpu_groups,
	.n_mcgrps = ARRAY_SIZE(vgpu_groups),
};

/**
 * vgpu_netlink_changed - record that a GPU, tenant or slice was added or removed
 *
 * A dump that has already begun is marked as interrupted.
 */
void vgpu_netlink_changed(void)
{
	atomic_add(2, &vgpu_objects_seq);
}

unsigned int vgpu_netlink_objects(void)
{
	return atomic_read(&vgpu_objects_seq);
}

int vgpu_netlink_register(void)
{
	return genl_register_family(&vgpu_family);
}

void vgpu_netlink_unregister(void)
{
	genl_unregister_family(&vgpu_family);
}
