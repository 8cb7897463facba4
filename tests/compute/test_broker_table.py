# SPDX-License-Identifier: Apache-2.0
"""The table of entitled and obtained shares between two looks at a broker."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from vgpumgr.broker.table import Row, rows

S = 10**9


def tenant(name: str, *, weight: int = 1, cap: int = 0, **stats: int) -> dict[str, Any]:
    counters = dict.fromkeys(
        ("leased_ns", "leases", "waits", "waited_ns", "longest_wait_ns", "gates", "throttled_ns"), 0
    )
    return {
        "name": name,
        "weight": weight,
        "band": "fair",
        "cap_ns": cap * S // 100,
        "cap_period_ns": S if cap else 0,
        "memory_bytes": 2**30,
        "max_processes": 16,
        "confined": False,
        "processes": [{"under_way": 2}, {"under_way": 1}],
        "stats": counters | stats,
    }


def look(at_s: int, *tenants: dict[str, Any], started_s: int = 0) -> dict[str, Any]:
    return {"now_ns": at_s * S, "started_ns": started_s * S, "tenants": list(tenants)}


def by_name(found: list[Row]) -> dict[str, tuple[Fraction | None, Fraction | None]]:
    return {row.tenant: (row.entitled_share, row.obtained_share) for row in found}


def test_shares_are_by_weight_among_those_who_had_work() -> None:
    before = look(10, tenant("a", leased_ns=5 * S), tenant("b"), tenant("idle"))
    after = look(
        20,
        tenant("idle", weight=9),
        tenant("a", weight=3, leased_ns=12 * S, leases=7, waits=7, waited_ns=S),
        tenant("b", leased_ns=3 * S),
    )
    found = rows(before, after)
    assert by_name(found) == {
        "a": (Fraction(3, 4), Fraction(7, 10)),
        "b": (Fraction(1, 4), Fraction(3, 10)),
        "idle": (None, Fraction(0)),
    }
    assert (found[0].tenant, found[0].processes, found[0].under_way) == ("a", 2, 3)
    assert found[0].wait_ns == S // 7
    assert found[1].wait_ns is None


def test_a_cap_bounds_what_is_due() -> None:
    before = look(0, tenant("capped"), tenant("other"))
    after = look(10, tenant("capped", cap=10, throttled_ns=S), tenant("other", leased_ns=9 * S))
    assert by_name(rows(before, after)) == {
        "capped": (Fraction(1, 10), Fraction(0)),
        "other": (Fraction(9, 10), Fraction(9, 10)),
    }


def native(
    name: str, *, open_s: int = 0, obtained_s: int = 0, enforced_by: str = "firmware", **stats: int
) -> dict[str, Any]:
    told = {"programs": 1, "working": 1, "open_ns": open_s * S, "obtained_ns": obtained_s * S, "gates": 3, "open": True}
    told["memory_used_bytes"] = 2**20
    supervisor = {"enforced_by": enforced_by}
    processes = [{"native": True, "pid": 7}]
    return tenant(name, **stats) | {"native": told, "processes": processes, "supervisor": supervisor}


def test_what_the_gpu_divides_by_itself_is_what_each_was_charged_for() -> None:
    before = look(0, native("a", open_s=3, obtained_s=1), tenant("idle"))
    after = look(10, native("a", open_s=13, obtained_s=8), native("b", open_s=5, obtained_s=3), tenant("idle"))
    found = {row.tenant: row for row in rows(before, after)}
    assert by_name(list(found.values()))["a"] == (Fraction(1, 2), Fraction(7, 10))
    assert [found[name].native and found[name].native.open_share for name in "ab"] == [Fraction(1), Fraction(1, 2)]
    assert (found["a"].leased_ns, found["a"].gates) == (7 * S, 3)
    assert (found["a"].under_way, found["a"].native and found["a"].native.memory_used_bytes) == (0, 2**20)
    assert found["idle"].native is None


def test_turns_of_the_gate_are_measured_by_their_leases() -> None:
    before = look(0, native("a", enforced_by="broker+gate"))
    after = look(10, native("a", enforced_by="broker+gate", leased_ns=6 * S))
    (row,) = rows(before, after)
    assert (row.entitled_share, row.obtained_share) == (Fraction(1), Fraction(3, 5))
    assert row.native is not None
    assert (row.native.open_share, row.native.enforced_by) == (Fraction(3, 5), "broker+gate")


def test_another_broker_counts_from_its_start() -> None:
    before = look(100, tenant("a", leased_ns=50 * S))
    after = look(120, tenant("a", leased_ns=5 * S), started_s=110)
    assert by_name(rows(before, after)) == {"a": (Fraction(1), Fraction(1, 2))}


def test_a_window_without_time_has_no_shares() -> None:
    assert by_name(rows(look(5, tenant("a")), look(5, tenant("a"))))["a"] == (None, None)
