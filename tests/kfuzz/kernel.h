/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The part of the kernel that the module's files need to run in a process, without parallelism.
 * Kernel threads are coroutines that switch where a kernel could preempt or sleep, time is a
 * counter, and every misuse that lockdep, KASAN or the atomic-sleep check would report ends the
 * process.
 *
 * Every <linux/...> header that a file of the module includes leads to this one (build.py).
 */
#ifndef KFUZZ_KERNEL_H
#define KFUZZ_KERNEL_H

#include <errno.h>
#include <limits.h>
#include <linux/const.h>
#include <linux/types.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include <linux/pci_regs.h>
#include <linux/vfio.h>

#include "sched/port.h"

/* Its words are plain in a kernel, and here. */
#define __KERNEL__
#include "uapi/vgpu_lease_page.h"
#undef __KERNEL__

/* ---- what went wrong */

#define REQUIRE(condition) \
	do { \
		if (!(condition)) \
			kfuzz_broken(__FILE__, __LINE__, #condition); \
	} while (0)
_Noreturn void kfuzz_broken(const char *file, int line, const char *what);

/* ---- types, words, numbers */

#define ERESTARTSYS 512

typedef uint16_t u16;
typedef int32_t s32;
typedef u64 dma_addr_t;
typedef unsigned int gfp_t;
typedef s64 ktime_t;

#define __user
#define __init
#define __exit
#define __iomem
#define __releases(lock)
#define __acquires(lock)
#define __must_hold(lock)
#define fallthrough __attribute__((__fallthrough__))
#define __maybe_unused __attribute__((__unused__))
#define noinline __attribute__((__noinline__))

#define GFP_KERNEL		1u
#define GFP_KERNEL_ACCOUNT	1u
#define GFP_ATOMIC		2u
#define GFP_NOWAIT		2u
#define __GFP_NOWARN		4u
#define __GFP_ZERO		8u
#define __GFP_ACCOUNT		16u

#define S32_MAX INT32_MAX
#define S64_MAX INT64_MAX
#define KTIME_MAX S64_MAX
#define NSEC_PER_USEC 1000L
#define NSEC_PER_MSEC 1000000L
#define NSEC_PER_SEC 1000000000L
#define USEC_PER_MSEC 1000L
#define MSEC_PER_SEC 1000L
#define HZ 250

#define READ_ONCE(x) (*(const volatile __typeof__(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile __typeof__(x) *)&(x) = (value))
#define xchg(pointer, value) __atomic_exchange_n(pointer, value, __ATOMIC_SEQ_CST)
#define smp_load_acquire(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define smp_mb() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define smp_store_release(p, value) __atomic_store_n(p, value, __ATOMIC_RELEASE)
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define array_index_nospec(index, size) (index)
#define BIT(n) (1UL << (n))
#define BIT_ULL(n) (1ULL << (n))
#define GENMASK(high, low) ((~0UL >> (63 - (high))) & (~0UL << (low)))
#define IS_ALIGNED(x, a) (!((x) & ((__typeof__(x))(a) - 1)))
#define DIV_ROUND_UP(a, b) (((a) + (b) - 1) / (b))
#define DIV_ROUND_UP_ULL(a, b) (((u64)(a) + (b) - 1) / (b))
#define div_u64(a, b) ((u64)(a) / (b))
#define min3(a, b, c) min(min(a, b), c)
#define clamp_t(type, x, low, high) min_t(type, max_t(type, x, low), high)
#define clamp(x, low, high) min(max(x, low), high)
#define max_t(type, a, b) max((type)(a), (type)(b))
#define lower_32_bits(x) ((u32)(x))
#define upper_32_bits(x) ((u32)((u64)(x) >> 32))
#define check_add_overflow(a, b, sum) __builtin_add_overflow(a, b, sum)
#define check_mul_overflow(a, b, product) __builtin_mul_overflow(a, b, product)
#define struct_size(p, member, n) (sizeof(*(p)) + (n) * sizeof(*(p)->member))
#define offsetofend(type, member) (offsetof(type, member) + sizeof(((type *)0)->member))
#define BUILD_BUG_ON(condition) _Static_assert(!(condition), #condition)
#define static_assert _Static_assert
#define unlikely(x) (x)
#define likely(x) (x)
#define WARN_ON(condition) ({ bool bad_ = (condition); REQUIRE(!bad_); bad_; })
#define WARN_ON_ONCE(condition) WARN_ON(condition)

#define le16_to_cpu(x) ((u16)(x))
#define le32_to_cpu(x) ((u32)(x))
#define le64_to_cpu(x) ((u64)(x))
#define cpu_to_le16(x) ((__le16)(x))
#define cpu_to_le32(x) ((__le32)(x))
#define cpu_to_le64(x) ((__le64)(x))

static inline bool is_power_of_2(u64 x)
{
	return x && !(x & (x - 1));
}

static inline u32 get_unaligned_le32(const void *p)
{
	u32 value;

	memcpy(&value, p, sizeof(value));
	return value;
}

static inline void put_unaligned_le32(u32 value, void *p)
{
	memcpy(p, &value, sizeof(value));
}

static inline void memset32(u32 *to, u32 value, size_t count)
{
	while (count--)
		*to++ = value;
}

static inline ssize_t strscpy(char *to, const char *from, size_t size)
{
	return snprintf(to, size, "%s", from);
}

static inline ssize_t strscpy_pad(char *to, const char *from, size_t size)
{
	memset(to, 0, size);
	return strscpy(to, from, size);
}

#define isascii(c) (!((c) & ~0x7f))
#define isalnum(c) (((c) | 32) - 'a' < 26u || (c) - '0' < 10u)

static inline void *ERR_PTR(long error) { return (void *)error; }
static inline long PTR_ERR(const void *p) { return (long)p; }
#define swap(a, b) do { typeof(a) was_a = (a); (a) = (b); (b) = was_a; } while (0)
static inline bool IS_ERR(const void *p) { return (unsigned long)p >= (unsigned long)-4095L; }
static inline bool IS_ERR_OR_NULL(const void *p) { return !p || IS_ERR(p); }
static inline long PTR_ERR_OR_ZERO(const void *p) { return IS_ERR(p) ? PTR_ERR(p) : 0; }
static inline void *ERR_CAST(const void *p) { return (void *)p; }

u32 vgpu_crc32c(u32 crc, const void *data, size_t bytes);

/* ---- the module, log, trace */

struct module;
#define THIS_MODULE ((struct module *)0)
#define KBUILD_MODNAME "vgpumgr"
#define MODULE_PARM_DESC(name, text) struct kfuzz_unused
#define module_param_cb(name, ops, argument, mode) struct kfuzz_unused
#define EXPORT_SYMBOL_GPL(name) struct kfuzz_unused

#define dev_notice(device, ...) ((void)(device))
void kfuzz_tell(const char *format, ...);
#define dev_info_ratelimited(device, ...) ((void)(device))
#define dev_warn(device, ...) ((void)(device), kfuzz_tell(__VA_ARGS__))
#define dev_info(device, ...) ((void)(device))
#define dev_err(device, ...) ((void)(device))
#define pr_warn(...) kfuzz_tell(__VA_ARGS__)

struct ratelimit_state { u32 told; };
#define RATELIMIT_MSG_ON_RELEASE 1
#define DEFINE_RATELIMIT_STATE(name, interval, burst) struct ratelimit_state name
#define ratelimit_default_init(log) ((void)(log))
#define ratelimit_set_flags(log, flags) ((void)(log))
#define __ratelimit(log) (++(log)->told > 0)	/* all of it */

#define TP_PROTO(...) __VA_ARGS__
#define TRACE_EVENT(name, proto, ...) static inline void trace_##name(proto) { }
#define DECLARE_EVENT_CLASS(name, ...) struct kfuzz_unused
#define DEFINE_EVENT(class, name, proto, ...) static inline void trace_##name(proto) { }
#define trace_printk(...) ((void)0)

#include "list.h"

/* ---- counting */

struct kref { int count; };
typedef struct { int counter; } atomic_t;
typedef struct { s64 counter; } atomic64_t;

#define ATOMIC_INIT(n) { n }
#define ATOMIC64_INIT(n) { n }
#define atomic_read(a) ((a)->counter)
#define atomic_set(a, n) ((a)->counter = (n))
#define atomic_inc(a) ((void)(a)->counter++)
#define atomic_dec(a) ((void)(a)->counter--)
#define atomic_add(n, a) ((void)((a)->counter += (n)))
#define atomic_inc_return(a) (++(a)->counter)
#define atomic_dec_and_test(a) (!--(a)->counter)
#define atomic64_inc_return(a) (++(a)->counter)
#define atomic64_inc(a) ((void)(a)->counter++)
#define atomic_xchg(a, n) xchg(&(a)->counter, n)
#define atomic64_xchg(a, n) xchg(&(a)->counter, n)
#define atomic64_read(a) ((a)->counter)
#define atomic64_try_cmpxchg(a, old, new) \
	((a)->counter == *(old) ? ((a)->counter = (new), true) : (*(old) = (a)->counter, false))
#define atomic64_set(a, n) ((a)->counter = (n))

static inline void kref_init(struct kref *refs) { refs->count = 1; }

static inline void kref_get(struct kref *refs)
{
	REQUIRE(refs->count > 0);
	refs->count++;
}

static inline int kref_read(const struct kref *refs) { return refs->count; }

static inline int kref_put(struct kref *refs, void (*release)(struct kref *refs))
{
	REQUIRE(refs->count > 0);
	if (--refs->count)
		return 0;
	release(refs);
	return 1;
}

#include "task.h"

/* ---- memory; every allocation may fail */

void *kfuzz_alloc(size_t bytes, gfp_t flags);
void kfree(const void *memory);
void kfree_sensitive(const void *memory);
#define kzalloc(bytes, flags) kfuzz_alloc(bytes, flags)
#define kmalloc(bytes, flags) kfuzz_alloc(bytes, flags)
#define kcalloc(n, bytes, flags) kfuzz_alloc((n) * (bytes), flags)
#define kvmalloc(bytes, flags) kfuzz_alloc(bytes, flags)
#define kvzalloc(bytes, flags) kfuzz_alloc(bytes, flags)
#define __vmalloc(bytes, flags) kfuzz_alloc(bytes, flags)
#define kvfree(memory) kfree(memory)
#define vfree(memory) kfree(memory)
void kvfree_sensitive(const void *memory, size_t bytes);
struct mem_cgroup *get_mem_cgroup_from_mm(struct mm_struct *mm);
void mem_cgroup_put(struct mem_cgroup *group);
#define set_active_memcg(group) ((void)(group))

unsigned long copy_from_user(void *to, const void *from, unsigned long bytes);
unsigned long copy_to_user(void *to, const void *from, unsigned long bytes);
void *memdup_user(const void *from, size_t bytes);

/* ---- eventfds */

struct eventfd_ctx;
struct eventfd_ctx *eventfd_ctx_fdget(int fd);
void eventfd_ctx_put(struct eventfd_ctx *ctx);
void vgpu_eventfd_signal(struct eventfd_ctx *ctx);

#include "files.h"
#include "device.h"
#include "genetlink.h"

#endif /* KFUZZ_KERNEL_H */
