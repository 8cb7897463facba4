/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations that the files of this folder share: the backend itself and its objects.
 *
 * Only the main thread uses what is declared here, except where a comment says otherwise.  Objects
 * have reference counts.  The table of handles holds a reference to each object.  A command holds a
 * reference to each object that it uses, until the library is done with the command.  A child
 * object holds a reference to its parent.
 */
#ifndef VGPU_OPENCL_BACKEND_PRIVATE_H
#define VGPU_OPENCL_BACKEND_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_0_APIS
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <CL/cl_icd.h>

#include "executor/backend.h"
#include "protocol/control.h"
#include "opencl_decode.h"
#include "opencl_encode.h"

/* Estimate of the accelerator memory that the library needs per context. */
#define OPENCL_CONTEXT_BYTES	(4ull << 20)
/* Maximum number of commands that were given to the library and are not known to have ended. */
#define OPENCL_UNDER_WAY_MAX	512u
/*
 * Limits for the expected duration of the commands in progress.  While others wait, the total must
 * not exceed RIVAL_NS.  Otherwise one more command is given as long as the total is below ALONE_NS;
 * a rival that arrives then waits for all of them.
 */
#define OPENCL_UNDER_WAY_RIVAL_NS	2000000ull
#define OPENCL_UNDER_WAY_ALONE_NS	4000000ull
/* Maximum number and duration of commands without their own event that share one callback. */
#define OPENCL_BATCH_MAX	128u
#define OPENCL_BATCH_NS		400000ull
#define OPENCL_BATCH_NOTIFY_NS	100000ull	/* if the client waits for some of the commands */
/* Limits for commands that wait in the child.  Beyond the soft limits, no more requests are accepted. */
#define OPENCL_QUEUED_SOFT	16384u
#define OPENCL_QUEUED_HARD	(1u << 18)
#define OPENCL_QUEUED_BYTES_SOFT	(32ull << 20)
#define OPENCL_QUEUED_BYTES_HARD	(512ull << 20)

#define OPENCL_POOLS	5
#define OPENCL_POOLED_MAX	2048u

#define OPENCL_KINDS	(VGPU_CL_KIND_MAPPING + 1)
#define OPENCL_TABLE_PAGE	1024u

struct object {
	enum vgpu_cl_kind kind;
	uint32_t references;
	cl_int error;	/* not 0: creation failed, and each use fails with this error */
	uint64_t serial;	/* unique among all objects */
	void (*destroy)(struct vgpu_backend *backend, struct object *object);
};

struct table {
	struct object **pages[VGPU_CL_HANDLES_MAX / OPENCL_TABLE_PAGE];
};

struct context {
	struct object object;
	cl_context library;
	uint32_t device_count;
	uint32_t devices[VGPU_CL_DEVICES_MAX];
	uint64_t reserved_bytes;
	struct vgpu_backend *backend;
};

struct queue {
	struct object object;
	struct context *context;
	uint32_t device;
	cl_command_queue library;
	bool out_of_order;
	bool profiling;	/* the client wants the times of commands */
	cl_int sticky;	/* error of a command, not reported yet */
	struct command *first, *last;	/* commands not yet given to the library, in order */
	struct event *barrier;	/* event of the last barrier, if out of order */
	struct batch *open;	/* commands given to the library, but without a callback yet */
	uint32_t under_way;	/* number of commands given and not known to have ended */
	uint64_t batch_done_ns;	/* when the last batch ended */
	bool flush;	/* commands were given since the last clFlush */
	bool listed;	/* in the backend's list of queues that got commands */
	struct queue *next_listed;
	struct queue *next_queue, **queue_link;	/* list of all queues */
};

struct memory {
	struct object object;
	struct context *context;
	struct memory *parent;	/* for a sub-buffer, or an image of a buffer: that buffer */
	cl_mem library;
	bool image;
	bool stored;	/* its storage is the window or a part of it */
	cl_mem_object_type type;
	uint64_t bytes;	/* for a buffer: its size */
	uint64_t origin;	/* for a sub-buffer: offset in its parent */
	uint64_t element_bytes;	/* for an image: size of an element */
	uint64_t reserved_bytes;
	bool released;	/* released by the client, but still needed by commands */
	uint64_t release_call;	/* call to answer when the library has released the memory */
	bool answer_release;
};

struct sampler {
	struct object object;
	struct context *context;
	cl_sampler library;
};

struct argument {
	uint32_t kind;
	uint32_t bytes;
	uint64_t value;	/* for a handle: the object's serial, 0 for NULL */
	void *data;	/* for a value of more than 8 bytes */
	bool set;
};

struct kernel {
	struct object object;
	struct program *program;
	cl_kernel library;
	uint32_t argument_count;
	uint64_t hash;	/* hash of program and name */
	struct argument *set;	/* arguments set in the library's kernel object */
	uint32_t *kinds;	/* enum vgpu_cl_argument_kind of each argument */
	char *name;
};

struct event {
	struct object object;
	bool user;
	bool given;	/* its command was given to the library or is over */
	cl_int status;
	cl_event library;	/* NULL if the command is over or has no library event */
	uint64_t queue;	/* serial of the queue of its command */
	bool in_order;
	struct wait *waiting;	/* commands that wait until @given is true */
};

struct mapping {
	struct object object;
	struct memory *memory;
	void *pointer;	/* NULL until the map command has been given */
};

struct wait {
	struct event *event;
	struct command *command;
	struct wait *next, **link;	/* in the event's list until the event is given */
};

struct command {
	struct command *next, *previous;	/* in its queue; then in its batch */
	struct command *next_ready;
	struct vgpu_backend *backend;
	struct queue *queue;
	struct event *event;
	struct event *barrier;	/* for a barrier in an out-of-order queue: its event */
	uint32_t unmet;	/* number of reasons why the command cannot be given yet */
	uint32_t wait_count;
	uint32_t object_count;
	uint32_t bytes;	/* size of this allocation */
	bool ready;
	bool fence;	/* must be first in its queue to be given */
	uint16_t op;
	uint32_t kernel_id;
	uint64_t call;	/* call number for COMPLETIONs if @notify */
	bool notify, progress;
	cl_event library;
	cl_int status;	/* for FINISH: the queue's error; otherwise the submission's */
	uint64_t mean_ns, bound_ns;	/* expected duration */
	struct wait *waits;
	struct object **objects;
	struct vgpu_message *message;
	/* LAUNCH: the arguments; otherwise the data to read or write, in the message or in the window. */
	void *payload;
};

/* Commands whose end is reported by one callback of the library. */
struct batch {
	struct batch *next;	/* in the list of news */
	struct vgpu_backend *backend;
	struct queue *queue;
	struct command *first, *last;
	uint32_t count;
	uint64_t mean_ns;
	uint64_t given_ns;
	uint64_t done_ns;	/* written by the callback */
	cl_event event;
	bool own_event;	/* the event is a marker's */
	bool waited;	/* one of its commands waits for another queue */
	bool same;	/* all its commands are of the same kind of work */
	cl_int status;	/* written by the callback */
	bool has_notify;	/* the client waits for some of its commands */
	bool by_main;	/* the callback cannot fill in the COMPLETIONs */
	bool counted;	/* counted in the backend's by_main */
	bool tell;	/* the callback sends the COMPLETIONs; otherwise the main thread does */
};

/* Statistics of how long a kind of work takes. */
struct duration {
	uint32_t id;
	uint32_t samples;
	uint64_t mean_ns;
	uint64_t longest_ns;	/* recent maximum, from the core's predictor */
};

struct build;	/* build.c: a program that is being built */

struct vgpu_backend {
	struct vgpu_child_services services;
	char malformed[96];
	const cl_icd_dispatch *library;
	cl_platform_id platform;
	uint32_t device_count;
	cl_device_id devices[VGPU_CL_DEVICES_MAX];
	uint8_t *bulk;
	uint64_t bulk_bytes;
	uint64_t memory_bytes;
	uint64_t serial;
	struct table tables[OPENCL_KINDS];

	/* account.c */
	uint64_t used_bytes, held_bytes;
	uint64_t released_bytes;	/* memory that only commands still use */
	uint32_t releases;	/* releases that the client waits for */
	struct vgpu_message *stalled;	/* a request that waits for memory, or NULL */
	bool stall;	/* the present request must wait */

	/* command.c, submit.c */
	struct command *ready_first, *ready_last;
	uint32_t queued;
	uint64_t queued_bytes;
	uint32_t ready_count;
	uint32_t under_way;
	uint64_t under_way_ns;
	uint32_t last_kernel_id;
	uint64_t submitted, finished, failed, ended_ns;
	struct queue *listed;
	struct queue *queues;
	bool quiet;
	void *pools[OPENCL_POOLS];	/* free commands, by size */
	uint32_t pooled[OPENCL_POOLS];

	/* A stack of ended batches, filled by the library's threads. */
	_Atomic(struct batch *) news;
	uint32_t by_main;	/* batches whose COMPLETIONs the main thread sends */
	atomic_bool wake_wanted;	/* a callback must wake the main thread */
	uint64_t lazy_since_ns;	/* see opencl_settle() */

	/* duration.c */
	struct durations *durations;

	/* print.c: the lock also orders printed text before COMPLETIONs. */
	pthread_mutex_t print_lock;
	int print_fd;
	int print_saved_fd;
	int print_stop_fd;
	bool print_thread_runs;
	pthread_t print_thread;
	atomic_bool prints;

	/* build.c, loader.c */
	struct build *builds;	/* builds that wait for a compiler's result */
	uint64_t build_token;
	struct loader *loader;

	/* Buffer in which answers are built. */
	_Alignas(8) uint8_t answer[VGPU_MESSAGE_BYTES];
};

/* table.c */
struct object *opencl_find(struct vgpu_backend *backend, enum vgpu_cl_kind kind, uint32_t handle);
/*
 * Return: the object of a handle, or NULL if it does not exist or its creation failed.  Then *error
 * is the API's error for an invalid object of this kind, or the error of the creation.
 */
void *opencl_use(struct vgpu_backend *backend, enum vgpu_cl_kind kind, uint32_t handle,
		 cl_int *error);
/*
 * Enters an object; the table takes over the reference.  Return: false if the handle is in use, or
 * there is no memory.
 */
bool opencl_enter(struct vgpu_backend *backend, uint32_t handle, struct object *object);
struct object *opencl_remove(struct vgpu_backend *backend, enum vgpu_cl_kind kind,
			     uint32_t handle);
void opencl_clear_tables(struct vgpu_backend *backend);

/* object.c */
/* Return: a zeroed object with one reference, or NULL. */
void *opencl_new(struct vgpu_backend *backend, enum vgpu_cl_kind kind, size_t bytes,
		 void (*destroy)(struct vgpu_backend *, struct object *));
static inline void *opencl_ref(void *object)
{
	((struct object *)object)->references++;
	return object;
}
void opencl_unref(struct vgpu_backend *backend, void *object);
/*
 * Ends each request that creates an object: enters the object and answers.  If the creation failed
 * and the client waits for no answer, an object that represents the failure is entered instead.
 * @object may be NULL; its reference is always taken over.
 */
void opencl_created(struct vgpu_backend *backend, const struct vgpu_message *request,
		    enum vgpu_cl_kind kind, uint32_t handle, void *object, cl_int error);
/* Answers with only a status, if the request wants an answer. */
void opencl_answer(struct vgpu_backend *backend, const struct vgpu_message *request, cl_int status);
/* Sends an answer that was placed in backend->answer. */
void opencl_answer_placed(struct vgpu_backend *backend, const struct vgpu_message *request,
			  cl_int status);
cl_int opencl_invalid(enum vgpu_cl_kind kind);
bool opencl_release(struct vgpu_backend *backend, const struct vgpu_message *message);
/* Return: a private copy of a blob, terminated by NUL, or NULL with an error in *error. */
char *opencl_copy_blob(struct vgpu_backend *backend, uint64_t offset, uint64_t bytes,
		       const uint8_t *inline_bytes, uint64_t most, cl_int *error);

/* account.c: accelerator memory */
bool opencl_reserve(struct vgpu_backend *backend, uint64_t bytes);
void opencl_free_reserved(struct vgpu_backend *backend, uint64_t bytes);

/*
 * Called when there is no memory for the present request.  Return: true if memory may be freed
 * soon, because commands that can run still use memory that the client has released.  The caller
 * must then not answer the request, which will be handled again.
 */
bool opencl_stall(struct vgpu_backend *backend);

/* context.c, memory.c, kernel.c, query.c, hello.c: requests; they return false if malformed */
typedef bool opencl_request(struct vgpu_backend *backend, const struct vgpu_message *message);
opencl_request opencl_hello, opencl_get, opencl_get_image_formats, opencl_create_context,
	opencl_create_queue, opencl_flush, opencl_create_buffer, opencl_create_sub_buffer,
	opencl_create_image, opencl_create_sampler, opencl_create_program_with_source,
	opencl_create_program_with_binary, opencl_create_program_with_built_in_kernels,
	opencl_build_program, opencl_compile_program, opencl_link_program, opencl_create_kernel,
	opencl_create_user_event, opencl_set_user_event_status;

/* hello.c */
/* Is this a parameter that the client answers by itself? */
bool opencl_is_handle_of_device(cl_device_info param);
void opencl_adjust_device(struct vgpu_backend *backend, cl_device_info param, void *value,
			  size_t *bytes);

/* command.c */
/* Handles any message that is a command. */
opencl_request opencl_command;
/* Call it when an event's command has been given or is over, or when a user event is over. */
void opencl_event_given(struct vgpu_backend *backend, struct event *event);
void opencl_free_command(struct vgpu_backend *backend, struct command *command);
void opencl_free_pools(struct vgpu_backend *backend);
/* Removes a command from its queue: the commands behind it may be ready now. */
void opencl_command_left(struct vgpu_backend *backend, struct command *command);
/*
 * Ends a command that failed without the library: reports the error to the command's event, client
 * or queue.
 */
void opencl_command_failed(struct vgpu_backend *backend, struct command *command, cl_int error);
/* Is the command a FINISH that needs nothing except its COMPLETION? */
bool opencl_is_plain_finish(const struct command *command);

/* resolve.c: find a command's objects and check its numbers, before it is queued */
/* Return: maximum number of objects that a message of this operation names. */
uint32_t opencl_objects_of(const struct vgpu_message *message);
/*
 * Return: false if the message is malformed.  Otherwise *error is 0 or the command's error, and
 * *waits is the message's list of events.
 */
bool opencl_resolve(struct vgpu_backend *backend, struct command *command, const uint32_t **waits,
		    cl_int *error);

/* transfer.c, launch.c: call the library */
struct call_waits {
	cl_uint count;
	const cl_event *list;
	cl_event *event;	/* NULL if no event is wanted */
};
cl_int opencl_give_transfer(struct vgpu_backend *backend, struct command *command,
			    const struct call_waits *waits);
cl_int opencl_give_launch(struct vgpu_backend *backend, struct command *command,
			  const struct call_waits *waits);

/* submit.c */
void opencl_submit(struct vgpu_backend *backend);
uint64_t opencl_settle(struct vgpu_backend *backend);
void opencl_drop_queued(struct vgpu_backend *backend);

/* completion.c */
void CL_CALLBACK opencl_batch_done(cl_event event, cl_int status, void *batch);
void CL_CALLBACK opencl_command_runs(cl_event event, cl_int status, void *batch);
void opencl_collect_batches(struct vgpu_backend *backend);
void opencl_send_completion(struct vgpu_backend *backend, uint64_t call, uint32_t event,
			    cl_int status, const uint64_t times_ns[4]);

/* duration.c */
bool opencl_durations_open(struct vgpu_backend *backend);
void opencl_durations_close(struct vgpu_backend *backend);
struct duration *opencl_duration(struct vgpu_backend *backend, uint32_t id);
void opencl_learn(struct vgpu_backend *backend, uint32_t id, uint64_t ns);
uint64_t opencl_now_ns(void);
uint64_t opencl_hash(uint64_t hash, const void *data, size_t bytes);

/* print.c */
bool opencl_print_open(struct vgpu_backend *backend, char *reason);
void opencl_print_close(struct vgpu_backend *backend);
/* Sends the text that kernels have printed.  The caller holds the lock. */
void opencl_print_drain(struct vgpu_backend *backend);

/* build.c */
struct program;
void opencl_compiled(struct vgpu_backend *backend, uint64_t token, int status, int exit_status,
		     int result);
void opencl_collect_builds(struct vgpu_backend *backend);
void opencl_builds_close(struct vgpu_backend *backend);

#endif /* VGPU_OPENCL_BACKEND_PRIVATE_H */
