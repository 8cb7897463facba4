// SPDX-License-Identifier: Apache-2.0
/*
 * Closes and opens the gate at the arbiter's request.  DONE is sent when each child has stopped, so
 * nothing of the slice runs from then on.  A child that does not stop in time is killed, and DONE
 * is sent when it is dead.  The children's work on a GPU is stopped after the children, and
 * restarted before them.
 */
#include <errno.h>
#include <string.h>
#include <syslog.h>

#include "executor/log.h"
#include "executor/supervisor/supervisor.h"

/* Number of checks without sleeping, which together take less time than waiting for an event. */
#define LOOKS		20u
/* Number of closings after which a line with quantiles is logged. */
#define REPORT_EVERY	1000u

static unsigned int members(struct vgpu_supervisor *s, struct vgpu_gate_member **list)
{
	unsigned int count = 0;

	for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++)
		if (s->children[i].used && !s->children[i].died)
			list[count++] = &s->children[i].member;
	return count;
}

/* With a library for the machine's own processors, all work runs in the children's threads. */
static bool computes_in_children(const struct vgpu_supervisor *s)
{
	const char *library = s->options.library, *name;

	if (!library || strcmp(s->options.backend, "opencl"))
		return true;
	name = strrchr(library, '/');
	return strstr(name ? name : library, "pocl");
}

/*
 * Can a kernel still run after the gate has closed? If so, the gate does not enforce the end of the
 * lease.
 */
static bool waits_for_kernels(const struct vgpu_supervisor *s)
{
	for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++)
		if (s->children[i].used && s->children[i].channels.unpreemptible)
			return true;
	for (unsigned int i = 0; i < VGPU_NATIVES_MAX; i++)
		if (s->natives.list[i].used && s->natives.list[i].channels.unpreemptible)
			return true;
	return false;
}

uint32_t vgpu_enforced(const struct vgpu_supervisor *s)
{
	if (s->options.gpu >= 0)
		return s->by_timeslice || waits_for_kernels(s) ? VGPU_ENFORCED_EXECUTOR : VGPU_ENFORCED_GATE;
	return computes_in_children(s) ? VGPU_ENFORCED_GATE : VGPU_ENFORCED_EXECUTOR;
}

void vgpu_freeze_report(const struct vgpu_supervisor *s)
{
	const struct vgpu_latency *latency = &s->gate.latency;

	vgpu_log(LOG_INFO, "event=gate kind=%s closings=%llu p50_ns=%llu p99_ns=%llu longest_ns=%llu",
		 vgpu_gate_name(s->gate.kind), (unsigned long long)latency->count,
		 (unsigned long long)vgpu_latency_quantile(latency, 500),
		 (unsigned long long)vgpu_latency_quantile(latency, 990),
		 (unsigned long long)latency->longest_ns);
}

static bool has_stopped(struct vgpu_supervisor *s)
{
	struct vgpu_gate_member *list[VGPU_CHILDREN_MAX];
	unsigned int count = members(s, list);

	if (s->gate.kind != VGPU_GATE_SIGNAL)
		return vgpu_gate_has_stopped(&s->gate, NULL);
	for (unsigned int i = 0; i < count; i++)
		if (!vgpu_gate_has_stopped(&s->gate, list[i]))
			return false;
	return true;
}

static void kill_running(struct vgpu_supervisor *s)
{
	s->gate_killed = true;
	vgpu_natives_kill_open(s);
	for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++) {
		struct vgpu_supervised *child = &s->children[i];

		/* A freezer does not report which child has not stopped, so all of them are killed. */
		if (!child->used || child->died ||
		    (s->gate.kind == VGPU_GATE_SIGNAL && vgpu_gate_has_stopped(&s->gate, &child->member)))
			continue;
		vgpu_log(LOG_ERR, "child=%llu event=gate it did not stop in time",
			 (unsigned long long)child->number);
		vgpu_kill(s, child, "it did not stop when the gate closed");
	}
}

static void hurry(struct vgpu_supervisor *s)
{
	s->hurried = true;
	for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++)
		if (s->children[i].used && !s->children[i].died)
			vgpu_gate_hurry(&s->children[i].member, true);
}

/* Restores the children's priorities before the gate opens: no child may run with a raised priority. */
static void calm(struct vgpu_supervisor *s)
{
	if (!s->hurried)
		return;
	s->hurried = false;
	for (unsigned int i = 0; i < VGPU_CHILDREN_MAX; i++) {
		struct vgpu_supervised *child = &s->children[i];

		if (child->used && !child->died && !vgpu_gate_hurry(&child->member, false))
			vgpu_kill(s, child, "its priority could not be restored");
	}
}

void vgpu_freeze_poll(struct vgpu_supervisor *s)
{
	uint64_t now_ns;

	if (!s->freezing)
		return;
	if (has_stopped(s) && vgpu_relays_close(s) && vgpu_natives_close(s)) {
		vgpu_latency_add(&s->gate.latency, vgpu_now_ns() - s->gate_asked_ns);
		s->freezing = false;
		s->gate_killed = false;
		vgpu_control_answer(s, VGPU_SUPERVISOR_DONE, s->gate_sequence, 0, NULL);
		if (s->gate.latency.count % REPORT_EVERY == 0)
			vgpu_freeze_report(s);
		return;
	}
	now_ns = vgpu_now_ns();
	if (now_ns - s->gate_asked_ns > s->options.gate_limit_ns && !s->gate_killed)
		kill_running(s);
}

void vgpu_freeze(struct vgpu_supervisor *s, uint64_t sequence, uint64_t asked_ns)
{
	struct vgpu_gate_member *list[VGPU_CHILDREN_MAX];
	int error;

	/*
	 * If an earlier FREEZE is still pending, it fails now, and the new FREEZE waits for the
	 * gate.
	 */
	if (s->freezing)
		vgpu_control_answer(s, VGPU_SUPERVISOR_FAILED, s->gate_sequence, 0,
				    "another request came before the gate was closed");
	if (s->gate.closed && !s->freezing) {
		vgpu_control_answer(s, VGPU_SUPERVISOR_DONE, sequence, 0, NULL);
		return;
	}
	s->gate_sequence = sequence;
	s->gate_asked_ns = asked_ns;
	error = vgpu_gate_close(&s->gate, list, members(s, list));
	if (error) {
		vgpu_log(LOG_ERR, "event=gate cannot be closed, error=%d", error);
		vgpu_control_answer(s, VGPU_SUPERVISOR_FAILED, sequence, 0, "the gate cannot be closed");
		return;
	}
	s->freezing = true;
	for (unsigned int i = 0; i < LOOKS && s->freezing; i++)
		vgpu_freeze_poll(s);
	/*
	 * Not with VGPU_GATE_SIGNAL: SIGCONT can undo a SIGSTOP, and the threads would then run on
	 * with the raised priority.
	 */
	if (s->freezing && s->options.hurry && s->gate.kind != VGPU_GATE_SIGNAL)
		hurry(s);
}

void vgpu_thaw(struct vgpu_supervisor *s, uint64_t sequence)
{
	struct vgpu_gate_member *list[VGPU_CHILDREN_MAX];
	int error = 0;

	if (s->freezing) {
		s->freezing = false;
		vgpu_control_answer(s, VGPU_SUPERVISOR_FAILED, s->gate_sequence, 0,
				    "THAW arrived before the gate was closed");
	}
	calm(s);
	if (!vgpu_relays_reopen(s) || !vgpu_natives_reopen(s))
		error = EBUSY;
	else if (s->gate.closed)
		error = vgpu_gate_reopen(&s->gate, list, members(s, list));
	vgpu_control_answer(s, error ? VGPU_SUPERVISOR_FAILED : VGPU_SUPERVISOR_DONE, sequence, 0,
			    error ? "the gate cannot be opened" : NULL);
}
