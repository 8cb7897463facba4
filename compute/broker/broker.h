/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of the broker.
 *
 *	main.c		start, signals, stop
 *	control.c	the control socket; apply.c applies a configuration, show.c
 *			reports the state
 *	tenant.c	a tenant: its socket, lease page, supervisor and clients
 *	client.c	a client process and its child; native_client.c if it is native
 *	firmware.c	native programs side by side; duty.c their caps
 *	rate.c		how fast a tenant starts processes
 *	supervisor.c	a tenant's supervisor process
 *
 * The arbiter and the scheduler of kmod/sched decide who may use the accelerator, and until when.
 * A tenant is a group with one slice, and a child is a stream.
 *
 * Everything happens on one thread.  A tenant owns its supervisor and its clients; the broker owns
 * the tenants.
 */
#ifndef VGPU_BROKER_BROKER_H
#define VGPU_BROKER_BROKER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "broker/duty.h"
#include "broker/loop.h"
#include "broker/settings.h"
#include "executor/notice.h"
#include "executor/rate.h"
#include "protocol/control.h"
#include "sched/vgpu_arbiter.h"

struct broker;
struct tenant;

enum supervisor_state {
	SUPERVISOR_DOWN,	/* will be started when the timer @restart expires */
	SUPERVISOR_UP,
	SUPERVISOR_KILLED,	/* SIGKILL was sent; waiting for the process to end */
};

/**
 * struct supervisor - a tenant's supervisor
 * @socket: socket for struct vgpu_supervisor_message; its fd is -1 while there is no socket
 * @process: pidfd of the supervisor
 * @failures: number of successive starts after which the supervisor did not run for long
 * @compilers: number of compilers that this process has started, as it last reported; it also
 *	reported @compile_hits and @compile_kept_bytes
 */
struct supervisor {
	struct tenant *tenant;
	enum supervisor_state state;
	struct loop_watch socket;
	struct loop_watch process;
	struct loop_timer restart;
	pid_t pid;
	uint64_t started_ns;
	uint64_t sequence;
	uint32_t failures;
	uint64_t starts;
	uint64_t compilers;
	uint64_t compile_hits;
	uint64_t compile_kept_bytes;
	uint32_t enforced;
	uint64_t gate_ns;
	bool chunk_told;
	bool ended;	/* was told to exit and is not restarted */
};

enum client_state {
	CLIENT_GREETING,	/* connected; waiting for HELLO */
	CLIENT_STARTING,	/* START has been sent */
	CLIENT_RUNNING,		/* the program has its window */
	CLIENT_ENDING,		/* the child is being killed */
};

/**
 * struct client - a program and its child
 * @socket: connection to the program; fd -1 once the program is gone
 * @requests: socket on which the child sends struct vgpu_stream_request
 * @child: the broker's number for the child; 0 before START is sent
 * @start: sequence of the START message
 * @listener: of a native program: the seccomp listener for its calls, until the supervisor gets it
 * @native: a native program, without child and window
 * @works: the program has channels on the GPU
 */
struct client {
	struct tenant *tenant;
	struct client *next;
	enum client_state state;
	struct loop_watch socket;
	struct loop_watch requests;
	struct loop_watch listener;
	struct loop_timer patience;
	struct loop_timer refill;
	struct vgpu_stream stream;
	struct vgpu_stream_page *page;
	struct vgpu_window *window;
	int window_fd;
	uint64_t window_bytes;
	uint64_t child;
	uint64_t start;
	uint64_t since_ns;
	pid_t pid;	/* PID of the program, for messages and logs */
	uid_t uid;
	bool has_stream;	/* @stream was added to the arbiter */
	bool left;	/* ENDING because the program hung up */
	bool native;
	bool works;
};

/**
 * struct native_turns - a tenant's native programs, if the firmware shares the GPU (firmware.c)
 * @programs: programs started so far
 * @timeslice_us, @memory_bytes: last values sent to the supervisor
 * @asked: the FREEZE (or THAW if @opening) with @sequence was sent at @asked_ns and has no answer
 *	yet
 * @gates: number of times that the gate has closed
 * @used_bytes: used GPU memory, as the supervisor last reported
 */
struct native_turns {
	struct duty duty;
	uint64_t programs;
	uint64_t timeslice_us;
	uint64_t memory_bytes;
	uint64_t sequence;
	uint64_t asked_ns;
	uint64_t gates;
	uint64_t used_bytes;
	bool asked;
	bool opening;
};

/**
 * struct tenant - see tenant.h
 * @leaving: no longer configured; waits for its children to end
 * @refused: refusals by enum vgpu_refusal
 * @refusals: limits the log lines about refused programs
 * @starts: see rate.c
 * @credit: datagrams that its children may still send before they must wait
 */
struct tenant {
	struct broker *broker;
	struct tenant *next;
	struct settings_tenant settings;
	struct vgpu_group group;
	struct vgpu_slice slice;
	struct vgpu_party party;
	struct supervisor supervisor;
	struct loop_watch socket;
	struct loop_timer farewell;
	struct vgpu_lease_page *lease;
	int lease_fd;
	struct client *clients;
	uint64_t processes;	/* total number started */
	struct native_turns native;
	uint64_t refused[VGPU_REFUSED_LAST + 1];
	struct vgpu_notice refusals;
	struct vgpu_rate starts;
	uint64_t credit_at_ns;
	uint32_t credit;
	bool leaving;
};

/**
 * struct broker - the broker's state
 * @refusals: timer that logs how many lines about refused programs were left out
 */
struct broker {
	struct loop loop;
	struct vgpu_sched sched;
	struct vgpu_arbiter arbiter;
	struct loop_timer arbiter_timer;
	struct loop_timer firmware_timer;
	struct loop_timer farewell;
	struct loop_timer refusals;
	struct duties duties;
	struct settings settings;
	struct tenant *tenants;
	const char *directory;
	uint64_t generation;
	uint64_t started_ns;
	uint64_t children;	/* total number started, of all tenants */
	bool stopping;
};

/*
 * Stop everything.  The loop ends when all children and supervisors are gone, or after a time
 * limit.
 */
void broker_stop(struct broker *broker);

/*
 * Called when a tenant or supervisor is gone.  Ends the loop if broker_stop() was called and no
 * tenant is left.
 */
void broker_review_stop(struct broker *broker);

#endif /* VGPU_BROKER_BROKER_H */
