/* SPDX-License-Identifier: GPL-2.0 */
/* Locks, threads, time, timers and deferred work, simulated by threads.c. */
#ifndef KFUZZ_TASK_H
#define KFUZZ_TASK_H

/* If an interruptible thread held a lock that an interrupt wants, the lock would never be free. */
typedef struct { bool held, interruptible, interrupts; } spinlock_t;
struct mutex { struct task_struct *owner; };
typedef struct { u64 woken; } wait_queue_head_t;

void spin_lock_init(spinlock_t *lock);
void spin_lock(spinlock_t *lock);
void spin_unlock(spinlock_t *lock);
void spin_lock_irq(spinlock_t *lock);
void spin_unlock_irq(spinlock_t *lock);
#define spin_lock_irqsave(lock, flags) ((flags) = kfuzz_irqs_off(), spin_lock(lock))
#define spin_unlock_irqrestore(lock, flags) kfuzz_spin_unlock(lock, flags)
bool kfuzz_irqs_off(void);	/* returns whether they were off already */
void kfuzz_spin_unlock(spinlock_t *lock, bool irqs_off);

#define DEFINE_MUTEX(name) struct mutex name
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

/* The holder of @lock is not preempted, so there is no reader during a write. */

#define rcu_read_lock() ((void)0)
#define rcu_read_unlock() ((void)0)
#define synchronize_rcu() ((void)0)
#define synchronize_rcu_tasks() ((void)0)
#define DECLARE_WAIT_QUEUE_HEAD(name) wait_queue_head_t name
#define init_waitqueue_head(head) (*(head) = (wait_queue_head_t){})
#define wake_up(head) ((void)(head))
#define wait_event(head, condition) \
	do { \
		(void)(head); \
		while (!(condition)) \
			kfuzz_wait(); \
	} while (0)
/* A sleeping thread is woken, or has a signal. */
#define wait_event_interruptible(head, condition) \
	({ \
		int error_ = 0; \
		u64 woken_ = (head).woken; \
		might_sleep(); \
		while (!(condition) && !error_) { \
			error_ = kfuzz_sleep_on(&(head), woken_); \
			woken_ = (head).woken; \
		} \
		error_; \
	})
int kfuzz_sleep_on(const wait_queue_head_t *head, u64 woken);	/* if not woken since */
void wake_up_interruptible(wait_queue_head_t *head);
void kfuzz_wait(void);	/* run the others until something happens */

/* ---- tasks and time */

struct mm_struct;
struct mem_cgroup;

struct task_struct {
	int pid;
	char comm[16];
	unsigned int policy, rt_priority;
	unsigned long nivcsw;
	struct { u64 sum_exec_runtime; } se;
	struct mm_struct *mm;
	struct pid *tgid;
	const void *user_memory;	/* the memory that its system call may access */
	size_t user_bytes;
	char told[128];			/* the log's last refusal since then */
	struct kfuzz_coroutine *coroutine;
};

#define TASK_RUNNING 0
#define TASK_IDLE 2
#define TASK_INTERRUPTIBLE 1
#define TASK_UNINTERRUPTIBLE 1
#define SIGKILL 9
#define MIN_NICE (-20)
#define num_online_cpus() 2u

/* For a thread group; the program decides which one is current. */
struct pid { int refs; bool killed; };
#define task_tgid(task) ((task)->tgid)
struct pid *get_pid(struct pid *pid);
void put_pid(struct pid *pid);
int kill_pid(struct pid *pid, int number, int privileged);

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
int cgroup_attach_task_all(struct task_struct *from, struct task_struct *task);
#define fatal_signal_pending(task) signal_pending(task)
void flush_signals(struct task_struct *task);
#define allow_kernel_signal(number) ((void)0)
/* For the engine's thread; the priority of a worker changes nothing. */
void kfuzz_set_waits(struct task_struct *task, bool waits);
#define sched_set_fifo(task) kfuzz_set_waits(task, true)
#define sched_set_fifo_low(task) kfuzz_set_waits(task, false)
void sched_set_normal(struct task_struct *task, int nice);
bool sim_is_realtime(void);	/* such a worker keeps the processor from all others */
bool single_task_running(void);
#define cpu_relax() sim_maybe_preempt()
void sim_maybe_preempt(void);

enum { SCHED_NORMAL, SCHED_FIFO, SCHED_RR, SCHED_DEADLINE = 6 };
#define MAX_RT_PRIO 100
struct sched_attr {
	u32 size, sched_policy, sched_priority;
	s32 sched_nice;
};
#define task_nice(task) ((void)(task), 0)
int sched_setattr_nocheck(struct task_struct *task, const struct sched_attr *attr);

u64 ktime_get_ns(void);
#define ktime_get_real_ns() ktime_get_ns()
#define ns_to_ktime(ns) ((ktime_t)(ns))
#define jiffies ((unsigned long)(ktime_get_ns() / (NSEC_PER_SEC / HZ)))
#define nsecs_to_jiffies(ns) ((unsigned long)((ns) / (NSEC_PER_SEC / HZ)))
#define msecs_to_jiffies(ms) ((unsigned long)DIV_ROUND_UP((ms) * HZ, 1000))
#define time_before(a, b) ((long)((a) - (b)) < 0)
#define time_after(a, b) time_before(b, a)

struct completion { bool done; };

#define init_completion(completion) ((completion)->done = false)
#define reinit_completion(completion) ((completion)->done = false)
#define complete_all(completion) ((completion)->done = true)
#define complete(completion) complete_all(completion)
void wait_for_completion(struct completion *completion);
long wait_for_completion_killable_timeout(struct completion *completion, unsigned long ticks);
#define wait_for_completion_timeout(completion, ticks) \
	wait_for_completion_killable_timeout(completion, ticks)

struct timer_list {
	void (*run)(struct timer_list *timer);
	u64 expires_ns;
	struct timer_list *next;	/* the armed ones */
	bool armed;
};

void timer_setup(struct timer_list *timer, void (*run)(struct timer_list *timer), int flags);
void mod_timer(struct timer_list *timer, unsigned long expires);
int timer_delete_sync(struct timer_list *timer);
#define timer_shutdown_sync(timer) timer_delete_sync(timer)

/* Fires in an interrupt, wherever one is possible. */
enum hrtimer_restart { HRTIMER_NORESTART };
enum hrtimer_mode { HRTIMER_MODE_ABS };
#define CLOCK_MONOTONIC 1
struct hrtimer {
	enum hrtimer_restart (*function)(struct hrtimer *timer);
	u64 expires_ns;
	struct hrtimer *next;	/* the armed ones */
	bool armed;
};

void vgpu_hrtimer_setup(struct hrtimer *timer,
			enum hrtimer_restart (*function)(struct hrtimer *timer), int clock,
			enum hrtimer_mode mode);
void hrtimer_start(struct hrtimer *timer, ktime_t expires, enum hrtimer_mode mode);
int hrtimer_try_to_cancel(struct hrtimer *timer);
int hrtimer_cancel(struct hrtimer *timer);

struct work_struct {
	void (*run)(struct work_struct *work);
	struct work_struct *next;	/* the pending ones */
	bool pending;
};
struct delayed_work { struct work_struct work; };
struct workqueue_struct { int unused; };
extern struct workqueue_struct *system_wq;
#define schedule_work(work) queue_work(system_wq, work)
#define TASK_COMM_LEN 16
#define WQ_UNBOUND 0
#define WQ_MEM_RECLAIM 0
#define DECLARE_WORK(name, function) struct work_struct name = { .run = (function) }
#define INIT_WORK(work, function) (*(work) = (struct work_struct){ .run = (function) })
struct workqueue_struct *alloc_workqueue(const char *name, int flags, int active);
void destroy_workqueue(struct workqueue_struct *queue);
bool queue_work(struct workqueue_struct *queue, struct work_struct *work);
bool cancel_work_sync(struct work_struct *work);

#endif /* KFUZZ_TASK_H */
