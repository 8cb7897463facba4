// SPDX-License-Identifier: GPL-2.0
/*
 * Symbols that the tests in this folder call. They are only part of vgpumgr.ko on a
 * kernel that has KUnit built in; otherwise the module exports nothing.
 */
#include <linux/export.h>

#include "control/netlink.h"
#include "engine/engine.h"
#include "engine/processor.h"
#include "engine/ring.h"

#define VGPU_EXPORT EXPORT_SYMBOL_GPL

VGPU_EXPORT(vgpu_device_assign);
VGPU_EXPORT(vgpu_device_doorbell);
VGPU_EXPORT(vgpu_device_fault);
VGPU_EXPORT(vgpu_device_publish);
VGPU_EXPORT(vgpu_device_take);
VGPU_EXPORT(vgpu_device_unassign);
VGPU_EXPORT(vgpu_device_withdraw);
VGPU_EXPORT(vgpu_engine_busy_until);
VGPU_EXPORT(vgpu_engine_rest);
VGPU_EXPORT(vgpu_engine_resume);
VGPU_EXPORT(vgpu_engine_set_pace);
VGPU_EXPORT(vgpu_engine_sleep);
VGPU_EXPORT(vgpu_engine_start);
VGPU_EXPORT(vgpu_engine_stop);
VGPU_EXPORT(vgpu_engine_wedge);
VGPU_EXPORT(vgpu_event_add);
VGPU_EXPORT(vgpu_event_note);
VGPU_EXPORT(vgpu_event_slice);
VGPU_EXPORT(vgpu_event_source_forget);
VGPU_EXPORT(vgpu_event_source_init);
VGPU_EXPORT(vgpu_event_tenant);
VGPU_EXPORT(vgpu_events_sequence);
VGPU_EXPORT(vgpu_family);
VGPU_EXPORT(vgpu_memory_create);
VGPU_EXPORT(vgpu_memory_put);
VGPU_EXPORT(vgpu_ration_begin);
VGPU_EXPORT(vgpu_ration_end);
VGPU_EXPORT(vgpu_ration_leave);
VGPU_EXPORT(vgpu_ration_start);
VGPU_EXPORT(vgpu_ration_use);
VGPU_EXPORT(vgpu_ring_publish);
VGPU_EXPORT(vgpu_ring_stop);
VGPU_EXPORT(vgpu_sched_advance);
VGPU_EXPORT(vgpu_slice_settle);
VGPU_EXPORT(vgpu_tenant_configure);
VGPU_EXPORT(vgpu_tenants_free);
