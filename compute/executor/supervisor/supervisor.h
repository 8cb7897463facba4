/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A supervisor: starts, stops, kills and accounts for the children of one tenant.
 *
 * It has one thread.  It reads the datagrams of protocol/control.h from the arbiter, which it
 * trusts, and those of executor/link.h from children, which it checks.  It parses nothing else that
 * a child writes.  It never waits for a child.
 */
#ifndef VGPU_EXECUTOR_SUPERVISOR_H
#define VGPU_EXECUTOR_SUPERVISOR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

#include "executor/gate/channels.h"
#include "executor/gate/gate.h"
#include "executor/gate/memory.h"
#include "executor/link.h"
#include "executor/sandbox/spawn.h"
#include "executor/supervisor/kept.h"
#include "executor/supervisor/natives.h"
#include "executor/supervisor/output.h"

#define VGPU_CHILDREN_MAX	64u
#define VGPU_COMPILERS_MAX	8u
#define VGPU_QUEUE_MAX		(VGPU_CHILDREN_MAX * VGPU_JOBS_MAX)

enum {
	VGPU_CONTROL_SOCKET = 3,	/* connected to the arbiter */
};

/*
 * The command line; times in ns.  @gpu is the minor number of the NVIDIA GPU that children compute
 * on and whose channels the gate stops, or -1.  @natives is the directory for natives.h.
 */
struct vgpu_supervisor_options {
	const char *tenant;
	const char *child;
	const char *library;
	const char *backend;
	const char *sandbox;
	const char *cgroup;
	enum vgpu_gate_kind gate;
	uint64_t spin_us;
	uint64_t scratch_bytes;
	uint64_t overhead_bytes;
	uint64_t resident_bytes;
	uint64_t compiler_bytes;
	uint64_t compiler_limit_ns;
	uint64_t compile_cache_bytes;
	uint64_t gate_limit_ns;
	unsigned int compilers;
	int gpu;
	const char *gate_lock;
	const char *natives;
	bool hurry;
};

/**
 * struct vgpu_supervised - a child, or a compiler
 * @number: the arbiter's number of a child; the supervisor's own number of a compiler
 * @link: socket to a child, or -1
 * @window: a child's window, to mark it as lost
 * @output: pipe with the process's output
 * @reserved_bytes: accelerator memory of the slice that a child has reserved
 * @credit_ns: credit for datagrams, as the time that reading them costs
 * @muted_until_ns: nothing is read from @link until then; 0 if @link is read
 * @relay: PID of the process that makes the child's calls to the driver (gate/relay.h), or 0
 * @channels: of a child with a relay: its work on the GPU
 * @died: the first process was reaped; other processes of the child may be left
 * @deadline_ns: of a compiler: when it is killed
 * @client: of a compiler: number of the child that sent the job
 * @sequence: of a compiler: sequence of the child's datagram
 * @result: of a compiler: memfd that it writes
 * @job: of a compiler: its job, or NULL if the result is not to be kept
 */
struct vgpu_supervised {
	bool used;
	bool compiler;
	bool killed;
	bool timed_out;
	bool died;
	bool serving;
	uint64_t number;
	uint64_t started_ns;
	uint64_t namespaces;
	struct vgpu_gate_member member;
	int link;
	int window;
	struct vgpu_output output;
	pid_t relay;
	struct vgpu_channels channels;
	uint64_t window_bytes;
	uint64_t reserved_bytes;
	uint64_t credit_ns;
	uint64_t muted_until_ns;
	uint64_t processor_ns;
	int status;
	char reason[VGPU_REASON_BYTES];
	uint64_t deadline_ns;
	uint64_t client;
	uint64_t sequence;
	int result;
	struct vgpu_kept_job *job;
};

/**
 * struct vgpu_job - a job that waits for a compiler
 * @file: a sealed copy of @job; if @job is NULL, the child's own memfd
 */
struct vgpu_job {
	uint64_t client;
	uint64_t sequence;
	int file;
	struct vgpu_kept_job *job;
};

/* A directory of this supervisor, with a subdirectory for each child and compiler. */
struct vgpu_scratch {
	int directory;
	char path[32];
};

/**
 * struct vgpu_supervisor - state of the supervisor
 * @memory_bytes: the slice's accelerator memory, from the last START
 * @gone_ns: processor time of children that have ended
 * @gate_sequence: sequence of the FREEZE that waits for children to stop; 0 for none
 * @gate_asked_ns: when that FREEZE arrived
 * @by_timeslice: the driver has refused to disable the channels of some child
 * @gate_lock: file to lock for calls that stop channels, or -1
 * @hurried: the children's threads have a raised priority until they have stopped
 * @compilers_next_ns: no compiler may be started before this time; 0 if one may be started now
 * @links_at_ns: time up to which children were given credit for their datagrams
 * @told_bytes, @told_native_bytes: @reserved_bytes and the memory of native programs as last
 *	reported to the arbiter
 * @told_ns: when they were reported
 * @places: how many jobs may wait; each uses a descriptor
 * @pending: datagrams to the arbiter for which its socket had no room
 */
struct vgpu_supervisor {
	struct vgpu_supervisor_options options;
	struct vgpu_gate gate;
	struct vgpu_memory memory;
	struct vgpu_scratch scratch;
	int epoll;
	int signals;
	int program;
	pid_t janitor;
	int janitor_pipe;
	bool ending;
	uint64_t memory_bytes;
	uint64_t reserved_bytes;
	uint64_t told_bytes;
	uint64_t told_native_bytes;
	uint64_t told_ns;
	uint64_t gone_ns;
	bool freezing;
	uint64_t gate_sequence;
	uint64_t gate_asked_ns;
	bool gate_killed;
	int gate_lock;
	bool by_timeslice;
	bool hurried;
	struct vgpu_supervised children[VGPU_CHILDREN_MAX];
	struct vgpu_supervised compilers[VGPU_COMPILERS_MAX];
	struct vgpu_natives natives;
	uint64_t links_at_ns;
	uint64_t compilers_started;
	uint64_t compilers_paid_ns;
	uint64_t compilers_next_ns;
	struct vgpu_job queue[VGPU_QUEUE_MAX];
	unsigned int queued;
	unsigned int places;
	struct vgpu_kept kept;
	struct vgpu_supervisor_message *pending;
	unsigned int pending_count;
};

/* Kind of an epoll event, in the event's data. */
enum vgpu_event {
	VGPU_EVENT_CONTROL,
	VGPU_EVENT_SIGNAL,
	VGPU_EVENT_GATE,
	VGPU_EVENT_LINK,
	VGPU_EVENT_OUTPUT,
	VGPU_EVENT_COMPILER_OUTPUT,
	VGPU_EVENT_NATIVE,
};

/* options.c: prints an error and exits with 2 if the command line is wrong */
void vgpu_supervisor_read_options(struct vgpu_supervisor_options *options, int argc, char **argv);

/* main.c */
uint64_t vgpu_now_ns(void);
void vgpu_watch(struct vgpu_supervisor *s, int descriptor, uint32_t events, enum vgpu_event event,
		unsigned int index);

/* control.c: the arbiter */
void vgpu_control_receive(struct vgpu_supervisor *s);
void vgpu_control_flush(struct vgpu_supervisor *s);
void vgpu_control_answer(struct vgpu_supervisor *s, enum vgpu_supervisor_op op, uint64_t sequence,
			 uint64_t child, const char *reason);
/* Reports the reserved memory if it has changed.  Return: when to call this again. */
uint64_t vgpu_control_memory(struct vgpu_supervisor *s, uint64_t now_ns);
/* @status is as in waitpid(); @reason has VGPU_REASON_BYTES */
void vgpu_control_exited(struct vgpu_supervisor *s, uint64_t child, int status, const char *reason);
/* Reports whether a native program uses the GPU. */
void vgpu_control_works(struct vgpu_supervisor *s, uint64_t native, bool works);
enum {
	VGPU_RECEIVED_END = -1,	/* also for an empty datagram */
	VGPU_RECEIVED_MALFORMED = -2,
};

/*
 * Receives one datagram with its descriptors.  Return: 1, 0 if there is no datagram, or one of the
 * values above.
 */
int vgpu_receive(int socket, void *message, size_t bytes, int *descriptors, unsigned int *count,
		 unsigned int most);

/* children.c: returns 0 or a positive errno value; the caller still owns @descriptors */
int vgpu_child_start(struct vgpu_supervisor *s, const struct vgpu_supervisor_message *start,
		     const int *descriptors);
struct vgpu_supervised *vgpu_child_find(struct vgpu_supervisor *s, uint64_t number);
void vgpu_kill(struct vgpu_supervisor *s, struct vgpu_supervised *one, const char *reason);
int vgpu_start(struct vgpu_supervisor *s, struct vgpu_supervised *one, uint64_t memory_bytes,
	       uint64_t window_bytes, const int *descriptors, unsigned int count);
/* Limits the memory that all children together may touch. */
void vgpu_limit_memory(struct vgpu_supervisor *s);

/* ending.c */
/*
 * Detects processes that have ended.  Return: false while processes of a dead child are left; call
 * it again soon.
 */
bool vgpu_reap(struct vgpu_supervisor *s);
uint64_t vgpu_processor_ns(struct vgpu_supervisor *s);

/* freezing.c: the gate */
void vgpu_freeze(struct vgpu_supervisor *s, uint64_t sequence, uint64_t asked_ns);
void vgpu_thaw(struct vgpu_supervisor *s, uint64_t sequence);
/* Return: enum vgpu_enforced. */
uint32_t vgpu_enforced(const struct vgpu_supervisor *s);
void vgpu_freeze_report(const struct vgpu_supervisor *s);
void vgpu_freeze_poll(struct vgpu_supervisor *s);

/* relays.c: the children's work on an NVIDIA GPU */
/* Return: false with a message in @reason. */
bool vgpu_relays_open(struct vgpu_supervisor *s, char *reason, size_t bytes);
/* The caller still owns the child's @listener.  Return: 0 or a positive errno value. */
int vgpu_relay_start(struct vgpu_supervisor *s, struct vgpu_supervised *child, int listener);
/* Records that process @pid has ended; @status is as in waitpid(). */
void vgpu_relay_note_end(struct vgpu_supervisor *s, pid_t pid, int status);
/* Call it for a child that has ended.  Frees the shared memory.  Return: false while its relay is left. */
bool vgpu_relay_end(struct vgpu_supervised *child);
/*
 * Call it when all children are stopped: stops their work on the GPU.  Return: false to be called
 * again soon.
 */
bool vgpu_relays_close(struct vgpu_supervisor *s);
/* Call it before children continue.  Return: false if this is impossible now. */
bool vgpu_relays_reopen(struct vgpu_supervisor *s);
/*
 * Takes the host's lock for calls that stop channels; waits a limited time.  Return: false if the
 * lock is still taken.
 */
bool vgpu_gate_lock(const struct vgpu_supervisor *s);
/*
 * Closes or opens the channels of a child or of a native program whose files @process has.  The
 * caller holds the lock.  Return: false, after logging a line, if the driver did not confirm the
 * change; the child or program must then be killed.
 */
bool vgpu_turn_channels(struct vgpu_supervisor *s, uint64_t number, struct vgpu_channels *channels,
			int process, bool close);

/* requests.c: datagrams of children */
void vgpu_requests_receive(struct vgpu_supervisor *s, struct vgpu_supervised *child);
/* Gives a new child its whole burst. */
void vgpu_requests_open(struct vgpu_supervised *child);
/* For a child that has ended: reads the reason, if the child sent one. */
void vgpu_requests_last_words(struct vgpu_supervised *child);
void vgpu_requests_unmute(struct vgpu_supervisor *s, uint64_t now_ns);
/* @result is sent along, and the caller still owns it; -1 for none */
void vgpu_requests_answer(struct vgpu_supervisor *s, uint64_t client, uint64_t sequence, int status,
			  int exit_status, int result);

/* compilers.c */
/* Determines how many jobs may wait, and how many results may be kept. */
void vgpu_compilers_open(struct vgpu_supervisor *s);
/* Return: 0 if the job is answered now or later, or a positive errno value.  The caller still owns @file. */
int vgpu_compilers_queue(struct vgpu_supervisor *s, struct vgpu_supervised *child,
			 uint64_t sequence, int file);
void vgpu_compilers_start(struct vgpu_supervisor *s);
void vgpu_compilers_ended(struct vgpu_supervisor *s, struct vgpu_supervised *compiler);
/* Kills compilers that take too long.  Return: when to call this again. */
uint64_t vgpu_compilers_poll(struct vgpu_supervisor *s, uint64_t now_ns);
void vgpu_compilers_forget(struct vgpu_supervisor *s, uint64_t client);

/* janitor.c: a process that cleans up after a supervisor that was killed */
int vgpu_janitor_start(struct vgpu_supervisor *s);
/*
 * Adds the leader of a session that must end with the supervisor; a negative PID removes a session
 * that has ended.
 */
void vgpu_janitor_tell(struct vgpu_supervisor *s, pid_t leader);

/* scratch.c: functions return 0 or a positive errno value */
int vgpu_scratch_open(struct vgpu_scratch *scratch);
/*
 * @as_nobody: the child will be the host's user nobody, because the supervisor is root.  Writes the
 *	directory's path to @path.
 */
int vgpu_scratch_make(const struct vgpu_scratch *scratch, const struct vgpu_supervised *one,
		      bool as_nobody, char *path, size_t bytes);
void vgpu_scratch_remove(const struct vgpu_scratch *scratch, const struct vgpu_supervised *one);
/* Removes the directory and everything in it. */
void vgpu_scratch_close(const struct vgpu_scratch *scratch);

#endif /* VGPU_EXECUTOR_SUPERVISOR_H */
