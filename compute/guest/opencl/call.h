/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that are answered, commands, and what getters have in common. */
#ifndef VGPU_GUEST_CALL_H
#define VGPU_GUEST_CALL_H

#include "guest/opencl/object.h"

/* Exported functions are those of the dispatch table only; the table names them by this. */
#define API(result, name, ...) result CL_API_CALL vgpu_##name(__VA_ARGS__)

/* What a program is told when the child is gone, or in a copy of the process that had one. */
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
 * call_begin() - locks the stream of requests for a request that is answered
 * @bytes: of the request
 *
 * Returns where to write it, or NULL and an error in call->status.
 */
void *call_begin(struct call *call, uint64_t bytes);

/* Sends what was written after call_begin() and waits.  Returns the answer's status. */
cl_int call_wait(struct call *call, struct vgpu_message *request);

void call_end(struct call *call);

/* Sends a request without answer that has been placed; its place came from vgpu_send_begin(). */
void send_release(uint32_t kind, uint32_t handle);

/**
 * struct blob - bytes that travel in a message or in the bulk area
 * @inline_bytes: of the message, 0 if they are in the bulk area
 */
struct blob {
	const void *data;
	uint64_t bytes, inline_bytes;
	struct vgpu_bulk *bulk;
	uint64_t offset;	/* for the message */
};

/* Finds a place for the bytes and copies them there if that is the bulk area; false if there is none. */
bool blob_place(struct blob *blob, const void *data, uint64_t bytes);
void blob_end(struct blob *blob);

/* Copies a value out, as all getters do. */
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
 * query() - asks the child
 * @query: enum vgpu_cl_query
 * @value: becomes a malloc()ed copy of the whole value
 */
cl_int query(uint32_t query, uint32_t handle, uint32_t param, uint32_t device, uint32_t index, const uint64_t *input,
	     uint32_t input_count, void **value, size_t *bytes);

/**
 * struct command - a command that is about to be sent
 * @event: to be completed by the reply, or NULL
 * @pending: what the COMPLETION is handed to, or NULL for none
 */
struct command {
	cl_command_queue queue;
	struct _cl_event *event;
	struct vgpu_pending *pending;
	cl_uint given;
	const cl_event *waits;
	uint32_t wait_count;	/* events that are not complete yet */
	bool completes;	/* the event is completed by the COMPLETION itself */
};

/* The start of every command's message. */
struct command_head {
	struct vgpu_message header;
	uint32_t queue, event, wait_count;
};

/* Checks a queue and a wait list; CL_SUCCESS or the API's error. */
cl_int check_waits(cl_context context, cl_uint count, const cl_event *waits);
cl_int check_command(cl_command_queue queue, cl_uint count, const cl_event *waits);

/**
 * command_begin() - prepares a command whose queue and wait list have been checked
 * @type: of the event
 * @event: where the program wants one, or NULL
 */
cl_int command_begin(struct command *command, cl_command_queue queue, cl_command_type type, cl_uint count,
		     const cl_event *waits, cl_event *event);

/* Writes what is the same in all commands; returns false if no reply can be had: then cancel. */
bool command_fill(struct command *command, void *message, uint32_t *waits);

/* Ends a command that could not be sent. */
cl_int command_fail(struct command *command, cl_int error);

/* After vgpu_send_commit(): gives the program its event. */
cl_int command_sent(struct command *command, cl_event *event);

/* A whole command without fields of its own: MARKER, BARRIER or FINISH. */
cl_int command_plain(uint32_t op, cl_command_queue queue, cl_command_type type, cl_uint count, const cl_event *waits,
		     cl_event *event);

/* Events. */
struct _cl_event *event_new(cl_context context, cl_command_queue queue, cl_command_type type);
bool event_reply(struct vgpu_pending *pending, const struct vgpu_message *message, uint32_t bytes);
void event_finish(struct _cl_event *event, cl_int status, const cl_ulong times[4]);

/* The status and the times of a COMPLETION; of another message or none, an error and zeros. */
cl_int completion_status(const struct vgpu_message *message, uint32_t bytes, cl_ulong times[4]);

/* Waits until the event has ended; its status. */
cl_int event_wait(struct _cl_event *event);

/* Waits until reads of the queue that are held have landed; false if the connection is lost before. */
bool held_wait(cl_command_queue queue);

/* All commands of the queue have ended, without an error, and a FINISH has seen it. */
bool queue_idle(cl_command_queue queue);

/* Waits for that.  False if a command has failed: clFinish() still tells the program. */
bool queue_make_idle(cl_command_queue queue);

/* User events that have no status yet: what waits for them waits for the program. */
extern atomic_uint user_events_open;

/* Calls @function(@user) in the callbacks' thread; @status is handed to event callbacks. */
void callbacks_prepare(void);	/* for forks; before any other of these */
bool callbacks_start(void);
void callback_event(struct event_callback *callback);
void callback_program(void (CL_CALLBACK *function)(cl_program, void *), cl_program program, void *user);
void callback_context(cl_context context, const char *text);
void callbacks_expect(int change);	/* how many may come */

#endif /* VGPU_GUEST_CALL_H */
