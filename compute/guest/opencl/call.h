/* SPDX-License-Identifier: Apache-2.0 */
/* Requests with an answer, commands, and the common part of getters. */
#ifndef VGPU_GUEST_CALL_H
#define VGPU_GUEST_CALL_H

#include "guest/opencl/object.h"

/* Only the functions of the dispatch table are entry points.  The table refers to them by this name. */
#define API(result, name, ...) result CL_API_CALL vgpu_##name(__VA_ARGS__)

/* The error after the child is lost, and in a forked copy of the process. */
#define LOST CL_DEVICE_NOT_AVAILABLE

/**
 * struct call - a request whose answer this thread waits for
 * @message: a copy of the whole answer if it is more than a status, else NULL
 */
struct call {
	struct vgpu_pending pending;
	atomic_bool done;
	cl_int status;
	struct vgpu_message *message;
	uint32_t bytes;
};

/**
 * call_begin() - locks the request stream for a request with an answer
 * @bytes: size of the request
 *
 * Returns where to write the request, or NULL with an error in call->status.
 */
void *call_begin(struct call *call, uint64_t bytes);

/*
 * Sends the request that was written after call_begin(), and waits for its answer.  Returns the answer's
 * status.
 */
cl_int call_wait(struct call *call, struct vgpu_message *request);

void call_end(struct call *call);

/* Sends a RELEASE, which has no answer. */
void send_release(uint32_t kind, uint32_t handle);

/**
 * struct blob - bytes that are sent in a message or in the bulk area
 * @inline_bytes: bytes in the message, 0 if they are in the bulk area
 */
struct blob {
	const void *data;
	uint64_t bytes, inline_bytes;
	struct vgpu_bulk *bulk;
	uint64_t offset;	/* value of the offset field in the message */
};

/*
 * Finds room for the bytes in the message or in the bulk area.  Bytes that go into the bulk area are
 * copied there now.  Returns false if there is no room.
 */
bool blob_place(struct blob *blob, const void *data, uint64_t bytes);
void blob_end(struct blob *blob);

/* Copies a value to the program as all clGet...Info() functions do. */
cl_int give(const void *value, size_t bytes, size_t room, void *target, size_t *returned);

static inline cl_int give_text(const char *text, size_t room, void *target, size_t *returned)
{
	return give(text, strlen(text) + 1, room, target, returned);
}

#define GIVE(type, expression) \
	do { \
		type given_ = (expression); \
		return give(&given_, sizeof(given_), room, target, returned); \
	} while (0)

/**
 * query() - asks the child for a value
 * @query: enum vgpu_cl_query
 * @value: set to a malloc()ed copy of the whole value
 */
cl_int query(uint32_t query, uint32_t handle, uint32_t param, uint32_t device, uint32_t index, const uint64_t *input,
	     uint32_t input_count, void **value, size_t *bytes);

/**
 * struct command - a command that is about to be sent
 * @event: the event that the reply completes, or NULL
 * @pending: the record for the COMPLETION, or NULL for none
 */
struct command {
	cl_command_queue queue;
	struct _cl_event *event;
	struct vgpu_pending *pending;
	cl_uint given;
	const cl_event *waits;
	uint32_t wait_count;	/* number of @waits that are not complete yet */
	bool completes;	/* the COMPLETION itself completes the event */
};

/* The common start of every command's message. */
struct command_head {
	struct vgpu_message header;
	uint32_t queue, event, wait_count;
};

/* Check a queue and a wait list.  Return CL_SUCCESS or the API's error. */
cl_int check_waits(cl_context context, cl_uint count, const cl_event *waits);
cl_int check_command(cl_command_queue queue, cl_uint count, const cl_event *waits);

/**
 * command_begin() - prepares a command whose queue and wait list have been checked
 * @type: command type of the event
 * @event: where the program wants the event to be stored, or NULL
 */
cl_int command_begin(struct command *command, cl_command_queue queue, cl_command_type type, cl_uint count,
		     const cl_event *waits, cl_event *event);

/*
 * Writes the common fields of a command.  Returns false if too many replies are awaited already; the
 * caller must then call vgpu_send_cancel().
 */
bool command_fill(struct command *command, void *message, uint32_t *waits);

/* Cleans up after a command that could not be sent. */
cl_int command_fail(struct command *command, cl_int error);

/* Gives the program its event.  Call it after vgpu_send_commit(). */
cl_int command_sent(struct command *command, cl_event *event);

/* Sends a command without fields of its own: MARKER, BARRIER or FINISH. */
cl_int command_plain(uint32_t op, cl_command_queue queue, cl_command_type type, cl_uint count, const cl_event *waits,
		     cl_event *event);

/* Events. */
struct _cl_event *event_new(cl_context context, cl_command_queue queue, cl_command_type type);
bool event_reply(struct vgpu_pending *pending, const struct vgpu_message *message, uint32_t bytes);
void event_finish(struct _cl_event *event, cl_int status, const cl_ulong times[4]);

/*
 * Returns the status and the times of a COMPLETION.  For any other message, or NULL, returns an error
 * and sets the times to 0.
 */
cl_int completion_status(const struct vgpu_message *message, uint32_t bytes, cl_ulong times[4]);

/* Waits until the event has ended.  Returns its status. */
cl_int event_wait(struct _cl_event *event);

/*
 * Waits until held reads of the queue have arrived in the program's memory.  Returns false if the
 * connection is lost.
 */
bool held_wait(cl_command_queue queue);

/* Returns whether all commands of the queue have ended without an error, as seen by a FINISH. */
bool queue_idle(cl_command_queue queue);

/*
 * Waits until the queue is idle.  Returns false if a command has failed; clFinish() still reports that
 * to the program.
 */
bool queue_make_idle(cl_command_queue queue);

/*
 * Number of user events whose status the program has not set.  Commands that wait for such an event wait
 * for the program itself.
 */
extern atomic_uint user_events_open;

/* Callbacks of the program.  The functions callback_...() queue a call for the callbacks' thread. */
void callbacks_prepare(void);	/* prepares for forks; call it before the functions below */
bool callbacks_start(void);
void callback_event(struct event_callback *callback);
void callback_program(void (CL_CALLBACK *function)(cl_program, void *), cl_program program, void *user);
void callback_context(cl_context context, const char *text);
void callbacks_expect(int change);	/* changes the number of expected callbacks */

#endif /* VGPU_GUEST_CALL_H */
