# SPDX-License-Identifier: Apache-2.0
"""Who was entitled to how much, and got it, between two looks at a broker."""

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


def test_another_broker_counts_from_its_start() -> None:
    before = look(100, tenant("a", leased_ns=50 * S))
    after = look(120, tenant("a", leased_ns=5 * S), started_s=110)
    assert by_name(rows(before, after)) == {"a": (Fraction(1), Fraction(1, 2))}


def test_a_window_without_time_has_no_shares() -> None:
    assert by_name(rows(look(5, tenant("a")), look(5, tenant("a"))))["a"] == (None, None)
