/* SPDX-License-Identifier: GPL-2.0 */
/* A mediated device through the VFIO group and container interface. */
#ifndef VGPU_CLIENT_VFIO_H
#define VGPU_CLIENT_VFIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vfio {
	int container;
	int group;
	int device;
	uint64_t bar0;	 /* offset of the region in the device file */
	uint64_t config;
	char message[192];
};

/*
 * Open the mdev called @uuid in its own container. 0, or a negative errno
 * with message filled and nothing left open.
 */
int vfio_open(struct vfio *vfio, const char *uuid);
void vfio_close(struct vfio *vfio);

int vfio_map(struct vfio *vfio, void *memory, uint64_t iova, size_t bytes);
int vfio_unmap(struct vfio *vfio, uint64_t iova, size_t bytes);

/* BAR0 registers; a failed read gives ones, as the bus would. */
uint32_t vfio_read32(struct vfio *vfio, uint32_t offset);
uint64_t vfio_read64(struct vfio *vfio, uint32_t offset);
void vfio_write32(struct vfio *vfio, uint32_t offset, uint32_t value);

uint32_t vfio_config_read(struct vfio *vfio, uint32_t offset, unsigned int bytes);
void vfio_config_write(struct vfio *vfio, uint32_t offset, unsigned int bytes,
		       uint32_t value);
/* Offset of a capability in configuration space, or 0. */
uint32_t vfio_config_capability(struct vfio *vfio, uint8_t id);

/* Turn PCI bus mastering on or off. */
void vfio_master(struct vfio *vfio, bool on);

/* Raw VFIO_DEVICE_SET_IRQS with @data_bytes of @data; 0 or -errno. */
int vfio_set_irqs(struct vfio *vfio, uint32_t flags, uint32_t index,
		  uint32_t start, uint32_t count, const void *data,
		  size_t data_bytes);
/* Connect both MSI-X vectors to eventfds. */
int vfio_connect_irqs(struct vfio *vfio, const int eventfds[2]);

#endif
