// SPDX-License-Identifier: GPL-2.0
/* CRC-32C with a table. RFC 3720 appendix B.4 has the test values. */
#include "crc32c.h"

#include <pthread.h>

#define POLYNOMIAL 0x82f63b78u

static uint32_t table[256];
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void table_fill(void)
{
	for (uint32_t byte = 0; byte < 256; byte++) {
		uint32_t crc = byte;

		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
		table[byte] = crc;
	}
}

uint32_t crc32c(const void *data, size_t bytes)
{
	const uint8_t *at = data;
	uint32_t crc = ~0u;

	pthread_once(&table_once, table_fill);
	while (bytes--)
		crc = crc >> 8 ^ table[(crc ^ *at++) & 0xff];
	return ~crc;
}
