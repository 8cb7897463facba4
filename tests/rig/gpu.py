# SPDX-License-Identifier: Apache-2.0
"""The lab host's accelerator: loads the module, binds the function, makes tenants and slices, applies load.

`the_gpu()` owns module and binding: it undoes everything it did. A `Gpu` owns the slices and tenants made through it;
`clear` removes them.
"""

import subprocess
import time
import uuid as uuids
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

from tests.rig.client import Client, Outcome, slice_option
from tests.rig.kernel import PATIENCE
from tests.rig.removal import remove
from tests.rig.window import Snapshot, Window
from vgpumgr.control.model import Slice, Tenant
from vgpumgr.control.netlink import Control
from vgpumgr.control.sysfs import Sysfs
from vgpumgr.entitlement import Backlogged, entitled
from vgpumgr.errors import BusyError

ADDRESS = "0000:00:10.0"
SECOND = "0000:00:00.0"  # the soft engine runs on any function, and no driver uses the host bridge
LASTING_S = 86_400
Options = Mapping[str, object]
Load = dict[str, Options]


class Gpu:
    """One accelerator under test. Not for use by several threads."""

    def __init__(self, control: Control, sysfs: Sysfs, address: str = ADDRESS) -> None:
        self.control = control
        self.sysfs = sysfs
        self.address = address
        self.chunk_default_us = control.gpu(address).max_chunk_us
        self.reserve_limit_permille = control.gpu(address).reserve_limit_permille

    @classmethod
    def attached(cls) -> "Gpu":
        """The accelerator in its present state; the module is loaded already."""
        return cls(Control(), Sysfs())

    # ---- setting up

    def tenant(self, name: str, **settings: Any) -> None:
        """Configure a tenant, or change the given settings (weight, timeslice_us, ...: the names of
        `Control.set_tenant`)."""
        self.control.set_tenant(self.address, name, **settings)

    def share_by(self, policy: str, *, places: int | None = None) -> None:
        """Change the policy while no tenant is configured."""
        self.control.set_gpu(self.address, policy=policy, places=places)

    def slice(self, tenant: str | None = None, *, memory: str = "mem16m", weight: int = 1) -> str:
        """Create a slice, for a tenant unless it is None; return its UUID."""
        uuid = str(uuids.uuid4())
        self.sysfs.create(self.address, memory, uuid)
        if tenant is not None:
            self.control.set_slice(uuid, tenant=tenant, weight=weight)
        return uuid

    def set_max_chunk_us(self, chunk_us: int) -> None:
        self.sysfs.write_gpu(self.address, "max_chunk_us", chunk_us)

    def clear(self) -> None:
        """Remove all slices and tenants, and restore settings. AssertionError if a process had to be killed for
        that."""
        for device in self.control.slices(self.address):
            remove(self.sysfs, device.uuid)
        for tenant in self.control.tenants(self.address):
            self.control.delete_tenant(self.address, tenant.name)
        self.control.set_gpu(
            self.address,
            policy="best_effort",
            reserve_limit_permille=self.reserve_limit_permille,
            max_chunk_us=self.chunk_default_us,
        )
        self.sysfs.write_gpu(self.address, "attach", "any")

    @contextmanager
    def leasing(self) -> Iterator["Gpu"]:
        """Use the engine `lease` while the body runs."""
        self.sysfs.write_gpu(self.address, "engine", "lease")
        try:
            yield self
        finally:
            self.clear()
            poll(self._takes_soft)

    def _takes_soft(self) -> bool:
        """Switch to `soft`; refused until the engine's thread has dropped the leases it had granted."""
        with suppress(BusyError):
            self.sysfs.write_gpu(self.address, "engine", "soft")
            return True
        return False

    @contextmanager
    def unbound(self) -> Iterator[None]:
        """Unbind the function while the body runs."""
        self.sysfs.unbind(self.address)
        try:
            yield
        finally:
            self.sysfs.bind(self.address)

    @contextmanager
    def unloaded(self) -> Iterator[None]:
        """Unload the module while the body runs, which must leave it unloaded; afterwards it is loaded and bound."""
        self.sysfs.unbind(self.address)
        self.control.close()
        unload_module()
        try:
            yield
        finally:
            load_module()
            self.sysfs.bind(self.address)
            self.control.__init__()  # type: ignore[misc]  # the family has a new number

    # ---- looking

    def stats(self, tenant: str) -> Tenant:
        return self.control.tenant(self.address, tenant)

    def slice_stats(self, uuid: str) -> Slice:
        return self.control.slice(uuid)

    def slices(self) -> dict[str, Slice]:
        return {device.uuid: device for device in self.control.slices(self.address)}

    def tenants(self) -> dict[str, Tenant]:
        return {tenant.name: tenant for tenant in self.control.tenants(self.address) if tenant.configured}

    def entitled(self) -> dict[str, float]:
        """The share of the engine due to each tenant while the tenants with queued items always have some (R10)."""
        tenants = self.tenants()
        working = {device.tenant for device in self.slices().values() if device.queued}
        groups = {
            name: Backlogged(
                weight=tenant.weight,
                cap=Fraction(tenant.cap_us, tenant.cap_period_us) if tenant.cap_us else None,
            )
            for name, tenant in tenants.items()
            if name in working
        }
        due = entitled(groups, 1)
        return {name: float(due.get(name, 0)) for name in tenants}

    def snapshot(self) -> Snapshot:
        return Snapshot(taken_s=time.monotonic(), tenants=self.tenants(), slices=self.slices())

    def window(self) -> Window:
        """Open a measurement that begins now."""
        return Window(take=self.snapshot, entitle=self.entitled)

    def measured_over(self, seconds: float) -> Window:
        window = self.window()
        time.sleep(seconds)
        return window.close()

    def wait_queued(self, uuid: str, *, least: int = 8, timeout_s: float = 60) -> None:
        """Wait until a slice has `least` items queued; raises TimeoutError."""
        deadline = time.monotonic() + timeout_s * PATIENCE
        while self.slice_stats(uuid).queued < least:
            if time.monotonic() > deadline:
                raise TimeoutError(f"slice {uuid} has {self.slice_stats(uuid)}")
            time.sleep(0.02)

    # ---- load

    @contextmanager
    def loaded(self, load: Load, *, seconds: float | None = None) -> Iterator[list[Outcome]]:
        """Drive slices from one client process while the body runs, which begins once all are saturated.

        The load ends with the body or, given `seconds`, after that time. The list has the client's outcome afterwards;
        raises when the client failed.
        """
        arguments = ["--json", "--seconds", f"{LASTING_S if seconds is None else seconds:g}"]
        for uuid, options in load.items():
            arguments += ["--slice", slice_option(uuid, **options)]
        client = Client(arguments)
        outcomes: list[Outcome] = []
        try:
            for uuid, options in load.items():
                if options.keys() & {"nap_us", "gap_us"}:  # its queue is mostly empty
                    poll(lambda name=uuid: self.slice_stats(name).items > 0, timeout_s=60)  # type: ignore[misc]
                else:
                    self.wait_queued(uuid)
            yield outcomes
        except BaseException:
            client.kill()
            raise
        if seconds is None:
            client.end()
        outcomes.append(client.wait())


def poll(condition: Callable[[], bool], *, timeout_s: float = 20) -> None:
    """Wait until a condition holds; raises TimeoutError."""
    deadline = time.monotonic() + timeout_s * PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


def load_module() -> None:
    """Load vgpumgr.ko if it is not loaded."""
    if not Path("/sys/module/vgpumgr").exists():
        subprocess.run(["lab-insmod"], check=True, timeout=60 * PATIENCE)


def unload_module(name: str = "vgpumgr") -> None:
    """Raises CalledProcessError while the module is in use."""
    subprocess.run(["rmmod", name], check=True, timeout=60 * PATIENCE, capture_output=True, text=True)


@contextmanager
def the_gpu(*, keep: bool = False) -> Iterator[Gpu]:
    """The lab host's accelerator, ready for use; with `keep` it stays so."""
    load_module()
    sysfs = Sysfs()
    if sysfs.driver(ADDRESS) != "vgpumgr":
        sysfs.bind(ADDRESS)
    with Control() as control:
        gpu = Gpu(control, sysfs)
        yield gpu
        if keep:
            return
        gpu.clear()
    sysfs.unbind(ADDRESS)
    unload_module()
