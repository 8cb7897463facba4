/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the child's main loop and the code that calls an accelerator's library
 * (a backend) want of each other.
 *
 * The main loop owns the rings, the lease and the sockets; the backend owns the
 * library, the table of handles and the queued commands.  One thread, the main
 * one, calls the backend.  The backend never waits: a library's threads leave
 * their news in the backend and call wake(), and the main loop then calls
 * collect().  A round of the main loop is:
 *
 *	collect();
 *	while (!full() && a request is in the ring)	(a bounded number of them)
 *		handle(a private copy of it);
 *	outlook(): tells vgpu_lease_need() what there is to do, and the stream page
 *	busy under a lease: submit(), which calls may_submit() before each piece
 *	nothing to do: settle(); then sleep until a request, a wake(), a reply's
 *	room or the lease
 *
 * open() is called before the sandbox closes: it loads the library and starts the
 * library's threads, so the sandbox must be applied to all threads.  After open()
 * the OpenCL backend with PoCL needs neither exec nor fork nor new threads.  It
 * does write: PoCL unpacks a program's binary into files and directories below
 * $POCL_CACHE_DIR (mkdir, open with O_CREAT, rename) and maps the unpacked
 * libraries executable.  See executor/opencl/README.md.
 */
#ifndef VGPU_EXECUTOR_BACKEND_H
#define VGPU_EXECUTOR_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/window.h"

struct vgpu_backend;	/* each backend has its own */
struct vgpu_child;	/* the main loop's own; tests have another */

/**
 * struct vgpu_child_services - what the backend calls
 * @child: first argument of each
 * @reply: send a message to the client.  @message is a whole message with its
 *	header, at most VGPU_MESSAGE_BYTES, already padded.  Any thread; takes it
 *	always, in order.  What the ring has no room for waits in private memory,
 *	and the main loop calls handle() no more until it is in the ring.
 *	The backend bounds what it sends: an answer for a request, at most three
 *	COMPLETIONs for a command, and other messages only while reply_room() says
 *	yes.
 * @reply_room: nothing waits in private memory.  Any thread.
 * @wake: end the main loop's sleep, or the next one if it does not sleep.  Any
 *	thread; cheap if the main loop is awake.
 * @may_submit: ask before each piece of work is given to the library (while there
 *	are no rivals: before the first of each few, as it takes a clock): busy
 *	under a lease that is still valid, and @until_ns fits.  @until_ns is how long
 *	what is under way and this piece are expected to take from now; a piece
 *	that fits into no lease may go when it is the first of its lease.  Main
 *	thread, inside submit() only.
 * @rivals: others wait for the accelerator (the lease expires at some time): keep
 *	little under way.  Main thread.
 * @reserve: count @bytes of the slice's accelerator memory; 0 or ENOMEM.  Main
 *	thread.  It may ask the supervisor, which takes tens of microseconds.
 * @release: give back what reserve() counted.  Main thread.
 * @compile: have a job compiled, a memfd that the callee closes in any case.  0, or a
 *	positive errno value and then compiled() is not called.  Main thread.
 * @log: one line, without a line's end; @level is of syslog.h.  Any thread.
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
 * @memory_bytes: of the slice, for what the client is told
 * @window: the client's window, mapped; contents change at any time
 * @window_bytes: as the child was started with, never from the header
 */
struct vgpu_backend_configuration {
	const char *library;
	uint64_t memory_bytes;
	void *window;
	uint64_t window_bytes;
	struct vgpu_child_services services;
};

/**
 * struct vgpu_backend_outlook - what there is to do
 * @queued: at least one piece of work could be submitted now
 * @under_way: at least one piece has been submitted and has not ended
 * @kernel_id: of the piece that would be submitted first; if none is queued, of
 *	the last one submitted
 * @hint_ns: what the first piece is expected to take, 0 for unknown
 * @submitted: kernels and copies ever given to the library
 * @finished: of those, how many have ended
 * @failed: of those, how many ended with an error
 * @ended_ns: CLOCK_MONOTONIC of the latest end of a piece, 0 for not known.  The
 *	stream has been dry since then, even if the main loop finds out later.
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
 * struct vgpu_backend_operations - a backend; the main thread calls all of it
 * @open: load the library and find its devices.  0, or a positive errno value,
 *	and @reason (VGPU_REASON_BYTES) then says why, for people.
 * @handle: a request.  @message is a private copy whose @bytes have been checked
 *	against the ring; nothing else of it has.  It is free again after the
 *	call.  False: no client of ours sends this, so end the child;
 *	malformed() then says what it was.
 * @malformed: why handle() said no, for people and the log
 * @full: so much is queued that handle() must not be called until collect() or
 *	submit() has made room
 * @collect: take over what the library's threads have left
 * @submit: give queued work to the library while may_submit() agrees and what is
 *	under way stays within the backend's own bounds.  Only while busy.
 * @settle: the main loop is about to sleep.  Returns until when (CLOCK_MONOTONIC)
 *	it may; UINT64_MAX: until there is news.  The backend wakes it at the end
 *	of what is under way if there is more to submit or others wait; otherwise
 *	it is worth more not to disturb the client that has just been answered,
 *	and the main loop finds out a little later that it is dry.
 * @outlook: see there; cheap
 * @compiled: the answer to compile(): @status and @exit_status as in
 *	executor/link.h; @result is a memfd to read, which the caller closes, or -1
 * @quiesce: forget what is queued and submit nothing any more; true when nothing
 *	is under way.  To be called again after each wake() until it is true.
 * @close: release everything; only after quiesce() said true
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
 * vgpu_opencl_compile() - what `vgpu-child --compile` does
 * @library: path of the accelerator's own library
 * @job: memfd to read
 * @result: memfd to write
 *
 * Runs in a process of its own, which may start the linker and has no window.
 * Return: the process's exit status, as in executor/link.h.
 */
int vgpu_opencl_compile(const char *library, int job, int result);

#endif /* VGPU_EXECUTOR_BACKEND_H */
