/* SPDX-License-Identifier: GPL-2.0 */
/* Code that the cases of verify share: operands, running items, and reports. */
#ifndef VGPU_TOOL_VERIFY_CASE_H
#define VGPU_TOOL_VERIFY_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clock.h"
#include "transport.h"

#define TIMEOUT_NS (60 * NS_PER_S)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define PIECE 0x100000u /* operand area: source, destination, second source */
#define SOURCE 0u
#define RESULT PIECE
#define SOURCE2 (2 * PIECE)
#define AREA_BYTES (3 * PIECE)

struct verify {
	struct transport *transport;
	const char *name;
	bool json;
	unsigned int cases;
	unsigned int failed;
	int rc; /* not 0: the transport failed, so stop */
};

bool verify_begin(struct verify *verify, struct transport *transport,
		  const char *name, bool json);
/* Report how many cases there were and how many failed; returns an exit status. */
int verify_finish(struct verify *verify);

/* A pointer into the operand area. */
uint8_t *verify_at(struct verify *verify, uint64_t offset);
/* Run items; returns the total engine time, and the last item's result. */
bool verify_run(struct verify *verify, const struct vgpu_desc *descs,
		uint32_t count, uint64_t *run_ns, uint64_t *result);
/* Report and count one case. */
void verify_outcome(struct verify *verify, const char *what, uint64_t size,
		    bool right, uint64_t run_ns);

void verify_spoil(struct verify *verify, uint64_t offset, size_t bytes);
/* Are the spoiled bytes next to a destination unchanged? */
bool verify_untouched(struct verify *verify, uint64_t offset, size_t bytes);
bool verify_filled(const uint8_t *data, size_t bytes, uint32_t pattern);

/* All cases of device memory (verify_memory.c). */
void verify_memory(struct verify *verify);

#endif
