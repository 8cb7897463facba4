// SPDX-License-Identifier: GPL-2.0
/*
 * The multicast group "events" of the netlink family: numbers and sends queued events. See
 * events.h.
 *
 * One ordered work queue serves all engines, so numbers are sent in order. A message gets
 * its number when it is sent. So a client that first reads the present number and then an
 * object sees the effect of every event up to that number.
 */
#include <linux/ktime.h>
#include <linux/slab.h>

#include "control/netlink.h"
#include "engine/engine.h"

#define VGPU_EVENT_BYTES	512

static struct workqueue_struct *vgpu_events_wq;
static atomic64_t vgpu_events_seq;

bool vgpu_events_wanted(void)
{
	return genl_has_listeners(&vgpu_family, &init_net, VGPU_GROUP_EVENTS);
}

/**
 * vgpu_events_sequence - number of the last event that was sent or lost
 *
 * Return: a count that starts when the module is loaded.
 */
u64 vgpu_events_sequence(void)
{
	return atomic64_read(&vgpu_events_seq);
}

static int vgpu_event_put_details(struct sk_buff *skb, const struct vgpu_event *event)
{
	switch (event->command) {
	case VGPUMGR_CMD_FAULT_NTF:
		return nla_put_u32(skb, VGPUMGR_A_EVENT_ERROR, event->detail[0]) ?:
		       nla_put_u32(skb, VGPUMGR_A_EVENT_ERROR_INDEX, event->detail[1]);
	case VGPUMGR_CMD_OVERRUN_NTF:
		return nla_put_u64_64bit(skb, VGPUMGR_A_EVENT_LENGTH_NS, event->detail[0],
					 VGPUMGR_A_EVENT_PAD) ?:
		       nla_put_u64_64bit(skb, VGPUMGR_A_EVENT_LIMIT_NS, event->detail[1],
					 VGPUMGR_A_EVENT_PAD);
	default:
		return 0;
	}
}

static int vgpu_event_put(struct sk_buff *skb, const char *gpu, u64 seq,
			  const struct vgpu_event *event)
{
	char uuid[UUID_STRING_LEN + 1];

	snprintf(uuid, sizeof(uuid), "%pUl", &event->slice);
	if (nla_put_u64_64bit(skb, VGPUMGR_A_EVENT_SEQ, seq, VGPUMGR_A_EVENT_PAD) ||
	    nla_put_u64_64bit(skb, VGPUMGR_A_EVENT_TIME_NS, event->time_ns,
			      VGPUMGR_A_EVENT_PAD) ||
	    nla_put_u32(skb, VGPUMGR_A_EVENT_COUNT, event->count) ||
	    nla_put_string(skb, VGPUMGR_A_EVENT_GPU, gpu))
		return -EMSGSIZE;
	if (event->tenant[0] &&
	    nla_put_string(skb, VGPUMGR_A_EVENT_TENANT, event->tenant))
		return -EMSGSIZE;
	if (event->of_slice && nla_put_string(skb, VGPUMGR_A_EVENT_SLICE, uuid))
		return -EMSGSIZE;
	if (event->pid && (nla_put_u32(skb, VGPUMGR_A_EVENT_PID, event->pid) ||
			   nla_put_string(skb, VGPUMGR_A_EVENT_COMM, event->comm)))
		return -EMSGSIZE;
	return vgpu_event_put_details(skb, event);
}

/*
 * Work queue only. Skips @lost numbers, so that listeners that do not know
 * VGPUMGR_CMD_LOST_NTF see the gap. Returns false if there is no memory; then no number is
 * used.
 */
static bool vgpu_event_send(struct vgpu_engine *engine, const struct vgpu_event *event,
			    u32 lost)
{
	struct sk_buff *skb = genlmsg_new(VGPU_EVENT_BYTES, GFP_KERNEL);
	void *header;
	u64 seq;

	if (!skb)
		return false;
	seq = atomic64_add_return(lost + 1ULL, &vgpu_events_seq);
	header = genlmsg_put(skb, 0, 0, &vgpu_family, 0, event->command);
	if (WARN_ON_ONCE(!header || vgpu_event_put(skb, engine->name, seq, event))) {
		nlmsg_free(skb);
		return true;
	}
	genlmsg_end(skb, header);
	/* A listener without room gets ENOBUFS. No listener is not an error. */
	genlmsg_multicast(&vgpu_family, skb, 0, VGPU_GROUP_EVENTS, GFP_KERNEL);
	return true;
}

static bool vgpu_events_take(struct vgpu_engine *engine, struct vgpu_event *event)
{
	struct vgpu_events *events = &engine->events;
	bool taken = true;

	memset(event, 0, sizeof(*event));
	spin_lock_irq(&engine->lock);
	if (events->queued) {
		*event = events->queue[events->first];
		events->first = (events->first + 1) % VGPU_EVENTS_QUEUED;
		events->queued--;
	} else if (events->dropped) {
		event->command = VGPUMGR_CMD_LOST_NTF;
		event->time_ns = ktime_get_ns();
		event->count = events->dropped;
		events->dropped = 0;
	} else {
		taken = false;
	}
	spin_unlock_irq(&engine->lock);
	return taken;
}

/* Call vgpu_events_look() at @at_ns or earlier. */
void vgpu_events_look_at(struct vgpu_engine *engine, u64 at_ns)
{
	u64 now_ns = ktime_get_ns();
	u64 delay_ns = at_ns > now_ns ? at_ns - now_ns : 0;

	lockdep_assert_held(&engine->lock);
	if (at_ns >= engine->events.look_at_ns)
		return;
	engine->events.look_at_ns = at_ns;
	mod_delayed_work(vgpu_events_wq, &engine->events.later, nsecs_to_jiffies(delay_ns) + 1);
}

/* Work queue only. */
void vgpu_events_drain(struct vgpu_engine *engine)
{
	struct vgpu_event event;

	while (vgpu_events_take(engine, &event)) {
		u32 lost = event.command == VGPUMGR_CMD_LOST_NTF ? event.count : 0;

		if (vgpu_event_send(engine, &event, lost))
			continue;
		spin_lock_irq(&engine->lock);
		engine->events.dropped += lost ?: 1;
		vgpu_events_look_at(engine, ktime_get_ns() + NSEC_PER_SEC);
		spin_unlock_irq(&engine->lock);
		return;
	}
}

static void vgpu_events_send(struct work_struct *work)
{
	vgpu_events_drain(container_of(work, struct vgpu_engine, events.send));
}

/* Reserve a zeroed entry for one more event; NULL if the queue is full. */
struct vgpu_event *vgpu_event_add(struct vgpu_engine *engine, u8 command)
{
	struct vgpu_events *events = &engine->events;
	struct vgpu_event *event;

	lockdep_assert_held(&engine->lock);
	queue_work(vgpu_events_wq, &events->send);
	if (events->queued == VGPU_EVENTS_QUEUED) {
		events->dropped++;
		return NULL;
	}
	event = &events->queue[(events->first + events->queued) % VGPU_EVENTS_QUEUED];
	events->queued++;
	memset(event, 0, sizeof(*event));
	event->command = command;
	event->count = 1;
	return event;
}

void vgpu_event_name_tenant(struct vgpu_event *event, const struct vgpu_tenant *tenant)
{
	if (tenant)
		strscpy(event->tenant, tenant->name, sizeof(event->tenant));
}

void vgpu_event_name_slice(struct vgpu_event *event, const struct vgpu_device *device)
{
	event->of_slice = true;
	event->slice = device->uuid;
	vgpu_event_name_tenant(event, device->tenant);
}

static void vgpu_event_name_opener(struct vgpu_event *event, const struct vgpu_device *device)
{
	event->pid = device->opener_pid;
	strscpy(event->comm, device->opener_comm, sizeof(event->comm));
}

/*
 * Queue an event about @device; without a @device, about @tenant; without both, about the
 * GPU. The collected events of a removed object are queued first, because no event may
 * follow the object's removal.
 */
static void vgpu_event_queue(struct vgpu_engine *engine, u8 command,
			     struct vgpu_tenant *tenant, struct vgpu_device *device)
{
	struct vgpu_event *event;

	if (!vgpu_events_wanted())
		return;
	spin_lock_irq(&engine->lock);
	if (command == VGPUMGR_CMD_REMOVED_NTF && device)
		vgpu_event_source_tell(engine, &device->events);
	else if (command == VGPUMGR_CMD_REMOVED_NTF && tenant)
		vgpu_event_source_tell(engine, &tenant->events);
	event = vgpu_event_add(engine, command);
	if (event) {
		event->time_ns = ktime_get_ns();
		if (device)
			vgpu_event_name_slice(event, device);
		else
			vgpu_event_name_tenant(event, tenant);
		if (command == VGPUMGR_CMD_REVOKED_NTF)
			vgpu_event_name_opener(event, device);
	}
	spin_unlock_irq(&engine->lock);
}

/**
 * vgpu_event_gpu - report that a GPU was added or removed
 * @parent: the GPU, its engine started
 * @command: VGPUMGR_CMD_CREATED_NTF or VGPUMGR_CMD_REMOVED_NTF
 */
void vgpu_event_gpu(struct vgpu_parent *parent, u8 command)
{
	vgpu_event_queue(&parent->engine, command, NULL, NULL);
}

/**
 * vgpu_event_tenant - report that a tenant was added or removed
 * @tenant: the tenant, parent->lock held
 * @command: VGPUMGR_CMD_CREATED_NTF or VGPUMGR_CMD_REMOVED_NTF
 */
void vgpu_event_tenant(struct vgpu_tenant *tenant, u8 command)
{
	lockdep_assert_held(&tenant->parent->lock);
	vgpu_event_queue(&tenant->parent->engine, command, tenant, NULL);
}

/**
 * vgpu_event_slice - report that a slice was created, removed or revoked
 * @device: the slice, parent->lock held
 * @command: VGPUMGR_CMD_CREATED_NTF, _REMOVED_NTF or _REVOKED_NTF
 */
void vgpu_event_slice(struct vgpu_device *device, u8 command)
{
	lockdep_assert_held(&device->parent->lock);
	vgpu_event_queue(&device->parent->engine, command, NULL, device);
}

/**
 * vgpu_event_opened - remember the process that opens a slice, to report it on revocation
 * @device: the slice, parent->lock held
 */
void vgpu_event_opened(struct vgpu_device *device)
{
	lockdep_assert_held(&device->parent->lock);
	device->opener_pid = task_tgid_nr(current);
	get_task_comm(device->opener_comm, current->group_leader);
}

static void vgpu_events_later(struct work_struct *work)
{
	struct vgpu_engine *engine = container_of(work, struct vgpu_engine, events.later.work);

	vgpu_events_look(engine);
	vgpu_events_drain(engine);
}

/**
 * vgpu_events_start - prepare an engine for events
 * @engine: the engine; its lock is initialized
 *
 * Return: 0 or -ENOMEM.
 */
int vgpu_events_start(struct vgpu_engine *engine)
{
	struct vgpu_events *events = &engine->events;

	events->queue = kvcalloc(VGPU_EVENTS_QUEUED, sizeof(*events->queue), GFP_KERNEL);
	if (!events->queue)
		return -ENOMEM;
	INIT_LIST_HEAD(&events->late);
	events->look_at_ns = U64_MAX;
	INIT_WORK(&events->send, vgpu_events_send);
	INIT_DELAYED_WORK(&events->later, vgpu_events_later);
	return 0;
}

/**
 * vgpu_events_stop - send the queue and stop
 * @engine: the engine; it has no devices and tenants, and its thread has ended
 */
void vgpu_events_stop(struct vgpu_engine *engine)
{
	cancel_delayed_work_sync(&engine->events.later);
	flush_work(&engine->events.send);
	/*
	 * The send that was just flushed may have found no memory and armed the timer again.
	 * Events that are still queued are lost: listeners see a gap in the sequence.
	 */
	cancel_delayed_work_sync(&engine->events.later);
	atomic64_add(engine->events.queued + engine->events.dropped, &vgpu_events_seq);
	kvfree(engine->events.queue);
	engine->events.queue = NULL;
}

int vgpu_events_init(void)
{
	vgpu_events_wq = alloc_ordered_workqueue("vgpumgr_events", 0);
	return vgpu_events_wq ? 0 : -ENOMEM;
}

void vgpu_events_exit(void)
{
	destroy_workqueue(vgpu_events_wq);
}
