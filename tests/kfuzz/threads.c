// SPDX-License-Identifier: GPL-2.0
/*
 * Threads as coroutines, time as a counter, and locks that detect misuse. The next
 * thread is chosen wherever a kernel could preempt or sleep.
 */
#include "sim.h"

#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <sys/mman.h>
#include <ucontext.h>

#define THREADS_MAX 64
#define STACK_BYTES (256u << 10)

struct kfuzz_coroutine {
	struct task_struct task;
	ucontext_t context;
	void *stack;
	int (*run)(void *data);
	void *data;
	u64 wake_at_ns;
	void *fake_stack;
	int state;	/* its state once it calls schedule() */
	bool used, started, sleeping, done, should_stop, killed, waits, realtime;
	bool drives;	/* an engine's thread: no other thread changes its priority */
	const wait_queue_head_t *head;	/* it is woken once this counts more than @woken */
	u64 woken;
};

const u8 *sim_input;
size_t sim_input_left;
u64 sim_now_ns;
struct task_struct *current;
const spinlock_t *sim_watched_lock;

static struct kfuzz_coroutine coroutines[THREADS_MAX]; /* the first is the process */
static struct timer_list *timers;
static struct hrtimer *hrtimers;
static struct work_struct *work;
static struct pid process_pid;
static u64 generator, spinlocks, pid_refs;
static struct work_struct *at_work[8];
static unsigned int working;	/* entries of @at_work */
static bool irqs_off, in_interrupt;
static const void *process_stack;
static size_t process_bytes;

_Noreturn void kfuzz_broken(const char *file, int line, const char *what)
{
	fprintf(stderr, "%s:%d: in thread %d: %s\n", file, line,
		current ? current->pid : -1, what);
	abort();
}

/* ---- choices */

void sim_begin(const u8 *input, size_t bytes)
{
	struct kfuzz_coroutine *process = &coroutines[0];

	sim_input = input;
	sim_input_left = bytes;
	generator = 0x9e3779b97f4a7c15ull + bytes;
	for (size_t i = 0; i < bytes && i < 64; i++)
		generator = (generator ^ input[i]) * 0x100000001b3ull;
	process->used = true;
	process->task.coroutine = process;
	process->task.mm = (struct mm_struct *)process;
	process->task.tgid = &process_pid;
	process_pid = (struct pid){ .refs = 1 };
	current = &process->task;
}

u64 sim_random(void)
{
	generator ^= generator << 13;
	generator ^= generator >> 7;
	generator ^= generator << 17;
	return generator * 0x2545f4914f6cdd1dull;
}

u64 sim_below(u64 limit)
{
	u64 value = 0;

	if (!sim_input_left)
		return sim_random() % limit;
	for (u64 most = limit - 1; most && sim_input_left; most >>= 8) {
		value = value << 8 | *sim_input++;
		sim_input_left--;
	}
	return value % limit;
}

/* ---- coroutines */

static void coroutine_enter(void)
{
	struct kfuzz_coroutine *self = current->coroutine;

	/* the first of all is entered from the process's own stack */
	if (process_stack)
		__sanitizer_finish_switch_fiber(NULL, NULL, NULL);
	else
		__sanitizer_finish_switch_fiber(NULL, &process_stack, &process_bytes);
	if (!self->should_stop)
		self->run(self->data);
	REQUIRE(!spinlocks);
	self->done = true;
	for (;;) {
		sim_preempt();
		kfuzz_wait();
	}
}

static void switch_to(struct kfuzz_coroutine *next)
{
	struct kfuzz_coroutine *self = current->coroutine;

	if (next == self)
		return;
	current = &next->task;
	if (next->stack)
		__sanitizer_start_switch_fiber(&self->fake_stack, next->stack, STACK_BYTES);
	else
		__sanitizer_start_switch_fiber(&self->fake_stack, process_stack, process_bytes);
	swapcontext(&self->context, &next->context);
	__sanitizer_finish_switch_fiber(self->fake_stack, NULL, NULL);
}

static bool was_woken(const struct kfuzz_coroutine *coroutine)
{
	return coroutine->head && coroutine->head->woken != coroutine->woken;
}

static bool runnable(const struct kfuzz_coroutine *coroutine)
{
	return coroutine->used && !coroutine->done &&
	       (!coroutine->sleeping || (coroutine->killed && coroutine->state != TASK_IDLE) ||
		coroutine->wake_at_ns <= sim_now_ns || was_woken(coroutine));
}

static struct kfuzz_coroutine *other(void)
{
	unsigned int start = sim_random() % THREADS_MAX;

	for (unsigned int i = 0; i < THREADS_MAX; i++) {
		struct kfuzz_coroutine *found = &coroutines[(start + i) % THREADS_MAX];

		if (found != current->coroutine && runnable(found))
			return found;
	}
	return NULL;
}

/* With interrupts off; its work does not count as that of the interrupted thread. */
static void interrupt(struct hrtimer **at)
{
	struct hrtimer *timer = *at;

	*at = timer->next;
	timer->armed = false;
	irqs_off = in_interrupt = true;
	spinlocks++;
	timer->function(timer);
	spinlocks--;
	irqs_off = in_interrupt = false;
	REQUIRE(!spinlocks);
	sim_counts.interrupts++;
}

static void run_hrtimers(void)
{
	struct hrtimer **at = &hrtimers;

	while (*at) {
		if ((*at)->expires_ns > sim_now_ns) {
			at = &(*at)->next;
			continue;
		}
		interrupt(at);
		at = &hrtimers;
	}
}

void sim_preempt(void)
{
	struct kfuzz_coroutine *next;

	if (spinlocks || irqs_off)
		return;
	if (sim_random() & 3)
		run_hrtimers();
	next = other();
	if (!next)
		return;
	sim_counts.preemptions++;
	current->nivcsw++;
	switch_to(next);
}

void sim_maybe_preempt(void)
{
	if (!(sim_random() & 7))
		sim_preempt();
}

static void run_timers(void)
{
	struct timer_list **at = &timers;

	while (*at) {
		struct timer_list *timer = *at;

		if (timer->expires_ns > sim_now_ns) {
			at = &timer->next;
			continue;
		}
		*at = timer->next;
		timer->armed = false;
		sim_counts.timeouts++;
		timer->run(timer);
		at = &timers;
	}
}

static bool run_work(void)
{
	struct work_struct *now = work;

	if (!now)
		return false;
	work = now->next;
	now->pending = false;
	REQUIRE(working < ARRAY_SIZE(at_work));
	at_work[working++] = now;
	now->run(now);
	/* It may be freed by now, and other work may have begun or ended meanwhile. */
	for (unsigned int i = 0; i < working; i++)
		if (at_work[i] == now) {
			at_work[i] = at_work[--working];
			break;
		}
	return true;
}

static bool is_at_work(const struct work_struct *some)
{
	for (unsigned int i = 0; i < working; i++)
		if (at_work[i] == some)
			return true;
	return false;
}

bool sim_work_is_done(void) { return !work && !working; }

/* No thread can run: the clock jumps to the next event. False if there is none. */
static bool time_passes(void)
{
	u64 next = U64_MAX;

	for (struct timer_list *timer = timers; timer; timer = timer->next)
		next = min(next, timer->expires_ns);
	for (struct hrtimer *timer = hrtimers; timer; timer = timer->next)
		next = min(next, timer->expires_ns);
	for (unsigned int i = 0; i < THREADS_MAX; i++) {
		if (!coroutines[i].used || coroutines[i].done || !coroutines[i].sleeping)
			continue;
		/* A thread that nobody starts would look like a hang. */
		REQUIRE(!i || coroutines[i].started);
		next = min(next, coroutines[i].wake_at_ns);
	}
	if (next == U64_MAX)
		return false;
	sim_now_ns = max(sim_now_ns, next);
	run_timers();
	run_hrtimers();
	return true;
}

/* Wait without sleeping: another thread must bring about the event we wait for. */
void kfuzz_wait(void)
{
	struct kfuzz_coroutine *next;

	might_sleep();
	if (run_work())
		return;
	next = other();
	if (next)
		switch_to(next);
	else
		REQUIRE(time_passes());
}

void schedule(void)
{
	struct kfuzz_coroutine *self = current->coroutine;

	might_sleep();
	self->sleeping = self->state != TASK_RUNNING;
	while (!runnable(self))
		kfuzz_wait();
	self->state = TASK_RUNNING;
	self->sleeping = false;
	self->wake_at_ns = U64_MAX;
}

int schedule_hrtimeout_range(ktime_t *until, u64 slack, int mode)
{
	(void)slack;
	(void)mode;
	current->coroutine->wake_at_ns = *until;
	schedule();
	return 0;
}

long schedule_timeout_killable(long ticks)
{
	set_current_state(TASK_UNINTERRUPTIBLE);
	current->coroutine->wake_at_ns = sim_now_ns + ticks * (NSEC_PER_SEC / HZ);
	schedule();
	return 0;
}

int kfuzz_sleep_on(const wait_queue_head_t *head, u64 woken)
{
	struct kfuzz_coroutine *self = current->coroutine;

	if (self->killed)
		return -ERESTARTSYS;
	set_current_state(TASK_INTERRUPTIBLE);
	self->head = head;
	self->woken = woken;
	schedule();
	self->head = NULL;
	return 0;
}

void wait_for_completion(struct completion *completion)
{
	might_sleep();
	while (!completion->done)
		kfuzz_wait();
}

long wait_for_completion_killable_timeout(struct completion *completion, unsigned long ticks)
{
	u64 until_ns = sim_now_ns + ticks * (NSEC_PER_SEC / HZ);

	while (!completion->done && sim_now_ns < until_ns) {
		set_current_state(TASK_UNINTERRUPTIBLE);
		current->coroutine->wake_at_ns = min(until_ns, sim_now_ns + NSEC_PER_MSEC);
		schedule();
	}
	return completion->done;
}

void sim_sleep(u64 ns)
{
	set_current_state(TASK_IDLE);
	current->coroutine->wake_at_ns = sim_now_ns + ns;
	schedule();
	run_timers();
	run_hrtimers();
}

struct task_struct *kfuzz_thread_create(int (*run)(void *data), void *data)
{
	struct kfuzz_coroutine *new = NULL;
	void *stack;

	might_sleep();
	for (unsigned int i = 1; i < THREADS_MAX && !new; i++)
		if (!coroutines[i].used)
			new = &coroutines[i];
	REQUIRE(new);
	if (sim_fails())
		return ERR_PTR(-ENOMEM);
	stack = new->stack;
	if (!stack)
		stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	REQUIRE(stack != MAP_FAILED);
	*new = (struct kfuzz_coroutine){
		.task = { .pid = new - coroutines, .coroutine = new },
		.stack = stack, .run = run, .data = data, .used = true,
		.state = TASK_IDLE, .sleeping = true, .wake_at_ns = U64_MAX,
	};
	__asan_unpoison_memory_region(stack, STACK_BYTES);
	getcontext(&new->context);
	new->context.uc_stack.ss_sp = stack;
	new->context.uc_stack.ss_size = STACK_BYTES;
	makecontext(&new->context, coroutine_enter, 0);
	return &new->task;
}

int wake_up_process(struct task_struct *task)
{
	REQUIRE(task->coroutine->used);
	task->coroutine->started = true;
	sim_counts.wakes += current->coroutine == coroutines;
	task->coroutine->state = TASK_RUNNING;
	task->coroutine->sleeping = false;
	return 1;
}

int kthread_stop(struct task_struct *task)
{
	struct kfuzz_coroutine *thread = task->coroutine;

	might_sleep();
	REQUIRE(thread->used && thread != current->coroutine);
	thread->should_stop = true;
	wake_up_process(task);
	while (!thread->done)
		kfuzz_wait();
	thread->used = false;
	return 0;
}

bool kthread_should_stop(void) { return current->coroutine->should_stop; }

void set_current_state(int state)
{
	current->coroutine->wake_at_ns = U64_MAX;
	current->coroutine->state = state;
}

void cond_resched(void)
{
	might_sleep();
	sim_maybe_preempt();
}

void kfuzz_set_waits(struct task_struct *task, bool waits)
{
	task->coroutine->waits = waits;
	task->coroutine->drives = true;
}

bool single_task_running(void) { return sim_random() & 1; }

void send_sig(int number, struct task_struct *task, int privileged)
{
	(void)privileged;
	REQUIRE(number == SIGKILL && task->coroutine->used);
	task->coroutine->killed = true;
}

int cgroup_attach_task_all(struct task_struct *from, struct task_struct *task)
{
	might_sleep();
	REQUIRE(from == current && task->coroutine->used && !task->coroutine->started);
	return sim_fails() ? -ENODEV : 0;
}

bool signal_pending(struct task_struct *task) { return task->coroutine->killed; }
void flush_signals(struct task_struct *task) { task->coroutine->killed = false; }

int sched_setattr_nocheck(struct task_struct *task, const struct sched_attr *attr)
{
	bool realtime = attr->sched_policy == SCHED_FIFO || attr->sched_policy == SCHED_RR;

	REQUIRE(task->coroutine->used && attr->size == sizeof(*attr));
	REQUIRE(realtime || attr->sched_policy == SCHED_NORMAL);
	REQUIRE(realtime == (attr->sched_priority > 0) && attr->sched_priority < MAX_RT_PRIO);
	task->coroutine->realtime = realtime;
	return 0;
}

void sched_set_normal(struct task_struct *task, int nice)
{
	task->coroutine->realtime = false;
	if (nice == MIN_NICE)
		kfuzz_set_waits(task, false);
}

bool sim_is_realtime(void) { return current->coroutine->realtime; }

bool sim_is_asleep(const struct task_struct *task)
{
	return task->coroutine->head && task->coroutine->sleeping && !runnable(task->coroutine);
}

u64 ktime_get_ns(void)
{
	sim_now_ns += 200 + (sim_random() & 255);
	return sim_now_ns;
}

void timer_setup(struct timer_list *timer, void (*run)(struct timer_list *timer), int flags)
{
	(void)flags;
	*timer = (struct timer_list){ .run = run };
}

int timer_delete_sync(struct timer_list *timer)
{
	might_sleep();
	for (struct timer_list **at = &timers; *at; at = &(*at)->next) {
		if (*at != timer)
			continue;
		*at = timer->next;
		timer->armed = false;
		return 1;
	}
	return 0;
}

void mod_timer(struct timer_list *timer, unsigned long expires)
{
	timer_delete_sync(timer);
	REQUIRE(timer->run);
	timer->expires_ns = (u64)expires * (NSEC_PER_SEC / HZ);
	timer->next = timers;
	timer->armed = true;
	timers = timer;
}

void vgpu_hrtimer_setup(struct hrtimer *timer,
			enum hrtimer_restart (*function)(struct hrtimer *timer), int clock,
			enum hrtimer_mode mode)
{
	REQUIRE(clock == CLOCK_MONOTONIC && mode == HRTIMER_MODE_ABS);
	*timer = (struct hrtimer){ .function = function };
}

int hrtimer_try_to_cancel(struct hrtimer *timer)
{
	for (struct hrtimer **at = &hrtimers; *at; at = &(*at)->next) {
		if (*at != timer)
			continue;
		*at = timer->next;
		timer->armed = false;
		return 1;
	}
	return 0;
}

int hrtimer_cancel(struct hrtimer *timer)
{
	might_sleep();	/* the caller must not hold what the timer's function waits for */
	return hrtimer_try_to_cancel(timer);
}

void hrtimer_start(struct hrtimer *timer, ktime_t expires, enum hrtimer_mode mode)
{
	REQUIRE(timer->function && expires >= 0 && mode == HRTIMER_MODE_ABS);
	hrtimer_try_to_cancel(timer);
	timer->expires_ns = expires;
	timer->next = hrtimers;
	timer->armed = true;
	hrtimers = timer;
}

struct workqueue_struct *system_wq;

struct workqueue_struct *alloc_workqueue(const char *name, int flags, int active)
{
	static struct workqueue_struct queue;

	(void)name;
	(void)flags;
	(void)active;
	return &queue;
}

void destroy_workqueue(struct workqueue_struct *queue)
{
	(void)queue;
	sim_finish_work();
}

void sim_finish_work(void)
{
	while (run_work())
		;
}

bool queue_work(struct workqueue_struct *queue, struct work_struct *new)
{
	(void)queue;
	if (new->pending)
		return false;
	new->pending = true;
	new->next = work;
	work = new;
	return true;
}

/* Returns whether it was pending; afterwards it is not running either. */
bool cancel_work_sync(struct work_struct *old)
{
	struct work_struct **link = &work;
	bool pending = old->pending;

	might_sleep();
	if (pending) {
		while (*link != old)
			link = &(*link)->next;
		*link = old->next;
		old->pending = false;
	}
	while (is_at_work(old))
		kfuzz_wait();
	return pending;
}

void wake_up_interruptible(wait_queue_head_t *head) { head->woken++; }

/* ---- whose threads are whose */

struct pid *get_pid(struct pid *pid)
{
	REQUIRE(pid->refs > 0);
	pid->refs++;
	pid_refs++;
	return pid;
}

void put_pid(struct pid *pid)
{
	REQUIRE(pid->refs > 0 && pid_refs > 0);
	pid->refs--;
	pid_refs--;
}

int kill_pid(struct pid *pid, int number, int privileged)
{
	REQUIRE(pid->refs > 0 && number == SIGKILL && privileged);
	pid->killed = true;
	return 0;
}

u64 sim_pids_left(void) { return pid_refs; }

/* ---- locks */

/* A reader uses nothing that it read before it knows that all of it is of one moment. */

void might_sleep(void)
{
	REQUIRE(!spinlocks && !irqs_off);
}

void spin_lock_init(spinlock_t *lock) { *lock = (spinlock_t){}; }
bool kfuzz_spinlock_held(const spinlock_t *lock) { return lock->held; }
bool kfuzz_mutex_held(const struct mutex *lock) { return lock->owner == current; }

bool kfuzz_irqs_off(void)
{
	bool were = irqs_off;

	if (!spinlocks && !irqs_off)
		sim_maybe_preempt();
	irqs_off = true;
	return were;
}

void spin_lock(spinlock_t *lock)
{
	sim_maybe_preempt();
	REQUIRE(!lock->held);
	lock->held = true;
	lock->interruptible |= !irqs_off;
	lock->interrupts |= in_interrupt;
	REQUIRE(!lock->interruptible || !lock->interrupts);
	spinlocks++;
	if (current->coroutine == coroutines && !in_interrupt) {
		sim_counts.spinlocks++;
		sim_counts.watched_locks += lock == sim_watched_lock;
	}
}

void spin_lock_irq(spinlock_t *lock)
{
	REQUIRE(!kfuzz_irqs_off());
	spin_lock(lock);
}

void spin_unlock(spinlock_t *lock) { kfuzz_spin_unlock(lock, irqs_off); }
void spin_unlock_irq(spinlock_t *lock) { kfuzz_spin_unlock(lock, false); }

void kfuzz_spin_unlock(spinlock_t *lock, bool were_off)
{
	REQUIRE(lock->held);
	lock->held = false;
	spinlocks--;
	irqs_off = were_off;
	sim_maybe_preempt();
}

void mutex_init(struct mutex *lock) { lock->owner = NULL; }
void mutex_destroy(struct mutex *lock) { REQUIRE(!lock->owner); }

void mutex_lock(struct mutex *lock)
{
	might_sleep();
	sim_maybe_preempt();
	REQUIRE(lock->owner != current);
	while (lock->owner)
		kfuzz_wait();
	lock->owner = current;
}

void mutex_unlock(struct mutex *lock)
{
	REQUIRE(lock->owner == current);
	lock->owner = NULL;
	sim_maybe_preempt();
}

u64 sim_threads_left(void)
{
	u64 left = 0;

	for (unsigned int i = 1; i < THREADS_MAX; i++)
		left += coroutines[i].used;
	return left;
}

u64 sim_timers_left(void)
{
	u64 left = 0;

	for (struct timer_list *timer = timers; timer; timer = timer->next)
		left++;
	for (struct hrtimer *timer = hrtimers; timer; timer = timer->next)
		left++;
	return left;
}
