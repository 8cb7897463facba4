/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VGPU_TOOL_CRC32C_H
#define VGPU_TOOL_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* CRC-32C (Castagnoli, reflected, initial value and final inversion ~0). */
uint32_t crc32c(const void *data, size_t bytes);

#endif
