// SPDX-License-Identifier: Apache-2.0
/*
 * Callbacks run in this library's own thread, without locks, one after the other.  The thread is started when a
 * program registers its first callback.  While a callback is expected, the thread waits for replies like any
 * other thread.
 */
#include "guest/opencl/call.h"

#include <signal.h>

struct job {
	struct job *next;
	struct event_callback *event;
	void (CL_CALLBACK *build)(cl_program, void *);
	cl_program program;
	cl_context context;
	char *text;
	void *user;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static struct job *first, **last = &first;
static atomic_int waiting;	/* number of jobs in the list */
static int expected;
static bool started;

static void put(struct job *job)
{
	pthread_mutex_lock(&lock);
	job->next = NULL;
	*last = job;
	last = &job->next;
	atomic_fetch_add(&waiting, 1);
	pthread_cond_signal(&more);
	pthread_mutex_unlock(&lock);
	/*
	 * The callbacks' thread finds the job once it has handled the present replies.  A caller that is not a
	 * reply handler must also call vgpu_kick().
	 */
}

static struct job *take(void)
{
	struct job *job;

	pthread_mutex_lock(&lock);
	job = first;
	if (job) {
		first = job->next;
		if (!first)
			last = &first;
		atomic_fetch_sub(&waiting, 1);
	}
	pthread_mutex_unlock(&lock);
	return job;
}

static bool job_there(void *argument)
{
	(void)argument;
	return atomic_load(&waiting) > 0;
}

static void run(struct job *job)
{
	if (job->event) {
		struct event_callback *callback = job->event;

		callback->function(callback->event, callback->status, callback->user);
		object_drop(callback->event);
		free(callback);
		callbacks_expect(-1);
	} else if (job->build) {
		job->build(job->program, job->user);
		object_drop(job->program);
		callbacks_expect(-1);
	} else {
		job->context->notify(job->text, NULL, 0, job->context->user);
		object_drop(job->context);
		free(job->text);
	}
	free(job);
	vgpu_cl_bury();
}

/* Sleeps until there is a job.  With @or_expected, also returns if a callback is expected. */
static void rest(bool or_expected)
{
	pthread_mutex_lock(&lock);
	while (!first && !(or_expected && expected > 0))
		pthread_cond_wait(&more, &lock);
	pthread_mutex_unlock(&lock);
}

static void *work(void *argument)
{
	(void)argument;
	for (;;) {
		struct job *job;

		rest(true);
		/*
		 * The child is lost, so the callbacks expected from it are queued with errors.  Only user
		 * events are left, which the program itself ends, so sleep until a job is queued.
		 */
		if (!vgpu_wait(job_there, NULL))
			rest(false);
		while ((job = take()))
			run(job);
	}
	return NULL;
}

/* The forked copy has no thread that waits for the condition, so initialise the condition again. */
static void after_fork(void)
{
	pthread_cond_init(&more, NULL);
}

void callbacks_prepare(void)
{
	vgpu_keep_over_fork(&lock);
	pthread_atfork(NULL, NULL, after_fork);
}

bool callbacks_start(void)
{
	sigset_t all, before;
	pthread_t thread;

	pthread_mutex_lock(&lock);
	if (!started) {
		/* Signals of the program must be handled in its own threads. */
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		if (pthread_create(&thread, NULL, work, NULL) == 0) {
			pthread_detach(thread);
			started = true;
		}
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	pthread_mutex_unlock(&lock);
	return started;
}

void callbacks_expect(int change)
{
	pthread_mutex_lock(&lock);
	expected += change;
	pthread_cond_signal(&more);
	pthread_mutex_unlock(&lock);
}

void callback_event(struct event_callback *callback)
{
	struct job *job = calloc(1, sizeof(*job));

	if (!job)
		return;	/* without memory for a job the callback is lost */
	job->event = callback;
	put(job);
}

void callback_program(void (CL_CALLBACK *function)(cl_program, void *), cl_program program, void *user)
{
	struct job *job = calloc(1, sizeof(*job));

	if (!job)
		return;
	job->build = function;
	job->program = program;
	job->user = user;
	object_hold(program);
	put(job);
}

void callback_context(cl_context context, const char *text)
{
	struct job *job = calloc(1, sizeof(*job));

	if (!job)
		return;
	job->context = context;
	job->text = strdup(text);
	object_hold(context);
	put(job);
}
