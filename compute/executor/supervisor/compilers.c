// SPDX-License-Identifier: Apache-2.0
/*
 * Compilers: processes that compile the children's jobs.  Their number is limited, and each has
 * limits on time and memory.  They run while the gate is closed, because they do not use the
 * accelerator.  A job that was compiled before needs no compiler (kept.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include "executor/log.h"
#include "executor/supervisor/supervisor.h"
#include "protocol/window.h"

/*
 * Number of compilers that may be started at once, and the interval between further starts.
 * Starting one costs the supervisor about a millisecond of processor time, which is charged to no
 * child.
 */
#define START_BURST	64u
#define START_EVERY_NS	50000000ull
/*
 * Descriptors in addition to those of waiting jobs and kept results: at most 5 for a child and 6
 * for a compiler, three for each level of a process tree, and the supervisor's own.
 */
#define OTHER_DESCRIPTORS	(5 * VGPU_CHILDREN_MAX + 6 * VGPU_COMPILERS_MAX + 160)

/* Return: 0 if a compiler may be started now, otherwise the time when it may be started. */
static uint64_t take_permit(struct vgpu_supervisor *s, uint64_t now_ns)
{
	uint64_t spent_ns = START_BURST * START_EVERY_NS;

	/*
	 * @compilers_paid_ns is the time up to which starts have been paid for, at most a burst in
	 * the past.
	 */
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

/* Accepts only a memfd: a compiler must not get a device, a socket or a file on a disk. */
static bool is_memfd(int descriptor)
{
	return fcntl(descriptor, F_GET_SEALS) >= 0;
}

/* Makes a memfd immutable: no process is left that could write to the memfd. */
static bool seal(int file)
{
	return !fcntl(file, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
}

static int copy_of(const struct vgpu_kept_job *job)
{
	int file = memfd_create("vgpu-job", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (file >= 0 && pwrite(file, job->data, job->bytes, 0) == (ssize_t)job->bytes && seal(file))
		return file;
	if (file >= 0)
		close(file);
	return -1;
}

void vgpu_compilers_open(struct vgpu_supervisor *s)
{
	struct rlimit limit = { 0 };
	uint64_t left;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	left = limit.rlim_cur > OTHER_DESCRIPTORS ? limit.rlim_cur - OTHER_DESCRIPTORS : 0;
	s->kept.limit_bytes = s->options.compile_cache_bytes;
	s->kept.limit_results = left / 4 < VGPU_KEPT_RESULTS_MAX ? (unsigned int)left / 4 :
								  VGPU_KEPT_RESULTS_MAX;
	left -= s->kept.limit_results;
	s->places = left < VGPU_QUEUE_MAX ? (unsigned int)left : VGPU_QUEUE_MAX;
	if (s->places < 2 * VGPU_CHILDREN_MAX)
		vgpu_log(LOG_WARNING, "event=descriptors limit of %llu is low for many children",
			 (unsigned long long)limit.rlim_cur);
}

/* The last places are reserved for children that have no job yet. */
static bool has_place(const struct vgpu_supervisor *s, uint64_t client)
{
	unsigned int jobs = jobs_of(s, client);

	return jobs < VGPU_JOBS_MAX && s->queued + (jobs ? VGPU_CHILDREN_MAX : 0) < s->places;
}

int vgpu_compilers_queue(struct vgpu_supervisor *s, struct vgpu_supervised *child,
			 uint64_t sequence, int file)
{
	struct vgpu_job *last = &s->queue[s->queued];
	struct stat status;
	int result;

	if (!is_memfd(file) || fstat(file, &status))
		return EINVAL;
	if (status.st_size < 0 || (uint64_t)status.st_size > VGPU_JOB_BYTES_MAX)
		return E2BIG;
	if (!has_place(s, child->number))
		return EAGAIN;
	*last = (struct vgpu_job){ .client = child->number, .sequence = sequence };
	last->job = vgpu_kept_read(&s->kept, file, (size_t)status.st_size, vgpu_now_ns());
	result = last->job ? vgpu_kept_find(&s->kept, last->job) : -1;
	if (result >= 0) {
		s->kept.hits++;
		vgpu_kept_drop(&s->kept, last->job);
		vgpu_requests_answer(s, child->number, sequence, 0, 0, result);
		return 0;
	}
	last->file = last->job ? copy_of(last->job) : fcntl(file, F_DUPFD_CLOEXEC, 0);
	if (last->file < 0) {
		vgpu_kept_drop(&s->kept, last->job);
		return EAGAIN;
	}
	s->queued++;
	vgpu_compilers_start(s);
	return 0;
}

static void take_out(struct vgpu_supervisor *s, unsigned int index)
{
	close(s->queue[index].file);
	s->queued--;
	memmove(&s->queue[index], &s->queue[index + 1], (s->queued - index) * sizeof(s->queue[0]));
}

static void drop(struct vgpu_supervisor *s, unsigned int index)
{
	vgpu_kept_drop(&s->kept, s->queue[index].job);
	take_out(s, index);
}

/*
 * Chooses the first job of the child with the fewest compilers, so that a child that sends many
 * jobs delays only itself.
 */
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

/* If the compiler starts, it owns the job. */
static int start(struct vgpu_supervisor *s, struct vgpu_supervised *compiler,
		 const struct vgpu_job *job)
{
	int descriptors[2] = { job->file, memfd_create("vgpu-result", MFD_CLOEXEC | MFD_ALLOW_SEALING) };
	int error;

	if (descriptors[1] < 0)
		return errno;
	/*
	 * If the file is the child's own memfd, not a copy, the child has moved its offset by
	 * writing the job.
	 */
	lseek(job->file, 0, SEEK_SET);
	*compiler = (struct vgpu_supervised){
		.compiler = true, .number = ++s->compilers_started, .link = -1, .window = -1,
		.client = job->client, .sequence = job->sequence, .result = descriptors[1],
		.job = job->job,
	};
	error = vgpu_start(s, compiler, 0, VGPU_WINDOW_BYTES_MIN, descriptors, 2);
	compiler->deadline_ns = vgpu_now_ns() + s->options.compiler_limit_ns;
	if (error)
		close(compiler->result);
	else
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
		if (!error) {
			take_out(s, chosen);
			continue;
		}
		vgpu_log(LOG_ERR, "event=compiler cannot be started, error=%d", error);
		vgpu_requests_answer(s, s->queue[chosen].client, s->queue[chosen].sequence, EIO, 0, -1);
		drop(s, chosen);
	}
}

/* Answers the waiting jobs whose result has just been kept. */
static void answer_same(struct vgpu_supervisor *s, uint64_t hash)
{
	for (unsigned int i = s->queued; i--;) {
		struct vgpu_job *job = &s->queue[i];
		int result = job->job && job->job->hash == hash ? vgpu_kept_find(&s->kept, job->job) : -1;

		if (result < 0)
			continue;
		s->kept.hits++;
		vgpu_requests_answer(s, job->client, job->sequence, 0, 0, result);
		drop(s, i);
	}
}

static bool has_result(const struct vgpu_supervised *compiler)
{
	return !compiler->timed_out && WIFEXITED(compiler->status) &&
	       (WEXITSTATUS(compiler->status) == 0 ||
		WEXITSTATUS(compiler->status) == VGPU_COMPILER_REFUSED) && seal(compiler->result);
}

void vgpu_compilers_ended(struct vgpu_supervisor *s, struct vgpu_supervised *compiler)
{
	int status = has_result(compiler) ? 0 : compiler->timed_out ? ETIMEDOUT : EIO;

	vgpu_log(status ? LOG_WARNING : LOG_DEBUG,
		 "compiler=%llu event=ended child=%llu status=0x%x after_ms=%llu processor_ms=%llu%s",
		 (unsigned long long)compiler->number, (unsigned long long)compiler->client,
		 (unsigned int)compiler->status,
		 (unsigned long long)(vgpu_now_ns() - compiler->started_ns) / 1000000,
		 (unsigned long long)compiler->processor_ns / 1000000,
		 compiler->timed_out ? " timed out" : "");
	vgpu_requests_answer(s, compiler->client, compiler->sequence, status, compiler->status,
			     status ? -1 : compiler->result);
	if (!status && !compiler->status && compiler->job) {
		uint64_t hash = compiler->job->hash;

		vgpu_kept_add(&s->kept, compiler->job, compiler->result);
		answer_same(s, hash);
	} else {
		vgpu_kept_drop(&s->kept, compiler->job);
		close(compiler->result);
	}
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
