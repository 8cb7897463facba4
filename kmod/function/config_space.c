// SPDX-License-Identifier: GPL-2.0
/*
 * PCI configuration space of the virtual function: 256 bytes, each with a mask of the
 * bits a guest may write. All other bits ignore writes.
 *
 * Capabilities: MSI-X (the only interrupt) and PCI Express with function level reset.
 * The enable and mask bits of MSI-X are stored here, but only the VMM acts on them: it
 * connects a vector's eventfd while the guest may receive it.
 */
#include <linux/pci.h>
#include <linux/pci_regs.h>

#include "vgpu.h"

#define VGPU_CAP_MSIX		0x40
#define VGPU_CAP_EXPRESS	0x50
#define VGPU_COMMAND_BITS	(PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | \
				 PCI_COMMAND_PARITY | PCI_COMMAND_SERR | \
				 PCI_COMMAND_INTX_DISABLE)
#define VGPU_DEVCTL_BITS	(PCI_EXP_DEVCTL_CERE | PCI_EXP_DEVCTL_NFERE | \
				 PCI_EXP_DEVCTL_FERE | PCI_EXP_DEVCTL_URRE | \
				 PCI_EXP_DEVCTL_RELAX_EN | PCI_EXP_DEVCTL_PAYLOAD | \
				 PCI_EXP_DEVCTL_NOSNOOP_EN | PCI_EXP_DEVCTL_READRQ)
#define VGPU_DEVCTL_DEFAULT	(PCI_EXP_DEVCTL_RELAX_EN | PCI_EXP_DEVCTL_NOSNOOP_EN | \
				 PCI_EXP_DEVCTL_READRQ_512B)

static void vgpu_config_put16(u8 *config, u32 offset, u16 value)
{
	config[offset] = value;
	config[offset + 1] = value >> 8;
}

static void vgpu_config_put32(u8 *config, u32 offset, u32 value)
{
	vgpu_config_put16(config, offset, value);
	vgpu_config_put16(config, offset + 2, value >> 16);
}

/* Bits of one byte that a write may change; @windows: the function has a BAR2. */
static u8 vgpu_config_write_mask(u32 offset, bool windows)
{
	switch (offset) {
	case PCI_COMMAND:
	case PCI_COMMAND + 1:
		return VGPU_COMMAND_BITS >> (8 * (offset - PCI_COMMAND));
	case PCI_CACHE_LINE_SIZE:
	case PCI_INTERRUPT_LINE:
		return 0xff;
	case PCI_BASE_ADDRESS_0 ... PCI_BASE_ADDRESS_0 + 3:
		return (u32)~(VGPU_BAR0_BYTES - 1) >> (8 * (offset - PCI_BASE_ADDRESS_0));
	case PCI_BASE_ADDRESS_2 ... PCI_BASE_ADDRESS_2 + 7:
		if (!windows)
			return 0;
		return ~(u64)(VGPU_BAR2_BYTES - 1) >> (8 * (offset - PCI_BASE_ADDRESS_2));
	case VGPU_CAP_MSIX + PCI_MSIX_FLAGS + 1:
		return (PCI_MSIX_FLAGS_ENABLE | PCI_MSIX_FLAGS_MASKALL) >> 8;
	case VGPU_CAP_EXPRESS + PCI_EXP_DEVCTL:
	case VGPU_CAP_EXPRESS + PCI_EXP_DEVCTL + 1:
		return VGPU_DEVCTL_BITS >>
		       (8 * (offset - VGPU_CAP_EXPRESS - PCI_EXP_DEVCTL));
	default:
		return 0;
	}
}

static void vgpu_config_power_on(u8 *config, bool windows)
{
	memset(config, 0, VGPU_CONFIG_BYTES);
	vgpu_config_put16(config, PCI_VENDOR_ID, VGPU_PCI_VENDOR_ID);
	vgpu_config_put16(config, PCI_DEVICE_ID, VGPU_PCI_DEVICE_ID);
	vgpu_config_put16(config, PCI_STATUS, PCI_STATUS_CAP_LIST);
	vgpu_config_put32(config, PCI_CLASS_REVISION, VGPU_PCI_CLASS << 8);
	vgpu_config_put32(config, PCI_BASE_ADDRESS_0, PCI_BASE_ADDRESS_MEM_TYPE_32);
	if (windows)
		vgpu_config_put32(config, PCI_BASE_ADDRESS_2,
				  PCI_BASE_ADDRESS_MEM_TYPE_64 | PCI_BASE_ADDRESS_MEM_PREFETCH);
	vgpu_config_put16(config, PCI_SUBSYSTEM_VENDOR_ID, VGPU_PCI_VENDOR_ID);
	vgpu_config_put16(config, PCI_SUBSYSTEM_ID, VGPU_PCI_DEVICE_ID);
	config[PCI_CAPABILITY_LIST] = VGPU_CAP_MSIX;

	config[VGPU_CAP_MSIX] = PCI_CAP_ID_MSIX;
	config[VGPU_CAP_MSIX + PCI_CAP_LIST_NEXT] = VGPU_CAP_EXPRESS;
	vgpu_config_put16(config, VGPU_CAP_MSIX + PCI_MSIX_FLAGS, VGPU_VECTORS - 1);
	vgpu_config_put32(config, VGPU_CAP_MSIX + PCI_MSIX_TABLE, VGPU_BAR0_MSIX_TABLE);
	vgpu_config_put32(config, VGPU_CAP_MSIX + PCI_MSIX_PBA, VGPU_BAR0_MSIX_PBA);

	config[VGPU_CAP_EXPRESS] = PCI_CAP_ID_EXP;
	vgpu_config_put16(config, VGPU_CAP_EXPRESS + PCI_EXP_FLAGS,
			  2 | PCI_EXP_TYPE_ENDPOINT << 4);
	vgpu_config_put32(config, VGPU_CAP_EXPRESS + PCI_EXP_DEVCAP,
			  PCI_EXP_DEVCAP_RBER | PCI_EXP_DEVCAP_FLR);
	vgpu_config_put16(config, VGPU_CAP_EXPRESS + PCI_EXP_DEVCTL, VGPU_DEVCTL_DEFAULT);
	vgpu_config_put32(config, VGPU_CAP_EXPRESS + PCI_EXP_LNKCAP,
			  PCI_EXP_LNKCAP_SLS_2_5GB | 1 << 4);
	vgpu_config_put16(config, VGPU_CAP_EXPRESS + PCI_EXP_LNKSTA,
			  PCI_EXP_LNKSTA_CLS_2_5GB | PCI_EXP_LNKSTA_NLW_X1);
}

/**
 * vgpu_config_reset - set the state after power on
 * @device: the slice, state_lock held
 */
void vgpu_config_reset(struct vgpu_device *device)
{
	vgpu_config_power_on(device->config, vgpu_windows_offered(device));
}

/**
 * vgpu_config_describe - the possible contents of configuration space, without windows
 * @config: out, VGPU_CONFIG_BYTES: after power on
 * @writable: out, VGPU_CONFIG_BYTES: bits that a write may change
 */
void vgpu_config_describe(u8 *config, u8 *writable)
{
	u32 i;

	vgpu_config_power_on(config, false);
	for (i = 0; i < VGPU_CONFIG_BYTES; i++)
		writable[i] = vgpu_config_write_mask(i, false);
}

void vgpu_config_read(const struct vgpu_device *device, u32 offset, u8 *data, u32 bytes)
{
	memcpy(data, device->config + offset, bytes);
}

/**
 * vgpu_config_write - handle a write by the guest or the VMM
 * @device: the slice, state_lock held
 * @offset: offset of the first byte; @offset + @bytes lies within the space
 * @data: bytes written
 * @bytes: number of bytes
 *
 * If the write turns bus mastering off, an enabled device enters its error state. When
 * the write returns, no access to guest memory is in progress.
 */
void vgpu_config_write(struct vgpu_device *device, u32 offset, const u8 *data, u32 bytes)
{
	u32 devctl = VGPU_CAP_EXPRESS + PCI_EXP_DEVCTL + 1;
	bool mastered = vgpu_device_masters_bus(device);
	bool windows = vgpu_windows_offered(device);
	u32 i;

	for (i = 0; i < bytes; i++) {
		u8 mask = vgpu_config_write_mask(offset + i, windows);
		u8 *byte = &device->config[offset + i];

		WRITE_ONCE(*byte, (*byte & ~mask) | (data[i] & mask));
	}
	if (mastered && !vgpu_device_masters_bus(device) && device->ring) {
		vgpu_device_fault(device, device->ring, VGPU_ERROR_MASTER,
				  READ_ONCE(device->ring->fetched));
		vgpu_device_disable(device);
	}
	if (offset <= devctl && devctl < offset + bytes &&
	    data[devctl - offset] & (PCI_EXP_DEVCTL_BCR_FLR >> 8)) {
		/* Reset first, because losing bus mastering while enabled is an error. */
		vgpu_device_reset(device);
		vgpu_config_reset(device);
	}
}
