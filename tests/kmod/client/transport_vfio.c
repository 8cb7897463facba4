// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "transport_vfio.h"

#include <endian.h>
#include <errno.h>
#include <linux/pci_regs.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "descriptor.h"

#define AREA_BYTES_MAX (256ull << 20)
#define SILENCE_NS (2 * NS_PER_MS)

static void *memory_alloc(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

static size_t page_round(size_t bytes)
{
	return (bytes + 4095) & ~(size_t)4095;
}

void *transport_vfio_memory(struct transport_vfio *vfio, uint64_t iova,
			    size_t bytes)
{
	void *memory;

	bytes = page_round(bytes);
	memory = memory_alloc(bytes);
	if (!memory) {
		transport_fail(&vfio->base, -ENOMEM, "out of memory");
		return NULL;
	}
	if (vfio_map(&vfio->vfio, memory, iova, bytes)) {
		transport_fail(&vfio->base, -errno, "%s", vfio->vfio.message);
		munmap(memory, bytes);
		return NULL;
	}
	return memory;
}

static uint32_t load32(const __le32 *from)
{
	uint32_t value = __atomic_load_n(from, __ATOMIC_ACQUIRE);

	return le32toh(value);
}

static int vfio_transport_map(struct transport *transport, size_t bytes)
{
	struct transport_vfio *vfio = to_vfio(transport);

	if (transport->area) {
		vfio_unmap(&vfio->vfio, VFIO_AREA_IOVA, transport->area_bytes);
		munmap(transport->area, transport->area_bytes);
	}
	bytes = page_round(bytes);
	transport->area_bytes = 0;
	transport->area = transport_vfio_memory(vfio, VFIO_AREA_IOVA, bytes);
	if (!transport->area)
		return -ENOMEM;
	transport->area_bytes = bytes;
	return 0;
}

static void translate(struct vgpu_desc *desc)
{
	struct operand operands[OPERANDS_MAX];
	unsigned int count = descriptor_operands(desc, operands);

	for (unsigned int i = 0; i < count; i++)
		if (!operands[i].device)
			*operands[i].address =
				htole64(le64toh(*operands[i].address) +
					VFIO_AREA_IOVA);
}

static int vfio_transport_submit(struct transport *transport,
				 const struct vgpu_desc *descs, uint32_t count,
				 unsigned int flags, uint32_t *outstanding)
{
	struct transport_vfio *vfio = to_vfio(transport);
	uint32_t before = vfio->tail, completed;
	struct vgpu_desc *desc = NULL;

	if (count > vfio->entries - (vfio->tail - vfio->read))
		return transport_fail(transport, -EAGAIN,
				      "no room for %u items", count);
	for (uint32_t i = 0; i < count; i++, vfio->tail++) {
		desc = &vfio->ring[vfio->tail & (vfio->entries - 1)];
		*desc = descs[i];
		if (!(flags & TRANSPORT_RAW))
			translate(desc);
	}
	if (desc)
		descriptor_flag(desc, VGPU_DESC_IRQ);
	atomic_thread_fence(memory_order_seq_cst);
	vfio_write32(&vfio->vfio, VGPU_BAR0_DOORBELL, vfio->tail);

	/* counted after the doorbell: a lower bound of what the doorbell found queued */
	completed = load32(&vfio->shadow->completed);
	*outstanding = (int32_t)(before - completed) > 0 ? before - completed : 0;
	return 0;
}

/* Take the error from where it is known. */
static void note_error(struct transport_vfio *vfio)
{
	vfio->base.error_index = vfio_read32(&vfio->vfio, VGPU_REG_ERROR_INDEX);
	vfio->base.error = vfio_read32(&vfio->vfio, VGPU_REG_ERROR);
}

static bool eventfd_take(int fd)
{
	uint64_t count;

	return read(fd, &count, sizeof(count)) == sizeof(count);
}

/* Sleep until an interrupt or @end_ns; false if @end_ns came first. */
static bool await_interrupt(struct transport_vfio *vfio, uint64_t end_ns)
{
	struct pollfd polled[2] = {
		{ .fd = vfio->eventfds[VGPU_VECTOR_COMPLETION], .events = POLLIN },
		{ .fd = vfio->eventfds[VGPU_VECTOR_ERROR], .events = POLLIN },
	};
	uint64_t now_ns = clock_now_ns();
	struct timespec left;
	int rc;

	if (now_ns >= end_ns)
		return false;
	left.tv_sec = (end_ns - now_ns) / NS_PER_S;
	left.tv_nsec = (end_ns - now_ns) % NS_PER_S;
	if (end_ns - now_ns > 1000000 * NS_PER_S)
		left.tv_sec = 1000000;
	rc = ppoll(polled, 2, &left, NULL);
	if (rc > 0 && polled[0].revents && eventfd_take(polled[0].fd))
		vfio->interrupts++;
	if (rc > 0 && polled[1].revents && eventfd_take(polled[1].fd))
		note_error(vfio);
	return true;
}

static int take_completions(struct transport_vfio *vfio,
			    struct vgpu_completion *into, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		into[i] = vfio->completions[vfio->read & (vfio->entries - 1)];
		if (le32toh(into[i].seq) != vfio->read + 1)
			return transport_fail(&vfio->base, -EPROTO,
					      "completion %u carries number %u",
					      vfio->read, le32toh(into[i].seq));
		vfio->read++;
	}
	return 0;
}

static int vfio_transport_wait(struct transport *transport,
			       struct vgpu_completion *completions,
			       uint32_t capacity, uint32_t minimum,
			       uint64_t timeout_ns, uint32_t *count)
{
	struct transport_vfio *vfio = to_vfio(transport);
	uint64_t end_ns = UINT64_MAX;
	uint32_t ready;
	bool again = true;
	int rc;

	*count = 0;
	if (timeout_ns < UINT64_MAX / 2)
		end_ns = clock_now_ns() + timeout_ns;
	for (;;) {
		ready = load32(&vfio->shadow->completed) - vfio->read;
		if (ready > vfio->tail - vfio->read)
			return transport_fail(transport, -EPROTO,
					      "device completed %u items of %u",
					      ready + vfio->read, vfio->tail);
		if (ready >= minimum || transport->error || !again)
			break;
		if (load32(&vfio->shadow->error)) {
			note_error(vfio);
			continue; /* completions before the error */
		}
		again = await_interrupt(vfio, end_ns);
	}
	if (ready > capacity)
		ready = capacity;
	rc = take_completions(vfio, completions, ready);
	if (rc)
		return rc;
	*count = ready;
	if (ready >= minimum)
		return 0;
	if (transport->error == UINT32_MAX)
		return transport_fail(transport, -ENODEV, "the device is gone");
	if (transport->error)
		return transport_fail(transport, -EIO,
				      "the device stopped with error %s at item %u",
				      error_name(transport->error),
				      transport->error_index);
	return transport_fail(transport, -ETIMEDOUT,
			      "%u of %u completions in time", ready, minimum);
}

static int vfio_transport_counters(struct transport *transport,
				   struct transport_counters *counters)
{
	struct transport_vfio *vfio = to_vfio(transport);
	uint32_t completed = vfio_read32(&vfio->vfio, VGPU_REG_COMPLETED);

	*counters = (struct transport_counters){
		.status = vfio_read32(&vfio->vfio, VGPU_REG_STATUS),
		.error = vfio_read32(&vfio->vfio, VGPU_REG_ERROR),
		.error_index = vfio_read32(&vfio->vfio, VGPU_REG_ERROR_INDEX),
		.fetched = vfio_read32(&vfio->vfio, VGPU_REG_FETCHED),
		.completed = completed,
		.outstanding = vfio->tail - completed,
		.run_ns = vfio_read64(&vfio->vfio, VGPU_REG_RUN_NS_LO),
		.interrupts = vfio->interrupts,
	};
	if (counters->status == UINT32_MAX)
		return transport_fail(transport, -ENODEV, "the device is gone");
	return 0;
}

struct ring_registers transport_vfio_registers(struct transport_vfio *vfio)
{
	return (struct ring_registers){
		.ring = VFIO_RING_IOVA,
		.completion = VFIO_COMPLETION_IOVA,
		.shadow = VFIO_SHADOW_IOVA,
		.entries = vfio->entries,
	};
}

static void write_address(struct transport_vfio *vfio, uint32_t offset,
			  uint64_t address)
{
	vfio_write32(&vfio->vfio, offset, address);
	vfio_write32(&vfio->vfio, offset + 4, address >> 32);
}

void transport_vfio_program(struct transport_vfio *vfio,
			    const struct ring_registers *registers)
{
	vfio_write32(&vfio->vfio, VGPU_REG_CONTROL, VGPU_CONTROL_RESET);
	memset(vfio->ring, 0, vfio->entries * sizeof(*vfio->ring));
	memset(vfio->completions, 0, vfio->entries * sizeof(*vfio->completions));
	memset(vfio->shadow, 0, sizeof(*vfio->shadow));
	vfio->tail = 0;
	vfio->read = 0;
	vfio->base.error = 0;
	vfio->base.error_index = 0;
	eventfd_take(vfio->eventfds[0]);
	eventfd_take(vfio->eventfds[1]);

	write_address(vfio, VGPU_REG_RING_LO, registers->ring);
	write_address(vfio, VGPU_REG_COMPLETION_LO, registers->completion);
	write_address(vfio, VGPU_REG_SHADOW_LO, registers->shadow);
	vfio_write32(&vfio->vfio, VGPU_REG_RING_ENTRIES, registers->entries);
}

static int vfio_transport_reset(struct transport *transport)
{
	struct transport_vfio *vfio = to_vfio(transport);
	struct ring_registers registers = transport_vfio_registers(vfio);
	uint32_t status;

	vfio_master(&vfio->vfio, true);
	transport_vfio_program(vfio, &registers);
	vfio_write32(&vfio->vfio, VGPU_REG_CONTROL, VGPU_CONTROL_ENABLE);
	status = vfio_read32(&vfio->vfio, VGPU_REG_STATUS);
	if (status == UINT32_MAX)
		return transport_fail(transport, -ENODEV, "the device is gone");
	if (status & VGPU_STATUS_ERROR || !(status & VGPU_STATUS_ENABLED)) {
		note_error(vfio);
		return transport_fail(transport, -EIO,
				      "the device does not start: status %#x, error %s",
				      status, error_name(transport->error));
	}
	return 0;
}

/* Without bus mastering an error shows in its register, but causes no interrupt. */
static int await_silent_error(struct transport_vfio *vfio, uint64_t end_ns)
{
	while (!vfio->base.error && clock_now_ns() < end_ns) {
		note_error(vfio);
		clock_sleep_ns(SILENCE_NS);
	}
	if (!vfio->base.error)
		return transport_fail(&vfio->base, -ETIMEDOUT, "no error in time");
	clock_sleep_ns(SILENCE_NS);
	if (eventfd_take(vfio->eventfds[VGPU_VECTOR_COMPLETION]) ||
	    eventfd_take(vfio->eventfds[VGPU_VECTOR_ERROR]))
		return transport_fail(&vfio->base, -EPROTO,
				      "an interrupt without bus mastering");
	return -EIO;
}

int transport_vfio_await_error(struct transport_vfio *vfio, uint64_t timeout_ns)
{
	uint64_t end_ns = clock_now_ns() + timeout_ns;

	if (!(vfio_config_read(&vfio->vfio, PCI_COMMAND, 2) & PCI_COMMAND_MASTER))
		return await_silent_error(vfio, end_ns);
	while (!vfio->base.error)
		if (!await_interrupt(vfio, end_ns)) {
			note_error(vfio);
			if (vfio->base.error)
				return transport_fail(&vfio->base, -EPROTO,
						      "an error without its interrupt");
			return transport_fail(&vfio->base, -ETIMEDOUT,
					      "no error in time");
		}
	return -EIO;
}

static void unmap_memory(void *memory, size_t bytes)
{
	if (memory)
		munmap(memory, page_round(bytes));
}

static void vfio_transport_close(struct transport *transport)
{
	struct transport_vfio *vfio = to_vfio(transport);

	vfio_close(&vfio->vfio);
	unmap_memory(transport->area, transport->area_bytes);
	unmap_memory(vfio->ring, vfio->entries * sizeof(*vfio->ring));
	unmap_memory(vfio->completions,
		     vfio->entries * sizeof(*vfio->completions));
	unmap_memory(vfio->shadow, sizeof(*vfio->shadow));
	close(vfio->eventfds[0]);
	close(vfio->eventfds[1]);
	free(vfio);
}

static const struct transport_ops vfio_transport_ops = {
	.map = vfio_transport_map,
	.submit = vfio_transport_submit,
	.wait = vfio_transport_wait,
	.counters = vfio_transport_counters,
	.reset = vfio_transport_reset,
	.close = vfio_transport_close,
};

static int start(struct transport_vfio *vfio)
{
	struct transport *transport = &vfio->base;
	struct vfio *device = &vfio->vfio;

	if (vfio_read32(device, VGPU_REG_ID) != VGPU_ID)
		return transport_fail(transport, -ENODEV, "unknown device");
	if (vfio_connect_irqs(device, vfio->eventfds))
		return transport_fail(transport, -EIO, "%s", device->message);
	vfio->ring = transport_vfio_memory(vfio, VFIO_RING_IOVA,
					   vfio->entries * sizeof(*vfio->ring));
	vfio->completions = transport_vfio_memory(vfio, VFIO_COMPLETION_IOVA,
						  vfio->entries *
							  sizeof(*vfio->completions));
	vfio->shadow = transport_vfio_memory(vfio, VFIO_SHADOW_IOVA,
					     sizeof(*vfio->shadow));
	if (!vfio->ring || !vfio->completions || !vfio->shadow)
		return -ENOMEM;
	transport->limits = (struct transport_limits){
		.abi = vfio_read32(device, VGPU_REG_ABI),
		.ops = vfio_read32(device, VGPU_REG_OPS),
		.flags = vfio_read32(device, VGPU_REG_FLAGS),
		.ring_entries = vfio->entries,
		.item_bytes_max = vfio_read32(device, VGPU_REG_ITEM_BYTES_MAX),
		.delay_ns_max = vfio_read32(device, VGPU_REG_DELAY_NS_MAX),
		.chunk_ns_max = vfio_read32(device, VGPU_REG_CHUNK_NS_MAX),
		.fact_ps = vfio_read32(device, VGPU_REG_FACT_PS),
		.piece_bytes = 1u << 30,
		.area_bytes_max = AREA_BYTES_MAX,
		.memory_bytes = vfio_read64(device, VGPU_REG_MEMORY_LO),
	};
	return vfio_transport_reset(transport);
}

struct transport *transport_vfio_open(const char *uuid, uint32_t entries,
				      char *message, size_t message_bytes)
{
	struct transport_vfio *vfio = calloc(1, sizeof(*vfio));

	if (!vfio) {
		snprintf(message, message_bytes, "out of memory");
		return NULL;
	}
	vfio->base.ops = &vfio_transport_ops;
	vfio->base.unmapped = VFIO_UNMAPPED_IOVA;
	vfio->entries = entries;
	vfio->eventfds[0] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	vfio->eventfds[1] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (vfio_open(&vfio->vfio, uuid))
		transport_fail(&vfio->base, 0, "%s", vfio->vfio.message);
	else if (start(vfio) == 0)
		return &vfio->base;
	snprintf(message, message_bytes, "%s: %s", uuid, vfio->base.message);
	vfio_transport_close(&vfio->base);
	return NULL;
}
