// SPDX-License-Identifier: Apache-2.0
/*
 * Gives decoders random messages: decode_random SEED COUNT.  With sanitizers, it finds reads
 * outside a message.  Prints how many messages were well-formed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opencl_decode.h"

#define BULK_BYTES (1u << 20)

static uint64_t state;

static uint64_t number(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

/* Returns interesting numbers: small ones, numbers at a limit, the size of a whole message, or any number. */
static uint64_t word(void)
{
	static const uint64_t edges[] = {
		0, 1, VGPU_CL_HANDLES_MAX - 1, VGPU_CL_HANDLES_MAX, VGPU_CL_INLINE, VGPU_CL_ABSENT, BULK_BYTES,
		VGPU_CL_INLINE_MAX, VGPU_CL_WAITS_MAX, UINT32_MAX, VGPU_MESSAGE_BYTES, 1ull << 32,
	};

	switch (number() % 4) {
	case 0:
		return edges[number() % (sizeof(edges) / sizeof(*edges))];
	case 1:
		return number();
	default:
		return number() % 16;
	}
}

int main(int argc, char **argv)
{
	unsigned long count, good = 0;

	if (argc != 3)
		return 2;
	state = strtoull(argv[1], NULL, 10) * 0x9e3779b97f4a7c15ull + 1;
	count = strtoul(argv[2], NULL, 10);
	for (unsigned long i = 0; i < count; i++) {
		uint32_t bytes = (uint32_t)(16 + 8 * (number() % (number() % 8 ? 32 : 400)));
		/* The copy is exactly as long as the message, so the sanitizer notices a read beyond it. */
		uint64_t *copy = malloc(bytes);
		struct vgpu_message *message = (struct vgpu_message *)copy;

		for (uint32_t k = 0; k < bytes / 8; k++)
			copy[k] = number() % 3 ? word() : (word() & 0xffffffff) << 32 | (word() & 0xffffffff);
		message->bytes = number() % 64 ? bytes : (uint32_t)word();
		message->op = (uint16_t)(number() % 64 ? number() % VGPU_CL_REQUESTS_END : number());
		message->flags = (uint16_t)(number() % 16 ? number() % 4 : number());
		good += vgpu_cl_check_request(copy, bytes, BULK_BYTES);
		free(copy);
	}
	printf("%lu\n", good);
	return 0;
}
