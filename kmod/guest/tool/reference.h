/* SPDX-License-Identifier: GPL-2.0 */
/* Data for items, and the results of operations, computed on the CPU. */
#ifndef VGPU_TOOL_REFERENCE_H
#define VGPU_TOOL_REFERENCE_H

#include <stddef.h>
#include <stdint.h>

/* Repeatable data: the 32-bit words of a splitmix64 sequence. */
void reference_random(void *into, size_t bytes, uint64_t seed);

/* C = A * B modulo 2^32, row-major. */
void reference_gemm(uint32_t *c, const uint32_t *a, const uint32_t *b, uint32_t m,
		    uint32_t n, uint32_t k);

/* n! modulo 2^32 */
uint32_t reference_factorial(uint32_t n);

#endif
