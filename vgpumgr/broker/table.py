# SPDX-License-Identifier: Apache-2.0
"""Each tenant's entitled and obtained share of the accelerator between two samples of a broker. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from vgpumgr.entitlement import Backlogged, entitled


@dataclass(frozen=True)
class Row:
    """One tenant in a window.

    Shares are fractions of the window, None if the window has no length. `entitled_share` is also None for a tenant
    that ran nothing and wanted nothing, because its part went to the other tenants. `longest_wait_ns` and `gates` cover
    the broker's whole life. If the GPU divides its time between native programs, the obtained share is the charged
    share: the tenant's part, by weight, among the tenants that were open and had channels.
    """

    tenant: str
    weight: int
    band: str
    processes: int
    max_processes: int
    memory_bytes: int
    under_way: int
    entitled_share: Fraction | None
    obtained_share: Fraction | None
    leased_ns: int
    leases: int
    wait_ns: int | None
    longest_wait_ns: int
    gates: int
    confined: bool
    native: "Native | None" = None


@dataclass(frozen=True)
class Native:
    """Figures of a tenant whose programs hold the GPU themselves.

    `open_share`: part of the window in which the programs were allowed to run. `working`: number of programs
    that have channels.
    """

    programs: int
    working: int
    open_share: Fraction | None
    memory_used_bytes: int
    enforced_by: str


def rows(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Row]:
    """Return a row for each tenant of `after`; the counters of a new tenant start at 0."""
    window_ns = int(after["now_ns"]) - int(before["now_ns"])
    if after["started_ns"] != before["started_ns"]:  # the broker was restarted
        before = {"tenants": []}
        window_ns = int(after["now_ns"]) - int(after["started_ns"])
    earlier = {each["name"]: _counters(each) for each in before["tenants"]}
    spent = {each["name"]: _since(earlier.get(each["name"]), _counters(each)) for each in after["tenants"]}
    shares = _shares(after, spent)
    return [
        _row(each, spent[each["name"]], shares.get(each["name"]), window_ns)
        for each in sorted(after["tenants"], key=lambda each: str(each["name"]))
    ]


def _counters(tenant: Mapping[str, Any]) -> dict[str, int]:
    """Return a tenant's growing counters, with those of its native programs added."""
    stats = dict(tenant["stats"])
    native = tenant.get("native")
    if native is None:
        return {**stats, "open_ns": 0}
    # Native programs share the GPU either without leases or by leases, so one summand is 0.
    stats["open_ns"] = native["open_ns"] + stats["leased_ns"]
    stats["leased_ns"] += native["obtained_ns"]
    stats["gates"] += native["gates"]
    return stats


def _since(before: Mapping[str, int] | None, after: Mapping[str, int]) -> dict[str, int]:
    return {name: value - (before or {}).get(name, 0) for name, value in after.items()}


def _shares(after: Mapping[str, Any], spent: Mapping[str, Mapping[str, int]]) -> dict[str, Fraction]:
    active = dict(_active(after, spent))
    return entitled(active, 1) if active else {}


def _active(after: Mapping[str, Any], spent: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[str, Backlogged]]:
    for each in after["tenants"]:
        stats = spent[each["name"]]
        if stats["leased_ns"] or stats["waits"] or stats["throttled_ns"] or stats["open_ns"]:
            cap = Fraction(each["cap_ns"], each["cap_period_ns"]) if each["cap_ns"] else None
            yield each["name"], Backlogged(weight=each["weight"], cap=cap)


def _row(tenant: Mapping[str, Any], stats: Mapping[str, int], share: Fraction | None, window_ns: int) -> Row:
    return Row(
        tenant=tenant["name"],
        weight=tenant["weight"],
        band=tenant["band"],
        processes=len(tenant["processes"]),
        max_processes=tenant["max_processes"],
        memory_bytes=tenant["memory_bytes"],
        under_way=sum(process.get("under_way", 0) for process in tenant["processes"]),
        entitled_share=share,
        obtained_share=_part(stats["leased_ns"], window_ns),
        leased_ns=stats["leased_ns"],
        leases=stats["leases"],
        wait_ns=stats["waited_ns"] // stats["waits"] if stats["waits"] else None,
        longest_wait_ns=tenant["stats"]["longest_wait_ns"],
        gates=_counters(tenant)["gates"],
        confined=tenant["confined"],
        native=_native(tenant, stats, window_ns) if "native" in tenant else None,
    )


def _native(tenant: Mapping[str, Any], stats: Mapping[str, int], window_ns: int) -> Native:
    told = tenant["native"]
    return Native(
        programs=told["programs"],
        working=told["working"],
        open_share=_part(stats["open_ns"], window_ns),
        memory_used_bytes=told["memory_used_bytes"],
        enforced_by=tenant["supervisor"]["enforced_by"],
    )


def _part(ns: int, window_ns: int) -> Fraction | None:
    return Fraction(ns, window_ns) if window_ns > 0 else None
