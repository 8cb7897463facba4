// SPDX-License-Identifier: GPL-2.0
/*
 * Our device for the kernel's own VFIO selftests: a driver for their library libvfio,
 * so that the tests copy by our device's DMA and take its interrupts.
 *
 * BAR0 is not mapped: registers are read and written through the device's file.
 */
#include <endian.h>
#include <stdint.h>
#include <unistd.h>

#include <linux/pci_regs.h>

#include <libvfio.h>

#include "vgpu_device.h"

#define ENTRIES		64
#define WAIT_US		100

/* This struct is in memory that the device can access: device->driver.region. */
struct vgpu_area {
	struct vgpu_desc ring[ENTRIES] __attribute__((aligned(64)));
	struct vgpu_completion answers[ENTRIES];
	uint64_t msi_source;
	uint64_t msi_target;
};

static uint32_t tail;

static struct vgpu_area *vgpu_area(struct vfio_pci_device *device)
{
	return device->driver.region.vaddr;
}

static uint32_t vgpu_read(struct vfio_pci_device *device, uint32_t offset)
{
	uint32_t value;

	VFIO_ASSERT_EQ(pread(device->fd, &value, sizeof(value),
			     device->bars[0].info.offset + offset), sizeof(value));
	return le32toh(value);
}

static void vgpu_write(struct vfio_pci_device *device, uint32_t offset, uint32_t value)
{
	value = htole32(value);
	VFIO_ASSERT_EQ(pwrite(device->fd, &value, sizeof(value),
			      device->bars[0].info.offset + offset), sizeof(value));
}

static void vgpu_write_address(struct vfio_pci_device *device, uint32_t offset, void *at)
{
	iova_t iova = to_iova(device, at);

	vgpu_write(device, offset, (uint32_t)iova);
	vgpu_write(device, offset + 4, (uint32_t)(iova >> 32));
}

static int vgpu_probe(struct vfio_pci_device *device)
{
	return vfio_pci_device_match(device, VGPU_PCI_VENDOR_ID, VGPU_PCI_DEVICE_ID) ? 0 : -1;
}

static void vgpu_start(struct vfio_pci_device *device)
{
	vgpu_write(device, VGPU_REG_CONTROL, VGPU_CONTROL_RESET);
	tail = 0;
	vgpu_write_address(device, VGPU_REG_RING_LO, vgpu_area(device)->ring);
	vgpu_write_address(device, VGPU_REG_COMPLETION_LO, vgpu_area(device)->answers);
	vgpu_write(device, VGPU_REG_RING_ENTRIES, ENTRIES);
	/* No shadow: its address would be 0. */
	vgpu_write(device, VGPU_REG_CONTROL, VGPU_CONTROL_ENABLE);
	VFIO_ASSERT_EQ(vgpu_read(device, VGPU_REG_STATUS),
		       VGPU_STATUS_ENABLED | VGPU_STATUS_SCHEDULED);
}

static void vgpu_init(struct vfio_pci_device *device)
{
	VFIO_ASSERT_GE(device->driver.region.size, sizeof(struct vgpu_area));
	VFIO_ASSERT_EQ(vgpu_read(device, VGPU_REG_ID), VGPU_ID);
	vfio_pci_cmd_set(device, PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
	vfio_pci_msix_enable(device, 0, VGPU_VECTORS);
	vgpu_start(device);
	device->driver.msi = VGPU_VECTOR_COMPLETION;
	device->driver.max_memcpy_size = vgpu_read(device, VGPU_REG_ITEM_BYTES_MAX);
	device->driver.max_memcpy_count = ENTRIES;
}

static void vgpu_remove(struct vfio_pci_device *device)
{
	vgpu_write(device, VGPU_REG_CONTROL, VGPU_CONTROL_RESET);
	vfio_pci_msix_disable(device);
	vfio_pci_cmd_clear(device, PCI_COMMAND_MASTER);
}

static void vgpu_copy(struct vfio_pci_device *device, iova_t src, iova_t dst, u64 size,
		      uint16_t flags)
{
	vgpu_area(device)->ring[tail++ % ENTRIES] = (struct vgpu_desc) {
		.op = htole16(VGPU_OP_COPY),
		.flags = htole16(flags),
		.src = htole64(src),
		.dst = htole64(dst),
		.arg = { htole32(size) },
	};
}

static void vgpu_memcpy_start(struct vfio_pci_device *device, iova_t src, iova_t dst, u64 size,
			      u64 count)
{
	while (count--)
		vgpu_copy(device, src, dst, size, 0);
	vgpu_write(device, VGPU_BAR0_DOORBELL, tail);
}

/* After an error the device accesses no memory; it works again after a reset. */
static int vgpu_memcpy_wait(struct vfio_pci_device *device)
{
	while (vgpu_read(device, VGPU_REG_COMPLETED) != tail) {
		if (vgpu_read(device, VGPU_REG_STATUS) & VGPU_STATUS_ERROR) {
			VFIO_ASSERT_EQ(vgpu_read(device, VGPU_REG_ERROR), VGPU_ERROR_DMA);
			vgpu_start(device);
			return -1;
		}
		usleep(WAIT_US);
	}
	return 0;
}

static void vgpu_send_msi(struct vfio_pci_device *device)
{
	struct vgpu_area *area = vgpu_area(device);

	vgpu_copy(device, to_iova(device, &area->msi_source), to_iova(device, &area->msi_target),
		  sizeof(area->msi_source), VGPU_DESC_IRQ);
	vgpu_write(device, VGPU_BAR0_DOORBELL, tail);
	VFIO_ASSERT_EQ(vgpu_memcpy_wait(device), 0);
}

const struct vfio_pci_driver_ops vgpu_ops = {
	.name = "vgpumgr",
	.probe = vgpu_probe,
	.init = vgpu_init,
	.remove = vgpu_remove,
	.memcpy_start = vgpu_memcpy_start,
	.memcpy_wait = vgpu_memcpy_wait,
	.send_msi = vgpu_send_msi,
};
