/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The only architecture whose system calls a confined process may make.  On another architecture,
 * the same number means a different call, which a filter that checks only numbers would not notice.
 */
#ifndef VGPU_EXECUTOR_ARCHITECTURE_H
#define VGPU_EXECUTOR_ARCHITECTURE_H

#include <linux/audit.h>

#if defined(__x86_64__)
#define VGPU_SANDBOX_ARCHITECTURE	AUDIT_ARCH_X86_64
/* x32 calls have the same architecture, with this bit set in their numbers. */
#define VGPU_SANDBOX_X32	0x40000000u
#elif defined(__aarch64__)
#define VGPU_SANDBOX_ARCHITECTURE	AUDIT_ARCH_AARCH64
#endif

#endif /* VGPU_EXECUTOR_ARCHITECTURE_H */
