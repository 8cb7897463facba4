// SPDX-License-Identifier: GPL-2.0
/*
 * Attributes of a slice in its mdev directory.
 *
 * They are for mdevctl and libvirt, which write attributes when they create a
 * device: tenant, weight and cap can be written until a tenant is set. From
 * then on only the netlink family can change them, and these files show the
 * values in force.
 */
#include <linux/device.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include "vgpu.h"

/*
 * All values that a write to sysfs may change, read from and applied to the
 * device together.
 */
struct vgpu_device_config {
	const char *tenant;
	struct vgpu_slice_params params;
	const char *field;	/* the field at fault */
};

/* Copy the text without its line end; -EINVAL if it contains a NUL. */
static char *vgpu_attr_text(const char *text, size_t count)
{
	char *copy;

	if (strnlen(text, count) != count)
		return ERR_PTR(-EINVAL);
	copy = kstrndup(text, count, GFP_KERNEL);
	if (!copy)
		return ERR_PTR(-ENOMEM);
	if (count && copy[count - 1] == '\n')
		copy[count - 1] = '\0';
	return copy;
}

static int vgpu_attr_us(const char *text, u64 *ns)
{
	u32 us;
	int ret;

	ret = kstrtou32(text, 10, &us);
	if (!ret)
		*ns = (u64)us * NSEC_PER_USEC;
	return ret;
}

/* Change one member of @config. -EINVAL if the key is unknown or has no value. */
static int vgpu_config_set(struct vgpu_device_config *config, const char *key, const char *text)
{
	config->field = key;
	if (!text)
		return -EINVAL;
	if (!strcmp(key, "tenant")) {
		config->tenant = text;
		return 0;
	}
	if (!strcmp(key, "weight"))
		return kstrtou32(text, 10, &config->params.weight);
	if (!strcmp(key, "cap_us"))
		return vgpu_attr_us(text, &config->params.cap_ns);
	if (!strcmp(key, "cap_period_us"))
		return vgpu_attr_us(text, &config->params.cap_period_ns);
	return -EINVAL;
}

/* A period without a cap is kept for a cap that is written later, so check it now. */
static enum vgpu_sched_field
vgpu_config_check_period(const struct vgpu_device *device, const struct vgpu_slice_params *params)
{
	struct vgpu_slice_params probe = *params;

	if (!probe.cap_period_ns)
		return VGPU_FIELD_NONE;
	if (!probe.cap_ns)
		probe.cap_ns = probe.cap_period_ns;
	return vgpu_slice_params_check(&device->parent->engine.sched, &probe);
}

static int vgpu_config_apply(struct vgpu_device *device, struct vgpu_device_config *config)
{
	static const char * const fields[] = {
		[VGPU_FIELD_WEIGHT] = "weight",
		[VGPU_FIELD_CAP] = "cap_us",
		[VGPU_FIELD_CAP_PERIOD] = "cap_period_us",
		[VGPU_FIELD_BURST] = "burst_us",	/* a burst set by netlink before any cap */
	};
	bool capped = config->params.cap_ns;
	enum vgpu_sched_field fault;
	int ret;

	fault = vgpu_config_check_period(device, &config->params);
	if (fault) {
		config->field = fault == VGPU_FIELD_CAP && !capped ? "cap_period_us" :
								     fields[fault];
		return -ERANGE;
	}
	config->field = "tenant";
	if (config->tenant)
		ret = vgpu_device_assign(device, config->tenant, &config->params, &fault);
	else
		ret = vgpu_device_set_params(device, &config->params, &fault);
	if (fault < ARRAY_SIZE(fields) && fields[fault])
		config->field = fields[fault];
	return ret;
}

/* Parse "key=value ..." into @config; keys that are missing keep their value. */
static int vgpu_config_parse(struct vgpu_device_config *config, char *text)
{
	char *word;

	while ((word = strsep(&text, " "))) {
		char *key = strsep(&word, "=");
		int ret;

		if (!*key && !word)
			continue;
		ret = vgpu_config_set(config, key, word);
		if (ret)
			return ret;
	}
	/* An empty name means no tenant, as in the file's own output. */
	if (config->tenant && !*config->tenant)
		config->tenant = NULL;
	return 0;
}

/* Change the value of @key, or without a @key all values in @text. */
static ssize_t vgpu_config_store(struct device *dev, const char *key, const char *text,
				 size_t count)
{
	struct vgpu_device *device = dev_get_drvdata(dev);
	struct vgpu_device_config config = { .field = "tenant" };
	char *copy;
	int ret;

	copy = vgpu_attr_text(text, count);
	if (IS_ERR(copy))
		return vgpu_attr_refused(dev, key ?: "sched_config", PTR_ERR(copy));
	mutex_lock(&device->parent->lock);
	config.params = device->params;
	if (device->tenant)
		ret = -EBUSY;
	else
		ret = key ? vgpu_config_set(&config, key, copy) : vgpu_config_parse(&config, copy);
	if (!ret)
		ret = vgpu_config_apply(device, &config);
	mutex_unlock(&device->parent->lock);
	if (ret)
		vgpu_attr_refused_for(dev, key ?: "sched_config", config.field, ret);
	kfree(copy);
	return ret ?: count;
}

static ssize_t tenant_show(struct device *dev, struct device_attribute *attr, char *text)
{
	struct vgpu_device *device = dev_get_drvdata(dev);
	ssize_t length;

	mutex_lock(&device->parent->lock);
	length = sysfs_emit(text, "%s\n", device->tenant ? device->tenant->name : "");
	mutex_unlock(&device->parent->lock);
	return length;
}

static ssize_t tenant_store(struct device *dev, struct device_attribute *attr, const char *text,
			    size_t count)
{
	return vgpu_config_store(dev, "tenant", text, count);
}
static DEVICE_ATTR_RW(tenant);

static struct vgpu_slice_params vgpu_attr_params(struct device *dev)
{
	struct vgpu_device *device = dev_get_drvdata(dev);
	struct vgpu_slice_params params;

	mutex_lock(&device->parent->lock);
	params = device->params;
	mutex_unlock(&device->parent->lock);
	return params;
}

static ssize_t weight_show(struct device *dev, struct device_attribute *attr, char *text)
{
	return sysfs_emit(text, "%u\n", vgpu_attr_params(dev).weight);
}

static ssize_t weight_store(struct device *dev, struct device_attribute *attr, const char *text,
			    size_t count)
{
	return vgpu_config_store(dev, "weight", text, count);
}
static DEVICE_ATTR_RW(weight);

static ssize_t cap_us_show(struct device *dev, struct device_attribute *attr, char *text)
{
	return sysfs_emit(text, "%llu\n",
			  div_u64(vgpu_attr_params(dev).cap_ns, NSEC_PER_USEC));
}

static ssize_t cap_us_store(struct device *dev, struct device_attribute *attr, const char *text,
			    size_t count)
{
	return vgpu_config_store(dev, "cap_us", text, count);
}
static DEVICE_ATTR_RW(cap_us);

static ssize_t cap_period_us_show(struct device *dev, struct device_attribute *attr, char *text)
{
	return sysfs_emit(text, "%llu\n",
			  div_u64(vgpu_attr_params(dev).cap_period_ns, NSEC_PER_USEC));
}

static ssize_t cap_period_us_store(struct device *dev, struct device_attribute *attr,
				   const char *text, size_t count)
{
	return vgpu_config_store(dev, "cap_period_us", text, count);
}
static DEVICE_ATTR_RW(cap_period_us);

static ssize_t sched_config_show(struct device *dev, struct device_attribute *attr, char *text)
{
	struct vgpu_device *device = dev_get_drvdata(dev);
	const struct vgpu_slice_params *params = &device->params;
	ssize_t length;

	mutex_lock(&device->parent->lock);
	length = sysfs_emit(text, "tenant=%s weight=%u cap_us=%llu cap_period_us=%llu\n",
			    device->tenant ? device->tenant->name : "", params->weight,
			    div_u64(params->cap_ns, NSEC_PER_USEC),
			    div_u64(params->cap_period_ns, NSEC_PER_USEC));
	mutex_unlock(&device->parent->lock);
	return length;
}

static ssize_t sched_config_store(struct device *dev, struct device_attribute *attr,
				  const char *text, size_t count)
{
	return vgpu_config_store(dev, NULL, text, count);
}
static DEVICE_ATTR_RW(sched_config);

static ssize_t permit_show(struct device *dev, struct device_attribute *attr, char *text)
{
	struct vgpu_device *device = dev_get_drvdata(dev);
	unsigned int seconds;

	mutex_lock(&device->parent->lock);
	seconds = vgpu_permit_left_s(device);
	mutex_unlock(&device->parent->lock);
	return sysfs_emit(text, "%u\n", seconds);
}

static ssize_t permit_store(struct device *dev, struct device_attribute *attr, const char *text,
			    size_t count)
{
	struct vgpu_device *device = dev_get_drvdata(dev);
	bool renew = sysfs_streq(text, "renew");
	unsigned int permit = 1;
	int ret = 0;

	if (!renew)
		ret = kstrtouint(text, 10, &permit);
	if (!ret && permit > 1)
		ret = -EINVAL;
	if (ret)
		return vgpu_attr_refused(dev, "permit", ret);
	mutex_lock(&device->parent->lock);
	/* Opening takes the same lock, so a permit that has been used is not renewed. */
	if (renew && !vgpu_device_permitted(device))
		ret = -ENOENT;
	else if (permit)
		vgpu_permit_grant(device);
	else
		vgpu_permit_withdraw(device);
	mutex_unlock(&device->parent->lock);
	return ret ?: count;
}
static DEVICE_ATTR_ADMIN_RW(permit);

static ssize_t memory_bytes_show(struct device *dev, struct device_attribute *attr, char *text)
{
	struct vgpu_device *device = dev_get_drvdata(dev);

	return sysfs_emit(text, "%llu\n", device->memory_bytes);
}
static DEVICE_ATTR_RO(memory_bytes);

static ssize_t state_show(struct device *dev, struct device_attribute *attr, char *text)
{
	struct vgpu_device *device = dev_get_drvdata(dev);
	struct vgpu_engine *engine = &device->parent->engine;
	const struct vgpu_ring *ring;
	const char *state = "idle";

	spin_lock_irq(&engine->lock);
	ring = device->ring;
	if (device->error)
		state = "error";
	else if (!device->scheduled)
		state = "inert";
	else if (ring && !ring->dead && !list_empty(&ring->ready))
		state = "ready";
	spin_unlock_irq(&engine->lock);
	return sysfs_emit(text, "%s\n", state);
}
static DEVICE_ATTR_RO(state);

static ssize_t vendor_show(struct device *dev, struct device_attribute *attr, char *text)
{
	return sysfs_emit(text, "0x%04x\n", VGPU_PCI_VENDOR_ID);
}
static DEVICE_ATTR_RO(vendor);

static ssize_t device_show(struct device *dev, struct device_attribute *attr, char *text)
{
	return sysfs_emit(text, "0x%04x\n", VGPU_PCI_DEVICE_ID);
}
static DEVICE_ATTR_RO(device);

static struct attribute *vgpu_device_attrs[] = {
	&dev_attr_tenant.attr,
	&dev_attr_weight.attr,
	&dev_attr_cap_us.attr,
	&dev_attr_cap_period_us.attr,
	&dev_attr_sched_config.attr,
	&dev_attr_permit.attr,
	&dev_attr_memory_bytes.attr,
	&dev_attr_state.attr,
	&dev_attr_vendor.attr,
	&dev_attr_device.attr,
	NULL
};

static const struct attribute_group vgpu_device_group = {
	.attrs = vgpu_device_attrs,
};

const struct attribute_group *vgpu_device_groups[] = {
	&vgpu_device_group,
	NULL
};
