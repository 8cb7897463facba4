/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a fence knows of its program beside the objects that the gate stops: files of
 * clients, and memory of the GPU.  All of these do nothing, and permit all, without books.
 *
 * Memory that is managed (nvidia-uvm) is moved to the GPU by page faults, without a call, and
 * is not counted; nor is what the driver itself needs for a context and for page tables.
 */
#ifndef VGPU_EXECUTOR_FENCE_BOOKS_H
#define VGPU_EXECUTOR_FENCE_BOOKS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "executor/gate/fence.h"

#define FENCE_MEMORY_MAX	65536u

/**
 * struct fence_client - a client of the program
 * @file: the fence's own descriptor of its file; -1 for a place that is free
 * @maker: pidfd of the process that has made it; -1 when that has ended
 * @lost: no process had the file when all were looked through the last time
 */
struct fence_client {
	uint32_t handle;
	int file;
	int maker;
	bool lost;
};

/* @tracked: @parent is among the objects, so that it is known when it is gone. */
struct fence_memory {
	uint32_t client;
	uint32_t parent;
	uint32_t handle;
	bool tracked;
	uint64_t bytes;
};

/**
 * struct fence_books - one fence's
 * @caller: process group leader of whoever makes the present call
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

/* Before a call that the gate must know of, and after it.  False: the gate is closed; not now. */
bool fence_enter(struct fence_books *books);
void fence_leave(struct fence_books *books);

/* A new client of this file, whose descriptor stays the caller's.  Return: the fence's own. */
int fence_keep_file(struct fence_books *books, uint32_t client, int file);

/* Before memory is made.  False: it is more than the tenant may have. */
bool fence_take_memory(struct fence_books *books, uint64_t bytes);
/* It was not made. */
void fence_give_memory(struct fence_books *books, uint64_t bytes);
/* It was. */
void fence_note_memory(struct fence_books *books, uint32_t client, uint32_t parent, uint32_t handle,
		       uint64_t bytes);
/* What an object counts with; 0 if it is no memory. */
uint64_t fence_memory_of(const struct fence_books *books, uint32_t client, uint32_t handle);
/* An object was freed, and is forgotten among the objects with all below it, if it was @tracked there. */
void fence_note_freed(struct fence_books *books, uint32_t client, uint32_t handle, bool tracked);

/**
 * fence_reap() - free the clients of processes that have ended
 *
 * A client stays as long as some other process of the program has its file.
 * @all: look for the files of processes that live, too
 *
 * Return: false if a process that is not the program's has a file that was looked for.
 */
bool fence_reap(struct fence_books *books, bool all);

#endif /* VGPU_EXECUTOR_FENCE_BOOKS_H */
