/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection of this process to its child: one window, one stream of
 * requests, one of replies.
 *
 * Requests are written under one lock, which vgpu_send_begin() takes and
 * vgpu_send_commit() releases.  Replies are taken out of their ring by whichever
 * thread waits (the leader); the others wait for it (followers).  A reply that
 * carries the number of a pending record is handed to that record.
 *
 * Handlers of replies run in the thread that drains, with the receiving lock
 * held: they may not send and may not wait.
 *
 * After a fork the child process has no connection: vgpu_usable() is false, and
 * nothing here blocks.
 */
#ifndef VGPU_TRANSPORT_H
#define VGPU_TRANSPORT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol/control.h"
#include "protocol/window.h"

/**
 * struct vgpu_pending - something that a reply is awaited for
 * @reply: called with a private copy of the message, or with NULL when the child
 *	is lost; returns true if no further reply is awaited, and then the record is
 *	not touched again
 */
struct vgpu_pending {
	bool (*reply)(struct vgpu_pending *pending, const struct vgpu_message *message, uint32_t bytes);
};

/**
 * vgpu_start() - connects and maps the window
 * @other: called for a reply that belongs to no pending record, like struct
 *	vgpu_pending.reply; may be called from any thread that waits
 *
 * Connects to the socket that VGPUMGR_SOCKET names; if it is not set, to the device that
 * VGPUMGR_DEVICE names, or else to the first /dev/vgpu*-compute.
 *
 * Returns 0, -ENOENT if there is none of these, or another negative error number after
 * one line on stderr.  Not thread-safe; call it once.
 */
int vgpu_start(void (*other)(const struct vgpu_message *message, uint32_t bytes));

/*
 * Keeps a lock usable in copies of this process.  Call it before there are other threads
 * that take the lock; it must be held for moments only, and no other such lock with it.
 */
void vgpu_keep_over_fork(pthread_mutex_t *lock);

/* False in a child after fork, and when the child process on the host is lost. */
bool vgpu_usable(void);

/* Bytes of the bulk area, and where it is mapped; 0 and NULL without connection. */
uint64_t vgpu_bulk_total(void);
uint8_t *vgpu_bulk_address(uint64_t offset);

/**
 * vgpu_send_begin() - reserves room for a message and locks the stream of requests
 * @bytes: of the message, at most VGPU_MESSAGE_BYTES, a multiple of 8
 *
 * Waits while the ring is full.  Returns where to write the message, or NULL (and
 * then nothing is locked) if there is no usable connection.
 */
void *vgpu_send_begin(uint32_t bytes);

/* Hands the message that was written to the child and unlocks. */
void vgpu_send_commit(void);

/* Unlocks; nothing has been sent. */
void vgpu_send_cancel(void);

/**
 * vgpu_expect() - gives the number that a reply to @pending will carry
 *
 * Call it between vgpu_send_begin() and vgpu_send_commit().  Returns 0 if too many
 * replies are awaited; then none comes for @pending.
 */
uint64_t vgpu_expect(struct vgpu_pending *pending);

/**
 * vgpu_wait() - waits until @done says so, and handles replies meanwhile
 * @done: called without locks, often, from this thread; reads atomics only
 *
 * Returns false if the connection was lost before @done.
 */
bool vgpu_wait(bool (*done)(void *argument), void *argument);

/* Handles replies that are there, unless another thread does; does not wait. */
void vgpu_drain(void);

/* Lets all that wait look again, after this process itself has changed what they wait for. */
void vgpu_kick(void);

/* Part of the bulk area; its description is in this process alone. */
struct vgpu_bulk {
	uint64_t offset;
	uint64_t bytes;
	bool used;
	struct vgpu_bulk *before, *after;	/* by address */
	struct vgpu_bulk *previous, *next;	/* free parts of about the same size */
};

/**
 * vgpu_bulk_allocate() - takes a part of the bulk area
 * @bytes: wanted; the offset is a multiple of 4096 from 4096 bytes on, else of 128
 * @keep_free: fails if less than this would remain
 *
 * Returns NULL if there is no such part.  Thread-safe.
 */
struct vgpu_bulk *vgpu_bulk_allocate(uint64_t bytes, uint64_t keep_free);
void vgpu_bulk_free(struct vgpu_bulk *bulk);

/* Changes with each vgpu_bulk_free(). */
uint32_t vgpu_bulk_freed(void);

/* The greatest part that vgpu_bulk_allocate() could give now, roughly. */
uint64_t vgpu_bulk_largest(void);

#endif /* VGPU_TRANSPORT_H */
