// SPDX-License-Identifier: GPL-2.0
#include "vfio.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "vgpu_device.h"

static int fail(struct vfio *vfio, const char *what, const char *which)
{
	int error = errno;

	snprintf(vfio->message, sizeof(vfio->message), "%s %.100s: %s", what, which,
		 strerror(error));
	return -error;
}

static int find_group(struct vfio *vfio, const char *uuid, char *path,
		      size_t size)
{
	char link[128], target[PATH_MAX];
	ssize_t length;

	snprintf(link, sizeof(link), "/sys/bus/mdev/devices/%s/iommu_group",
		 uuid);
	length = readlink(link, target, sizeof(target) - 1);
	if (length < 0)
		return fail(vfio, "no VFIO group, reading", link);
	target[length] = '\0';
	snprintf(path, size, "/dev/vfio/%s", strrchr(target, '/') + 1);
	return 0;
}

static int open_group(struct vfio *vfio, const char *path)
{
	struct vfio_group_status status = { .argsz = sizeof(status) };

	vfio->container = open("/dev/vfio/vfio", O_RDWR | O_CLOEXEC);
	if (vfio->container < 0)
		return fail(vfio, "opening", "/dev/vfio/vfio");
	vfio->group = open(path, O_RDWR | O_CLOEXEC);
	if (vfio->group < 0)
		return fail(vfio, "opening", path);
	if (ioctl(vfio->group, VFIO_GROUP_GET_STATUS, &status))
		return fail(vfio, "status of", path);
	if (!(status.flags & VFIO_GROUP_FLAGS_VIABLE)) {
		errno = EPERM;
		return fail(vfio, "group is not viable:", path);
	}
	if (ioctl(vfio->group, VFIO_GROUP_SET_CONTAINER, &vfio->container))
		return fail(vfio, "container for", path);
	if (ioctl(vfio->container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU))
		return fail(vfio, "type1 IOMMU for", path);
	return 0;
}

static int region_offset(struct vfio *vfio, uint32_t index, uint64_t *offset)
{
	struct vfio_region_info info = { .argsz = sizeof(info), .index = index };

	if (ioctl(vfio->device, VFIO_DEVICE_GET_REGION_INFO, &info))
		return fail(vfio, "region", index ? "config" : "BAR0");
	*offset = info.offset;
	return 0;
}

int vfio_open(struct vfio *vfio, const char *uuid)
{
	char path[PATH_MAX];
	int rc;

	*vfio = (struct vfio){ .container = -1, .group = -1, .device = -1 };
	rc = find_group(vfio, uuid, path, sizeof(path));
	if (!rc)
		rc = open_group(vfio, path);
	if (!rc) {
		vfio->device = ioctl(vfio->group, VFIO_GROUP_GET_DEVICE_FD, uuid);
		if (vfio->device < 0)
			rc = fail(vfio, "opening device", uuid);
	}
	if (!rc)
		rc = region_offset(vfio, VFIO_PCI_BAR0_REGION_INDEX, &vfio->bar0);
	if (!rc)
		rc = region_offset(vfio, VFIO_PCI_CONFIG_REGION_INDEX,
				   &vfio->config);
	if (rc)
		vfio_close(vfio);
	return rc;
}

void vfio_close(struct vfio *vfio)
{
	if (vfio->device >= 0)
		close(vfio->device);
	if (vfio->group >= 0)
		close(vfio->group);
	if (vfio->container >= 0)
		close(vfio->container);
	vfio->device = -1;
	vfio->group = -1;
	vfio->container = -1;
}

int vfio_map(struct vfio *vfio, void *memory, uint64_t iova, size_t bytes)
{
	struct vfio_iommu_type1_dma_map map = {
		.argsz = sizeof(map),
		.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
		.vaddr = (uintptr_t)memory,
		.iova = iova,
		.size = bytes,
	};

	if (ioctl(vfio->container, VFIO_IOMMU_MAP_DMA, &map))
		return fail(vfio, "mapping", "memory for DMA");
	return 0;
}

int vfio_unmap(struct vfio *vfio, uint64_t iova, size_t bytes)
{
	struct vfio_iommu_type1_dma_unmap unmap = {
		.argsz = sizeof(unmap),
		.iova = iova,
		.size = bytes,
	};

	if (ioctl(vfio->container, VFIO_IOMMU_UNMAP_DMA, &unmap))
		return fail(vfio, "unmapping", "memory from DMA");
	return 0;
}

uint32_t vfio_read32(struct vfio *vfio, uint32_t offset)
{
	uint32_t value = UINT32_MAX;

	if (pread(vfio->device, &value, sizeof(value), vfio->bar0 + offset) !=
	    sizeof(value))
		return UINT32_MAX;
	return value;
}

uint64_t vfio_read64(struct vfio *vfio, uint32_t offset)
{
	uint64_t value = UINT64_MAX;

	if (pread(vfio->device, &value, sizeof(value), vfio->bar0 + offset) !=
	    sizeof(value))
		return UINT64_MAX;
	return value;
}

void vfio_write32(struct vfio *vfio, uint32_t offset, uint32_t value)
{
	/* a write that the device refuses is lost, as on the bus */
	if (pwrite(vfio->device, &value, sizeof(value), vfio->bar0 + offset) < 0)
		return;
}

uint32_t vfio_config_read(struct vfio *vfio, uint32_t offset, unsigned int bytes)
{
	uint32_t value = 0;

	if (pread(vfio->device, &value, bytes, vfio->config + offset) != bytes)
		return UINT32_MAX;
	return value;
}

void vfio_config_write(struct vfio *vfio, uint32_t offset, unsigned int bytes,
		       uint32_t value)
{
	if (pwrite(vfio->device, &value, bytes, vfio->config + offset) < 0)
		return;
}

uint32_t vfio_config_capability(struct vfio *vfio, uint8_t id)
{
	uint32_t at = vfio_config_read(vfio, PCI_CAPABILITY_LIST, 1);

	for (int hops = 0; at && at < 0x100 && hops < 48; hops++) {
		if (vfio_config_read(vfio, at, 1) == id)
			return at;
		at = vfio_config_read(vfio, at + 1, 1);
	}
	return 0;
}

void vfio_master(struct vfio *vfio, bool on)
{
	uint32_t command = vfio_config_read(vfio, PCI_COMMAND, 2);

	command |= PCI_COMMAND_MEMORY;
	if (on)
		command |= PCI_COMMAND_MASTER;
	else
		command &= ~PCI_COMMAND_MASTER;
	vfio_config_write(vfio, PCI_COMMAND, 2, command);
}

int vfio_set_irqs(struct vfio *vfio, uint32_t flags, uint32_t index,
		  uint32_t start, uint32_t count, const void *data,
		  size_t data_bytes)
{
	struct vfio_irq_set *set = calloc(1, sizeof(*set) + data_bytes);
	int rc = 0;

	if (!set)
		return -ENOMEM;
	set->argsz = sizeof(*set) + data_bytes;
	set->flags = flags;
	set->index = index;
	set->start = start;
	set->count = count;
	if (data_bytes)
		memcpy(set->data, data, data_bytes);
	if (ioctl(vfio->device, VFIO_DEVICE_SET_IRQS, set))
		rc = fail(vfio, "setting", "interrupts");
	free(set);
	return rc;
}

int vfio_connect_irqs(struct vfio *vfio, const int eventfds[2])
{
	return vfio_set_irqs(vfio,
			     VFIO_IRQ_SET_DATA_EVENTFD |
				     VFIO_IRQ_SET_ACTION_TRIGGER,
			     VFIO_PCI_MSIX_IRQ_INDEX, 0, VGPU_VECTORS, eventfds,
			     sizeof(int) * VGPU_VECTORS);
}
