// SPDX-License-Identifier: Apache-2.0
/*
 * Plays broker and child for tests of the client's library: one connection, no OpenCL.
 *
 *	play_child SOCKET MODE
 *
 * It listens on SOCKET and prints "ready".  It answers HELLO with one device, and each request that
 * wants an answer with success.  It reports the completion of each command that asks for this.
 *
 *	work		does only the above
 *	print		also prints one line for each message, with the contents of a LAUNCH
 *	refuse		refuses the client
 *	lose N		is lost after N messages: sets LOST, like a process that reaps a child does
 *	vanish N	closes the connection after N messages and changes nothing else
 *	tell N		is lost after N messages and gives the reason, like the broker does
 *	silent N	stops handling messages after N messages, and does not end
 *	garbage N	answers message N with a reply of nonsense
 *	tail N		sets the reply ring's tail to nonsense after N messages
 *	head N		sets the request ring's head to nonsense after N messages
 *	chaos SEED	changes words of its replies at random, and sends replies that nobody waits for
 *	fail		when asked to finish, reports once that a command has failed
 *	hold		completes no command before a FLUSH comes
 */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <linux/futex.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "opencl_decode.h"
#include "opencl_encode.h"
#include "protocol/control.h"

#define WINDOW_BYTES (16ull << 20)
#define HELD_MAX 4096

static struct vgpu_window *window;
static uint8_t *base;
static const char *mode;
static unsigned long limit = ULONG_MAX;
static int client = -1;
static struct vgpu_message held[HELD_MAX];
static unsigned int held_count;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void ring_bell(_Atomic uint32_t *word)
{
	atomic_fetch_add(word, 1);
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static uint64_t state;

static uint64_t number(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static void put(const struct vgpu_message *message);

/*
 * Sometimes changes words behind the lengths, the kind of the message, its length, or the call that it
 * answers.
 */
static void put_changed(const struct vgpu_message *message)
{
	static uint64_t space[VGPU_MESSAGE_BYTES / 8];
	struct vgpu_message *changed = (struct vgpu_message *)space;
	uint32_t words = message->bytes / 4;

	memcpy(space, message, message->bytes);
	for (uint64_t left = number() % 4; left && words > 4; left--) {
		uint32_t value = number() % 2 ? (uint32_t)(number() % 9) : (uint32_t)number();

		((uint32_t *)space)[4 + number() % (words - 4)] = value;
	}
	if (number() % 50 == 0)
		changed->op = (uint16_t)(VGPU_CL_ANSWER + number() % 5);
	if (number() % 50 == 0 && changed->bytes > 24)
		changed->bytes = 24 + (uint32_t)(number() % (changed->bytes - 16)) / 8 * 8;
	put(changed);
	if (number() % 20 == 0) {
		changed->call = number() % 2 ? number() % 64 : number();
		put(changed);
	}
	if (number() % 50 == 0) {
		struct vgpu_cl_context_news_parts news;

		vgpu_cl_place_context_news(space, 16, &news);
		news.message->context = (uint32_t)(number() % 2 ? number() % 8 : number());
		memset(news.text, 'x', 16);
		put(&news.message->header);
	}
}

static void reply(const struct vgpu_message *message)
{
	if (strcmp(mode, "chaos") || atomic_load(&window->request.head) < 4096)
		put(message);	/* the client must be able to start */
	else
		put_changed(message);
}

/* Puts a whole message into the reply ring.  Tests never fill the ring. */
static void put(const struct vgpu_message *message)
{
	struct vgpu_ring *ring = &window->reply;
	uint64_t tail = ring->tail, at = tail % VGPU_RING_BYTES;

	while (tail + 2 * VGPU_MESSAGE_BYTES - atomic_load(&ring->head) > VGPU_RING_BYTES)
		usleep(100);
	if (VGPU_RING_BYTES - at < message->bytes) {
		struct vgpu_message skip = { (uint32_t)(VGPU_RING_BYTES - at), VGPU_OP_SKIP, 0, 0 };

		memcpy(base + VGPU_WINDOW_REPLY + at, &skip, 8);
		tail += VGPU_RING_BYTES - at;
		at = 0;
	}
	memcpy(base + VGPU_WINDOW_REPLY + at, message, message->bytes);
	atomic_store_explicit(&ring->tail, tail + message->bytes, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load(&ring->sleeping))
		ring_bell(&ring->bell);
}

static uint32_t put_information(uint8_t *at, uint32_t used, uint16_t kind, uint32_t param, const void *value,
				uint32_t bytes)
{
	struct vgpu_cl_information head = { kind, 0, param, bytes, 0 };

	memcpy(at + used, &head, sizeof(head));
	memcpy(at + used + sizeof(head), value, bytes);
	return used + sizeof(head) + (uint32_t)vgpu_padded(bytes);
}

static void answer_hello(uint64_t call)
{
	static uint64_t space[VGPU_MESSAGE_BYTES / 8];
	static uint8_t information[4096];
	struct vgpu_cl_hello_answer_parts parts;
	uint32_t used = 0;
#define TEXT(kind, param, text) used = put_information(information, used, kind, param, text, sizeof(text))
#define NUMBER(param, type, value) \
	do { \
		type number_ = value; \
		used = put_information(information, used, VGPU_CL_INFORMATION_KIND_DEVICE, param, &number_, \
				       sizeof(number_)); \
	} while (0)
	size_t sizes[3] = { 4096, 4096, 4096 };

	TEXT(VGPU_CL_INFORMATION_KIND_PLATFORM, CL_PLATFORM_NAME, "play");
	TEXT(VGPU_CL_INFORMATION_KIND_PLATFORM, CL_PLATFORM_VERSION, "OpenCL 3.0 play");
	TEXT(VGPU_CL_INFORMATION_KIND_DEVICE, CL_DEVICE_NAME, "player");
	TEXT(VGPU_CL_INFORMATION_KIND_DEVICE, CL_DEVICE_EXTENSIONS,
	     "cl_khr_fp64 cl_khr_command_buffer cl_khr_3d_image_writes");
	NUMBER(CL_DEVICE_TYPE, cl_device_type, CL_DEVICE_TYPE_CPU);
	NUMBER(CL_DEVICE_MAX_MEM_ALLOC_SIZE, cl_ulong, 1ull << 30);
	NUMBER(CL_DEVICE_MEM_BASE_ADDR_ALIGN, cl_uint, 1024);
	NUMBER(CL_DEVICE_MAX_WORK_ITEM_DIMENSIONS, cl_uint, 3);
	NUMBER(CL_DEVICE_IMAGE_SUPPORT, cl_bool, CL_TRUE);
	NUMBER(CL_DEVICE_QUEUE_ON_HOST_PROPERTIES, cl_command_queue_properties,
	       CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | CL_QUEUE_PROFILING_ENABLE);
	NUMBER(CL_DEVICE_SVM_CAPABILITIES, cl_device_svm_capabilities, CL_DEVICE_SVM_COARSE_GRAIN_BUFFER);
	NUMBER(CL_DEVICE_EXECUTION_CAPABILITIES, cl_device_exec_capabilities, CL_EXEC_KERNEL | CL_EXEC_NATIVE_KERNEL);
	used = put_information(information, used, VGPU_CL_INFORMATION_KIND_DEVICE, CL_DEVICE_MAX_WORK_ITEM_SIZES,
			       sizes, sizeof(sizes));
	vgpu_cl_place_hello_answer(space, used, &parts);
	parts.message->header.call = call;
	parts.message->answered = VGPU_CL_HELLO;
	parts.message->version = VGPU_CL_VERSION;
	parts.message->device_count = 1;
	memcpy(parts.information, information, used);
	reply(&parts.message->header);
}

/* Each kernel has two arguments: a buffer, and a value of 16 bytes. */
static void answer_kernel(uint64_t call)
{
	static uint64_t space[1024];
	static const char text[] = "attr\0int*\0a\0float4\0b";
	struct vgpu_cl_create_kernel_answer_parts parts;

	vgpu_cl_place_create_kernel_answer(space, 2, 1, sizeof(text), &parts);
	parts.message->header.call = call;
	parts.message->answered = VGPU_CL_CREATE_KERNEL;
	memset(parts.arguments, 0, 2 * sizeof(*parts.arguments));
	parts.arguments[0].kind = VGPU_CL_ARGUMENT_KIND_BUFFER;
	parts.arguments[0].address = CL_KERNEL_ARG_ADDRESS_GLOBAL;
	parts.arguments[1].kind = VGPU_CL_ARGUMENT_KIND_VALUE;
	parts.arguments[1].bytes = 16;
	memset(parts.work_groups, 0, sizeof(*parts.work_groups));
	parts.work_groups[0].work_group_bytes = 4096;
	memcpy(parts.text, text, sizeof(text));
	reply(&parts.message->header);
}

static void answer_build(uint64_t call)
{
	uint64_t space[64];
	struct vgpu_cl_build_program_answer_parts parts;

	vgpu_cl_place_build_program_answer(space, 1, 0, &parts);
	parts.message->header.call = call;
	parts.message->answered = VGPU_CL_BUILD_PROGRAM;
	parts.builds[0] = (struct vgpu_cl_device_build){ 0, CL_BUILD_SUCCESS, CL_PROGRAM_BINARY_TYPE_EXECUTABLE, 0 };
	reply(&parts.message->header);
}

static void complete_with(uint64_t call, cl_int status)
{
	struct vgpu_cl_completion completion = {
		.header = { sizeof(completion), VGPU_CL_COMPLETION, 0, call }, .status = status,
		.queued_ns = 1, .submitted_ns = 2, .started_ns = 3, .ended_ns = 4,
	};

	reply(&completion.header);
}

static void complete(uint64_t call)
{
	complete_with(call, CL_SUCCESS);
}

static void print_launch(const struct vgpu_message *message)
{
	struct vgpu_cl_launch_view view;

	if (!vgpu_cl_decode_launch(message, message->bytes, WINDOW_BYTES, &view)) {
		printf("LAUNCH malformed\n");
		return;
	}
	printf("LAUNCH waits %u arguments %u data %u global %llu", view.message->wait_count,
	       view.message->argument_count, view.message->data_bytes,
	       (unsigned long long)view.message->global[0]);
	for (uint32_t i = 0; i < view.message->argument_count; i++)
		printf(" kind %u bytes %u", view.arguments[i].kind, view.arguments[i].bytes);
	printf("\n");
}

static void handle(const struct vgpu_message *message)
{
	static unsigned int failed;
	struct vgpu_cl_answer answer = {
		.header = { sizeof(answer), VGPU_CL_ANSWER, 0, message->call }, .answered = message->op,
	};

	if (!strcmp(mode, "print")) {
		if (message->op == VGPU_CL_LAUNCH)
			print_launch(message);
		else
			printf("%s %s\n", vgpu_cl_op_name(message->op), message->call ? "call" : "alone");
		fflush(stdout);
	}
	if (message->op == VGPU_CL_FLUSH) {
		for (unsigned int i = 0; i < held_count; i++)
			complete(held[i].call);
		held_count = 0;
	}
	if (!message->call)
		return;
	if (message->op == VGPU_CL_HELLO)
		answer_hello(message->call);
	else if (message->op == VGPU_CL_CREATE_KERNEL)
		answer_kernel(message->call);
	else if (message->op == VGPU_CL_BUILD_PROGRAM)
		answer_build(message->call);
	else if (message->op < VGPU_CL_LAUNCH)
		reply(&answer.header);
	else if (!strcmp(mode, "fail") && message->op == VGPU_CL_FINISH && !failed++)
		complete_with(message->call, CL_OUT_OF_RESOURCES);
	else if (!strcmp(mode, "hold") && held_count < HELD_MAX)
		held[held_count++] = *message;
	else
		complete(message->call);
}

static void misbehave(const struct vgpu_message *message)
{
	struct vgpu_cl_completion nonsense = {
		.header = { sizeof(nonsense) - 8, VGPU_CL_COMPLETION, 0, message->call }, .status = 77,
	};

	if (!strcmp(mode, "lose")) {
		atomic_store(&window->child, VGPU_CHILD_LOST);
		ring_bell(&window->reply.bell);
		ring_bell(&window->request.space);
	} else if (!strcmp(mode, "tell")) {
		struct vgpu_client_message end = {
			.version = VGPU_CONTROL_VERSION, .op = VGPU_CLIENT_REFUSED,
			.refusal = VGPU_REFUSED_EXECUTOR, .reason = "the kernel did not end in time",
		};

		atomic_store(&window->child, VGPU_CHILD_LOST);
		ring_bell(&window->reply.bell);
		if (send(client, &end, sizeof(end), 0) < 0)
			fail("send");
		close(client);
	} else if (!strcmp(mode, "vanish")) {
		close(client);
	} else if (!strcmp(mode, "garbage")) {
		reply(&nonsense.header);
		return;
	} else if (!strcmp(mode, "tail")) {
		atomic_fetch_add(&window->reply.tail, 1ull << 40);
		ring_bell(&window->reply.bell);
	} else if (!strcmp(mode, "head")) {
		atomic_fetch_add(&window->request.head, 1ull << 40);
	}
	/* In all these modes, the player handles no more messages.  The test ends this process. */
	for (;;)
		pause();
}

static void serve(void)
{
	static uint64_t copy[VGPU_MESSAGE_BYTES / 8];
	struct vgpu_message *message = (struct vgpu_message *)copy;
	struct vgpu_ring *ring = &window->request;
	char end;

	atomic_store(&window->child, VGPU_CHILD_READY);
	for (unsigned long count = 0;;) {
		uint64_t head = ring->head, at = head % VGPU_RING_BYTES;
		uint32_t bell = atomic_load(&ring->bell);

		if (atomic_load_explicit(&ring->tail, memory_order_acquire) == head) {
			struct timespec timeout = { 0, 20000000 };

			atomic_store(&ring->sleeping, 1);
			atomic_thread_fence(memory_order_seq_cst);
			if (atomic_load(&ring->tail) == head)
				syscall(SYS_futex, &ring->bell, FUTEX_WAIT, bell, &timeout, NULL, 0);
			atomic_store(&ring->sleeping, 0);
			if (recv(client, &end, 1, MSG_DONTWAIT) == 0)
				return;
			continue;
		}
		memcpy(message, base + VGPU_WINDOW_REQUEST + at, 8);
		if (message->op == VGPU_OP_SKIP) {
			atomic_store(&ring->head, head + VGPU_RING_BYTES - at);
			continue;
		}
		memcpy(message, base + VGPU_WINDOW_REQUEST + at, message->bytes);
		atomic_store_explicit(&ring->head, head + message->bytes, memory_order_release);
		atomic_thread_fence(memory_order_seq_cst);
		if (atomic_load(&ring->full))
			ring_bell(&ring->space);
		if (count++ >= limit)
			misbehave(message);
		else
			handle(message);
	}
}

static void welcome(int fd)
{
	struct vgpu_client_message message = { .version = VGPU_CONTROL_VERSION, .window_bytes = WINDOW_BYTES };
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec part = { &message, sizeof(message) };
	struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1 };

	message.op = VGPU_CLIENT_REFUSED;
	message.refusal = VGPU_REFUSED_PROCESSES;
	strcpy(message.reason, "there are enough");
	if (strcmp(mode, "refuse")) {
		message.op = VGPU_CLIENT_WELCOME;
		header.msg_control = &control;
		header.msg_controllen = sizeof(control.space);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	}
	if (sendmsg(client, &header, 0) < 0)
		fail("sendmsg");
}

int main(int argc, char **argv)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct vgpu_client_message hello;
	int listener, fd;

	if (argc < 3 || strlen(argv[1]) >= sizeof(address.sun_path))
		return 2;
	mode = argv[2];
	if (argc > 3 && !strcmp(mode, "chaos"))
		state = strtoull(argv[3], NULL, 10) * 0x9e3779b97f4a7c15ull + 1;
	else if (argc > 3)
		limit = strtoul(argv[3], NULL, 10);
	strcpy(address.sun_path, argv[1]);
	listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 1))
		fail(argv[1]);
	printf("ready\n");
	fflush(stdout);
	client = accept(listener, NULL, NULL);
	if (recv(client, &hello, sizeof(hello), 0) != sizeof(hello) || hello.op != VGPU_CLIENT_HELLO)
		fail("hello");
	fd = memfd_create("window", 0);
	if (ftruncate(fd, WINDOW_BYTES))
		fail("memfd");
	base = mmap(NULL, WINDOW_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		fail("mmap");
	window = (struct vgpu_window *)base;
	window->magic = VGPU_WINDOW_MAGIC;
	window->version = VGPU_WINDOW_VERSION;
	window->bytes = WINDOW_BYTES;
	welcome(fd);
	if (strcmp(mode, "refuse"))
		serve();
	return 0;
}
