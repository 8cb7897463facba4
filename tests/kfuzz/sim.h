/* SPDX-License-Identifier: GPL-2.0 */
/* The fuzzer's interface to the kernel that it simulates (kernel.c, threads.c). */
#ifndef KFUZZ_SIM_H
#define KFUZZ_SIM_H

#include "kernel.h"

/* Choices come from the input while it lasts, then from a generator seeded by it. */
extern const u8 *sim_input;
extern size_t sim_input_left;
void sim_begin(const u8 *input, size_t bytes);
u64 sim_below(u64 limit);
u64 sim_random(void);			/* never from the input: bulk data */
static inline bool sim_one_in(u64 n) { return sim_below(n) == 0; }

/* Let other threads run where a kernel could preempt; in a process there are no others. */
void sim_preempt(void);
void sim_maybe_preempt(void);
/* The process sleeps and the threads run. */
void sim_sleep(u64 ns);

/* About one allocation in so many fails; 0: none does. */
extern unsigned int sim_failures;
/* Has one failed in this life?  Calls that are still under way then may report it later. */
extern bool sim_has_failed;
/* Does the present allocation fail? */
bool sim_fails(void);
/* Leftovers of a life: all must be zero when the last device is gone. */
struct sim_leaks {
	u64 allocations, memcgs, eventfds, threads, timers, files, pids;
};
struct sim_leaks sim_leaks(void);
u64 sim_threads_left(void);
bool sim_is_asleep(const struct task_struct *task);	/* asleep, and not woken yet */
u64 sim_timers_left(void);
u64 sim_files_left(void);	/* including pages, mappings and descriptors */
u64 sim_pids_left(void);
bool sim_work_is_done(void);
void sim_finish_work(void);	/* nothing is pending afterwards */

/* A process's use of files: it gets a descriptor's file, and maps a file. */
struct file *sim_take_fd(unsigned int fd);
struct file *sim_open(const struct file_operations *ops);	/* or an ERR_PTR */
struct vm_area_struct *sim_map_begin(struct file *file, u64 offset, u64 bytes,
				     unsigned long flags);
void sim_unmap(struct vm_area_struct *vma);

/* Words that begin like this come only from a guest. */
#define SIM_GUESTS 0x6775657374730000ull

/* Memory that "user space" may pass to ioctls, one range at a time. */
void sim_user(void *memory, size_t bytes);

/* Whether the log's last line since sim_user() names @field as what was refused. */
bool sim_told(const char *field);
bool sim_told_nothing(void);
bool sim_told_restoring(const char *fault);	/* @fault: how the reason begins */
void sim_forget_told(void);

extern u64 sim_now_ns;
#define SIM_CLOCK_NS 456	/* reading the clock takes less */

/* The other half of the machine: guest memory, and the user of a device that is removed. */
int guest_access(struct vfio_device *vdev, u64 guest, void *data, size_t bytes, bool write);
void guest_let_go(struct vfio_device *vdev);

/* Counters for the report. */
struct sim_counts {
	u64 preemptions, failed_allocations, timeouts, dma_reads, dma_writes, signals;
	u64 spinlocks, wakes;	/* by the process */
	u64 watched_locks;	/* how often that lock was taken */
	u64 interrupts;		/* of timers */
	u64 told_stops;		/* lines in the log about slices that have stopped */
};
extern struct sim_counts sim_counts;
extern const spinlock_t *sim_watched_lock;
u64 sim_signals(int fd);	/* of an eventfd, ever */

#endif /* KFUZZ_SIM_H */
