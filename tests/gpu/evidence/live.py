# SPDX-License-Identifier: Apache-2.0
"""T3 and T9: the shim or a foreign process changes a timeslice while its tenant runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.evidence.bench import TOLERANCE, Bench, described, verdict_of
from vgpumgr.gpu import abi
from vgpumgr.gpu.duel import KERNEL_ENGINES, Duel, RigError, Running, Tenant
from vgpumgr.gpu.shim import change_timeslice
from vgpumgr.gpu.statistics import interval, place

BEFORE_US, AFTER_US = 2048, 18_000
EXPECTED = abi.quantised_us(AFTER_US) / (abi.quantised_us(AFTER_US) + BEFORE_US)
KERNEL_US = 1000.0
# The share must have changed within this time.
WITHIN_NS = 100_000_000
ROOT = Path(__file__).resolve().parents[3]
AGENT = ("-P", "-S", "-m", "tests.gpu.evidence.agent")
AGENT_TIMEOUT_S = 60


@dataclass(frozen=True)
class Change:
    """One run and the driver's answer. A worked during the change, and the time of the change itself is not counted."""

    duel: Duel
    status: int

    @property
    def before(self) -> float:
        began_ns, _ = self.duel.of("A")[0].mark_ns
        return self.duel.share("A", (self.duel.window_ns[0], began_ns))

    @property
    def after(self) -> float:
        _, over_ns = self.duel.of("A")[0].mark_ns
        if over_ns + WITHIN_NS >= self.duel.window_ns[1]:
            raise RigError("load_failed", "the change was not over before the run was; measure longer")
        return self.duel.share("A", (over_ns + WITHIN_NS, self.duel.window_ns[1]))


def by_the_shim(_: Bench, running: Running) -> int:
    """Make the shim repeat the call in the tenant's process and on its file."""
    return int(change_timeslice(running.control, running.pid, AFTER_US)["status"])


def by_a_foreign_process(bench: Bench, running: Running) -> int:
    """Make the call in a process that is not the tenant, with known handles. Raises OSError, RigError."""
    group = next(
        entry for entry in running.records() if entry["event"] == "group" and entry["engine_type"] in KERNEL_ENGINES
    )
    words = [running.pid, group["fd"], group["client"], group["group"], AFTER_US]
    preload = " ".join(map(str, bench.rig.preload))
    try:
        agent = subprocess.run(
            [sys.executable, *AGENT, *map(str, words)],
            env={**os.environ, **bench.rig.environment, "PYTHONPATH": str(ROOT), "LD_PRELOAD": preload},
            capture_output=True,
            text=True,
            check=True,
            timeout=AGENT_TIMEOUT_S,
        )
        said = json.loads(agent.stdout)
    except subprocess.CalledProcessError as error:
        complaint = error.stderr.strip().splitlines() or [f"status {error.returncode}"]
        raise RigError("load_failed", f"the foreign process: {complaint[-1]}") from error
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise RigError("load_failed", f"the foreign process: {error}") from error
    if "errno" in said:
        raise OSError(said["errno"], os.strerror(said["errno"]))
    return int(said["status"])


def measure(bench: Bench, change: Callable[[Bench, Running], int], timeslice_us: int | None) -> Change:
    rounds = bench.rounds("compute", KERNEL_US)
    answers: list[int] = []
    tenants = [
        Tenant(name="A", rounds=rounds, timeslice_us=timeslice_us, mark_at_s=bench.effort.seconds / 2),
        Tenant(name="B", rounds=rounds, timeslice_us=timeslice_us),
    ]
    duel = bench.run(tenants, lambda running: answers.append(change(bench, running)))
    return Change(duel=duel, status=answers[0])


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
    """The shim sets both timeslices, and later sets one of them again."""
    runs = bench.repeat("T3", {"change": lambda: measure(bench, by_the_shim, BEFORE_US)})
    return judged(runs["change"], "the shim")


def t9(bench: Bench) -> dict[str, Any]:
    """The shim only observes. A foreign process changes libcuda's own 2048 us."""
    try:
        runs = bench.repeat("T9", {"change": lambda: measure(bench, by_a_foreign_process, None)})
    except PermissionError as error:
        return described("not_run", f"this process may not take over a tenant's file: {error.strerror}", {}, [])
    return judged(runs["change"], "a foreign process")
