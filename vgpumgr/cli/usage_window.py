# SPDX-License-Identifier: Apache-2.0
"""Each tenant's entitled and obtained share of a GPU between two reports of its host. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from vgpumgr.entitlement import Backlogged, entitled

if TYPE_CHECKING:
    from datetime import datetime

    from vgpumgr.wire.resources import Usage

GpuKey = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A tenant's group on one GPU. Shares are fractions of the time between two reports; None without two.

    `entitled_share` is also None for a group that ran nothing and wanted nothing: other groups got its part.
    """

    host: str
    gpu: str
    tenant: str
    weight: int
    timeslice_us: int
    longest_run_ns: int
    entitled_share: Fraction | None = None
    obtained_share: Fraction | None = None
    runs_per_s: Fraction | None = None
    switches_per_s: Fraction | None = None
    window_ns: int = 0


@dataclass
class Samples:
    """The two newest reports of each GPU that this program has seen."""

    before: dict[GpuKey, list["Usage"]] = field(default_factory=dict)
    after: dict[GpuKey, list["Usage"]] = field(default_factory=dict)

    def add(self, usage: "Iterable[Usage]") -> None:
        """Add the API's present answer. A GPU whose host has not reported since keeps its window."""
        now: dict[GpuKey, list[Usage]] = {}
        for entry in usage:
            now.setdefault((entry.host, entry.gpu), []).append(entry)
        for key, entries in now.items():
            last = self.after.get(key)
            if last is not None and _reported(entries) == _reported(last):
                self.after[key] = entries  # weights may have changed, and tenants may be new
                continue
            if last is not None:
                self.before[key] = last
            self.after[key] = entries
        for gone in self.after.keys() - now.keys():
            del self.after[gone]
            self.before.pop(gone, None)

    def complete(self, gpus: Collection[GpuKey]) -> bool:
        """Whether there are two reports of each of these GPUs."""
        return self.before.keys() >= {*gpus}

    def reported_at(self, host: str, gpu: str) -> "datetime":
        """Return the time of a GPU's newest report, which ends its window."""
        return _reported(self.after[host, gpu])

    def rows(self) -> list[Row]:
        """Return all groups, ordered by host, GPU and tenant."""
        found = [row for key, entries in self.after.items() for row in rows(self.before.get(key, ()), entries)]
        return sorted(found, key=lambda row: (row.host, row.gpu, row.tenant))


def rows(before: "Sequence[Usage]", after: "Sequence[Usage]") -> list[Row]:
    """Return the rows of one GPU's groups from two reports of its host.

    A group is entitled to a share if it ran, or its cap held it back, between the reports. A group whose
    counters restarted has no figures. If the GPU's counters restarted, none of its groups has figures.
    """
    earlier = {entry.tenant: entry for entry in before}
    window_ns = _window_ns(earlier, after)
    pairs = {
        entry.tenant: (earlier[entry.tenant], entry)
        for entry in after
        if window_ns and entry.tenant in earlier and _grew(earlier[entry.tenant], entry)
    }
    active = {
        tenant: Backlogged(weight=last.weight, cap=_cap(last))
        for tenant, (first, last) in pairs.items()
        if last.weight > 0 and (last.run_ns > first.run_ns or last.throttled_ns > first.throttled_ns)
    }
    shares = entitled(active, 1) if active else {}
    return [_row(entry, pairs.get(entry.tenant), window_ns, shares.get(entry.tenant)) for entry in after]


def _row(entry: "Usage", pair: "tuple[Usage, Usage] | None", window_ns: int, share: Fraction | None) -> Row:
    described = Row(
        host=entry.host,
        gpu=entry.gpu,
        tenant=entry.tenant,
        weight=entry.weight,
        timeslice_us=entry.timeslice_us,
        longest_run_ns=entry.longest_run_ns,
    )
    if pair is None:
        return described
    first, last = pair
    per_s = Fraction(1_000_000_000, window_ns)
    return replace(
        described,
        entitled_share=share,
        obtained_share=Fraction(last.run_ns - first.run_ns, window_ns),
        runs_per_s=(last.runs - first.runs) * per_s,
        switches_per_s=(last.switches - first.switches) * per_s,
        window_ns=window_ns,
    )


def _window_ns(earlier: "Mapping[str, Usage]", after: "Sequence[Usage]") -> int:
    """Return the time between the reports by the GPU's clock, 0 if the clock went back."""
    spans = [entry.wall_ns - earlier[entry.tenant].wall_ns for entry in after if entry.tenant in earlier]
    return max(spans[0], 0) if spans else 0


def _grew(first: "Usage", last: "Usage") -> bool:
    return last.run_ns >= first.run_ns and last.runs >= first.runs and last.switches >= first.switches


def _cap(entry: "Usage") -> Fraction | None:
    return Fraction(entry.cap_us, entry.cap_period_us) if entry.cap_us and entry.cap_period_us else None


def _reported(entries: "Sequence[Usage]") -> "datetime":
    return max(entry.reported_at for entry in entries)
