/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VGPU_PROCESSOR_H
#define VGPU_PROCESSOR_H

#include <linux/types.h>

struct vgpu_engine;

/*
 * Shorter sleeps help no other thread: going to sleep and waking up cost as much as the
 * sleep.
 */
#define VGPU_ENGINE_SLEEP_NS	(10 * NSEC_PER_USEC)
/*
 * A thread that sleeps shorter than this again and again uses a processor most of the time.
 */
#define VGPU_ENGINE_BRIEF_NS	(20 * NSEC_PER_USEC)

/**
 * enum vgpu_engine_pace - kind of work of an engine's thread, which sets its priority
 * @VGPU_ENGINE_COMPUTES: work that uses a processor for long: lowest nice value, but not
 *	real time, because that would keep the processor from all other tasks
 * @VGPU_ENGINE_BRIEF: an item that most likely ends within VGPU_ENGINE_BRIEF_NS: real time,
 *	because a normal task may lose the processor for milliseconds to a task that has a
 *	hundredth of its weight; but below workers that have little to do
 * @VGPU_ENGINE_WAITS: asleep until a deadline or until there is work, and the decision that
 *	follows: real time, above workers, because all slices wait for that decision
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
 * struct vgpu_ration - how much longer a slice's worker may have real-time priority
 * @credit_ns: remaining time; negative: debt, for real time beyond the credit or for work as
 *	a normal task
 * @counted_ns: time up to which @credit_ns is counted
 * @used_ns: processor time of the worker that is charged already, or that was used at
 *	real-time priority
 * @realtime: the worker has real-time priority
 *
 * Zeroed for a new slice. Only its worker uses it.
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
