/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VGPU_PROCESSOR_H
#define VGPU_PROCESSOR_H

#include <linux/types.h>

struct vgpu_engine;

/* Who sleeps for less lets nobody work: to fall asleep and to wake up takes as long. */
#define VGPU_ENGINE_SLEEP_NS	(10 * NSEC_PER_USEC)
/* Whoever sleeps for less uses a processor for most of the time, if it sleeps again and again. */
#define VGPU_ENGINE_BRIEF_NS	(20 * NSEC_PER_USEC)

/**
 * enum vgpu_engine_pace - what an engine's thread is at, by which it has its priority
 * @VGPU_ENGINE_COMPUTES: work that uses a processor for long: lowest nice value, not in
 *	real time, in which it would keep the processor from all other tasks
 * @VGPU_ENGINE_BRIEF: an item that is over before VGPU_ENGINE_BRIEF_NS, most likely: in real
 *	time, but below workers that have little to do. A task that is not in real time may
 *	lose the processor for milliseconds to one that is worth a hundredth of it
 * @VGPU_ENGINE_WAITS: asleep until a deadline or until there is work, and the decision that
 *	follows, which is for all slices: in real time, above workers
 */
enum vgpu_engine_pace {
	VGPU_ENGINE_COMPUTES,
	VGPU_ENGINE_BRIEF,
	VGPU_ENGINE_WAITS,
};

void vgpu_engine_set_pace(struct vgpu_engine *engine, enum vgpu_engine_pace pace);
void vgpu_engine_slept(struct vgpu_engine *engine, u64 since_ns);
void vgpu_engine_sleep(struct vgpu_engine *engine, u64 until_ns);
void vgpu_engine_rest(struct vgpu_engine *engine);

/**
 * struct vgpu_ration - for how long a slice's worker may still have real-time priority
 * @credit_ns: so long; negative: owed, for real time beyond it or for work as any task
 * @counted_ns: until when @credit_ns is counted
 * @used_ns: of the worker's processor time, so much is charged or was in real time
 * @realtime: the priority the worker has
 *
 * Zeroed for a new slice. The worker's only.
 */
struct vgpu_ration {
	s64 credit_ns;
	u64 counted_ns;
	u64 used_ns;
	bool realtime;
};

void vgpu_ration_start(struct vgpu_ration *ration);
void vgpu_ration_begin(struct vgpu_ration *ration, u32 sharers);
void vgpu_ration_use(struct vgpu_ration *ration);
void vgpu_ration_leave(struct vgpu_ration *ration);
void vgpu_ration_end(struct vgpu_ration *ration, u32 sharers);

#endif /* VGPU_PROCESSOR_H */
