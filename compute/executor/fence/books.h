/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a fence records about its program in addition to the objects that the gate stops: files of
 * clients, and GPU memory.  If @books is NULL, all of these functions do nothing and permit
 * everything.
 *
 * Managed memory (nvidia-uvm) is moved to the GPU by page faults, without a call, and is not
 * counted.  The driver's own memory for contexts and page tables is not counted either.
 */
#ifndef VGPU_EXECUTOR_FENCE_BOOKS_H
#define VGPU_EXECUTOR_FENCE_BOOKS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "executor/fence/fence.h"

#define FENCE_MEMORY_MAX	65536u

/**
 * struct fence_client - a client of the program
 * @file: the fence's own descriptor of the client's file; -1 if this entry is free
 * @maker: pidfd of the process that made the client; -1 when that process has ended
 * @lost: no process had the file at the last search of all files
 */
struct fence_client {
	uint32_t handle;
	int file;
	int maker;
	bool lost;
};

/* @tracked: @parent is in the table of objects, so the table shows when @parent is freed. */
struct fence_memory {
	uint32_t client;
	uint32_t parent;
	uint32_t handle;
	bool tracked;
	uint64_t bytes;
};

/**
 * struct fence_books - the books of one fence
 * @caller: PID of the thread group leader of the present call's caller
 */
struct fence_books {
	const struct vgpu_fence *fence;
	pid_t caller;
	unsigned int managed_major;
	struct fence_client clients[RM_CLIENTS_NATIVE_MAX];
	struct fence_memory memory[FENCE_MEMORY_MAX];
	uint32_t memory_count;
};

void fence_books_open(struct fence_books *books, const struct vgpu_fence *fence);

/* Is this a file of NVIDIA's driver? */
bool fence_is_device(const struct fence_books *books, int file);

/*
 * fence_enter() is called before a call that concerns the gate, and fence_leave() after it.
 * fence_enter() returns false if the gate is closed: the call must wait.
 */
bool fence_enter(struct fence_books *books);
void fence_leave(struct fence_books *books);

/* Adds a new client.  The caller keeps its descriptor @file.  Return: the fence's own descriptor. */
int fence_keep_file(struct fence_books *books, uint32_t client, int file);

/* Called before memory is allocated.  Return: false if the tenant's limit would be exceeded. */
bool fence_take_memory(struct fence_books *books, uint64_t bytes);
/* Releases the bytes that fence_take_memory() counted, if the allocation failed. */
void fence_give_memory(struct fence_books *books, uint64_t bytes);
/* Records the memory if the allocation succeeded. */
void fence_note_memory(struct fence_books *books, uint32_t client, uint32_t parent, uint32_t handle,
		       uint64_t bytes);
/* Return: the bytes that are counted for an object; 0 if it is not memory. */
uint64_t fence_memory_of(const struct fence_books *books, uint32_t client, uint32_t handle);
/*
 * Records that an object was freed.  If the object was @tracked, it and its descendants were
 * removed from the table of objects.
 */
void fence_note_freed(struct fence_books *books, uint32_t client, uint32_t handle, bool tracked);

/**
 * fence_reap() - free the clients of processes that have ended
 * @all: also look for the files of living processes
 *
 * A client stays as long as another process of the program has the client's file open.
 *
 * Return: false if a process outside of the program has one of the files open.
 */
bool fence_reap(struct fence_books *books, bool all);

#endif /* VGPU_EXECUTOR_FENCE_BOOKS_H */
