# SPDX-License-Identifier: Apache-2.0
"""The root helper: what it does to the kernel, and what it refuses."""

import contextlib
import errno
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vgpumgr_agent.helper import operations as helper_operations
from vgpumgr_agent.helper.client import HelperClient
from vgpumgr_agent.helper.operations import Operations
from vgpumgr_agent.helper.records import Record, Records
from vgpumgr_agent.helper.request import OPERATIONS
from vgpumgr_agent.helper.server import Server
from vgpumgr_agent.line_socket import SocketTakenError
from vgpumgr_agent.refused import Refused, UnavailableError

from tests.agent.fakekernel import GPU, FakeKernel

UUID = "c0ffee00-0000-4000-8000-000000000001"
OTHER = "c0ffee00-0000-4000-8000-000000000002"
VM = "c0ffee00-0000-4000-8000-0000000000aa"
GROUP: dict[str, Any] = {
    "gpu": GPU,
    "tenant": "blue",
    "weight": 300,
    "timeslice_us": 1000,
    "cap_us": 0,
    "cap_period_us": 0,
    "mode": "fair",
    "band": "fair",
    "reserve_us": 0,
    "reserve_period_us": 0,
}
SLICE: dict[str, Any] = {
    "uuid": UUID,
    "gpu": GPU,
    "mdev_type": "vgpumgr-mem16m",
    "tenant": "blue",
    "vm_uuid": VM,
    "weight": 300,
    "cap_us": 3000,
    "cap_period_us": 10_000,
    "memory_max_bytes": 0,
    "tasks_max": 0,
    "cpu_max_permille": 0,
}


def refusal(helper: HelperClient, operation: str, **members: Any) -> str:
    with pytest.raises(Refused) as refused:
        helper.call(operation, **members)
    return refused.value.code


def remove(helper: HelperClient, *, vm_gone: bool = False, withdraw: bool = False) -> str:
    return str(helper.call("remove", uuid=UUID, vm_gone=vm_gone, withdraw=withdraw)["state"])


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


# ---- what is not ours


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


# ---- hostile requests

PLACE = {
    **{name: SLICE[name] for name in ("uuid", "tenant", "weight", "cap_us", "cap_period_us")},
    "timeslice_us": 2000,
    "mem_bytes": 1 << 30,
}
VALID: dict[str, dict[str, Any]] = {
    "observe": {},
    "bind": {"gpu": GPU},
    "configure": GROUP,
    "forget_group": {"gpu": GPU, "tenant": "blue"},
    "prepare": SLICE,
    "apply": {name: SLICE[name] for name in ("uuid", "tenant", "weight", "cap_us", "cap_period_us")},
    "renew": {"uuid": UUID},
    "withdraw": {"uuid": UUID},
    "remove": {"uuid": UUID, "vm_gone": False, "withdraw": True},
    "execute": {"uuid": UUID},
    "halt": {"uuid": UUID},
    "admit": {"gpu": GPU, "claims": [PLACE]},
    "dismiss": {"uuid": UUID},
    "adopt": {"uuid": UUID},
}
HOSTILE: dict[str, list[Any]] = {
    "uuid": ["", "../../etc/passwd", UUID.upper(), UUID + "\n", f"{{{UUID}}}", 7, None, [UUID]],
    "vm_uuid": ["", "x", None, 1.5],
    "gpu": ["", "..", "0000:00:10.0/../..", GPU + "\n", GPU + "\0", 1, None],
    "mdev_type": ["", "..", "a/b", ".hidden", "x" * 81, 3, None],
    "tenant": ["", "Blue", "-blue", "blue-", "b" * 64, "a/b", "a b", "blue\n", 1, None],
    "weight": [0, -1, 10_001, 1 << 70, 1.0, "1", True, None],
    "timeslice_us": [0, 9, 1_000_001, -1, "1", True, None],
    "cap_us": [-1, 1_000_001, True, "0", None],
    "cap_period_us": [-1, 1_000_001, True, "0", None],
    "mode": ["", "hard", 1, None],
    "band": ["", "real-time", True, None],
    "reserve_us": [-1, 1, 4_000_001, True, "0", None],
    "reserve_period_us": [-1, 1, 4_000_001, True, "0", None],
    "claims": [[], {}, None, ["x"], [{}], 257 * [PLACE], [{**PLACE, "weight": 0}], [{**PLACE, "more": 1}]],
    "vm_gone": [0, 1, "yes", None],
    "withdraw": [0, 1, "yes", None],
    "memory_max_bytes": [-1, (1 << 50) + 1, True, "0", None],
    "tasks_max": [-1, (1 << 22) + 1, True, "0", None],
    "cpu_max_permille": [-1, 1_000_001, True, 1.5, None],
}


def test_every_operation_is_tried() -> None:
    assert set(VALID) == set(OPERATIONS)
    assert {name for names in OPERATIONS.values() for name in names} == set(HOSTILE)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_members_that_are_malformed_missing_or_unknown_are_refused(
    helper: HelperClient, kernel: FakeKernel, operation: str
) -> None:
    members = VALID[operation]
    for name in members:
        for value in HOSTILE[name]:
            assert refusal(helper, operation, **{**members, name: value}) == "request.invalid", (name, value)
        assert refusal(helper, operation, **{key: members[key] for key in members if key != name}) == "request.invalid"
    assert refusal(helper, operation, **members, force=True) == "request.invalid"
    assert kernel.log == []


@pytest.mark.parametrize(("cap_us", "period_us"), [(1, 0), (1, 99), (200, 100)])
def test_caps_that_contradict_their_period_are_refused(helper: HelperClient, cap_us: int, period_us: int) -> None:
    assert refusal(helper, "configure", **{**GROUP, "cap_us": cap_us, "cap_period_us": period_us}) == "request.invalid"


@pytest.mark.parametrize(
    "line",
    [b"", b"null", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"v":2,"op":"observe"}', b'{"v":true,"op":"observe"}',
     b'{"op":"observe"}', b'{"v":1,"op":"observe"}\n', b'{"v":1,"op":"run"}', b'{"v":1,"op":["observe"]}',
     b'{"v":1,"op":"_close"}'],
)  # fmt: skip
def test_lines_that_are_no_request_are_refused(helper: HelperClient, line: bytes) -> None:
    assert exchange(helper.path, line + b"\n")["code"] == "request.invalid"


def test_a_request_of_more_than_a_mebibyte_is_refused(helper: HelperClient) -> None:
    assert exchange(helper.path, b'{"v":1,"op":"' + b"x" * (1 << 20) + b'"}\n')["code"] == "request.too_large"


def test_a_request_that_never_ends_is_given_up(tmp_path: Path, operations: Operations) -> None:
    path = tmp_path / "impatient.sock"
    server = Server(path, operations.run, uids={os.getuid()}, deadline_s=0.5)
    threading.Thread(target=server.serve, daemon=True).start()
    answer = exchange(path, b'{"v":1,')
    assert (answer["code"], answer["reason"]) == ("request.invalid", "no request within 0.5 s")
    server._deadline_s = 60
    HelperClient(path).call("observe")
    server.close()


def test_requests_about_what_does_not_exist_leave_nothing_behind(helper: HelperClient, operations: Operations) -> None:
    for number in range(10):
        assert refusal(helper, "withdraw", uuid=f"{UUID[:-2]}{number:02}") == "record.missing"
    helper.call("configure", **GROUP)
    assert operations._locks == {}
    assert operations._users == {}


def test_a_lock_stays_while_somebody_waits_for_it(operations: Operations) -> None:
    inside: list[int] = []
    leave = [threading.Event() for _ in range(3)]

    def change(number: int) -> None:
        with operations._locked(UUID):
            inside.append(number)
            leave[number].wait(5)

    threads = [threading.Thread(target=change, args=(number,)) for number in range(3)]
    threads[0].start()
    until(lambda: inside == [0])
    threads[1].start()
    until(lambda: operations._users[UUID] == 2)
    leave[0].set()
    until(lambda: inside == [0, 1])
    threads[0].join()
    threads[2].start()
    threads[2].join(0.2)
    assert inside == [0, 1]
    for event in leave:
        event.set()
    for thread in threads:
        thread.join()
    assert (inside, operations._locks) == ([0, 1, 2], {})


def test_who_says_nothing_keeps_nobody_else_waiting(tmp_path: Path, operations: Operations) -> None:
    path = tmp_path / "patient.sock"
    server = Server(path, operations.run, uids={os.getuid()}, deadline_s=3600)
    threading.Thread(target=server.serve, daemon=True).start()
    silent = [socket.socket(socket.AF_UNIX) for _ in range(10)]
    for connection in silent:
        connection.connect(str(path))
    HelperClient(path).call("observe")
    for connection in silent:
        connection.setblocking(False)
        with pytest.raises(BlockingIOError):  # it is still being waited for
            connection.recv(1)
        connection.close()
    server.close()


def test_only_the_agents_user_and_root_may_speak(tmp_path: Path, operations: Operations, kernel: FakeKernel) -> None:
    path = tmp_path / "closed.sock"
    server = Server(path, operations.run, uids={os.getuid() + 1})
    threading.Thread(target=server.serve, daemon=True).start()
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert refusal(HelperClient(path), "prepare", **SLICE) == "peer.refused"
    assert kernel.log == []
    server.close()


def test_a_request_without_a_thread_is_turned_away_and_the_next_one_answered(
    helper: HelperClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(40):  # more often than there are places
        with without_thread(monkeypatch, "request"):
            assert refusal(helper, "observe") == "helper.busy"
    helper.call("observe")


def test_a_helper_that_was_out_of_descriptors_serves_on(
    tmp_path: Path, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = socket.socket.accept
    troubles = [OSError(errno.EMFILE, "Too many open files")]

    def accept_or_not(listener: socket.socket) -> tuple[socket.socket, object]:
        if troubles:
            raise troubles.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", accept_or_not)
    server = Server(tmp_path / "full.sock", operations.run, uids={os.getuid()})
    serving = threading.Thread(target=server.serve, daemon=True)
    serving.start()
    until(lambda: not troubles)
    assert HelperClient(tmp_path / "full.sock").call("observe")["gpus"]
    server.close()
    serving.join()


def test_a_removal_without_a_thread_is_refused_and_may_be_tried_again(
    helper: HelperClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper.call("prepare", **SLICE)
    with without_thread(monkeypatch, f"remove {UUID}"):
        assert refusal(helper, "remove", uuid=UUID, vm_gone=False, withdraw=True) == "helper.busy"
    assert helper.call("observe")["removing"] == []
    assert remove(helper) == "absent"


def test_only_root_may_adopt(tmp_path: Path, operations: Operations, kernel: FakeKernel, records: Records) -> None:
    kernel.do_write(f"sys/bus/pci/devices/{GPU}/mdev_supported_types/vgpumgr-mem16m/create", UUID)
    path = tmp_path / "agents.sock"
    server = Server(path, operations.run, uids={os.getuid()}, root_uid=os.getuid() + 1)
    threading.Thread(target=server.serve, daemon=True).start()
    assert refusal(HelperClient(path), "adopt", uuid=UUID) == "peer.refused"
    assert records.all() == []
    server.close()


def test_a_second_helper_refuses_and_the_socket_of_a_dead_one_is_taken_over(
    helper: HelperClient, operations: Operations
) -> None:
    with pytest.raises(SocketTakenError, match="another process answers"):
        Server(helper.path, operations.run, uids={os.getuid()})
    stale = helper.path.with_name("stale.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(stale))
    Server(stale, operations.run, uids={os.getuid()}).close()


def test_a_client_without_a_helper_says_what_to_look_at(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="is it running"):
        HelperClient(tmp_path / "none.sock").call("observe", timeout_s=0.5, retry=True)


@contextlib.contextmanager
def without_thread(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    """A process that has no thread of this name to give."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield


def until(condition: Any, timeout_s: float = 5) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def exchange(path: Path, data: bytes) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        with contextlib.suppress(ConnectionError):  # it need not have listened to the end
            connection.sendall(data)
        with connection.makefile("rb") as stream:
            answer: dict[str, Any] = json.loads(stream.readline())
    return answer
