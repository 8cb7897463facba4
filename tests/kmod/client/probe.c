// SPDX-License-Identifier: GPL-2.0
/*
 * The answers and the refusals of VFIO for the device. One record per
 * check; errnos are part of the contract.
 */
#include <errno.h>
#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "client.h"
#include "exit.h"
#include "report.h"
#include "vfio.h"
#include "vgpu_device.h"

#define SET_NONE (VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER)
#define SET_BOOL (VFIO_IRQ_SET_DATA_BOOL | VFIO_IRQ_SET_ACTION_TRIGGER)
#define SET_FD (VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER)
#define CONFIG_BYTES 256u

struct probe {
	struct vfio vfio;
	bool json;
	unsigned int checks;
	unsigned int failed;
};

static void check(struct probe *probe, const char *what, int64_t found,
		  int64_t expected)
{
	struct report report;

	probe->checks++;
	probe->failed += found != expected;
	report_begin(&report, probe->json);
	report_text(&report, "record", "probe");
	report_text(&report, "check", what);
	report_hex(&report, "found", found);
	report_hex(&report, "expected", expected);
	report_bool(&report, "ok", found == expected);
	report_end(&report);
}

static int device_ioctl(struct probe *probe, unsigned long command, void *arg)
{
	return ioctl(probe->vfio.device, command, arg) ? -errno : 0;
}

static void probe_info(struct probe *probe)
{
	struct vfio_device_info info = { .argsz = sizeof(info) };

	check(probe, "device info", device_ioctl(probe, VFIO_DEVICE_GET_INFO, &info),
	      0);
	check(probe, "device flags",
	      info.flags & (VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET),
	      VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET);
	check(probe, "enough regions for QEMU", info.num_regions >= 8, 1);
	check(probe, "enough interrupts for QEMU", info.num_irqs >= 3, 1);
	info.argsz = 4;
	check(probe, "device info, short argsz",
	      device_ioctl(probe, VFIO_DEVICE_GET_INFO, &info), -EINVAL);
	check(probe, "unknown ioctl",
	      device_ioctl(probe, _IO(VFIO_TYPE, VFIO_BASE + 99), NULL), -ENOTTY);
}

static void probe_regions(struct probe *probe)
{
	char what[64];

	for (uint32_t index = 0; index < VFIO_PCI_NUM_REGIONS; index++) {
		struct vfio_region_info info = { .argsz = sizeof(info),
						 .index = index };
		uint64_t expected = 0;

		if (index == VFIO_PCI_BAR0_REGION_INDEX)
			expected = VGPU_BAR0_BYTES;
		if (index == VFIO_PCI_CONFIG_REGION_INDEX)
			expected = CONFIG_BYTES;
		snprintf(what, sizeof(what), "region %u answered", index);
		check(probe, what,
		      device_ioctl(probe, VFIO_DEVICE_GET_REGION_INFO, &info), 0);
		snprintf(what, sizeof(what), "region %u size", index);
		check(probe, what, info.size, expected);
		snprintf(what, sizeof(what), "region %u flags", index);
		check(probe, what, info.flags,
		      expected ? VFIO_REGION_INFO_FLAG_READ |
					 VFIO_REGION_INFO_FLAG_WRITE :
				 0);
	}
	struct vfio_region_info info = { .argsz = sizeof(info),
					 .index = VFIO_PCI_NUM_REGIONS };

	check(probe, "region beyond the last",
	      device_ioctl(probe, VFIO_DEVICE_GET_REGION_INFO, &info), -EINVAL);
	info.index = UINT32_MAX;
	check(probe, "region with the largest index",
	      device_ioctl(probe, VFIO_DEVICE_GET_REGION_INFO, &info), -EINVAL);
	info.index = 0;
	info.argsz = 8;
	check(probe, "region info, short argsz",
	      device_ioctl(probe, VFIO_DEVICE_GET_REGION_INFO, &info), -EINVAL);
}

static void probe_irqs(struct probe *probe)
{
	char what[64];

	for (uint32_t index = 0; index < VFIO_PCI_NUM_IRQS; index++) {
		struct vfio_irq_info info = { .argsz = sizeof(info),
					      .index = index };
		uint32_t expected = 0;

		if (index == VFIO_PCI_MSIX_IRQ_INDEX)
			expected = VGPU_VECTORS;
		if (index == VFIO_PCI_REQ_IRQ_INDEX)
			expected = 1;
		snprintf(what, sizeof(what), "irq %u answered", index);
		check(probe, what,
		      device_ioctl(probe, VFIO_DEVICE_GET_IRQ_INFO, &info), 0);
		snprintf(what, sizeof(what), "irq %u count", index);
		check(probe, what, info.count, expected);
		snprintf(what, sizeof(what), "irq %u by eventfd", index);
		check(probe, what, !!(info.flags & VFIO_IRQ_INFO_EVENTFD),
		      !!expected);
	}
	struct vfio_irq_info info = { .argsz = sizeof(info),
				      .index = VFIO_PCI_NUM_IRQS };

	check(probe, "irq beyond the last",
	      device_ioctl(probe, VFIO_DEVICE_GET_IRQ_INFO, &info), -EINVAL);
	info.index = 0;
	info.argsz = 8;
	check(probe, "irq info, short argsz",
	      device_ioctl(probe, VFIO_DEVICE_GET_IRQ_INFO, &info), -EINVAL);
}

static void dump_config(struct probe *probe)
{
	char text[2 * CONFIG_BYTES + 1];
	struct report report;

	for (uint32_t at = 0; at < CONFIG_BYTES; at++)
		snprintf(text + 2 * at, 3, "%02x",
			 vfio_config_read(&probe->vfio, at, 1) & 0xff);
	report_begin(&report, probe->json);
	report_text(&report, "record", "config");
	report_text(&report, "bytes", text);
	report_end(&report);
}

/* Write ones to a register and report the bits that stayed; then restore it. */
static uint32_t stuck(struct probe *probe, uint32_t offset, unsigned int bytes)
{
	uint32_t before = vfio_config_read(&probe->vfio, offset, bytes), ones;

	vfio_config_write(&probe->vfio, offset, bytes, UINT32_MAX);
	ones = vfio_config_read(&probe->vfio, offset, bytes);
	vfio_config_write(&probe->vfio, offset, bytes, before);
	return ones;
}

static void probe_config(struct probe *probe)
{
	struct vfio *vfio = &probe->vfio;
	uint32_t msix = vfio_config_capability(vfio, PCI_CAP_ID_MSIX);
	char what[64];

	dump_config(probe);
	check(probe, "bus master is off at open",
	      vfio_config_read(vfio, PCI_COMMAND, 2) & PCI_COMMAND_MASTER, 0);
	check(probe, "vendor", vfio_config_read(vfio, PCI_VENDOR_ID, 2),
	      VGPU_PCI_VENDOR_ID);
	check(probe, "device", vfio_config_read(vfio, PCI_DEVICE_ID, 2),
	      VGPU_PCI_DEVICE_ID);
	check(probe, "class", vfio_config_read(vfio, PCI_CLASS_REVISION, 4) >> 8,
	      VGPU_PCI_CLASS);
	check(probe, "header type", vfio_config_read(vfio, PCI_HEADER_TYPE, 1), 0);
	check(probe, "no interrupt pin",
	      vfio_config_read(vfio, PCI_INTERRUPT_PIN, 1), 0);
	check(probe, "vendor is read-only", stuck(probe, PCI_VENDOR_ID, 4),
	      VGPU_PCI_DEVICE_ID << 16 | VGPU_PCI_VENDOR_ID);
	check(probe, "class is read-only",
	      stuck(probe, PCI_CLASS_REVISION, 4) >> 8, VGPU_PCI_CLASS);
	check(probe, "capability pointer is read-only",
	      stuck(probe, PCI_CAPABILITY_LIST, 1),
	      vfio_config_read(vfio, PCI_CAPABILITY_LIST, 1));
	check(probe, "command takes memory and master",
	      stuck(probe, PCI_COMMAND, 2) &
		      (PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_IO),
	      PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
	check(probe, "BAR0 sizes to 16 KiB",
	      stuck(probe, PCI_BASE_ADDRESS_0, 4) & PCI_BASE_ADDRESS_MEM_MASK,
	      (uint32_t)-VGPU_BAR0_BYTES);
	for (uint32_t bar = 1; bar < 6; bar++) {
		snprintf(what, sizeof(what), "BAR%u is absent", bar);
		check(probe, what, stuck(probe, PCI_BASE_ADDRESS_0 + 4 * bar, 4),
		      0);
	}
	check(probe, "no expansion ROM", stuck(probe, PCI_ROM_ADDRESS, 4), 0);
	check(probe, "MSI-X is there", msix != 0, 1);
	check(probe, "MSI-X table size",
	      (vfio_config_read(vfio, msix + PCI_MSIX_FLAGS, 2) &
	       PCI_MSIX_FLAGS_QSIZE) + 1, VGPU_VECTORS);
	check(probe, "MSI-X table",
	      vfio_config_read(vfio, msix + PCI_MSIX_TABLE, 4),
	      VGPU_BAR0_MSIX_TABLE);
	check(probe, "MSI-X pending bits",
	      vfio_config_read(vfio, msix + PCI_MSIX_PBA, 4), VGPU_BAR0_MSIX_PBA);
	check(probe, "MSI-X table size is read-only",
	      stuck(probe, msix + PCI_MSIX_FLAGS, 2) & PCI_MSIX_FLAGS_QSIZE,
	      VGPU_VECTORS - 1);
}

static uint64_t access_bar(struct probe *probe, uint32_t offset,
			   unsigned int bytes)
{
	uint64_t value = 0;
	ssize_t got = pread(probe->vfio.device, &value, bytes,
			    probe->vfio.bar0 + offset);

	return got == bytes ? value : 0xdead0000u + (uint32_t)got;
}

static void probe_registers(struct probe *probe)
{
	struct vfio *vfio = &probe->vfio;
	uint16_t half = 0;

	check(probe, "id register", vfio_read32(vfio, VGPU_REG_ID), VGPU_ID);
	check(probe, "ABI major", vfio_read32(vfio, VGPU_REG_ABI) >> 16,
	      VGPU_ABI_MAJOR);
	vfio_write32(vfio, VGPU_REG_ID, 0);
	check(probe, "id register is read-only", vfio_read32(vfio, VGPU_REG_ID),
	      VGPU_ID);
	check(probe, "8 bits read as ones", access_bar(probe, VGPU_REG_ID, 1), 0xff);
	check(probe, "16 bits read as ones", access_bar(probe, VGPU_REG_ID, 2),
	      0xffff);
	check(probe, "64 bits are two registers",
	      access_bar(probe, VGPU_REG_ID, 8),
	      (uint64_t)vfio_read32(vfio, VGPU_REG_ABI) << 32 | VGPU_ID);
	vfio_write32(vfio, VGPU_REG_RING_LO, 0x12340);
	if (pwrite(vfio->device, &half, 2, vfio->bar0 + VGPU_REG_RING_LO) < 0)
		half = 1;
	check(probe, "16 bits write nothing", vfio_read32(vfio, VGPU_REG_RING_LO),
	      0x12340);
	check(probe, "not enabled at open",
	      vfio_read32(vfio, VGPU_REG_STATUS) &
		      (VGPU_STATUS_ENABLED | VGPU_STATUS_ERROR), 0);
	vfio_write32(vfio, VGPU_REG_CONTROL, VGPU_CONTROL_RESET);
	check(probe, "reset clears the ring address",
	      vfio_read32(vfio, VGPU_REG_RING_LO), 0);
}

/* Enable with rings that need no memory as long as nothing is submitted. */
static void enable(struct vfio *vfio)
{
	vfio_master(vfio, true);
	vfio_write32(vfio, VGPU_REG_RING_LO, 0x10000);
	vfio_write32(vfio, VGPU_REG_COMPLETION_LO, 0x20000);
	vfio_write32(vfio, VGPU_REG_SHADOW_LO, 0x30000);
	vfio_write32(vfio, VGPU_REG_RING_ENTRIES, 8);
	vfio_write32(vfio, VGPU_REG_CONTROL, VGPU_CONTROL_ENABLE);
}

static uint32_t enabled(struct vfio *vfio)
{
	return vfio_read32(vfio, VGPU_REG_STATUS) & VGPU_STATUS_ENABLED;
}

static void probe_reset(struct probe *probe)
{
	struct vfio *vfio = &probe->vfio;
	uint32_t express = vfio_config_capability(vfio, PCI_CAP_ID_EXP);
	uint32_t devctl;

	enable(vfio);
	check(probe, "enables", enabled(vfio), VGPU_STATUS_ENABLED);
	vfio_write32(vfio, VGPU_REG_RING_LO, 0x50000);
	check(probe, "ring address is frozen while enabled",
	      vfio_read32(vfio, VGPU_REG_RING_LO), 0x10000);
	check(probe, "control reads as enabled",
	      vfio_read32(vfio, VGPU_REG_CONTROL), VGPU_CONTROL_ENABLE);
	vfio_write32(vfio, VGPU_REG_CONTROL, VGPU_CONTROL_RESET);
	check(probe, "control reset disables", enabled(vfio), 0);

	enable(vfio);
	check(probe, "VFIO reset", device_ioctl(probe, VFIO_DEVICE_RESET, NULL), 0);
	check(probe, "VFIO reset disables", enabled(vfio), 0);
	check(probe, "VFIO reset turns bus mastering off",
	      vfio_config_read(vfio, PCI_COMMAND, 2) & PCI_COMMAND_MASTER, 0);

	check(probe, "PCI Express capability", express != 0, 1);
	check(probe, "function level reset is offered",
	      !!(vfio_config_read(vfio, express + PCI_EXP_DEVCAP, 4) &
		 PCI_EXP_DEVCAP_FLR), 1);
	enable(vfio);
	check(probe, "enables again", enabled(vfio), VGPU_STATUS_ENABLED);
	devctl = vfio_config_read(vfio, express + PCI_EXP_DEVCTL, 2);
	vfio_config_write(vfio, express + PCI_EXP_DEVCTL, 2,
			  devctl | PCI_EXP_DEVCTL_BCR_FLR);
	check(probe, "function level reset disables", enabled(vfio), 0);
	check(probe, "function level reset turns bus mastering off",
	      vfio_config_read(vfio, PCI_COMMAND, 2) & PCI_COMMAND_MASTER, 0);
	check(probe, "function level reset reads as zero",
	      vfio_config_read(vfio, express + PCI_EXP_DEVCTL, 2) &
		      PCI_EXP_DEVCTL_BCR_FLR, 0);
}

static uint64_t taken(int fd)
{
	uint64_t count = 0;

	return read(fd, &count, sizeof(count)) == sizeof(count) ? count : 0;
}

static int set_irqs(struct probe *probe, uint32_t flags, uint32_t index,
		    uint32_t start, uint32_t count, const void *data,
		    size_t bytes)
{
	return vfio_set_irqs(&probe->vfio, flags, index, start, count, data, bytes);
}

static void probe_interrupts(struct probe *probe)
{
	const uint32_t msix = VFIO_PCI_MSIX_IRQ_INDEX;
	int fds[2] = { eventfd(0, EFD_NONBLOCK), eventfd(0, EFD_NONBLOCK) };
	const int detached[2] = { -1, -1 };
	const uint8_t second[2] = { 0, 1 };

	check(probe, "eventfds connect",
	      set_irqs(probe, SET_FD, msix, 0, 2, fds, sizeof(fds)), 0);
	check(probe, "loopback without data",
	      set_irqs(probe, SET_NONE, msix, 0, 1, NULL, 0), 0);
	check(probe, "vector 0 came", taken(fds[0]), 1);
	check(probe, "vector 1 did not", taken(fds[1]), 0);
	check(probe, "loopback by bool",
	      set_irqs(probe, SET_BOOL, msix, 0, 2, second, 2), 0);
	check(probe, "vector 0 did not come", taken(fds[0]), 0);
	check(probe, "vector 1 came", taken(fds[1]), 1);
	check(probe, "one vector alone connects",
	      set_irqs(probe, SET_FD, msix, 1, 1, &fds[0], sizeof(int)), 0);
	check(probe, "loopback of vector 1",
	      set_irqs(probe, SET_NONE, msix, 1, 1, NULL, 0), 0);
	check(probe, "it came where it was connected", taken(fds[0]), 1);
	check(probe, "fd -1 disconnects",
	      set_irqs(probe, SET_FD, msix, 0, 2, detached, sizeof(detached)), 0);
	check(probe, "loopback into nothing",
	      set_irqs(probe, SET_NONE, msix, 0, 2, NULL, 0), 0);
	check(probe, "nothing came", taken(fds[0]) + taken(fds[1]), 0);
	check(probe, "eventfds connect again",
	      set_irqs(probe, SET_FD, msix, 0, 2, fds, sizeof(fds)), 0);
	check(probe, "count 0 disconnects all",
	      set_irqs(probe, SET_NONE, msix, 0, 0, NULL, 0), 0);
	check(probe, "loopback into nothing again",
	      set_irqs(probe, SET_NONE, msix, 0, 2, NULL, 0), 0);
	check(probe, "nothing came again", taken(fds[0]) + taken(fds[1]), 0);
	close(fds[0]);
	close(fds[1]);
}

static void probe_bad_interrupts(struct probe *probe)
{
	const uint32_t msix = VFIO_PCI_MSIX_IRQ_INDEX;
	struct vfio_irq_set set = { .argsz = 8 };
	int fds[4] = { -1, -1, -1, -1 }, closed = eventfd(0, 0), file;

	check(probe, "set irqs, short argsz",
	      device_ioctl(probe, VFIO_DEVICE_SET_IRQS, &set), -EINVAL);
	check(probe, "set irqs, index beyond the last",
	      set_irqs(probe, SET_NONE, VFIO_PCI_NUM_IRQS, 0, 1, NULL, 0), -EINVAL);
	check(probe, "set irqs, largest index",
	      set_irqs(probe, SET_NONE, UINT32_MAX, 0, 1, NULL, 0), -EINVAL);
	check(probe, "set irqs, index without interrupts",
	      set_irqs(probe, SET_NONE, VFIO_PCI_INTX_IRQ_INDEX, 0, 1, NULL, 0),
	      -EINVAL);
	check(probe, "set irqs, too many",
	      set_irqs(probe, SET_FD, msix, 0, 3, fds, 3 * sizeof(int)), -EINVAL);
	check(probe, "set irqs, start beyond",
	      set_irqs(probe, SET_FD, msix, 2, 1, fds, sizeof(int)), -EINVAL);
	check(probe, "set irqs, start + count overflow",
	      set_irqs(probe, SET_NONE, msix, UINT32_MAX, 2, NULL, 0), -EINVAL);
	check(probe, "set irqs, largest count",
	      set_irqs(probe, SET_FD, msix, 0, UINT32_MAX, fds, sizeof(int)),
	      -EINVAL);
	check(probe, "set irqs, data too short",
	      set_irqs(probe, SET_FD, msix, 0, 2, fds, sizeof(int)), -EINVAL);
	check(probe, "set irqs, two data types",
	      set_irqs(probe, SET_FD | VFIO_IRQ_SET_DATA_BOOL, msix, 0, 1, fds,
		       sizeof(int)), -EINVAL);
	check(probe, "set irqs, no data type",
	      set_irqs(probe, VFIO_IRQ_SET_ACTION_TRIGGER, msix, 0, 1, NULL, 0),
	      -EINVAL);
	check(probe, "set irqs, no action",
	      set_irqs(probe, VFIO_IRQ_SET_DATA_NONE, msix, 0, 1, NULL, 0),
	      -ENOTTY);
	check(probe, "set irqs, a vector is masked by the VMM",
	      set_irqs(probe, VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_MASK, msix,
		       0, 1, NULL, 0), -ENOTTY);
	check(probe, "set irqs, data of none",
	      set_irqs(probe, SET_FD, msix, 0, 0, NULL, 0), -EINVAL);
	check(probe, "set irqs, unknown flag",
	      set_irqs(probe, SET_NONE | 1u << 31, msix, 0, 1, NULL, 0), -EINVAL);
	close(closed);
	check(probe, "set irqs, closed fd",
	      set_irqs(probe, SET_FD, msix, 0, 1, &closed, sizeof(int)), -EBADF);
	file = dup(STDERR_FILENO);
	check(probe, "set irqs, fd that is no eventfd",
	      set_irqs(probe, SET_FD, msix, 0, 1, &file, sizeof(int)), -EINVAL);
	close(file);
	fds[0] = -2;
	check(probe, "set irqs, fd -2 disconnects as -1 does",
	      set_irqs(probe, SET_FD, msix, 0, 1, fds, sizeof(int)), 0);
}

static void probe_edges(struct probe *probe)
{
	struct vfio *vfio = &probe->vfio;
	uint32_t value = 0;

	check(probe, "read beyond BAR0 is refused",
	      pread(vfio->device, &value, 4, vfio->bar0 + VGPU_BAR0_BYTES) < 0, 1);
	check(probe, "read beyond configuration space is refused",
	      pread(vfio->device, &value, 4, vfio->config + CONFIG_BYTES) < 0, 1);
	check(probe, "write beyond BAR0 is refused",
	      pwrite(vfio->device, &value, 4, vfio->bar0 + VGPU_BAR0_BYTES) < 0, 1);
	check(probe, "read at the end of the file is refused",
	      pread(vfio->device, &value, 4, INT64_MAX - 3) < 0, 1);
}

int client_probe(const char *uuid, bool json)
{
	struct probe probe = { .json = json };
	struct report report;

	if (vfio_open(&probe.vfio, uuid)) {
		fprintf(stderr, "vgpu-client: %s\n", probe.vfio.message);
		return EXIT_DEVICE;
	}
	probe_info(&probe);
	probe_regions(&probe);
	probe_irqs(&probe);
	probe_config(&probe);
	probe_registers(&probe);
	probe_reset(&probe);
	probe_interrupts(&probe);
	probe_bad_interrupts(&probe);
	probe_edges(&probe);
	vfio_close(&probe.vfio);

	report_begin(&report, json);
	report_text(&report, "record", "summary");
	report_text(&report, "name", uuid);
	report_u64(&report, "checks", probe.checks);
	report_u64(&report, "failed", probe.failed);
	report_end(&report);
	return probe.failed ? EXIT_WRONG : EXIT_OK;
}
