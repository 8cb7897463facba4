// SPDX-License-Identifier: Apache-2.0
/*
 * A child that does what its client says.  It makes any system call with an instruction of its own,
 * like a kernel with inline assembly can.  It occupies processors and never yields.  It is also a
 * compiler that misbehaves.  Linked with the product's child.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "executor/child/child.h"
#include "executor/link.h"

#define SPINNERS	2u
#define TEXT_BYTES	512u
/* Descriptors where the child keeps its last job and the last result that it received. */
#define JOB	100
#define RESULT	101

enum hostile_op {
	HOSTILE_CALL = 1,	/* answered with the result of the last call */
	HOSTILE_SPIN,		/* threads count in the bulk area forever; answered */
	HOSTILE_HANG,		/* the main thread also counts; not answered */
	HOSTILE_COMPILE,	/* @text is the job; answered with status and result */
	HOSTILE_CRASH,
	HOSTILE_FORK,	/* starts a process that counts forever; answered with its process id */
};

struct hostile_request {
	struct vgpu_message header;
	uint64_t number;
	uint64_t arguments[6];
	uint64_t pointers;	/* bit mask of arguments that are offsets in @text */
	uint64_t times;
	unsigned char text[TEXT_BYTES];
};

struct hostile_reply {
	struct vgpu_message header;
	int64_t result;
	unsigned char text[TEXT_BYTES];
};

struct vgpu_backend {
	struct vgpu_child_services services;
	volatile uint64_t *counters;
	_Atomic int spinning;
	pthread_t spinners[SPINNERS];
};

static long make_call(long number, const uint64_t *a)
{
	register long r10 __asm__("r10") = (long)a[3];
	register long r8 __asm__("r8") = (long)a[4];
	register long r9 __asm__("r9") = (long)a[5];
	long result;

	__asm__ volatile("syscall" : "=a"(result)
			 : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

static void *spin(void *argument)
{
	struct vgpu_backend *backend = argument;

	while (!backend->spinning)
		usleep(1000);
	for (;;)
		backend->counters[0]++;
	return NULL;
}

static int open_backend(const struct vgpu_backend_configuration *configuration,
			struct vgpu_backend **opened, char *reason)
{
	struct vgpu_backend *backend = calloc(1, sizeof(*backend));

	(void)reason;
	if (!backend)
		return ENOMEM;
	backend->services = configuration->services;
	backend->counters = (void *)((char *)configuration->window + VGPU_WINDOW_BULK);
	for (unsigned int i = 0; i < SPINNERS; i++)
		if (pthread_create(&backend->spinners[i], NULL, spin, backend))
			return EAGAIN;
	*opened = backend;
	return 0;
}

static void answer(struct vgpu_backend *backend, uint64_t call, int64_t result, const void *text)
{
	struct hostile_reply reply = {
		.header = { .bytes = sizeof(reply), .op = HOSTILE_CALL, .call = call },
		.result = result,
	};

	if (text)
		memcpy(reply.text, text, sizeof(reply.text));
	backend->services.reply(backend->services.child, &reply.header);
}

static int64_t call(struct hostile_request *request)
{
	int64_t result = 0;

	for (unsigned int i = 0; i < 6; i++)
		if (request->pointers & 1u << i)
			request->arguments[i] = (uintptr_t)request->text + request->arguments[i];
	for (uint64_t i = 0; i < request->times; i++)
		result = make_call((long)request->number, request->arguments);
	return result;
}

static bool handle(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	struct hostile_request request;
	int job;

	if (message->bytes != sizeof(request))
		return false;
	memcpy(&request, message, sizeof(request));
	switch ((enum hostile_op)message->op) {
	case HOSTILE_CALL: {
		int64_t result = call(&request);

		answer(backend, message->call, result, request.text);
		return true;
	}
	case HOSTILE_SPIN:
		backend->spinning = 1;
		answer(backend, message->call, 0, NULL);
		return true;
	case HOSTILE_HANG:
		for (;;)
			backend->counters[1]++;
	case HOSTILE_COMPILE:
		job = memfd_create("job", MFD_CLOEXEC);
		if (job < 0 || write(job, request.text, TEXT_BYTES) < 0 || dup2(job, JOB) < 0)
			return false;
		if (backend->services.compile(backend->services.child, job, message->call))
			answer(backend, message->call, -EAGAIN, NULL);
		return true;
	case HOSTILE_FORK:
		job = fork();
		while (!job)
			backend->counters[2]++;
		answer(backend, message->call, job, NULL);
		return true;
	case HOSTILE_CRASH:
		*(volatile int *)(uintptr_t)request.number = 0;
	}
	return false;
}

static const char *malformed(struct vgpu_backend *backend)
{
	(void)backend;
	return "no request of the hostile backend";
}

static bool never(struct vgpu_backend *backend)
{
	(void)backend;
	return false;
}

static void nothing(struct vgpu_backend *backend)
{
	(void)backend;
}

static void outlook(struct vgpu_backend *backend, struct vgpu_backend_outlook *to)
{
	(void)backend;
	memset(to, 0, sizeof(*to));
}

static void compiled(struct vgpu_backend *backend, uint64_t token, int status, int exit_status,
		     int result)
{
	unsigned char text[TEXT_BYTES] = { 0 };

	(void)exit_status;
	if (result >= 0 && (pread(result, text, sizeof(text), 0) < 0 || dup2(result, RESULT) < 0))
		status = errno;
	answer(backend, token, status, text);
}

static const struct vgpu_backend_operations hostile_backend = {
	.name = "hostile", .open = open_backend, .handle = handle, .malformed = malformed,
	.full = never, .collect = nothing, .submit = nothing, .outlook = outlook, .compiled = compiled,
	.quiesce = never, .close = nothing,
};

static int start_linker(int result)
{
	pid_t linker = vfork();
	int status;

	if (!linker) {
		dup2(result, 1);
		execl("/usr/bin/ld", "ld", "--version", NULL);
		_exit(9);
	}
	return linker > 0 && waitpid(linker, &status, 0) == linker && !status ? 0 : 1;
}

static int compile(const char *library, int job, int result)
{
	char what = 0, page[4096];
	uint64_t none[6] = { 0 };

	(void)library;
	if (read(job, &what, 1) != 1)
		return 4;
	switch (what) {
	case 'c':	/* copies the job */
	case 'r':	/* copies the job and declares the copy to be the reason of a failure */
		while (read(job, page, 1) == 1)
			if (write(result, page, 1) != 1)
				return 5;
		return what == 'c' ? 0 : VGPU_COMPILER_REFUSED;
	case 's':	/* runs forever */
		for (;;)
			;
	case 'f':	/* leaves a process behind */
		if (!make_call(57, none))
			for (;;)
				pause();
		return 0;
	case 'g':	/* two processes run forever */
		make_call(57, none);
		for (;;)
			pause();
	case 'm':	/* allocates all memory */
		for (;;) {
			void *memory = malloc(64u << 20);

			if (!memory)
				return 6;
			memset(memory, 1, 64u << 20);
		}
	case 'x':
		return start_linker(result);
	case 'o':	/* writes an endless result */
		memset(page, 1, sizeof(page));
		signal(SIGXFSZ, SIG_IGN);
		while (write(result, page, sizeof(page)) > 0)
			;
		return 7;
	default:
		return 8;
	}
}

int main(int argc, char **argv)
{
	const struct vgpu_backend_operations *const backends[] = { &hostile_backend, NULL };

	return vgpu_child_main(argc, argv, backends, compile);
}
