# SPDX-License-Identifier: Apache-2.0
"""T5, T6 and T7: more channel groups than the neighbour, an endless kernel, and kernels that cannot be preempted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tests.gpu.evidence.bench import TOLERANCE, Bench, Verdict, described, verdict_of
from vgpumgr.gpu.abi import quantised_us, status_word
from vgpumgr.gpu.duel import Duel, Tenant
from vgpumgr.gpu.statistics import interval, place, quantile

if TYPE_CHECKING:
    from vgpumgr.gpu.shim import Preemption

TIMESLICE_US = 2048
KERNEL_US = 1000.0
PROCESSES = 3

SHORT_KERNEL_US = 200.0
PERIOD_US = 20_000.0
# A short kernel waits for one timeslice of the neighbour and then runs. The same time again is allowed for switching.
LATENCY_BOUND_US = 2 * (TIMESLICE_US + SHORT_KERNEL_US)


def t5(bench: Bench) -> dict[str, Any]:
    """A timeslice belongs to a channel group: three processes have three timeslices, unless each gets a third."""
    rounds = bench.rounds("compute", KERNEL_US)

    def run(a_us: int) -> Duel:
        a = Tenant(name="A", rounds=rounds, timeslice_us=a_us, processes=PROCESSES)
        return bench.run([a, Tenant(name="B", rounds=rounds, timeslice_us=TIMESLICE_US)])

    third_us = TIMESLICE_US // PROCESSES
    slices_us = {"undivided": TIMESLICE_US, "divided": third_us}
    runs = bench.repeat("T5", {"undivided": lambda: run(TIMESLICE_US), "divided": lambda: run(third_us)})
    settings, places = [], []
    for name, duels in runs.items():
        all_of_a = PROCESSES * quantised_us(slices_us[name])
        expected = all_of_a / (all_of_a + TIMESLICE_US)
        found = interval([duel.share("A") for duel in duels])
        places.append(place(found, expected - TOLERANCE, expected + TOLERANCE))
        settings.append(
            {
                "name": name,
                "timeslice_us": {"A": [slices_us[name]] * PROCESSES, "B": TIMESLICE_US},
                "expected": expected,
                "share": found.document(),
                "samples": [round(duel.share("A"), 6) for duel in duels],
            }
        )
    verdict = verdict_of(places)
    reason = {
        "pass": "three channel groups get three timeslices, and one's worth if it is divided among them",
        "fail": "shares do not follow the number of channel groups times their timeslice",
    }.get(verdict, "the shares vary too much to tell")
    return described(verdict, reason, {"undivided": settings[0]["share"], "divided": settings[1]["share"]}, settings)


def long_beside_short(bench: Bench, *, ask_wfi: bool = False, preemption: Preemption = "pass") -> Duel:
    """Each kernel of A lasts half of the run. B has a short kernel every period."""
    long_us = bench.effort.seconds / 2 * 1e6
    rounds = bench.rounds("compute", SHORT_KERNEL_US)
    a = Tenant(
        name="A",
        rounds=round(rounds * long_us / SHORT_KERNEL_US),
        depth=1,
        timeslice_us=TIMESLICE_US,
        ask_wfi=ask_wfi,
        preemption=preemption,
    )
    b = Tenant(name="B", rounds=rounds, period_us=PERIOD_US, timeslice_us=TIMESLICE_US)
    return bench.run([a, b])


def latencies(duels: Sequence[Duel]) -> list[float]:
    return [latency for duel in duels for latency in duel.latencies_us("B")]


def latency_setting(name: str, duels: Sequence[Duel]) -> dict[str, Any]:
    found = latencies(duels)
    return {
        "name": name,
        "timeslice_us": {"A": TIMESLICE_US, "B": TIMESLICE_US},
        "latency_us": {"p50": quantile(found, 0.5), "p99": quantile(found, 0.99), "count": len(found)},
        "bound_us": LATENCY_BOUND_US,
        "wfi_status": sorted({status_word(status) for d in duels for r in d.results for status in r.wfi_statuses}),
    }


def t6(bench: Bench) -> dict[str, Any]:
    """Is a kernel of several seconds preempted at the end of its timeslice?"""
    runs = bench.repeat("T6", {"long kernel": lambda: long_beside_short(bench)})
    setting = latency_setting("long kernel", runs["long kernel"])
    p99 = setting["latency_us"]["p99"]
    verdict: Verdict = "pass" if p99 <= LATENCY_BOUND_US else "fail"
    reason = {
        "pass": "a short kernel waits no longer for a long one than timeslices explain",
        "fail": "a short kernel waits longer for a long one than timeslices explain",
    }[verdict]
    return described(verdict, reason, {"p99_us": p99, "bound_us": LATENCY_BOUND_US}, [setting])


def t7(bench: Bench) -> dict[str, Any]:
    """A tenant asks for kernels that cannot be preempted: the effect, and the effect of filtering the request."""
    ways: dict[str, Preemption] = {"unfiltered": "pass", "refused": "refuse-wfi", "made CILP": "cilp"}
    runs = bench.repeat(
        "T7",
        {
            name: (lambda way=way: long_beside_short(bench, ask_wfi=True, preemption=way))  # type: ignore[misc]
            for name, way in ways.items()
        },
    )
    settings = [latency_setting(name, duels) for name, duels in runs.items()]
    p99 = {setting["name"]: setting["latency_us"]["p99"] for setting in settings}
    filtered = max(p99["refused"], p99["made CILP"])
    cheats = p99["unfiltered"] > LATENCY_BOUND_US
    asked = next(setting["wfi_status"] for setting in settings if setting["name"] == "unfiltered")
    verdict: Verdict = "pass" if filtered <= LATENCY_BOUND_US else "fail"
    if asked != ["OK"]:
        verdict = "inconclusive"
        reason = f"the request was not accepted: {', '.join(asked) or 'no channel or no subdevice was seen'}"
    elif verdict == "fail":
        reason = "a short kernel waits too long although the request for unpreemptible kernels was filtered"
    elif cheats:
        reason = "unpreemptible kernels hold the neighbour up, and filtering the request helps"
    else:
        reason = "asking for unpreemptible kernels does no harm here"
    return described(verdict, reason, {"p99_us": p99, "cheat_works": cheats, "bound_us": LATENCY_BOUND_US}, settings)
