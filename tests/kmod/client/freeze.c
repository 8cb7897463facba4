// SPDX-License-Identifier: GPL-2.0
/*
 * Operand memory whose page faults are not served: the slice's own worker may
 * stop there, but no other slice may notice. Then the faults are served and the
 * results must be right, or the process just ends.
 */
#define _GNU_SOURCE
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client.h"
#include "clock.h"
#include "crc32c.h"
#include "descriptor.h"
#include "exit.h"
#include "report.h"
#include "transport_vfio.h"

#define PAGES 16u
#define PAGE 4096u
#define TIMEOUT_NS (30 * NS_PER_S)

static int faults_open(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC);

	if (fd >= 0 && ioctl(fd, UFFDIO_API, &api)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static int faults_register(int fd, void *memory, size_t bytes)
{
	struct uffdio_register range = {
		.range = { .start = (uintptr_t)memory, .len = bytes },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};

	return ioctl(fd, UFFDIO_REGISTER, &range) ? -errno : 0;
}

static int faults_answer(int fd, void *memory, size_t bytes)
{
	struct uffdio_zeropage zero = {
		.range = { .start = (uintptr_t)memory, .len = bytes },
	};

	return ioctl(fd, UFFDIO_ZEROPAGE, &zero) ? -errno : 0;
}

static void state(const char *what, bool json)
{
	struct report report;

	report_begin(&report, json);
	report_text(&report, "record", what);
	report_end(&report);
}

static int submit(struct transport *transport)
{
	struct vgpu_desc descs[PAGES];
	uint32_t outstanding;

	for (uint32_t i = 0; i < PAGES; i++)
		descs[i] = descriptor_crc32c(i * PAGE, PAGE);
	return transport->ops->submit(transport, descs, PAGES, 0, &outstanding);
}

static int answer(struct transport *transport, int fd, bool json)
{
	static const uint8_t zeros[PAGE];
	struct vgpu_completion found[PAGES] = { 0 };
	uint32_t count = 0, right = 0;
	struct report report;
	int rc;

	rc = faults_answer(fd, transport->area, transport->area_bytes);
	if (!rc)
		rc = transport->ops->wait(transport, found, PAGES, PAGES,
					  TIMEOUT_NS, &count);
	for (uint32_t i = 0; i < count; i++)
		right += le64toh(found[i].result) == crc32c(zeros, PAGE);
	report_begin(&report, json);
	report_text(&report, "record", "freeze");
	report_u64(&report, "items", count);
	report_u64(&report, "verified", right);
	report_u64(&report, "rc", -rc);
	report_bool(&report, "ok", !rc && right == PAGES);
	report_end(&report);
	return !rc && right == PAGES ? EXIT_OK : EXIT_WRONG;
}

int client_freeze(const char *uuid, const struct client_options *options,
		  uint64_t duration_ns, bool json)
{
	struct transport_counters counters = { 0 };
	struct transport *transport;
	char message[192];
	int fd = -1, status = EXIT_DEVICE;

	/* the order here decides which file the kernel closes first at exit */
	if (options->fault_first)
		fd = faults_open();
	transport = transport_vfio_open(uuid, options->entries, message,
					sizeof(message));
	if (!transport) {
		fprintf(stderr, "vgpu-client: %s\n", message);
		return EXIT_DEVICE;
	}
	if (!options->fault_first)
		fd = faults_open();
	if (fd < 0 || transport->ops->map(transport, PAGES * PAGE) ||
	    faults_register(fd, transport->area, transport->area_bytes) ||
	    submit(transport)) {
		fprintf(stderr, "vgpu-client: freeze: %s %s\n", strerror(errno),
			transport->message);
		goto out;
	}
	state("frozen", json);
	clock_sleep_ns(duration_ns);
	status = EXIT_WRONG;
	if (transport->ops->counters(transport, &counters) || counters.completed) {
		fprintf(stderr, "vgpu-client: freeze: %u items completed on memory that does not answer\n",
			counters.completed);
		goto out;
	}
	if (options->leave_frozen) {
		state("leaving", json);
		_exit(EXIT_OK);
	}
	status = answer(transport, fd, json);
out:
	if (fd >= 0)
		close(fd);
	transport->ops->close(transport);
	return status;
}
