# SPDX-License-Identifier: Apache-2.0
"""T3 and T9: a timeslice that changes while its tenant runs, by the shim in its process or by a foreign process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.evidence.bench import TOLERANCE, Bench, described, verdict_of
from vgpumgr.gpu import abi
from vgpumgr.gpu.duel import KERNEL_ENGINES, Duel, Running, Tenant
from vgpumgr.gpu.shim import change_timeslice
from vgpumgr.gpu.statistics import interval, place

BEFORE_US, AFTER_US = 2048, 18_000
EXPECTED = abi.quantised_us(AFTER_US) / (abi.quantised_us(AFTER_US) + BEFORE_US)
KERNEL_US = 1000.0
# The share must have moved by then.
WITHIN_NS = 100_000_000
ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Change:
    """One run: when it was changed, and what the driver answered."""

    duel: Duel
    changed_ns: int
    status: int

    @property
    def before(self) -> float:
        return self.duel.share("A", (self.duel.window_ns[0], self.changed_ns))

    @property
    def after(self) -> float:
        return self.duel.share("A", (self.changed_ns + WITHIN_NS, self.duel.window_ns[1]))


def by_the_shim(_: Bench, running: Running) -> int:
    """The shim makes the call again, in the tenant's process and on its file."""
    return int(change_timeslice(running.control, running.pid, AFTER_US)["status"])


def by_a_foreign_process(bench: Bench, running: Running) -> int:
    """A process that is not the tenant makes the call, with handles that somebody learnt. Raises OSError."""
    group = next(
        entry for entry in running.records() if entry["event"] == "group" and entry["engine_type"] in KERNEL_ENGINES
    )
    words = [running.pid, group["fd"], group["client"], group["group"], AFTER_US]
    agent = subprocess.run(
        [sys.executable, "-S", "-m", "tests.gpu.evidence.agent", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, **bench.rig.environment, "LD_PRELOAD": " ".join(map(str, bench.rig.preload))},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    if agent.returncode != 0:
        raise OSError(agent.returncode, os.strerror(agent.returncode))
    return int(agent.stdout)


def measure(bench: Bench, change: Callable[[Bench, Running], int], timeslice_us: int | None) -> Change:
    rounds = bench.rounds("compute", KERNEL_US)
    made: list[tuple[int, int]] = []
    tenants = [
        Tenant(name="A", rounds=rounds, timeslice_us=timeslice_us, mark_at_s=bench.effort.seconds / 2),
        Tenant(name="B", rounds=rounds, timeslice_us=timeslice_us),
    ]
    duel = bench.run(tenants, lambda running, t_ns: made.append((t_ns, change(bench, running))))
    return Change(duel=duel, changed_ns=made[0][0], status=made[0][1])


def judged(changes: list[Change], whom: str) -> dict[str, Any]:
    before, after = interval([one.before for one in changes]), interval([one.after for one in changes])
    verdict = verdict_of(
        [
            place(before, 0.5 - TOLERANCE, 0.5 + TOLERANCE),
            place(after, EXPECTED - TOLERANCE, EXPECTED + TOLERANCE),
        ]
    )
    answers = sorted({abi.status_word(one.status) for one in changes})
    reason = {
        "pass": f"the share moved within 100 ms of a change by {whom}",
        "fail": f"the share is not where a change by {whom} should have brought it; the driver answered {answers}",
    }.get(verdict, "the shares vary too much to tell")
    figures = {"before": before.document(), "after": after.document(), "status": answers}
    setting = {
        "timeslice_us": {"A": [BEFORE_US, AFTER_US], "B": BEFORE_US},
        "expected": EXPECTED,
        "share": after.document(),
        "samples": [round(one.after, 6) for one in changes],
    }
    return described(verdict, reason, figures, [setting])


def t3(bench: Bench) -> dict[str, Any]:
    """The shim sets both timeslices, and later one of them anew."""
    runs = bench.repeat("T3", {"change": lambda: measure(bench, by_the_shim, BEFORE_US)})
    return judged(runs["change"], "the shim")


def t9(bench: Bench) -> dict[str, Any]:
    """The shim only looks on; libcuda's own 2048 us are changed from outside."""
    try:
        runs = bench.repeat("T9", {"change": lambda: measure(bench, by_a_foreign_process, None)})
    except PermissionError as error:
        return described("not_run", f"this process may not take over a tenant's file: {error.strerror}", {}, [])
    return judged(runs["change"], "a foreign process")
