/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How the programs access a virtual function: through the guest driver
 * (transport_dev.c), through VFIO (tests/kmod/client) or in memory
 * (transport_fake.c). Operand addresses are offsets in the operand area on
 * every transport.
 *
 * Calls return 0 or a negative errno; transport.message then has the reason. A
 * transport is used by one thread at a time.
 */
#ifndef VGPU_TOOL_TRANSPORT_H
#define VGPU_TOOL_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vgpu_device.h"

struct transport_limits {
	uint32_t abi;
	uint32_t ops;
	uint32_t flags;
	uint32_t ring_entries;
	uint32_t item_bytes_max;
	uint32_t delay_ns_max;
	uint32_t chunk_ns_max;
	uint32_t fact_ps;
	uint32_t piece_bytes; /* no operand crosses a multiple of it */
	uint64_t area_bytes_max;
	uint64_t memory_bytes;
};

struct transport_counters {
	uint32_t status;
	uint32_t error;
	uint32_t error_index;
	uint32_t fetched;
	uint32_t completed;
	uint32_t outstanding;
	uint64_t run_ns;
	uint64_t interrupts;
};

#define TRANSPORT_RAW (1u << 0)   /* addresses are passed to the device unchanged */
#define TRANSPORT_PHASE (1u << 1) /* restart the count of queued items */

#define TRANSPORT_FOREVER UINT64_MAX

struct transport;

struct transport_ops {
	/* Set the size of the operand area to @bytes; its contents are lost. */
	int (*map)(struct transport *transport, size_t bytes);
	/*
	 * Queue @count items, all or none (-EAGAIN without room); the last one
	 * interrupts. @outstanding: fewest items queued at any moment since the
	 * previous submission.
	 */
	int (*submit)(struct transport *transport, const struct vgpu_desc *descs,
		      uint32_t count, unsigned int flags, uint32_t *outstanding);
	/*
	 * Collect completions in order once @minimum completions are there.
	 * -ETIMEDOUT and -EIO (transport.error is set) still deliver *@count of
	 * them.
	 */
	int (*wait)(struct transport *transport,
		    struct vgpu_completion *completions, uint32_t capacity,
		    uint32_t minimum, uint64_t timeout_ns, uint32_t *count);
	int (*counters)(struct transport *transport,
			struct transport_counters *counters);
	/* Clear the error, drop every item, start with empty rings. */
	int (*reset)(struct transport *transport);
	void (*close)(struct transport *transport);
};

struct transport {
	const struct transport_ops *ops;
	struct transport_limits limits;
	uint8_t *area;
	size_t area_bytes;
	uint32_t error;
	uint32_t error_index;
	uint64_t unmapped; /* a raw address without memory */
	char message[192];
};

/* Open the guest driver's device; on failure returns NULL and fills @message. */
struct transport *transport_dev_open(const char *path, char *message,
				     size_t message_bytes);

/* Store the reason of a failure; returns @error for the caller to return. */
int transport_fail(struct transport *transport, int error, const char *format,
		   ...) __attribute__((format(printf, 3, 4)));

#endif
