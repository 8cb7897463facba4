// SPDX-License-Identifier: Apache-2.0
/*
 * A child on the fake of NVIDIA's driver (tests/gpu/fakerm).  It makes a context like libcuda does
 * and gives the GPU an endless kernel.  Then it makes the calls that its client asks for, with a
 * system call instruction of its own.  A file of the driver is a connection to the fake's server; the
 * path of the server's socket is --library.  The kernel itself answers no ioctl() on such a connection,
 * so every answer comes from somebody else.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "executor/child/child.h"
#include "protocol.h"
#include "rm_abi.h"

#define BYTES	10240u
#define ENDLESS_NS	1000000000000ull
#define GROUPS	2u
/* Descriptors whose numbers the client knows. */
enum { DRIVER = 100, OTHER };

enum driver_op {
	DRIVER_CALL = 1,	/* answered with the result and the bytes after the call */
	DRIVER_RACE,	/* like CALL, many times, while a thread changes the command */
	DRIVER_HANDLES,	/* answered with the handles of the context */
	DRIVER_CLOSE,	/* closes @file */
	DRIVER_FOREIGN,	/* like CALL, by a system call of another architecture: enum foreign */
	DRIVER_HOG,	/* from now on, wants a lease and never gives one back; answered */
};

enum foreign { FOREIGN_I386, FOREIGN_X32 };

/**
 * struct driver_request - a call
 * @request: the request number of ioctl(); @file is its descriptor
 * @pointers: offsets in @bytes of pointers into @bytes; each pointer holds an offset; 0 ends the list
 * @other: for FOREIGN: the architecture; for CALL: nonzero makes the argument an invalid address
 * @command_at: the offset where the thread of RACE alternates between @other and the original command
 */
struct driver_request {
	struct vgpu_message header;
	uint32_t request;
	uint32_t file;
	uint32_t pointers[4];
	uint32_t command_at;
	uint32_t other;
	uint64_t times;
	unsigned char bytes[BYTES];
};

/* @counts: for RACE: calls with the driver's status OK, and with any other status */
struct driver_reply {
	struct vgpu_message header;
	int64_t result;
	uint64_t counts[2];
	unsigned char bytes[BYTES];
};

struct vgpu_backend {
	struct vgpu_child_services services;
	uint32_t client, device, subdevice, group, channel;
	pthread_t racer;
	_Atomic(volatile uint32_t *) raced;
	_Atomic uint32_t race[2];
	_Atomic int resting;
	bool hog;
};

static int make_ioctl(int file, unsigned long request, void *argument)
{
	long result;

	__asm__ volatile("syscall" : "=a"(result)
			 : "a"((long)SYS_ioctl), "D"((long)file), "S"(request), "d"(argument)
			 : "rcx", "r11", "memory");
	return (int)result;
}

/* The kernel truncates the address to 32 bits in both cases, so such a call cannot reach the driver. */
static int make_foreign_ioctl(enum foreign architecture, int file, unsigned long request, void *argument)
{
	long result = -ENOSYS;

#ifdef __x86_64__
	if (architecture == FOREIGN_I386)
		__asm__ volatile("int $0x80" : "=a"(result)
				 : "a"(54L), "b"((long)file), "c"(request), "d"(argument) : "memory");
	else
		__asm__ volatile("syscall" : "=a"(result)
				 : "a"(0x40000000L | 514), "D"((long)file), "S"(request), "d"(argument)
				 : "rcx", "r11", "memory");
#endif
	return (int)result;
}

static int connect_to(const char *path, int place)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int file = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	if (file < 0 || connect(file, (struct sockaddr *)&address, sizeof(address)) || dup2(file, place) < 0)
		return errno;
	close(file);
	return 0;
}

static uint32_t make(struct vgpu_backend *backend, uint32_t parent, uint32_t class, void *parameters,
		     uint32_t bytes)
{
	static uint32_t handle = 0x5c000001;
	struct rm_alloc_long alloc = {
		.client = backend->client, .parent = parent, .class_id = class,
		.object = class == RM_CLASS_ROOT_CLIENT ? 0 : handle++,
		.params = (uintptr_t)parameters, .params_size = bytes,
	};

	if (make_ioctl(DRIVER, _IOWR(RM_MAGIC, RM_ESC_ALLOC, struct rm_alloc_long), &alloc) || alloc.status)
		return 0;
	return alloc.object;
}

/* Submits work to the GPU.  On a real GPU, this needs no system call. */
static bool submit(struct vgpu_backend *backend)
{
	struct {
		struct fake_request request;
		struct fake_work work;
	} packet = {
		.request = {
			.request = FAKE_MAGIC << 8 | FAKE_SUBMIT, .header_size = sizeof(packet.work),
		},
		.work = { .client = backend->client, .group = backend->group, .value = ENDLESS_NS },
	};
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = { .header = {
		.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int)),
	} };
	struct iovec part = { &packet, sizeof(packet) };
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control),
	};
	struct fake_answer answer;
	int pair[2];
	bool done;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair))
		return false;
	memcpy(CMSG_DATA(&control.header), &pair[1], sizeof(int));
	done = sendmsg(DRIVER, &message, 0) == sizeof(packet) &&
	       recv(pair[0], &answer, sizeof(answer), MSG_TRUNC) > 0 && !answer.result;
	close(pair[0]);
	close(pair[1]);
	return done;
}

static bool begin(struct vgpu_backend *backend)
{
	unsigned char device[56] = { 0 }, channel[368] = { 0 };
	struct rm_group_params group = { .engine_type = RM_ENGINE_GR0 };
	struct rm_schedule schedule = { .enable = 1 };
	struct rm_control control = {
		.cmd = RM_CMD_GROUP_SCHEDULE, .params = (uintptr_t)&schedule, .params_size = sizeof(schedule),
	};
	uint32_t none = 0;

	backend->client = make(backend, 0, RM_CLASS_ROOT_CLIENT, NULL, 0);
	backend->device = make(backend, backend->client, RM_CLASS_DEVICE, device, sizeof(device));
	backend->subdevice = make(backend, backend->device, RM_CLASS_SUBDEVICE, &none, sizeof(none));
	backend->group = make(backend, backend->device, RM_CLASS_GROUP, &group, sizeof(group));
	backend->channel = make(backend, backend->group, 0xc86f, channel, sizeof(channel));
	control.client = backend->client;
	control.object = backend->group;
	return backend->channel &&
	       !make_ioctl(DRIVER, _IOWR(RM_MAGIC, RM_ESC_CONTROL, struct rm_control), &control) &&
	       !control.status && submit(backend);
}

static void *race(void *argument)
{
	struct vgpu_backend *backend = argument;
	unsigned int turn = 0;

	for (;;) {
		volatile uint32_t *word = atomic_load(&backend->raced);

		atomic_store(&backend->resting, !word);
		if (!word) {
			usleep(1000);
			continue;
		}
		*word = atomic_load(&backend->race[turn++ % 2]);
	}
	return NULL;
}

static int open_backend(const struct vgpu_backend_configuration *configuration,
			struct vgpu_backend **opened, char *reason)
{
	struct vgpu_backend *backend = calloc(1, sizeof(*backend));
	struct rm_version version = { 0 };
	const char *dot = strrchr(configuration->library, '/');
	char path[108];

	snprintf(path, sizeof(path), "%.*s/socket", (int)(dot - configuration->library), configuration->library);
	backend->services = configuration->services;
	if (connect_to(path, DRIVER) || connect_to(path, OTHER)) {
		snprintf(reason, VGPU_REASON_BYTES, "there is no driver at %.100s", path);
		return ENXIO;
	}
	snprintf(version.text, sizeof(version.text), "%s", dot + 1);
	if (make_ioctl(DRIVER, _IOWR(RM_MAGIC, RM_ESC_CHECK_VERSION, struct rm_version), &version) ||
	    !begin(backend)) {
		snprintf(reason, VGPU_REASON_BYTES, "no context on driver %s", version.text);
		return ENODEV;
	}
	if (pthread_create(&backend->racer, NULL, race, backend))
		return EAGAIN;
	*opened = backend;
	return 0;
}

static void answer(struct vgpu_backend *backend, uint64_t call, struct driver_reply *reply)
{
	reply->header = (struct vgpu_message){ .bytes = sizeof(*reply), .op = DRIVER_CALL, .call = call };
	backend->services.reply(backend->services.child, &reply->header);
}

/* Replaces offsets by addresses within @bytes. */
static void relocate(struct driver_request *request)
{
	for (unsigned int i = 0; i < 4 && request->pointers[i]; i++) {
		uint64_t value;

		memcpy(&value, request->bytes + request->pointers[i], sizeof(value));
		value += (uintptr_t)request->bytes;
		memcpy(request->bytes + request->pointers[i], &value, sizeof(value));
	}
}

static void call_often(struct vgpu_backend *backend, struct driver_request *request, struct driver_reply *reply)
{
	struct rm_control *control = (struct rm_control *)request->bytes;

	atomic_store(&backend->race[0], request->other);
	atomic_store(&backend->race[1], control->cmd);
	atomic_store(&backend->resting, 0);
	atomic_store(&backend->raced, (volatile uint32_t *)(request->bytes + request->command_at));
	for (uint64_t i = 0; i < request->times; i++) {
		control->status = UINT32_MAX;
		reply->result = make_ioctl((int)request->file, request->request, request->bytes);
		reply->counts[control->status != RM_OK]++;
	}
	atomic_store(&backend->raced, NULL);
	while (!atomic_load(&backend->resting))
		sched_yield();
}

static bool handle(struct vgpu_backend *backend, const struct vgpu_message *message)
{
	static _Alignas(8) struct driver_request request;
	static struct driver_reply reply;
	const uint32_t handles[] = {
		backend->client, backend->device, backend->subdevice, backend->group, backend->channel,
	};

	if (message->bytes != sizeof(request))
		return false;
	memcpy(&request, message, sizeof(request));
	memset(&reply, 0, sizeof(reply));
	relocate(&request);
	switch ((enum driver_op)message->op) {
	case DRIVER_CALL:
		reply.result = make_ioctl((int)request.file, request.request,
					  request.other ? NULL : request.bytes);
		break;
	case DRIVER_FOREIGN:
		reply.result = make_foreign_ioctl(request.other, (int)request.file, request.request,
						  request.bytes);
		break;
	case DRIVER_RACE:
		call_often(backend, &request, &reply);
		break;
	case DRIVER_HANDLES:
		memcpy(request.bytes, handles, sizeof(handles));
		break;
	case DRIVER_CLOSE:
		reply.result = close((int)request.file);
		break;
	case DRIVER_HOG:
		backend->hog = true;
		break;
	default:
		return false;
	}
	memcpy(reply.bytes, request.bytes, sizeof(reply.bytes));
	answer(backend, message->call, &reply);
	return true;
}

static const char *malformed(struct vgpu_backend *backend)
{
	(void)backend;
	return "no request of the driver backend";
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
	memset(to, 0, sizeof(*to));
	to->queued = to->under_way = backend->hog;
}

static void compiled(struct vgpu_backend *backend, uint64_t token, int status, int exit_status, int result)
{
	(void)backend;
	(void)token;
	(void)status;
	(void)exit_status;
	(void)result;
}

static const struct vgpu_backend_operations driver_backend = {
	.name = "driver", .open = open_backend, .handle = handle, .malformed = malformed, .full = never,
	.collect = nothing, .submit = nothing, .outlook = outlook, .compiled = compiled,
	.quiesce = never, .close = nothing,
};

int main(int argc, char **argv)
{
	const struct vgpu_backend_operations *const backends[] = { &driver_backend, NULL };

	return vgpu_child_main(argc, argv, backends, NULL);
}
