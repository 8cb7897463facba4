# SPDX-License-Identifier: Apache-2.0
"""Requests of several items with gaps: when the engine is held for them, what fills the gaps, and who pays: R5."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.rig.client import Client
from tests.rig.figures import Record
from tests.rig.gpu import Gpu, poll
from tests.rig.trace import traced
from vgpumgr.control.model import Tenant

CHUNK_US = 400
SECONDS = 2.0
# 4 items of 200 us with 300 us between them, then 6 ms of nothing
REQUESTS: dict[str, Any] = {"op": "delay", "delay_us": 200, "request": 4, "gap_us": 300, "nap_us": 6000}
RESERVED: dict[str, Any] = {"band": "latency", "reserve_us": 3000, "reserve_period_us": 8000}
HOLDS: dict[str, Any] = {**RESERVED, "hold_max_us": 1000}


@dataclass(frozen=True)
class Served:
    """The outcome of the requests, and of the tenant that had the rest of the engine."""

    mean_us: float
    tenant: Tenant
    other: Tenant | None

    @property
    def other_ns(self) -> int:
        return self.other.run_ns if self.other else 0


def served(
    gpu: Gpu,
    settings: dict[str, Any],
    *,
    beside: dict[str, Any] | None,
    chunk_us: int = CHUNK_US,
    **options: object,
) -> Served:
    """Requests of tenant "steps" with these settings, beside a tenant "filler" with this load."""
    gpu.clear()
    gpu.set_max_chunk_us(chunk_us)
    gpu.tenant("steps", weight=100, timeslice_us=4000, **settings)
    steps = gpu.slice("steps")
    load: dict[str, Any] = {steps: {**REQUESTS, **options}}
    if beside:
        gpu.tenant("filler", weight=100, timeslice_us=4000)
        load[gpu.slice("filler")] = beside
    with gpu.loaded(load, seconds=SECONDS) as outcomes:
        pass
    report = outcomes[0].report("name", steps)
    assert report["requests"] > 50
    return Served(
        mean_us=report["request_ns"] / report["requests"] / 1000,
        tenant=gpu.stats("steps"),
        other=gpu.stats("filler") if beside else None,
    )


def inversion_bound_ns(permille: int, *, chunk_us: int = CHUNK_US) -> float:
    """Invariant 14: T * permille / 1000 + burst + one chunk; the burst is one chunk where none was set."""
    return (SECONDS + 1) * 1e6 * permille + 2 * chunk_us * 1000


def test_gaps_are_filled_and_the_holders_slowdown_is_bounded(gpu: Gpu, figures: Record) -> None:
    """Items of 100 us fit into gaps of 300 us: once their lengths are known, others get most of the gaps."""
    short = {"op": "delay", "delay_us": 100}
    alone = served(gpu, HOLDS, beside=None)
    unfilled = served(gpu, HOLDS, beside=short)
    filled = served(gpu, {**HOLDS, "inversion_permille": 10}, beside=short)

    figures("4 steps with gaps, held, beside 100 us items", unfilled.mean_us, against=alone.mean_us, unit="us alone")
    figures("4 steps with gaps, filled by 100 us items", filled.mean_us, against=alone.mean_us, unit="us alone")
    figures("inversion, 10 permille", filled.tenant.inversion_ns, against=inversion_bound_ns(10), unit="ns, at most")
    figures(
        "engine time of who fills", filled.other_ns / 1e6, against=unfilled.other_ns / 1e6, unit="ms without filling"
    )
    assert (unfilled.tenant.fills, unfilled.tenant.inversion_ns) == (0, 0)
    assert unfilled.tenant.holds > 300
    assert filled.tenant.fills > 300
    assert filled.tenant.hold_ns < unfilled.tenant.hold_ns / 2
    assert filled.other_ns > unfilled.other_ns * 1.05
    assert filled.tenant.inversion_ns <= inversion_bound_ns(10)
    # the first item of a request may wait for the chunk under way, the later ones for as long as the inversion budget
    # allows
    assert unfilled.mean_us <= alone.mean_us + CHUNK_US
    assert filled.mean_us <= alone.mean_us + CHUNK_US + inversion_bound_ns(10) / 1000 / 300


def test_what_does_not_fit_waits_for_the_end_of_the_request(gpu: Gpu, figures: Record) -> None:
    """Items of 800 us do not fit into gaps of 300 us: without a hold, each gap costs the rest of such an item."""
    chunk_us = 800
    long = {"op": "delay", "delay_us": chunk_us, "nosplit": True}
    unheld = served(gpu, RESERVED, beside=long, chunk_us=chunk_us)
    held = served(gpu, {**HOLDS, "inversion_permille": 1}, beside=long, chunk_us=chunk_us)

    bound_ns = inversion_bound_ns(1, chunk_us=chunk_us)
    figures("4 steps with gaps beside 800 us items, held", held.mean_us, against=unheld.mean_us, unit="us not held")
    figures("inversion, 1 permille", held.tenant.inversion_ns, against=bound_ns, unit="ns, at most")
    assert unheld.tenant.holds == 0
    assert held.tenant.holds > 300
    assert held.mean_us < unheld.mean_us - chunk_us
    assert held.tenant.inversion_ns <= bound_ns


def test_every_nanosecond_of_a_holder_is_in_the_trace(gpu: Gpu) -> None:
    """Runs and holds of the trace add up exactly to the charge in the counters."""
    with traced() as trace:
        result = served(gpu, {**HOLDS, "inversion_permille": 10}, beside={"op": "delay", "delay_us": 100})
    held_ns = sum(hold.length_ns for hold in trace.holds)
    assert {hold.tenant for hold in trace.holds} == {"steps"}
    assert held_ns == result.tenant.hold_ns > 0
    assert result.tenant.run_ns == held_ns + sum(run.length_ns for run in trace.runs if run.tenant == "steps")
    assert result.other_ns == sum(run.length_ns for run in trace.runs if run.tenant == "filler")


def test_a_hold_ends_when_the_guest_takes_its_word_back(gpu: Gpu, figures: Record) -> None:
    """The last item says that more follow: the engine is held up to the limit, or until an item says that none
    follows."""
    other = {"op": "delay", "delay_us": CHUNK_US, "nosplit": True}
    lied = served(gpu, HOLDS, beside=other, lie=True)
    ended = served(gpu, HOLDS, beside=other, end=True)
    told = served(gpu, HOLDS, beside=other)

    for name, result in (("none", lied), ("one", ended), ("no need for one", told)):
        figures(
            f"hold time with {name} to end a request", result.tenant.hold_ns / 1e6, against=SECONDS * 1000, unit="ms"
        )
    assert lied.tenant.hold_ns > told.tenant.hold_ns * 1.5
    assert ended.tenant.hold_ns < told.tenant.hold_ns * 1.2


def test_a_request_that_is_taken_back_teaches_nothing(gpu: Gpu) -> None:
    """The scheduler learns gaps from items that did follow; before it knows one, nobody fills gaps."""
    settings, short = {**HOLDS, "inversion_permille": 10}, {"op": "delay", "delay_us": 50}
    taken_back = served(gpu, settings, beside=short, request=1, gap_us=1, end=True)
    followed = served(gpu, settings, beside=short, request=1, gap_us=1, nap_us=300, lie=True)
    assert taken_back.tenant.holds > 100
    assert taken_back.tenant.fills == 0
    assert followed.tenant.fills > 100


@contextmanager
def long_hold(gpu: Gpu) -> Iterator[Client]:
    """A client whose item announces more items that never come; its tenant may hold the engine for a second."""
    gpu.tenant(
        "holder", weight=100, timeslice_us=4000, band="latency", reserve_us=1_500_000, reserve_period_us=4_000_000,
        hold_max_us=1_000_000,
    )  # fmt: skip
    options = ("--request", "2", "--gap-us", "20000000", "--items", "2", "--op", "delay", "--delay-us", "50")
    client = Client(["--json", gpu.slice("holder"), "saturate", *options])
    try:
        poll(lambda: gpu.stats("holder").hold_ns > 0)
        yield client
    finally:
        client.kill()


def kill(gpu: Gpu, client: Client) -> None:
    client.kill()


def demote(gpu: Gpu, client: Client) -> None:
    gpu.tenant("holder", band="fair")


@pytest.mark.parametrize("end", [kill, demote])
def test_a_hold_ends_with_its_reason_and_the_engine_is_free_at_once(
    gpu: Gpu, end: Callable[[Gpu, Client], None]
) -> None:
    """The hold ends with the process that had the slice, or with the reservation: waiting tenants run at once."""
    gpu.tenant("waiter", weight=100, timeslice_us=4000)
    waiter = gpu.slice("waiter")
    with long_hold(gpu) as client:
        with gpu.loaded({waiter: {"op": "delay", "delay_us": 100}}):
            assert gpu.stats("waiter").run_ns == 0, "something executes during a hold that allows no fill"
            end(gpu, client)
            poll(lambda: gpu.stats("waiter").run_ns > 50_000_000)
        assert gpu.stats("holder").hold_ns < 800_000_000
        assert gpu.stats("holder").holds == 1


def test_a_lie_about_what_follows_costs_its_sender_only(gpu: Gpu, figures: Record) -> None:
    """A tenant that always announces items that never come pays for it, and its neighbour gets no less than its
    share."""
    gpu.set_max_chunk_us(CHUNK_US)
    gpu.tenant("liar", weight=100, timeslice_us=4000, **{**RESERVED, "reserve_us": 1800}, hold_max_us=1_000_000)
    gpu.tenant("neighbour", weight=300, timeslice_us=4000)
    load: dict[str, Any] = {
        gpu.slice("liar"): {"op": "delay", "delay_us": 20, "request": 2, "gap_us": 10, "nap_us": 10, "lie": True},
        gpu.slice("neighbour"): {"op": "delay", "delay_us": 200},
    }
    with gpu.loaded(load):
        window = gpu.measured_over(3)

    liar = window.last.tenants["liar"]
    figures("share of the neighbour of a liar", window.share_of_wall["neighbour"], against=0.75, unit="of all time")
    assert liar.holds > 0
    bound = (4000 + CHUNK_US + 1800 + CHUNK_US) / 1e6 / window.seconds
    assert window.share_of_wall["neighbour"] >= 0.75 - 2 * bound


def test_who_is_not_of_the_latency_band_holds_nothing(gpu: Gpu) -> None:
    result = served(gpu, {}, beside={"op": "delay", "delay_us": 100}, lie=True)
    assert (result.tenant.holds, result.tenant.hold_ns, result.tenant.latency_ns) == (0, 0, 0)
