/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a process with the fake loaded talks to the fake's server. Each request is one packet on the
 * connection that stands for the open file. The packet carries the socket for the answer, so threads and
 * foreign processes may use one file at the same time.
 */
#ifndef FAKERM_PROTOCOL_H
#define FAKERM_PROTOCOL_H

#include <stdint.h>

#define FAKE_HEADER_MAX 12288
#define FAKE_NESTED_MAX 16384

/* Followed by the caller's header and then by the data of its pointer. */
struct fake_request {
	uint32_t request;
	uint32_t header_size;
	uint32_t nested_size;
	/* The pointer was invalid. */
	uint32_t nested_fault;
	uint64_t xfer;
};

struct fake_answer {
	int32_t result;
	int32_t error;
	uint32_t header_size;
	uint32_t nested_size;
};

/* Messages of the fake libcuda to the fake GPU. A real library writes to memory and rings a doorbell. */
#define FAKE_MAGIC 'K'
#define FAKE_JOIN 1
#define FAKE_SUBMIT 2
#define FAKE_WAIT 3
#define FAKE_SLEEP 4
#define FAKE_LEAVE 5
#define FAKE_PROGRESS 6

/*
 * JOIN, LEAVE: a thread joins or leaves; no fields. SUBMIT: client, group, nanoseconds, kind; the answer has a number
 * in `value`. WAIT: client, group, number. SLEEP: `value` is nanoseconds. PROGRESS: `group` is the number of a group of
 * the GPU; the answer is the time in nanoseconds that this group has run, for any caller.
 */
struct fake_work {
	uint32_t client;
	uint32_t group;
	uint64_t value;
	uint32_t memory_bound;
	uint32_t pad;
};

#endif
