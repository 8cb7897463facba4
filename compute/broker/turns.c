// SPDX-License-Identifier: Apache-2.0
#include "broker/turns.h"

#include "sched/internal.h"

/* Later than anything, and not before anything for the core's comparisons. */
#define FOREVER_NS	(1ull << 62)

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

static struct vgpu_item_info item_of(const struct turns *turns, uint32_t kernel_id,
				     uint32_t flags, uint64_t hint_ns)
{
	/* A longer one would be refused; no turn lets it run longer anyway. */
	return (struct vgpu_item_info){
		.kernel_id = kernel_id,
		.flags = flags,
		.hint_ns = min(hint_ns, turns->sched.params.max_chunk_ns),
	};
}

void turns_ready(struct turns *turns, struct turns_party *party, uint32_t kernel_id,
		 uint64_t hint_ns, uint64_t now_ns)
{
	struct vgpu_item_info item = item_of(turns, kernel_id, 0, hint_ns);

	if (kernel_id)
		vgpu_slice_announce(&turns->sched, &party->slice, &item, now_ns);
	else
		vgpu_slice_wake(&turns->sched, &party->slice, now_ns);
}

void turns_done(struct turns *turns, struct turns_party *party, bool more, uint32_t kernel_id,
		uint64_t now_ns)
{
	struct vgpu_item_info item = item_of(turns, kernel_id, VGPU_ITEM_MORE, 0);

	if (more)
		vgpu_slice_announce(&turns->sched, &party->slice, &item, now_ns);
	vgpu_slice_item_done(&turns->sched, &party->slice, NULL, now_ns);
}

void turns_again(struct turns *turns, struct turns_party *party, uint32_t kernel_id,
		 uint64_t hint_ns, uint64_t now_ns)
{
	struct vgpu_item_info item = item_of(turns, kernel_id, 0, hint_ns);

	if (kernel_id)
		vgpu_slice_item_done(&turns->sched, &party->slice, &item, now_ns);
}

void turns_sleep(struct turns *turns, struct turns_party *party, uint64_t now_ns)
{
	vgpu_slice_sleep(&turns->sched, &party->slice, now_ns);
}

void turns_end_request(struct turns *turns, struct turns_party *party, uint64_t now_ns)
{
	vgpu_slice_end_request(&turns->sched, &party->slice, now_ns);
}

/* The core charges up to a moment, so what was used is put first; only the sum matters. */
void turns_charge(struct turns *turns, uint64_t idle_ns, uint64_t now_ns)
{
	struct vgpu_sched *sched = &turns->sched;
	u64 elapsed_ns = now_ns - sched->now_ns;

	if (sched->executing && idle_ns)
		vgpu_sched_busy_until(sched, now_ns - min(idle_ns, elapsed_ns));
	vgpu_sched_advance(sched, now_ns);
	if (sched->executing && idle_ns)
		vgpu_sched_busy_until(sched, now_ns + FOREVER_NS);
}

void turns_next(struct turns *turns, uint64_t now_ns, struct turn *out)
{
	struct vgpu_sched *sched = &turns->sched;
	struct vgpu_decision decision;

	vgpu_sched_pick(sched, now_ns, &decision);
	*out = (struct turn){ .look_at_ns = decision.wake_at_ns };
	if (!decision.slice)
		return;
	out->party = container_of(decision.slice, struct turns_party, slice);
	out->limit_ns = max(vgpu_sched_left_ns(sched), sched->params.min_chunk_ns);
	/* What fills the gap of another is as long as the gap. */
	if (sched->hold.slice && decision.band == VGPU_BAND_FAIR)
		out->limit_ns = min(out->limit_ns, decision.limit_ns);
}

uint64_t turns_left_ns(const struct turns *turns)
{
	return vgpu_sched_left_ns(&turns->sched);
}

uint64_t turns_cap_lasts_ns(const struct turns_party *party)
{
	return vgpu_bucket_lasts_ns(&party->group.bucket);
}

bool turns_has_rival(const struct turns *turns, const struct turns_party *party)
{
	return turns->sched.nr_with_item > party->group.nr_with_item;
}

bool turns_is_urgent(const struct turns *turns)
{
	return vgpu_sched_is_urgent(&turns->sched);
}

/* Of virtual time and cap, like any charge; the wall clock stands still for it. */
void turns_fine(struct turns *turns, uint64_t ns)
{
	struct vgpu_slice *owner = turns->sched.owner;

	if (!owner)
		return;
	vgpu_queue_charge(&turns->sched.queue, &owner->group->entity, ns);
	vgpu_bucket_use(&owner->group->bucket, ns);
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
