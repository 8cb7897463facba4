// SPDX-License-Identifier: Apache-2.0
#include "executor/child/sleep_backend.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "protocol/control.h"

#define QUEUED		4096u
/* Maximum number of pieces in progress, so that few are left when a lease ends. */
#define UNDER_WAY	2u

/**
 * struct vgpu_backend - indices count up: ended <= finished <= submitted <= queued
 * @pieces: a ring of requests
 * @ended: pieces that the timer thread has ended
 * @finished: pieces that the main thread has answered
 */
struct vgpu_backend {
	struct vgpu_child_services services;
	struct vgpu_sleep_request pieces[QUEUED];
	uint64_t finished;
	uint64_t queued;
	uint64_t token;
	struct vgpu_sleep_request compiling[256];
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t more;
	uint64_t submitted;
	uint64_t ended;
	uint64_t ended_at_ns[QUEUED];
	bool closing;
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void *run(void *argument)
{
	struct vgpu_backend *backend = argument;

	pthread_mutex_lock(&backend->lock);
	while (!backend->closing) {
		uint64_t at = backend->ended % QUEUED, end_ns;
		struct timespec end;

		if (backend->ended == backend->submitted) {
			pthread_cond_wait(&backend->more, &backend->lock);
			continue;
		}
		pthread_mutex_unlock(&backend->lock);
		end_ns = now_ns() + backend->pieces[at].value;
		end.tv_sec = (time_t)(end_ns / 1000000000u);
		end.tv_nsec = (long)(end_ns % 1000000000u);
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR)
			;
		backend->ended_at_ns[at] = now_ns();
		pthread_mutex_lock(&backend->lock);
		backend->ended++;
		backend->services.wake(backend->services.child);
	}
	pthread_mutex_unlock(&backend->lock);
	return NULL;
}

static int open_backend(const struct vgpu_backend_configuration *configuration,
			struct vgpu_backend **opened, char *reason)
{
	struct vgpu_backend *backend = calloc(1, sizeof(*backend));
	int error;

	if (!backend) {
		snprintf(reason, VGPU_REASON_BYTES, "sleep backend");
		return ENOMEM;
	}
	backend->services = configuration->services;
	pthread_mutex_init(&backend->lock, NULL);
	pthread_cond_init(&backend->more, NULL);
	error = pthread_create(&backend->thread, NULL, run, backend);
	if (error) {
		snprintf(reason, VGPU_REASON_BYTES, "sleep backend: its thread");
		free(backend);
		return error;
	}
	*opened = backend;
	return 0;
}

static void answer(struct vgpu_backend *backend, const struct vgpu_sleep_request *request,
		   uint64_t value, uint32_t status)
{
	struct vgpu_sleep_request reply = *request;

	reply.value = value;
	reply.status = status;
	backend->services.reply(backend->services.child, &reply.header);
}

static uint32_t compile(struct vgpu_backend *backend, const struct vgpu_sleep_request *request)
{
	uint64_t token = backend->token++ % 256;
	int job = memfd_create("job", MFD_CLOEXEC);

	if (job < 0 || ftruncate(job, (off_t)request->value))
		return (uint32_t)errno;
	backend->compiling[token] = *request;
	return (uint32_t)backend->services.compile(backend->services.child, job, token);
}

static bool handle(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	const struct vgpu_sleep_request *request = (const void *)message;
	uint32_t status;

	if (message->bytes != sizeof(*request))
		return false;
	switch ((enum vgpu_sleep_op)message->op) {
	case VGPU_SLEEP_WORK:
		backend->pieces[backend->queued++ % QUEUED] = *request;
		return true;
	case VGPU_SLEEP_ECHO:
		for (uint64_t i = 0; i < request->value; i++)
			answer(backend, request, i, 0);
		return true;
	case VGPU_SLEEP_RESERVE:
		status = (uint32_t)backend->services.reserve(backend->services.child,
							     request->value);
		answer(backend, request, request->value, status);
		return true;
	case VGPU_SLEEP_RELEASE:
		backend->services.release(backend->services.child, request->value);
		answer(backend, request, request->value, 0);
		return true;
	case VGPU_SLEEP_COMPILE:
		status = compile(backend, request);
		if (status)
			answer(backend, request, 0, status);
		return true;
	}
	return false;
}

static const char *malformed(struct vgpu_backend *backend)
{
	(void)backend;
	return "not a request of the sleep backend";
}

static bool full(struct vgpu_backend *backend)
{
	return backend->queued - backend->finished == QUEUED;
}

static void collect(struct vgpu_backend *backend)
{
	uint64_t ended;

	pthread_mutex_lock(&backend->lock);
	ended = backend->ended;
	pthread_mutex_unlock(&backend->lock);
	while (backend->finished != ended) {
		uint64_t at = backend->finished % QUEUED;

		answer(backend, &backend->pieces[at], backend->ended_at_ns[at], 0);
		backend->finished++;
	}
}

static void submit(struct vgpu_backend *backend)
{
	uint64_t until_ns = 0;

	for (uint64_t piece = backend->finished; piece != backend->submitted; piece++)
		until_ns += backend->pieces[piece % QUEUED].value;
	while (backend->submitted != backend->queued &&
	       backend->submitted - backend->finished < UNDER_WAY) {
		uint64_t value = backend->pieces[backend->submitted % QUEUED].value;

		until_ns = value > UINT64_MAX - until_ns ? UINT64_MAX : until_ns + value;
		if (!backend->services.may_submit(backend->services.child, until_ns))
			break;
		pthread_mutex_lock(&backend->lock);
		backend->submitted++;
		pthread_cond_signal(&backend->more);
		pthread_mutex_unlock(&backend->lock);
	}
}

static void outlook(struct vgpu_backend *backend, struct vgpu_backend_outlook *to)
{
	const struct vgpu_sleep_request *first = &backend->pieces[backend->submitted % QUEUED];

	*to = (struct vgpu_backend_outlook){
		.queued = backend->queued != backend->submitted &&
			  backend->submitted - backend->finished < UNDER_WAY,
		.under_way = backend->submitted != backend->finished,
		.submitted = backend->submitted,
		.finished = backend->finished,
	};
	if (to->queued) {
		to->kernel_id = first->kernel_id;
		to->hint_ns = first->value;
	}
}

static void compiled(struct vgpu_backend *backend, uint64_t token, int status, int exit_status,
		     int result)
{
	(void)result;
	answer(backend, &backend->compiling[token], (uint64_t)exit_status, (uint32_t)status);
}

static bool quiesce(struct vgpu_backend *backend)
{
	backend->queued = backend->submitted;
	return backend->submitted == backend->finished;
}

static void close_backend(struct vgpu_backend *backend)
{
	pthread_mutex_lock(&backend->lock);
	backend->closing = true;
	pthread_cond_signal(&backend->more);
	pthread_mutex_unlock(&backend->lock);
	pthread_join(backend->thread, NULL);
	free(backend);
}

const struct vgpu_backend_operations vgpu_sleep_backend = {
	.name = "sleep",
	.open = open_backend,
	.handle = handle,
	.malformed = malformed,
	.full = full,
	.collect = collect,
	.submit = submit,
	.outlook = outlook,
	.compiled = compiled,
	.quiesce = quiesce,
	.close = close_backend,
};
