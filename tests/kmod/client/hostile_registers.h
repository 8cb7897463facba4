/* SPDX-License-Identifier: GPL-2.0 */
/* Hostile cases that need the registers, for hostile_run(). */
#ifndef VGPU_CLIENT_HOSTILE_REGISTERS_H
#define VGPU_CLIENT_HOSTILE_REGISTERS_H

#include "hostile.h"

extern const struct hostile_case hostile_registers[];
extern const size_t hostile_register_count;

#endif
