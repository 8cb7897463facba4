// SPDX-License-Identifier: GPL-2.0
/*
 * The engine "exec": a process of the host executes, one for each slice, which is lent
 * the engine for one item at a time.
 *
 * A slice is in the scheduler's view only while it has an executor that owes no answer,
 * so the engine never waits for one that is not there, and for one that is no longer than
 * until the deadline. Then the item is over, whatever the process does, and only its own
 * slice waits for its answer. Time is the kernel's: from the offer to the completion.
 *
 * An executor ends with its file or with the enabling of the rings that it serves. It
 * holds its device, never the other way around: removing waits for nobody, closing only
 * for the executor's own thread.
 *
 * It may call as often as it likes. What there is for it to do is written under
 * engine->lock, which all slices of the GPU need, and read without: only a call that does
 * something takes it.
 *
 * Who waits for it is woken by a thread of its own (executor_notifier.c).
 */
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/slab.h>
#include <linux/wait.h>

#include "binding.h"
#include "channel.h"
#include "engine.h"
#include "executor.h"
#include "processor.h"
#include "ring.h"

/* Changing from one process to another. */
#define EXEC_SWITCH_COST_NS	(10 * NSEC_PER_USEC)

/**
 * vgpu_executor_create - an executor of no slice
 *
 * Return: the executor with the file's reference, or NULL without memory.
 */
struct vgpu_executor *vgpu_executor_create(void)
{
	struct vgpu_executor *executor;

	executor = kzalloc(sizeof(*executor), GFP_KERNEL_ACCOUNT);
	if (!executor)
		return NULL;
	kref_init(&executor->refs);
	mutex_init(&executor->lock);
	vgpu_log_init(&executor->log);
	init_waitqueue_head(&executor->wait);
	return executor;
}

static void vgpu_executor_free(struct kref *refs)
{
	struct vgpu_executor *executor = container_of(refs, struct vgpu_executor, refs);

	mutex_destroy(&executor->lock);
	kfree_sensitive(executor);
}

/**
 * vgpu_executor_put - give up a reference
 * @executor: an executor
 */
void vgpu_executor_put(struct vgpu_executor *executor)
{
	kref_put(&executor->refs, vgpu_executor_free);
}

static void vgpu_executor_set_state(struct vgpu_executor *executor, enum vgpu_grant_state state)
{
	write_seqcount_begin(&executor->changes);
	executor->state = state;
	write_seqcount_end(&executor->changes);
}

/**
 * vgpu_executor_connect - a slice has got an executor or a ring, and perhaps both
 * @device: the slice, engine->lock held
 */
void vgpu_executor_connect(struct vgpu_device *device)
{
	struct vgpu_executor *executor = device->executor;
	struct vgpu_ring *ring = device->ring;
	struct vgpu_channel *channel;

	lockdep_assert_held(&device->parent->engine.lock);
	if (!executor || !ring || ring->dead)
		return;
	channel = ring->channel;
	if (channel && channel->state == VGPU_CHANNEL_WAITING) {
		kref_get(&channel->refs);
		/* Before its bytes can move: a guest that is given some finds it open. */
		WRITE_ONCE(channel->state, VGPU_CHANNEL_OPEN);
		write_seqcount_begin(&executor->changes);
		executor->channel = channel;
		write_seqcount_end(&executor->changes);
	}
	vgpu_engine_resume(&device->parent->engine, ring, ktime_get_ns());
	vgpu_ring_kick(ring);
	vgpu_executor_notify(executor);
}

/**
 * vgpu_executor_end - let a slice's executor go, if it has one
 * @device: the slice, engine->lock held
 *
 * A grant that is out ends at once; the other items wait for another executor.
 */
void vgpu_executor_end(struct vgpu_device *device)
{
	struct vgpu_engine *engine = &device->parent->engine;
	struct vgpu_executor *executor = device->executor;
	struct vgpu_ring *ring = device->ring;

	lockdep_assert_held(&engine->lock);
	if (!executor)
		return;
	device->executor = NULL;
	write_seqcount_begin(&executor->changes);
	executor->ended = true;
	write_seqcount_end(&executor->changes);
	if (executor->channel)
		WRITE_ONCE(executor->channel->state, VGPU_CHANNEL_CLOSED);
	if (executor->state == VGPU_GRANT_OFFERED || executor->state == VGPU_GRANT_TAKEN)
		wake_up_process(engine->thread);
	vgpu_executor_notify(executor);
	if (!ring || ring->dead)
		return;
	if (device->scheduled)
		vgpu_ring_rest(ring);
	vgpu_ring_kick(ring);
}

/**
 * vgpu_device_dismiss - let whoever executes for a slice go
 * @device: the slice, engine->lock held; it is being taken away, or gets another tenant
 *
 * Nobody looks at what its guest is told.
 */
void vgpu_device_dismiss(struct vgpu_device *device)
{
	vgpu_executor_end(device);
	vgpu_binding_end(device);
}

/**
 * vgpu_executor_serves - can a slice be lent the engine, as far as executors go
 * @device: the slice, engine->lock held
 */
bool vgpu_executor_serves(const struct vgpu_device *device)
{
	const struct vgpu_executor *executor = device->executor;

	if (!device->parent->engine.ops->executors)
		return true;
	return executor && executor->state != VGPU_GRANT_REVOKED;
}

/**
 * vgpu_executor_wake - bytes have moved
 * @device: the slice
 */
void vgpu_executor_wake(struct vgpu_device *device)
{
	struct vgpu_engine *engine = &device->parent->engine;

	spin_lock_irq(&engine->lock);
	if (device->executor)
		vgpu_executor_notify(device->executor);
	spin_unlock_irq(&engine->lock);
}

/* parent->lock held: the engine does not change, nor is the device being removed. */
static int vgpu_executor_attach_to(struct vgpu_executor *executor, struct vgpu_device *device,
				   struct task_struct *notifier)
{
	struct vgpu_engine *engine = &device->parent->engine;
	int ret = 0;

	lockdep_assert_held(&device->parent->lock);
	if (!engine->ops->executors)
		return -EOPNOTSUPP;
	if (device->revoked)
		return -ENODEV;
	spin_lock_irq(&engine->lock);
	if (device->executor) {
		ret = -EBUSY;
	} else {
		get_device(&device->vdev.device);
		executor->notifier = notifier;
		seqcount_spinlock_init(&executor->changes, &engine->lock);
		/* Pairs with vgpu_executor_device(): complete when it can be seen. */
		smp_store_release(&executor->device, device);
		device->executor = executor;
		vgpu_executor_connect(device);
	}
	spin_unlock_irq(&engine->lock);
	return ret;
}

/**
 * vgpu_executor_attach - make an executor the one of a slice
 * @executor: its @lock held
 * @uuid: of the slice
 *
 * Return: 0 or what struct vgpu_exec_attach says.
 */
int vgpu_executor_attach(struct vgpu_executor *executor, const guid_t *uuid)
{
	struct task_struct *notifier;
	struct vgpu_device *device;
	int ret = -ENOENT;

	lockdep_assert_held(&executor->lock);
	if (executor->device || executor->binding)
		return -EBUSY;
	/* Before the lock that all slices of a GPU need. */
	notifier = vgpu_executor_start(executor, uuid);
	if (IS_ERR(notifier))
		return PTR_ERR(notifier);
	device = vgpu_device_lock(uuid);
	if (device) {
		ret = vgpu_executor_attach_to(executor, device, notifier);
		vgpu_parent_unlock(device->parent);
	}
	if (ret)
		kthread_stop(notifier);
	return ret;
}

/**
 * vgpu_executor_release - the file is closed
 * @executor: nobody uses it any more but perhaps the engine
 */
void vgpu_executor_release(struct vgpu_executor *executor)
{
	struct vgpu_device *device = executor->device;

	if (device) {
		struct vgpu_engine *engine = &device->parent->engine;

		spin_lock_irq(&engine->lock);
		if (device->executor == executor)
			vgpu_executor_end(device);
		spin_unlock_irq(&engine->lock);
		kthread_stop(executor->notifier);
		vgpu_channel_put(executor->channel);
		put_device(&device->vdev.device);
	}
	vgpu_executor_put(executor);
}

/**
 * vgpu_executor_look - see what there is to do
 * @executor: attached
 * @view: out
 *
 * Who waits for a change has put itself into @executor->wait before it looks; who makes one
 * has all there woken afterwards. That queue's own lock orders the two: either this sees the
 * change, or the change sees who waits.
 */
void vgpu_executor_look(struct vgpu_executor *executor, struct vgpu_executor_view *view)
{
	unsigned int sequence;

	do {
		sequence = read_seqcount_begin(&executor->changes);
		view->channel = executor->channel;
		view->ended = executor->ended;
		view->state = executor->state;
		view->grant = executor->grant;
	} while (read_seqcount_retry(&executor->changes, sequence));
}

/**
 * vgpu_executor_take - the executor knows of the grant
 * @executor: attached
 * @number: of the grant that was offered when it was told; it may be over by now
 */
void vgpu_executor_take(struct vgpu_executor *executor, u64 number)
{
	struct vgpu_engine *engine = &executor->device->parent->engine;

	spin_lock_irq(&engine->lock);
	if (executor->state == VGPU_GRANT_OFFERED && executor->grant.number == number)
		vgpu_executor_set_state(executor, VGPU_GRANT_TAKEN);
	spin_unlock_irq(&engine->lock);
}

/* Whether it has that grant, or had: 0 or what struct vgpu_exec_complete says. */
static int vgpu_executor_owes(struct vgpu_executor *executor, u64 number)
{
	struct vgpu_executor_view view;

	vgpu_executor_look(executor, &view);
	if (view.ended)
		return -ENODEV;
	if (view.state != VGPU_GRANT_TAKEN && view.state != VGPU_GRANT_REVOKED)
		return -EINVAL;
	return number == view.grant.number ? 0 : -EINVAL;
}

/**
 * vgpu_executor_complete - the executor gives the engine back
 * @executor: attached
 * @complete: what it says
 *
 * Return: 0 or what struct vgpu_exec_complete says.
 */
int vgpu_executor_complete(struct vgpu_executor *executor,
			   const struct vgpu_exec_complete *complete)
{
	struct vgpu_device *device = executor->device;
	struct vgpu_engine *engine = &device->parent->engine;
	int ret;

	if (complete->reserved || complete->status > VGPU_ITEM_FAILED)
		return -EINVAL;
	ret = vgpu_executor_owes(executor, complete->number);
	if (ret)
		return ret;
	spin_lock_irq(&engine->lock);
	/* It may have ended meanwhile, or another thread was faster. */
	ret = vgpu_executor_owes(executor, complete->number);
	if (!ret && executor->state == VGPU_GRANT_TAKEN) {
		vgpu_executor_set_state(executor, VGPU_GRANT_DONE);
		executor->status = complete->status;
		executor->result = complete->result;
		vgpu_engine_stops(engine, ktime_get_ns());
		wake_up_process(engine->thread);
	} else if (!ret) {
		vgpu_executor_set_state(executor, VGPU_GRANT_NONE);
		ret = -ECANCELED;
		if (device->ring)
			vgpu_engine_resume(engine, device->ring, ktime_get_ns());
	}
	spin_unlock_irq(&engine->lock);
	return ret;
}

/* Lend the engine for @item. The executor with a reference; NULL when it is gone. */
static struct vgpu_executor *exec_offer(struct vgpu_engine *engine,
					const struct vgpu_item *item, u64 deadline_ns)
{
	struct vgpu_executor *executor;
	struct vgpu_exec_grant *grant;
	unsigned int i;

	spin_lock_irq(&engine->lock);
	executor = item->ring->dead ? NULL : item->ring->device->executor;
	if (executor && executor->state == VGPU_GRANT_NONE) {
		kref_get(&executor->refs);
		grant = &executor->grant;
		write_seqcount_begin(&executor->changes);
		grant->number++;
		grant->deadline_ns = deadline_ns;
		grant->cookie = le64_to_cpu(item->desc.cookie);
		grant->kernel_id = le32_to_cpu(item->desc.kernel_id);
		grant->flags = 0;
		for (i = 0; i < ARRAY_SIZE(grant->arg); i++)
			grant->arg[i] = le32_to_cpu(item->desc.arg[i]);
		executor->state = VGPU_GRANT_OFFERED;
		write_seqcount_end(&executor->changes);
		vgpu_engine_stops(engine, deadline_ns);
		vgpu_executor_notify(executor);
	} else {
		executor = NULL;
	}
	spin_unlock_irq(&engine->lock);
	return executor;
}

static bool exec_is_waiting(struct vgpu_engine *engine, const struct vgpu_executor *executor)
{
	bool waiting;

	spin_lock_irq(&engine->lock);
	waiting = !executor->ended && executor->state != VGPU_GRANT_DONE;
	spin_unlock_irq(&engine->lock);
	return waiting;
}

/* Until the grant is done, its executor is gone, the deadline, or the engine is stopped. */
static void exec_wait(struct vgpu_engine *engine, const struct vgpu_executor *executor,
		      u64 deadline_ns)
{
	for (;;) {
		set_current_state(TASK_IDLE);
		if (!exec_is_waiting(engine, executor) || kthread_should_stop() ||
		    ktime_get_ns() >= deadline_ns)
			break;
		vgpu_engine_sleep(engine, deadline_ns);
	}
	__set_current_state(TASK_RUNNING);
}

/* The engine takes itself back, and the item is over. */
static void exec_settle(struct vgpu_engine *engine, struct vgpu_executor *executor,
			struct vgpu_item *item)
{
	spin_lock_irq(&engine->lock);
	if (executor->state == VGPU_GRANT_DONE) {
		item->status = executor->status;
		item->result = executor->result;
		vgpu_executor_set_state(executor, VGPU_GRANT_NONE);
	} else if (executor->ended) {
		item->status = VGPU_ITEM_LOST;
	} else {
		item->status = VGPU_ITEM_REVOKED;
		write_seqcount_begin(&executor->changes);
		executor->state = VGPU_GRANT_REVOKED;
		executor->grant.flags = VGPU_EXEC_REVOKED;
		write_seqcount_end(&executor->changes);
		vgpu_executor_notify(executor);
	}
	spin_unlock_irq(&engine->lock);
	vgpu_executor_put(executor);
}

static bool exec_execute(struct vgpu_engine *engine, struct vgpu_item *item, u64 limit_ns)
{
	u64 start_ns = ktime_get_ns();
	u64 deadline_ns = start_ns + READ_ONCE(engine->sched.params.max_chunk_ns);
	u64 brief_ns = min(deadline_ns, start_ns + VGPU_ENGINE_BRIEF_NS);
	struct vgpu_executor *executor = NULL;

	if (le16_to_cpu(item->desc.op) != VGPU_OP_NOP)
		executor = exec_offer(engine, item, deadline_ns);
	if (!executor) {
		vgpu_engine_set_pace(engine, VGPU_ENGINE_BRIEF);
		return le16_to_cpu(item->desc.op) == VGPU_OP_NOP;
	}
	/* Who took long before most likely does so again, and is noticed in time. */
	if (executor->brief) {
		vgpu_engine_set_pace(engine, VGPU_ENGINE_BRIEF);
		exec_wait(engine, executor, brief_ns);
	}
	if (exec_is_waiting(engine, executor)) {
		vgpu_engine_set_pace(engine, VGPU_ENGINE_WAITS);
		exec_wait(engine, executor, deadline_ns);
	}
	executor->brief = ktime_get_ns() < brief_ns;
	exec_settle(engine, executor, item);
	return true;
}

/* Nobody knows; the deadline bounds it. */
static u64 exec_estimate_ns(struct vgpu_engine *engine, const struct vgpu_item *item)
{
	return 0;
}

static bool exec_drives(struct pci_dev *pdev)
{
	return true;
}

static void *exec_start(struct vgpu_engine *engine, struct pci_dev *pdev,
			struct vgpu_calibration *calibration)
{
	calibration->switch_cost_ns = EXEC_SWITCH_COST_NS;
	return NULL;
}

static void exec_stop(void *state)
{
}

const struct vgpu_engine_ops vgpu_exec_engine = {
	.name = "exec",
	.operations = BIT(VGPU_OP_NOP) | BIT(VGPU_OP_LAUNCH),
	.whole_items = true,
	.executors = true,
	.drives = exec_drives,
	.start = exec_start,
	.stop = exec_stop,
	.execute = exec_execute,
	.estimate_ns = exec_estimate_ns,
};
