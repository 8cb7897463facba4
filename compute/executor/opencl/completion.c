/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles the ends of commands.  The library calls back on its own threads, which hold its locks.
 * A callback records time and status, answers a waiting client at once, and passes the batch to the
 * main thread.
 */
#include <stdlib.h>

#include "backend_private.h"

/* How much longer than expected a batch may take before its kernels are measured again. */
#define SURPRISE_FACTOR	4u
#define SURPRISE_NS	200000ull

static struct vgpu_cl_completion completion_of(uint64_t call, uint32_t event, cl_int status,
					       const uint64_t times_ns[4])
{
	return (struct vgpu_cl_completion){
		.header = {
			.bytes = sizeof(struct vgpu_cl_completion),
			.op = VGPU_CL_COMPLETION,
			.call = call,
		},
		.status = status,
		.event = event,
		.queued_ns = times_ns[0],
		.submitted_ns = times_ns[1],
		.started_ns = times_ns[2],
		.ended_ns = times_ns[3],
	};
}

void opencl_send_completion(struct vgpu_backend *backend, uint64_t call, uint32_t event,
			    cl_int status, const uint64_t times_ns[4])
{
	struct vgpu_cl_completion completion = completion_of(call, event, status, times_ns);

	backend->services.reply(backend->services.child, &completion.header);
}

/* Builds the COMPLETIONs that the callback sends for a batch that has ended without an error. */
static unsigned int collect_completions(const struct batch *batch, struct vgpu_cl_completion *out)
{
	static const uint64_t no_times[4];
	unsigned int count = 0;

	for (const struct command *command = batch->first; command; command = command->next) {
		const struct vgpu_cl_marker *head = (const void *)command->message;

		if (command->notify)
			out[count++] = completion_of(command->call, head->event,
						     command->op == VGPU_CL_FINISH ?
							     command->status : CL_COMPLETE,
						     no_times);
	}
	return count;
}

void CL_CALLBACK opencl_batch_done(cl_event event, cl_int status, void *user)
{
	struct vgpu_cl_completion completions[OPENCL_BATCH_MAX + 1];
	struct batch *batch = user;
	struct vgpu_backend *backend = batch->backend;
	unsigned int count = 0;
	bool wakes;

	(void)event;
	batch->done_ns = opencl_now_ns();
	batch->status = status < 0 ? status : CL_SUCCESS;
	/*
	 * Only the main thread can find out which command has failed, so it sends the COMPLETIONs.
	 */
	if (batch->status)
		batch->tell = false;
	if (batch->tell)
		count = collect_completions(batch, completions);
	wakes = batch->has_notify && !batch->tell;
	if (atomic_load_explicit(&backend->prints, memory_order_relaxed)) {
		pthread_mutex_lock(&backend->print_lock);
		opencl_print_drain(backend);
		pthread_mutex_unlock(&backend->print_lock);
	}
	/*
	 * Push the batch before replying: the client's next command must end behind this batch in
	 * the list.
	 */
	batch->next = atomic_load_explicit(&backend->news, memory_order_relaxed);
	while (!atomic_compare_exchange_weak_explicit(&backend->news, &batch->next, batch,
						      memory_order_seq_cst, memory_order_relaxed))
		;
	/* The main thread may have freed the batch, so do not use it any more. */
	for (unsigned int i = 0; i < count; i++)
		backend->services.reply(backend->services.child, &completions[i].header);
	if (wakes || atomic_load(&backend->wake_wanted))
		backend->services.wake(backend->services.child);
}

/* The command exists at least until the main thread has collected its batch. */
void CL_CALLBACK opencl_command_runs(cl_event event, cl_int status, void *user)
{
	static const uint64_t no_times[4];
	struct command *command = user;
	struct vgpu_backend *backend = command->backend;
	const struct vgpu_cl_marker *head = (const void *)command->message;

	(void)event;
	if (status >= 0)
		opencl_send_completion(backend, command->call, head->event, CL_RUNNING, no_times);
}

static void profile(struct vgpu_backend *backend, const struct command *command,
		    uint64_t times_ns[4])
{
	static const cl_profiling_info names[4] = {
		CL_PROFILING_COMMAND_QUEUED, CL_PROFILING_COMMAND_SUBMIT,
		CL_PROFILING_COMMAND_START, CL_PROFILING_COMMAND_END,
	};

	for (int i = 0; i < 4; i++) {
		cl_ulong value = 0;

		if (command->queue->profiling && command->library)
			backend->library->clGetEventProfilingInfo(command->library, names[i],
								  sizeof(value), &value, NULL);
		times_ns[i] = value;
	}
}

static cl_int status_of(struct vgpu_backend *backend, const struct batch *batch,
			const struct command *command)
{
	cl_int status = CL_COMPLETE;

	if (command == batch->last && !batch->own_event)
		return batch->status;
	if (command->library)
		backend->library->clGetEventInfo(command->library,
						 CL_EVENT_COMMAND_EXECUTION_STATUS,
						 sizeof(status), &status, NULL);
	return status < 0 ? status : CL_COMPLETE;
}

static void retire(struct vgpu_backend *backend, struct batch *batch, struct command *command)
{
	const struct vgpu_cl_marker *head = (const void *)command->message;
	cl_int status = status_of(backend, batch, command);
	uint64_t times_ns[4];

	backend->under_way--;
	command->queue->under_way--;
	backend->under_way_ns -= command->mean_ns;
	backend->finished++;
	backend->failed += status < 0;
	if (command->event) {
		command->event->status = status;
		command->event->library = NULL;
	}
	if (command->op == VGPU_CL_FINISH && !status)
		status = command->status;
	if (command->notify && !batch->tell) {
		profile(backend, command, times_ns);
		opencl_send_completion(backend, command->call, head->event, status, times_ns);
	} else if (!command->notify && !command->event && status && !command->queue->sticky) {
		command->queue->sticky = status;
	}
	if (command->library)
		backend->library->clReleaseEvent(command->library);
	opencl_free_command(backend, command);
}

static void learn(struct vgpu_backend *backend, const struct batch *batch)
{
	struct queue *queue = batch->queue;
	uint64_t from_ns = batch->given_ns > queue->batch_done_ns ? batch->given_ns :
								     queue->batch_done_ns;
	uint64_t took_ns = batch->done_ns > from_ns ? batch->done_ns - from_ns : 1;
	struct duration *duration;

	if (batch->done_ns > queue->batch_done_ns)
		queue->batch_done_ns = batch->done_ns;
	if (batch->done_ns > backend->ended_ns)
		backend->ended_ns = batch->done_ns;
	if (batch->status || batch->waited)
		return;
	for (const struct command *command = batch->first; command; command = command->next) {
		if (command->op == VGPU_CL_MARKER || command->op == VGPU_CL_BARRIER ||
		    command->op == VGPU_CL_FINISH)
			continue;
		if (batch->count == 1 || batch->same) {
			opencl_learn(backend, command->kernel_id, took_ns / batch->count);
			return;
		}
		duration = opencl_duration(backend, command->kernel_id);
		if (took_ns > SURPRISE_FACTOR * batch->mean_ns + SURPRISE_NS &&
		    duration->samples > 6)
			duration->samples = 6;
	}
}

void opencl_collect_batches(struct vgpu_backend *backend)
{
	struct batch *batch, *next, *in_order = NULL;

	if (!atomic_load_explicit(&backend->news, memory_order_relaxed))
		return;
	batch = atomic_exchange_explicit(&backend->news, NULL, memory_order_acquire);
	for (; batch; batch = next) {
		next = batch->next;
		batch->next = in_order;
		in_order = batch;
	}
	for (batch = in_order; batch; batch = next) {
		struct command *command = batch->first, *after;

		next = batch->next;
		learn(backend, batch);
		opencl_ref(batch->queue);
		for (; command; command = after) {
			after = command->next;
			retire(backend, batch, command);
		}
		opencl_unref(backend, batch->queue);
		backend->by_main -= batch->counted;
		if (batch->own_event)
			backend->library->clReleaseEvent(batch->event);
		free(batch);
	}
}
