// SPDX-License-Identifier: GPL-2.0
#include "reference.h"

#include <endian.h>
#include <string.h>

void reference_random(void *into, size_t bytes, uint64_t seed)
{
	uint8_t *at = into;

	while (bytes) {
		size_t part = bytes < 8 ? bytes : 8;
		uint64_t mixed = seed += 0x9e3779b97f4a7c15ull;

		mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
		mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
		mixed = htole64(mixed ^ mixed >> 31);
		memcpy(at, &mixed, part);
		at += part;
		bytes -= part;
	}
}

void reference_gemm(uint32_t *c, const uint32_t *a, const uint32_t *b, uint32_t m,
		    uint32_t n, uint32_t k)
{
	memset(c, 0, sizeof(*c) * m * n);
	for (uint32_t row = 0; row < m; row++)
		for (uint32_t inner = 0; inner < k; inner++) {
			uint32_t left = le32toh(a[row * k + inner]);

			for (uint32_t column = 0; column < n; column++)
				c[row * n + column] +=
					left * le32toh(b[inner * n + column]);
		}
	for (uint32_t i = 0; i < m * n; i++)
		c[i] = htole32(c[i]);
}

uint32_t reference_factorial(uint32_t n)
{
	uint32_t product = 1;

	/* 34! and all that follow are multiples of 2^32 */
	for (uint32_t factor = 2; factor <= n && product; factor++)
		product *= factor;
	return product;
}
