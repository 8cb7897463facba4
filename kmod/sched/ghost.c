// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Policies under which no other slice may use a slice's turn (invariant 16).  A
 * slice is ready in its queue whether or not it has an item, so its turn, or that
 * of its ghost, comes by the same rules as under other policies.  All unsold
 * places together are one more entity among the groups.
 */
#include "internal.h"

/*
 * Set the weights under these policies: number of slices of a group, number of
 * places without a slice.
 */
void vgpu_ghost_weigh(struct vgpu_sched *sched, struct vgpu_group *group)
{
	u32 sold = sched->nr_slices, places = sched->params.places;

	if (group && vgpu_has_ghosts(sched))
		vgpu_queue_set_weight(&sched->queue, &group->entity,
				      max(group->nr_slices, 1u));
	if (places > sold)
		vgpu_queue_set_weight(&sched->queue, &sched->unsold,
				      places - sold);
	vgpu_queue_set_ready(&sched->queue, &sched->unsold, places > sold);
}

/* How long the turn of an unsold place lasts. */
u64 vgpu_ghost_timeslice_ns(const struct vgpu_sched *sched)
{
	return max(vgpu_sched_timeslice_floor(sched), VGPU_UNSOLD_TIMESLICE_NS);
}

void vgpu_ghost_init(struct vgpu_sched *sched)
{
	vgpu_entity_init(&sched->queue, &sched->unsold, 1,
			 vgpu_ghost_timeslice_ns(sched));
	vgpu_ghost_weigh(sched, NULL);
}

/*
 * Charge @ns of parked time: no slice had an item, so the turns of ghosts would
 * have followed each other.  Every virtual runtime has grown by the same amount,
 * so no lag and no deadline has moved relative to another, and only each slice's
 * part needs to be recorded.  Returns the time that no slice pays for.
 */
u64 vgpu_ghost_park(struct vgpu_sched *sched, u64 ns)
{
	u32 turns = max(sched->nr_slices, sched->params.places);
	u64 part_ns = turns ? div64_u64(ns, turns) : 0;

	sched->parked_ns += part_ns;
	return ns - part_ns * sched->nr_slices;
}

void vgpu_group_settle(struct vgpu_group *group)
{
	u64 ns;

	if (!group->sched)
		return;
	ns = (group->sched->parked_ns - group->parked_mark) * group->nr_slices;
	group->parked_mark = group->sched->parked_ns;
	group->stats.run_ns += ns;
	group->stats.ghost_ns += ns;
}

void vgpu_slice_settle(struct vgpu_slice *slice)
{
	u64 ns;

	if (!slice->group)
		return;
	ns = slice->group->sched->parked_ns - slice->parked_mark;
	slice->parked_mark = slice->group->sched->parked_ns;
	slice->stats.run_ns += ns;
	slice->stats.ghost_ns += ns;
}
