# SPDX-License-Identifier: Apache-2.0
"""Kill agent and helper at every crash point; after a restart they bring the host to the desired state.

The story: enrol, and learn of two claims, one of them unbound. Start its VMs, change a quota, lose an executor, stop
one VM, delete the other's claim, and start the first VM again. A killed process is started again like systemd would do
it. libvirt is told that a hook failed, and the user tries again.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from vgpumgr_agent import faults

from tests.agent import fakeexecutor
from tests.agent.fakeapi import FakeApi, HttpServer, claim, group
from tests.agent.fakeexecutor import alive
from tests.agent.fakekernel import GPU, FakeKernel

A, B = UUID(int=1), UUID(int=2)
VM, OTHER_VM = UUID(int=100), UUID(int=101)
ANSWER_S = 15


class Service:
    """A process that is restarted when it dies; its first run has a crash point set."""

    def __init__(self, name: str, *arguments: str, point: str = "") -> None:
        self.name = name
        self.arguments = arguments
        self.point = point
        self.deaths: list[int] = []
        self.ended = False
        self.start(point)
        threading.Thread(target=self._watch, daemon=True).start()

    def start(self, point: str = "") -> None:
        environment = {**os.environ, faults.VARIABLE: point}
        command = [sys.executable, "-m", "tests.agent.processes", self.name, *self.arguments]
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

    def _watch(self) -> None:
        while True:
            status = self.process.wait()
            if self.ended:
                return
            self.deaths.append(status)
            self.start()

    def end(self) -> None:
        self.ended = True
        self.process.kill()
        self.process.wait()


class Host:
    """Both services of one host, and the hook in libvirt's place."""

    def __init__(self, kernel: FakeKernel, api: FakeApi, point: str) -> None:
        self.kernel = kernel
        self.api = api
        self.web = HttpServer(api)
        root = str(kernel.root)
        (kernel.root / "token").write_text("one-time")
        self.helper = Service("helper", root, point=point if point in OF_HELPER else "")
        self.agent = Service("agent", root, self.web.url, point=point if point in faults.AGENT_POINTS else "")

    def end(self) -> None:
        self.agent.end()
        self.helper.end()
        self.web.close()

    @property
    def deaths(self) -> list[int]:
        return self.agent.deaths + self.helper.deaths

    def hook(self, operation: str, uuid: UUID, vm: UUID) -> bool:
        """Return whether the agent agreed. False also if it died or is away, because the hook then fails closed."""
        request = {
            "v": 1, "op": operation, "domain": "test", "vm_uuid": str(vm), "devices": [str(uuid)],
            "metadata": [str(uuid)], "reason": "shutdown",
        }  # fmt: skip
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(ANSWER_S)
                connection.connect(str(self.kernel.root / "hook.sock"))
                connection.sendall(json.dumps(request).encode() + b"\n")
                with connection.makefile("rb") as stream:
                    return bool(json.loads(stream.readline() or b"{}").get("ok"))
        except OSError:
            return False

    def start_vm(self, uuid: UUID, vm: UUID) -> None:
        """Start a VM like a user does: repeat until it starts. libvirt reports each failed start as released."""

        def tried() -> bool:
            if self.hook("prepare", uuid, vm):
                self.kernel.open(str(uuid))
                return self.hook("started", uuid, vm) or True
            self.hook("release", uuid, vm)
            return False

        until(tried)

    def stop_vm(self, uuid: UUID, vm: UUID) -> None:
        self.kernel.close_slice(str(uuid))
        self.hook("release", uuid, vm)

    def absent(self, uuid: UUID) -> bool:
        with self.api.changed:
            report = self.api.reports[-1] if self.api.reports else None
        return (
            report is not None
            and report.desired_generation == self.api.document.generation
            and any(each.id == uuid and not each.present for each in report.slices)
        )

    def records(self) -> set[str]:
        return {path.name.removesuffix(".json") for path in (self.kernel.root / "records").glob("*.json")}


def until(condition: Callable[[], Any], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)


@pytest.fixture
def run_host(kernel: FakeKernel) -> Iterator[Callable[[str], Host]]:
    hosts: list[Host] = []
    fakeexecutor.install(kernel.root)

    def run(point: str) -> Host:
        hosts.append(Host(kernel, FakeApi(), point))
        return hosts[-1]

    yield run
    for host in hosts:
        host.end()
    executors = fakeexecutor.processes(kernel.root)
    for each in executors.all():
        executors.stop(each.uuid)
    shutil.rmtree(fakeexecutor.directory(kernel.root), ignore_errors=True)


def executing(host: Host) -> list[str]:
    """Return the slices that have an executor process."""
    return [str(uuid) for uuid in (A, B) for _ in alive(host.kernel.root, uuid)]


def slices(host: Host) -> dict[str, Any]:
    found: dict[str, Any] = host.kernel.state()["slices"]
    return found


def live(host: Host) -> None:
    """Run the story. Each step waits for the desired state, whichever process dies in the meantime."""
    api, kernel = host.api, host.kernel
    api.set(
        groups=[group("blue", 300), group("green", 200)],
        slices=[claim(A, vm=VM), claim(B, vm=None, tenant="green", share=200)],
    )
    until(lambda: kernel.state()["groups"] == {(GPU, "blue"): (300, 1000, 0), (GPU, "green"): (200, 1000, 0)})

    host.start_vm(A, VM)
    host.start_vm(B, OTHER_VM)
    kind = "vgpumgr-mem16m"
    assert slices(host) == {str(A): (GPU, kind, "blue", 300, 0, True), str(B): (GPU, kind, "green", 200, 0, True)}
    assert next(each.vm_uuid for each in api.document.slices if each.id == B) == OTHER_VM

    halved = [
        each.model_copy(update={"weight": 150, "generation": 9}) if each.id == A else each
        for each in api.document.slices
    ]
    api.set(groups=[group("blue", 150), group("green", 200)], slices=halved)
    until(lambda: slices(host)[str(A)][3] == 150 and kernel.state()["groups"][GPU, "blue"][0] == 150)

    (executor,) = alive(kernel.root, A)
    os.kill(executor, signal.SIGKILL)
    until(lambda: alive(kernel.root, A) not in ([], [executor]))

    host.stop_vm(A, VM)
    until(lambda: set(slices(host)) == {str(B)} and host.records() == {str(B)})
    until(lambda: executing(host) == [str(B)])

    api.delete(B, groups=[group("blue", 150)])
    until(lambda: any(each.id == B and each.open for each in api.reports[-1].slices))
    assert str(B) in slices(host)
    host.stop_vm(B, OTHER_VM)
    until(lambda: host.absent(B))
    until(lambda: kernel.state() == {"slices": {}, "groups": {(GPU, "blue"): (150, 1000, 0)}})
    until(lambda: host.records() == set() and executing(host) == [])
    api.set(tombstones=[])

    # A start that libvirt abandons leaves nothing once its permit has expired.
    until(lambda: host.hook("prepare", A, VM))
    assert set(slices(host)) == {str(A)}
    kernel.advance(121)
    until(lambda: slices(host) == {} and host.records() == set())

    # The slice was prepared and unplugged before it was opened, so its permit ends at once.
    until(lambda: host.hook("prepare", A, VM))
    until(lambda: host.hook("unplug", A, VM))
    until(lambda: slices(host) == {} and host.records() == set())

    host.start_vm(A, VM)
    assert slices(host) == {str(A): (GPU, kind, "blue", 150, 0, True)}
    assert host.records() == {str(A)}
    assert executing(host) == [str(A)]


def test_the_story_without_a_fault(run_host: Callable[[str], Host]) -> None:
    host = run_host("")
    live(host)
    assert host.deaths == []


OF_HELPER = faults.HELPER_POINTS + faults.EXECUTOR_POINTS
ENROLMENT_LOST = "enroll.answered"


# The crash points of certificates need TLS: see tests/api/http/test_mutual_tls.py.
HERE = [point for point in OF_HELPER + faults.AGENT_POINTS if point != ENROLMENT_LOST]


@pytest.mark.parametrize("point", HERE)
def test_killed_at(run_host: Callable[[str], Host], point: str) -> None:
    host = run_host(point)
    live(host)
    assert host.deaths == [-signal.SIGKILL], "the point was not reached"


def test_killed_between_enrolment_and_its_record_the_host_takes_a_new_one_time_token(
    run_host: Callable[[str], Host],
) -> None:
    """The API answers a one-time token only once; an answer that was lost with the agent cannot be repeated."""
    host = run_host(ENROLMENT_LOST)
    until(lambda: host.deaths == [-signal.SIGKILL])
    host.api.one_time_tokens.add("second")
    (host.kernel.root / "token").write_text("second")
    live(host)


def test_each_point_is_in_the_programs() -> None:
    source = "".join(path.read_text() for path in Path(faults.__file__).parent.rglob("*.py"))
    assert [point for point in faults.POINTS if f'point("{point}")' not in source] == []


def test_a_point_that_is_not_listed_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="no such"):
        faults.point("nowhere")
