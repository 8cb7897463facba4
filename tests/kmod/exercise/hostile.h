/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Malformed work, the sticky error it must cause, and the recovery by reset.
 * Cases that need registers are in tests/kmod/client.
 */
#ifndef VGPU_EXERCISE_HOSTILE_H
#define VGPU_EXERCISE_HOSTILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport.h"

struct hostile_case {
	const char *name;
	uint32_t expected; /* enum vgpu_error */
	/* Do it; 0, or a negative errno if that is impossible. */
	int (*attack)(struct transport *transport);
	/* Descriptor cases: the item to submit instead of @attack. */
	struct vgpu_desc (*desc)(const struct transport *transport);
};

extern const struct hostile_case hostile_descriptors[];
extern const size_t hostile_descriptor_count;

/*
 * Run the case called @name of @cases, or all of them for "all", on a mapped
 * or unmapped transport; exit status. -1 when no case has that name.
 */
int hostile_run(struct transport *transport, const struct hostile_case *cases,
		size_t count, const char *name, bool json);
void hostile_list(const struct hostile_case *cases, size_t count);

#endif
