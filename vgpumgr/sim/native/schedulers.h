/* SPDX-License-Identifier: Apache-2.0 */
/* What schedulers share.  Baselines look at all slices: they need not be fast. */
#ifndef SIM_SCHEDULERS_H
#define SIM_SCHEDULERS_H

#include "sim.h"

typedef bool (*sim_filter)(const struct sim *sim, const struct sim_slice *slice);

/* The ready slice, among those that pass @filter, whose head was launched first. */
struct sim_slice *sim_oldest_launch(const struct sim *sim, sim_filter filter);

/* The ready slice that follows @index in a circle, itself last; or NULL. */
struct sim_slice *sim_next_in_circle(const struct sim *sim, u32 index,
				     sim_filter filter);

/* Engine time until the running piece's end or the last one's, for timers. */
u64 sim_ran_ns(const struct sim *sim, const struct sim_slice *slice);

extern const struct sim_scheduler sim_core, sim_fifo;

#endif /* SIM_SCHEDULERS_H */
