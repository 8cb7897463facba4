/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the parts of the transport share. */
#ifndef VGPU_CONNECTION_H
#define VGPU_CONNECTION_H

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "guest/transport/carrier.h"
#include "guest/transport/transport.h"

/* How long a thread sleeps before it checks whether the other side still exists. */
#define VGPU_LOOK_NS 200000000ull

/**
 * struct vgpu_connection - the only connection of this process
 * @window: NULL until connected
 * @bulk_bytes: size of the window's bulk area
 * @carrier: where the window came from, and how both sides wake each other
 * @fd: the carrier's descriptor; poll() on it reports the end of the child
 * @forked: this process is a copy of the one that connected
 * @lost: the child is gone
 * @send_lock: guards the producer's side of the request ring
 * @tail: own copy of the request ring's tail; the tail in the window is written but never read
 * @known_head: the request ring's head, as last read
 * @reserved: size of the message that is being written
 * @receive_lock: guards the consumer's side of the reply ring
 * @head: own copy of the reply ring's head
 * @turn: futex word; changes when waiting threads should check their conditions again
 * @followers: number of threads that wait for a change of @turn, or are about to wait
 * @spin_ns: how long to poll before sleeping
 */
struct vgpu_connection {
	struct vgpu_window *window;
	uint8_t *request_data, *reply_data, *bulk;
	uint64_t bulk_bytes;
	const struct vgpu_carrier *carrier;
	int fd;
	atomic_bool forked, lost;
	void (*other)(const struct vgpu_message *message, uint32_t bytes);

	_Alignas(64) pthread_mutex_t send_lock;
	uint64_t tail, known_head;
	uint32_t reserved;

	_Alignas(64) pthread_mutex_t receive_lock;
	uint64_t head;
	atomic_uint turn, followers;
	uint64_t spin_ns, spin_ns_most;
};

extern struct vgpu_connection vgpu_connection;

/*
 * Marks the child as lost and makes every waiting thread notice.  May be called from any
 * thread.
 */
void vgpu_lose(void);

/* Checks the child's state and the carrier.  Returns true if the child is lost. */
bool vgpu_look(void);

/*
 * Sleeps for a limited time while this word of the window has @value, and then checks the
 * child.  Returns false if the child is lost.
 */
bool vgpu_sleep(_Atomic uint32_t *word, uint32_t value);

/* Ends all pending records, because the child is lost.  The caller holds the receiving lock. */
void vgpu_pending_lose(void);

/*
 * Passes a reply to its pending record.  Returns false if the reply belongs to no record.  The
 * caller holds the receiving lock.
 */
bool vgpu_pending_reply(const struct vgpu_message *message, uint32_t bytes);

void vgpu_bulk_start(uint64_t bytes);
void vgpu_pending_start(void);

/*
 * Futex operations on words of this process.  The carrier for the same machine (socket.c) also
 * uses them on words of the window.
 */
static inline void vgpu_futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t ns)
{
	struct timespec timeout = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };

	syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, NULL, 0);
}

static inline void vgpu_futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static inline uint64_t vgpu_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

#endif /* VGPU_CONNECTION_H */
