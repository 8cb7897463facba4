// SPDX-License-Identifier: Apache-2.0
/* The list of schedulers, and what they share. */
#include "schedulers.h"

const struct sim_scheduler *const sim_schedulers[] = {
	&sim_core,
	&sim_fifo,
	NULL,
};

struct sim_slice *sim_oldest_launch(const struct sim *sim, sim_filter filter)
{
	struct sim_slice *slice, *oldest = NULL;
	u32 i;

	for (i = 0; i < sim->nr_slices; i++) {
		slice = sim->slices[i];
		if (!slice->ready || (filter && !filter(sim, slice)))
			continue;
		if (!oldest || sim_head(slice)->seq < sim_head(oldest)->seq)
			oldest = slice;
	}
	return oldest;
}

struct sim_slice *sim_next_in_circle(const struct sim *sim, u32 index,
				     sim_filter filter)
{
	struct sim_slice *slice;
	u32 i;

	for (i = 1; i <= sim->nr_slices; i++) {
		slice = sim->slices[(index + i) % sim->nr_slices];
		if (slice->ready && (!filter || filter(sim, slice)))
			return slice;
	}
	return NULL;
}

u64 sim_ran_ns(const struct sim *sim, const struct sim_slice *slice)
{
	(void)sim;
	return slice->counters.work_ns + slice->counters.overhead_ns;
}
