# SPDX-License-Identifier: Apache-2.0
"""The root helper: what it does to the kernel."""

import errno
import threading

import pytest
from vgpumgr_agent.helper import operations as helper_operations
from vgpumgr_agent.helper.client import HelperClient
from vgpumgr_agent.helper.records import Record, Records

from tests.agent.fakekernel import GPU, FakeKernel
from tests.agent.helper_requests import GROUP, OTHER, SLICE, UUID, VM, refusal, remove, until

# ---- groups


def test_configure_sets_the_group_once_and_closes_the_gpu_to_vms_without_a_permit(
    helper: HelperClient, kernel: FakeKernel
) -> None:
    assert helper.call("configure", **GROUP) == {"changed": True}
    assert helper.call("configure", **GROUP) == {"changed": False}
    assert kernel.state()["groups"] == {(GPU, "blue"): (300, 1000, 0)}
    assert helper.call("observe")["gpus"][0]["attach"] == "permit"


def test_a_cap_is_set_changed_and_taken_away(helper: HelperClient, kernel: FakeKernel) -> None:
    for cap_us, period_us in ((3000, 10_000), (4000, 20_000), (0, 0)):
        helper.call("configure", **{**GROUP, "cap_us": cap_us, "cap_period_us": period_us})
        group = kernel.tenants[GPU, "blue"]
        assert (group.cap_us, group.burst_us) == (cap_us, 2 * GROUP["timeslice_us"] if cap_us else 0)
    assert helper.call("configure", **GROUP) == {"changed": False}


def test_a_reservation_is_given_changed_and_taken_back(helper: HelperClient, kernel: FakeKernel) -> None:
    for reserve_us in (2000, 1000):
        latency = {"band": "latency", "reserve_us": reserve_us, "reserve_period_us": 10_000}
        assert helper.call("configure", **{**GROUP, **latency}) == {"changed": True}
        assert helper.call("configure", **{**GROUP, **latency}) == {"changed": False}
        found = kernel.tenants[GPU, "blue"]
        assert (found.band, found.reserve_us, found.reserve_period_us) == ("latency", reserve_us, 10_000)
    assert helper.call("configure", **GROUP) == {"changed": True}
    found = kernel.tenants[GPU, "blue"]
    assert (found.band, found.reserve_us, found.reserve_period_us) == ("fair", 0, 0)


@pytest.mark.parametrize(
    "members",
    [
        {"band": "latency"},
        {"band": "latency", "reserve_us": 11, "reserve_period_us": 10},
        {"band": "fair", "reserve_us": 1, "reserve_period_us": 10},
    ],
)
def test_reservations_that_contradict_their_band_or_period_are_refused(
    helper: HelperClient, members: dict[str, object]
) -> None:
    assert refusal(helper, "configure", **{**GROUP, **members}) == "request.invalid"


def test_what_the_kernel_refuses_has_its_words_and_changes_nothing(helper: HelperClient, kernel: FakeKernel) -> None:
    assert refusal(helper, "configure", **{**GROUP, "timeslice_us": 50}) == "field.out_of_range"
    assert kernel.state()["groups"] == {}


def test_a_group_is_forgotten_only_without_slices(helper: HelperClient, kernel: FakeKernel) -> None:
    helper.call("configure", **GROUP)
    helper.call("prepare", **SLICE)
    assert refusal(helper, "forget_group", gpu=GPU, tenant="blue") == "object.busy"
    assert remove(helper, withdraw=True) == "absent"
    assert helper.call("forget_group", gpu=GPU, tenant="blue") == {"changed": True}
    assert helper.call("forget_group", gpu=GPU, tenant="blue") == {"changed": False}
    assert kernel.state()["groups"] == {}


# ---- prepare


def test_prepare_records_makes_configures_and_permits_in_this_order(
    helper: HelperClient, kernel: FakeKernel, records: Records
) -> None:
    assert helper.call("prepare", **SLICE) == {"created": True}
    assert [entry[1] for entry in kernel.log] == ["attach", "create", UUID, "permit"]
    assert records.get(UUID) == Record(uuid=UUID, gpu=GPU, mdev_type="vgpumgr-mem16m", tenant="blue", vm_uuid=VM)
    assert kernel.state()["slices"] == {UUID: (GPU, "vgpumgr-mem16m", "blue", 300, 3000, False)}
    assert kernel.permit_s(UUID) == 120


def test_prepare_again_renews_the_permit_and_creates_nothing(helper: HelperClient, kernel: FakeKernel) -> None:
    helper.call("prepare", **SLICE)
    kernel.advance(100)
    assert helper.call("prepare", **{**SLICE, "weight": 200}) == {"created": False}
    assert kernel.permit_s(UUID) == 120
    assert kernel.slices[UUID].weight == 200


@pytest.mark.parametrize(("step", "number"), [("create", errno.ENOSPC), ("set_slice", errno.ERANGE), ("permit", 5)])
def test_prepare_undoes_all_when_a_step_fails(
    helper: HelperClient, kernel: FakeKernel, records: Records, step: str, number: int
) -> None:
    kernel.fail[step] = [number]
    refusal(helper, "prepare", **SLICE)
    assert kernel.state()["slices"] == {}
    assert records.all() == []


def test_what_cannot_be_undone_stays_ours(helper: HelperClient, kernel: FakeKernel, records: Records) -> None:
    kernel.fail["permit"] = [errno.EIO]
    kernel.fail["remove"] = [errno.EAGAIN]
    assert refusal(helper, "prepare", **SLICE) == "permit.refused"
    assert records.get(UUID) is not None
    assert remove(helper) == "absent"


def test_a_device_that_somebody_else_made_meanwhile_is_not_taken_for_ours(
    helper: HelperClient, kernel: FakeKernel, records: Records
) -> None:
    kernel.create_late = True
    assert refusal(helper, "prepare", **SLICE) == "object.exists"
    assert set(kernel.slices) == {UUID}
    assert records.all() == []


def test_prepare_waits_while_the_kernel_keeps_the_uuid_of_a_removed_slice(
    helper: HelperClient, kernel: FakeKernel
) -> None:
    kernel.fail["create"] = [errno.EEXIST, errno.EEXIST]
    assert helper.call("prepare", **SLICE) == {"created": True}


def test_prepare_refuses_a_slice_that_a_vm_has_open(helper: HelperClient, kernel: FakeKernel) -> None:
    helper.call("prepare", **SLICE)
    kernel.open(UUID)
    assert refusal(helper, "prepare", **SLICE) == "slice.open"
    assert kernel.permit_s(UUID) == 0


def test_prepare_refuses_a_slice_of_another_type(helper: HelperClient) -> None:
    helper.call("prepare", **SLICE)
    assert refusal(helper, "prepare", **{**SLICE, "mdev_type": "vgpumgr-mem64m"}) == "slice.mismatch"


def test_prepare_names_an_unknown_gpu(helper: HelperClient, records: Records) -> None:
    assert refusal(helper, "prepare", **{**SLICE, "gpu": "0000:7f:00.0"}) == "gpu.unknown"
    assert records.all() == []


# ---- devices that are not ours


def test_a_slice_of_somebody_else_is_touched_only_once_adopted(helper: HelperClient, kernel: FakeKernel) -> None:
    kernel.do_write(f"sys/bus/pci/devices/{GPU}/mdev_supported_types/vgpumgr-mem16m/create", UUID)
    assert refusal(helper, "prepare", **SLICE) == "slice.foreign"
    assert refusal(helper, "remove", uuid=UUID, vm_gone=True, withdraw=True) == "record.missing"
    assert refusal(helper, "withdraw", uuid=UUID) == "record.missing"
    assert refusal(helper, "apply", uuid=UUID, tenant="blue", weight=1, cap_us=0, cap_period_us=0) == "record.missing"
    assert kernel.permit_s(UUID) == 0
    helper.call("adopt", uuid=UUID)
    assert remove(helper) == "absent"
    assert kernel.state()["slices"] == {}


def test_adopting_what_is_not_there_is_refused(helper: HelperClient, records: Records) -> None:
    assert refusal(helper, "adopt", uuid=OTHER) == "object.unknown"
    assert records.all() == []


def test_a_damaged_record_still_says_that_the_slice_is_ours(helper: HelperClient, records: Records) -> None:
    helper.call("prepare", **SLICE)
    (records.directory / f"{UUID}.json").write_text("{")
    nothing = dict.fromkeys(("memory_max_bytes", "tasks_max", "cpu_max_permille"), 0)
    assert helper.call("observe")["records"] == [
        {"uuid": UUID, "gpu": "", "mdev_type": "", "tenant": "", "vm_uuid": "", **nothing}
    ]
    assert remove(helper, withdraw=True) == "absent"


# ---- remove


def test_remove_refuses_while_permitted_or_open(helper: HelperClient, kernel: FakeKernel) -> None:
    helper.call("prepare", **SLICE)
    assert refusal(helper, "remove", uuid=UUID, vm_gone=False, withdraw=False) == "slice.permitted"
    kernel.open(UUID)
    assert refusal(helper, "remove", uuid=UUID, vm_gone=False, withdraw=True) == "slice.open"
    kernel.close_slice(UUID)
    assert remove(helper) == "absent"
    assert remove(helper) == "absent"


def test_a_removal_that_blocks_is_pending_and_keeps_the_record(
    helper: HelperClient, kernel: FakeKernel, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vgpumgr_agent.helper.operations._REMOVE_WAIT_S", 0.1)
    helper.call("prepare", **SLICE)
    kernel.held.add(UUID)
    assert remove(helper, vm_gone=True) == "pending"
    assert remove(helper, vm_gone=True) == "pending"
    until(lambda: ("waits", UUID) in kernel.log)
    assert [entry[:3] for entry in kernel.log].count(("write", "remove", UUID)) == 1
    assert helper.call("observe")["removing"] == [UUID]
    assert records.get(UUID) is not None
    assert refusal(helper, "prepare", **SLICE) == "slice.removing"
    kernel.let_go(UUID)
    until(lambda: not helper.call("observe")["removing"])
    assert records.get(UUID) is None
    assert helper.call("prepare", **SLICE) == {"created": True}


def test_a_device_in_use_stays_whatever_the_agent_says_of_its_vm(helper: HelperClient, kernel: FakeKernel) -> None:
    helper.call("prepare", **SLICE)
    kernel.open(UUID)
    assert refusal(helper, "remove", uuid=UUID, vm_gone=True, withdraw=True) == "slice.open"
    assert [entry[1] for entry in kernel.log].count("remove") == 0


def test_a_vm_that_is_gone_may_take_a_moment_to_let_go(
    helper: HelperClient, kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert helper_operations._CLOSE_WAIT_S >= 1
    monkeypatch.setattr(helper_operations, "_CLOSE_WAIT_S", 30)
    helper.call("prepare", **SLICE)
    kernel.open(UUID)
    threading.Timer(0.3, kernel.close_slice, [UUID]).start()
    assert remove(helper, vm_gone=True) == "absent"


def test_a_removal_that_failed_may_be_tried_again(helper: HelperClient, kernel: FakeKernel, records: Records) -> None:
    helper.call("prepare", **SLICE)
    kernel.fail["remove"] = [errno.EAGAIN]
    assert refusal(helper, "remove", uuid=UUID, vm_gone=False, withdraw=True) == "control.refused"
    assert records.get(UUID) is not None
    assert remove(helper) == "absent"


def test_a_record_without_a_device_is_dropped(helper: HelperClient, kernel: FakeKernel, records: Records) -> None:
    helper.call("prepare", **SLICE)
    kernel.reboot()
    assert remove(helper) == "absent"
    assert records.all() == []


# ---- observe


def test_observe_tells_gpus_types_groups_slices_and_boot(helper: HelperClient, kernel: FakeKernel) -> None:
    helper.call("configure", **GROUP)
    helper.call("prepare", **SLICE)
    seen = helper.call("observe")
    assert seen["boot_id"] == kernel.paths.boot_id.read_text().strip()
    assert seen["gpus"][0]["types"] == [
        {"id": "vgpumgr-mem16m", "mem_bytes": 16 << 20},
        {"id": "vgpumgr-mem64m", "mem_bytes": 64 << 20},
    ]
    assert [(group["name"], group["weight"], group["slices"]) for group in seen["groups"]] == [("blue", 300, 1)]
    assert [(found["uuid"], found["permit_s"], found["mdev_type"]) for found in seen["slices"]] == [
        (UUID, 120, "vgpumgr-mem16m")
    ]


def test_a_module_that_is_not_loaded_is_named(helper: HelperClient, kernel: FakeKernel) -> None:
    kernel.loaded = False
    assert refusal(helper, "observe") == "control.unavailable"


@pytest.mark.parametrize("version", ["3.0", "1.1", "", "20.0"])
def test_a_module_with_another_abi_is_refused_and_left_alone(
    helper: HelperClient, kernel: FakeKernel, records: Records, version: str
) -> None:
    (kernel.paths.gpu(GPU) / "abi_version").write_text(f"{version}\n")
    assert refusal(helper, "observe") == "module.abi"
    assert refusal(helper, "configure", **GROUP) == "module.abi"
    assert refusal(helper, "prepare", **SLICE) == "module.abi"
    assert kernel.log == []
    assert records.all() == []


def test_a_module_with_a_later_minor_abi_is_used(helper: HelperClient, kernel: FakeKernel) -> None:
    (kernel.paths.gpu(GPU) / "abi_version").write_text("2.7\n")
    assert helper.call("prepare", **SLICE) == {"created": True}
