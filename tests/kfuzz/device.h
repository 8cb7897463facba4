/* SPDX-License-Identifier: GPL-2.0 */
/* Devices, mediated devices and VFIO. */
#ifndef KFUZZ_DEVICE_H
#define KFUZZ_DEVICE_H

typedef struct { u8 b[16]; } guid_t;
#define UUID_STRING_LEN 36
static const guid_t guid_null;
int guid_parse(const char *text, guid_t *guid);
#define guid_equal(a, b) (!memcmp(a, b, sizeof(guid_t)))

struct attribute_group;
struct device { void *driver_data; const char *name; int refs; };
struct device_driver {
	const char *name;
	struct module *owner;
	const char *mod_name;
	const struct attribute_group **dev_groups;
};

struct pci_dev { struct device dev; };
struct mdev_parent { struct device *dev; };
struct mdev_type {
	const char *sysfs_name, *pretty_name;
	struct mdev_parent *parent;
};

struct mdev_device {
	struct device dev;
	guid_t uuid;
	struct mdev_type *type;
};

struct mdev_driver {
	const char *device_api;
	struct device_driver driver;
	int (*probe)(struct mdev_device *mdev);
	void (*remove)(struct mdev_device *mdev);
	unsigned int (*get_available)(struct mdev_type *type);
	ssize_t (*show_description)(struct mdev_type *type, char *text);
};

#define to_mdev_device(device) container_of(device, struct mdev_device, dev)
#define mdev_register_driver(driver) ((void)(driver), 0)
#define mdev_unregister_driver(driver) ((void)(driver))
#define dev_set_drvdata(device, data) ((void)((device)->driver_data = (data)))
#define dev_get_drvdata(device) ((device)->driver_data)
#define dev_name(device) ((device)->name)
#define sysfs_emit(text, ...) ((ssize_t)sprintf(text, __VA_ARGS__))

struct iommufd_ctx;
struct vfio_device;
struct vfio_device_ops {
	const char *name;
	int (*init)(struct vfio_device *vdev);
	void (*release)(struct vfio_device *vdev);
	int (*open_device)(struct vfio_device *vdev);
	void (*close_device)(struct vfio_device *vdev);
	ssize_t (*read)(struct vfio_device *vdev, char *buffer, size_t count, loff_t *position);
	ssize_t (*write)(struct vfio_device *vdev, const char *buffer, size_t count,
			 loff_t *position);
	long (*ioctl)(struct vfio_device *vdev, unsigned int command, unsigned long arg);
	int (*mmap)(struct vfio_device *vdev, struct vm_area_struct *vma);
	void (*request)(struct vfio_device *vdev, unsigned int count);
	void (*dma_unmap)(struct vfio_device *vdev, u64 iova, u64 length);
	int (*get_region_info_caps)(struct vfio_device *vdev, struct vfio_region_info *info,
				    void *caps);
};

struct vfio_migration_ops;
struct vfio_device {
	struct device *dev;
	const struct vfio_device_ops *ops;
	const struct vfio_migration_ops *mig_ops;
	unsigned int migration_flags;
	struct device device;
};

/* ---- references, and migration */

void get_device(struct device *device);
void put_device(struct device *device);	/* of a vfio_device */

struct vfio_migration_ops {
	struct file *(*migration_set_state)(struct vfio_device *vdev,
					    enum vfio_device_mig_state state);
	int (*migration_get_state)(struct vfio_device *vdev, enum vfio_device_mig_state *state);
	int (*migration_get_data_size)(struct vfio_device *vdev, unsigned long *bytes);
};

#define VGPU_MIGRATION_SIZE_OPS .migration_get_data_size = vgpu_migration_get_data_size,
int vfio_mig_get_next_state(struct vfio_device *vdev, enum vfio_device_mig_state now,
			    enum vfio_device_mig_state wanted, enum vfio_device_mig_state *next);

#define VFIO_DEVICE_API_PCI_STRING "vfio-pci"
#define VGPU_IOMMUFD_OPS
#define VGPU_REGION_INFO_OPS
#define vgpu_vfio_free_device(vdev) ((void)(vdev))
#define vfio_alloc_device(type, member, device, operations) \
	((struct type *)kfuzz_vfio_alloc(sizeof(struct type), offsetof(struct type, member), \
					 device, operations))
struct vfio_device *kfuzz_vfio_alloc(size_t bytes, size_t member, struct device *device,
				     const struct vfio_device_ops *ops);
void vfio_put_device(struct vfio_device *vdev);
int vfio_register_emulated_iommu_dev(struct vfio_device *vdev);
void vfio_unregister_group_dev(struct vfio_device *vdev);
int vfio_set_irqs_validate_and_prepare(struct vfio_irq_set *set, int irqs, int most,
				       size_t *bytes);

struct vfio_info_cap { struct vfio_info_cap_header *buf; size_t size; };
int vfio_info_add_capability(struct vfio_info_cap *caps, struct vfio_info_cap_header *cap,
			     size_t bytes);
void vfio_info_cap_shift(struct vfio_info_cap *caps, size_t offset);
int vfio_dma_rw(struct vfio_device *vdev, dma_addr_t guest, void *data, size_t bytes,
		bool write);

#endif /* KFUZZ_DEVICE_H */
