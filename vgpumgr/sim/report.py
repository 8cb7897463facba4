# SPDX-License-Identifier: Apache-2.0
"""The report of a simulation: figures per tenant over all seeds, and targets met or missed, as tables and as JSON.

The JSON's keys are stable and described in docs/simulator.md; new keys may be added.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vgpumgr.sim import schema
from vgpumgr.sim.due import Due
from vgpumgr.sim.figures import Figure, Stays, jain, of_group, over_copies, over_seeds
from vgpumgr.sim.played import Played
from vgpumgr.sim.quantity import MILLION, format_percent, format_time
from vgpumgr.sim.scenario import tenant_names

FORMAT = "vgpumgr.simulation/1"
UNFINISHED_MOST = 0.01
"""The greatest part of requests that may be unfinished at the end. With more, the time of requests is not known."""


@dataclass(frozen=True)
class TenantReport:
    """`copies`: the number of groups that the figures stand for. `exact`: the entitlement is not an estimate.

    `undone`: numbers of unfinished and of all requests, of the copy and seed with the largest unfinished part. It is
    None unless so many requests are unfinished that the time of requests is not known (`UNFINISHED_MOST`).
    """

    name: str
    copies: int
    exact: bool
    figures: Mapping[str, Figure]
    undone: tuple[int, int] | None = None


@dataclass(frozen=True)
class Verdict:
    """One target of one tenant, with the worst seed's value. An unknown value is None, and `reason` says why."""

    tenant: str
    target: str
    bound: float
    value: float | None
    met: bool
    reason: str | None = None

    def __str__(self) -> str:
        shown = "unknown" if self.value is None else shown_value(self.target, self.value)
        sign = ">=" if self.target == "share" else "<="
        because = f": {self.reason}" if self.reason else ""
        return f"{self.tenant}: {self.target} {shown}, wanted {sign} {shown_value(self.target, self.bound)}{because}"

    @property
    def excess(self) -> float:
        """How far the target is missed: 1 is twice the bound, or half of a share; 0 if it is met."""
        if self.met:
            return 0.0
        if self.value is None:
            return math.inf
        worse, better = (self.bound, self.value) if self.target == "share" else (abs(self.value), self.bound)
        return worse / better - 1 if better > 0 else math.inf


@dataclass(frozen=True)
class Report:
    """`engine`: figures of the engine. `hashes`: the schedule hash of each seed."""

    scenario: schema.Scenario
    seeds: tuple[int, ...]
    hashes: tuple[str, ...]
    engine: Mapping[str, Figure]
    tenants: Sequence[TenantReport]
    verdicts: Sequence[Verdict]

    @property
    def met(self) -> bool:
        """Whether every target is met in every seed."""
        return all(verdict.met for verdict in self.verdicts)


def report(scenario: schema.Scenario, played: Sequence[Played]) -> Report:
    """Return the report of a scenario's seeds."""
    of_seeds = [_of_seed(scenario, one) for one in played]
    tenants = []
    for tenant in scenario.tenants:
        names = tenant_names(tenant)
        keys = [key for key in of_seeds[0].groups[names[0]] if _everywhere(key, names, of_seeds)]
        figures = {
            key: over_seeds([over_copies(key, [seed.groups[name][key] for name in names]) for seed in of_seeds])
            for key in keys
        }
        undone = _undone(tenant, [seed.groups[name] for seed in of_seeds for name in names])
        tenants.append(TenantReport(tenant.name, tenant.count, of_seeds[0].exact, figures, undone))
    engine_keys = [key for key in of_seeds[0].engine if all(key in seed.engine for seed in of_seeds)]
    return Report(
        scenario=scenario,
        seeds=tuple(one.seed for one in played),
        hashes=tuple(one.schedule_hash for one in played),
        engine={key: over_seeds([seed.engine[key] for seed in of_seeds]) for key in engine_keys},
        tenants=tenants,
        verdicts=list(_verdicts(scenario, tenants)),
    )


@dataclass(frozen=True)
class _Seed:
    exact: bool
    groups: Mapping[str, Mapping[str, float]]
    engine: Mapping[str, float]


def _of_seed(scenario: schema.Scenario, played: Played) -> _Seed:
    owed = Due(scenario, {group.name: group.asked for group in played.groups if group.asked is not None})
    stays = Stays(played.runs)
    groups = {group.name: of_group(played, group, owed, stays) for group in played.groups}
    wall_ns = played.wall_ns
    engine = {
        "idle_share": played.idle_ns / wall_ns,
        "overhead_share": sum(group.overhead_ns for group in played.groups) / wall_ns,
        "switches_per_s": played.switches * 1e9 / wall_ns,
        "decisions_per_s": played.decisions * 1e9 / wall_ns,
    }
    parts = {
        name: figures["obtained_share"] / figures["entitled_share"]
        for name, figures in groups.items()
        if "share_error" in figures
    }
    if len(parts) > 1 and (index := jain(parts)) is not None:
        engine["jain_index"] = index
    return _Seed(owed.exact, groups, engine)


def _everywhere(key: str, names: Sequence[str], of_seeds: Sequence[_Seed]) -> bool:
    return all(key in seed.groups[name] for seed in of_seeds for name in names)


def _undone(tenant: schema.Tenant, groups: Sequence[Mapping[str, float]]) -> tuple[int, int] | None:
    """Return `TenantReport.undone`. In a group, one unfinished request per slice may just be under way."""
    counts = [(group["unfinished"], group["requests"]) for group in groups if "unfinished" in group]
    late = [
        (missing, missing + done)
        for missing, done in counts
        if missing > max(UNFINISHED_MOST * done, len(tenant.slices))
    ]
    if not late:
        return None
    missing, asked = max(late, key=lambda one: one[0] / one[1])
    return round(missing), round(asked)


_TARGETS = {
    "mean": "latency_mean_ns",
    "p99": "latency_p99_ns",
    "slowdown_mean": "slowdown_mean",
    "slowdown_p99": "slowdown_p99",
    "share": "obtained_share",
    "share_error": "share_error",
    "longest_run": "longest_run_ns",
}


def _verdicts(scenario: schema.Scenario, tenants: Sequence[TenantReport]) -> Iterator[Verdict]:
    for target in scenario.targets:
        for part, tenant in zip(scenario.tenants, tenants, strict=True):
            if target.tenant not in ("*", part.name, *tenant_names(part)):
                continue
            for name, key in _TARGETS.items():
                given = getattr(target, name)
                if given is None or (target.tenant == "*" and key not in tenant.figures):
                    continue
                bound = given / MILLION if name in ("share", "share_error") else float(given)
                yield _verdict(tenant, name, key, bound)


def _verdict(tenant: TenantReport, name: str, key: str, bound: float) -> Verdict:
    figure = tenant.figures.get(key)
    if tenant.undone is not None and name in schema.OF_REQUESTS:
        reason = f"{tenant.undone[0]} of {tenant.undone[1]} requests were not done at the end"
        return Verdict(tenant.name, name, bound, None, met=False, reason=reason)
    if figure is None:
        return Verdict(tenant.name, name, bound, None, met=False, reason="a seed has no request that was done")
    if name == "share":
        value = min(figure.by_seed)
        return Verdict(tenant.name, name, bound, value, value >= bound)
    value = max(figure.by_seed, key=abs)
    return Verdict(tenant.name, name, bound, value, abs(value) <= bound)


def to_json(found: Report) -> dict[str, Any]:
    """Return the content that `--json` writes."""
    return {
        "format": FORMAT,
        "title": found.scenario.title,
        "engine_model": found.scenario.engine.model_dump(),
        "scheduler": found.scenario.scheduler.model_dump(),
        "duration_ns": found.scenario.duration,
        "warm_up_ns": found.scenario.warm_up,
        "seeds": list(found.seeds),
        "schedule_hashes": list(found.hashes),
        "engine": {key: _figure(figure) for key, figure in found.engine.items()},
        "tenants": [
            {
                "name": tenant.name,
                "copies": tenant.copies,
                "entitlement": "exact" if tenant.exact else "estimate",
                "figures": {key: _figure(figure) for key, figure in tenant.figures.items()},
            }
            for tenant in found.tenants
        ],
        "targets": [asdict(verdict) for verdict in found.verdicts],
        "met": found.met,
    }


def _figure(figure: Figure) -> dict[str, Any]:
    return {
        "mean": figure.mean,
        "interval_95": list(figure.interval) if figure.interval else None,
        "by_seed": list(figure.by_seed),
    }


SHARES = ("TENANT", "ENTITLED", "OBTAINED", "SHARE ERROR", "WORST LAG", "LONGEST RUN", "SWITCHES/S", "OVERHEAD")
LATENCIES = (
    "TENANT",
    "ASKED",
    "REQUESTS",
    "MEAN",
    "P50",
    "P99",
    "MAX",
    "MEAN ALONE",
    "P99 ALONE",
    "SLOWDOWN",
    "AT P99",
)


def share_rows(found: Report) -> list[tuple[str, ...]]:
    """Return a row of `SHARES` for each tenant."""
    return [
        (
            label(tenant),
            _cell(tenant, "entitled_share") + ("" if tenant.exact else "~"),
            _cell(tenant, "obtained_share", interval=True),
            _cell(tenant, "share_error") + ("~" if "share_error" in tenant.figures and not tenant.exact else ""),
            _cell(tenant, "worst_lag_ns"),
            _cell(tenant, "longest_run_ns"),
            _cell(tenant, "switches_per_s"),
            _cell(tenant, "overhead_share"),
        )
        for tenant in found.tenants
    ]


def latency_rows(found: Report) -> list[tuple[str, ...]]:
    """Return a row of `LATENCIES` for each tenant with requests."""
    keys = ("latency_mean_ns", "latency_p50_ns", "latency_p99_ns", "latency_max_ns")
    alone = ("exclusive_mean_ns", "exclusive_p99_ns")
    return [
        (
            label(tenant),
            _cell(tenant, "offered_share"),
            _requests(tenant),
            _cell(tenant, keys[0], interval=True),
            *(_cell(tenant, key) for key in (*keys[1:], *alone)),
            _cell(tenant, "slowdown_mean"),
            _cell(tenant, "slowdown_p99"),
        )
        for tenant in found.tenants
        if "requests" in tenant.figures
    ]


def label(tenant: TenantReport) -> str:
    """Return a tenant's name, and the number of its copies."""
    return tenant.name if tenant.copies == 1 else f"{tenant.name} x{tenant.copies}"


def _requests(tenant: TenantReport) -> str:
    """Return the means of finished and unfinished requests. A decimal distinguishes a mean below 1 from none."""
    done, left = tenant.figures["requests"].mean, tenant.figures["unfinished"].mean
    if not left:
        return f"{done:.0f}"
    return f"{done:.0f}+{left:.0f}" if left >= 10 or left == int(left) else f"{done:.0f}+{max(left, 0.1):.1f}"


def _cell(tenant: TenantReport, key: str, *, interval: bool = False) -> str:
    figure = tenant.figures.get(key)
    if figure is None:
        return "-"
    shown = shown_value(key, figure.mean)
    if interval and figure.interval is not None and (half := figure.interval[1] - figure.mean) > 1e-4 * figure.mean:
        shown += f" ±{shown_value(key, half)}"
    return shown


def shown_value(key: str, value: float) -> str:
    """Return a figure in a readable form, chosen by its key or its target's name."""
    key = _TARGETS.get(key, key)
    if key.endswith("_ns"):
        return format_time(value)
    if key.startswith("slowdown"):
        return f"{value:.3f}x"
    if key.endswith(("_share", "_error")):
        return format_percent(value)
    return f"{value:.4f}" if key == "jain_index" else f"{value:.0f}"
