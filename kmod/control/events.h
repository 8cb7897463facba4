/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Events, which the listeners of the netlink family receive as they happen.
 *
 * Events are noted under engine->lock in a queue of fixed size. A work item
 * sends them, all in one order. The rate of events that a guest can cause is
 * bounded for each source: the first event is sent at once, and the following
 * events are counted and sent together. Without a listener nothing is noted.
 */
#ifndef VGPU_EVENTS_H
#define VGPU_EVENTS_H

#include <linux/list.h>
#include <linux/sched.h>
#include <linux/uuid.h>
#include <linux/workqueue.h>

struct vgpu_decision;
struct vgpu_device;
struct vgpu_engine;
struct vgpu_parent;
struct vgpu_slice;
struct vgpu_tenant;

#define VGPU_TENANT_NAME_BYTES	64	/* including the terminating NUL */
#define VGPU_EVENTS_QUEUED	128	/* not sent yet, per engine; beyond that, events are lost */

/* Events that guests cause; sent together after a source's quiet time. */
enum vgpu_event_kind {
	VGPU_EVENT_FAULT,
	VGPU_EVENT_RESET,
	VGPU_EVENT_THROTTLED,
	VGPU_EVENT_UNTHROTTLED,
	VGPU_EVENT_OVERRUN,
	VGPU_EVENT_KINDS
};

/**
 * struct vgpu_event - one message, with a copy of all its values
 * @time_ns: when the event happened last
 * @detail: depends on @command
 * @count: how many times the event happened
 * @pid: process that had the slice open, 0 for none
 * @comm: name of that process
 * @slice: valid with @of_slice
 * @of_slice: the event is about a slice
 * @command: enum of vgpumgr_netlink.h
 * @tenant: name of the tenant, may be empty
 */
struct vgpu_event {
	u64 time_ns;
	u64 detail[2];
	u32 count;
	pid_t pid;
	char comm[TASK_COMM_LEN];
	guid_t slice;
	bool of_slice;
	u8 command;
	char tenant[VGPU_TENANT_NAME_BYTES];
};

/**
 * struct vgpu_event_note - events of one kind and source that are not queued yet
 * @time_ns: time of the last event
 * @detail: detail of the last event
 * @count: how many times the event happened
 */
struct vgpu_event_note {
	u64 time_ns;
	u64 detail[2];
	u32 count;
};

/**
 * struct vgpu_event_source - a slice or a tenant, as the subject of events
 * @node: in vgpu_events.late, if the source has notes or is throttled
 * @of_slice: the source is embedded in struct vgpu_device, else in struct
 *	vgpu_tenant
 * @throttled: listeners have been, or will be, informed that the source is
 *	throttled
 * @throttles: how many of the throttles that the scheduler has counted are noted
 * @quiet_until_ns: until then notes are only collected
 * @notes: by kind
 *
 * Protected by engine->lock.
 */
struct vgpu_event_source {
	struct list_head node;
	bool of_slice;
	bool throttled;
	u64 throttles;
	u64 quiet_until_ns;
	struct vgpu_event_note notes[VGPU_EVENT_KINDS];
};

/**
 * struct vgpu_events - the events of one engine that are not sent yet
 * @late: sources to look at again
 * @send: sends the queue
 * @later: looks at @late
 * @look_at_ns: when @later runs, U64_MAX for never
 * @first: index of the first event in @queue
 * @queued: number of events in @queue
 * @dropped: events lost for lack of space or memory
 * @queue: a ring
 *
 * Protected by engine->lock.
 */
struct vgpu_events {
	struct list_head late;
	struct work_struct send;
	struct delayed_work later;
	u64 look_at_ns;
	unsigned int first;
	unsigned int queued;
	u32 dropped;
	struct vgpu_event *queue;
};

/* netlink_event.c: sending */
int vgpu_events_init(void);
void vgpu_events_exit(void);
int vgpu_events_start(struct vgpu_engine *engine);
void vgpu_events_stop(struct vgpu_engine *engine);
u64 vgpu_events_sequence(void);

void vgpu_event_gpu(struct vgpu_parent *parent, u8 command);
void vgpu_event_tenant(struct vgpu_tenant *tenant, u8 command);	/* parent->lock held */
void vgpu_event_slice(struct vgpu_device *device, u8 command);	/* parent->lock held */
void vgpu_event_opened(struct vgpu_device *device);	/* parent->lock held */

/* netlink_event.c, for events.c */
bool vgpu_events_wanted(void);
void vgpu_events_drain(struct vgpu_engine *engine);	/* work queue only */
/* engine->lock held */
void vgpu_events_look_at(struct vgpu_engine *engine, u64 at_ns);
/* NULL if the queue is full */
struct vgpu_event *vgpu_event_add(struct vgpu_engine *engine, u8 command);
void vgpu_event_name_tenant(struct vgpu_event *event, const struct vgpu_tenant *tenant);
void vgpu_event_name_slice(struct vgpu_event *event, const struct vgpu_device *device);

/* events.c: engine->lock held, except for vgpu_events_look() */
void vgpu_events_look(struct vgpu_engine *engine);
void vgpu_event_source_init(struct vgpu_event_source *source, bool of_slice);
void vgpu_event_source_tell(struct vgpu_engine *engine, struct vgpu_event_source *source);
void vgpu_event_source_forget(struct vgpu_event_source *source);
void vgpu_event_note(struct vgpu_engine *engine, struct vgpu_event_source *source,
		     enum vgpu_event_kind kind, u64 detail, u64 detail2);
void vgpu_events_decided(struct vgpu_engine *engine, struct vgpu_slice *before,
			 const struct vgpu_decision *decision);

#endif /* VGPU_EVENTS_H */
