# SPDX-License-Identifier: Apache-2.0
"""T1, T2, T4 and T10: how a GPU divides its time when timeslices are set, judged by intervals over repeats.

Two tenants, A and B, do the same work, each in its own channel group. A share is A's part of what both did. T1 checks
the rig and comes first: unless equal tenants get equal shares, no other test is run, and nothing is concluded. A
verdict is `pass` if the whole interval lies in the expected range, `fail` if all of it lies outside, and otherwise
`inconclusive`. A run need not be a whole number of turns, so intervals are widened by the possible error. Each repeat
takes the settings of a test in another order, so that a drift affects all alike.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from vgpumgr.gpu import duel
from vgpumgr.gpu.abi import quantised_us, status_word
from vgpumgr.gpu.duel import Duel, Rig, Tenant
from vgpumgr.gpu.enforcement import Honoured, Verdict
from vgpumgr.gpu.statistics import Interval, Place, interval, place

TOLERANCE = 0.03
KERNEL_US = 1000.0
LEAST_REPEATS = 3
EQUAL = 0.5
# Length of a turn if no timeslice is set: about what libcuda asks for.
DRIVERS_US = 2048


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Timeslices of A and B in us, None for the driver's own. `b`: whether B "works", is "idle" or is "absent"."""

    a_us: int | None
    b_us: int | None
    b: str = "works"

    @property
    def expected(self) -> float:
        """A's share if timeslices are honoured."""
        return EQUAL if self.a_us is None or self.b_us is None else self.a_us / (self.a_us + self.b_us)

    def unseen(self, share: float, duels: Sequence[Duel]) -> float:
        """Return the possible error of a share, because a run may end anywhere within a turn of both tenants."""
        turn_us = sum(DRIVERS_US if us is None else us for us in (self.a_us, self.b_us))
        return _unseen(share, turn_us, duels)

    def __str__(self) -> str:
        names = ["the driver's" if us is None else f"{us} us" for us in (self.a_us, self.b_us)]
        return f"{names[0]} alone" if self.b == "absent" else f"{names[0]} / {names[1]}, B {self.b}"


RIG = (Setting(a_us=None, b_us=None), Setting(a_us=2048, b_us=2048))
# The last two are no multiples of any usual step, so the share shows whether timeslices are rounded to a step.
HONOUR = tuple(
    Setting(a_us=a, b_us=b) for a, b in ((2048, 6144), (1024, 9216), (20_000, 60_000), (1400, 2600), (3100, 4700))
)
ALONE = Setting(a_us=2048, b_us=None, b="absent")
BESIDE_IDLE = Setting(a_us=2048, b_us=6144, b="idle")
SWITCHING = tuple(Setting(a_us=us, b_us=us) for us in (200, 500, 1_000, 5_000, 20_000))


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How often and how long each setting is measured, and the seed of the order."""

    repeats: int = 5
    seconds: float = 2.0
    seed: int = 1

    def __post_init__(self) -> None:
        if self.repeats < LEAST_REPEATS:
            raise ValueError(f"repeats: {self.repeats}; an interval needs at least {LEAST_REPEATS}")
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds: {self.seconds} is not a time")


SHORT = Effort()
# The shim's events when it sets a timeslice, or replaces libcuda's timeslice by its own.
_ANSWERED = ("applied", "rewritten")
Measured = dict[Setting, list[Duel]]


class Bench:
    """Measures settings on a rig. RigError if the rig cannot measure."""

    def __init__(self, rig: Rig, effort: Effort, told: Callable[[str], None]) -> None:
        self._rig = rig
        self._effort = effort
        self._told = told
        self._measured = 0
        # The work of a kernel of the right length; measured once, before two tenants run.
        self._rounds: int | None = None

    def measure(self, test: str, settings: Iterable[Setting]) -> Measured:
        """Measure every setting once in each repeat."""
        found: Measured = {setting: [] for setting in settings}
        shuffle = random.Random(self._effort.seed)
        for number in range(1, self._effort.repeats + 1):
            for setting in shuffle.sample(list(found), len(found)):
                self._measured += 1
                at_most = self._effort.repeats * sum(map(len, (RIG, HONOUR, SWITCHING, (ALONE, BESIDE_IDLE, ALONE))))
                done = f"{self._measured} of at most {at_most}"
                self._told(f"{done}: {test}, repeat {number} of {self._effort.repeats}: {setting}")
                found[setting].append(self._run(setting))
        return found

    def _run(self, setting: Setting) -> Duel:
        seconds = self._effort.seconds
        if self._rounds is None:
            alone = duel.run(self._rig, [Tenant(name="A", kernel_us=KERNEL_US)], seconds=seconds / 4)
            self._rounds = alone.of("A")[0].rounds
        tenants = [Tenant(name="A", timeslice_us=setting.a_us, rounds=self._rounds)]
        if setting.b == "works":
            tenants.append(Tenant(name="B", timeslice_us=setting.b_us, rounds=self._rounds))
        elif setting.b == "idle":
            tenants.append(Tenant(name="B", timeslice_us=setting.b_us, load="idle"))
        return duel.run(self._rig, tenants, seconds=seconds)


def run(rig: Rig, *, effort: Effort = SHORT, told: Callable[[str], None] = lambda _: None) -> dict[str, dict[str, Any]]:
    """Return the four tests in the form of `vgpumgr.gpu-evidence/1`. `told` is called for each step. RigError."""
    bench = Bench(rig, effort, told)
    tests = {"T1": _t1(bench.measure("T1", RIG))}
    if tests["T1"]["verdict"] != Verdict.PASS:
        reason = f"T1: {tests['T1']['reason']}"
        return tests | {name: _not_run(reason) for name in ("T2", "T4", "T10")}
    honour = bench.measure("T2 and T4", (*HONOUR, ALONE, BESIDE_IDLE))
    tests["T2"] = _t2({setting: honour[setting] for setting in HONOUR})
    tests["T4"] = _t4(honour[ALONE], honour[BESIDE_IDLE])
    if tests["T2"]["verdict"] == Verdict.PASS:
        tests["T10"] = _t10(bench.measure("T10", (ALONE, *SWITCHING)))
    else:
        tests["T10"] = _not_run(
            f"T2: {tests['T2']['reason']}; the cost of switches shows only if timeslices are honoured"
        )
    return tests


def _not_run(reason: str) -> dict[str, Any]:
    return {"verdict": Verdict.NOT_RUN, "reason": reason, "figures": {}, "settings": []}


def _share(duels: Sequence[Duel]) -> list[float]:
    return [duel.share("A") for duel in duels]


def _unseen(share: float, turn_us: int, duels: Sequence[Duel]) -> float:
    window_us = min(end - start for start, end in (duel.window_ns for duel in duels)) / 1000
    return share * (1 - share) * turn_us / window_us if window_us > 0 else 1.0


def _described(setting: Setting, duels: Sequence[Duel], found: Interval) -> dict[str, Any]:
    slices = {"A": setting.a_us, "B": setting.b_us}
    return {
        "timeslice_us": slices,
        "representable_us": {name: None if us is None else quantised_us(us) for name, us in slices.items()},
        "expected": setting.expected,
        "share": found.document(),
        "uncertainty": round(setting.unseen(setting.expected, duels), 6),
        "samples": [round(share, 6) for share in _share(duels)],
        "status": {name: _statuses(duels, name) for name in slices},
    }


def _statuses(duels: Sequence[Duel], tenant: str) -> list[str]:
    """Return all statuses that the driver gave when the timeslice was set. The driver also says OK without effect."""
    results = [result for duel in duels for result in duel.of(tenant)]
    return sorted({status_word(e["status"]) for result in results for e in result.shim if e["event"] in _ANSWERED})


def _refusals(duels: Sequence[Duel]) -> list[str]:
    """Return the last status of each channel group of all tenants, without those that are OK."""
    found = set()
    for result in (result for both in duels for tenant in ("A", "B") for result in both.of(tenant)):
        last = {(e["client"], e["group"]): e for e in result.shim if e["event"] in _ANSWERED}
        found |= {f"ioctl {e['result']}" if e["result"] else status_word(e["status"]) for e in last.values()}
        found |= set() if last else {"no answer"}
    return sorted(found - {"OK"})


def _t1(measured: Measured) -> dict[str, Any]:
    settings, places = [], []
    for setting, duels in measured.items():
        found = interval(_share(duels))
        places.append(place(found.widened(setting.unseen(EQUAL, duels)), EQUAL - TOLERANCE, EQUAL + TOLERANCE))
        settings.append(_described(setting, duels, found) | {"outcome": places[-1]})
    verdict = _verdict(places)
    reason = {
        Verdict.PASS: "equal tenants get equal shares",
        Verdict.FAIL: "equal tenants do not get equal shares, so something other than timeslices decides",
        Verdict.INCONCLUSIVE: "the shares of equal tenants vary too much; increase --seconds or --repeats",
    }[verdict]
    return {"verdict": verdict, "reason": reason, "figures": {}, "settings": settings}


def _verdict(places: Sequence[Place]) -> Verdict:
    if all(one == Place.INSIDE for one in places):
        return Verdict.PASS
    return Verdict.FAIL if Place.OUTSIDE in places else Verdict.INCONCLUSIVE


def _t2(measured: Measured) -> dict[str, Any]:
    settings, refused = [], []
    for setting, duels in measured.items():
        found = interval(_share(duels))
        settings.append(_described(setting, duels, found) | {"outcome": _outcome(setting, duels, found)})
        if words := _refusals(duels):
            refused.append(f"{setting.a_us}/{setting.b_us} us: {' '.join(words)}")
    outcomes = [setting["outcome"] for setting in settings]
    if refused:
        verdict, honoured = Verdict.INCONCLUSIVE, Honoured.UNKNOWN
        reason = f"the driver refused: {', '.join(refused)}"
    elif "inconclusive" in outcomes:
        verdict, honoured = Verdict.INCONCLUSIVE, Honoured.UNKNOWN
        reason = "some shares vary too much, or the time is too short, to decide"
    elif set(outcomes) == {"honoured"}:
        verdict, honoured, reason = Verdict.PASS, Honoured.YES, "shares follow timeslices"
    elif "honoured" in outcomes:
        verdict, honoured, reason = Verdict.FAIL, Honoured.PARTLY, "shares follow some timeslices, but not others"
    else:
        verdict, honoured, reason = Verdict.FAIL, Honoured.NO, "shares do not follow timeslices"
    return {"verdict": verdict, "reason": reason, "figures": {"honoured": honoured}, "settings": settings}


def _outcome(setting: Setting, duels: Sequence[Duel], found: Interval) -> str:
    """Return honoured, ignored (a share as if no timeslice were set), deviates (any other share), or inconclusive."""
    expected = setting.expected
    as_asked = place(found.widened(setting.unseen(expected, duels)), expected - TOLERANCE, expected + TOLERANCE)
    in_drivers_turns = found.widened(_unseen(EQUAL, 2 * DRIVERS_US, duels))
    as_equal = place(in_drivers_turns, EQUAL - TOLERANCE, EQUAL + TOLERANCE)
    if as_asked == Place.INSIDE:
        return "honoured"
    if as_asked == Place.ACROSS:
        return "inconclusive"
    if as_equal == Place.INSIDE:
        return "ignored"
    return "deviates"


def _t4(alone: Sequence[Duel], beside_idle: Sequence[Duel]) -> dict[str, Any]:
    ratios = [b.rate("A") / a.rate("A") for a, b in zip(alone, beside_idle, strict=True)]
    found = interval(ratios)
    verdict = _verdict([place(found, 1 - TOLERANCE, math.inf)])
    reason = {
        Verdict.PASS: "beside an idle tenant, another gets the whole GPU",
        Verdict.FAIL: "beside an idle tenant, another does not get the whole GPU",
        Verdict.INCONCLUSIVE: "the rate beside an idle tenant varies too much to decide",
    }[verdict]
    if verdict == Verdict.PASS and found.high > 1 + TOLERANCE:
        verdict, reason = (
            Verdict.INCONCLUSIVE,
            "the rate beside an idle tenant is higher than alone, so something else changed",
        )
    figures = {"share_of_exclusive": found.document()}
    settings = [{"timeslice_us": {"A": BESIDE_IDLE.a_us, "B": BESIDE_IDLE.b_us}, "samples": ratios}]
    return {"verdict": verdict, "reason": reason, "figures": figures, "settings": settings}


def _t10(measured: Measured) -> dict[str, Any]:
    """Judge the cost of a switch. Throughput falls by cost / timeslice, so each repeat gives a line over settings."""
    alone = measured.pop(ALONE)
    slices = [setting.a_us or 0 for setting in measured]
    lost = [
        [both.rate("A") / (duel.rate("A") + duel.rate("B")) - 1 for both, duel in zip(alone, duels, strict=True)]
        for duels in measured.values()
    ]
    costs = [_slope_us(slices, losses) for losses in zip(*lost, strict=True)]
    cost = interval(costs)
    obtained = [interval([1 / (1 + loss) for loss in losses]) for losses in lost]
    modelled = [1 / (1 + max(cost.mean, 0) / us) for us in slices]
    verdict = _verdict(
        [place(one, model - TOLERANCE, model + TOLERANCE) for one, model in zip(obtained, modelled, strict=True)]
    )
    reason = {
        Verdict.PASS: "one cost per switch explains the throughput at all timeslices",
        Verdict.FAIL: "one cost per switch does not explain the throughput",
        Verdict.INCONCLUSIVE: "throughput varies too much to decide whether one cost per switch explains it",
    }[verdict]
    figures: dict[str, Any] = {
        "throughput": [[us, one.mean] for us, one in zip(slices, obtained, strict=True)],
        "worst_fit": max(abs(one.mean - model) for one, model in zip(obtained, modelled, strict=True)),
    }
    if verdict == Verdict.PASS:
        figures["switch_cost_us"] = cost.document()
    settings = [
        {"timeslice_us": {"A": us, "B": us}, "samples": [1 / (1 + loss) for loss in losses]}
        for us, losses in zip(slices, lost, strict=True)
    ]
    return {"verdict": verdict, "reason": reason, "figures": figures, "settings": settings}


def _slope_us(slices: Sequence[int], losses: Sequence[float]) -> float:
    """Fit loss = offset + cost / timeslice by least squares. The offset is the cost of having a neighbour at all."""
    x = [1 / us for us in slices]
    x_mean, y_mean = fmean(x), fmean(losses)
    over = sum((a - x_mean) * (b - y_mean) for a, b in zip(x, losses, strict=True))
    return over / sum((a - x_mean) ** 2 for a in x)
