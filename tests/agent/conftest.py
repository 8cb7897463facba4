# SPDX-License-Identifier: Apache-2.0
"""A host without a real kernel: a fake root, a thread that plays the kernel, and a helper."""

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from vgpumgr_agent.helper.brokers import Brokers
from vgpumgr_agent.helper.client import HelperClient
from vgpumgr_agent.helper.operations import Operations
from vgpumgr_agent.helper.processes import Processes
from vgpumgr_agent.helper.records import Records
from vgpumgr_agent.helper.server import Server

from tests.agent import fakebroker, fakeexecutor
from tests.agent.fakeapi import FakeApi, claim, group
from tests.agent.fakekernel import FakeControl, FakeKernel, FakeSysfs
from tests.agent.host import OTHER_VM, VM, A, B, C, Host
from vgpumgr.control.sysfs import HostPaths


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[FakeKernel]:
    fake = FakeKernel(tmp_path)
    yield fake
    fake.close()


@pytest.fixture
def records(tmp_path: Path) -> Records:
    found = Records(tmp_path / "records")
    found.make_directory()
    return found


@pytest.fixture
def executors(tmp_path: Path) -> Iterator[Processes]:
    """Executors the way a host without systemd runs them; the fixture ends all of them."""
    found = fakeexecutor.processes(tmp_path)
    yield found
    for each in found.all():
        found.stop(each.uuid)
    shutil.rmtree(fakeexecutor.directory(tmp_path), ignore_errors=True)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    """Brokers the way a host without systemd runs them; the fixture ends all of them."""
    found = fakebroker.brokers(tmp_path)
    yield found
    fakebroker.clean(tmp_path, found)


@pytest.fixture
def operations(kernel: FakeKernel, records: Records, executors: Processes, brokers: Brokers) -> Operations:
    return Operations(
        sysfs=FakeSysfs(HostPaths(kernel.root)),
        open_control=lambda: FakeControl(kernel.root),
        records=records,
        executors=executors,
        brokers=brokers,
    )


@pytest.fixture
def helper(tmp_path: Path, operations: Operations) -> Iterator[HelperClient]:
    """A helper in this process, over its socket."""
    uid = os.getuid()
    server = Server(tmp_path / "helper.sock", operations.run, uids={uid}, root_uid=uid, deadline_s=60)
    threading.Thread(target=server.serve, daemon=True).start()
    yield HelperClient(tmp_path / "helper.sock")
    server.close()


@pytest.fixture
def api() -> FakeApi:
    return FakeApi(patience_s=0)


@pytest.fixture
def host(
    tmp_path: Path, kernel: FakeKernel, helper: HelperClient, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Host]:
    """The hook does not wait for the API's first answer, except in the tests that are about that wait."""
    monkeypatch.setattr("vgpumgr_agent.hook.admission._FIRST_ANSWER_S", 0)
    host = Host(tmp_path, kernel, helper, api)
    yield host
    host.stop()


@pytest.fixture
def claimed(host: Host, api: FakeApi) -> Host:
    """The host knows four claims: two of one VM, one of another VM, and one that is not bound."""
    api.set(
        groups=[group("blue", 600), group("green", 300)],
        slices=[
            claim(A, vm=VM),
            claim(B, vm=VM),
            claim(C, vm=OTHER_VM, tenant="green"),
        ],
    )
    host.learn()
    return host


@pytest.fixture
def lending(kernel: FakeKernel) -> FakeKernel:
    """A host whose settings enable executors."""
    fakeexecutor.install(kernel.root)
    return kernel


@pytest.fixture
def computing(lending: FakeKernel, host: Host) -> Host:
    """An agent with a claim for a VM, on the GPU whose engine lends."""
    host.api.set(groups=[group("blue", 600)], slices=[claim(A, vm=VM), claim(B, vm=VM)])
    host.learn()
    return host
