/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A child: the process that serves one client.
 *
 * It has one main thread, which waits only on futex words.  It also has the thread of
 * link_client.c; with a VM, the thread of arbiter.c; and the library's threads, which call the
 * services of executor/backend.h.
 */
#ifndef VGPU_EXECUTOR_CHILD_H
#define VGPU_EXECUTOR_CHILD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "executor/backend.h"
#include "executor/child/arbiter.h"
#include "executor/child/lease_client.h"
#include "executor/child/link_client.h"
#include "executor/child/reply_ring.h"
#include "executor/child/request_ring.h"
#include "executor/sandbox/sandbox.h"

/**
 * struct vgpu_child_options - the command line
 * @backend: name of a backend
 * @library: path of the accelerator's own library; may be NULL for a test's backend
 * @spin_ns: how long the main thread polls the ring before it sleeps
 * @compile: run as a compiler instead
 */
struct vgpu_child_options {
	const char *backend;
	const char *library;
	uint64_t window_bytes;
	uint64_t memory_bytes;
	uint64_t spin_ns;
	bool compile;
	struct vgpu_sandbox sandbox;
};

/**
 * struct vgpu_child - state of a child
 * @alarm: futex word of wake()
 * @asleep: the main thread sleeps or is about to sleep
 * @wake_seen: wake word of the lease page in the present round
 * @pieces: number of pieces submitted under the present lease
 * @spins: how useful spinning has been recently; while it is negative, the child does not spin
 * @unfit: may_submit() refused a piece that would outlast the lease
 */
struct vgpu_child {
	struct vgpu_child_options options;
	const struct vgpu_backend_operations *operations;
	const struct vgpu_arbiter *arbiter;
	struct vgpu_backend *backend;
	struct vgpu_window *window;
	const struct vgpu_lease_page *lease_page;
	struct vgpu_stream_page *stream_page;
	struct vgpu_lease_client lease;
	struct vgpu_link link;
	struct vgpu_request_ring requests;
	struct vgpu_reply_ring replies;
	struct vgpu_backend_outlook outlook;
	_Atomic uint32_t alarm;
	_Atomic bool asleep;
	uint32_t wake_seen;
	uint64_t pieces;
	int spins;
	bool unfit;
};

/**
 * vgpu_child_main() - main() of a child, with the backends it may use
 * @backends: ends with NULL
 * @compile: main function of a compiler, or NULL if there is none
 */
int vgpu_child_main(int argc, char **argv, const struct vgpu_backend_operations *const *backends,
		    int (*compile)(const char *library, int job, int result));

/* Prints an error and exits with 2 if the command line is wrong. */
void vgpu_child_read_options(struct vgpu_child_options *options, int argc, char **argv);

/* Serves until the client's or the slice's life ends.  @child must be open. */
_Noreturn void vgpu_child_serve(struct vgpu_child *child);

/* Ends the child and reports the reason to its supervisor.  Any thread. */
_Noreturn void vgpu_child_end(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Starts a thread that blocks all signals.  Return: 0 or a positive errno value. */
int vgpu_child_thread(pthread_t *thread, void *(*run)(void *argument), void *argument);

/* Return: the services for @child's backend. */
struct vgpu_child_services vgpu_child_services(struct vgpu_child *child);
void vgpu_child_wake(void *child);

/* Runs one operation of the lease machine, including its accesses to memory. */
enum vgpu_lease_result vgpu_child_lease(struct vgpu_child *child,
					enum vgpu_lease_operation operation);
uint64_t vgpu_child_now_ns(void);

#endif /* VGPU_EXECUTOR_CHILD_H */
