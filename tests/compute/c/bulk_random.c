// SPDX-License-Identifier: Apache-2.0
/*
 * Tests the bulk area's allocator: parts do not overlap, are aligned, and merge again.  bulk_random SEED
 * COUNT
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "guest/transport/connection.h"

#define UNIT 128u
#define TOTAL (8u << 20)
#define HELD 300u

struct vgpu_connection vgpu_connection;
static uint8_t owner[TOTAL / UNIT];

#define EXPECT(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition); \
			exit(1); \
		} \
	} while (0)

static uint32_t state;

static uint32_t number(void)
{
	state = state * 1664525u + 1013904223u;
	return state >> 4;
}

static void mark(const struct vgpu_bulk *part, uint8_t from, uint8_t to)
{
	EXPECT(part->offset + part->bytes <= TOTAL && part->offset % UNIT == 0);
	for (uint64_t i = part->offset / UNIT; i < (part->offset + part->bytes) / UNIT; i++) {
		EXPECT(owner[i] == from);
		owner[i] = to;
	}
}

int main(int argc, char **argv)
{
	struct vgpu_bulk *held[HELD] = { NULL };
	unsigned long count, failed = 0;
	uint32_t freed;

	if (argc != 3)
		return 2;
	state = (uint32_t)strtoul(argv[1], NULL, 10);
	count = strtoul(argv[2], NULL, 10);
	vgpu_connection.bulk_bytes = TOTAL;
	vgpu_bulk_start(TOTAL);
	EXPECT(vgpu_bulk_largest() == TOTAL);
	EXPECT(!vgpu_bulk_allocate(0, 0) && !vgpu_bulk_allocate(TOTAL + 1, 0) && !vgpu_bulk_allocate(UINT64_MAX, 0));
	EXPECT(!vgpu_bulk_allocate(TOTAL / 2, TOTAL / 2 + 1));
	for (unsigned long i = 0; i < count; i++) {
		uint32_t at = number() % HELD;
		uint64_t bytes = 1 + number() % (1u << (number() % 21));

		if (held[at]) {
			mark(held[at], 1, 0);
			freed = vgpu_bulk_freed();
			vgpu_bulk_free(held[at]);
			EXPECT(vgpu_bulk_freed() != freed);
			held[at] = NULL;
			continue;
		}
		held[at] = vgpu_bulk_allocate(bytes, 0);
		failed += !held[at];
		if (!held[at])
			continue;
		EXPECT(held[at]->bytes >= bytes && held[at]->bytes < bytes + UNIT);
		EXPECT(bytes < 4096 || held[at]->offset % 4096 == 0);
		mark(held[at], 0, 1);
	}
	for (uint32_t at = 0; at < HELD; at++)
		vgpu_bulk_free(held[at]);
	EXPECT(vgpu_bulk_largest() == TOTAL);
	printf("%lu\n", failed);
	return 0;
}
