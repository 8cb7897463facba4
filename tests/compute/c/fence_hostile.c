// SPDX-License-Identifier: Apache-2.0
/*
 * fence_hostile WHAT [SOCKET]: a native program that attacks its fence in one way and prints the result.  It is
 * static, so it needs no loader.  SOCKET is the fake driver's.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DRIVER(number, bytes)	_IOC(_IOC_READ | _IOC_WRITE, 'F', number, bytes)
#define REFUSED_CALL	DRIVER(0x57, 64)

static int result_of(int result)
{
	return result < 0 ? -errno : result;
}

static int open_driver(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int file = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
	if (connect(file, (struct sockaddr *)&address, sizeof(address)))
		exit(3);
	return file;
}

/* Makes a CHECK_VERSION call.  The kernel does not support this call on a socket. */
static int ask_version(int file)
{
	struct {
		uint32_t command, reply;
		char text[64];
	} version = { .text = "580.142" };

	return result_of(ioctl(file, DRIVER(210, sizeof(version)), &version));
}

static void *ask_unshared(void *file)
{
	if (unshare(CLONE_FILES))
		exit(3);
	return (void *)(intptr_t)ask_version((int)(intptr_t)file);
}

/* Makes the call in a thread that does not share its descriptors with the thread group leader. */
static int ask_beside(int file)
{
	pthread_t thread;
	void *result;

	if (pthread_create(&thread, NULL, ask_unshared, (void *)(intptr_t)file) || pthread_join(thread, &result))
		exit(3);
	return (int)(intptr_t)result;
}

#ifdef __x86_64__

static int ask_i386(void)
{
	int result;

	__asm__ volatile("int $0x80" : "=a"(result) : "a"(54), "b"(1), "c"(0x5413), "d"(0) : "memory");
	return result;
}

static int ask_x32(void)
{
	return result_of((int)syscall(0x40000000 | 514, 1, 0x5413, 0));
}

/* Changes another process's call into one of the driver's after the kernel has accepted it. */
static int ask_traced(int file)
{
	pid_t child = fork();
	struct user_regs_struct registers;
	int bytes = 0, status;

	if (!child) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		_exit(-result_of(ioctl(file, FIONREAD, &bytes)));
	}
	waitpid(child, &status, 0);
	ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD);
	for (;;) {
		if (ptrace(PTRACE_SYSCALL, child, 0, 0) || waitpid(child, &status, 0) != child)
			exit(3);
		if (WIFEXITED(status))
			return -WEXITSTATUS(status);
		ptrace(PTRACE_GETREGS, child, 0, &registers);
		if (registers.orig_rax != SYS_ioctl || registers.rsi != FIONREAD)
			continue;
		registers.rsi = REFUSED_CALL;
		ptrace(PTRACE_SETREGS, child, 0, &registers);
	}
}

#else

static int ask_i386(void)
{
	exit(3);
}

static int ask_x32(void)
{
	exit(3);
}

static int ask_traced(int file)
{
	exit(3 + 0 * file);
}

#endif

static int ask_ring(void)
{
	char parameters[120] = { 0 };

	return result_of((int)syscall(SYS_io_uring_setup, 1, parameters));
}

static void print_privileges(void)
{
	char line[256];
	FILE *file = fopen("/proc/self/status", "r");

	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, "Cap", 3) || !strncmp(line, "NoNewPrivs", 10))
			fputs(line, stdout);
}

/* Calls that need no question to the fence, and calls that nobody may make.  The kernel would answer each. */
static void print_others(int file)
{
	int plain = open("/", O_RDONLY), device = open("/dev/urandom", O_RDONLY), terminal = posix_openpt(O_RDWR | O_NOCTTY), bytes = 0;
	char structure[64];

	printf("FIONREAD %d\n", result_of(ioctl(file, FIONREAD, &bytes)));
	printf("TCGETS %d\n", result_of(ioctl(terminal, 0x5401, structure)));
	printf("TCGETS2 %d\n", result_of(ioctl(terminal, _IOC(_IOC_READ, 'T', 0x2a, 44), structure)));
	/* Request numbers that are small plain integers belong to nvidia-uvm. */
	printf("FIGETBSZ %d\n", result_of(ioctl(plain, 2, &bytes)));
	printf("refused %d\n", result_of(ioctl(file, REFUSED_CALL, structure)));
	/* The kernel would return EINVAL for this call. */
	printf("version of another device %d\n", ask_version(device));
	printf("hello %d\n", result_of(ioctl(file, _IO(0xfe, 0x56), 0)));
}

/* Returns the nanoseconds that one call takes. */
static long measure(int file, unsigned long request, int times)
{
	struct timespec begin, end;
	char structure[64] = { 0 };

	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (int i = 0; i < times; i++)
		ioctl(file, request, structure);
	clock_gettime(CLOCK_MONOTONIC, &end);
	return ((end.tv_sec - begin.tv_sec) * 1000000000L + end.tv_nsec - begin.tv_nsec) / times;
}

static void print_costs(int file)
{
	printf("other %ld\n", measure(file, FIONREAD, 200000));
	printf("refused %ld\n", measure(file, REFUSED_CALL, 20000));
}

static int ask(const char *what, const char *path)
{
	if (!strcmp(what, "ring"))
		return ask_ring();
	if (!strcmp(what, "i386"))
		return ask_i386();
	if (!strcmp(what, "x32"))
		return ask_x32();
	if (!strcmp(what, "version"))
		return ask_version(open_driver(path));
	if (!strcmp(what, "beside"))
		return ask_beside(open_driver(path));
	if (!strcmp(what, "traced"))
		return ask_traced(open_driver(path));
	if (!strcmp(what, "others"))
		print_others(open_driver(path));
	else if (!strcmp(what, "costs"))
		print_costs(open_driver(path));
	else
		print_privileges();
	return 0;
}

int main(int count, char **arguments)
{
	printf("%d\n", ask(arguments[1], count > 2 ? arguments[2] : ""));
	return 0;
}
