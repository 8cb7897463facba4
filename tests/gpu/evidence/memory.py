# SPDX-License-Identifier: Apache-2.0
"""T8: beside a memory-bound load, timeslices divide the time. They need not divide the load's throughput."""

from __future__ import annotations

from typing import Any, Literal

from tests.gpu.evidence.bench import TOLERANCE, Bench, described, verdict_of
from vgpumgr.gpu.duel import Duel, Tenant
from vgpumgr.gpu.statistics import interval, place

A_US, B_US = 2048, 6144
EXPECTED = A_US / (A_US + B_US)
KERNEL_US = 1000.0


def t8(bench: Bench) -> dict[str, Any]:
    """B's work shows the time that A left to it. It must be equal beside a memory-bound and a computing A."""
    rounds: dict[Literal["compute", "memory"], int] = {
        "compute": bench.rounds("compute", KERNEL_US),
        "memory": bench.rounds("memory", KERNEL_US),
    }

    def beside(load: Literal["compute", "memory"]) -> Duel:
        a = Tenant(name="A", load=load, rounds=rounds[load], timeslice_us=A_US)
        return bench.run([a, Tenant(name="B", rounds=rounds["compute"], timeslice_us=B_US)])

    def alone() -> Duel:
        return bench.run([Tenant(name="A", load="memory", rounds=rounds["memory"], timeslice_us=A_US)])

    runs = bench.repeat(
        "T8", {"compute": lambda: beside("compute"), "memory": lambda: beside("memory"), "alone": alone}
    )
    share = interval([duel.share("A") for duel in runs["compute"]])
    time_left = interval([m.rate("B") / c.rate("B") for m, c in zip(runs["memory"], runs["compute"], strict=True)])
    throughput = interval([m.rate("A") / e.rate("A") for m, e in zip(runs["memory"], runs["alone"], strict=True)])
    verdict = verdict_of(
        [
            place(share, EXPECTED - TOLERANCE, EXPECTED + TOLERANCE),
            place(time_left, 1 - TOLERANCE, 1 + TOLERANCE),
        ]
    )
    reason = {
        "pass": "a tenant that lives on memory gets its share of time and no more",
        "fail": "time is not shared as the timeslices say",
    }.get(verdict, "the rates vary too much to tell")
    figures = {
        "share_beside_compute": share.document(),
        "neighbour_rate_against_compute": time_left.document(),
        "throughput_of_exclusive": throughput.document(),
    }
    setting = {"timeslice_us": {"A": A_US, "B": B_US}, "expected": EXPECTED, "share": share.document()}
    return described(verdict, reason, figures, [setting])
