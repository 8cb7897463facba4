/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a process with the fake loaded talks to the fake's server: one packet asks, on the connection
 * that stands for the open file, and carries the socket on which the answer comes, so that threads
 * and foreign processes may use one file at a time.
 */
#ifndef FAKERM_PROTOCOL_H
#define FAKERM_PROTOCOL_H

#include <stdint.h>

#define FAKE_HEADER_MAX 12288
#define FAKE_NESTED_MAX 16384

/* Then the header as the caller has it, then what its pointer points to. */
struct fake_request {
	uint32_t request;
	uint32_t header_size;
	uint32_t nested_size;
	/* The pointer led nowhere. */
	uint32_t nested_fault;
	uint64_t xfer;
};

struct fake_answer {
	int32_t result;
	int32_t error;
	uint32_t header_size;
	uint32_t nested_size;
};

/* What the fake libcuda says to the fake GPU; a real one writes to memory and rings a doorbell. */
#define FAKE_MAGIC 'K'
#define FAKE_JOIN 1
#define FAKE_SUBMIT 2
#define FAKE_WAIT 3
#define FAKE_SLEEP 4
#define FAKE_LEAVE 5
#define FAKE_PROGRESS 6

/* JOIN, LEAVE: nothing; of a thread. SUBMIT: client, group, nanoseconds, kind; answers with a number in `value`.
 * WAIT: client, group, number. SLEEP: value is nanoseconds. PROGRESS: group counts groups of the GPU; answers with
 * the nanoseconds that it has run, whoever asks. */
struct fake_work {
	uint32_t client;
	uint32_t group;
	uint64_t value;
	uint32_t memory_bound;
	uint32_t pad;
};

#endif
