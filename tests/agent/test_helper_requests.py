# SPDX-License-Identifier: Apache-2.0
"""The root helper: which requests it refuses, and how it behaves when a resource runs out."""

import contextlib
import errno
import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vgpumgr_agent.helper.client import HelperClient
from vgpumgr_agent.helper.operations import Operations
from vgpumgr_agent.helper.records import Records
from vgpumgr_agent.helper.request import OPERATIONS
from vgpumgr_agent.helper.server import Server
from vgpumgr_agent.line_socket import SocketTakenError
from vgpumgr_agent.refused import UnavailableError

from tests.agent.fakekernel import GPU, FakeKernel
from tests.agent.helper_requests import GROUP, PLACE, SLICE, UUID, VALID, refusal, remove, until

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
        with pytest.raises(BlockingIOError):  # the helper still waits for its request
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
    for _ in range(40):  # more often than the helper has places for requests
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
    """A process that cannot start a thread with this name."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield


def exchange(path: Path, data: bytes) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        with contextlib.suppress(ConnectionError):  # the helper may close before it has read everything
            connection.sendall(data)
        with connection.makefile("rb") as stream:
            answer: dict[str, Any] = json.loads(stream.readline())
    return answer
