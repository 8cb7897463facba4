// SPDX-License-Identifier: GPL-2.0
/* How a slice leaves the scheduler of its engine, for any reason. */
#include "engine/engine.h"

/**
 * vgpu_device_unschedule - take a slice out of the scheduler, if it is there
 * @device: the slice, engine->lock held
 * @now_ns: the present
 *
 * Its counters are kept.
 */
void vgpu_device_unschedule(struct vgpu_device *device, u64 now_ns)
{
	struct vgpu_engine *engine = &device->parent->engine;

	lockdep_assert_held(&engine->lock);
	if (engine->leaving == device)
		engine->leaving = NULL;
	if (!device->scheduled)
		return;
	now_ns = vgpu_engine_settle(engine, device->slice.group, now_ns);
	if (engine->holder == &device->slice)
		vgpu_engine_trace_hold(engine);
	vgpu_lending_remove(device, now_ns);
	WARN_ON_ONCE(vgpu_slice_remove(&engine->sched, &device->slice, now_ns));
	WRITE_ONCE(device->scheduled, false);
	/* The slice may have held the engine, or have had its turn. */
	vgpu_engine_kick(engine);
}
