// SPDX-License-Identifier: GPL-2.0
/* Transport over the guest driver's /dev/vgpuN. */
#include "transport.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "vgpu_guest.h"

struct transport_dev {
	struct transport base;
	int fd;
};

static struct transport_dev *to_dev(struct transport *transport)
{
	return (struct transport_dev *)transport;
}

static int dev_map(struct transport *transport, size_t bytes)
{
	struct transport_dev *dev = to_dev(transport);
	void *area;

	if (transport->area)
		munmap(transport->area, transport->area_bytes);
	transport->area = NULL;
	transport->area_bytes = 0;
	area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, dev->fd, 0);
	if (area == MAP_FAILED)
		return transport_fail(transport, -errno,
				      "mapping %zu bytes of operand memory: %s",
				      bytes, strerror(errno));
	transport->area = area;
	transport->area_bytes = bytes;
	return 0;
}

/*
 * Get the reason for an EIO from the driver, because the device's own registers
 * lose it in a reset.
 */
static void dev_learn_error(struct transport *transport)
{
	struct vgpu_guest_wait wait = { 0 };

	if (ioctl(to_dev(transport)->fd, VGPU_GUEST_WAIT, &wait))
		return;
	transport->error = wait.error;
	transport->error_index = wait.error_index;
}

static int dev_submit(struct transport *transport, const struct vgpu_desc *descs,
		      uint32_t count, unsigned int flags, uint32_t *outstanding)
{
	struct vgpu_guest_submit submit = {
		.descs = (uintptr_t)descs,
		.count = count,
	};
	int error;

	if (flags & TRANSPORT_RAW)
		submit.flags |= VGPU_GUEST_SUBMIT_RAW;
	if (flags & TRANSPORT_PHASE)
		submit.flags |= VGPU_GUEST_SUBMIT_PHASE;
	if (ioctl(to_dev(transport)->fd, VGPU_GUEST_SUBMIT, &submit)) {
		error = errno;
		if (error == EIO)
			dev_learn_error(transport);
		return transport_fail(transport, -error,
				      "submitting %u items (index %u): %s",
				      count, submit.index, strerror(error));
	}
	*outstanding = submit.outstanding;
	return 0;
}

static int dev_wait(struct transport *transport,
		    struct vgpu_completion *completions, uint32_t capacity,
		    uint32_t minimum, uint64_t timeout_ns, uint32_t *count)
{
	uint64_t timeout_ms = (timeout_ns + NS_PER_MS - 1) / NS_PER_MS;
	struct vgpu_guest_wait wait = {
		.completions = (uintptr_t)completions,
		.capacity = capacity,
		.minimum = minimum,
		.timeout_ms = timeout_ms,
	};
	int error;

	if (timeout_ns == TRANSPORT_FOREVER ||
	    timeout_ms >= VGPU_GUEST_WAIT_FOREVER)
		wait.timeout_ms = VGPU_GUEST_WAIT_FOREVER;
	error = ioctl(to_dev(transport)->fd, VGPU_GUEST_WAIT, &wait) ? errno : 0;
	*count = wait.count;
	transport->error = wait.error;
	transport->error_index = wait.error_index;
	if (!error)
		return 0;
	return transport_fail(transport, -error,
			      "waiting for %u completions: %s", minimum,
			      strerror(error));
}

static int dev_info(struct transport *transport, struct vgpu_guest_info *info)
{
	int error;

	if (!ioctl(to_dev(transport)->fd, VGPU_GUEST_INFO, info))
		return 0;
	error = errno;
	return transport_fail(transport, -error, "reading device counters: %s",
			      strerror(error));
}

static int dev_counters(struct transport *transport,
			struct transport_counters *counters)
{
	struct vgpu_guest_info info;
	int rc = dev_info(transport, &info);

	if (rc)
		return rc;
	*counters = (struct transport_counters){
		.status = info.status,
		.error = info.error,
		.error_index = info.error_index,
		.fetched = info.fetched,
		.completed = info.completed,
		.outstanding = info.outstanding,
		.run_ns = info.run_ns,
		.interrupts = info.interrupts,
	};
	return 0;
}

static int dev_reset(struct transport *transport)
{
	int error;

	transport->error = 0;
	transport->error_index = 0;
	if (!ioctl(to_dev(transport)->fd, VGPU_GUEST_RESET))
		return 0;
	error = errno;
	return transport_fail(transport, -error, "resetting the device: %s",
			      strerror(error));
}

static void dev_close(struct transport *transport)
{
	if (transport->area)
		munmap(transport->area, transport->area_bytes);
	close(to_dev(transport)->fd);
	free(transport);
}

static const struct transport_ops dev_ops = {
	.map = dev_map,
	.submit = dev_submit,
	.wait = dev_wait,
	.counters = dev_counters,
	.reset = dev_reset,
	.close = dev_close,
};

struct transport *transport_dev_open(const char *path, char *message,
				     size_t message_bytes)
{
	struct transport_dev *dev = calloc(1, sizeof(*dev));
	struct vgpu_guest_info info;

	if (!dev) {
		snprintf(message, message_bytes, "out of memory");
		return NULL;
	}
	dev->base.ops = &dev_ops;
	dev->fd = open(path, O_RDWR | O_CLOEXEC);
	if (dev->fd < 0) {
		snprintf(message, message_bytes, "opening %s: %s", path,
			 strerror(errno));
		free(dev);
		return NULL;
	}
	if (dev_info(&dev->base, &info)) {
		snprintf(message, message_bytes, "%s: %s", path,
			 dev->base.message);
		dev_close(&dev->base);
		return NULL;
	}
	dev->base.limits = (struct transport_limits){
		.abi = info.abi,
		.ops = info.ops,
		.flags = info.desc_flags,
		.ring_entries = info.ring_entries,
		.item_bytes_max = info.item_bytes_max,
		.delay_ns_max = info.delay_ns_max,
		.chunk_ns_max = info.chunk_ns_max,
		.fact_ps = info.fact_ps,
		.piece_bytes = info.piece_bytes,
		.area_bytes_max = info.area_bytes_max,
		.memory_bytes = info.memory_bytes,
	};
	/* far above the memory of any guest, below the IOMMU's reach */
	dev->base.unmapped = 1ull << 45;
	return &dev->base;
}
