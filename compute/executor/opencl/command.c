/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands from their arrival until they can be given to the library.
 *
 * A command is ready when all events that it waits for have been given to the library or are over
 * (user events: are over).  In an in-order queue, it must also be the first that has not been
 * given.  A command that must be first in its queue is called a fence here.  In an out-of-order
 * queue, the fences are finishes, and markers and barriers without a wait list.  Commands behind a
 * barrier wait for the barrier like for an event.  `unmet` is the number of reasons why a command
 * is not ready.
 */
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "backend_private.h"

/* Common beginning of all commands. */
struct command_head {
	struct vgpu_message header;
	uint32_t queue;
	uint32_t event;
	uint32_t wait_count;
};

static int pool_of(uint32_t bytes, uint32_t *size)
{
	*size = 256;
	for (int i = 0; i < OPENCL_POOLS; i++, *size *= 2)
		if (bytes <= *size)
			return i;
	*size = bytes;
	return -1;
}

static struct command *allocate(struct vgpu_backend *backend, uint32_t waits, uint32_t objects,
				uint32_t message_bytes)
{
	uint32_t bytes = sizeof(struct command) + waits * sizeof(struct wait) +
			 objects * sizeof(struct object *) + message_bytes;
	struct command *command;
	uint32_t size;
	int pool = pool_of(bytes, &size);
	uint8_t *at;

	if (pool >= 0 && backend->pools[pool]) {
		command = backend->pools[pool];
		backend->pools[pool] = *(void **)command;
		backend->pooled[pool]--;
	} else {
		command = malloc(size);
	}
	if (!command)
		return NULL;
	memset(command, 0, bytes - message_bytes);
	command->bytes = bytes;
	command->backend = backend;
	at = (uint8_t *)(command + 1);
	command->waits = (struct wait *)at;
	at += waits * sizeof(struct wait);
	command->objects = (struct object **)at;
	command->object_count = objects;
	at += objects * sizeof(struct object *);
	command->message = (struct vgpu_message *)at;
	return command;
}

static void unlink_wait(struct wait *wait)
{
	if (!wait->link)
		return;
	*wait->link = wait->next;
	if (wait->next)
		wait->next->link = wait->link;
	wait->link = NULL;
}

void opencl_free_command(struct vgpu_backend *backend, struct command *command)
{
	uint32_t size;
	int pool = pool_of(command->bytes, &size);

	for (uint32_t i = 0; i < command->wait_count; i++) {
		unlink_wait(&command->waits[i]);
		opencl_unref(backend, command->waits[i].event);
	}
	for (uint32_t i = 0; i < command->object_count; i++)
		opencl_unref(backend, command->objects[i]);
	opencl_unref(backend, command->event);
	opencl_unref(backend, command->barrier);
	opencl_unref(backend, command->queue);
	if (pool < 0 || backend->pooled[pool] >= OPENCL_POOLED_MAX) {
		free(command);
		return;
	}
	*(void **)command = backend->pools[pool];
	backend->pools[pool] = command;
	backend->pooled[pool]++;
}

void opencl_free_pools(struct vgpu_backend *backend)
{
	for (int i = 0; i < OPENCL_POOLS; i++) {
		while (backend->pools[i]) {
			void *next = *(void **)backend->pools[i];

			free(backend->pools[i]);
			backend->pools[i] = next;
		}
	}
}

static void ready_if_met(struct vgpu_backend *backend, struct command *command)
{
	if (command->unmet || command->ready)
		return;
	command->ready = true;
	command->next_ready = NULL;
	if (backend->ready_last)
		backend->ready_last->next_ready = command;
	else
		backend->ready_first = command;
	backend->ready_last = command;
	backend->ready_count++;
}

void opencl_event_given(struct vgpu_backend *backend, struct event *event)
{
	struct wait *wait;

	event->given = true;
	while (event->waiting) {
		wait = event->waiting;
		unlink_wait(wait);
		wait->command->unmet--;
		ready_if_met(backend, wait->command);
	}
}

void opencl_command_left(struct vgpu_backend *backend, struct command *command)
{
	struct queue *queue = command->queue;
	bool was_first = queue->first == command;

	if (command->previous)
		command->previous->next = command->next;
	else
		queue->first = command->next;
	if (command->next)
		command->next->previous = command->previous;
	else
		queue->last = command->previous;
	command->next = NULL;
	command->previous = NULL;
	backend->queued--;
	backend->queued_bytes -= command->bytes;
	if (was_first && queue->first && queue->first->fence) {
		queue->first->unmet--;
		ready_if_met(backend, queue->first);
	}
}

static const struct command_head *head_of(const struct command *command)
{
	return (const struct command_head *)command->message;
}

void opencl_command_failed(struct vgpu_backend *backend, struct command *command, cl_int error)
{
	static const uint64_t no_times[4];

	if (command->event) {
		command->event->status = error;
		opencl_event_given(backend, command->event);
	}
	if (command->barrier)
		opencl_event_given(backend, command->barrier);
	if (command->notify)
		opencl_send_completion(backend, command->call, head_of(command)->event, error,
				       no_times);
	else if (!command->event && command->queue && !command->queue->sticky)
		command->queue->sticky = error;
	backend->services.log(backend->services.child, LOG_DEBUG, "%s failed: %d",
			      vgpu_cl_op_name(command->op), error);
	opencl_free_command(backend, command);
}

static void wait_for(struct command *command, struct event *event)
{
	struct wait *wait = &command->waits[command->wait_count++];

	wait->event = opencl_ref(event);
	wait->command = command;
	wait->next = NULL;
	wait->link = NULL;
	if (event->given)
		return;
	wait->next = event->waiting;
	wait->link = &event->waiting;
	if (wait->next)
		wait->next->link = &wait->next;
	event->waiting = wait;
	command->unmet++;
}

/* Finds the queue and the events that the message names; the wait list follows the fixed part. */
static cl_int attach(struct vgpu_backend *backend, struct command *command, const uint32_t *waits)
{
	const struct command_head *head = head_of(command);
	struct event *event;
	cl_int error;

	command->queue = opencl_use(backend, VGPU_CL_KIND_QUEUE, head->queue, &error);
	if (!command->queue)
		return error;
	opencl_ref(command->queue);
	for (uint32_t i = 0; i < head->wait_count; i++) {
		event = opencl_use(backend, VGPU_CL_KIND_EVENT, waits[i], &error);
		if (!event)
			return CL_INVALID_EVENT_WAIT_LIST;
		wait_for(command, event);
	}
	return CL_SUCCESS;
}

/* Makes the command's event.  It exists even if the command fails, because the client has its handle. */
static cl_int make_event(struct vgpu_backend *backend, struct command *command)
{
	uint32_t handle = head_of(command)->event;
	struct event *event;

	if (!handle)
		return CL_SUCCESS;
	if (opencl_find(backend, VGPU_CL_KIND_EVENT, handle))
		return CL_INVALID_EVENT;
	event = opencl_new(backend, VGPU_CL_KIND_EVENT, sizeof(*event), NULL);
	if (!event)
		return CL_OUT_OF_HOST_MEMORY;
	event->status = CL_QUEUED;
	if (!opencl_enter(backend, handle, &event->object)) {
		opencl_unref(backend, event);
		return CL_OUT_OF_HOST_MEMORY;
	}
	command->event = opencl_ref(event);
	return CL_SUCCESS;
}

static cl_int order(struct vgpu_backend *backend, struct command *command)
{
	struct queue *queue = command->queue;
	bool no_waits = !head_of(command)->wait_count;

	if (!queue->out_of_order) {
		command->fence = true;
		return CL_SUCCESS;
	}
	command->fence = command->op == VGPU_CL_FINISH ||
			 (no_waits && (command->op == VGPU_CL_MARKER ||
				       command->op == VGPU_CL_BARRIER));
	if (queue->barrier && !queue->barrier->given)
		wait_for(command, queue->barrier);
	if (command->op != VGPU_CL_BARRIER)
		return CL_SUCCESS;
	command->barrier = opencl_new(backend, VGPU_CL_KIND_EVENT, sizeof(struct event), NULL);
	if (!command->barrier)
		return CL_OUT_OF_HOST_MEMORY;
	command->barrier->status = CL_SUBMITTED;
	opencl_unref(backend, queue->barrier);
	queue->barrier = opencl_ref(command->barrier);
	return CL_SUCCESS;
}

static void append(struct vgpu_backend *backend, struct command *command)
{
	struct queue *queue = command->queue;

	command->previous = queue->last;
	if (queue->last)
		queue->last->next = command;
	else
		queue->first = command;
	queue->last = command;
	if (command->fence && command->previous)
		command->unmet++;
	backend->queued++;
	backend->queued_bytes += command->bytes;
	ready_if_met(backend, command);
}

bool opencl_is_plain_finish(const struct command *command)
{
	return command->op == VGPU_CL_FINISH && command->notify && !command->progress &&
	       !command->event && !command->wait_count;
}

/*
 * Is this a marker, barrier or finish in a queue with no work left? If so, the command needs
 * neither the library nor a lease.
 */
static bool is_over_at_once(const struct command *command)
{
	const struct queue *queue = command->queue;

	return !queue->first && !queue->under_way && !command->wait_count && !command->progress &&
	       (command->op == VGPU_CL_FINISH ||
		(!queue->profiling &&
		 (command->op == VGPU_CL_MARKER || command->op == VGPU_CL_BARRIER)));
}

static void end_at_once(struct vgpu_backend *backend, struct command *command)
{
	static const uint64_t no_times[4];
	cl_int status = CL_COMPLETE;

	if (command->op == VGPU_CL_FINISH) {
		status = command->queue->sticky;
		command->queue->sticky = CL_SUCCESS;
	}
	if (command->event) {
		command->event->status = CL_COMPLETE;
		opencl_event_given(backend, command->event);
	}
	if (command->barrier)
		opencl_event_given(backend, command->barrier);
	if (command->notify)
		opencl_send_completion(backend, command->call, head_of(command)->event, status,
				       no_times);
	opencl_free_command(backend, command);
}

bool opencl_command(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	const struct command_head *head = (const struct command_head *)message;
	const uint32_t *waits = NULL;
	struct command *command;
	cl_int error = CL_SUCCESS, found;

	if (message->bytes < sizeof(*head) || head->wait_count > VGPU_CL_WAITS_MAX)
		return false;
	command = allocate(backend, head->wait_count + 1, opencl_objects_of(message),
			   message->bytes);
	if (!command) {
		strcpy(backend->malformed, "no memory for a command");
		return false;
	}
	memcpy(command->message, message, message->bytes);
	command->op = message->op;
	command->notify = message->flags & VGPU_CL_NOTIFY;
	command->progress = command->notify && message->flags & VGPU_CL_PROGRESS;
	command->call = message->call;
	if (!opencl_resolve(backend, command, &waits, &error)) {
		opencl_free_command(backend, command);
		return false;
	}
	found = attach(backend, command, waits);
	error = found ? found : error;
	found = make_event(backend, command);
	error = error ? error : found;
	if (!error && (backend->queued >= OPENCL_QUEUED_HARD ||
		       backend->queued_bytes >= OPENCL_QUEUED_BYTES_HARD || backend->quiet))
		error = CL_OUT_OF_RESOURCES;
	if (!error)
		error = order(backend, command);
	if (error) {
		opencl_command_failed(backend, command, error);
		return true;
	}
	if (command->event) {
		command->event->queue = command->queue->object.serial;
		command->event->in_order = !command->queue->out_of_order;
	}
	if (is_over_at_once(command))
		end_at_once(backend, command);
	else
		append(backend, command);
	return true;
}
