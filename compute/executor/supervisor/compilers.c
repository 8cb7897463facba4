// SPDX-License-Identifier: Apache-2.0
/*
 * Compilers: processes beside the children, a bounded number at a time, each bounded
 * in time and memory.  They run while the gate is closed, because they use nothing of
 * the accelerator.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include "executor/log.h"
#include "executor/supervisor/supervisor.h"
#include "protocol/window.h"

/*
 * Compilers that may be started at once, and per second.  To start one costs the
 * supervisor about a millisecond, which is nobody's processor time in particular.
 */
#define START_BURST	64u
#define START_EVERY_NS	50000000ull

/* Returns 0 if one may be started now, or else when. */
static uint64_t take_permit(struct vgpu_supervisor *s, uint64_t now_ns)
{
	uint64_t spent_ns = START_BURST * START_EVERY_NS;

	/* The moment up to which starts have been paid for; it may lie a burst in the past. */
	if (now_ns > spent_ns && s->compilers_paid_ns < now_ns - spent_ns)
		s->compilers_paid_ns = now_ns - spent_ns;
	if (s->compilers_paid_ns + START_EVERY_NS > now_ns)
		return s->compilers_paid_ns + START_EVERY_NS;
	s->compilers_paid_ns += START_EVERY_NS;
	return 0;
}

static unsigned int jobs_of(const struct vgpu_supervisor *s, uint64_t client)
{
	unsigned int count = 0;

	for (unsigned int i = 0; i < s->queued; i++)
		count += s->queue[i].client == client;
	for (unsigned int i = 0; i < VGPU_COMPILERS_MAX; i++)
		count += s->compilers[i].used && s->compilers[i].client == client;
	return count;
}

/* A memfd and nothing else: no device, socket or file of a disk reaches a compiler. */
static bool is_memfd(int descriptor)
{
	return fcntl(descriptor, F_GET_SEALS) >= 0;
}

int vgpu_compilers_queue(struct vgpu_supervisor *s, struct vgpu_supervised *child,
			 uint64_t sequence, int job, int result)
{
	struct stat status;
	struct vgpu_job *last = &s->queue[s->queued];

	if (!is_memfd(job) || !is_memfd(result) || fstat(job, &status))
		return EINVAL;
	if (status.st_size < 0 || (uint64_t)status.st_size > VGPU_JOB_BYTES_MAX)
		return E2BIG;
	if (jobs_of(s, child->number) >= VGPU_JOBS_MAX || s->queued == VGPU_QUEUE_MAX)
		return EAGAIN;
	*last = (struct vgpu_job){
		.client = child->number,
		.sequence = sequence,
		.job = fcntl(job, F_DUPFD_CLOEXEC, 0),
		.result = fcntl(result, F_DUPFD_CLOEXEC, 0),
	};
	if (last->job < 0 || last->result < 0) {
		if (last->job >= 0)
			close(last->job);
		return EAGAIN;
	}
	s->queued++;
	vgpu_compilers_start(s);
	return 0;
}

static void drop(struct vgpu_supervisor *s, unsigned int index)
{
	close(s->queue[index].job);
	close(s->queue[index].result);
	s->queued--;
	memmove(&s->queue[index], &s->queue[index + 1], (s->queued - index) * sizeof(s->queue[0]));
}

/* The first job of the child with the fewest compilers, so that a flood delays its own child. */
static unsigned int choose(const struct vgpu_supervisor *s)
{
	unsigned int best = 0, fewest = ~0u;

	for (unsigned int i = 0; i < s->queued; i++) {
		unsigned int running = 0;

		for (unsigned int j = 0; j < VGPU_COMPILERS_MAX; j++)
			running += s->compilers[j].used && s->compilers[j].client == s->queue[i].client;
		if (running < fewest) {
			best = i;
			fewest = running;
		}
	}
	return best;
}

static int start(struct vgpu_supervisor *s, struct vgpu_supervised *compiler,
		 const struct vgpu_job *job)
{
	const int descriptors[2] = { job->job, job->result };
	int error;

	/* The child has written the job by this descriptor. */
	lseek(job->job, 0, SEEK_SET);
	*compiler = (struct vgpu_supervised){
		.compiler = true, .number = ++s->compilers_started, .link = -1, .window = -1,
		.client = job->client, .sequence = job->sequence,
	};
	error = vgpu_start(s, compiler, 0, VGPU_WINDOW_BYTES_MIN, descriptors, 2);
	compiler->deadline_ns = vgpu_now_ns() + s->options.compiler_limit_ns;
	if (!error)
		vgpu_log(LOG_DEBUG, "compiler=%llu event=started child=%llu pid=%d",
			 (unsigned long long)compiler->number, (unsigned long long)job->client,
			 compiler->member.pid);
	return error;
}

void vgpu_compilers_start(struct vgpu_supervisor *s)
{
	for (unsigned int i = 0; i < s->options.compilers && s->queued && !s->ending; i++) {
		unsigned int chosen;
		int error;

		if (s->compilers[i].used)
			continue;
		s->compilers_next_ns = take_permit(s, vgpu_now_ns());
		if (s->compilers_next_ns)
			return;
		chosen = choose(s);
		error = start(s, &s->compilers[i], &s->queue[chosen]);
		if (error) {
			vgpu_log(LOG_ERR, "event=compiler cannot be started, error=%d", error);
			vgpu_requests_answer(s, s->queue[chosen].client, s->queue[chosen].sequence,
					     EIO, 0);
		}
		drop(s, chosen);
	}
}

void vgpu_compilers_ended(struct vgpu_supervisor *s, struct vgpu_supervised *compiler)
{
	int status = compiler->timed_out ? ETIMEDOUT : compiler->status ? EIO : 0;

	vgpu_log(status ? LOG_WARNING : LOG_DEBUG,
		 "compiler=%llu event=ended child=%llu status=0x%x after_ms=%llu processor_ms=%llu%s",
		 (unsigned long long)compiler->number, (unsigned long long)compiler->client,
		 (unsigned int)compiler->status,
		 (unsigned long long)(vgpu_now_ns() - compiler->started_ns) / 1000000,
		 (unsigned long long)compiler->processor_ns / 1000000,
		 compiler->timed_out ? " timed out" : "");
	vgpu_requests_answer(s, compiler->client, compiler->sequence, status, compiler->status);
}

void vgpu_compilers_forget(struct vgpu_supervisor *s, uint64_t client)
{
	for (unsigned int i = s->queued; i--;)
		if (s->queue[i].client == client)
			drop(s, i);
	for (unsigned int i = 0; i < VGPU_COMPILERS_MAX; i++)
		if (s->compilers[i].used && s->compilers[i].client == client)
			vgpu_kill(s, &s->compilers[i], "its child has ended");
}

uint64_t vgpu_compilers_poll(struct vgpu_supervisor *s, uint64_t now_ns)
{
	uint64_t next_ns = s->queued && s->compilers_next_ns ? s->compilers_next_ns : UINT64_MAX;

	for (unsigned int i = 0; i < VGPU_COMPILERS_MAX; i++) {
		struct vgpu_supervised *compiler = &s->compilers[i];

		if (!compiler->used || compiler->killed)
			continue;
		if (compiler->deadline_ns <= now_ns) {
			compiler->timed_out = true;
			vgpu_kill(s, compiler, "it took too long");
		} else if (compiler->deadline_ns < next_ns) {
			next_ns = compiler->deadline_ns;
		}
	}
	return next_ns;
}
