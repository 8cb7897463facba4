// SPDX-License-Identifier: GPL-2.0
/*
 * vgpumgr guest driver: binding to the virtual function.
 */
#include <linux/dma-mapping.h>
#include <linux/idr.h>
#include <linux/interrupt.h>
#include <linux/kdev_t.h>
#include <linux/log2.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "guest.h"

static unsigned int ring_entries = 1024;
module_param(ring_entries, uint, 0444);
MODULE_PARM_DESC(ring_entries, "entries of the rings, a power of two from 8 to 4096 (default 1024)");

static DEFINE_IDA(vgpu_guest_ids);

static void vgpu_guest_release(struct kref *ref)
{
	struct vgpu_guest *guest = container_of(ref, struct vgpu_guest, ref);

	ida_free(&vgpu_guest_ids, guest->id);
	kfree(guest);
}

/**
 * vgpu_guest_put - drop a reference
 * @guest: bound function, referenced by the binding or the open file
 */
void vgpu_guest_put(struct vgpu_guest *guest)
{
	kref_put(&guest->ref, vgpu_guest_release);
}

static struct vgpu_guest *vgpu_guest_create(struct pci_dev *pdev)
{
	struct vgpu_guest *guest;
	int id;

	guest = kzalloc(sizeof(*guest), GFP_KERNEL);
	if (!guest)
		return ERR_PTR(-ENOMEM);
	id = ida_alloc_max(&vgpu_guest_ids, MINORMASK, GFP_KERNEL);
	if (id < 0) {
		kfree(guest);
		return ERR_PTR(id);
	}

	kref_init(&guest->ref);
	mutex_init(&guest->lock);
	init_waitqueue_head(&guest->wait);
	vgpu_area_init(&guest->area, &pdev->dev);
	guest->pdev = pdev;
	guest->id = id;
	snprintf(guest->name, sizeof(guest->name), "vgpu%d", id);
	guest->misc.minor = MISC_DYNAMIC_MINOR;
	guest->misc.name = guest->name;
	guest->misc.fops = &vgpu_file_ops;
	guest->misc.parent = &pdev->dev;
	return guest;
}

static irqreturn_t vgpu_completion_irq(int irq, void *data)
{
	struct vgpu_guest *guest = data;

	if (guest->windows)
		vgpu_windows_interrupt(guest->windows);
	atomic64_inc(&guest->interrupts);
	wake_up_all(&guest->wait);
	return IRQ_HANDLED;
}

static irqreturn_t vgpu_error_irq(int irq, void *data)
{
	struct vgpu_guest *guest = data;

	if (guest->windows)
		vgpu_windows_wake(guest->windows);
	atomic64_inc(&guest->error_interrupts);
	wake_up_all(&guest->wait);
	return IRQ_HANDLED;
}

static int vgpu_irqs_request(struct vgpu_guest *guest)
{
	struct pci_dev *pdev = guest->pdev;
	int rc;

	rc = pci_alloc_irq_vectors(pdev, VGPU_VECTORS, VGPU_VECTORS,
				   PCI_IRQ_MSIX);
	if (rc < 0)
		return rc;
	rc = pci_request_irq(pdev, VGPU_VECTOR_COMPLETION, vgpu_completion_irq,
			     NULL, guest, "%s-completion", guest->name);
	if (rc)
		goto free_vectors;
	rc = pci_request_irq(pdev, VGPU_VECTOR_ERROR, vgpu_error_irq, NULL,
			     guest, "%s-error", guest->name);
	if (rc)
		goto free_completion;
	return 0;

free_completion:
	pci_free_irq(pdev, VGPU_VECTOR_COMPLETION, guest);
free_vectors:
	pci_free_irq_vectors(pdev);
	return rc;
}

static void vgpu_irqs_free(struct vgpu_guest *guest)
{
	pci_free_irq(guest->pdev, VGPU_VECTOR_ERROR, guest);
	pci_free_irq(guest->pdev, VGPU_VECTOR_COMPLETION, guest);
	pci_free_irq_vectors(guest->pdev);
}

static int vgpu_map_registers(struct vgpu_guest *guest)
{
	struct pci_dev *pdev = guest->pdev;
	u32 id, abi;

	guest->bar = pci_iomap(pdev, 0, VGPU_BAR0_BYTES);
	if (!guest->bar)
		return -ENOMEM;
	id = readl(guest->bar + VGPU_REG_ID);
	abi = readl(guest->bar + VGPU_REG_ABI);
	if (id == VGPU_ID && abi >> 16 == VGPU_ABI_MAJOR)
		return 0;

	pci_err(pdev, "unknown device: id %#x, ABI %#x\n", id, abi);
	pci_iounmap(pdev, guest->bar);
	return -ENODEV;
}

/*
 * Stop the device. Calls on every open file report from now on that the device is
 * gone.
 */
static void vgpu_halt(struct vgpu_guest *guest)
{
	mutex_lock(&guest->lock);
	vgpu_windows_end(guest, -ENODEV);
	if (!guest->gone)
		vgpu_ring_stop(guest);
	guest->gone = true;
	mutex_unlock(&guest->lock);
	wake_up_all(&guest->wait);
}

/*
 * A file may still be open, but its calls do not access the device or its memory
 * once the device is gone.
 */
static void vgpu_unbind(struct vgpu_guest *guest)
{
	struct pci_dev *pdev = guest->pdev;

	misc_deregister(&guest->misc);
	vgpu_halt(guest);
	vgpu_irqs_free(guest);
	pci_clear_master(pdev);
	vgpu_area_unbind(&guest->area);
	vgpu_ring_free(guest);
	vgpu_windows_stop(guest);
	pci_iounmap(pdev, guest->bar);
	pci_release_region(pdev, 0);
	pci_disable_device(pdev);
	vgpu_guest_put(guest);
}

static int vgpu_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct vgpu_guest *guest;
	int rc;

	guest = vgpu_guest_create(pdev);
	if (IS_ERR(guest))
		return PTR_ERR(guest);

	rc = pci_enable_device(pdev);
	if (rc)
		goto put;
	rc = pci_request_region(pdev, 0, KBUILD_MODNAME);
	if (rc)
		goto disable;
	rc = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (rc)
		goto release_region;
	rc = vgpu_map_registers(guest);
	if (rc)
		goto release_region;
	rc = vgpu_windows_start(guest);
	if (rc)
		goto unmap;
	rc = vgpu_ring_alloc(guest, ring_entries);
	if (rc)
		goto stop_windows;
	pci_set_master(pdev);
	rc = vgpu_irqs_request(guest);
	if (rc)
		goto clear_master;
	pci_set_drvdata(pdev, guest);
	rc = misc_register(&guest->misc);
	if (rc)
		goto free_irqs;
	rc = vgpu_node_add(guest);
	if (rc) {
		vgpu_unbind(guest);
		return rc;
	}
	pci_info(pdev, "%s: %u ring entries, %u windows\n", guest->name, guest->entries,
		 guest->windows ? guest->windows->count : 0);
	return 0;

free_irqs:
	vgpu_irqs_free(guest);
clear_master:
	pci_clear_master(pdev);
	vgpu_ring_free(guest);
stop_windows:
	vgpu_windows_stop(guest);
unmap:
	pci_iounmap(pdev, guest->bar);
release_region:
	pci_release_region(pdev, 0);
disable:
	pci_disable_device(pdev);
put:
	vgpu_guest_put(guest);
	return rc;
}

static void vgpu_remove(struct pci_dev *pdev)
{
	struct vgpu_guest *guest = pci_get_drvdata(pdev);

	vgpu_node_remove(guest);
	vgpu_unbind(guest);
}

static void vgpu_shutdown(struct pci_dev *pdev)
{
	vgpu_halt(pci_get_drvdata(pdev));
}

/*
 * Handle a reset of the function that this driver did not request. Until the reset
 * is over registers read as ones, which must not be mistaken for a removed device.
 * So the lock is held until vgpu_reset_done(), and all users of the device wait
 * for it.
 */
static void vgpu_reset_prepare(struct pci_dev *pdev)
{
	struct vgpu_guest *guest = pci_get_drvdata(pdev);

	mutex_lock(&guest->lock);
	vgpu_windows_end(guest, -EPIPE);
	if (!guest->gone)
		vgpu_ring_stop(guest);
}

/* Queued items are lost: a process that has the device open gets an error. */
static void vgpu_reset_done(struct pci_dev *pdev)
{
	struct vgpu_guest *guest = pci_get_drvdata(pdev);

	if (!guest->gone)
		vgpu_ring_check(guest);
	/*
	 * Read events that came without an interrupt: until they are read, no
	 * other event interrupts.
	 */
	if (!guest->gone && guest->windows)
		vgpu_windows_interrupt(guest->windows);
	mutex_unlock(&guest->lock);
	wake_up_all(&guest->wait);
}

static const struct pci_error_handlers vgpu_error_handlers = {
	.reset_prepare = vgpu_reset_prepare,
	.reset_done = vgpu_reset_done,
};

static const struct pci_device_id vgpu_ids[] = {
	{ PCI_DEVICE(VGPU_PCI_VENDOR_ID, VGPU_PCI_DEVICE_ID) },
	{ }
};
MODULE_DEVICE_TABLE(pci, vgpu_ids);

static struct pci_driver vgpu_driver = {
	.name = "vgpu_guest",
	.id_table = vgpu_ids,
	.probe = vgpu_probe,
	.remove = vgpu_remove,
	.shutdown = vgpu_shutdown,
	.err_handler = &vgpu_error_handlers,
};

static int __init vgpu_init(void)
{
	int rc;

	if (!is_power_of_2(ring_entries) ||
	    ring_entries < VGPU_RING_ENTRIES_MIN ||
	    ring_entries > VGPU_RING_ENTRIES_MAX) {
		pr_err("vgpu_guest: ring_entries=%u is not a power of two from %u to %u\n",
		       ring_entries, VGPU_RING_ENTRIES_MIN,
		       VGPU_RING_ENTRIES_MAX);
		return -EINVAL;
	}
	rc = vgpu_nodes_register();
	if (rc)
		return rc;
	rc = pci_register_driver(&vgpu_driver);
	if (rc)
		vgpu_nodes_unregister();
	return rc;
}
module_init(vgpu_init);

static void __exit vgpu_exit(void)
{
	pci_unregister_driver(&vgpu_driver);
	vgpu_nodes_unregister();
	ida_destroy(&vgpu_guest_ids);
}
module_exit(vgpu_exit);

MODULE_DESCRIPTION("Guest driver of the vgpumgr virtual accelerator");
MODULE_LICENSE("GPL");
MODULE_VERSION(VGPU_VERSION);
