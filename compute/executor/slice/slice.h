/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vgpu-executor connects the kernel module to a supervisor, for one slice.  The broker does the
 * same for a tenant of native programs.
 *
 *	main.c		start, loop and end
 *	module.c	the module's file (kmod/uapi/vgpu_exec.h)
 *	children.c	the supervisor, which starts, kills and freezes children
 *	windows.c	the state of each window
 *	notify.c	status for the service manager
 *	check.c		--check
 *	options.c	the command line
 *
 * There is one thread.  It reads nothing in a window, except to check that the header of a new
 * window is empty.  All times are CLOCK_MONOTONIC in ns.
 */
#ifndef VGPU_EXECUTOR_SLICE_H
#define VGPU_EXECUTOR_SLICE_H

#include <stdbool.h>
#include <stdint.h>

#include "executor/notice.h"
#include "executor/rate.h"
#include "executor/start.h"
#include "protocol/control.h"
#include "uapi/vgpu_device.h"
#include "uapi/vgpu_exec.h"

/* Time limit for the supervisor to answer, and to end a child that it was told to kill. */
#define SLICE_PATIENCE_NS	5000000000ull

/**
 * struct slice_options - the command line
 * @slice: UUID
 * @nvidia: minor number of the GPU whose channels the gate stops, or NULL
 * @memory_bytes: accelerator memory; 0: as much as the module reports
 */
struct slice_options {
	const char *slice;
	const char *device;
	const char *supervisor;
	const char *child;
	const char *library;
	const char *nvidia;
	uint64_t memory_bytes;
	uint64_t compile_cache_bytes;
	uint64_t gate_limit_ns;
	bool check;
};

enum window_state {
	WINDOW_IDLE,	/* the window has no child */
	WINDOW_STARTING,	/* START has been sent */
	WINDOW_RUNNING,
	WINDOW_ENDING,	/* its child is being killed */
	WINDOW_LEAVING,	/* its child has ended, but another process still has its memory */
};

/**
 * struct window - what this process knows about a window
 * @closing: the guest has closed the window: notify the module when no process of its child is left
 * @memory: descriptor of its memory while it has a child, else -1
 * @child: number of its child; numbers are not reused
 * @start: sequence of START until that is answered, else 0
 * @patience_ns: when the supervisor must have answered; UINT64_MAX if no answer is pending
 * @wait_ns, @again_ns: in WINDOW_LEAVING: delay before the next notification of the module, and its
 *	time
 */
struct window {
	enum window_state state;
	bool closing;
	int memory;
	uint64_t child;
	uint64_t start;
	uint64_t patience_ns;
	uint64_t wait_ns;
	uint64_t again_ns;
};

enum slice_end {
	SLICE_GOES_ON,
	SLICE_STOPPED,	/* by a signal */
	SLICE_GONE,	/* the module has no slice for this process any more */
	SLICE_FAILED,
};

/**
 * struct slice - state of this process
 * @module: the bound file
 * @supervisor: the supervisor; its socket is -1 once it has been given up
 * @hello: sequence of the first request to the supervisor, 0 once it was answered
 * @hello_by_ns: deadline for that answer
 * @starts: limits how fast the guest starts processes
 * @notice: limits the log lines that the guest can cause
 * @enforced, @gate_ns: last values that the supervisor reported
 * @memory_used_bytes: accelerator memory that children have reserved, as last reported by the
 *	supervisor
 * @told_until_ns: until then, a closing of the gate does not by itself update the status
 */
struct slice {
	struct slice_options options;
	enum slice_end end;
	int module;
	unsigned int window_count;
	uint64_t window_bytes;
	uint64_t memory_bytes;
	struct vgpu_supervisor_process supervisor;
	uint64_t sequence;
	uint64_t hello;
	uint64_t hello_by_ns;
	uint64_t children;
	struct vgpu_rate starts;
	struct vgpu_notice notice;
	uint32_t enforced;
	uint64_t gate_ns;
	uint64_t memory_used_bytes;
	uint64_t told_until_ns;
	struct window windows[VGPU_WINDOWS_MAX];
};

/* main.c */
uint64_t slice_now_ns(void);
/* Ends the loop.  Only the first reason counts. */
void slice_stop(struct slice *slice, enum slice_end end);
/* Logs a line that the guest can cause. */
void slice_note(struct slice *slice, int level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* notify.c */
/* Call it before the other functions of notify.c, and before starting a process. */
void slice_notify_open(void);
/* Sends lines of sd_notify(3). */
void slice_notify(const char *text);
/* Sends the status while the slice is served.  @ready is true the first time. */
void slice_notify_serving(struct slice *slice, bool ready);
/* Logs the reason why this process ends, and sends it as the status. */
void slice_fail(const char *event, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* options.c: prints an error and exits with 2 if the command line is wrong */
void slice_read_options(struct slice_options *options, int argc, char **argv);

/* check.c: returns the exit status */
int slice_check(const struct slice_options *options);

/* module.c */
/* Opens the device and binds to the slice.  Return: false after logging a line. */
bool module_open(struct slice *slice);
/* Handles the next event, if there is one. */
void module_receive(struct slice *slice);
/* Return: 0 or a positive errno value.  ENXIO: the window is not open any more. */
int module_files(struct slice *slice, unsigned int number, struct vgpu_exec_window *files);
/*
 * Report to the module that no process of the window's child is left.  module_lost() marks the
 * window as lost for the guest; module_closed() frees a window that the guest has closed.  Return:
 * false if some process still has the window's memory.
 */
bool module_lost(struct slice *slice, unsigned int number);
bool module_closed(struct slice *slice, unsigned int number);
void module_gate(struct slice *slice, uint64_t sequence, uint64_t processor_ns, bool done);

/* children.c */
/* Starts the supervisor.  Return: false after logging a line. */
bool children_open(struct slice *slice);
/* Handles the next datagram of the supervisor. */
void children_receive(struct slice *slice);
/* Called when the supervisor has ended. */
void children_died(struct slice *slice);
/* Return: sequence of the request, or 0 if the supervisor does not accept it. */
uint64_t children_start(struct slice *slice, uint64_t child, const struct vgpu_exec_window *files);
void children_kill(struct slice *slice, uint64_t child, const char *reason);
void children_gate(struct slice *slice, uint64_t sequence, bool close);
/* Gives up the supervisor: closes its socket and kills it, and the children with it. */
void children_give_up(struct slice *slice);
/* Ends the supervisor and its children, and waits for it. */
void children_close(struct vgpu_supervisor_process *supervisor);

/* windows.c */
void windows_init(struct slice *slice, uint64_t now_ns);
/* Events of the module. */
void window_opened(struct slice *slice, unsigned int number, uint64_t now_ns);
void window_closed(struct slice *slice, unsigned int number, uint64_t now_ns);
/* Answers and events of the supervisor. */
void window_started(struct slice *slice, uint64_t start, bool done, const char *reason, uint64_t now_ns);
void window_exited(struct slice *slice, uint64_t child, int status, const char *reason, uint64_t now_ns);
/* Called when the supervisor has died, and all children with it. */
void windows_lose(struct slice *slice, const char *reason, uint64_t now_ns);
/* Orders the supervisor to kill all children. */
void windows_kill(struct slice *slice, const char *reason);
/* Return: when to give up the supervisor if it has not answered; UINT64_MAX for never. */
uint64_t windows_patience_ns(const struct slice *slice);
/* Repeats notifications that the module rejected as busy.  Return: when the next attempt is due. */
uint64_t windows_retry(struct slice *slice, uint64_t now_ns);

#endif /* VGPU_EXECUTOR_SLICE_H */
