/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A supervisor: starts, stops, kills and counts the children of one tenant.
 *
 * One thread.  It reads protocol/control.h's datagrams from the arbiter, which it
 * believes, and executor/link.h's from children, which it checks; it parses nothing
 * else that a child writes.  It never waits for a child.
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
	VGPU_CONTROL_SOCKET = 3,	/* to the arbiter */
};

/*
 * The command line; times in ns.  @gpu is the minor number of the NVIDIA GPU that children
 * compute on, whose channels the gate stops, or -1.  @natives is a directory for natives.h.
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
 * @number: the arbiter's number of the child; of a compiler the supervisor's own
 * @link: socket to a child, or -1
 * @window: a child's window, to mark it lost
 * @output: pipe with what it prints
 * @reserved_bytes: of the slice's accelerator memory
 * @credit_ns: of the time that a datagram costs, what was saved up
 * @muted_until_ns: nothing is read from @link until then; 0 if it is read
 * @relay: makes the child's calls to the driver (gate/relay.h), or 0
 * @channels: of a child with a relay: what it has under way
 * @died: the first process was reaped; others may be left
 * @deadline_ns: of a compiler
 * @client: of a compiler: number of the child that asked
 * @sequence: of a compiler: of the child's datagram
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
 * @file: a sealed copy of @job; without that the child's own memfd
 */
struct vgpu_job {
	uint64_t client;
	uint64_t sequence;
	int file;
	struct vgpu_kept_job *job;
};

/* A directory of this supervisor alone, with one for each child and compiler. */
struct vgpu_scratch {
	int directory;
	char path[32];
};

/**
 * struct vgpu_supervisor - all of it
 * @memory_bytes: the slice's accelerator memory, as the last START said
 * @gone_ns: processor time of children that have ended
 * @gate_sequence: of the FREEZE that waits for children to stop; 0 for none
 * @gate_asked_ns: when it came
 * @by_timeslice: the driver has refused to disable some child's channels
 * @gate_lock: file to lock for calls that stop channels, or -1
 * @hurried: children's threads run before others until they have stopped
 * @compilers_next_ns: no compiler may be started before; 0 if one may be
 * @links_at_ns: time up to which children were given credit for their datagrams
 * @told_bytes, @told_native_bytes: of @reserved_bytes and of native programs, as the arbiter knows it
 * @told_ns: when it was told that
 * @places: how many jobs may wait; each has a descriptor
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

/* What an epoll event is about, in its data. */
enum vgpu_event {
	VGPU_EVENT_CONTROL,
	VGPU_EVENT_SIGNAL,
	VGPU_EVENT_GATE,
	VGPU_EVENT_LINK,
	VGPU_EVENT_OUTPUT,
	VGPU_EVENT_COMPILER_OUTPUT,
	VGPU_EVENT_NATIVE,
};

/* options.c: prints what is wrong and exits with 2 */
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
/* Tells how much memory is reserved if that has changed; returns when to look again. */
uint64_t vgpu_control_memory(struct vgpu_supervisor *s, uint64_t now_ns);
/* @status as of waitpid(); @reason has VGPU_REASON_BYTES */
void vgpu_control_exited(struct vgpu_supervisor *s, uint64_t child, int status, const char *reason);
/* Of a native program. */
void vgpu_control_works(struct vgpu_supervisor *s, uint64_t native, bool works);
enum {
	VGPU_RECEIVED_END = -1,	/* an empty datagram looks the same */
	VGPU_RECEIVED_MALFORMED = -2,
};

/* Receives one datagram with its descriptors: 1, 0 for none, or one of the above. */
int vgpu_receive(int socket, void *message, size_t bytes, int *descriptors, unsigned int *count,
		 unsigned int most);

/* children.c: 0, or a positive errno value; @descriptors are the caller's */
int vgpu_child_start(struct vgpu_supervisor *s, const struct vgpu_supervisor_message *start,
		     const int *descriptors);
struct vgpu_supervised *vgpu_child_find(struct vgpu_supervisor *s, uint64_t number);
void vgpu_kill(struct vgpu_supervisor *s, struct vgpu_supervised *one, const char *reason);
int vgpu_start(struct vgpu_supervisor *s, struct vgpu_supervised *one, uint64_t memory_bytes,
	       uint64_t window_bytes, const int *descriptors, unsigned int count);
/* The memory that all children together may touch. */
void vgpu_limit_memory(struct vgpu_supervisor *s);

/* ending.c */
/* Notices what has ended; false while processes of a dead child are left: call it again soon. */
bool vgpu_reap(struct vgpu_supervisor *s);
uint64_t vgpu_processor_ns(struct vgpu_supervisor *s);

/* freezing.c: the gate */
void vgpu_freeze(struct vgpu_supervisor *s, uint64_t sequence, uint64_t asked_ns);
void vgpu_thaw(struct vgpu_supervisor *s, uint64_t sequence);
/* enum vgpu_enforced */
uint32_t vgpu_enforced(const struct vgpu_supervisor *s);
void vgpu_freeze_report(const struct vgpu_supervisor *s);
void vgpu_freeze_poll(struct vgpu_supervisor *s);

/* relays.c: what children have under way on an NVIDIA GPU */
/* False with a reason for people. */
bool vgpu_relays_open(struct vgpu_supervisor *s, char *reason, size_t bytes);
/* The child's listener stays the caller's.  0 or a positive errno value. */
int vgpu_relay_start(struct vgpu_supervisor *s, struct vgpu_supervised *child, int listener);
/* This process has ended, with a status as of waitpid(). */
void vgpu_relay_note_end(struct vgpu_supervisor *s, pid_t pid, int status);
/* Of a child that has ended: false while its relay has not; frees what they shared. */
bool vgpu_relay_end(struct vgpu_supervised *child);
/* All children are stopped: stops what they have under way.  False: call it again soon. */
bool vgpu_relays_close(struct vgpu_supervisor *s);
/* Before children go on.  False if it cannot be done now. */
bool vgpu_relays_reopen(struct vgpu_supervisor *s);
/* The host's lock for calls that stop channels, as soon as others have let go of it. */
bool vgpu_gate_lock(const struct vgpu_supervisor *s);
/*
 * With the lock: channels of a child, or of a native program, whose files @process has.  False, with
 * a line in the log, if the driver did not say that all is as asked; they then have to end.
 */
bool vgpu_turn_channels(struct vgpu_supervisor *s, uint64_t number, struct vgpu_channels *channels,
			int process, bool close);

/* requests.c: datagrams of children */
void vgpu_requests_receive(struct vgpu_supervisor *s, struct vgpu_supervised *child);
/* A new child has its whole burst. */
void vgpu_requests_open(struct vgpu_supervised *child);
/* Of a child that has ended: why it did, if it said so. */
void vgpu_requests_last_words(struct vgpu_supervised *child);
void vgpu_requests_unmute(struct vgpu_supervisor *s, uint64_t now_ns);
/* @result: goes with it, and stays the caller's; or -1 */
void vgpu_requests_answer(struct vgpu_supervisor *s, uint64_t client, uint64_t sequence, int status,
			  int exit_status, int result);

/* compilers.c */
/* Finds out how many jobs may wait, and how many results may be kept. */
void vgpu_compilers_open(struct vgpu_supervisor *s);
/* 0, and it is answered now or later; or a positive errno value.  @file is the caller's. */
int vgpu_compilers_queue(struct vgpu_supervisor *s, struct vgpu_supervised *child,
			 uint64_t sequence, int file);
void vgpu_compilers_start(struct vgpu_supervisor *s);
void vgpu_compilers_ended(struct vgpu_supervisor *s, struct vgpu_supervised *compiler);
/* Kills those that take too long; returns when to call it again. */
uint64_t vgpu_compilers_poll(struct vgpu_supervisor *s, uint64_t now_ns);
void vgpu_compilers_forget(struct vgpu_supervisor *s, uint64_t client);

/* janitor.c: a process that cleans up after a supervisor that was killed */
int vgpu_janitor_start(struct vgpu_supervisor *s);
/* The leader of a session that is to end with the supervisor; negative when it has ended. */
void vgpu_janitor_tell(struct vgpu_supervisor *s, pid_t leader);

/* scratch.c: 0, or a positive errno value */
int vgpu_scratch_open(struct vgpu_scratch *scratch);
/* @as_nobody: the child of a root will not be root outside.  Writes where it is to @path. */
int vgpu_scratch_make(const struct vgpu_scratch *scratch, const struct vgpu_supervised *one,
		      bool as_nobody, char *path, size_t bytes);
void vgpu_scratch_remove(const struct vgpu_scratch *scratch, const struct vgpu_supervised *one);
/* Removes it all. */
void vgpu_scratch_close(const struct vgpu_scratch *scratch);

#endif /* VGPU_EXECUTOR_SUPERVISOR_H */
