/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one architecture whose system calls a confined process may make.  A filter that
 * looks at numbers alone would take another architecture's call for a different one.
 */
#ifndef VGPU_EXECUTOR_ARCHITECTURE_H
#define VGPU_EXECUTOR_ARCHITECTURE_H

#include <linux/audit.h>

#if defined(__x86_64__)
#define VGPU_SANDBOX_ARCHITECTURE	AUDIT_ARCH_X86_64
/* The calls of x32 have the same architecture, and this bit in their numbers. */
#define VGPU_SANDBOX_X32	0x40000000u
#elif defined(__aarch64__)
#define VGPU_SANDBOX_ARCHITECTURE	AUDIT_ARCH_AARCH64
#endif

#endif /* VGPU_EXECUTOR_ARCHITECTURE_H */
