/* SPDX-License-Identifier: GPL-2.0 */
/* Descriptors of any content, from a guest that goes on whatever they cause. */
#ifndef VGPU_EXERCISE_FUZZ_H
#define VGPU_EXERCISE_FUZZ_H

#include <stdbool.h>
#include <stdint.h>

#include "transport.h"

/*
 * For @duration_ns; a reset after each error and now and then. Nothing is written
 * to memory of the guest but completions. Exit status: EXIT_WRONG when a call
 * answered what it never may, or the device did not work afterwards.
 */
int fuzz_run(struct transport *transport, uint64_t duration_ns, uint64_t seed,
	     bool json);

#endif
