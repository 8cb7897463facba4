// SPDX-License-Identifier: Apache-2.0
#include "broker/turns.h"

enum vgpu_sched_field turns_init(struct turns *turns, const struct vgpu_sched_params *params,
				 uint64_t now_ns)
{
	return vgpu_sched_init(&turns->sched, params, now_ns);
}

enum vgpu_sched_field turns_set(struct turns *turns, const struct vgpu_sched_params *params,
				uint64_t now_ns)
{
	return vgpu_sched_set_params(&turns->sched, params, now_ns);
}

enum vgpu_sched_field turns_add(struct turns *turns, struct turns_party *party,
				const struct vgpu_group_params *params, uint64_t now_ns)
{
	const struct vgpu_slice_params whole = { .weight = 1 };
	enum vgpu_sched_field fault;

	fault = vgpu_group_add(&turns->sched, &party->group, params, now_ns);
	if (fault)
		return fault;
	return vgpu_slice_add(&turns->sched, &party->group, &party->slice, &whole, now_ns);
}

enum vgpu_sched_field turns_update(struct turns *turns, struct turns_party *party,
				   const struct vgpu_group_params *params, uint64_t now_ns)
{
	return vgpu_group_update(&turns->sched, &party->group, params, now_ns);
}

void turns_remove(struct turns *turns, struct turns_party *party, uint64_t now_ns)
{
	vgpu_slice_remove(&turns->sched, &party->slice, now_ns);
	vgpu_group_remove(&turns->sched, &party->group, now_ns);
}

void turns_ready(struct turns *turns, struct turns_party *party, uint32_t kernel_id,
		 uint64_t hint_ns, uint64_t now_ns)
{
	const struct vgpu_item_info first = { .kernel_id = kernel_id, .hint_ns = hint_ns };

	vgpu_slice_ready(&turns->sched, &party->slice, kernel_id ? &first : NULL, now_ns);
}

void turns_sleep(struct turns *turns, struct turns_party *party, uint64_t now_ns)
{
	vgpu_slice_sleep(&turns->sched, &party->slice, now_ns);
}

static void tell(const struct vgpu_lease *lease, struct turn *out)
{
	*out = (struct turn){
		.expires_ns = lease->expires_ns,
		.look_at_ns = lease->review_at_ns,
	};
	if (lease->slice)
		out->party = container_of(lease->slice, struct turns_party, slice);
}

void turns_lend(struct turns *turns, uint64_t now_ns, struct turn *out)
{
	struct vgpu_lease lease;

	vgpu_sched_lend(&turns->sched, now_ns, &lease);
	tell(&lease, out);
}

void turns_review(struct turns *turns, uint64_t now_ns, struct turn *out)
{
	struct vgpu_lease lease;

	vgpu_sched_review(&turns->sched, now_ns, &lease);
	tell(&lease, out);
}

void turns_yield(struct turns *turns, struct turns_party *party, uint32_t flags,
		 uint32_t kernel_id, uint64_t hint_ns, uint64_t now_ns)
{
	const struct vgpu_yield yield = {
		.flags = flags,
		.kernel_id = kernel_id,
		.hint_ns = hint_ns,
	};

	vgpu_slice_yield(&turns->sched, &party->slice, &yield, now_ns);
}

void turns_pass(struct turns *turns, uint64_t unused_ns, uint64_t now_ns)
{
	vgpu_sched_unused(&turns->sched, unused_ns, now_ns);
}

void turns_owe(struct turns *turns, struct turns_party *party, uint64_t ns, uint64_t now_ns)
{
	vgpu_slice_owe(&turns->sched, &party->slice, ns, now_ns);
}

uint64_t turns_had_ns(const struct turns_party *party)
{
	return party->group.stats.run_ns;
}

const char *turns_field_name(enum vgpu_sched_field field)
{
	switch (field) {
	case VGPU_FIELD_NONE:
		return "";
	case VGPU_FIELD_MAX_CHUNK:
		return "chunk_us";
	case VGPU_FIELD_SWITCH_COST:
		return "switch_cost_us";
	case VGPU_FIELD_WEIGHT:
		return "weight";
	case VGPU_FIELD_TIMESLICE:
		return "timeslice_us";
	case VGPU_FIELD_CAP:
		return "cap_permille";
	case VGPU_FIELD_CAP_PERIOD:
		return "cap_period_us";
	case VGPU_FIELD_BURST:
		return "burst_us";
	case VGPU_FIELD_RESERVE_LIMIT:
		return "reserve_limit_permille";
	case VGPU_FIELD_RESERVE:
		return "reserve_us";
	case VGPU_FIELD_RESERVE_PERIOD:
		return "reserve_period_us";
	case VGPU_FIELD_HOLD:
		return "hold_max_us";
	case VGPU_FIELD_INVERSION:
		return "inversion_permille";
	case VGPU_FIELD_INVERSION_BURST:
		return "inversion_burst_us";
	case VGPU_FIELD_BAND:
		return "band";
	case VGPU_FIELD_MODE:
		return "mode";
	default:
		return "scheduler";
	}
}
