/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One call of a child's, or of a native program's, made on copies.
 *
 * What a fence does beside (fence_books.h) is left out where there are no books.
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
 * struct relay_state - of a relay or a fence
 * @objects: shared with the supervisor
 * @process: pidfd of whoever makes the present call
 * @memory: its memory, open for reading and writing
 * @number: the child's or program's, for the log
 * @books: of a fence, or NULL
 * @known: the driver has said that it is of a version that the gate knows
 * @version: what it has said
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
 * struct relay_call - what a notification says, and what became of it
 * @refused: out: why for the log, or NULL; @detail is a number that goes with it
 */
struct relay_call {
	int file;
	uint32_t escape;
	uint32_t bytes;
	uint64_t address;
	const char *refused;
	uint32_t detail;
};

/* Makes a call on a copy.  Without an errno, which is returned, the structure has a status. */
int relay_make(int file, uint32_t escape, uint32_t bytes, void *structure);

/* In place of an errno value: the call was not made, because the gate is closed; make it later. */
#define RELAY_HELD	4096

/* Return: 0, a positive errno value for the caller, or RELAY_HELD. */
int relay_perform(struct relay_state *state, struct relay_call *call);
/* The same of a request for which relay_is_uvm(); it is in @escape. */
int relay_perform_uvm(struct relay_state *state, struct relay_call *call);
bool relay_is_uvm(uint32_t request);
/* One part of relay_perform(). */
int relay_perform_heap(struct relay_state *state, struct relay_call *call, int file);

/* A descriptor of the client's file, which is the caller's; -1 if there is none. */
int relay_client_file(const struct relay_state *state, const struct rm_object *client);

/* Copies from and to the child's memory; false if it has none there. */
bool relay_take(const struct relay_state *state, void *to, uint64_t from, uint64_t bytes);
bool relay_give(const struct relay_state *state, uint64_t to, const void *from, uint64_t bytes);
void relay_refuse(struct relay_call *call, const char *why, uint32_t detail);
/* A line in the log, unless there were too many of late. */
void relay_say_refused(const struct relay_state *state, struct vgpu_notice *notice,
		       const struct relay_call *call, uint64_t now_ns);

#endif /* VGPU_EXECUTOR_RELAY_CALL_H */
