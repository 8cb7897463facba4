# SPDX-License-Identifier: Apache-2.0
"""A defect of the module for each test file that runs in User-mode Linux; the file must find its defect.

`old` is one or more whole statements that occur once in a file of kmod/; `new` replaces them. Both are compiled into
one module, which chooses between them when it is loaded. Therefore neither may be a declaration or an initializer.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Defect:
    """A defect: `tests` must fail on a module in which this is `wrong`."""

    tests: str
    wrong: str
    source: str
    old: str
    new: str


DEFECTS = (
    Defect(
        tests="tests/kmod/test_adopt.py",
        wrong="an adopted GPU is open to VMs without a permit at first",
        source="control/adopt.c",
        old="parent->attach_permit = attach_permit;",
        new=";",
    ),
    Defect(
        tests="tests/kmod/test_adopt_ends.py",
        wrong="a function that its driver lets go of is cut off slice by slice",
        source="control/adopt.c",
        old="vgpu_parent_revoke(parent);",
        new="parent->removed = true;",
    ),
    Defect(
        tests="tests/kmod/test_answers.py",
        wrong="the shadow is written although the guest has none",
        source="engine/dma.c",
        old="""if (ring->shadow)
		vgpu_ring_access(ring, ring->shadow, &shadow, sizeof(shadow), true);""",
        new="vgpu_ring_access(ring, ring->shadow, &shadow, sizeof(shadow), true);",
    ),
    Defect(
        tests="tests/kmod/test_dma.py",
        wrong="an access to guest memory that fails goes unnoticed",
        source="engine/dma.c",
        old="""ret = vgpu_ring_access(ring, guest, data, piece, write);
		if (ret)
			return ret;""",
        new="vgpu_ring_access(ring, guest, data, piece, write);",
    ),
    Defect(
        tests="tests/kmod/test_dumps.py",
        wrong="each part of a list begins with the last tenant of the part before",
        source="control/netlink_dump.c",
        old="""if (tenant->id <= cursor->tenant)
			continue;""",
        new="""if (tenant->id < cursor->tenant)
			continue;""",
    ),
    Defect(
        tests="tests/kmod/test_edu.py",
        wrong="the result of a job is read from another register",
        source="engine/edu.c",
        old="*result = readl(edu->bar + EDU_REG_FACT);",
        new="*result = readl(edu->bar + EDU_REG_STATUS);",
    ),
    Defect(
        tests="tests/kmod/test_edu_wedged.py",
        wrong="slices are not told that their engine is wedged",
        source="engine/engine.c",
        old="""if (engine->wedged)
			vgpu_rings_fail(engine, VGPU_ERROR_ENGINE);""",
        new=";",
    ),
    Defect(
        tests="tests/kmod/test_events.py",
        wrong="an event counts only the last of what was collected",
        source="control/events.c",
        old="note->count = min_t(u64, (u64)note->count + count, U32_MAX);",
        new="note->count = count;",
    ),
    Defect(
        tests="tests/kmod/test_function.py",
        wrong="the fixed bits of an MSI-X address can be written",
        source="function/registers.c",
        old="return 0xfc;",
        new="return 0xff;",
    ),
    Defect(
        tests="tests/kmod/test_function_reset.py",
        wrong="an access that a reset breaks off counts as a fault",
        source="control/fault.c",
        old="""if (!ring || !ring->dead)
		noted = vgpu_device_note_error(device, error, index);""",
        new="noted = vgpu_device_note_error(device, error, index);",
    ),
    Defect(
        tests="tests/kmod/test_hostile.py",
        wrong="a guest can flood the log",
        source="control/fault.c",
        old="""if (!noted || !vgpu_log_takes(device))
		return;""",
        new="""if (!noted)
		return;""",
    ),
    Defect(
        tests="tests/kmod/test_hostile_streams.py",
        wrong="a stream may say that more items are pending than the ring has entries",
        source="migration/migration_stream.c",
        old="""if (state->tail - state->completed > state->setup.entries)
		return "tail";""",
        new=";",
    ),
    Defect(
        tests="tests/kmod/test_kunit.py",
        wrong="a doorbell without work costs no token",
        source="engine/ring.c",
        old="device->storm_tokens -= tokens;",
        new=";",
    ),
    Defect(
        tests="tests/kmod/test_leases.py",
        wrong="a child is not told that it has ended",
        source="engine/child.c",
        old="WRITE_ONCE(child->ended, true);",
        new=";",
    ),
    Defect(
        tests="tests/kmod/test_lifetime.py",
        wrong="what a slice has used is told of its next tenant",
        source="control/tenant.c",
        old="device->slice.stats = (struct vgpu_slice_stats){};",
        new=";",
    ),
    Defect(
        tests="tests/kmod/test_migration.py",
        wrong="items that were not answered before a migration are not fetched again",
        source="migration/migration.c",
        old="ring->fetched = state->completed;",
        new="ring->fetched = state->tail;",
    ),
    Defect(
        tests="tests/kmod/test_netlink_fuzz.py",
        wrong="a change of a GPU that is refused makes a new generation",
        source="control/policy.c",
        old="""if (*fault)
		return -ERANGE;""",
        new="""if (*fault) {
		parent->generation = vgpu_generation_next();
		return -ERANGE;
	}""",
    ),
    Defect(
        tests="tests/kmod/test_observer.py",
        wrong="runs that a cap ends are not in the trace",
        source="engine/engine.c",
        old="""if (decision->ended.valid)
		trace_vgpu_run_end(engine, before, &decision->ended);""",
        new="""if (decision->ended.valid && decision->ended.reason != VGPU_RUN_CAP)
		trace_vgpu_run_end(engine, before, &decision->ended);""",
    ),
    Defect(
        tests="tests/kmod/test_options.py",
        wrong="options have no least value",
        source="options.c",
        old="""if (!ret && (value < option->min || value > option->max))
		ret = -ERANGE;""",
        new="""if (!ret && value > option->max)
		ret = -ERANGE;""",
    ),
    Defect(
        tests="tests/kmod/test_removal.py",
        wrong="a slice that was pulled out reads as zeros",
        source="function/access.c",
        old="memset(data, 0xff, bytes);",
        new="memset(data, 0, bytes);",
    ),
    Defect(
        tests="tests/kmod/test_requests.py",
        wrong="nobody holds the engine",
        source="sched/hold.c",
        old="""if (sched->hold.slice || is_over(slice))
		return;""",
        new="return;",
    ),
    Defect(
        tests="tests/kmod/test_sharing_settings.py",
        wrong="places stay when the policy changes to one without",
        source="control/policy.c",
        old="params->places = 0;",
        new=";",
    ),
    Defect(
        tests="tests/kmod/test_sysfs_fuzz.py",
        wrong="a number for an attribute that the scheduler refuses makes a new generation",
        source="control/policy.c",
        old="""ret = vgpu_parent_configure(parent, &params, &fault);
	mutex_unlock(&parent->lock);
	return ret ? vgpu_attr_refused(dev, attribute, ret) : count;""",
        new="""ret = vgpu_parent_configure(parent, &params, &fault);
	if (ret)
		parent->generation = vgpu_generation_next();
	mutex_unlock(&parent->lock);
	return ret ? vgpu_attr_refused(dev, attribute, ret) : count;""",
    ),
    Defect(
        tests="tests/kmod/test_windows.py",
        wrong="a window is free while some process has its memory",
        source="engine/window_executor.c",
        old="return file_count(given) > 1 || d_count(given->f_path.dentry) > 2;",
        new="return false;",
    ),
    Defect(
        tests="tests/kmod/control/test_attributes.py",
        wrong="attributes can be written although the slice has a tenant",
        source="control/device_attrs.c",
        old="""if (device->tenant)
		ret = -EBUSY;
	else
		ret = key ? vgpu_config_set(&config, key, copy) : vgpu_config_parse(&config, copy);""",
        new="ret = key ? vgpu_config_set(&config, key, copy) : vgpu_config_parse(&config, copy);",
    ),
    Defect(
        tests="tests/kmod/control/test_gpus.py",
        wrong="slices are said to be available that memory has no room for",
        source="function/device.c",
        old="left = parent->memory_total - parent->memory_reserved;",
        new="left = parent->memory_total;",
    ),
    Defect(
        tests="tests/kmod/control/test_lists.py",
        wrong="a list begins with the slice of the greatest UUID",
        source="control/netlink_dump.c",
        old="""if (!next || memcmp(&device->uuid, &next->uuid, sizeof(guid_t)) < 0)
			next = device;""",
        new="""if (!next || memcmp(&device->uuid, &next->uuid, sizeof(guid_t)) > 0)
			next = device;""",
    ),
    Defect(
        tests="tests/kmod/control/test_mdevctl.py",
        wrong="the log names another field than the one at fault",
        source="control/device_attrs.c",
        old="""if (fault < ARRAY_SIZE(fields) && fields[fault])
		config->field = fields[fault];""",
        new=";",
    ),
    Defect(
        tests="tests/kmod/control/test_permits.py",
        wrong="a permit is for any number of openings",
        source="function/permit.c",
        old="""	vgpu_permit_withdraw(device);
	return true;""",
        new="	return true;",
    ),
    Defect(
        tests="tests/kmod/control/test_requests.py",
        wrong="that a GPU is unknown is not said of an attribute",
        source="control/netlink_request.c",
        old="""NL_SET_ERR_MSG_ATTR(info->extack, info->attrs[type], "there is no such GPU");""",
        new="""NL_SET_ERR_MSG(info->extack, "there is no such GPU");""",
    ),
    Defect(
        tests="tests/kmod/control/test_slices.py",
        wrong="a slice changes its tenant while it is open",
        source="control/tenant.c",
        old="""if (READ_ONCE(device->open))
		return -EBUSY;""",
        new=";",
    ),
    Defect(
        tests="tests/kmod/control/test_tenants.py",
        wrong="any generation is taken for the present one",
        source="control/netlink_request.c",
        old="""if (!attr || nla_get_u64(attr) == (tenant ? tenant->generation : 0))
		return 0;""",
        new="return 0;",
    ),
    Defect(
        tests="tests/kmod/test_cgroups.py",
        wrong="workers stay in the kernel's cgroup",
        source="engine/worker.c",
        old="ret = cgroup_attach_task_all(current, worker);",
        new="ret = 0;",
    ),
    Defect(
        tests="tests/kmod/test_executors.py",
        wrong="an executor outlives its slice's tenant",
        source="control/tenant.c",
        old="""if (before)
		vgpu_binding_end(device);""",
        new=";",
    ),
    Defect(
        tests="tests/time/test_leases.py",
        wrong="a slice that does not stop keeps the engine for 200 ms more",
        source="sched/arbiter_lease.c",
        old="return later(holder->lease.expires_ns, arbiter->settings.grace_ns);",
        new="return later(holder->lease.expires_ns, 100 * arbiter->settings.grace_ns);",
    ),
    Defect(
        tests="tests/time/test_requests.py",
        wrong="a slice asks twice as often as it may",
        source="engine/child.c",
        old="next_ns = max(paid_ns, oldest_ns) + (s64)VGPU_REQUEST_NS;",
        new="next_ns = max(paid_ns, oldest_ns) + (s64)VGPU_REQUEST_NS / 2;",
    ),
    Defect(
        tests="tests/time/test_caps.py",
        wrong="a cap is refilled by a tenth too fast",
        source="sched/bucket.c",
        old="bucket->credit_ns += earned;",
        new="bucket->credit_ns += earned + earned / 10;",
    ),
    Defect(
        tests="tests/time/test_holds.py",
        wrong="whatever is ready fills a gap",
        source="sched/hold.c",
        old="""if (vgpu_hold_allows_ns(sched, slice)) {
			filler = group;
			break;
		}""",
        new="""filler = group;
		break;""",
    ),
    Defect(
        tests="tests/kmod/test_permits.py",
        wrong="a permit that was used or withdrawn is renewed",
        source="control/device_attrs.c",
        old="""if (!ret && permit > 1)
		ret = -EINVAL;""",
        new="""renew = false;
		if (!ret && permit > 1)
			ret = -EINVAL;""",
    ),
    Defect(
        tests="tests/time/test_permit.py",
        wrong="a permit lasts five seconds longer",
        source="function/permit.c",
        old="device->permit_until = (jiffies + VGPU_PERMIT_SECONDS * HZ) ?: 1;",
        new="device->permit_until = (jiffies + (VGPU_PERMIT_SECONDS + 5) * HZ) ?: 1;",
    ),
    Defect(
        tests="tests/time/test_lease_shares.py",
        wrong="leases last 2 ms longer than what is left of the run",
        source="sched/lease.c",
        old="return sched->now_ns + sched->loan.unused_ns + vgpu_run_left_ns(sched);",
        new="return sched->now_ns + sched->loan.unused_ns + vgpu_run_left_ns(sched) + 2000000;",
    ),
    Defect(
        tests="tests/time/test_policies.py",
        wrong="places that are not sold are given away",
        source="sched/ghost.c",
        old="vgpu_queue_set_ready(&sched->queue, &sched->unsold, places > sold);",
        new=";",
    ),
    Defect(
        tests="tests/time/test_reservations.py",
        wrong="the band of reservations is not served first",
        source="sched/run.c",
        old="""if (group)
		return begin_run(sched, group, VGPU_BAND_LATENCY);""",
        new=";",
    ),
    Defect(
        tests="tests/time/test_shares.py",
        wrong="a weight that changes is not followed",
        source="sched/group.c",
        old=(
            "if (!vgpu_has_ghosts(sched))\n"
            "\t\tvgpu_queue_set_weight(&sched->queue, &group->entity,\n"
            "\t\t\t\t      params->weight);"
        ),
        new=";",
    ),
    Defect(
        tests="tests/time/test_timeslices.py",
        wrong="runs last a quarter longer than the timeslice",
        source="sched/run.c",
        old="sched->run_timeslice_ns = timeslice_ns;",
        new="sched->run_timeslice_ns = timeslice_ns + timeslice_ns / 4;",
    ),
)
