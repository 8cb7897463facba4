/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Everything the scheduler core takes from its surroundings.  No other file of
 * kmod/sched/ includes a header from outside this directory, with one
 * exception: vgpu_arbiter.h includes uapi/vgpu_lease_page.h, the interface to
 * children.
 */
#ifndef VGPU_SCHED_PORT_H
#define VGPU_SCHED_PORT_H

#ifdef __KERNEL__

#include <linux/bitops.h>
#include <linux/container_of.h>
#include <linux/limits.h>
#include <linux/log2.h>
#include <linux/math64.h>
#include <linux/minmax.h>
#include <linux/overflow.h>
#include <linux/string.h>
#include <linux/types.h>

#else

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t s64;

#define U32_MAX UINT32_MAX
#define U64_MAX UINT64_MAX

#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define min_t(type, a, b) min((type)(a), (type)(b))
#define container_of(ptr, type, member) \
	((type *)((char *)(ptr) - offsetof(type, member)))

#define check_mul_overflow(a, b, product) __builtin_mul_overflow(a, b, product)

static inline u64 div64_u64(u64 a, u64 b) { return a / b; }
static inline s64 div64_s64(s64 a, s64 b) { return a / b; }
static inline u64 div64_u64_rem(u64 a, u64 b, u64 *rem) { *rem = a % b; return a / b; }
static inline u64 mul_u64_u64_div_u64(u64 a, u64 b, u64 c)
{
	return (__uint128_t)a * b / c;
}

static inline int ilog2(u64 x) { return 63 - __builtin_clzll(x); }

#endif /* __KERNEL__ */

#endif /* VGPU_SCHED_PORT_H */
