# SPDX-License-Identifier: Apache-2.0
"""What libvirt gets from the hook at each operation, with and without an agent. The processes and the socket are
real.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest
from vgpumgr_agent.hook.server import HookServer

from tests.agent.hook.rig import OTHER, SILENT, SLICE, TOLD, VETO, VM, FakeService, Host, domain, hostdev, metadata

OURS = domain(hostdev(), metadata(SLICE))
CALLED = {"migrate": "prepare", "restore": "prepare", "reconnect": "started", "attach": "started"}


# ---- with an agent


@pytest.mark.parametrize("operation", VETO + TOLD)
def test_the_agent_is_told_what_the_domain_names(
    host: Host, agent: HookServer, service: FakeService, operation: str
) -> None:
    xml = domain(hostdev(SLICE) + hostdev(OTHER.upper()) + hostdev(SLICE), metadata(OTHER))
    assert host.call(operation, xml, reason="crashed") == (0, "")
    (call,) = service.calls
    assert call.pop("call") == CALLED.get(operation, operation)
    last = {"reason": "crashed"} if operation == "release" else {"domain": "guest"}
    assert call == {
        "vm_uuid": UUID(VM),
        "devices": (UUID(SLICE), UUID(OTHER)),
        "metadata": (UUID(OTHER),),
        **last,
    }


@pytest.mark.parametrize("operation", VETO)
def test_a_refusal_is_one_line_with_the_reason_first(
    host: Host, agent: HookServer, service: FakeService, operation: str
) -> None:
    service.refuse("claim.none", "slice is not claimed:\nclaim it with `vgpumgr create slice`\x1b[31m")
    status, stderr = host.call(operation, OURS)
    assert status == 1
    assert stderr == "slice is not claimed: claim it with `vgpumgr create slice` [31m (vgpumgr: claim.none)\n"


def test_a_very_long_reason_is_cut(host: Host, agent: HookServer, service: FakeService) -> None:
    service.refuse("claim.none", "x" * 10_000)
    _, stderr = host.call("prepare", OURS)
    assert len(stderr) < 400


@pytest.mark.parametrize("operation", TOLD)
def test_other_operations_go_on_whatever_the_agent_says(
    host: Host, agent: HookServer, service: FakeService, operation: str
) -> None:
    service.refuse("claim.none", "no")
    assert host.call(operation, OURS) == (0, "")
    assert len(service.calls) == 1


@pytest.mark.parametrize("operation", [*SILENT, "unheard-of", ""])
def test_operations_without_a_meaning_for_us_pass_unasked(
    host: Host, agent: HookServer, service: FakeService, operation: str
) -> None:
    service.refuse("claim.none", "no")
    assert host.call(operation, OURS) == (0, "")
    assert service.calls == []


def test_a_vm_without_our_words_is_not_asked_about(host: Host, agent: HookServer, service: FakeService) -> None:
    for operation in VETO + TOLD:
        assert host.call(operation, domain("<hostdev mode='subsystem' type='pci'/>")) == (0, "")
    assert service.calls == []


def test_a_vm_that_only_talks_of_mdevs_is_not_asked_about(host: Host, agent: HookServer, service: FakeService) -> None:
    """Text, CDATA, comments, other places and other namespaces are not devices for libvirt, and so not for us."""
    talk = (
        f"<description>mdev {SLICE}</description><note><![CDATA[{hostdev()}{metadata(SLICE)}]]></note>"
        f"<!-- {hostdev()} --><other xmlns='https://other.example/'>{hostdev()}</other>"
    )
    assert host.call("prepare", domain(meta=talk)) == (0, "")
    assert host.call("prepare", domain(f"<!-- {hostdev()} --><x:y xmlns:x='u:r'>{hostdev()}</x:y>")) == (0, "")
    assert host.call("prepare", domain(hostdev().replace("'mdev'", "'pci' name='mdev'"))) == (0, "")
    assert service.calls == []


# ---- without an agent


@pytest.mark.parametrize("operation", VETO)
@pytest.mark.parametrize("known_by", ["metadata", "empty metadata", "record", "sysfs"])
def test_without_agent_a_vm_of_ours_is_refused(host: Host, operation: str, known_by: str) -> None:
    xml = domain(hostdev())
    if known_by == "metadata":
        xml = domain(meta=metadata(SLICE))
    elif known_by == "empty metadata":
        xml = domain(meta=metadata())
    elif known_by == "record":
        host.record()
    else:
        host.mdev(SLICE, driver="vgpumgr")
    status, stderr = host.call(operation, xml)
    assert status == 1
    assert stderr.startswith("the agent does not decide about this VM's slices (no answer at /run/vgpumgr/hook.sock")
    assert stderr.endswith("see `systemctl status vgpumgr-agent` (vgpumgr: agent.unavailable)\n")
    assert stderr.count("\n") == 1


@pytest.mark.parametrize("operation", VETO)
def test_without_agent_a_vm_that_is_not_ours_passes(host: Host, operation: str) -> None:
    assert host.call(operation, domain()) == (0, "")
    assert host.call(operation, domain(hostdev(OTHER))) == (0, "")
    host.mdev(OTHER, driver="nvidia")
    host.record(SLICE)
    assert host.call(operation, domain(hostdev(OTHER))) == (0, "")


@pytest.mark.parametrize("operation", TOLD + SILENT)
def test_without_agent_other_operations_go_on(host: Host, operation: str) -> None:
    assert host.call(operation, OURS) == (0, "")


@contextmanager
def answering(host: Host, answer: bytes) -> Iterator[None]:
    """A process in the agent's place that answers every connection with these bytes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(host.socket))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1 << 16)
                    try:
                        connection.sendall(answer)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\n",
        b"no\n",
        b"[]\n",
        b"null\n",
        b'{"ok": "yes"}\n',
        b'{"ok": 1}\n',
        b'{"ok": false}\n',
        b'{"ok": false, "code": 1, "reason": []}\n',
        b'{"ok": false, "code": "agent.busy", "reason": "too many"}\n',
        b"\xff\xfe\n",
        b"[" * 200_000 + b"\n",
        b"x" * (2 << 20),
    ],
    ids=lambda answer: f"{answer[:12]!r}-{len(answer)}",
)
def test_an_answer_that_decides_nothing_is_as_no_agent(host: Host, answer: bytes) -> None:
    with answering(host, answer):
        status, stderr = host.call("prepare", OURS)
        assert status == 1
        assert stderr.endswith("(vgpumgr: agent.unavailable)\n")
        assert stderr.count("\n") == 1
        assert host.call("prepare", domain(hostdev(OTHER))) == (0, "")
        assert host.call("release", OURS) == (0, "")


def test_a_slow_agent_is_given_up(host: Host, agent: HookServer, service: FakeService) -> None:
    host.install(VETO_S=4, TELL_S=0.3)
    service.hold = threading.Event()
    try:
        status, stderr = host.call("prepare", OURS)
        assert (status, "it did not answer in time" in stderr) == (1, True)
        assert host.call("prepare", domain(hostdev(OTHER))) == (0, "")
        assert host.call("reconnect", OURS) == (0, "")
    finally:
        service.hold.set()


def test_the_time_limits_are_those_of_libvirts_patience(host: Host) -> None:
    """No agent may block one of libvirtd's few workers for longer than this."""
    source = (host.root / "client.py").read_text()
    assert "VETO_S" not in source
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(host.socket))
        listener.listen()  # never accepts: the kernel completes the connection, but nobody answers
        started = time.monotonic()
        assert host.call("release", OURS) == (0, "")
        assert time.monotonic() - started > 1.9
        status, _ = host.call("prepare", OURS, limit_s=30)
        assert status == 1
        assert time.monotonic() - started > 11.8


def test_a_full_queue_is_waited_for_a_second_only(host: Host) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(host.socket))
        listener.listen(0)
        waiting = []
        while True:
            client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            client.setblocking(False)
            try:
                client.connect(str(host.socket))
            except BlockingIOError:
                client.close()
                break
            waiting.append(client)
        status, stderr = host.call("prepare", OURS, limit_s=9)
        for client in waiting:
            client.close()
    assert status == 1
    assert "Resource temporarily unavailable" in stderr
