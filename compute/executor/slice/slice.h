/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vgpu-executor: stands between the kernel module and a supervisor, for one slice, as the
 * broker does for a tenant of native programs.
 *
 *	main.c		start, loop and end
 *	module.c	the module's file (kmod/uapi/vgpu_exec.h)
 *	children.c	the supervisor, which starts, kills and freezes children
 *	windows.c	what becomes of each window
 *	notify.c	what whoever started it is told
 *	check.c		--check
 *	options.c	the command line
 *
 * One thread.  It reads nothing that is in a window, apart from whether a new one's header
 * is empty.  All times are CLOCK_MONOTONIC in ns.
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

/* The supervisor has this long to answer, and to end a child that it was told to kill. */
#define SLICE_PATIENCE_NS	5000000000ull

/**
 * struct slice_options - the command line
 * @slice: UUID
 * @nvidia: minor number of the GPU whose channels the gate stops, or NULL
 * @memory_bytes: accelerator memory; 0: as much as the module says
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
	WINDOW_IDLE,	/* it has no child */
	WINDOW_STARTING,	/* START has been sent */
	WINDOW_RUNNING,
	WINDOW_ENDING,	/* its child is being killed */
	WINDOW_LEAVING,	/* its child is gone, and some process has its memory still */
};

/**
 * struct window - what this process knows of a window
 * @closing: the guest is done with it: the module is told when nothing is left of its child
 * @memory: its descriptor while it has a child, else -1
 * @child: number of its child; no number is used twice
 * @start: sequence of START until that is answered, else 0
 * @patience_ns: when the supervisor must have answered; UINT64_MAX if it need not
 * @wait_ns, @again_ns: while it is leaving: how long and until when the module is left in peace
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
 * struct slice - all of it
 * @module: the bound file
 * @supervisor: its socket is -1 once it is of no use
 * @hello: sequence of the first request to the supervisor, 0 once that was answered
 * @hello_by_ns: when it must have been
 * @starts: how fast the guest starts processes
 * @notice: of what the guest can cause
 * @enforced, @gate_ns: what the supervisor said last
 * @memory_used_bytes: the same, of what its children have reserved
 * @told_until_ns: closings of the gate alone are not told of before
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
/* The loop ends, and the first reason for it counts. */
void slice_stop(struct slice *slice, enum slice_end end);
/* A line that the guest can cause. */
void slice_note(struct slice *slice, int level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* notify.c */
/* Before the first call of the others, and before a process is started. */
void slice_notify_open(void);
/* Lines of sd_notify(3). */
void slice_notify(const char *text);
/* The status while it serves.  @ready: for the first time. */
void slice_notify_serving(struct slice *slice, bool ready);
/* The reason why this process ends: a line in the log, and the status that is told. */
void slice_fail(const char *event, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* options.c: prints what is wrong and exits with 2 */
void slice_read_options(struct slice_options *options, int argc, char **argv);

/* check.c: the exit status */
int slice_check(const struct slice_options *options);

/* module.c */
/* Opens the device and binds to the slice; false after a line in the log. */
bool module_open(struct slice *slice);
/* Does what the next event asks for, if there is one. */
void module_receive(struct slice *slice);
/* 0 or a positive errno value; ENXIO: it is not open any more. */
int module_files(struct slice *slice, unsigned int number, struct vgpu_exec_window *files);
/*
 * Nothing is left of the window's child: the guest sees a lost window, or it is free. False if
 * some process has the window's memory still.
 */
bool module_lost(struct slice *slice, unsigned int number);
bool module_closed(struct slice *slice, unsigned int number);
void module_gate(struct slice *slice, uint64_t sequence, uint64_t processor_ns, bool done);

/* children.c */
/* Starts the supervisor; false after a line in the log. */
bool children_open(struct slice *slice);
/* Does what the next datagram of the supervisor says. */
void children_receive(struct slice *slice);
/* The supervisor has ended. */
void children_died(struct slice *slice);
/* Returns the sequence of the request, or 0 if the supervisor does not take it. */
uint64_t children_start(struct slice *slice, uint64_t child, const struct vgpu_exec_window *files);
void children_kill(struct slice *slice, uint64_t child, const char *reason);
void children_gate(struct slice *slice, uint64_t sequence, bool close);
/* The supervisor is of no use any more: its end is the children's. */
void children_give_up(struct slice *slice);
/* Ends supervisor and children, and waits for it. */
void children_close(struct vgpu_supervisor_process *supervisor);

/* windows.c */
void windows_init(struct slice *slice, uint64_t now_ns);
/* Events of the module. */
void window_opened(struct slice *slice, unsigned int number, uint64_t now_ns);
void window_closed(struct slice *slice, unsigned int number, uint64_t now_ns);
/* Answers and news of the supervisor. */
void window_started(struct slice *slice, uint64_t start, bool done, const char *reason, uint64_t now_ns);
void window_exited(struct slice *slice, uint64_t child, int status, const char *reason, uint64_t now_ns);
/* The supervisor is dead, and all children with it. */
void windows_lose(struct slice *slice, const char *reason, uint64_t now_ns);
/* All children are to be killed. */
void windows_kill(struct slice *slice, const char *reason);
/* When the supervisor has to be given up, UINT64_MAX for never. */
uint64_t windows_patience_ns(const struct slice *slice);
/* Tells the module again what it did not take; returns when the next try is due. */
uint64_t windows_retry(struct slice *slice, uint64_t now_ns);

#endif /* VGPU_EXECUTOR_SLICE_H */
