# SPDX-License-Identifier: Apache-2.0
"""The agent in this process, with a real helper, a played kernel and a played API: a host during a VM's life."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from vgpumgr_agent.backends.kmod import KmodBackend
from vgpumgr_agent.config import Config
from vgpumgr_agent.documents import Clock, Stamp
from vgpumgr_agent.helper.client import HelperClient
from vgpumgr_agent.meter_store import Meter
from vgpumgr_agent.refused import Refused
from vgpumgr_agent.service import Agent
from vgpumgr_agent.store import Store

from tests.agent.fakeapi import FakeApi
from tests.agent.fakekernel import FakeKernel, FakeSysfs
from vgpumgr.control.sysfs import HostPaths

if TYPE_CHECKING:
    from vgpumgr_agent.backends import ObservedGpu

A, B, C = (UUID(int=number) for number in (1, 2, 3))
VM, OTHER_VM = UUID(int=100), UUID(int=101)


class FakeClock(Clock):
    """Both clocks; the test sets them."""

    def __init__(self) -> None:
        self.stamp = Stamp(wall_s=1e9, boot_id="one", boottime_s=100.0)

    def now(self) -> Stamp:
        return self.stamp

    def go(self, seconds: float) -> None:
        self.stamp = self.stamp.model_copy(
            update={"wall_s": self.stamp.wall_s + seconds, "boottime_s": self.stamp.boottime_s + seconds}
        )


class Host:
    """An agent whose threads do not run: a test runs their steps. `restart` starts the agent with its present state.

    `others`: GPUs that our module does not share; `settings`: the table `gpus`, used from the next start on.
    """

    def __init__(self, directory: Path, kernel: FakeKernel, helper: HelperClient, api: FakeApi) -> None:
        self.directory = directory
        self.kernel = kernel
        self.helper = helper
        self.api = api
        self.clock = FakeClock()
        self.others: list[ObservedGpu] = []
        self.settings: dict[str, Any] = {}
        self.token_file = directory / "token"
        self.token_file.write_text("one-time\n")
        self.store: Store | None = None
        self.meter: Meter | None = None
        self.restart()

    def restart(self) -> None:
        self.stop()
        self.store = Store(self.directory / "state", self.clock)
        self.meter = Meter(self.directory / "state/meter.db")
        self.agent = Agent(
            config=Config(api_url="http://unused", enroll_token_file=self.token_file, gpus=self.settings),
            store=self.store,
            meter=self.meter,
            backend=KmodBackend(self.helper),
            sysfs=FakeSysfs(HostPaths(self.kernel.root)),
            api=self.api,
            others=lambda: self.others,
        )

    def stop(self) -> None:
        """End the agent; its state stays on disk."""
        if self.store is not None and self.meter is not None:
            self.meter.close()
            self.store.close()
        self.store = self.meter = None

    def learn(self) -> None:
        """Fetch the desired state; if it is new, apply it."""
        self.agent.control_plane._doubtful_pause_s = 0
        self.agent.control_plane._step()
        self.reconcile()

    def reconcile(self) -> None:
        self.agent.reconcile()
        report = self.agent.reporter.waiting
        if report is not None:
            self.api.reports.append(report)

    def start(self, *devices: UUID, vm: UUID = VM, metadata: tuple[UUID, ...] = ()) -> None:
        self.agent.hooks.prepare(vm_uuid=vm, devices=devices, metadata=metadata, domain="test")

    def refused(self, *devices: UUID, vm: UUID = VM, metadata: tuple[UUID, ...] = ()) -> str:
        with pytest.raises(Refused) as error:
            self.start(*devices, vm=vm, metadata=metadata)
        assert "\n" not in error.value.reason
        return error.value.code

    def release(self, *devices: UUID, vm: UUID = VM) -> None:
        self.agent.hooks.release(vm_uuid=vm, devices=devices, metadata=(), reason="shutdown")

    def slices(self) -> set[UUID]:
        return {UUID(uuid) for uuid in self.kernel.slices}


def later(seconds: float, do: Callable[[], None]) -> None:
    threading.Timer(seconds, do).start()
