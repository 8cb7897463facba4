# SPDX-License-Identifier: Apache-2.0
"""T11: can another process stop a tenant's work on the GPU in the middle, and resume it?

A and B work. A third process disables A's channels, and enables them a while later. Meanwhile A must get nothing done,
and afterwards A must continue. The gate of an executor does the same (compute/executor/gate).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgpumgr.gpu import abi, duel
from vgpumgr.gpu.duel import KERNEL_ENGINES, Duel, Rig, RigError, Running, Tenant
from vgpumgr.gpu.enforcement import Verdict
from vgpumgr.gpu.gatekeeper import lock_path
from vgpumgr.gpu.statistics import interval

if TYPE_CHECKING:
    from vgpumgr.gpu.shares import Effort

KERNEL_US = 1000.0
# When the gate is closed and opened, as fractions of the run.
CLOSE_AT, OPEN_AT = 0.2, 0.5
# A kernel that ended before the gate closed may be recorded this much later.
NOTED_LATE_NS = 5_000_000
_MODULE = ("-P", "-m", "vgpumgr.gpu.gatekeeper")
_TIMEOUT_S = 60


class NoGateError(Exception):
    """The gate does not work here. The text is a sentence that says what was refused."""


class NotTriedError(Exception):
    """The test could not find out whether there is a gate. The text says why."""


@dataclass
class Turn:
    """One closing and opening: the duration of the calls, and the tenants' work."""

    close_us: float = 0.0
    open_us: float = 0.0
    closed: bool = False
    opened: bool = False
    duel: Duel | None = field(default=None, repr=False)

    def done_while_closed(self) -> int:
        """Return the number of A's kernels that ended while the gate was closed."""
        assert self.duel is not None
        (a,), (b,) = self.duel.of("A"), self.duel.of("B")
        closed_ns, open_ns = a.mark_ns[1], b.mark_ns[0]
        return sum(closed_ns + NOTED_LATE_NS < done < open_ns for done in a.done_ns)

    def goes_on_after_us(self) -> float | None:
        """Return the time from the order to open until A's next kernel ends; None if no kernel of A ends."""
        assert self.duel is not None
        (a,), (b,) = self.duel.of("A"), self.duel.of("B")
        later = [done - b.mark_ns[0] for done in a.done_ns if done > b.mark_ns[0]]
        return min(later) / 1000 if later else None


def run(rig: Rig, *, effort: Effort, told: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Return the test in the form of shares.run(). RigError if the rig fails before anything is closed."""
    turns: list[Turn] = []
    try:
        alone = duel.run(rig, [Tenant(name="A", kernel_us=KERNEL_US)], seconds=effort.seconds / 4)
        _check_driver(alone.results[0].shim)
        for number in range(1, effort.repeats + 1):
            told(f"T11, repeat {number} of {effort.repeats}: A closed and opened, B works")
            turns.append(_turn(rig, alone.results[0].rounds, effort.seconds))
    except NotTriedError as error:
        return _described(Verdict.NOT_RUN, str(error), turns)
    except NoGateError as error:
        return _described(Verdict.FAIL, str(error), turns)
    return _judged(turns)


def _check_driver(records: Sequence[Mapping[str, Any]]) -> None:
    """Check the driver's branch: the structure of the call is known for one branch only."""
    versions = [entry["version"] for entry in records if entry["event"] == "driver"]
    if not versions or versions[-1].split(".")[0] != str(abi.GATE_BRANCH):
        told = versions[-1] if versions else "without a version"
        raise NotTriedError(f"driver {told}: channels were disabled on branch {abi.GATE_BRANCH} only")


def _turn(rig: Rig, rounds: int, seconds: float) -> Turn:
    turn, running_a = Turn(), list[Running]()

    def at_mark(running: Running) -> None:
        if running.tenant == "A":
            running_a.append(running)
            turn.close_us = _ask(rig, running, "close")
            turn.closed = True
        else:
            turn.open_us = _ask(rig, running_a[0], "open")
            turn.opened = True

    tenants = [
        Tenant(name="A", rounds=rounds, mark_at_s=CLOSE_AT * seconds),
        Tenant(name="B", rounds=rounds, mark_at_s=OPEN_AT * seconds),
    ]
    try:
        turn.duel = duel.run(rig, tenants, seconds=seconds, at_mark=at_mark)
    except RigError as error:
        if not turn.closed:
            raise
        after = "opened again" if turn.opened else "closed"
        raise NoGateError(f"a tenant whose channels were {after} did not end: {error.detail}") from error
    return turn


def _ask(rig: Rig, running: Running, action: str) -> float:
    """Make the call from a process that is not the tenant; return the call's duration in us."""
    lock = lock_path() if rig.kind == "device" else None
    words = [action, "-" if lock is None else str(lock), str(running.pid), *map(str, _handles(running))]
    environment = {
        **os.environ,
        **rig.environment,
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "LD_PRELOAD": " ".join(map(str, rig.preload)),
    }
    try:
        done = subprocess.run(
            [sys.executable, *_MODULE, *words],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=_TIMEOUT_S,
        )
        said = json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        raise NotTriedError(f"the process that should {action} it failed: {error}") from error
    if "errno" in said:
        raise NotTriedError(f"this process may not {action} it: {os.strerror(said['errno'])}")
    if said["status"]:
        raise NoGateError(f"the driver refused to {action} it: {abi.status_word(said['status'])}")
    return float(said["took_us"])


def _handles(running: Running) -> list[int]:
    """Return file, client, subdevice and channels of the tenant's groups that run kernels, from the shim's log."""
    seen = running.records()
    groups = [entry for entry in seen if entry["event"] == "group" and entry["engine_type"] in KERNEL_ENGINES]
    client = groups[0]["client"]
    subdevices = [entry["subdevice"] for entry in seen if entry["event"] == "subdevice" and entry["client"] == client]
    channels = [entry["channel"] for entry in seen if entry["event"] == "channel" and entry["client"] == client]
    if not subdevices or not channels:
        raise NotTriedError("the shim saw no subdevice or no channel of the group's client")
    return [groups[0]["fd"], client, subdevices[-1], *channels]


def _judged(turns: Sequence[Turn]) -> dict[str, Any]:
    leaked = [turn.done_while_closed() for turn in turns]
    if any(leaked):
        reason = f"a tenant whose channels were disabled continued: {max(leaked)} kernels"
        return _described(Verdict.FAIL, reason, turns)
    if any(turn.goes_on_after_us() is None for turn in turns):
        return _described(Verdict.FAIL, "a tenant whose channels were enabled again did not continue", turns)
    return _described(Verdict.PASS, "another process can stop a tenant in the middle of its work, and resume it", turns)


def _described(verdict: Verdict, reason: str, turns: Sequence[Turn]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    whole = [turn for turn in turns if turn.duel is not None]
    if whole:
        resumed = [us for turn in whole if (us := turn.goes_on_after_us()) is not None]
        figures = {
            "close_us": interval([turn.close_us for turn in whole]).document(),
            "open_us": interval([turn.open_us for turn in whole]).document(),
            "done_while_closed": [turn.done_while_closed() for turn in whole],
            "longest_resume_us": max(resumed, default=None),
        }
    return {"verdict": verdict, "reason": reason, "figures": figures, "settings": []}
