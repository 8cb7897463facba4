// SPDX-License-Identifier: GPL-2.0
/*
 * Explains what the scheduler refuses: the extended ACK names the attribute at
 * fault and gives the reason. Values outside the range of an attribute are
 * refused earlier, see the tables in netlink.c.
 */
#include <net/genetlink.h>

#include "control/netlink.h"

/* Point at the attribute at fault, or report it as missing. */
static void vgpu_blame(struct genl_info *info, u8 type)
{
	if (info->attrs[type])
		NL_SET_BAD_ATTR(info->extack, info->attrs[type]);
	else
		NL_SET_ERR_ATTR_MISS(info->extack, NULL, type);
}

static void vgpu_refuse_unknown(struct genl_info *info, enum vgpu_sched_field fault)
{
	pr_warn_ratelimited("vgpumgr: a request was refused for field %d of vgpu_sched.h\n", fault);
	GENL_SET_ERR_MSG(info,
			 "refused for a field that this request cannot set; see the kernel log");
}

/**
 * vgpu_refuse_adoption - report why a function was not adopted
 * @info: the request
 * @ret: return value of vgpu_adopt()
 */
void vgpu_refuse_adoption(struct genl_info *info, int ret)
{
	switch (ret) {
	case -ENODEV:
		GENL_SET_ERR_MSG(info, "name: there is no such PCI function");
		break;
	case -ENXIO:
		GENL_SET_ERR_MSG(info, "name: no driver is bound to the function");
		break;
	case -EEXIST:
		GENL_SET_ERR_MSG(info, "name: the GPU is shared already");
		break;
	case -EBUSY:
		GENL_SET_ERR_MSG(info, "name: slices of an earlier adoption are still open");
		break;
	case -EAGAIN:
		GENL_SET_ERR_MSG(info, "name: a driver is being bound or unbound; try again");
		break;
	case -EOPNOTSUPP:
		GENL_SET_ERR_MSG(info, "name: the function's driver shares it by itself");
		break;
	case -ESHUTDOWN:
		GENL_SET_ERR_MSG(info, "the module is being unloaded");
		return;
	default: /* no memory */
		return;
	}
	vgpu_blame(info, VGPUMGR_A_GPU_NAME);
}

/**
 * vgpu_refuse_gpu - report why a change of a GPU was refused
 * @info: the request
 * @fault: the parameter that the scheduler refused
 * @in_use: the value is legal, but tenants rely on the present one
 */
void vgpu_refuse_gpu(struct genl_info *info, enum vgpu_sched_field fault, bool in_use)
{
	switch (fault) {
	case VGPU_FIELD_POLICY:
		GENL_SET_ERR_MSG(info, "policy: cannot change while tenants are configured");
		vgpu_blame(info, VGPUMGR_A_GPU_POLICY);
		return;
	case VGPU_FIELD_PLACES:
		if (in_use)
			GENL_SET_ERR_MSG(info, "places: fewer than the slices in use");
		else
			GENL_SET_ERR_MSG(info,
					 "places: 1..10000 under policy fixed-share, else 0");
		vgpu_blame(info, VGPUMGR_A_GPU_PLACES);
		return;
	case VGPU_FIELD_RESERVE_LIMIT:
		if (in_use)
			GENL_SET_ERR_MSG(info,
					 "reserve-limit-permille: below what is already reserved");
		else
			GENL_SET_ERR_MSG(info,
					 "reserve-limit-permille: the policy allows no reservations");
		vgpu_blame(info, VGPUMGR_A_GPU_RESERVE_LIMIT_PERMILLE);
		return;
	case VGPU_FIELD_MAX_CHUNK:
	case VGPU_FIELD_MIN_CHUNK:
		if (in_use)
			GENL_SET_ERR_MSG(info,
					 "max-chunk-us: too long for an existing reservation");
		else
			GENL_SET_ERR_MSG(info,
					 "max-chunk-us: shorter than the engine's shortest piece");
		vgpu_blame(info, VGPUMGR_A_GPU_MAX_CHUNK_US);
		return;
	default:
		vgpu_refuse_unknown(info, fault);
	}
}

static void vgpu_refuse_cap(struct genl_info *info, const struct vgpu_parent *parent, u64 cap_ns)
{
	if (READ_ONCE(parent->engine.sched.params.policy) != VGPU_POLICY_BEST_EFFORT)
		GENL_SET_ERR_MSG(info, "cap-us: the GPU's policy allows no caps");
	else if (!cap_ns)
		GENL_SET_ERR_MSG(info, "cap-us: mode strict needs a cap");
	else
		GENL_SET_ERR_MSG(info, "cap-us: above cap-period-us or below a 10000th of it");
}

/**
 * vgpu_refuse_tenant - report why the parameters of a tenant were refused
 * @info: the request
 * @fault: the parameter that the scheduler refused
 * @parent: the GPU
 * @params: the requested parameters, completed with those that the request
 *	omits
 */
void vgpu_refuse_tenant(struct genl_info *info, enum vgpu_sched_field fault,
			const struct vgpu_parent *parent, const struct vgpu_group_params *params)
{
	static const u8 types[] = {
		[VGPU_FIELD_WEIGHT] = VGPUMGR_A_TENANT_WEIGHT,
		[VGPU_FIELD_TIMESLICE] = VGPUMGR_A_TENANT_TIMESLICE_US,
		[VGPU_FIELD_CAP] = VGPUMGR_A_TENANT_CAP_US,
		[VGPU_FIELD_CAP_PERIOD] = VGPUMGR_A_TENANT_CAP_PERIOD_US,
		[VGPU_FIELD_BURST] = VGPUMGR_A_TENANT_BURST_US,
		[VGPU_FIELD_PLACES] = VGPUMGR_A_TENANT_TENANT,
		[VGPU_FIELD_MODE] = VGPUMGR_A_TENANT_MODE,
		[VGPU_FIELD_BAND] = VGPUMGR_A_TENANT_BAND,
		[VGPU_FIELD_RESERVE] = VGPUMGR_A_TENANT_RESERVE_US,
		[VGPU_FIELD_RESERVE_PERIOD] = VGPUMGR_A_TENANT_RESERVE_PERIOD_US,
		[VGPU_FIELD_HOLD] = VGPUMGR_A_TENANT_HOLD_MAX_US,
		[VGPU_FIELD_INVERSION] = VGPUMGR_A_TENANT_INVERSION_PERMILLE,
		[VGPU_FIELD_INVERSION_BURST] = VGPUMGR_A_TENANT_INVERSION_BURST_US,
		[VGPU_FIELD_SLICES] = VGPUMGR_A_TENANT_TENANT,
	};
	bool fair = params->band == VGPU_BAND_FAIR;

	switch (fault) {
	case VGPU_FIELD_WEIGHT:
		GENL_SET_ERR_MSG(info, "weight: a reservation would be above its tenant's share");
		break;
	case VGPU_FIELD_TIMESLICE:
		GENL_SET_ERR_MSG(info, "timeslice-us: outside timeslice-min-us..1000000");
		break;
	case VGPU_FIELD_CAP:
		vgpu_refuse_cap(info, parent, params->cap_ns);
		break;
	case VGPU_FIELD_CAP_PERIOD:
		GENL_SET_ERR_MSG(info, "cap-period-us: outside 100..1000000");
		break;
	case VGPU_FIELD_BURST:
		GENL_SET_ERR_MSG(info, "burst-us: neither 0 nor in timeslice-min-us..8000000");
		break;
	case VGPU_FIELD_PLACES:
		GENL_SET_ERR_MSG(info, "tenant: the GPU has no place for its slices");
		break;
	case VGPU_FIELD_MODE:
		GENL_SET_ERR_MSG(info, "mode: not legal under the GPU's policy");
		break;
	case VGPU_FIELD_BAND:
		GENL_SET_ERR_MSG(info, "band: not legal under the GPU's policy");
		break;
	case VGPU_FIELD_RESERVE:
		if (fair)
			GENL_SET_ERR_MSG(info, "reserve-us: only valid in band latency");
		else
			GENL_SET_ERR_MSG(info,
					 "reserve-us: 0, above the period, or above what limit, share or cap allow");
		break;
	case VGPU_FIELD_RESERVE_PERIOD:
		GENL_SET_ERR_MSG(info,
				 "reserve-period-us: outside 100..4000000 or below four max-chunk-us");
		break;
	case VGPU_FIELD_HOLD:
		GENL_SET_ERR_MSG(info, "hold-max-us: only valid in band latency");
		break;
	case VGPU_FIELD_INVERSION:
		GENL_SET_ERR_MSG(info, "inversion-permille: only valid in band latency");
		break;
	case VGPU_FIELD_INVERSION_BURST:
		GENL_SET_ERR_MSG(info, "inversion-burst-us: only valid in band latency");
		break;
	case VGPU_FIELD_SLICES:
		GENL_SET_ERR_MSG(info,
				 "tenant: one of its slices has a cap, which the policy does not allow");
		break;
	default:
		vgpu_refuse_unknown(info, fault);
		return;
	}
	vgpu_blame(info, types[fault]);
}

/**
 * vgpu_refuse_slice - report why the parameters of a slice were refused
 * @info: the request
 * @fault: the parameter that the scheduler refused
 * @parent: the GPU
 * @params: the requested parameters, completed with those that the request
 *	omits
 */
void vgpu_refuse_slice(struct genl_info *info, enum vgpu_sched_field fault,
		       const struct vgpu_parent *parent, const struct vgpu_slice_params *params)
{
	switch (fault) {
	case VGPU_FIELD_CAP:
		vgpu_refuse_cap(info, parent, params->cap_ns);
		vgpu_blame(info, VGPUMGR_A_SLICE_CAP_US);
		return;
	case VGPU_FIELD_CAP_PERIOD:
		GENL_SET_ERR_MSG(info, "cap-period-us: outside 100..1000000");
		vgpu_blame(info, VGPUMGR_A_SLICE_CAP_PERIOD_US);
		return;
	case VGPU_FIELD_BURST:
		GENL_SET_ERR_MSG(info, "burst-us: neither 0 nor in timeslice-min-us..8000000");
		vgpu_blame(info, VGPUMGR_A_SLICE_BURST_US);
		return;
	case VGPU_FIELD_PLACES:
		GENL_SET_ERR_MSG(info, "tenant: the GPU has no place for another slice");
		vgpu_blame(info, VGPUMGR_A_SLICE_TENANT);
		return;
	default:
		vgpu_refuse_unknown(info, fault);
	}
}
