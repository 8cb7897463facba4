/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * A window: the memory that one client process shares with its child.
 *
 * The client is a program with our library loaded.  The child is the process on the host that
 * calls the accelerator's own library for it.  A window has a header page, two rings and a bulk
 * area.  The request ring carries calls to the child.  The reply ring carries answers,
 * completions and callbacks back.  The bulk area belongs to the client, which allocates from it
 * and names parts of it by offset.  Buffer contents in the bulk area are used in place.
 *
 * Neither side trusts the other.  The child takes every size from the arguments that it
 * was started with and never from the header, copies a message out of the ring before
 * it looks at it, and checks each index, offset and length.  The client does the same
 * with replies.  A ring with invalid indices ends the child, and the client then sees a
 * lost device.
 *
 * In a VM the window is a part of the slice's BAR2; with the broker the window is a sealed
 * memfd.  Nothing here depends on the difference.
 */
#ifndef VGPU_WINDOW_H
#define VGPU_WINDOW_H

#include <stdatomic.h>
#include <stdint.h>

#define VGPU_WINDOW_MAGIC	0x77767067u
#define VGPU_WINDOW_VERSION	1u

#define VGPU_WINDOW_PAGE	4096u
#define VGPU_RING_BYTES		(1u << 20)	/* data bytes of each ring */
/* The longest message.  Longer data goes through the bulk area. */
#define VGPU_MESSAGE_BYTES	(64u << 10)
#define VGPU_MESSAGE_ALIGN	8u

#define VGPU_WINDOW_BYTES_MIN	(4ull << 20)
#define VGPU_WINDOW_BYTES_DEFAULT	(64ull << 20)
#define VGPU_WINDOW_BYTES_MAX	(16ull << 30)
#define VGPU_WINDOW_REASON_BYTES	192u

/**
 * struct vgpu_ring - indices of a ring with one producer and one consumer
 * @tail: total bytes produced; only the producer writes it
 * @head: total bytes consumed; only the consumer writes it
 * @sleeping: the consumer is about to wait on @bell, or is waiting
 * @bell: futex word; the producer adds one, and wakes the consumer if @sleeping
 * @full: the producer is about to wait on @space, or is waiting
 * @space: futex word; the consumer adds one, and wakes the producer if @full
 *
 * To sleep, the consumer reads @bell, sets @sleeping, executes a full barrier, reads
 * @tail again and waits for @bell to change.  To wake the consumer, the producer stores @tail,
 * executes a full barrier, and reads @sleeping.
 */
struct vgpu_ring {
	_Alignas(64) _Atomic uint64_t tail;
	_Alignas(64) _Atomic uint64_t head;
	_Alignas(64) _Atomic uint32_t sleeping;
	_Atomic uint32_t bell;
	_Alignas(64) _Atomic uint32_t full;
	_Atomic uint32_t space;
};

/**
 * struct vgpu_message - the header of every message
 * @bytes: length with this header, rounded up to VGPU_MESSAGE_ALIGN; a message never
 *	crosses the end of the ring
 * @op: operation; VGPU_OP_SKIP means that the next message is at the ring's start
 * @flags: depends on the operation
 * @call: the client's number for the call, which a reply repeats; 0 for a message
 *	without answer
 */
struct vgpu_message {
	uint32_t bytes;
	uint16_t op;
	uint16_t flags;
	uint64_t call;
};

#define VGPU_OP_SKIP	0u

/* State of the child, as the client sees it. */
enum vgpu_child_state {
	VGPU_CHILD_STARTING = 0,
	VGPU_CHILD_READY,	/* the child reads the request ring */
	VGPU_CHILD_LOST,	/* the child is gone and does not come back */
};

/**
 * struct vgpu_window - the first pages of a window
 * @magic: VGPU_WINDOW_MAGIC
 * @version: VGPU_WINDOW_VERSION
 * @bytes: size of the whole window
 * @child: enum vgpu_child_state; the child sets READY.  The process that reaps the
 *	child sets LOST and wakes @reply.bell and @request.space.
 * @request: from client to child; its data are at VGPU_WINDOW_REQUEST
 * @reply: from child to client; its data are at VGPU_WINDOW_REPLY
 * @reason: text for people: why @child is LOST.  It is written before LOST is set.  The
 *	client copies it, ends it with NUL and replaces control characters before it
 *	prints the text.
 *
 * In a VM the client can map the window before the host has written anything into it.
 * The client waits until @child is READY or LOST, and writes nothing before.
 */
struct vgpu_window {
	uint32_t magic;
	uint32_t version;
	uint64_t bytes;
	_Alignas(64) _Atomic uint32_t child;
	struct vgpu_ring request;
	struct vgpu_ring reply;
	char reason[VGPU_WINDOW_REASON_BYTES];
};

/* Offsets in a window. */
#define VGPU_WINDOW_REQUEST	((uint64_t)VGPU_WINDOW_PAGE)
#define VGPU_WINDOW_REPLY	(VGPU_WINDOW_REQUEST + VGPU_RING_BYTES)
#define VGPU_WINDOW_BULK	(VGPU_WINDOW_REPLY + VGPU_RING_BYTES)

_Static_assert(sizeof(struct vgpu_window) <= VGPU_WINDOW_PAGE, "header fits");

#endif /* VGPU_WINDOW_H */
