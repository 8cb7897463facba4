// SPDX-License-Identifier: GPL-2.0
/*
 * Interrupts of a virtual function: MSI-X vectors and the request to close the
 * slice. Each is an eventfd of the VMM.
 */
#include <linux/eventfd.h>

#include "vgpu.h"

/* Replace one eventfd; the caller owns the reference in @next. */
static void vgpu_irq_replace(struct vgpu_device *device, struct eventfd_ctx **slot,
			     struct eventfd_ctx *next)
{
	struct eventfd_ctx *old;

	spin_lock_irq(&device->irq_lock);
	old = *slot;
	*slot = next;
	spin_unlock_irq(&device->irq_lock);
	if (old)
		eventfd_ctx_put(old);
}

static void vgpu_irq_signal(struct vgpu_device *device, struct eventfd_ctx **slot)
{
	spin_lock_irq(&device->irq_lock);
	if (*slot)
		vgpu_eventfd_signal(*slot);
	spin_unlock_irq(&device->irq_lock);
}

/* A message signalled interrupt is a write to memory, so it needs bus mastering. */
void vgpu_device_raise(struct vgpu_device *device, unsigned int vector)
{
	if (vgpu_device_masters_bus(device))
		vgpu_irq_signal(device, &device->vectors[vector]);
}

void vgpu_device_request(struct vgpu_device *device)
{
	vgpu_irq_signal(device, &device->request);
}

/* Get the contexts of all @fds, NULL for a negative one; or return a negative errno. */
static int vgpu_irq_get_eventfds(const s32 *fds, u32 count, struct eventfd_ctx **found)
{
	u32 i;

	for (i = 0; i < count; i++) {
		int ret;

		found[i] = fds[i] < 0 ? NULL : eventfd_ctx_fdget(fds[i]);
		ret = PTR_ERR_OR_ZERO(found[i]);
		if (!ret)
			continue;
		while (i--)
			if (found[i])
				eventfd_ctx_put(found[i]);
		return ret;
	}
	return 0;
}

/* Connect all @count slots, or none and return a negative errno. */
static int vgpu_irqs_connect(struct vgpu_device *device, struct eventfd_ctx **slots,
			     const s32 *fds, u32 count)
{
	struct eventfd_ctx *next[VGPU_VECTORS];
	u32 i;
	int ret;

	ret = vgpu_irq_get_eventfds(fds, count, next);
	if (ret)
		return ret;
	for (i = 0; i < count; i++)
		vgpu_irq_replace(device, &slots[i], next[i]);
	return 0;
}

/**
 * vgpu_irqs_release - release all eventfds
 * @device: the slice, state_lock held
 */
void vgpu_irqs_release(struct vgpu_device *device)
{
	unsigned int i;

	for (i = 0; i < VGPU_VECTORS; i++)
		vgpu_irq_replace(device, &device->vectors[i], NULL);
	vgpu_irq_replace(device, &device->request, NULL);
}

/**
 * vgpu_irqs_set - handle VFIO_DEVICE_SET_IRQS
 * @device: the slice, state_lock held
 * @set: the request, checked by vfio_set_irqs_validate_and_prepare()
 * @data: payload of @set in kernel memory
 *
 * Masking is not offered: a VMM emulates it for MSI-X.
 *
 * Return: 0, or a negative errno with nothing changed.
 */
int vgpu_irqs_set(struct vgpu_device *device, const struct vfio_irq_set *set, void *data)
{
	struct eventfd_ctx **slots = device->vectors;
	u32 type = set->flags & VFIO_IRQ_SET_DATA_TYPE_MASK;
	u32 i;

	if ((set->flags & VFIO_IRQ_SET_ACTION_TYPE_MASK) != VFIO_IRQ_SET_ACTION_TRIGGER)
		return -ENOTTY;
	if (set->index == VFIO_PCI_REQ_IRQ_INDEX)
		slots = &device->request;
	else if (set->index != VFIO_PCI_MSIX_IRQ_INDEX)
		return -EINVAL;

	if (!set->count) {
		if (type != VFIO_IRQ_SET_DATA_NONE)
			return -EINVAL;
		for (i = 0; i < (slots == &device->request ? 1 : VGPU_VECTORS); i++)
			vgpu_irq_replace(device, &slots[i], NULL);
		return 0;
	}
	if (type == VFIO_IRQ_SET_DATA_EVENTFD)
		return vgpu_irqs_connect(device, &slots[set->start], data, set->count);
	for (i = 0; i < set->count; i++)
		if (type == VFIO_IRQ_SET_DATA_NONE || ((u8 *)data)[i])
			vgpu_irq_signal(device, &slots[set->start + i]);
	return 0;
}
