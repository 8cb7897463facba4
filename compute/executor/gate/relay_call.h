/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes one call of a child or of a native program, on copies of the arguments.
 *
 * The additional work of a fence (fence/books.h) is skipped if there are no books.
 */
#ifndef VGPU_EXECUTOR_RELAY_CALL_H
#define VGPU_EXECUTOR_RELAY_CALL_H

#include <stdbool.h>
#include <stdint.h>

#include <sys/types.h>

#include "executor/gate/rm_objects.h"

struct fence_books;
struct vgpu_notice;

/**
 * struct relay_state - state of a relay or a fence
 * @objects: shared with the supervisor
 * @process: pidfd of the present call's caller
 * @memory: memory of the caller, open for reading and writing
 * @number: number of the child or program, for the log
 * @books: books of a fence, or NULL for a relay
 * @known: the driver has reported a version that the gate supports
 * @version: the version that the driver reported
 */
struct relay_state {
	struct rm_objects *objects;
	int process;
	int memory;
	uint64_t number;
	struct fence_books *books;
	bool known;
	char version[64];
};

/**
 * struct relay_call - contents of a notification, and the result
 * @refused: out: reason for the log, or NULL; @detail is a number to log with the reason
 */
struct relay_call {
	int file;
	uint32_t escape;
	uint32_t bytes;
	uint64_t address;
	const char *refused;
	uint32_t detail;
};

/*
 * Makes a call on a copy.  Return: 0 or an errno value.  If it is 0, the driver's status is in the
 * structure.
 */
int relay_make(int file, uint32_t escape, uint32_t bytes, void *structure);

/*
 * Returned in place of an errno value: the call was not made because the gate is closed, and has to
 * be retried later.
 */
#define RELAY_HELD	4096

/* Return: 0, a positive errno value for the caller, or RELAY_HELD. */
int relay_perform(struct relay_state *state, struct relay_call *call);
/* Like relay_perform(), for a request for which relay_is_uvm() is true.  The request number is in @escape. */
int relay_perform_uvm(struct relay_state *state, struct relay_call *call);
bool relay_is_uvm(uint32_t request);
/* A part of relay_perform(). */
int relay_perform_heap(struct relay_state *state, struct relay_call *call, int file);

/* Return: a new descriptor of the client's file, which the caller must close, or -1 if there is none. */
int relay_client_file(const struct relay_state *state, const struct rm_object *client);

/* Copy from and to the child's memory.  Return: false if the address is not mapped. */
bool relay_take(const struct relay_state *state, void *to, uint64_t from, uint64_t bytes);
bool relay_give(const struct relay_state *state, uint64_t to, const void *from, uint64_t bytes);
void relay_refuse(struct relay_call *call, const char *why, uint32_t detail);
/* Logs a refused call, unless there were too many lines recently. */
void relay_say_refused(const struct relay_state *state, struct vgpu_notice *notice,
		       const struct relay_call *call, uint64_t now_ns);

#endif /* VGPU_EXECUTOR_RELAY_CALL_H */
