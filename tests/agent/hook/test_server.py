# SPDX-License-Identifier: Apache-2.0
"""The agent's end of the hook's socket: which users it answers, what it refuses, and that a slow client blocks no
other.
"""

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from vgpumgr_agent.hook.server import HookServer, Limits
from vgpumgr_agent.line_socket import SocketTakenError

from tests.agent.hook.rig import OTHER, SLICE, VM, FakeService

REQUEST = {
    "v": 1,
    "op": "prepare",
    "domain": "guest",
    "vm_uuid": VM,
    "devices": [SLICE],
    "metadata": [],
    "reason": "-",
}


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hook-") as directory:
        yield Path(directory) / "hook.sock"


@contextmanager
def serving(path: Path, service: FakeService, *, peer_uid: int | None = None, **limits: Any) -> Iterator[HookServer]:
    uid = os.getuid() if peer_uid is None else peer_uid
    server = HookServer(path, service, limits=Limits(**limits), peer_uid=uid)
    server.start()
    try:
        yield server
    finally:
        server.close()


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(20)
    connection.connect(str(path))
    return connection


def answer_to(connection: socket.socket) -> dict[str, Any]:
    data = b""
    while chunk := connection.recv(65536):
        data += chunk
    assert data.endswith(b"\n")
    assert data.count(b"\n") == 1
    decision: dict[str, Any] = json.loads(data)
    return decision


def ask(path: Path, request: object = REQUEST) -> dict[str, Any]:
    with connect(path) as connection:
        connection.sendall(request if isinstance(request, bytes) else json.dumps(request).encode() + b"\n")
        return answer_to(connection)


def until(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# ---- requests


@pytest.mark.parametrize(
    ("operation", "called"),
    [
        ("prepare", "prepare"),
        ("migrate", "prepare"),
        ("restore", "prepare"),
        ("started", "started"),
        ("reconnect", "started"),
        ("attach", "started"),
        ("release", "release"),
        ("hotplug", "hotplug"),
        ("unplug", "unplug"),
        ("start", None),
        ("stopped", None),
    ],
)
def test_each_operation_reaches_its_method(path: Path, operation: str, called: str | None) -> None:
    service = FakeService()
    with serving(path, service):
        assert ask(path, {**REQUEST, "op": operation}) == {"ok": True}
    assert [call["call"] for call in service.calls] == ([called] if called else [])


@pytest.mark.parametrize("operation", ["prepare", "hotplug"])
def test_a_refusal_carries_code_and_reason_on_one_line(path: Path, operation: str) -> None:
    service = FakeService()
    service.refuse("claim.none", "no claim\nfor this slice")
    with serving(path, service) as server:
        answer = ask(path, {**REQUEST, "op": operation})
        assert answer == {"ok": False, "code": "claim.none", "reason": "no claim for this slice"}
        assert server.counters().refused == 1


def test_an_error_of_the_agent_is_no_decision_and_no_traceback(path: Path) -> None:
    service = FakeService(refusal=RuntimeError("secret"))
    with serving(path, service) as server:
        answer = ask(path)
        assert (answer["ok"], answer["code"]) == (False, "agent.failed")
        assert "secret" not in answer["reason"]
        service.refusal = None
        assert ask(path) == {"ok": True}
        assert server.counters().failed == 1
        until(lambda: server.counters().open == 0)


def without(member: str) -> dict[str, object]:
    return {name: value for name, value in REQUEST.items() if name != member}


INVALID = {
    "nothing": b"\n",
    "no JSON": b"prepare\n",
    "not UTF-8": b'{"v": "\xff"}\n',
    "a list": [],
    "deep": b"[" * 300_000 + b"\n",
    "two lines": json.dumps(REQUEST).encode() + b"\n\n",
    "two requests": (json.dumps(REQUEST).encode() + b"\n") * 2,
    "too long": b"{" + b" " * (1 << 20) + b"  \n",
    "too long, no line": b" " * (2 << 20),
    "another version": {**REQUEST, "v": 2},
    "a version that is true": {**REQUEST, "v": True},
    "an unknown operation": {**REQUEST, "op": "destroy"},
    "an operation that is a list": {**REQUEST, "op": ["prepare"]},
    "an unknown member": {**REQUEST, "uid": 0},
    "a VM that is a number": {**REQUEST, "vm_uuid": 5},
    "a UUID in braces": {**REQUEST, "vm_uuid": "{" + VM.replace("-", "") + "}xx"},
    "a UUID without hyphens": {**REQUEST, "devices": [SLICE.replace("-", "")]},
    "a path as UUID": {**REQUEST, "devices": ["../../../../../../../../etc/shadow12"]},
    "devices that are text": {**REQUEST, "devices": SLICE},
    "too many devices": {**REQUEST, "devices": [SLICE] * 65},
    "metadata that is null": {**REQUEST, "metadata": None},
    "a long name": {**REQUEST, "domain": "x" * 2000},
    "a reason that is an object": {**REQUEST, "reason": {}},
    **{f"no {member}": without(member) for member in REQUEST},
}


@pytest.mark.parametrize("name", INVALID)
def test_bad_input_is_refused_and_reaches_nothing(path: Path, name: str) -> None:
    service = FakeService()
    with serving(path, service) as server:
        with connect(path) as connection:
            request = INVALID[name]
            data = request if isinstance(request, bytes) else json.dumps(request).encode() + b"\n"
            try:
                connection.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                assert len(data) > 1 << 20
            answer = json.loads(connection.recv(65536))
        assert (answer["ok"], answer["code"]) == (False, "request.invalid")
        assert 0 < len(answer["reason"]) < 500
        assert ("longer than 1 MiB" in answer["reason"]) == name.startswith("too long")
        assert ask(path) == {"ok": True}
        assert server.counters().invalid == 1
    assert len(service.calls) == 1


def test_a_request_may_come_in_pieces_but_not_for_ever(path: Path) -> None:
    with serving(path, FakeService(), receive_s=60), connect(path) as connection:
        for byte in json.dumps(REQUEST).encode() + b"\n":
            connection.send(bytes([byte]))
        assert answer_to(connection) == {"ok": True}
    with serving(path, FakeService(), receive_s=0.5):
        with connect(path) as connection:
            started = time.monotonic()
            answers: list[dict[str, Any]] = []
            reader = threading.Thread(target=lambda: answers.append(answer_to(connection)))
            reader.start()
            while reader.is_alive() and time.monotonic() - started < 10:
                try:
                    connection.send(b" ")  # one byte at a time: never silent, never complete
                except OSError:
                    break
                time.sleep(0.05)
            reader.join()
        assert answers[0]["code"] == "request.invalid"
        assert "not complete within 0.5 s" in answers[0]["reason"]


def test_a_request_that_breaks_off_is_refused(path: Path) -> None:
    with serving(path, FakeService(), receive_s=60), connect(path) as connection:
        connection.sendall(b'{"v": 1')
        connection.shutdown(socket.SHUT_WR)
        assert answer_to(connection)["code"] == "request.invalid"


# ---- clients that hang


def test_a_call_that_hangs_is_answered_in_time_and_holds_up_nobody(path: Path) -> None:
    hanging, quick = FakeService(hold=threading.Event()), FakeService()
    service = FakeService()
    service.prepare = hanging.prepare  # type: ignore[method-assign]
    service.release = quick.release  # type: ignore[method-assign]
    assert hanging.hold is not None
    with serving(path, service, decide_s=3) as server:
        with connect(path) as connection:
            connection.sendall(json.dumps(REQUEST).encode() + b"\n")
            until(lambda: hanging.calls)
            assert ask(path, {**REQUEST, "op": "release", "reason": "crashed"}) == {"ok": True}
            answer = answer_to(connection)
        assert answer["code"] == "agent.timeout"
        until(lambda: server.counters().open == 1)
        assert server.counters().timeouts == 1
        hanging.hold.set()
        until(lambda: server.counters().open == 0)


def test_a_connection_without_a_thread_is_refused_and_the_next_one_served(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "hook-request":
            raise RuntimeError("can't start new thread")
        start(thread)

    with serving(path, FakeService(), connections=3) as server:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            for _ in range(4):
                with connect(path) as connection:
                    assert answer_to(connection)["code"] == "agent.busy"
        assert (server.counters().busy, server.counters().open) == (4, 0)
        assert ask(path) == {"ok": True}


def test_hanging_calls_are_bounded_and_their_places_come_back(path: Path) -> None:
    service = FakeService(hold=threading.Event())
    assert service.hold is not None
    with serving(path, service, decide_s=3, connections=3) as server:
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(ask, [path] * 3))
        assert [answer["code"] for answer in answers] == ["agent.timeout"] * 3
        with connect(path) as connection:
            assert answer_to(connection)["code"] == "agent.busy"
        assert (server.counters().busy, server.counters().open) == (1, 3)
        service.hold.set()
        until(lambda: server.counters().open == 0)
        assert ask(path) == {"ok": True}


def test_silent_connections_leave_their_places(path: Path) -> None:
    with serving(path, FakeService(), receive_s=3, connections=4) as server:
        silent = [connect(path) for _ in range(4)]
        until(lambda: server.counters().open == 4)
        until(lambda: server.counters().open == 0)
        assert ask(path) == {"ok": True}
        for connection in silent:
            connection.close()


def test_many_at_once_are_all_answered(path: Path) -> None:
    service = FakeService()
    answers: list[dict[str, Any]] = []
    with serving(path, service):
        threads = [threading.Thread(target=lambda: answers.append(ask(path))) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == [{"ok": True}] * 40
    assert len(service.calls) == 40


def test_who_does_not_wait_for_the_answer_harms_nobody(path: Path) -> None:
    with serving(path, FakeService()) as server:
        for _ in range(20):
            with connect(path) as connection:
                connection.sendall(json.dumps(REQUEST).encode() + b"\n")
        assert ask(path) == {"ok": True}
        until(lambda: server.counters().open == 0)
        assert server.counters().failed == 0


# ---- users, and the socket's place


def test_only_one_user_is_answered(path: Path) -> None:
    service = FakeService()
    with serving(path, service, peer_uid=os.getuid() + 1) as server:
        with connect(path) as connection:
            assert connection.recv(100) == b""
        until(lambda: server.counters().refused_peers == 1)
        assert (server.counters().connections, server.counters().open) == (0, 0)
    assert service.calls == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody else")
def test_another_user_gets_no_answer_even_past_the_mode(path: Path) -> None:
    service = FakeService()
    program = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        f"s.sendall({json.dumps(REQUEST)!r}.encode() + b'\\n'); print(s.recv(100))"
    )
    with serving(path, service) as server:
        path.parent.chmod(0o755)
        command = [sys.executable, "-IS", "-c", program, str(path)]
        closed = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "PermissionError" in closed.stderr
        path.chmod(0o666)
        answered = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "ok" not in answered.stdout
        until(lambda: server.counters().refused_peers == 1)
    assert service.calls == []


def test_the_socket_is_its_owners_alone_and_goes_with_the_server(path: Path) -> None:
    with serving(path, FakeService()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert list(path.parent.iterdir()) == [path]
    assert list(path.parent.iterdir()) == []


def test_a_stale_socket_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    assert path.exists()
    with serving(path, FakeService()):
        assert ask(path) == {"ok": True}


def test_a_socket_that_is_served_is_left_alone(path: Path) -> None:
    first = FakeService()
    with serving(path, first):
        with pytest.raises(SocketTakenError, match="another process answers at"):
            HookServer(path, FakeService()).start()
        assert ask(path) == {"ok": True}
    assert len(first.calls) == 1


def test_a_file_in_the_sockets_place_is_left_alone(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(SocketTakenError, match="is not a socket"):
        HookServer(path, FakeService()).start()
    assert path.read_text() == "precious"
    path.unlink()
    path.symlink_to("/run/elsewhere")
    with pytest.raises(SocketTakenError, match="is not a socket"):
        HookServer(path, FakeService()).start()


def test_a_server_does_not_remove_its_successors_socket(path: Path) -> None:
    server = HookServer(path, FakeService(), peer_uid=os.getuid())
    server.start()
    path.unlink()
    with serving(path, FakeService()):
        server.close()
        server.close()
        assert ask(path, {**REQUEST, "devices": [OTHER]}) == {"ok": True}
