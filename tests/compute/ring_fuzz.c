// SPDX-License-Identifier: Apache-2.0
/*
 * The child's ends of both rings while another thread writes random data into the window.
 *
 *	ring_fuzz MESSAGES SEED
 *
 * Sanitizers check each access.  A message from the request ring must keep the bounds of
 * vgpu_message although it changes in the window.  A ring that is found broken stays broken, and
 * is opened again for the next message.  The program prints how many messages it took and how many
 * rings were broken.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "executor/child/reply_ring.h"
#include "executor/child/request_ring.h"

static unsigned char *window;
static _Atomic int ended;
static _Atomic uint64_t next;	/* position in the ring of the next message */
static uint64_t seed;

static uint64_t random_from(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* Returns mostly plausible values: lengths, operations and indices, or values near them. */
static uint64_t guess(uint64_t *state)
{
	static const uint64_t likely[] = {
		0, 8, 16, 24, 32, 64, 4096, VGPU_MESSAGE_BYTES, VGPU_MESSAGE_BYTES + 8,
		VGPU_RING_BYTES, VGPU_RING_BYTES - 8, UINT32_MAX, UINT64_MAX, 1ull << 63,
	};
	uint64_t value = random_from(state);

	switch (value >> 60) {
	case 0:
		return value;
	case 1:
	case 2:
		return value & 0xffff;
	default:
		return likely[value % (sizeof(likely) / sizeof(likely[0]))] + (value >> 59 & 1) * 8;
	}
}

static void *write_anything(void *nothing)
{
	struct vgpu_window *header = (void *)window;
	uint64_t state = seed * 2 + 1;

	while (!ended) {
		uint64_t at = random_from(&state) % (2 * VGPU_RING_BYTES), value = guess(&state);

		/* Mostly overwrite the header that is being read now. */
		if (value % 4)
			at = next;
		at &= ~7ull;
		memcpy(window + VGPU_WINDOW_REQUEST + at, &value, sizeof(value));
		switch (random_from(&state) % 16384) {
		case 0:
			header->request.tail = guess(&state);
			break;
		case 1:
			header->reply.head = guess(&state);
			break;
		case 2:
			header->request.head = guess(&state);
			header->reply.tail = guess(&state);
			header->request.full = (uint32_t)guess(&state);
			break;
		}
	}
	return nothing;
}

/* Writes a few messages that are correct until the other thread changes them. */
static void produce(uint64_t from, uint64_t *state)
{
	struct vgpu_window *header = (void *)window;
	uint64_t tail = from;

	for (unsigned int i = 0; i < 8; i++) {
		uint64_t at = tail & (VGPU_RING_BYTES - 1), bytes = 16 + (random_from(state) & 0xff8);
		struct vgpu_message message = { .bytes = (uint32_t)bytes, .op = 1, .call = tail };

		if (at + bytes > VGPU_RING_BYTES) {
			message.op = VGPU_OP_SKIP;
			bytes = VGPU_RING_BYTES - at;
		}
		memcpy(window + VGPU_WINDOW_REQUEST + at, &message, bytes < 16 ? bytes : 16);
		tail += bytes;
	}
	header->request.tail = tail;
}

static void wake_nobody(_Atomic uint32_t *word)
{
	(void)word;
}

int main(int argc, char **argv)
{
	static struct vgpu_request_ring requests;
	struct vgpu_reply_ring replies;
	uint64_t messages = argc > 1 ? strtoull(argv[1], NULL, 10) : 0, taken = 0, state;
	uint64_t broken_requests = 0, broken_replies = 0;
	unsigned char *copy = malloc(VGPU_MESSAGE_BYTES);
	pthread_t writer;

	seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
	state = seed | 1;
	window = mmap(NULL, VGPU_WINDOW_BULK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (window == MAP_FAILED || !copy || pthread_create(&writer, NULL, write_anything, NULL))
		return 2;
	vgpu_request_ring_open(&requests, window, wake_nobody);
	vgpu_reply_ring_open(&replies, window, wake_nobody);
	while (taken < messages) {
		const struct vgpu_message *message;

		produce(requests.head, &state);
		for (;;) {
			next = requests.head % VGPU_RING_BYTES;
			message = vgpu_request_ring_next(&requests);
			if (!message)
				break;
			if (message->bytes < sizeof(*message) || message->bytes > VGPU_MESSAGE_BYTES ||
			    message->bytes % VGPU_MESSAGE_ALIGN || message->op == VGPU_OP_SKIP) {
				printf("a message of %u bytes, operation %u\n", message->bytes, message->op);
				return 1;
			}
			memcpy(copy, message, message->bytes);
			taken++;
			/* Most of the time, the client reads the reply at once. */
			if (taken % 1024)
				((struct vgpu_window *)window)->reply.head = replies.tail;
			if (!vgpu_reply_ring_put(&replies, (void *)copy)) {
				broken_replies++;
				free(replies.overflow);
				vgpu_reply_ring_open(&replies, window, wake_nobody);
			}
		}
		vgpu_request_ring_publish(&requests);
		if (requests.broken) {
			broken_requests++;
			vgpu_request_ring_open(&requests, window, wake_nobody);
			requests.head = random_from(&state) % VGPU_RING_BYTES & ~7ull;
		}
	}
	ended = 1;
	pthread_join(writer, NULL);
	free(replies.overflow);
	free(copy);
	printf("%llu taken, %llu request and %llu reply rings broken\n", (unsigned long long)taken,
	       (unsigned long long)broken_requests, (unsigned long long)broken_replies);
	return 0;
}
