/* SPDX-License-Identifier: GPL-2.0 */
/* Random descriptors, from a guest that continues whatever they cause. */
#ifndef VGPU_EXERCISE_FUZZ_H
#define VGPU_EXERCISE_FUZZ_H

#include <stdbool.h>
#include <stdint.h>

#include "transport.h"

/*
 * Runs for @duration_ns, with a reset after each error and at random. The device writes only
 * completions to guest memory. Exit status: EXIT_WRONG when a call returned an answer that
 * it must not, or the device did not work afterwards.
 */
int fuzz_run(struct transport *transport, uint64_t duration_ns, uint64_t seed,
	     bool json);

#endif
