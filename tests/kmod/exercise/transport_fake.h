/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A device in memory that follows vgpu_device.h, for tests of this program.
 * Items run when a caller waits for them, or at once if @eager.
 */
#ifndef VGPU_EXERCISE_TRANSPORT_FAKE_H
#define VGPU_EXERCISE_TRANSPORT_FAKE_H

#include "transport.h"

#define FAKE_NEVER UINT64_MAX

struct fake_options {
	uint64_t corrupt_memory; /* corrupt a byte of this item's destination */
	uint64_t corrupt_result; /* change this item's result */
	uint64_t corrupt_cookie; /* answer this item with another's cookie */
	uint64_t skip;		 /* complete this item without executing it */
	uint64_t stop_at;	 /* complete neither this item nor later ones */
	bool eager;
};

struct transport *transport_fake_open(const struct fake_options *options);

/* The number of items with @flag. */
uint32_t transport_fake_flagged(const struct transport *transport, uint16_t flag);

#endif
