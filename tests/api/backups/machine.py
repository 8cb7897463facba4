# SPDX-License-Identifier: Apache-2.0
"""A host with the real agent and helper over a played kernel, connected to a real API; a test runs the agent's
steps.
"""

import os
import threading
from pathlib import Path
from uuid import UUID

from vgpumgr_agent.api import HttpApi
from vgpumgr_agent.backends.kmod import KmodBackend
from vgpumgr_agent.config import Config
from vgpumgr_agent.helper.client import HelperClient
from vgpumgr_agent.helper.operations import Operations
from vgpumgr_agent.helper.records import Records
from vgpumgr_agent.helper.server import Server
from vgpumgr_agent.meter_store import Meter
from vgpumgr_agent.service import Agent
from vgpumgr_agent.store import Store

from tests.agent import fakebroker, fakeexecutor
from tests.agent.fakekernel import FakeControl, FakeKernel, FakeSysfs
from tests.agent.host import FakeClock
from vgpumgr.control.sysfs import HostPaths


class Machine:
    """`kernel`: the played kernel of this host."""

    def __init__(self, directory: Path, name: str, enroll_token: str) -> None:
        directory.mkdir()
        self.name = name
        self.kernel = FakeKernel(directory)
        records = Records(directory / "records")
        records.make_directory()
        sysfs = FakeSysfs(HostPaths(self.kernel.root))
        operations = Operations(
            sysfs=sysfs,
            open_control=lambda: FakeControl(self.kernel.root),
            records=records,
            executors=fakeexecutor.processes(self.kernel.root),
            brokers=fakebroker.brokers(self.kernel.root),
        )
        uid = os.getuid()
        self._server = Server(directory / "helper.sock", operations.run, uids={uid}, root_uid=uid, deadline_s=60)
        threading.Thread(target=self._server.serve, daemon=True).start()
        self._helper = HelperClient(directory / "helper.sock")
        self._directory = directory
        self._clock = FakeClock()
        self._token_file = directory / "token"
        self.give_token(enroll_token)
        self._store: Store | None = None
        self._meter: Meter | None = None

    def give_token(self, enroll_token: str) -> None:
        """Writes the token file like an operator does before the host enrols."""
        self._token_file.write_text(f"{enroll_token}\n")

    def connect(self, url: str) -> None:
        """Starts the agent, or restarts it, with its state from disk."""
        self._stop_agent()
        self._store = Store(self._directory / "state", self._clock)
        self._meter = Meter(self._directory / "state/meter.db")
        self._api = HttpApi(url)
        self.agent = Agent(
            config=Config(api_url=url, enroll_token_file=self._token_file),
            store=self._store,
            meter=self._meter,
            backend=KmodBackend(self._helper),
            sysfs=FakeSysfs(HostPaths(self.kernel.root)),
            api=self._api,
        )
        self.agent.control_plane._doubtful_pause_s = 0

    def step(self) -> None:
        """Fetches the desired state, applies it and reports."""
        assert self._store is not None
        self.agent.control_plane._step()
        self.report()

    def report(self) -> None:
        """Applies the known desired state and reports."""
        assert self._store is not None
        self.agent.reconcile()
        report, credentials = self.agent.reporter.waiting, self._store.credentials
        assert report is not None
        assert credentials is not None
        assert self._api.report(credentials.host_id, report).accepted

    def wait(self, seconds: float) -> None:
        """Advances the host's clock."""
        self._clock.go(seconds)

    def start_vm(self, slice_id: str, vm_uuid: UUID) -> None:
        """Starts a VM like libvirt's hook and QEMU do."""
        self.agent.hooks.prepare(vm_uuid=vm_uuid, devices=(UUID(slice_id),), metadata=(), domain="test")
        self.kernel.open(slice_id)

    def stop_vm(self, slice_id: str, vm_uuid: UUID) -> None:
        self.kernel.close_slice(slice_id)
        self.agent.hooks.release(vm_uuid=vm_uuid, devices=(UUID(slice_id),), metadata=(), reason="shutdown")

    @property
    def devices(self) -> set[str]:
        return set(self.kernel.slices)

    @property
    def running(self) -> set[str]:
        return {uuid for uuid, one in self.kernel.slices.items() if one.open}

    def removals(self) -> int:
        """Returns how many removals of devices were attempted."""
        return sum(entry[:2] == ("write", "remove") for entry in self.kernel.log)

    def shares(self) -> dict[str, int]:
        """Returns the sum of the weights of groups with running slices, by GPU."""
        found: dict[str, int] = {}
        for (gpu, _), group in self.kernel.tenants.items():
            if group.configured:
                found[gpu] = found.get(gpu, 0) + group.weight
        return found

    def _stop_agent(self) -> None:
        if self._store is not None and self._meter is not None:
            self._meter.close()
            self._store.close()

    def close(self) -> None:
        self._stop_agent()
        self._server.close()
        self.kernel.close()
