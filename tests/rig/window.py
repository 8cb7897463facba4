# SPDX-License-Identifier: Apache-2.0
"""What happened on an accelerator between two moments, according to the kernel's counters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from vgpumgr.control.model import Slice, Tenant


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Counters read one after the other; tenants by name, slices by UUID."""

    taken_s: float
    tenants: Mapping[str, Tenant]
    slices: Mapping[str, Slice]

    def items(self) -> dict[str, int]:
        """Items answered, by tenant."""
        total = dict.fromkeys(self.tenants, 0)
        for device in self.slices.values():
            if device.tenant in total:
                total[device.tenant] += device.items
        return total


@dataclass
class Window:
    """Opened when made; `close` ends it. Tenants that came or went meanwhile are left out."""

    take: Callable[[], Snapshot]
    entitle: Callable[[], Mapping[str, float]]
    first: Snapshot = field(init=False)
    last: Snapshot = field(init=False)
    entitled: Mapping[str, float] = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.last = self.take()
        self.entitled = {}

    def close(self) -> "Window":
        self.last = self.take()
        self.entitled = self.entitle()
        return self

    @property
    def after(self) -> dict[str, Tenant]:
        return {name: tenant for name, tenant in self.last.tenants.items() if name in self.first.tenants}

    @property
    def seconds(self) -> float:
        return self.last.taken_s - self.first.taken_s

    @property
    def run_ns(self) -> dict[str, int]:
        return {name: tenant.run_ns - self.first.tenants[name].run_ns for name, tenant in self.after.items()}

    @property
    def share(self) -> dict[str, float]:
        """The shares of the engine time used."""
        total = sum(self.run_ns.values())
        return {name: run_ns / total if total else 0.0 for name, run_ns in self.run_ns.items()}

    @property
    def share_of_wall(self) -> dict[str, float]:
        """The shares of all time, including idle time."""
        return {name: run_ns / 1e9 / self.seconds for name, run_ns in self.run_ns.items()}

    @property
    def slice_share(self) -> dict[str, float]:
        """The shares of the engine time used, by slice."""
        total = sum(self.run_ns.values())
        return {
            uuid: (device.run_ns - self.first.slices[uuid].run_ns) / total
            for uuid, device in self.last.slices.items()
            if uuid in self.first.slices
        }

    @property
    def items_per_s(self) -> dict[str, float]:
        before, after = self.first.items(), self.last.items()
        return {name: (after[name] - before[name]) / self.seconds for name in self.after}

    @property
    def switches_per_s(self) -> dict[str, float]:
        return {
            name: (tenant.switches - self.first.tenants[name].switches) / self.seconds
            for name, tenant in self.after.items()
        }
