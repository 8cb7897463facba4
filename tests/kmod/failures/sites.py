# SPDX-License-Identifier: Apache-2.0
"""The places where the modules allocate memory, directly or through a kernel function, and the test that makes each
fail.

A place is a file and a function, with the functions called there. tests/unit/test_failure_sites.py compares the list
with the sources, and fails for a new allocation without a test. The log has a stack for each failure: for
test_adopting.py, test_host.py, test_lending.py and test_vmm.py, `reached` in conftest.py compares the list with the
failures in the log.
"""

import re

TESTED: dict[str, dict[str, str]] = {
    "tests/kmod/failures/test_loading.py::test_loading_while_a_function_waits_for_the_driver": {
        "control/adopt.c vgpu_adoption_init": "alloc_workqueue bus_register_notifier",
        "control/debugfs.c vgpu_debugfs_init": "debugfs_create_dir debugfs_create_file",
        "function/device.c vgpu_device_driver_register": "mdev_register_driver",
        "control/executor_file.c vgpu_executor_register": "misc_register",
        "control/netlink.c vgpu_netlink_register": "genl_register_family",
        "control/netlink_event.c vgpu_events_init": "alloc_ordered_workqueue",
        "control/parent.c vgpu_parent_driver_register": "pci_register_driver",
        "engine/ring.c vgpu_rings_init": "alloc_workqueue",
    },
    "tests/kmod/failures/test_loading.py::test_loading_the_driver_of_guests": {
        "guest/main.c vgpu_init": "pci_register_driver",
        "guest/window_node.c vgpu_nodes_register": "alloc_chrdev_region class_register",
    },
    "tests/kmod/failures/test_loading.py::test_binding": {
        "control/parent.c vgpu_parent_create": "kzalloc",
        "control/parent.c vgpu_parent_register": "mdev_register_parent",
        "engine/soft.c soft_start": "kzalloc kzalloc",
    },
    "tests/kmod/failures/test_loading.py::test_binding_without_any_memory_for_events": {
        "control/netlink_event.c vgpu_events_start": "kvcalloc",
    },
    "tests/kmod/failures/test_loading.py::test_binding_without_a_thread": {
        "engine/engine.c vgpu_engine_start": "kthread_create",
    },
    "tests/kmod/failures/test_adopting.py::test_adopting": {
        "control/parent.c vgpu_parent_add_attrs": "sysfs_create_group",
    },
    "tests/kmod/failures/test_host.py::test_configuring_a_tenant": {
        "control/tenant.c vgpu_tenant_create": "kzalloc",
    },
    "tests/kmod/failures/test_host.py::test_an_attribute_of_a_slice": {
        "control/device_attrs.c vgpu_attr_text": "kstrndup",
    },
    "tests/kmod/failures/test_host.py::test_looking[gpu]": {
        "control/netlink_request.c vgpu_reply_new": "nlmsg_new",
    },
    "tests/kmod/failures/test_host.py::test_looking[runs]": {
        "control/debugfs.c runs_show": "kmalloc",
    },
    "tests/kmod/failures/test_host.py::test_creating_a_slice": {
        "function/device.c vgpu_mdev_probe": "vfio_alloc_device vfio_register_emulated_iommu_dev",
    },
    "tests/kmod/failures/test_host.py::test_changing_the_engine[soft-edu]": {
        "engine/edu.c edu_start": "debugfs_create_bool debugfs_create_dir kzalloc",
        "engine/edu.c edu_take": "pci_alloc_irq_vectors pci_iomap request_irq",
    },
    "tests/kmod/failures/test_lending.py::test_binding_an_executor": {
        "engine/binding.c vgpu_binding_create": "alloc_page kzalloc",
        "control/executor_file.c vgpu_executor_open": "kzalloc",
    },
    "tests/kmod/failures/test_lending.py::test_a_childs_files_and_pages": {
        "engine/child.c vgpu_child_create": "alloc_page kzalloc",
        "engine/child.c vgpu_child_file": "anon_inode_getfile",
        "engine/child.c vgpu_lease_file": "anon_inode_getfile",
        "engine/child.c vgpu_page_mmap": "vm_insert_page",
    },
    "tests/kmod/failures/test_lending.py::test_the_region_of_the_windows": {
        "function/access.c vgpu_region_describe_windows": "kzalloc",
    },
    "tests/kmod/failures/test_vmm.py::test_opening_a_slice": {
        "engine/memory.c vgpu_memory_create": "__vmalloc kzalloc",
    },
    "tests/kmod/failures/test_threads.py::test_a_worker_that_cannot_be_made": {
        "engine/worker.c vgpu_worker_start": "kthread_create",
    },
    "tests/kmod/failures/test_vmm.py::test_enabling_a_ring": {
        "engine/ring.c vgpu_ring_create": "kzalloc",
    },
    "tests/kmod/failures/test_vmm.py::test_connecting_interrupts": {
        "function/access.c vgpu_set_irqs": "memdup_user",
    },
    "tests/kmod/failures/test_vmm.py::test_saving_and_restoring": {
        "migration/migration_file.c vgpu_migration_open": "anon_inode_getfile",
    },
    "tests/kmod/failures/test_vmm.py::test_saving_and_restoring_without_any_memory": {
        "migration/migration_file.c vgpu_migration_open": "kvzalloc",
    },
    "tests/kmod/failures/test_threads.py::test_what_an_item_needs[gemm]": {
        "engine/staging.c vgpu_worker_alloc": "kvmalloc kvmalloc",
    },
    "tests/kmod/failures/test_threads.py::test_telling_what_happens": {
        "control/netlink_event.c vgpu_event_send": "genlmsg_multicast genlmsg_new",
    },
    "tests/chain/test_guest_driver.py::test_binding": {
        "guest/main.c vgpu_guest_create": "kzalloc",
        "guest/main.c vgpu_irqs_request": "pci_alloc_irq_vectors pci_request_irq pci_request_irq",
        "guest/main.c vgpu_map_registers": "pci_iomap",
        "guest/main.c vgpu_probe": "misc_register pci_request_region",
        "guest/ring.c vgpu_ring_alloc": "dma_alloc_coherent dma_alloc_coherent dma_alloc_coherent",
    },
    "tests/chain/test_guest_driver.py::test_binding_to_a_device_with_windows": {
        "guest/windows.c vgpu_windows_map": "pci_request_region",
        "guest/windows.c vgpu_windows_start": "kzalloc",
    },
    "tests/chain/test_guest_driver.py::test_work": {
        "guest/area.c vgpu_area_insert": "vm_insert_page",
        "guest/area.c vgpu_piece_alloc": "alloc_pages",
        "guest/file.c vgpu_submit": "vmemdup_user",
        "guest/file.c vgpu_wait": "kvmalloc_array",
    },
    "tests/chain/test_guest_driver.py::test_windows": {
        "guest/space.c vgpu_space_create": "alloc_anon_inode",
        "guest/window_node.c vgpu_window_create": "kzalloc",
    },
}

UNTESTED: dict[str, str] = {
    # Enabling allocates nothing if somebody has enabled the function already, which tests do because of ACPI. The log
    # has no failure for the region, for an unknown reason.
    "engine/edu.c edu_take": "pci_enable_device pci_request_region",
    "guest/main.c vgpu_probe": "pci_enable_device",
    "guest/main.c vgpu_guest_create": "ida_alloc_max",  # allocates memory only from the 64th device on
}

# The log has nothing about allocations with __GFP_NOWARN: only the findings of these tests show that they failed.
UNTOLD: dict[str, str] = {
    "engine/memory.c vgpu_memory_create": "__vmalloc",
}

_FAILURE = "FAULT_INJECTION: forcing a failure."
_FRAME = re.compile(r"^ (\w+)(?:\.\w+)*\+(0x\w+)/0x\w+(?: \[(\w+)\])?$", re.MULTILINE)


def failed(log: str) -> dict[tuple[str, str], set[str]]:
    """Module and function, with those of its calls at which the log has a failure and its stack.

    A failed copy is not failed memory, except in a function that duplicates: it allocates just before, with
    __GFP_NOWARN.
    """
    found: dict[tuple[str, str], set[str]] = {}
    for told in log.split(_FAILURE)[1:]:
        between: list[str] = []
        for function, at, module in _FRAME.findall(told.partition("</TASK>")[0]):
            if module in ("vgpumgr", "vgpu_guest"):
                if "name fail_usercopy," not in told or {"memdup_user", "vmemdup_user"}.intersection(between):
                    found.setdefault((module, function), set()).add(at)
                break
            between.append(function)
    return found


def missed(test: str, log: str) -> dict[str, str]:
    """The sites assigned to the test that failed at fewer calls than they have, and the failures seen there."""
    found = failed(log)
    missed: dict[str, str] = {}
    for site, calls in TESTED.get(test, {}).items():
        path, function = site.split()
        at = found.get(("vgpu_guest" if path.startswith("guest/") else "vgpumgr", function), set())
        if len(at) < len(calls.split()) - len(UNTOLD.get(site, "").split()):
            missed[site] = f"{calls}, seen at {sorted(at)}"
    return missed
