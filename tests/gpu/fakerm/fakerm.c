// SPDX-License-Identifier: Apache-2.0
/*
 * /dev/nvidiactl and /dev/nvidia0 of a fake driver, for LD_PRELOAD after the shim. Their files also
 * accept the calls of /dev/nvidia-uvm that name a client. A file is a connection to the server at
 * $FAKERM_SOCKET. This library reads the memory behind pointers, like the kernel would: an invalid address
 * gives EFAULT. CLOCK_MONOTONIC_RAW is the server's virtual clock, mapped from $FAKERM_CLOCK. A process
 * that has a context sleeps in virtual time.
 */
#define _GNU_SOURCE
#include "protocol.h"

#include "rm_abi.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static const volatile uint64_t *virtual_clock;
static _Atomic int joined = -1;

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void map_clock(void)
{
	const char *path = getenv("FAKERM_CLOCK");
	int fd = path != NULL ? NEXT(open)(path, O_RDONLY | O_CLOEXEC) : -1;
	void *page;

	if (fd < 0)
		return;
	page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (page != MAP_FAILED)
		virtual_clock = page;
}

static bool server_address(struct sockaddr_un *address)
{
	const char *path = getenv("FAKERM_SOCKET");

	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	if (path == NULL || strlen(path) >= sizeof(address->sun_path))
		return false;
	strcpy(address->sun_path, path);
	return true;
}

static bool is_device(const char *path)
{
	return strcmp(path, "/dev/nvidiactl") == 0 || strcmp(path, "/dev/nvidia0") == 0;
}

static int open_device(void)
{
	struct sockaddr_un address;
	int fd;

	if (!server_address(&address)) {
		errno = ENODEV;
		return -1;
	}
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		close(fd);
		errno = ENXIO;
		return -1;
	}
	return fd;
}

/* Returns whether the file is one of the fake's, even if another process opened it. */
static bool is_ours(int fd)
{
	struct sockaddr_un address, peer = { 0 };
	socklen_t size = sizeof(peer);
	int saved = errno;
	bool ours = server_address(&address) && getpeername(fd, (struct sockaddr *)&peer, &size) == 0 &&
		    strcmp(peer.sun_path, address.sun_path) == 0;

	errno = saved;
	return ours;
}

static bool copy(bool in, void *local, uint64_t address, size_t size)
{
	struct iovec here = { .iov_base = local, .iov_len = size };
	struct iovec there = { .iov_base = (void *)(uintptr_t)address, .iov_len = size };
	ssize_t copied = in ? process_vm_readv(getpid(), &here, 1, &there, 1, 0) :
			      process_vm_writev(getpid(), &here, 1, &there, 1, 0);

	return copied >= 0 && (size_t)copied == size;
}

static bool send_request(int fd, const void *packet, size_t size, int answer_fd)
{
	char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec data = { .iov_base = (void *)packet, .iov_len = size };
	struct msghdr message = {
		.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)
	};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &answer_fd, sizeof(int));
	return sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)size;
}

/* Sends a packet and waits for its answer, which replaces the packet. */
static bool exchange(int fd, char *packet, size_t size, size_t room)
{
	int pair[2];
	ssize_t received = -1;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return false;
	if (send_request(fd, packet, size, pair[1])) {
		close(pair[1]);
		do
			received = recv(pair[0], packet, room, 0);
		while (received < 0 && errno == EINTR);
	} else {
		close(pair[1]);
	}
	close(pair[0]);
	return received >= (ssize_t)sizeof(struct fake_answer);
}

/* If the caller gives a size of 0, the driver uses the size of the class. */
static uint32_t size_of_class(uint32_t class_id)
{
	switch (class_id) {
	case RM_CLASS_DEVICE:
		return 56;
	case RM_CLASS_SUBDEVICE:
		return 4;
	case RM_CLASS_GROUP:
		return sizeof(struct rm_group_params);
	default:
		return (class_id & 0xff) == RM_CLASS_CHANNEL_LOW_BYTE ? 368 : 0;
	}
}

/* Returns the address and length of the data that a call's own pointer refers to. */
static void nested_of(uint32_t escape, uint32_t size, const char *header, uint64_t *address, uint32_t *length)
{
	struct rm_control control;
	struct rm_alloc_short brief;
	struct rm_alloc_long full;

	*address = 0;
	*length = 0;
	if (escape == RM_ESC_CONTROL && size == sizeof(control)) {
		memcpy(&control, header, sizeof(control));
		*address = control.params;
		*length = control.params_size;
	} else if (escape == RM_ESC_ALLOC && size == sizeof(brief)) {
		memcpy(&brief, header, sizeof(brief));
		*address = brief.params;
		*length = brief.params_size != 0 ? brief.params_size : size_of_class(brief.class_id);
	} else if (escape == RM_ESC_ALLOC && size == sizeof(full)) {
		memcpy(&full, header, sizeof(full));
		*address = full.params;
		*length = full.params_size != 0 ? full.params_size : size_of_class(full.class_id);
	}
	if (*address == 0)
		*length = 0;
}

/* Returns the size of calls about managed memory, because their request number does not contain it. */
static uint32_t size_of_uvm(unsigned long request)
{
	switch (request) {
	case 25:
		return 32;
	case 27:
		return 56;
	case 33:
		return 9264;
	default:
		return 0;
	}
}

static int fail(int error)
{
	errno = error;
	return -1;
}

static int call_server(int fd, unsigned long request, uint64_t address)
{
	static _Thread_local char
		packet[sizeof(struct fake_request) + FAKE_HEADER_MAX + FAKE_NESTED_MAX];
	struct fake_request *ask = (struct fake_request *)packet;
	struct fake_answer answer;
	struct rm_xfer envelope;
	char *header = packet + sizeof(*ask);
	uint32_t escape = _IOC_NR(request), size = _IOC_SIZE(request), length = 0;
	uint64_t nested = 0;

	memset(ask, 0, sizeof(*ask));
	if (_IOC_TYPE(request) == RM_MAGIC && escape == RM_ESC_XFER) {
		if (size != sizeof(envelope))
			return fail(EINVAL);
		if (!copy(true, &envelope, address, sizeof(envelope)))
			return fail(EFAULT);
		escape = envelope.cmd;
		size = envelope.size;
		address = envelope.pointer;
		ask->xfer = 1;
		if (escape > 255 || escape == RM_ESC_XFER)
			return fail(EINVAL);
	}
	if (size_of_uvm(request) != 0)
		size = size_of_uvm(request);
	if (size > FAKE_HEADER_MAX)
		return fail(EINVAL);
	if (!copy(true, header, address, size))
		return fail(EFAULT);
	if (_IOC_TYPE(request) == RM_MAGIC)
		nested_of(escape, size, header, &nested, &length);
	ask->request = (_IOC_TYPE(request) << 8) | escape;
	ask->header_size = size;
	ask->nested_size = length;
	if (length > FAKE_NESTED_MAX || !copy(true, header + size, nested, length)) {
		ask->nested_fault = length > 0;
		length = 0;
	}

	if (!exchange(fd, packet, sizeof(*ask) + size + length, sizeof(packet)))
		return fail(EIO);
	memcpy(&answer, packet, sizeof(answer));
	if (answer.header_size == size && !copy(false, packet + sizeof(answer), address, size))
		return fail(EFAULT);
	if (answer.nested_size == length && length > 0 &&
	    !copy(false, packet + sizeof(answer) + size, nested, length))
		return fail(EFAULT);
	if (answer.result < 0)
		return fail(answer.error);
	if (_IOC_TYPE(request) == FAKE_MAGIC && escape == FAKE_JOIN)
		atomic_store(&joined, fd);
	return answer.result;
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list arguments;
	void *argument;

	va_start(arguments, request);
	argument = va_arg(arguments, void *);
	va_end(arguments);
	if ((_IOC_TYPE(request) == RM_MAGIC || _IOC_TYPE(request) == FAKE_MAGIC || size_of_uvm(request) != 0) &&
	    is_ours(fd))
		return call_server(fd, request, (uintptr_t)argument);
	return NEXT(ioctl)(fd, request, argument);
}

int open(const char *path, int flags, ...)
{
	va_list arguments;
	mode_t mode = 0;

	if (flags & (O_CREAT | __O_TMPFILE)) {
		va_start(arguments, flags);
		mode = va_arg(arguments, mode_t);
		va_end(arguments);
	}
	return is_device(path) ? open_device() : NEXT(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));

/* Shows one of the fake's files like a file of the driver. */
int fstat(int fd, struct stat *status)
{
	if (!is_ours(fd))
		return NEXT(fstat)(fd, status);
	memset(status, 0, sizeof(*status));
	status->st_mode = S_IFCHR | 0666;
	status->st_rdev = makedev(195, 255);
	return 0;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	if (clock == CLOCK_MONOTONIC_RAW && virtual_clock != NULL) {
		now->tv_sec = (time_t)(*virtual_clock / 1000000000);
		now->tv_nsec = (long)(*virtual_clock % 1000000000);
		return 0;
	}
	return NEXT(clock_gettime)(clock, now);
}

static int sleep_virtually(int64_t length_ns)
{
	struct fake_work work = { .value = length_ns > 0 ? (uint64_t)length_ns : 0 };

	return ioctl(atomic_load(&joined), _IOWR(FAKE_MAGIC, FAKE_SLEEP, struct fake_work), &work);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *length, struct timespec *rest)
{
	struct timespec now = { 0 };

	if (atomic_load(&joined) < 0)
		return NEXT(clock_nanosleep)(clock, flags, length, rest);
	if (flags & TIMER_ABSTIME)
		clock_gettime(clock, &now);
	return sleep_virtually((length->tv_sec - now.tv_sec) * 1000000000LL + length->tv_nsec - now.tv_nsec) < 0 ?
		       EIO :
		       0;
}

int nanosleep(const struct timespec *length, struct timespec *rest)
{
	if (atomic_load(&joined) < 0)
		return NEXT(nanosleep)(length, rest);
	return sleep_virtually(length->tv_sec * 1000000000LL + length->tv_nsec);
}
