/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives ready commands to the library, as many as the lease and the limits on work in progress
 * permit.
 *
 * Most launches have no library event.  They are collected in their queue's open batch, and one
 * callback, of a later command or of a marker, reports the end of all of them.  A callback costs
 * more than a small kernel, and the library starts nothing else in that queue while the callback
 * runs.  In an out-of-order queue, the end of one command does not imply the end of earlier ones.
 * In such a queue, each command with a callback is a separate batch, and markers report the end of
 * the other commands.
 */
#include <stdlib.h>

#include "backend_private.h"

/* A kernel that runs at least this long has its own callback. */
#define OWN_CALLBACK_NS	50000ull
/* While the lease does not expire, may_submit() is called once for this many pieces. */
#define UNASKED	16u
/*
 * While nobody else requests the accelerator, the backend waits this long before it asks the
 * library whether the work in progress has ended.  The time is longer than a timer tick of most
 * kernels: under a hypervisor, arming the timer for a shorter sleep costs 12 us, as much as a whole
 * round of the main loop.
 */
#define LAZY_NS	4000000ull
/* When to retry if the library had no marker to end a batch. */
#define MARK_AGAIN_NS	1000000ull
/* Number of executions of a kernel that are measured one by one. */
#define MEASURED	8u

static struct batch *open_batch(struct vgpu_backend *backend, struct queue *queue)
{
	struct batch *batch = calloc(1, sizeof(*batch));

	if (!batch)
		return NULL;
	batch->backend = backend;
	batch->queue = queue;
	batch->given_ns = opencl_now_ns();
	return batch;
}

static void add(struct vgpu_backend *backend, struct batch *batch, struct command *command)
{
	command->next = NULL;
	command->previous = NULL;
	batch->same = !batch->last || (batch->same && batch->last->kernel_id == command->kernel_id);
	if (batch->last)
		batch->last->next = command;
	else
		batch->first = command;
	batch->last = command;
	batch->count++;
	batch->mean_ns += command->mean_ns;
	backend->under_way++;
	batch->queue->under_way++;
	backend->under_way_ns += command->mean_ns;
}

/* Ends the batch with the callback of @event.  From here on, the batch belongs to the library's threads. */
static void close_batch(struct vgpu_backend *backend, struct batch *batch, cl_event event)
{
	cl_int error;

	if (batch->queue->open == batch)
		batch->queue->open = NULL;
	batch->event = event;
	/*
	 * COMPLETIONs must keep their order: the callback sends them only if the main thread has
	 * none left to send.
	 */
	batch->tell = batch->has_notify && !batch->by_main && !backend->by_main &&
		      batch->count <= OPENCL_BATCH_MAX + 1;
	batch->counted = batch->has_notify && !batch->tell;
	backend->by_main += batch->counted;
	error = backend->library->clSetEventCallback(event, CL_COMPLETE, opencl_batch_done, batch);
	if (error)
		opencl_batch_done(event, error, batch);
}

/*
 * Ends the queue's open batch with a marker.  If there is no memory for it, the next marker ends
 * the batch.
 */
static void mark(struct vgpu_backend *backend, struct queue *queue)
{
	cl_event event;

	if (!queue->open ||
	    backend->library->clEnqueueMarkerWithWaitList(queue->library, 0, NULL, &event))
		return;
	queue->open->own_event = true;
	close_batch(backend, queue->open, event);
	queue->flush = true;
}

static void list(struct vgpu_backend *backend, struct queue *queue)
{
	if (queue->listed)
		return;
	queue->listed = true;
	queue->next_listed = backend->listed;
	backend->listed = opencl_ref(queue);
}

/*
 * Walks the queues that got commands: flushes them, and ends the batches that the client waits for,
 * or all batches if @settle is set.
 */
static void walk(struct vgpu_backend *backend, bool settle)
{
	struct queue *queue, **link = &backend->listed;

	while ((queue = *link)) {
		if (settle || (queue->open && queue->open->has_notify))
			mark(backend, queue);
		if (queue->flush)
			backend->library->clFlush(queue->library);
		queue->flush = false;
		if (queue->open) {
			link = &queue->next_listed;
			continue;
		}
		*link = queue->next_listed;
		queue->listed = false;
		opencl_unref(backend, queue);
	}
}

uint64_t opencl_settle(struct vgpu_backend *backend)
{
	struct vgpu_child_services *services = &backend->services;
	uint64_t now_ns;

	if (backend->under_way && !backend->ready_first && !backend->quiet && !backend->stalled &&
	    !backend->releases && !services->rivals(services->child)) {
		now_ns = opencl_now_ns();
		if (!backend->lazy_since_ns)
			backend->lazy_since_ns = now_ns;
		if (now_ns - backend->lazy_since_ns < LAZY_NS) {
			atomic_store(&backend->wake_wanted, false);
			return backend->lazy_since_ns + LAZY_NS;
		}
	}
	if (backend->listed)
		walk(backend, true);
	/*
	 * Set the flag before checking the list: a callback pushes its batch first and then reads
	 * the flag.
	 */
	atomic_store(&backend->wake_wanted, true);
	if (atomic_load(&backend->news))
		return 0;
	/* A queue that is still listed has a batch without a callback. */
	return backend->listed ? opencl_now_ns() + MARK_AGAIN_NS : UINT64_MAX;
}

/*
 * Collects the library's events for a command's wait list.  Return: their number, or -1 if one of
 * them has failed.
 */
static int collect_waits(struct command *command, cl_event *events)
{
	int count = 0;

	for (uint32_t i = 0; i < command->wait_count; i++) {
		const struct event *event = command->waits[i].event;

		if (event->status < 0)
			return -1;
		if (!event->library)
			continue;
		/* The command waits for earlier commands of its own in-order queue anyway. */
		if (event->in_order && event->queue == command->queue->object.serial)
			continue;
		events[count++] = event->library;
	}
	return count;
}

static bool measure(struct vgpu_backend *backend, const struct command *command)
{
	return command->op == VGPU_CL_LAUNCH &&
	       opencl_duration(backend, command->kernel_id)->samples < MEASURED;
}

static void given(struct vgpu_backend *backend, struct command *command, struct command *finish,
		  struct batch *batch, bool callback, bool waited)
{
	static const uint64_t no_times[4];
	struct queue *queue = command->queue;
	cl_event library = command->library;
	const struct vgpu_cl_marker *head = (const void *)command->message;

	if (command->event) {
		command->event->status = CL_SUBMITTED;
		command->event->library = command->library;
		opencl_event_given(backend, command->event);
	}
	if (command->barrier)
		opencl_event_given(backend, command->barrier);
	if (command->op == VGPU_CL_FINISH) {
		command->status = queue->sticky;
		queue->sticky = CL_SUCCESS;
	}
	if (command->progress) {
		opencl_send_completion(backend, command->call, head->event, CL_SUBMITTED, no_times);
		backend->library->clSetEventCallback(command->library, CL_RUNNING,
						     opencl_command_runs, command);
	}
	backend->submitted++;
	backend->lazy_since_ns = 0;
	backend->last_kernel_id = command->kernel_id;
	queue->flush = true;
	add(backend, batch, command);
	batch->waited |= waited;
	list(backend, queue);
	if (finish) {
		finish->status = queue->sticky;
		queue->sticky = CL_SUCCESS;
		backend->submitted++;
		add(backend, batch, finish);
		command = finish;
	}
	batch->has_notify |= command->notify;
	batch->by_main |= command->notify && (command->progress || queue->profiling);
	if (callback)
		close_batch(backend, batch, library);
	else if (batch->count >= OPENCL_BATCH_MAX ||
		 batch->mean_ns >= (batch->has_notify ? OPENCL_BATCH_NOTIFY_NS : OPENCL_BATCH_NS))
		mark(backend, queue);
}

/*
 * Can a later command's callback report the end of this command? It can if the next command in the
 * queue waits only for this command: that command, or a marker, is then given in the same round.
 */
static bool can_share_callback(const struct command *command)
{
	const struct command *next = command->next;

	return next && next->unmet == 1 && !command->queue->out_of_order && !command->progress;
}

/*
 * Return: the finish directly behind a command in an in-order queue.  It ends together with the
 * command, which saves the library a marker and the wake-up of a thread.
 */
static struct command *finish_behind(const struct command *command)
{
	struct command *next = command->next;

	return next && !command->queue->out_of_order && !command->notify &&
		       opencl_is_plain_finish(next) ? next : NULL;
}

/* Gives a command, which has already left its queue, and the finish that was behind it, if any. */
static void give_both(struct vgpu_backend *backend, struct command *command,
		      struct command *finish, bool shares)
{
	struct queue *queue = command->queue;
	bool alone = measure(backend, command);
	bool callback = (command->notify && !shares) || alone || finish ||
			command->mean_ns >= OWN_CALLBACK_NS;
	bool wants_event = callback || command->event || command->notify;
	cl_event events[VGPU_CL_WAITS_MAX + 1];
	struct call_waits waits = { .event = wants_event ? &command->library : NULL };
	struct batch *batch, *fresh = NULL;
	int count = collect_waits(command, events);
	cl_int error = CL_SUCCESS;

	if (alone)
		mark(backend, queue);
	batch = queue->open;
	if (!batch || (callback && queue->out_of_order))
		batch = fresh = open_batch(backend, queue);
	if (count < 0)
		error = CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
	else if (!batch)
		error = CL_OUT_OF_HOST_MEMORY;
	if (!error) {
		waits.count = count;
		waits.list = count ? events : NULL;
		error = command->op == VGPU_CL_LAUNCH ?
				opencl_give_launch(backend, command, &waits) :
				opencl_give_transfer(backend, command, &waits);
	}
	if (error) {
		free(fresh);
		opencl_command_failed(backend, command, error);
		if (finish)
			give_both(backend, finish, NULL, false);
		return;
	}
	if (fresh && !(callback && queue->out_of_order))
		queue->open = fresh;
	given(backend, command, finish, batch, callback, count > 0);
}

static void give(struct vgpu_backend *backend, struct command *command)
{
	struct command *finish = finish_behind(command);
	bool shares = can_share_callback(command);

	/* Remove the finish first, so that it does not become ready by itself. */
	if (finish)
		opencl_command_left(backend, finish);
	opencl_command_left(backend, command);
	give_both(backend, command, finish, shares);
}

static bool bounded(struct vgpu_backend *backend, const struct command *command)
{
	struct vgpu_child_services *services = &backend->services;

	if (!backend->under_way)
		return true;
	if (backend->under_way >= OPENCL_UNDER_WAY_MAX)
		return false;
	if (services->rivals(services->child))
		return backend->under_way_ns + command->mean_ns <= OPENCL_UNDER_WAY_RIVAL_NS;
	return backend->under_way_ns < OPENCL_UNDER_WAY_ALONE_NS;
}

static struct command *pop_ready(struct vgpu_backend *backend)
{
	struct command *command = backend->ready_first;

	backend->ready_first = command->next_ready;
	if (!backend->ready_first)
		backend->ready_last = NULL;
	backend->ready_count--;
	return command;
}

void opencl_submit(struct vgpu_backend *backend)
{
	struct vgpu_child_services *services = &backend->services;
	struct command *command;
	unsigned int given = 0;

	while ((command = backend->ready_first) && !backend->quiet) {
		if (!bounded(backend, command))
			break;
		if ((given++ % UNASKED == 0 || services->rivals(services->child)) &&
		    !services->may_submit(services->child,
					  backend->under_way_ns + command->bound_ns))
			break;
		give(backend, pop_ready(backend));
	}
	if (backend->listed)
		walk(backend, false);
}

/*
 * Also drops the commands of queues that the client has released: the commands still hold
 * references to their queue.
 */
void opencl_drop_queued(struct vgpu_backend *backend)
{
	struct queue *queue, *next;
	struct command *command;

	for (queue = backend->queues; queue; queue = next) {
		opencl_ref(queue);
		while ((command = queue->first)) {
			opencl_command_left(backend, command);
			/* Commands that became ready when this command left are dropped as well. */
			backend->ready_first = NULL;
			backend->ready_last = NULL;
			opencl_free_command(backend, command);
		}
		next = queue->next_queue;
		opencl_unref(backend, queue);
	}
	backend->ready_first = NULL;
	backend->ready_last = NULL;
	backend->ready_count = 0;
}
