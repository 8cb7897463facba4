// SPDX-License-Identifier: GPL-2.0
/*
 * The engine "lease": the module does not drive the accelerator itself. The accelerator is
 * lent to one slice at a time, and the children of its executor use it as they like until the
 * lease is over. The gate of that executor stops children that do not stop by themselves.
 *
 * sched/arbiter.c decides which slice has its turn, and for how long. It runs in the context
 * of the caller that asks or yields, or of one timer. There is no thread.
 */
#include <linux/cpumask.h>
#include <linux/hrtimer.h>
#include <linux/ktime.h>

#include "engine/binding.h"
#include "engine/child.h"
#include "engine/engine.h"

/*
 * The cost of changing from one child to another, as used for the least timeslice and for
 * reservations. The real cost is charged as part of the lease that begins with the change.
 * For a GPU that takes longer, the agent measures the cost and sets a greater least
 * timeslice.
 */
#define VGPU_LENDING_SWITCH_COST_NS	(100 * NSEC_PER_USEC)
/*
 * Time from the end of a lease until none of its work runs any more: the grace period and the
 * time to close the gate.
 */
#define VGPU_LENDING_CHUNK_NS		(5 * NSEC_PER_MSEC)

/*
 * Return the same settings as the broker's defaults. An executor that reports no processor
 * time is not watched.
 */
static struct vgpu_arbiter_settings vgpu_lending_settings(void)
{
	return (struct vgpu_arbiter_settings){
		.grace_ns = 2 * NSEC_PER_MSEC,
		.early_ns = 200 * NSEC_PER_USEC,
		.gate_limit_ns = 2 * (u64)NSEC_PER_SEC,
		.watch = {
			.processors = num_online_cpus(),
			.free_permille = 20,
			.allowance_permille = 500,
			.burst_ns = NSEC_PER_SEC,
			.every_ns = 250 * NSEC_PER_MSEC,
			.penalty_ns = NSEC_PER_SEC,
		},
	};
}

static struct vgpu_device *vgpu_party_to_device(struct vgpu_party *party)
{
	return container_of(party, struct vgpu_device, party);
}

static struct vgpu_party *vgpu_lending_party(struct vgpu_slice *slice)
{
	return &vgpu_slice_to_device(slice)->party;
}

/* Children read the lease word last, and again after they have written their own state. */
static void vgpu_lending_publish(struct vgpu_party *party,
				 const struct vgpu_arbiter_lease *lease, bool wake)
{
	struct vgpu_device *device = vgpu_party_to_device(party);
	struct vgpu_lease_page *page;
	struct vgpu_child *child;

	if (!device->binding)
		return;
	page = vgpu_binding_lease(device->binding);
	WRITE_ONCE(page->begun_ns, lease->begun_ns);
	WRITE_ONCE(page->expires_ns, lease->expires_ns);
	/* Pairs with the child's load of the lease word: the times belong to this lease. */
	smp_store_release(&page->lease, lease->number << VGPU_LEASE_STATE_BITS | lease->state);
	/*
	 * Pairs with the child's barrier: either the child sees the new lease word, or the
	 * arbiter's next read sees the child's new state.
	 */
	smp_mb();
	if (!wake)
		return;
	/* Pairs with the child's load of the wake word, before it reads the other words. */
	smp_store_release(&page->wake, page->wake + 1);
	list_for_each_entry(child, &device->children, node)
		vgpu_child_signal(child);
}

static void vgpu_lending_read(struct vgpu_stream *stream, struct vgpu_stream_view *view)
{
	const struct vgpu_stream_page *page = vgpu_child_says(vgpu_stream_to_child(stream));

	/* Pairs with the child's release: everything it wrote before is visible. */
	view->state = smp_load_acquire(&page->state);
	view->dry_since_ns = READ_ONCE(page->dry_since_ns);
	view->idle_ns = READ_ONCE(page->idle_ns);
}

static void vgpu_lending_gate(struct vgpu_party *party, bool close, u64 sequence)
{
	vgpu_binding_ask_gate(vgpu_party_to_device(party), close, sequence);
}

static void vgpu_lending_gate_lost(struct vgpu_party *party)
{
	vgpu_binding_kill(vgpu_party_to_device(party));
}

static void vgpu_lending_arm(struct vgpu_arbiter *arbiter, u64 at_ns)
{
	struct vgpu_engine *engine = container_of(arbiter, struct vgpu_engine, arbiter);

	/* A timer that cannot be cancelled any more finds nothing to do. */
	if (at_ns > KTIME_MAX)
		hrtimer_try_to_cancel(&engine->lease_timer);
	else
		hrtimer_start(&engine->lease_timer, ns_to_ktime(at_ns), HRTIMER_MODE_ABS);
}

static const struct vgpu_arbiter_ops vgpu_lending_ops = {
	.party = vgpu_lending_party,
	.publish = vgpu_lending_publish,
	.read = vgpu_lending_read,
	.gate = vgpu_lending_gate,
	.gate_lost = vgpu_lending_gate_lost,
	.arm = vgpu_lending_arm,
};

static enum hrtimer_restart vgpu_lending_timer(struct hrtimer *timer)
{
	struct vgpu_engine *engine = container_of(timer, struct vgpu_engine, lease_timer);
	unsigned long flags;

	spin_lock_irqsave(&engine->lock, flags);
	if (engine->ops->lends)
		vgpu_arbiter_timer(&engine->arbiter, ktime_get_ns());
	spin_unlock_irqrestore(&engine->lock, flags);
	return HRTIMER_NORESTART;
}

/**
 * vgpu_lending_init - set up the lease timer, not armed
 * @engine: the engine, being started
 */
void vgpu_lending_init(struct vgpu_engine *engine)
{
	vgpu_hrtimer_setup(&engine->lease_timer, vgpu_lending_timer, CLOCK_MONOTONIC,
			   HRTIMER_MODE_ABS);
}

/**
 * vgpu_lending_begin - lend the engine from now on, if it is one that lends
 * @engine: the engine. Its scheduler is initialized and has no slice. Either nobody else uses
 *	the engine, or engine->lock is held
 * @now_ns: the present
 */
void vgpu_lending_begin(struct vgpu_engine *engine, u64 now_ns)
{
	const struct vgpu_arbiter_settings settings = vgpu_lending_settings();

	if (engine->ops->lends)
		vgpu_arbiter_init(&engine->arbiter, &engine->sched, &vgpu_lending_ops, &settings,
				  now_ns);
}

/**
 * vgpu_lending_add - add a slice that has entered the scheduler
 * @device: the slice, engine->lock held
 * @now_ns: the present
 */
void vgpu_lending_add(struct vgpu_device *device, u64 now_ns)
{
	struct vgpu_engine *engine = &device->parent->engine;
	struct vgpu_child *child;

	lockdep_assert_held(&engine->lock);
	if (!engine->ops->lends)
		return;
	vgpu_arbiter_party_add(&engine->arbiter, &device->party, &device->slice, now_ns);
	list_for_each_entry(child, &device->children, node)
		vgpu_lending_attach(child, child->stream.want, now_ns);
}

/**
 * vgpu_lending_remove - remove a slice that is about to leave the scheduler
 * @device: the slice, engine->lock held
 * @now_ns: the present
 */
void vgpu_lending_remove(struct vgpu_device *device, u64 now_ns)
{
	struct vgpu_engine *engine = &device->parent->engine;
	struct vgpu_child *child;

	lockdep_assert_held(&engine->lock);
	if (!engine->ops->lends)
		return;
	vgpu_arbiter_party_remove(&engine->arbiter, &device->party, now_ns);
	list_for_each_entry(child, &device->children, node)
		child->attached = false;
}

/**
 * vgpu_lending_attach - allow a child of a slice in the scheduler to send requests
 * @child: the child, in its slice's list, engine->lock held
 * @want: the child has work already
 * @now_ns: the present
 */
void vgpu_lending_attach(struct vgpu_child *child, bool want, u64 now_ns)
{
	struct vgpu_device *device = child->device;

	vgpu_arbiter_stream_add(&device->parent->engine.arbiter, &device->party, &child->stream,
				want, now_ns);
	child->attached = true;
}

/**
 * vgpu_lending_detach - remove a child and its state
 * @child: the child, engine->lock held
 * @now_ns: the present
 */
void vgpu_lending_detach(struct vgpu_child *child, u64 now_ns)
{
	if (child->attached)
		vgpu_arbiter_stream_remove(&child->device->parent->engine.arbiter, &child->stream,
					   now_ns);
	child->attached = false;
}

/**
 * vgpu_lending_request - handle a child's READY or YIELD
 * @child: the child, engine->lock held
 * @request: the request, as the child wrote it
 * @now_ns: the present
 *
 * Return: false if the request is invalid.
 */
bool vgpu_lending_request(struct vgpu_child *child, const struct vgpu_stream_request *request,
			  u64 now_ns)
{
	return vgpu_arbiter_request(&child->device->parent->engine.arbiter, &child->stream, request,
				    now_ns);
}

/**
 * vgpu_lending_gate_answer - handle an executor's report about its gate
 * @device: the executor's slice, engine->lock held
 * @gate: the report
 * @now_ns: the present
 */
void vgpu_lending_gate_answer(struct vgpu_device *device, const struct vgpu_exec_gate *gate,
			      u64 now_ns)
{
	vgpu_arbiter_gate_answer(&device->parent->engine.arbiter, &device->party, gate->sequence,
				 gate->done, gate->processor_ns, now_ns);
}

/**
 * vgpu_lending_gate_is_gone - handle the end of an executor, and with it of its gate
 * @device: the executor's slice, engine->lock held; its children have ended
 * @now_ns: the present
 */
void vgpu_lending_gate_is_gone(struct vgpu_device *device, u64 now_ns)
{
	vgpu_arbiter_gate_reset(&device->parent->engine.arbiter, &device->party, now_ns);
}

static bool lease_drives(struct pci_dev *pdev)
{
	return true;
}

static void *lease_start(struct vgpu_engine *engine, struct pci_dev *pdev,
			 struct vgpu_calibration *calibration)
{
	calibration->switch_cost_ns = VGPU_LENDING_SWITCH_COST_NS;
	calibration->max_chunk_ns = VGPU_LENDING_CHUNK_NS;
	return NULL;
}

static void lease_stop(void *state)
{
}

const struct vgpu_engine_ops vgpu_lease_engine = {
	.name = "lease",
	.whole_items = true,
	.lends = true,
	.drives = lease_drives,
	.start = lease_start,
	.stop = lease_stop,
};
