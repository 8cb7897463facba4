# SPDX-License-Identifier: Apache-2.0
"""Caps, soft limits with reclaim, and requests with limits (cGPU, GaiaGPU, KubeShare).

    python -m tests.bench.sched.caps [--json]

Caps: in *every* window of any length T, use is at most rate * T + burst + one chunk. To check this, look at use minus
rate * time at the edges of runs: its largest rise above an earlier minimum is the largest excess of any window.
Reclaim: an owner that was away comes back while others use its share. It has its share back after a delay d if, at each
moment t after its return, it has obtained at least its share of t - d. Request and limit: how far the use in any window
of 1 s is below the request.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.bench.sched.backlogs import MS, SECOND, US, endless, kernels
from tests.bench.sched.result import digest, interval, main, target
from vgpumgr.policy import request_limit, soft_limit
from vgpumgr.policy.request_limit import RequestLimit
from vgpumgr.policy.soft_limit import SoftLimit
from vgpumgr.sched.core import Band
from vgpumgr.sim.engine import EngineModel, GroupParams, Program, SimGroup, Simulation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SEEDS = range(1, 6)
CHUNK_NS = 400 * US
TIMESLICE_NS = 1 * MS
WINDOW_NS = SECOND
CAPPED_NS = 30 * SECOND
PERIOD_NS = 10 * MS
# Percent of the engine; the caps of several tenants add up to at most 100, so that all can be reached.
CAPS = {
    "1 tenant, 5 %": (5,),
    "1 tenant, 25 %": (25,),
    "1 tenant, 50 %": (50,),
    "1 tenant, 90 %": (90,),
    "4 tenants, 5 to 45 %": (5, 10, 20, 45),
    "16 tenants, 5 %": (5,) * 16,
    "16 tenants, 5 to 15 %": (5,) * 14 + (15, 15),
}
# The agent sets two timeslices of burst; the core's own default is one.
BURSTS_NS = {"vgpumgr": 2 * TIMESLICE_NS, "vgpumgr, burst 1 ms": TIMESLICE_NS, "vgpumgr, burst 8 ms": 8 * TIMESLICE_NS}
CAPPERS = (*BURSTS_NS, "vcuda", "gvt_g", "gemini", "timeslice", "fifo")
BURST_NS = BURSTS_NS["vgpumgr"]

# The owner is first. It stays within its share; the others may use idle time.
RECLAIMS = {
    "an owner of 60 % comes back to four elastic tenants of 10 %": (600, 100, 100, 100, 100),
    "an owner of 5 % comes back to three elastic tenants of 30 %": (50, 300, 300, 300),
}
# The policy's own burst, and one of two timeslices.
SHORT_BURST = "vgpumgr, burst 2 ms"
RECLAIMERS = ("vgpumgr", SHORT_BURST, "vcuda", "gvt_g", "gemini", "timeslice", "fifo")
AWAY_NS, BACK_NS = 2 * SECOND, 2 * SECOND
RETURNS = 40
RESERVE_LIMIT_PERMILLE = 750
# vcuda-controller looks at the engine every 120 ms.
VCUDA_TICK_NS = 120 * MS

PROMISES = (
    RequestLimit(request_permille=400, limit_permille=1000),
    RequestLimit(request_permille=300, limit_permille=600),
    RequestLimit(request_permille=200, limit_permille=200),
    RequestLimit(request_permille=50, limit_permille=1000),
)
PROMISERS = ("vgpumgr", "gemini", "gvt_g", "timeslice", "fifo")


@dataclass(frozen=True)
class Capped:
    """Figures of the worst tenant. excess_ns: the excess of any window above its rate; errors in percent of the engine,
    1 s windows.
    """

    excess_ns: float
    over: float
    off_beyond: float
    off_mean: float
    off_p99: float
    slowdown: float
    due_slowdown: float
    schedule: str


def _edges(runs: NDArray[Any], group: int, until_ns: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the moments at which a group starts or stops using the engine, and its use up to each of them."""
    own = runs[runs["group"] == group]
    at = np.zeros(2 * len(own) + 2)
    used = np.zeros(2 * len(own) + 2)
    at[1:-1:2], at[2:-1:2], at[-1] = own["start_ns"], own["start_ns"] + own["length_ns"], until_ns
    used[2:-1:2] = np.cumsum(own["length_ns"])
    used[1:-1:2] = used[0:-2:2]
    used[-1] = used[-2]
    return at, used


def most_excess_ns(at: NDArray[np.float64], used: NDArray[np.float64], rate: float) -> float:
    """Return by how much use exceeds rate * T in the worst window of any length."""
    above = used - rate * at
    return float((above - np.minimum.accumulate(above)).max())


def _in_windows(at: NDArray[np.float64], used: NDArray[np.float64], from_ns: int, until_ns: int) -> NDArray[np.float64]:
    """Return the use in every window of 1 s that begins or ends at an edge; these include the minimum and the
    maximum.
    """
    begins = np.concatenate([at, at - WINDOW_NS])
    begins = begins[(begins >= from_ns) & (begins <= until_ns - WINDOW_NS)]
    return np.interp(begins + WINDOW_NS, at, used) - np.interp(begins, at, used)


def _group(percent: int, burst_ns: int) -> GroupParams:
    return GroupParams(
        weight=percent,
        timeslice_ns=TIMESLICE_NS,
        cap_ns=percent * PERIOD_NS // 100,
        cap_period_ns=PERIOD_NS,
        burst_ns=burst_ns,
    )


def _play_caps(case: str, scheduler: str, seed: int, until_ns: int) -> Capped:
    caps = CAPS[case]
    sim = Simulation(EngineModel(max_chunk_ns=CHUNK_NS), scheduler.partition(",")[0], seed=seed)
    works = kernels(len(caps), seed, most_ns=CHUNK_NS)
    for number, (percent, work_ns) in enumerate(zip(caps, works, strict=True)):
        sim.add_slice(
            sim.add_group(f"t{number}", _group(percent, BURSTS_NS.get(scheduler, BURST_NS))), endless(work_ns)
        )
    if scheduler == "gvt_g" and sum(caps) < 100:
        # In gvt_g a weight is the cap, so an idle tenant holds the rest.
        rest = sim.add_group("rest", GroupParams(weight=100 - sum(caps), timeslice_ns=TIMESLICE_NS))
        sim.add_slice(rest, Program(work_ns=1, count=0))
    sim.run_until(until_ns)
    runs, allowed_ns = sim.runs(), BURSTS_NS.get(scheduler, BURST_NS) + CHUNK_NS
    excess, off, slowdowns = [], [], []
    for number, percent in enumerate(caps):
        at, used = _edges(runs, number, until_ns)
        excess.append(most_excess_ns(at, used, percent / 100))
        off.append(_in_windows(at, used, until_ns // 5, until_ns) - percent / 100 * WINDOW_NS)
        slowdowns.append((until_ns / used[-1] if used[-1] else math.inf, 100 / percent))
    far = [np.abs(one) for one in off]
    slowdown, due = max(slowdowns, key=lambda one: one[0] / one[1])
    return Capped(
        excess_ns=max(excess),
        over=100 * max(max(one.max() for one in off) / WINDOW_NS, 0.0),
        off_beyond=100 * max(max(one.max() for one in far) - allowed_ns, 0) / WINDOW_NS,
        off_mean=100 * max(one.mean() for one in far) / WINDOW_NS,
        off_p99=100 * max(float(np.quantile(one, 0.99)) for one in far) / WINDOW_NS,
        slowdown=slowdown,
        due_slowdown=due,
        schedule=sim.schedule_hash,
    )


class _ElasticVcuda:
    """How vcuda-controller sets limits: a tenant that is alone gets the elastic maximum; a new tenant resets all
    limits.

    With several tenants, each gains a tenth of its own limit every 30 looks if more than 5 % of the engine was free.
    """

    def __init__(self, sim: Simulation, limits: Sequence[SoftLimit], groups: Sequence[SimGroup]) -> None:
        self._sim, self._limits, self._groups = sim, limits, groups
        self._now = [limit.share_permille for limit in limits]
        self._looks = self._idle_ns = 0

    def newcomer(self) -> None:
        for number, limit in enumerate(self._limits):
            self._set(number, limit.share_permille)
        self._looks = 0

    def look(self) -> None:
        self._looks += 1
        if self._looks % 30:
            return
        idle_ns = self._sim.counters().idle_ns
        if idle_ns - self._idle_ns > 0.05 * 30 * VCUDA_TICK_NS:
            for number, limit in enumerate(self._limits):
                self._set(number, min(limit.cap_permille, self._now[number] + limit.share_permille // 10))
        self._idle_ns = idle_ns

    def _set(self, number: int, permille: int) -> None:
        if self._now[number] != permille:
            self._now[number] = permille
            self._sim.update_group(self._groups[number], _limited(permille))


def _limited(permille: int) -> GroupParams:
    return GroupParams(
        weight=permille, timeslice_ns=TIMESLICE_NS, cap_ns=permille * PERIOD_NS // 1000, cap_period_ns=PERIOD_NS
    )


@dataclass(frozen=True)
class Reclaimed:
    """Figures of each return. first_ms: until the first service; delay_ms: until the owner has its share back (see the
    module).

    used: how much of the time that the owner left while it was away, in percent.
    """

    first_ms: NDArray[np.float64]
    delay_ms: NDArray[np.float64]
    used: float
    schedule: str


def _play_reclaim(case: str, scheduler: str, seed: int, returns: int) -> Reclaimed:
    random = np.random.default_rng(seed)
    limits = [SoftLimit(share_permille=share, elastic=number > 0) for number, share in enumerate(RECLAIMS[case])]
    ours = scheduler.startswith("vgpumgr")
    engine = soft_limit.Engine(
        timeslice_ns=TIMESLICE_NS, max_chunk_ns=CHUNK_NS, reserve_limit_permille=RESERVE_LIMIT_PERMILLE
    )
    sim = Simulation(
        EngineModel(max_chunk_ns=CHUNK_NS),
        scheduler.partition(",")[0],
        parameters={"reserve_limit_permille": RESERVE_LIMIT_PERMILLE} if ours else None,
        seed=seed,
    )
    groups = []
    for number, terms in soft_limit.terms(dict(enumerate(limits)), engine).items():
        params = GroupParams(
            timeslice_ns=TIMESLICE_NS,
            band=Band.LATENCY if terms.reserve_ns else Band.FAIR,
            **(vars(terms) | ({"burst_ns": BURST_NS} if scheduler == SHORT_BURST else {})),
        )
        groups.append(sim.add_group(f"t{number}", params if ours else _limited(limits[number].share_permille)))
    owner, *others = (
        sim.add_slice(group, endless(work_ns))
        for group, work_ns in zip(groups, kernels(len(limits), seed, most_ns=CHUNK_NS), strict=True)
    )
    vcuda = _ElasticVcuda(sim, limits, groups) if scheduler == "vcuda" else None
    back_ns, away_ns, used_ns = [], 0, 0
    for _ in range(returns):
        sim.park_slice(owner)
        away_ns -= sim.now_ns
        used_ns -= sum(sim.slice_counters(one).run_ns for one in others)
        _run(sim, AWAY_NS + round(random.uniform(0, SECOND)), vcuda)
        away_ns += sim.now_ns
        used_ns += sum(sim.slice_counters(one).run_ns for one in others)
        sim.park_slice(owner, parked=False)
        back_ns.append(sim.now_ns)
        if vcuda:
            vcuda.newcomer()
        _run(sim, BACK_NS, vcuda)
    at, used = _edges(sim.runs(), owner.index, sim.now_ns)
    share = limits[0].share_permille / 1000
    waits = np.array([_waits(at, used, start, share) for start in back_ns]) / MS
    theirs_ns = away_ns * sum(one.share_permille for one in limits[1:]) / 1000
    return Reclaimed(
        first_ms=waits[:, 0],
        delay_ms=waits[:, 1],
        used=100 * (used_ns - theirs_ns) / (away_ns - theirs_ns),
        schedule=sim.schedule_hash,
    )


def _run(sim: Simulation, ns: int, vcuda: _ElasticVcuda | None) -> None:
    until_ns = sim.now_ns + ns
    while vcuda and sim.now_ns // VCUDA_TICK_NS < until_ns // VCUDA_TICK_NS:
        sim.run_until((sim.now_ns // VCUDA_TICK_NS + 1) * VCUDA_TICK_NS)
        vcuda.look()
    sim.run_until(until_ns)


def _waits(at: NDArray[Any], used: NDArray[Any], start_ns: int, share: float) -> tuple[float, float]:
    """Return the time until the first service, and the delay until the owner has its share; both are at most the
    owner's stay.
    """
    stay = (at >= start_ns) & (at <= start_ns + BACK_NS)
    since = np.append(at[stay], start_ns + BACK_NS) - start_ns
    had = np.interp(since + start_ns, at, used) - np.interp(start_ns, at, used)
    return float(since[0]), float(np.maximum(since - had / share, 0).max())


@dataclass(frozen=True)
class Promised:
    """In windows of 1 s, in percent: how far the worst tenant is below its request, and above its limit."""

    of_engine: float
    of_request: float
    mean_of_request: float
    over_limit: float
    slowdown: float
    schedule: str


def _play_promises(scheduler: str, seed: int, until_ns: int) -> Promised:
    sim = Simulation(EngineModel(max_chunk_ns=CHUNK_NS), scheduler, seed=seed)
    terms = request_limit.terms(dict(enumerate(PROMISES)), period_ns=PERIOD_NS)
    for number, work_ns in enumerate(kernels(len(PROMISES), seed, most_ns=CHUNK_NS)):
        params = GroupParams(timeslice_ns=TIMESLICE_NS, **(vars(terms[number]) | {"burst_ns": BURST_NS}))
        sim.add_slice(sim.add_group(f"t{number}", params), endless(work_ns))
    sim.run_until(until_ns)
    runs = sim.runs()
    below, mean, over, slowdown = [], [], [], 0.0
    for number, promise in enumerate(PROMISES):
        at, used = _edges(runs, number, until_ns)
        windows = _in_windows(at, used, until_ns // 5, until_ns) / WINDOW_NS
        request = promise.request_permille / 1000
        below.append((max(request - windows.min(), 0.0), request))
        mean.append(float(np.maximum(request - windows, 0).mean()) / request)
        over.append(max(windows.max() - promise.limit_permille / 1000, 0.0))
        slowdown = max(slowdown, until_ns / used[-1] * request)
    return Promised(
        of_engine=100 * max(one for one, _ in below),
        of_request=100 * max(one / request for one, request in below),
        mean_of_request=100 * max(mean),
        over_limit=100 * max(over),
        slowdown=slowdown,
        schedule=sim.schedule_hash,
    )


def measure(*, quick: bool = False) -> dict[str, Any]:
    seeds, until_ns, returns = ((1, 2), 3 * SECOND, 2) if quick else (SEEDS, CAPPED_NS, RETURNS)
    capping = [(case, name, seed, until_ns) for case in CAPS for name in CAPPERS for seed in seeds]
    reclaiming = [(case, name, seed, returns) for case in RECLAIMS for name in RECLAIMERS for seed in seeds]
    promising = [(name, seed, 2 * until_ns) for name in PROMISERS for seed in seeds]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        capped = dict(zip(capping, pool.map(_play_caps, *zip(*capping, strict=True)), strict=True))
        reclaimed = dict(zip(reclaiming, pool.map(_play_reclaim, *zip(*reclaiming, strict=True)), strict=True))
        promised = dict(zip(promising, pool.map(_play_promises, *zip(*promising, strict=True)), strict=True))

    def of_cap(case: str, name: str) -> list[Capped]:
        return [capped[case, name, seed, until_ns] for seed in seeds]

    def of_reclaim(case: str, name: str) -> list[Reclaimed]:
        return [reclaimed[case, name, seed, returns] for seed in seeds]

    def of_promise(name: str) -> list[Promised]:
        return [promised[name, seed, 2 * until_ns] for seed in seeds]

    tables: dict[str, Any] = {
        f"caps: {case}": {name: _cap_row(of_cap(case, name)) for name in CAPPERS} for case in CAPS
    }
    tables |= {case: {name: _reclaim_row(of_reclaim(case, name)) for name in RECLAIMERS} for case in RECLAIMS}
    tables["requests 40, 30, 20, 5 %, limits 100, 60, 20, 100 %: windows of 1 s"] = {
        name: _promise_row(of_promise(name)) for name in PROMISERS
    }
    bound = max(
        one.excess_ns - burst_ns - CHUNK_NS
        for name, burst_ns in BURSTS_NS.items()
        for case in CAPS
        for one in of_cap(case, name)
    )
    off = {name: max(one.off_beyond for case in CAPS for one in of_cap(case, name)) for name in BURSTS_NS}
    delays = {
        name: max(float(np.quantile(one.delay_ms, 0.99)) for case in RECLAIMS for one in of_reclaim(case, name))
        for name in RECLAIMERS[:2]
    }
    longest_wait = max(float(one.first_ms.max()) for one in of_reclaim(next(iter(RECLAIMS)), "vgpumgr"))
    of_engine = max(one.of_engine for one in of_promise("vgpumgr"))
    of_request = max(one.of_request for one in of_promise("vgpumgr"))
    return {
        "name": "Caps, reclaim, and requests with limits",
        "model": f"simulated engine, non-preemptible, kernels of at most {CHUNK_NS // US} us, no switch costs;"
        f" timeslices {TIMESLICE_NS // MS} ms, caps per {PERIOD_NS // MS} ms, burst {BURST_NS // MS} ms; every"
        f" tenant except the owner always has work; {until_ns // SECOND} s, twice that for requests; {returns} returns"
        " of each owner",
        "seeds": list(seeds),
        "baselines": [
            "vcuda-controller (without blocks: 40000 per ms), with its elastic limits for the reclaim",
            "GVT-g, whose weights are caps",
            "Gemini",
            "driver time slices of 2 ms, which ignore caps",
            "fifo",
            "alone (as slowdown)",
        ],
        "hashes": {
            "workload": digest(*(work for seed in seeds for work in kernels(16, seed, most_ns=CHUNK_NS)), CAPS),
            "schedule": digest([one.schedule for table in (capped, reclaimed, promised) for one in table.values()]),
        },
        "figures": tables,
        "targets": [
            target("use above rate x T + burst + chunk, ms, worst window", "<= 0", bound / MS, met=bound <= 0),
            *(
                target(
                    f"{name}: cap error over 1 s beyond burst + chunk, % of the engine", "<= 0.3", one, met=one <= 0.3
                )
                for name, one in off.items()
            ),
            *(
                target(f"{name}: ms until an owner has its part back, p99", "<= 10", one, met=one <= 10)
                for name, one in delays.items()
            ),
            target("below a request in any 1 s, % of the engine", "<= 1", of_engine, met=of_engine <= 1),
            target("below a request in any 1 s, % of the request", "<= 1", of_request, met=of_request <= 1),
        ],
        "losing": [
            "with a burst of one timeslice, the core's default, a tenant loses credit while it waits for its turn",
            (
                "with a longer burst a tenant loses less, but may use more at once: 8 ms and a chunk are already 0.84 %"
                " of 1 s"
            ),
            (
                f"an owner of 60 %, capped at 60 %, beside reservations waits {longest_wait:.1f} ms for its"
                f" turn; a burst of {BURST_NS // MS} ms cannot hold the credit of that time, and the rest is lost"
            ),
            (
                "in a window of 1 s a tenant may lack two lags, 0.28 % of the engine:"
                f" {of_request:.2f} % of the smallest request"
            ),
        ],
    }


def _cap_row(found: list[Capped]) -> dict[str, Any]:
    least = max(found, key=lambda one: one.slowdown / one.due_slowdown)
    return {
        "most above rate x T, ms": interval([one.excess_ns / MS for one in found]),
        "most above in 1 s, %": interval([one.over for one in found]),
        "error in 1 s, %: mean": interval([one.off_mean for one in found]),
        "p99": round(max(one.off_p99 for one in found), 3),
        "most beyond the constant": round(max(one.off_beyond for one in found), 3),
        "slowdown": round(least.slowdown, 2),
        "due": round(least.due_slowdown, 2),
    }


def _reclaim_row(found: list[Reclaimed]) -> dict[str, Any]:
    return {
        "has its part back, ms: p99": interval([float(np.quantile(one.delay_ms, 0.99)) for one in found]),
        "mean": interval([float(one.delay_ms.mean()) for one in found]),
        "longest": round(max(float(one.delay_ms.max()) for one in found), 2),
        "first service, ms: p99": round(max(float(np.quantile(one.first_ms, 0.99)) for one in found), 2),
        "part of the owner's unused time that others used, %": interval([one.used for one in found], digits=1),
    }


def _promise_row(found: list[Promised]) -> dict[str, Any]:
    return {
        "most below, % of the request": interval([one.of_request for one in found]),
        "mean below": interval([one.mean_of_request for one in found]),
        "most below, % of the engine": round(max(one.of_engine for one in found), 3),
        "most above a limit, %": round(max(one.over_limit for one in found), 3),
        "slowdown against its request": round(max(one.slowdown for one in found), 3),
    }


if __name__ == "__main__":
    main(measure)
