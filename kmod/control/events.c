// SPDX-License-Identifier: GPL-2.0
/*
 * Events that guests cause, collected for each slice and tenant so that none can flood the
 * listeners. Also finds the events in a decision of the scheduler. See events.h.
 */
#include <linux/ktime.h>
#include <linux/string.h>

#include "engine/engine.h"
#include "uapi/vgpumgr_netlink.h"

#define VGPU_EVENT_QUIET_NS	(500 * NSEC_PER_MSEC)

static const u8 vgpu_event_commands[VGPU_EVENT_KINDS] = {
	[VGPU_EVENT_FAULT] = VGPUMGR_CMD_FAULT_NTF,
	[VGPU_EVENT_RESET] = VGPUMGR_CMD_RESET_NTF,
	[VGPU_EVENT_THROTTLED] = VGPUMGR_CMD_THROTTLED_NTF,
	[VGPU_EVENT_UNTHROTTLED] = VGPUMGR_CMD_UNTHROTTLED_NTF,
	[VGPU_EVENT_OVERRUN] = VGPUMGR_CMD_OVERRUN_NTF,
};

void vgpu_event_source_init(struct vgpu_event_source *source, bool of_slice)
{
	INIT_LIST_HEAD(&source->node);
	source->of_slice = of_slice;
}

/*
 * Remove a source from the list and clear it. Call this before its storage is freed. If
 * the storage stays, new events may be noted for the source afterwards.
 */
void vgpu_event_source_forget(struct vgpu_event_source *source)
{
	bool of_slice = source->of_slice;

	list_del(&source->node);
	memset(source, 0, sizeof(*source));
	vgpu_event_source_init(source, of_slice);
}

/* The oldest note, or NULL. */
static struct vgpu_event_note *vgpu_event_first_note(struct vgpu_event_source *source)
{
	struct vgpu_event_note *first = NULL;
	unsigned int kind;

	for (kind = 0; kind < VGPU_EVENT_KINDS; kind++) {
		struct vgpu_event_note *note = &source->notes[kind];

		if (note->count && (!first || note->time_ns < first->time_ns))
			first = note;
	}
	return first;
}

/**
 * vgpu_event_source_tell - queue all collected events, ordered by when each happened last
 * @engine: the engine, engine->lock held
 * @source: the slice or tenant of the events
 */
void vgpu_event_source_tell(struct vgpu_engine *engine, struct vgpu_event_source *source)
{
	struct vgpu_event_note *note;

	while ((note = vgpu_event_first_note(source))) {
		struct vgpu_event *event;

		event = vgpu_event_add(engine, vgpu_event_commands[note - source->notes]);
		if (event) {
			event->time_ns = note->time_ns;
			event->count = note->count;
			memcpy(event->detail, note->detail, sizeof(event->detail));
			if (source->of_slice)
				vgpu_event_name_slice(event,
						      container_of(source, struct vgpu_device,
								   events));
			else
				vgpu_event_name_tenant(event,
						       container_of(source, struct vgpu_tenant,
								    events));
		}
		note->count = 0;
	}
}

/* Schedule another look at a source, at the latest when its quiet time ends. */
static void vgpu_event_look_later(struct vgpu_engine *engine, struct vgpu_event_source *source,
				  u64 now_ns)
{
	u64 latest_ns = now_ns + VGPU_EVENT_QUIET_NS;

	if (list_empty(&source->node))
		list_add_tail(&source->node, &engine->events.late);
	vgpu_events_look_at(engine, now_ns < source->quiet_until_ns ?
			    min(source->quiet_until_ns, latest_ns) : latest_ns);
}

/* Queue what was collected. Returns false, without queueing, if the source must be quiet. */
static bool vgpu_event_flush(struct vgpu_engine *engine, struct vgpu_event_source *source,
			     u64 now_ns)
{
	if (now_ns < source->quiet_until_ns)
		return false;
	vgpu_event_source_tell(engine, source);
	source->quiet_until_ns = now_ns + VGPU_EVENT_QUIET_NS;
	return true;
}

static void vgpu_event_collect(struct vgpu_event_source *source, enum vgpu_event_kind kind,
			       u64 now_ns, u32 count)
{
	struct vgpu_event_note *note = &source->notes[kind];

	note->time_ns = now_ns;
	note->count = min_t(u64, (u64)note->count + count, U32_MAX);
}

/**
 * vgpu_event_note - note an event that a guest can cause often
 * @engine: the engine, engine->lock held
 * @source: the slice or tenant of the event
 * @kind: kind of the event
 * @detail: meaning depends on @kind
 * @detail2: meaning depends on @kind
 */
void vgpu_event_note(struct vgpu_engine *engine, struct vgpu_event_source *source,
		     enum vgpu_event_kind kind, u64 detail, u64 detail2)
{
	u64 now_ns = ktime_get_ns();

	lockdep_assert_held(&engine->lock);
	if (!vgpu_events_wanted())
		return;
	vgpu_event_collect(source, kind, now_ns, 1);
	source->notes[kind].detail[0] = detail;
	source->notes[kind].detail[1] = detail2;
	if (!vgpu_event_flush(engine, source, now_ns))
		vgpu_event_look_later(engine, source, now_ns);
}

/*
 * @throttles: how many throttles the scheduler has counted for the source. The count
 *	restarts when the slice or group is added to the scheduler again.
 */
static void vgpu_event_check_throttles(struct vgpu_engine *engine,
				       struct vgpu_event_source *source, u64 throttles)
{
	u64 now_ns, before = source->throttles;

	if (throttles == before)
		return;
	source->throttles = throttles;
	if (!vgpu_events_wanted())
		return;
	now_ns = ktime_get_ns();
	vgpu_event_collect(source, VGPU_EVENT_THROTTLED, now_ns,
			   throttles > before ? throttles - before : throttles);
	source->throttled = true;
	vgpu_event_flush(engine, source, now_ns);
	vgpu_event_look_later(engine, source, now_ns);
}

static bool vgpu_event_source_is_throttled(const struct vgpu_event_source *source, u64 now_ns)
{
	const struct vgpu_tenant *tenant;
	const struct vgpu_device *device;

	if (source->of_slice) {
		device = container_of(source, struct vgpu_device, events);
		return device->scheduled &&
		       vgpu_bucket_is_throttled(&device->slice.bucket, now_ns);
	}
	tenant = container_of(source, struct vgpu_tenant, events);
	return tenant->group.sched && vgpu_bucket_is_throttled(&tenant->group.bucket, now_ns);
}

/* Queue what was collected, and the end of a throttle. */
static void vgpu_event_look(struct vgpu_engine *engine, struct vgpu_event_source *source)
{
	u64 now_ns = ktime_get_ns();

	if (source->throttled && !vgpu_event_source_is_throttled(source, now_ns)) {
		vgpu_event_collect(source, VGPU_EVENT_UNTHROTTLED, now_ns, 1);
		source->throttled = false;
	}
	if (!vgpu_events_wanted()) {
		memset(source->notes, 0, sizeof(source->notes));
		source->throttled = false;
		return;
	}
	if (!vgpu_event_first_note(source) && !source->throttled)
		return;
	vgpu_event_flush(engine, source, now_ns);
	if (vgpu_event_first_note(source) || source->throttled)
		vgpu_event_look_later(engine, source, now_ns);
}

/**
 * vgpu_events_look - queue what was collected
 * @engine: the engine; on the work queue
 */
void vgpu_events_look(struct vgpu_engine *engine)
{
	struct vgpu_event_source *source;
	LIST_HEAD(sources);

	spin_lock_irq(&engine->lock);
	engine->events.look_at_ns = U64_MAX;
	list_splice_init(&engine->events.late, &sources);
	while (!list_empty(&sources)) {
		source = list_first_entry(&sources, struct vgpu_event_source, node);
		list_del_init(&source->node);
		vgpu_event_look(engine, source);
		spin_unlock_irq(&engine->lock);
		vgpu_events_drain(engine);
		spin_lock_irq(&engine->lock);
	}
	spin_unlock_irq(&engine->lock);
}

/**
 * vgpu_events_decided - find the events in a decision of the scheduler
 * @engine: the engine, engine->lock held
 * @before: the owner of the engine until the decision, or NULL
 * @decision: what was decided
 */
void vgpu_events_decided(struct vgpu_engine *engine, struct vgpu_slice *before,
			 const struct vgpu_decision *decision)
{
	const struct vgpu_sched_params *params = &engine->sched.params;
	const struct vgpu_ended_run *ended = &decision->ended;
	u64 limit_ns;

	lockdep_assert_held(&engine->lock);
	if (before) {
		vgpu_event_check_throttles(engine, &vgpu_slice_to_device(before)->events,
					   before->stats.throttles);
		vgpu_event_check_throttles(engine, &vgpu_group_to_tenant(before->group)->events,
					   before->group->stats.throttles);
	}
	if (!ended->valid)
		return;
	limit_ns = ended->timeslice_ns + VGPU_ENGINE_NOTICE_NS +
		   (params->splits ? params->min_chunk_ns : params->max_chunk_ns);
	if (ended->length_ns > limit_ns)
		vgpu_event_note(engine, &vgpu_group_to_tenant(ended->group)->events,
				VGPU_EVENT_OVERRUN, ended->length_ns, limit_ns);
}
