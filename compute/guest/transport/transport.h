/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection of this process to its child: one window, one stream of requests, one of
 * replies.
 *
 * Requests are written under one lock, which vgpu_send_begin() takes and vgpu_send_commit()
 * releases.  One waiting thread (the leader) takes replies out of their ring, and the others
 * wait for it (followers).  A reply with the number of a pending record is passed to that
 * record.
 *
 * Reply handlers run in the thread that drains, with the receiving lock held: they may not
 * send and may not wait.
 *
 * After a fork the child process has no connection: vgpu_usable() is false, and nothing here
 * blocks.
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
 * struct vgpu_pending - a record that waits for a reply
 * @reply: called with a private copy of the message, or with NULL when the child is lost.
 *	Returns true if no further reply is expected, and then the record is not accessed
 *	again.
 */
struct vgpu_pending {
	bool (*reply)(struct vgpu_pending *pending, const struct vgpu_message *message, uint32_t bytes);
};

/**
 * vgpu_start() - connects and maps the window
 * @other: called for a reply that belongs to no pending record, like struct
 *	vgpu_pending.reply; may be called from any thread that waits
 *
 * Connects to the socket that VGPUMGR_SOCKET names.  If that is not set, connects to the
 * device that VGPUMGR_DEVICE names, or else to the first /dev/vgpu*-compute.
 *
 * Returns 0, -ENOENT if neither variable is set and there is no device, or another negative
 * error number after one line on stderr.  Not thread-safe; call it once.
 */
int vgpu_start(void (*other)(const struct vgpu_message *message, uint32_t bytes));

/*
 * Keeps a lock usable in forked copies of this process.  Call it before other threads take
 * the lock.  The lock must be held only for moments, and not together with another such lock.
 */
void vgpu_keep_over_fork(pthread_mutex_t *lock);

/* Returns false in a child after fork, and when the child process on the host is lost. */
bool vgpu_usable(void);

/* Size of the bulk area, and an address in it; 0 and NULL without a connection. */
uint64_t vgpu_bulk_total(void);
uint8_t *vgpu_bulk_address(uint64_t offset);

/**
 * vgpu_send_begin() - reserves room for a message and locks the request stream
 * @bytes: size of the message, at most VGPU_MESSAGE_BYTES and a multiple of 8
 *
 * Waits while the ring is full.  Returns where to write the message, or NULL if there is no
 * usable connection.  In that case nothing is locked.
 */
void *vgpu_send_begin(uint32_t bytes);

/* Passes the written message to the child and unlocks. */
void vgpu_send_commit(void);

/* Unlocks without sending. */
void vgpu_send_cancel(void);

/**
 * vgpu_expect() - returns the number for a reply to @pending
 *
 * Call it between vgpu_send_begin() and vgpu_send_commit().  Returns 0 if too many replies are
 * awaited already.  In that case @pending gets no reply.
 */
uint64_t vgpu_expect(struct vgpu_pending *pending);

/**
 * vgpu_wait() - waits until @done returns true, and handles replies meanwhile
 * @done: called often, from this thread and without locks; may read only atomic variables
 *
 * Returns false if the connection was lost before @done.
 */
bool vgpu_wait(bool (*done)(void *argument), void *argument);

/*
 * Handles the replies that are present, unless another thread is handling replies.  Does not
 * wait.
 */
void vgpu_drain(void);

/*
 * Makes all waiting threads check their conditions again.  Call it after this process itself
 * has changed such a condition.
 */
void vgpu_kick(void);

/* A part of the bulk area.  Its description is only in this process. */
struct vgpu_bulk {
	uint64_t offset;
	uint64_t bytes;
	bool used;
	struct vgpu_bulk *before, *after;	/* neighbours by address */
	struct vgpu_bulk *previous, *next;	/* free parts of similar size */
};

/**
 * vgpu_bulk_allocate() - allocates a part of the bulk area
 * @bytes: size; the offset of a part of 4096 bytes or more is a multiple of 4096, any other
 *	offset of 128
 * @keep_free: fail if fewer bytes than this would remain free
 *
 * Returns NULL if no free part is large enough.  Thread-safe.
 */
struct vgpu_bulk *vgpu_bulk_allocate(uint64_t bytes, uint64_t keep_free);
void vgpu_bulk_free(struct vgpu_bulk *bulk);

/* Changes with each vgpu_bulk_free(). */
uint32_t vgpu_bulk_freed(void);

/* Returns roughly the largest size that vgpu_bulk_allocate() could allocate now. */
uint64_t vgpu_bulk_largest(void);

#endif /* VGPU_TRANSPORT_H */
