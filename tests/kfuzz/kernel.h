/* SPDX-License-Identifier: GPL-2.0 */
/*
 * As much of the kernel as the module's files need to run in a process, without
 * parallelism: kernel threads are coroutines that change places where a kernel
 * could preempt or sleep, time is a counter, and every misuse that lockdep, KASAN
 * or the atomic-sleep check would report ends the process.
 *
 * Every <linux/...> header that a file of the module names is this one (build.py).
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

#define KERNEL_VERSION(a, b, c) ((a) << 16 | (b) << 8 | (c))
#define LINUX_VERSION_CODE KERNEL_VERSION(6, 12, 0)
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

#define S32_MAX INT32_MAX
#define S64_MAX INT64_MAX
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
#define smp_store_release(p, value) __atomic_store_n(p, value, __ATOMIC_RELEASE)
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
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

#define isascii(c) (!((c) & ~0x7f))
#define isalnum(c) (((c) | 32) - 'a' < 26u || (c) - '0' < 10u)

static inline void *ERR_PTR(long error) { return (void *)error; }
static inline long PTR_ERR(const void *p) { return (long)p; }
static inline bool IS_ERR(const void *p) { return (unsigned long)p >= (unsigned long)-4095L; }
static inline bool IS_ERR_OR_NULL(const void *p) { return !p || IS_ERR(p); }
static inline long PTR_ERR_OR_ZERO(const void *p) { return IS_ERR(p) ? PTR_ERR(p) : 0; }
static inline void *ERR_CAST(const void *p) { return (void *)p; }

u32 __crc32c_le(u32 crc, const void *data, size_t bytes);

/* ---- the module, log, trace */

struct module;
#define THIS_MODULE ((struct module *)0)
#define KBUILD_MODNAME "vgpumgr"
#define MODULE_PARM_DESC(name, text) struct kfuzz_unused
#define module_param_named(name, variable, type, mode) struct kfuzz_unused
#define module_param(name, type, mode) struct kfuzz_unused
#define EXPORT_SYMBOL_GPL(name) struct kfuzz_unused

#define dev_notice(device, ...) ((void)(device))
#define dev_warn_ratelimited(device, ...) ((void)(device))
#define dev_info_ratelimited(device, ...) ((void)(device))
#define dev_warn(device, ...) ((void)(device))
#define dev_info(device, ...) ((void)(device))
#define dev_err(device, ...) ((void)(device))
#define pr_warn_ratelimited(...) ((void)0)

#define TP_PROTO(...) __VA_ARGS__
#define TRACE_EVENT(name, proto, ...) static inline void trace_##name(proto) { }
#define DECLARE_EVENT_CLASS(name, ...) struct kfuzz_unused
#define DEFINE_EVENT(class, name, proto, ...) static inline void trace_##name(proto) { }
#define trace_printk(...) ((void)0)

/* ---- lists */

struct list_head { struct list_head *next, *prev; };
struct llist_node { struct llist_node *next; };
struct llist_head { struct llist_node *first; };

#define LIST_HEAD_INIT(name) { &(name), &(name) }
#define LIST_HEAD(name) struct list_head name = LIST_HEAD_INIT(name)
#define LLIST_HEAD(name) struct llist_head name = { NULL }
#define list_entry(p, type, member) container_of(p, type, member)
#define list_first_entry(head, type, member) \
	({ REQUIRE(!list_empty(head)); list_entry((head)->next, type, member); })
#define list_first_entry_or_null(head, type, member) \
	(list_empty(head) ? NULL : list_entry((head)->next, type, member))
#define list_for_each_entry(p, head, member) \
	for (p = list_entry((head)->next, __typeof__(*p), member); &p->member != (head); \
	     p = list_entry(p->member.next, __typeof__(*p), member))
#define list_for_each_entry_safe(p, n, head, member) \
	for (p = list_entry((head)->next, __typeof__(*p), member), \
	     n = list_entry(p->member.next, __typeof__(*p), member); &p->member != (head); \
	     p = n, n = list_entry(n->member.next, __typeof__(*n), member))
#define llist_for_each_entry_safe(p, n, first, member) \
	for (struct llist_node *at_ = (first), *next_; \
	     at_ && (next_ = at_->next, p = container_of(at_, __typeof__(*p), member), n = p); \
	     at_ = next_)

static inline void INIT_LIST_HEAD(struct list_head *head) { head->next = head->prev = head; }
static inline bool list_empty(const struct list_head *head) { return head->next == head; }
static inline bool list_is_singular(const struct list_head *head)
{
	return !list_empty(head) && head->next == head->prev;
}

static inline void list_link(struct list_head *node, struct list_head *prev,
			     struct list_head *next)
{
	REQUIRE(prev->next == next && next->prev == prev);
	node->prev = prev;
	node->next = next;
	prev->next = node;
	next->prev = node;
}

static inline void list_add_tail(struct list_head *node, struct list_head *head)
{
	list_link(node, head->prev, head);
}

static inline void list_add(struct list_head *node, struct list_head *head)
{
	list_link(node, head, head->next);
}

static inline void list_unlink(struct list_head *node)
{
	REQUIRE(node->prev->next == node && node->next->prev == node);
	node->prev->next = node->next;
	node->next->prev = node->prev;
}

static inline void list_del(struct list_head *node)
{
	list_unlink(node);
	node->next = node->prev = NULL;
}

static inline void list_del_init(struct list_head *node)
{
	list_unlink(node);
	INIT_LIST_HEAD(node);
}

static inline void list_move_tail(struct list_head *node, struct list_head *head)
{
	list_unlink(node);
	list_add_tail(node, head);
}

static inline void list_splice_init(struct list_head *from, struct list_head *to)
{
	if (list_empty(from))
		return;
	from->next->prev = to;
	from->prev->next = to->next;
	to->next->prev = from->prev;
	to->next = from->next;
	INIT_LIST_HEAD(from);
}

static inline void list_splice_tail_init(struct list_head *from, struct list_head *to)
{
	if (list_empty(from))
		return;
	from->next->prev = to->prev;
	from->prev->next = to;
	to->prev->next = from->next;
	to->prev = from->prev;
	INIT_LIST_HEAD(from);
}

static inline bool llist_add(struct llist_node *node, struct llist_head *head)
{
	node->next = head->first;
	head->first = node;
	return !node->next;
}

static inline struct llist_node *llist_del_all(struct llist_head *head)
{
	struct llist_node *first = head->first;

	head->first = NULL;
	return first;
}

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
#define atomic64_read(a) ((a)->counter)

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

/* ---- locks: nobody is preempted while holding a spinlock */

typedef struct { bool held; } spinlock_t;
struct mutex { struct task_struct *owner; };
typedef struct { int unused; } wait_queue_head_t;

void spin_lock_init(spinlock_t *lock);
void spin_lock(spinlock_t *lock);
void spin_unlock(spinlock_t *lock);
#define spin_lock_irq(lock) spin_lock(lock)
#define spin_unlock_irq(lock) spin_unlock(lock)
#define spin_lock_irqsave(lock, flags) ((void)((flags) = 0), spin_lock(lock))
#define spin_unlock_irqrestore(lock, flags) ((void)(flags), spin_unlock(lock))

void mutex_init(struct mutex *lock);
void mutex_destroy(struct mutex *lock);
void mutex_lock(struct mutex *lock);
#define mutex_lock_interruptible(lock) (mutex_lock(lock), 0)
#define mutex_lock_killable(lock) (mutex_lock(lock), 0)
void mutex_unlock(struct mutex *lock);
bool kfuzz_spinlock_held(const spinlock_t *lock);
bool kfuzz_mutex_held(const struct mutex *lock);
#define lockdep_assert_held(lock) \
	REQUIRE(_Generic((lock), spinlock_t *: kfuzz_spinlock_held((const void *)(lock)), \
			 struct mutex *: kfuzz_mutex_held((const void *)(lock)), default: true))
void might_sleep(void);

#define rcu_read_lock() ((void)0)
#define rcu_read_unlock() ((void)0)
#define synchronize_rcu() ((void)0)
#define DECLARE_WAIT_QUEUE_HEAD(name) wait_queue_head_t name
#define init_waitqueue_head(head) ((void)(head))
#define wake_up(head) ((void)(head))
#define wake_up_all(head) ((void)(head))
#define wait_event(head, condition) \
	do { \
		(void)(head); \
		while (!(condition)) \
			kfuzz_wait(); \
	} while (0)
void kfuzz_wait(void);	/* let the others run until something happens */

/* ---- tasks and time */

struct mm_struct;
struct mem_cgroup;

struct task_struct {
	int pid;
	char comm[16];
	struct mm_struct *mm;
	struct kfuzz_coroutine *coroutine;
};

#define TASK_RUNNING 0
#define TASK_IDLE 1
#define TASK_INTERRUPTIBLE 1
#define TASK_UNINTERRUPTIBLE 1
#define SIGKILL 9
#define MIN_NICE (-20)
#define HRTIMER_MODE_ABS 0

extern struct task_struct *current;
struct task_struct *kfuzz_thread_create(int (*run)(void *data), void *data);
#define kthread_create(run, data, ...) kfuzz_thread_create(run, data)
#define kthread_run(run, data, ...) \
	({ struct task_struct *task_ = kfuzz_thread_create(run, data); \
	   if (!IS_ERR(task_)) \
		wake_up_process(task_); \
	   task_; })
int wake_up_process(struct task_struct *task);
int kthread_stop(struct task_struct *task);
bool kthread_should_stop(void);
void set_current_state(int state);
#define __set_current_state(state) set_current_state(state)
void schedule(void);
int schedule_hrtimeout_range(ktime_t *until, u64 slack, int mode);
long schedule_timeout_killable(long ticks);
#define schedule_timeout_idle(ticks) schedule_timeout_killable(ticks)
#define schedule_timeout_uninterruptible(ticks) schedule_timeout_killable(ticks)
void cond_resched(void);
void send_sig(int number, struct task_struct *task, int privileged);
bool signal_pending(struct task_struct *task);
#define fatal_signal_pending(task) signal_pending(task)
void flush_signals(struct task_struct *task);
#define allow_kernel_signal(number) ((void)0)
#define sched_set_fifo_low(task) ((void)(task))
#define sched_set_normal(task, nice) ((void)(task))

u64 ktime_get_ns(void);
#define ns_to_ktime(ns) ((ktime_t)(ns))
#define jiffies ((unsigned long)(ktime_get_ns() / (NSEC_PER_SEC / HZ)))
#define msecs_to_jiffies(ms) ((unsigned long)DIV_ROUND_UP((ms) * HZ, 1000))
#define time_before(a, b) ((long)((a) - (b)) < 0)
#define time_after(a, b) time_before(b, a)

struct completion { bool done; };

#define init_completion(completion) ((completion)->done = false)
#define reinit_completion(completion) ((completion)->done = false)
#define complete_all(completion) ((completion)->done = true)
long wait_for_completion_killable_timeout(struct completion *completion, unsigned long ticks);
#define wait_for_completion_timeout(completion, ticks) \
	wait_for_completion_killable_timeout(completion, ticks)

struct timer_list {
	void (*run)(struct timer_list *timer);
	u64 expires_ns;
	struct timer_list *next;	/* of those that are armed */
	bool armed;
};

void timer_setup(struct timer_list *timer, void (*run)(struct timer_list *timer), int flags);
void mod_timer(struct timer_list *timer, unsigned long expires);
int timer_delete_sync(struct timer_list *timer);
#define timer_shutdown_sync(timer) timer_delete_sync(timer)

struct work_struct { void (*run)(struct work_struct *work); bool pending; };
struct delayed_work { struct work_struct work; };
struct workqueue_struct { int unused; };
#define TASK_COMM_LEN 16
#define WQ_UNBOUND 0
#define DECLARE_WORK(name, function) struct work_struct name = { .run = (function) }
#define INIT_WORK(work, function) (*(work) = (struct work_struct){ .run = (function) })
struct workqueue_struct *alloc_workqueue(const char *name, int flags, int active);
void destroy_workqueue(struct workqueue_struct *queue);
bool queue_work(struct workqueue_struct *queue, struct work_struct *work);

/* ---- memory; every allocation may fail */

void *kfuzz_alloc(size_t bytes, gfp_t flags);
void kfree(const void *memory);
#define kzalloc(bytes, flags) kfuzz_alloc(bytes, flags)
#define kmalloc(bytes, flags) kfuzz_alloc(bytes, flags)
#define kcalloc(n, bytes, flags) kfuzz_alloc((n) * (bytes), flags)
#define kvmalloc(bytes, flags) kfuzz_alloc(bytes, flags)
#define kvzalloc(bytes, flags) kfuzz_alloc(bytes, flags)
#define __vmalloc(bytes, flags) kfuzz_alloc(bytes, flags)
#define kvfree(memory) kfree(memory)
#define vfree(memory) kfree(memory)
#define kvfree_sensitive(memory, bytes) kfree(memory)
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

/* ---- devices: mdev and VFIO */

typedef struct { u8 b[16]; } guid_t;
#define UUID_STRING_LEN 36

struct attribute_group;
struct device { void *driver_data; const char *name; int refs; };
struct device_driver {
	const char *name;
	struct module *owner;
	const char *mod_name;
	const struct attribute_group **dev_groups;
};

struct pci_dev { struct device dev; };
struct mdev_parent { struct device *dev; };
struct mdev_type {
	const char *sysfs_name, *pretty_name;
	struct mdev_parent *parent;
};

struct mdev_device {
	struct device dev;
	guid_t uuid;
	struct mdev_type *type;
};

struct mdev_driver {
	const char *device_api;
	struct device_driver driver;
	int (*probe)(struct mdev_device *mdev);
	void (*remove)(struct mdev_device *mdev);
	unsigned int (*get_available)(struct mdev_type *type);
	ssize_t (*show_description)(struct mdev_type *type, char *text);
};

#define to_mdev_device(device) container_of(device, struct mdev_device, dev)
#define mdev_register_driver(driver) ((void)(driver), 0)
#define mdev_unregister_driver(driver) ((void)(driver))
#define dev_set_drvdata(device, data) ((void)((device)->driver_data = (data)))
#define dev_get_drvdata(device) ((device)->driver_data)
#define dev_name(device) ((device)->name)
#define sysfs_emit(text, ...) ((ssize_t)sprintf(text, __VA_ARGS__))

struct file;
struct iommufd_ctx;
struct vfio_device;
struct vfio_device_ops {
	const char *name;
	int (*init)(struct vfio_device *vdev);
	void (*release)(struct vfio_device *vdev);
	int (*open_device)(struct vfio_device *vdev);
	void (*close_device)(struct vfio_device *vdev);
	ssize_t (*read)(struct vfio_device *vdev, char *buffer, size_t count, loff_t *position);
	ssize_t (*write)(struct vfio_device *vdev, const char *buffer, size_t count,
			 loff_t *position);
	long (*ioctl)(struct vfio_device *vdev, unsigned int command, unsigned long arg);
	void (*request)(struct vfio_device *vdev, unsigned int count);
	void (*dma_unmap)(struct vfio_device *vdev, u64 iova, u64 length);
	int (*get_region_info_caps)(struct vfio_device *vdev, struct vfio_region_info *info,
				    void *caps);
};

struct vfio_migration_ops;
struct vfio_device {
	struct device *dev;
	const struct vfio_device_ops *ops;
	const struct vfio_migration_ops *mig_ops;
	unsigned int migration_flags;
	struct device device;
};

/* ---- files that a driver gives to user space, and migration */

struct inode;
struct file_operations {
	struct module *owner;
	ssize_t (*read)(struct file *file, char *buffer, size_t count, loff_t *position);
	ssize_t (*write)(struct file *file, const char *buffer, size_t count, loff_t *position);
	int (*release)(struct inode *inode, struct file *file);
};

struct file {
	const struct file_operations *f_op;
	void *private_data;
	struct inode *f_inode;
	int refs;
};

struct file *anon_inode_getfile(const char *name, const struct file_operations *ops, void *data,
				int flags);
struct file *get_file(struct file *file);
void fput(struct file *file);
#define stream_open(inode, file) ((void)(inode))
#define O_RDONLY 0
#define O_WRONLY 1
void get_device(struct device *device);
void put_device(struct device *device);	/* of a vfio_device */

struct vfio_migration_ops {
	struct file *(*migration_set_state)(struct vfio_device *vdev,
					    enum vfio_device_mig_state state);
	int (*migration_get_state)(struct vfio_device *vdev, enum vfio_device_mig_state *state);
	int (*migration_get_data_size)(struct vfio_device *vdev, unsigned long *bytes);
};

#define VGPU_MIGRATION_SIZE_OP(function) .migration_get_data_size = function,
int vfio_mig_get_next_state(struct vfio_device *vdev, enum vfio_device_mig_state now,
			    enum vfio_device_mig_state wanted, enum vfio_device_mig_state *next);

#define VFIO_DEVICE_API_PCI_STRING "vfio-pci"
#define VGPU_IOMMUFD_OPS
#define vgpu_vfio_free_device(vdev) ((void)(vdev))
#define vfio_alloc_device(type, member, device, operations) \
	((struct type *)kfuzz_vfio_alloc(sizeof(struct type), offsetof(struct type, member), \
					 device, operations))
struct vfio_device *kfuzz_vfio_alloc(size_t bytes, size_t member, struct device *device,
				     const struct vfio_device_ops *ops);
void vfio_put_device(struct vfio_device *vdev);
int vfio_register_emulated_iommu_dev(struct vfio_device *vdev);
void vfio_unregister_group_dev(struct vfio_device *vdev);
int vfio_set_irqs_validate_and_prepare(struct vfio_irq_set *set, int irqs, int most,
				       size_t *bytes);
int vfio_dma_rw(struct vfio_device *vdev, dma_addr_t guest, void *data, size_t bytes,
		bool write);

#endif /* KFUZZ_KERNEL_H */
