// SPDX-License-Identifier: GPL-2.0
/*
 * Tenant groups of an accelerator, and which slice belongs to which.
 *
 * A tenant exists while it is configured or while a device names it. Only a configured
 * tenant is in the scheduler. Its devices' slices enter and leave the scheduler with it,
 * so a device without a configured tenant executes nothing.
 *
 * Every function expects parent->lock. A call that fails changes nothing.
 */
#include <linux/ctype.h>
#include <linux/ktime.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "engine/binding.h"
#include "engine/engine.h"
#include "engine/ring.h"
#include "uapi/vgpumgr_netlink.h"

/* 1 to 63 characters of [A-Za-z0-9._-] */
static bool vgpu_tenant_name_valid(const char *name)
{
	size_t length;

	for (length = 0; name[length]; length++)
		if (!isascii(name[length]) ||
		    (!isalnum(name[length]) && !strchr("._-", name[length])))
			return false;
	return length && length < VGPU_TENANT_NAME_BYTES;
}

/**
 * vgpu_tenant_find - find a tenant by name
 * @parent: the accelerator
 * @name: any string
 *
 * Return: the tenant, configured or not, or NULL.
 */
struct vgpu_tenant *vgpu_tenant_find(struct vgpu_parent *parent, const char *name)
{
	struct vgpu_tenant *tenant;

	lockdep_assert_held(&parent->lock);
	list_for_each_entry(tenant, &parent->tenants, node)
		if (!strcmp(tenant->name, name))
			return tenant;
	return NULL;
}

/*
 * Create a tenant that is not visible yet; see vgpu_tenant_publish() and
 * vgpu_tenant_discard().
 */
static struct vgpu_tenant *vgpu_tenant_create(struct vgpu_parent *parent,
					      const char *name)
{
	struct vgpu_tenant *tenant;

	tenant = kzalloc(sizeof(*tenant), GFP_KERNEL);
	if (!tenant)
		return NULL;
	INIT_LIST_HEAD(&tenant->node);
	tenant->parent = parent;
	strscpy(tenant->name, name, sizeof(tenant->name));
	vgpu_event_source_init(&tenant->events, false);
	return tenant;
}

/* The request succeeded: make a new tenant visible. */
static void vgpu_tenant_publish(struct vgpu_tenant *tenant)
{
	if (!list_empty(&tenant->node))
		return;
	tenant->id = vgpu_id_next();
	list_add_tail(&tenant->node, &tenant->parent->tenants);
	vgpu_netlink_changed();
	vgpu_event_tenant(tenant, VGPUMGR_CMD_CREATED_NTF);
}

/* The request failed: free a new tenant. */
static void vgpu_tenant_discard(struct vgpu_tenant *tenant)
{
	if (list_empty(&tenant->node))
		kfree(tenant);
}

static void vgpu_tenant_free(struct vgpu_tenant *tenant)
{
	struct vgpu_engine *engine = &tenant->parent->engine;
	u64 now_ns;

	vgpu_event_tenant(tenant, VGPUMGR_CMD_REMOVED_NTF);
	spin_lock_irq(&engine->lock);
	if (tenant->configured) {
		now_ns = vgpu_engine_settle(engine, &tenant->group, ktime_get_ns());
		WARN_ON_ONCE(vgpu_group_remove(&engine->sched, &tenant->group, now_ns));
	}
	vgpu_event_source_forget(&tenant->events);
	spin_unlock_irq(&engine->lock);
	list_del(&tenant->node);
	vgpu_netlink_changed();
	kfree(tenant);
}

/*
 * Count one device less; free the tenant if that was its last device and it is not
 * configured.
 */
static void vgpu_tenant_forget_device(struct vgpu_tenant *tenant)
{
	tenant->devices--;
	if (!tenant->devices && !tenant->configured)
		vgpu_tenant_free(tenant);
}

/* engine->lock held; the tenant is configured and the parameters are valid. */
static void vgpu_device_schedule(struct vgpu_device *device, u64 now_ns)
{
	struct vgpu_engine *engine = &device->parent->engine;

	lockdep_assert_held(&engine->lock);
	now_ns = vgpu_engine_settle(engine, &device->tenant->group, now_ns);
	if (WARN_ON_ONCE(vgpu_slice_add(&engine->sched, &device->tenant->group,
					&device->slice, &device->params, now_ns)))
		return;
	WRITE_ONCE(device->scheduled, true);
	vgpu_lending_add(device, now_ns);
	device->events.throttles = 0;
	if (device->ring && !device->ring->dead) {
		vgpu_ring_kick(device->ring);
		vgpu_engine_resume(engine, device->ring, now_ns);
	}
}

/*
 * The group keeps the counters of the slice. The slice's own counters restart for its
 * next tenant.
 */
static void vgpu_device_leave_group(struct vgpu_device *device, u64 now_ns)
{
	vgpu_device_unschedule(device, now_ns);
	device->slice.stats = (struct vgpu_slice_stats){};
}

/* How many more slices the policy allows in the scheduler. engine->lock held. */
static u32 vgpu_places_left(const struct vgpu_parent *parent)
{
	const struct vgpu_device *device;
	u32 left = parent->engine.sched.params.places;

	lockdep_assert_held(&parent->engine.lock);
	if (!left)
		return U32_MAX;
	list_for_each_entry(device, &parent->devices, node)
		left -= device->scheduled;
	return left;
}

/*
 * Does @device enter the scheduler with @tenant? A device that is being removed does
 * not.
 */
static bool vgpu_device_waits(const struct vgpu_device *device, const struct vgpu_tenant *tenant)
{
	return device->tenant == tenant && !device->revoked;
}

/* Can the slices that wait for @tenant enter the scheduler? engine->lock held. */
static enum vgpu_sched_field vgpu_tenant_check_slices(const struct vgpu_tenant *tenant)
{
	const struct vgpu_parent *parent = tenant->parent;
	enum vgpu_sched_field fault = VGPU_FIELD_NONE;
	const struct vgpu_device *device;
	u32 waiting = 0;

	list_for_each_entry(device, &parent->devices, node) {
		if (!vgpu_device_waits(device, tenant))
			continue;
		waiting++;
		fault = fault ?: vgpu_slice_params_check(&parent->engine.sched, &device->params);
	}
	if (waiting > vgpu_places_left(parent))
		return VGPU_FIELD_PLACES;
	/* The slice has a cap that was set under another policy. */
	return fault ? VGPU_FIELD_SLICES : VGPU_FIELD_NONE;
}

/* Put a group and the slices that waited for it into the scheduler. */
static enum vgpu_sched_field
vgpu_tenant_schedule(struct vgpu_tenant *tenant, const struct vgpu_group_params *params)
{
	struct vgpu_parent *parent = tenant->parent;
	struct vgpu_engine *engine = &parent->engine;
	struct vgpu_device *device;
	enum vgpu_sched_field fault;
	u64 now_ns;

	spin_lock_irq(&engine->lock);
	now_ns = vgpu_engine_advance(engine, ktime_get_ns());
	if (tenant->configured) {
		fault = vgpu_group_update(&engine->sched, &tenant->group, params, now_ns);
	} else {
		fault = vgpu_tenant_check_slices(tenant) ?:
			vgpu_group_add(&engine->sched, &tenant->group, params, now_ns);
		if (!fault)
			list_for_each_entry(device, &parent->devices, node)
				if (vgpu_device_waits(device, tenant))
					vgpu_device_schedule(device, now_ns);
	}
	/*
	 * The engine may sleep until the end of a throttle or hold that the change has
	 * ended.
	 */
	if (!fault)
		vgpu_engine_kick(engine);
	spin_unlock_irq(&engine->lock);
	return fault;
}

/**
 * vgpu_tenant_configure - create a tenant's group or change its parameters
 * @parent: the accelerator
 * @name: name of the tenant
 * @params: all parameters of the group
 * @fault: out, with -ERANGE and -ENOSPC: what the scheduler refused; VGPU_FIELD_SLICES
 *	for parameters of a slice that waits for the tenant
 *
 * Return: 0; -EINVAL for an invalid name, -ERANGE for an invalid parameter, -ENOSPC if
 * the policy has no place for the tenant's slices, -ENOMEM.
 */
int vgpu_tenant_configure(struct vgpu_parent *parent, const char *name,
			  const struct vgpu_group_params *params,
			  enum vgpu_sched_field *fault)
{
	struct vgpu_tenant *tenant;

	*fault = VGPU_FIELD_NONE;
	if (!vgpu_tenant_name_valid(name))
		return -EINVAL;
	tenant = vgpu_tenant_find(parent, name);
	if (!tenant)
		tenant = vgpu_tenant_create(parent, name);
	if (!tenant)
		return -ENOMEM;
	*fault = vgpu_tenant_schedule(tenant, params);
	if (*fault) {
		vgpu_tenant_discard(tenant);
		return *fault == VGPU_FIELD_PLACES ? -ENOSPC : -ERANGE;
	}
	vgpu_tenant_publish(tenant);
	tenant->configured = true;
	tenant->params = *params;
	tenant->generation = vgpu_generation_next();
	return 0;
}

/**
 * vgpu_tenant_unconfigure - remove a tenant
 * @tenant: the tenant; freed on success
 *
 * Return: 0, or -EBUSY while devices name it.
 */
int vgpu_tenant_unconfigure(struct vgpu_tenant *tenant)
{
	lockdep_assert_held(&tenant->parent->lock);
	if (tenant->devices)
		return -EBUSY;
	vgpu_tenant_free(tenant);
	return 0;
}

/**
 * vgpu_device_set_params - change weight and cap of a slice inside its group
 * @device: the slice, with or without a tenant
 * @params: all parameters of the slice
 * @fault: out, with -ERANGE: the parameter the scheduler refused
 *
 * Return: 0 or -ERANGE.
 */
int vgpu_device_set_params(struct vgpu_device *device,
			   const struct vgpu_slice_params *params,
			   enum vgpu_sched_field *fault)
{
	struct vgpu_engine *engine = &device->parent->engine;

	lockdep_assert_held(&device->parent->lock);
	spin_lock_irq(&engine->lock);
	if (device->scheduled) {
		*fault = vgpu_slice_update(&engine->sched, &device->slice, params,
					   vgpu_engine_advance(engine, ktime_get_ns()));
		if (!*fault)
			vgpu_engine_kick(engine);
	} else {
		*fault = vgpu_slice_params_check(&engine->sched, params);
	}
	spin_unlock_irq(&engine->lock);
	if (*fault)
		return -ERANGE;
	device->params = *params;
	return 0;
}

/* Does the policy have a place for @device, if it joins @tenant? */
static bool vgpu_device_has_place(struct vgpu_device *device, const struct vgpu_tenant *tenant)
{
	struct vgpu_engine *engine = &device->parent->engine;
	bool has_place;

	spin_lock_irq(&engine->lock);
	has_place = device->scheduled || !tenant->configured || vgpu_places_left(device->parent);
	spin_unlock_irq(&engine->lock);
	return has_place;
}

/**
 * vgpu_device_assign - make a slice part of a tenant's group
 * @device: the slice
 * @name: name of the tenant; until the tenant is configured, the slice is inert
 * @params: weight and cap inside the group
 * @fault: out, with -ERANGE and -ENOSPC: the parameter the scheduler refused
 *
 * If the slice already belongs to this tenant, only its parameters change.
 *
 * Return: 0; -EINVAL for an invalid name; -EBUSY if the device is open and belongs to
 * another tenant; -ENOENT if the device is being removed; -ERANGE for an invalid
 * parameter; -ENOSPC if the policy has no place for the device; -ENOMEM.
 */
int vgpu_device_assign(struct vgpu_device *device, const char *name,
		       const struct vgpu_slice_params *params,
		       enum vgpu_sched_field *fault)
{
	struct vgpu_engine *engine = &device->parent->engine;
	struct vgpu_tenant *before = device->tenant;
	struct vgpu_tenant *tenant;
	u64 now_ns;
	int ret;

	*fault = VGPU_FIELD_NONE;
	if (!vgpu_tenant_name_valid(name))
		return -EINVAL;
	if (device->revoked)
		return -ENOENT;
	tenant = vgpu_tenant_find(device->parent, name);
	if (tenant && tenant == before)
		return vgpu_device_set_params(device, params, fault);
	if (READ_ONCE(device->open))
		return -EBUSY;
	if (tenant && !vgpu_device_has_place(device, tenant)) {
		*fault = VGPU_FIELD_PLACES;
		return -ENOSPC;
	}
	if (!tenant)
		tenant = vgpu_tenant_create(device->parent, name);
	if (!tenant)
		return -ENOMEM;
	ret = vgpu_device_set_params(device, params, fault);
	if (ret) {
		vgpu_tenant_discard(tenant);
		return ret;
	}

	vgpu_tenant_publish(tenant);
	tenant->devices++;
	spin_lock_irq(&engine->lock);
	now_ns = ktime_get_ns();
	vgpu_device_leave_group(device, now_ns);
	/* The slice is not open, so there is no guest to interrupt. */
	if (before)
		vgpu_binding_end(device);
	device->tenant = tenant;
	if (tenant->configured)
		vgpu_device_schedule(device, now_ns);
	spin_unlock_irq(&engine->lock);
	if (before)
		vgpu_tenant_forget_device(before);
	return 0;
}

/**
 * vgpu_device_unassign - take a slice out of its tenant's group, if it has one
 * @device: the slice; inert afterwards
 *
 * A caller that acts for an operator first checks that the device is not open.
 */
void vgpu_device_unassign(struct vgpu_device *device)
{
	struct vgpu_engine *engine = &device->parent->engine;
	struct vgpu_tenant *tenant = device->tenant;

	lockdep_assert_held(&device->parent->lock);
	if (!tenant)
		return;
	spin_lock_irq(&engine->lock);
	vgpu_device_leave_group(device, ktime_get_ns());
	vgpu_binding_end(device);
	device->tenant = NULL;
	spin_unlock_irq(&engine->lock);
	vgpu_tenant_forget_device(tenant);
}

/**
 * vgpu_tenants_free - free all tenants of an accelerator
 * @parent: the accelerator; its tenants have no devices
 */
void vgpu_tenants_free(struct vgpu_parent *parent)
{
	struct vgpu_tenant *tenant, *next;

	lockdep_assert_held(&parent->lock);
	list_for_each_entry_safe(tenant, next, &parent->tenants, node)
		vgpu_tenant_free(tenant);
}
