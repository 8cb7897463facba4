# SPDX-License-Identifier: Apache-2.0
"""Adds up recorded runs and compares the sums with the kernel's counters, to the nanosecond.

Each recorded end of a run carries the two counters of its group. From one end to the next, the number of runs must grow
by one. The run time must grow by the length of that run, plus the time charged between runs: holds, and parts of time
in which the engine was parked. This detects time that the kernel counted but did not trace, and runs that were not
recorded.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from vgpumgr.observer.trace import EndedRun, Happened, Hold, Parked


@dataclass(kw_only=True)
class Account:
    """The engine time of one tenant's group on one GPU in the window, without the run that opens the window.

    `counted_runs`, `counted_ns`: growth of the kernel's counters. `faults`: where counters and records disagree.
    """

    gpu: str
    tenant: str
    runs: int = 0
    run_ns: int = 0
    hold_ns: int = 0
    parked_ns: int = 0
    longest_ns: int = 0
    longest_over_ns: int = 0
    counted_runs: int = 0
    counted_ns: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def total_ns(self) -> int:
        """The charged engine time: runs, holds, and parts of parked time."""
        return self.run_ns + self.hold_ns + self.parked_ns

    @property
    def agrees(self) -> bool:
        """Whether recorded runs and the kernel's counters agree."""
        return not self.faults and (self.runs, self.total_ns) == (self.counted_runs, self.counted_ns)


@dataclass
class _Known:
    account: Account
    run: int
    run_ns: int
    hold_ns: int = 0


def accounts(happened: Iterable[Happened]) -> list[Account]:
    """Return an account for each group, by GPU and tenant. A group's window begins at its first recorded end."""
    known: dict[tuple[str, str], _Known] = {}
    for what in happened:
        key = (what.gpu, what.tenant)
        group = known.get(key)
        if isinstance(what, Hold):
            if group:
                group.hold_ns += what.length_ns
        elif isinstance(what, Parked):
            if group:
                _add_parked(group, what)
        elif group is None:
            known[key] = _Known(Account(gpu=what.gpu, tenant=what.tenant), what.run, what.run_ns)
        else:
            _add(group, what)
    return [known[key].account for key in sorted(known)]


def _add_parked(group: _Known, parked: Parked) -> None:
    account = group.account
    counted_ns = parked.run_ns - group.run_ns
    if counted_ns != parked.length_ns + group.hold_ns:
        account.faults.append(
            f"after run {group.run}: {parked.length_ns} ns parked and {group.hold_ns} ns of holds were recorded, "
            f"{counted_ns} ns counted"
        )
    account.parked_ns += parked.length_ns
    account.hold_ns += group.hold_ns
    account.counted_ns += counted_ns
    group.run_ns, group.hold_ns = parked.run_ns, 0


def _add(group: _Known, ended: EndedRun) -> None:
    account = group.account
    if ended.run <= group.run:  # the tenant was deleted and configured anew
        account.faults.append(f"run {ended.run} came after run {group.run}")
        group.run, group.run_ns, group.hold_ns = ended.run, ended.run_ns, 0
        return
    if missing := ended.run - group.run - 1:
        account.faults.append(f"{missing} runs before run {ended.run} were not recorded")
    elif ended.run_ns - group.run_ns != ended.length_ns + group.hold_ns:
        account.faults.append(
            f"run {ended.run}: {ended.length_ns} ns and {group.hold_ns} ns of holds were recorded, "
            f"{ended.run_ns - group.run_ns} ns counted"
        )
    account.runs += 1
    account.run_ns += ended.length_ns
    account.hold_ns += group.hold_ns
    account.longest_ns = max(account.longest_ns, ended.length_ns)
    account.longest_over_ns = max(account.longest_over_ns, ended.length_ns - ended.timeslice_ns)
    account.counted_runs += ended.run - group.run
    account.counted_ns += ended.run_ns - group.run_ns
    group.run, group.run_ns, group.hold_ns = ended.run, ended.run_ns, 0


def shares(found: Iterable[Account]) -> dict[tuple[str, str], float]:
    """Return each group's part of its GPU's used time, by GPU and tenant."""
    groups = list(found)
    used: dict[str, int] = {}
    for account in groups:
        used[account.gpu] = used.get(account.gpu, 0) + account.total_ns
    return {
        (account.gpu, account.tenant): account.total_ns / used[account.gpu] if used[account.gpu] else 0.0
        for account in groups
    }
