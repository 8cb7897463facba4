/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the transport share. */
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

/* How long a thread sleeps before it looks whether the other side is still there. */
#define VGPU_LOOK_NS 200000000ull

/**
 * struct vgpu_connection - the one of this process
 * @window: NULL until connected
 * @bulk_bytes: of the window's bulk area
 * @carrier: what the window came by, and how both sides wake each other
 * @fd: the carrier's; its end is the child's end
 * @forked: this process is a copy of the one that connected
 * @lost: the child is gone
 * @send_lock: guards the producer's side of the request ring
 * @tail: of the request ring; the shared one is only written
 * @known_head: of the request ring, as last read
 * @reserved: bytes of the message that is being written
 * @receive_lock: guards the consumer's side of the reply ring
 * @head: of the reply ring
 * @turn: futex word; changes when waiting threads shall look again
 * @followers: threads that wait for @turn, or are about to
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

/* Marks the child as lost and lets every waiting thread see it; from any thread. */
void vgpu_lose(void);

/* Looks at the child's state and at the carrier; returns true if the child is lost. */
bool vgpu_look(void);

/*
 * Sleeps for a while at most, unless this word of the window has another value by now, and
 * looks afterwards; returns false if the child is lost.
 */
bool vgpu_sleep(_Atomic uint32_t *word, uint32_t value);

/* Tells all pending records that the child is lost; the receiving lock is held. */
void vgpu_pending_lose(void);

/* Hands a reply to its pending record, if it has one; the receiving lock is held. */
bool vgpu_pending_reply(const struct vgpu_message *message, uint32_t bytes);

void vgpu_bulk_start(uint64_t bytes);
void vgpu_pending_start(void);

/* Words of this process, and what the carrier of one machine does with those of the window. */
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
