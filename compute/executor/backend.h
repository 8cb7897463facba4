/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface between the child's main loop and the code that calls an accelerator's library (a
 * backend).
 *
 * The main loop owns the rings, the lease and the sockets.  The backend owns the library, the table
 * of handles and the queued commands.  Only the main thread calls the backend.  The backend never
 * waits: a library's threads leave their results in the backend and call wake(), and the main loop
 * then calls collect().  One round of the main loop is:
 *
 *	collect();
 *	while (!full() && a request is in the ring)	(a bounded number of them)
 *		handle(a private copy of it);
 *	outlook(): updates vgpu_lease_need() and the stream page
 *	busy under a lease: submit(), which calls may_submit() before each piece
 *	nothing to do: settle(); then sleep until a request, a wake(), room for a
 *	reply, or the lease
 *
 * open() is called before the sandbox closes.  It loads the library and starts the library's
 * threads, so the sandbox must be applied to all threads.  After open(), the OpenCL backend with
 * PoCL needs neither exec nor fork nor new threads.  The backend does write files: PoCL unpacks a
 * program's binary into files and directories below $POCL_CACHE_DIR (mkdir, open with O_CREAT,
 * rename) and maps the unpacked libraries as executable.  See executor/opencl/README.md.
 */
#ifndef VGPU_EXECUTOR_BACKEND_H
#define VGPU_EXECUTOR_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/window.h"

struct vgpu_backend;	/* each backend defines its own */
struct vgpu_child;	/* defined by the main loop; tests define another */

/**
 * struct vgpu_child_services - functions that the backend calls
 * @child: first argument of each
 * @reply: send a message to the client.  @message is a whole message with its header, at most
 *	VGPU_MESSAGE_BYTES, already padded.  May be called by any thread; never fails, and keeps
 *	the order.  Messages for which the ring has no room wait in private memory, and the main
 *	loop does not call handle() until they are in the ring.  The backend limits what it
 *	sends: one answer for a request, at most three COMPLETIONs for a command, and other
 *	messages only while reply_room() returns true.
 * @reply_room: true if no message waits in private memory.  Any thread.
 * @wake: end the main loop's sleep, or its next sleep if it is awake.  Any thread; cheap if the
 *	main loop is awake.
 * @may_submit: call it before each piece of work is given to the library.  While there are no
 *	rivals, call it only once every few pieces, because it reads a clock.  True if the child
 *	is busy under a lease that is still valid, and @until_ns fits into the lease.  @until_ns
 *	is how long the work in progress and this piece are expected to take from now.  A piece
 *	that fits into no lease may be submitted if it is the first of its lease.  Main thread,
 *	inside submit() only.
 * @rivals: true if others wait for the accelerator, so that the lease will expire: keep little work
 *	in progress.  Main thread.
 * @reserve: reserve @bytes of the slice's accelerator memory; returns 0 or ENOMEM.  Main thread.
 *	It may ask the supervisor, which takes tens of microseconds.
 * @release: return memory that reserve() counted.  Main thread.
 * @compile: have a job compiled.  The job is a memfd that the callee always closes.  Returns 0, or
 *	a positive errno value if compiled() will not be called.  Main thread.
 * @log: write one line, without a newline; @level is a priority of syslog.h.  Any thread.
 */
struct vgpu_child_services {
	struct vgpu_child *child;
	void (*reply)(struct vgpu_child *child, const struct vgpu_message *message);
	bool (*reply_room)(struct vgpu_child *child);
	void (*wake)(struct vgpu_child *child);
	bool (*may_submit)(struct vgpu_child *child, uint64_t until_ns);
	bool (*rivals)(struct vgpu_child *child);
	int (*reserve)(struct vgpu_child *child, uint64_t bytes);
	void (*release)(struct vgpu_child *child, uint64_t bytes);
	int (*compile)(struct vgpu_child *child, int job, uint64_t token);
	void (*log)(struct vgpu_child *child, int level, const char *format, ...)
		__attribute__((format(printf, 3, 4)));
};

/**
 * struct vgpu_backend_configuration - arguments of open()
 * @library: path of the accelerator's own library
 * @memory_bytes: accelerator memory of the slice, as reported to the client
 * @window: the client's window, mapped; its contents can change at any time
 * @window_bytes: size on the child's command line, never from the header
 */
struct vgpu_backend_configuration {
	const char *library;
	uint64_t memory_bytes;
	void *window;
	uint64_t window_bytes;
	struct vgpu_child_services services;
};

/**
 * struct vgpu_backend_outlook - work that is queued, in progress and done
 * @queued: at least one piece of work could be submitted now
 * @under_way: at least one piece has been submitted and has not ended
 * @kernel_id: kernel of the piece that would be submitted first; if no piece is queued, kernel of
 *	the piece that was submitted last
 * @hint_ns: expected duration of the first piece; 0 if unknown
 * @submitted: total number of kernels and copies given to the library
 * @finished: how many of those have ended
 * @failed: how many of those ended with an error
 * @ended_ns: CLOCK_MONOTONIC when the latest piece ended; 0 if unknown.  The stream has been dry
 *	since then, even if the main loop notices later.
 */
struct vgpu_backend_outlook {
	bool queued;
	bool under_way;
	uint32_t kernel_id;
	uint64_t hint_ns;
	uint64_t submitted;
	uint64_t finished;
	uint64_t failed;
	uint64_t ended_ns;
};

/**
 * struct vgpu_backend_operations - a backend; only the main thread calls these
 * @open: load the library and find its devices.  Returns 0, or a positive errno value; then @reason
 *	(VGPU_REASON_BYTES) contains a message.
 * @handle: process a request.  @message is a private copy.  Its @bytes have been checked against
 *	the ring, but nothing else has.  The copy is valid only during the call.  Returns false
 *	if no genuine client sends such a request: end the child; malformed() then returns the
 *	reason.
 * @malformed: the reason why handle() returned false, for the log
 * @full: true if so much is queued that handle() must not be called until collect() or submit() has
 *	made room
 * @collect: process the results that the library's threads have left
 * @submit: give queued work to the library while may_submit() returns true and the work in progress
 *	stays within the backend's own limits.  Only while busy.
 * @settle: the main loop is about to sleep.  Returns until when (CLOCK_MONOTONIC) it may sleep;
 *	UINT64_MAX: until an event.  If there is more to submit or others wait, the backend wakes
 *	the main loop when the work in progress ends.  Otherwise the backend does not wake the main
 *	loop, which would disturb the client that has just been answered; the main loop then notices
 *	a little later that the stream is dry.
 * @outlook: fill in struct vgpu_backend_outlook; cheap
 * @compiled: the answer to compile(): @status and @exit_status as in executor/link.h; @result is a
 *	memfd to read, which the caller closes, or -1
 * @quiesce: drop all queued work and submit nothing any more; returns true when no work is in
 *	progress.  Call it again after each wake() until it returns true.
 * @close: release everything; called only after quiesce() has returned true
 */
struct vgpu_backend_operations {
	const char *name;
	int (*open)(const struct vgpu_backend_configuration *configuration,
		    struct vgpu_backend **backend, char *reason);
	bool (*handle)(struct vgpu_backend *backend, const struct vgpu_message *message);
	const char *(*malformed)(struct vgpu_backend *backend);
	bool (*full)(struct vgpu_backend *backend);
	void (*collect)(struct vgpu_backend *backend);
	void (*submit)(struct vgpu_backend *backend);
	uint64_t (*settle)(struct vgpu_backend *backend);
	void (*outlook)(struct vgpu_backend *backend, struct vgpu_backend_outlook *outlook);
	void (*compiled)(struct vgpu_backend *backend, uint64_t token, int status,
			 int exit_status, int result);
	bool (*quiesce)(struct vgpu_backend *backend);
	void (*close)(struct vgpu_backend *backend);
};

extern const struct vgpu_backend_operations vgpu_opencl_backend;

/**
 * vgpu_opencl_compile() - the work of `vgpu-child --compile`
 * @library: path of the accelerator's own library
 * @job: memfd to read
 * @result: memfd to write
 *
 * Runs in a separate process, which may start the linker and has no window.  Return: the process's
 * exit status, as in executor/link.h.
 */
int vgpu_opencl_compile(const char *library, int job, int result);

#endif /* VGPU_EXECUTOR_BACKEND_H */
