# SPDX-License-Identifier: Apache-2.0
"""What a simulation showed: figures per tenant over all seeds, targets met or missed, as tables and as JSON.

The JSON's keys are stable and described in docs/simulator.md; what is new is added.
"""

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
"""A p99 is only known if at most this part of the requests was not done at the end."""


@dataclass(frozen=True)
class TenantReport:
    """`copies`: how many groups the figures stand for. `slices`: theirs. `exact`: its entitlement is no estimate."""

    name: str
    copies: int
    slices: int
    exact: bool
    figures: Mapping[str, Figure]


@dataclass(frozen=True)
class Verdict:
    """One target of one tenant, with the worst seed's value; None if it has no such figure."""

    tenant: str
    target: str
    bound: float
    value: float | None
    met: bool

    def __str__(self) -> str:
        shown = "unknown" if self.value is None else shown_value(self.target, self.value)
        sign = ">=" if self.target == "share" else "<="
        return f"{self.tenant}: {self.target} {shown}, wanted {sign} {shown_value(self.target, self.bound)}"


@dataclass(frozen=True)
class Report:
    """`engine`: figures of the engine. `hashes`: each seed's schedule."""

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
        slices = tenant.count * len(tenant.slices)
        tenants.append(TenantReport(tenant.name, tenant.count, slices, of_seeds[0].exact, figures))
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
    if figure is None:
        return Verdict(tenant.name, name, bound, None, met=False)
    if name == "share":
        value = min(figure.by_seed)
        return Verdict(tenant.name, name, bound, value, value >= bound)
    value = max(figure.by_seed, key=abs)
    known = "p99" not in name or _finished(tenant)
    return Verdict(tenant.name, name, bound, value, known and abs(value) <= bound)


def _finished(tenant: TenantReport) -> bool:
    done, left = tenant.figures["requests"], tenant.figures["unfinished"]
    # Each slice may have one under way.
    return all(
        missing <= max(UNFINISHED_MOST * count * tenant.copies, tenant.slices)
        for count, missing in zip(done.by_seed, left.by_seed, strict=True)
    )


def to_json(found: Report) -> dict[str, Any]:
    """Return what `--json` writes."""
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


def notes(found: Report) -> list[str]:
    """Return what has to be known to read the figures."""
    scenario, engine = found.scenario, found.scenario.engine
    costs = [
        f"{words} {format_time(time_ns)}"
        for words, time_ns in (
            ("switch", engine.switch_cost),
            ("split", engine.split_cost),
            ("preemption", engine.preempt_latency),
        )
        if time_ns
    ]
    policy = f", policy {scenario.scheduler.policy}" if scenario.scheduler.name == "vgpumgr" else ""
    seeds = f"seeds {found.seeds[0]} to {found.seeds[-1]}" if len(found.seeds) > 1 else f"seed {found.seeds[0]}"
    measured = format_time(scenario.duration - scenario.warm_up)
    said = [
        f"simulated engine, {engine.kind.replace('_', '-')}, pieces of at most {format_time(engine.max_chunk)}, costs: "
        + (", ".join(costs) or "none"),
        f"scheduler {scenario.scheduler.name}{policy}; schedule {found.hashes[0]}",
        f"{seeds}; {measured} each, after {format_time(scenario.warm_up)} of warm-up",
        ", ".join(f"{_words(key)} {shown_value(key, figure.mean)}" for key, figure in found.engine.items()),
    ]
    if any(not tenant.exact for tenant in found.tenants):
        said.append(
            "~ requests count from their arrival until an ideal engine is done; it knows no pauses of their host"
        )
    if scenario.scheduler.policy != "best_effort":
        said.append("while a place idles its tenant is charged, and the engine does not count as idle")
    if len(set(found.hashes)) == 1 < len(found.hashes):
        said.append("every seed gave the same schedule: nothing in this scenario is drawn by lot")
    if len(found.seeds) == 1:
        said.append("one seed: no intervals; take 5 or more to compare")
    return said


def _words(key: str) -> str:
    return key.removesuffix("_share").replace("_per_s", "/s").replace("_", " ")


SHARES = ("TENANT", "ENTITLED", "OBTAINED", "SHARE ERROR", "WORST LAG", "LONGEST RUN", "SWITCHES/S", "OVERHEAD")
LATENCIES = ("TENANT", "REQUESTS", "MEAN", "P50", "P99", "MAX", "MEAN ALONE", "P99 ALONE", "SLOWDOWN", "AT P99")


def share_rows(found: Report) -> list[tuple[str, ...]]:
    """Return a row of `SHARES` for each tenant."""
    return [
        (
            _label(tenant),
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
            _label(tenant),
            _requests(tenant),
            _cell(tenant, keys[0], interval=True),
            *(_cell(tenant, key) for key in (*keys[1:], *alone)),
            _cell(tenant, "slowdown_mean"),
            _cell(tenant, "slowdown_p99"),
        )
        for tenant in found.tenants
        if "requests" in tenant.figures
    ]


def _label(tenant: TenantReport) -> str:
    return tenant.name if tenant.copies == 1 else f"{tenant.name} x{tenant.copies}"


def _requests(tenant: TenantReport) -> str:
    done = round(tenant.figures["requests"].mean)
    left = round(tenant.figures["unfinished"].mean)
    return f"{done}" if not left else f"{done}+{left}"


def _cell(tenant: TenantReport, key: str, *, interval: bool = False) -> str:
    figure = tenant.figures.get(key)
    if figure is None:
        return "-"
    shown = shown_value(key, figure.mean)
    if interval and figure.interval is not None and (half := figure.interval[1] - figure.mean) > 1e-4 * figure.mean:
        shown += f" ±{shown_value(key, half)}"
    return shown


def shown_value(key: str, value: float) -> str:
    """Return a figure as people read it, by its key or the name of its target."""
    key = _TARGETS.get(key, key)
    if key.endswith("_ns"):
        return format_time(value)
    if key.startswith("slowdown"):
        return f"{value:.3f}x"
    if key.endswith(("_share", "_error")):
        return format_percent(value)
    return f"{value:.4f}" if key == "jain_index" else f"{value:.0f}"
