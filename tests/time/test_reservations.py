# SPDX-License-Identifier: Apache-2.0
"""A tenant with a reservation does not wait, gets the reserved time, and takes it from nobody: R6, R7, R3."""

import itertools
from typing import Any

import pytest

from tests.rig.client import client
from tests.rig.figures import Record
from tests.rig.gpu import Gpu, Load
from tests.rig.trace import traced

CHUNK_US = 400
POINT = 0.01  # of the engine
WORK: dict[str, Any] = {"item_us": 50, "period_us": 5000, "seconds": 2}


def latency(uuid: str, *, item_us: int, period_us: int, seconds: float) -> dict[str, Any]:
    """One item in every period, from doorbell to completion."""
    options = ("--delay-us", str(item_us), "--period-us", str(period_us), "--seconds", f"{seconds:g}")
    return client(uuid, "latency", *options).reports[-1]


def neighbours(gpu: Gpu, *, count: int, weight: int = 100) -> Load:
    """Saturating tenants whose items last five chunks."""
    load: Load = {}
    for number in range(count):
        gpu.tenant(f"neighbour-{number}", weight=weight, timeslice_us=4000)
        load[gpu.slice(f"neighbour-{number}")] = {"op": "delay", "delay_us": 5 * CHUNK_US}
    return load


def test_a_reservation_wakes_within_a_chunk_beside_saturating_neighbours(gpu: Gpu, figures: Record) -> None:
    """The wait counts from the moment its item is there. In the fair band the same tenant waits for a neighbour's
    timeslice."""
    gpu.set_max_chunk_us(CHUNK_US)
    gpu.tenant("urgent", weight=100, timeslice_us=4000)
    urgent = gpu.slice("urgent")
    with gpu.loaded(neighbours(gpu, count=3)):
        with traced() as in_fair_band:
            latency(urgent, **WORK)
        gpu.tenant("urgent", band="latency", reserve_us=200, reserve_period_us=5000)
        with traced() as in_latency_band:
            reserved = latency(urgent, **WORK)

    waits_ns = in_latency_band.waits_ns("urgent")
    figures(
        "50 us item, reserved: longest wait for the engine", max(waits_ns) / 1000, against=CHUNK_US, unit="us chunk"
    )
    assert reserved["items"] == len(waits_ns) == 400
    assert max(waits_ns) <= (CHUNK_US + 100) * 1000
    assert max(in_fair_band.waits_ns("urgent")) > 2 * max(waits_ns), "the neighbours are in nobody's way"


@pytest.mark.emulated
def test_a_client_sees_its_reservation_wake_within_a_chunk(gpu: Gpu, figures: Record) -> None:
    """From doorbell to completion, without tracing: recording would cost the lab host's only processor time."""
    gpu.set_max_chunk_us(CHUNK_US)
    gpu.tenant("urgent", weight=100, timeslice_us=4000)
    urgent = gpu.slice("urgent")
    alone = latency(urgent, **WORK)
    with gpu.loaded(neighbours(gpu, count=3)):
        fair = latency(urgent, **WORK)
        gpu.tenant("urgent", band="latency", reserve_us=200, reserve_period_us=5000)
        before = gpu.stats("urgent")
        reserved = latency(urgent, **WORK)
        after = gpu.stats("urgent")

    for name, measured in (("fair band", fair), ("reserved", reserved)):
        figures(
            f"50 us item beside 3 neighbours, {name}, worst",
            measured["max_ns"] / 1000,
            against=alone["max_ns"] / 1000,
            unit="us alone",
        )
    assert reserved["items"] == 400
    assert reserved["max_ns"] <= alone["max_ns"] + (CHUNK_US + 100) * 1000, reserved
    assert fair["max_ns"] > 2 * reserved["max_ns"], "the neighbours are in nobody's way"
    assert after.latency_ns - before.latency_ns == after.run_ns - before.run_ns > 400 * 50_000


def test_a_reservation_is_served_in_full_and_is_no_addition(gpu: Gpu, figures: Record) -> None:
    """20 % reserved of a 25 % share: 20 % before all others, 25 % in all; runs are cut at the reasons in the trace."""
    gpu.set_max_chunk_us(CHUNK_US)
    reserve_us, period_us, window_s = 2000, 10_000, 4
    gpu.tenant(
        "urgent", weight=100, timeslice_us=4000, band="latency", reserve_us=reserve_us, reserve_period_us=period_us
    )
    load = neighbours(gpu, count=3)
    load[gpu.slice("urgent")] = {"op": "delay", "delay_us": 5 * CHUNK_US}
    with gpu.loaded(load), traced() as trace:
        window = gpu.measured_over(window_s)

    first, last = window.first.tenants["urgent"], window.last.tenants["urgent"]
    served = (last.latency_ns - first.latency_ns) / 1e9 / window.seconds
    figures("reserved 20 % of 25 %, served before others", served, against=0.2, unit="of the engine")
    figures("reserved 20 % of 25 %, share", window.share["urgent"], against=0.25, unit="of the engine")
    slack = (2 * reserve_us + CHUNK_US) / 1e6 / window.seconds
    assert served == pytest.approx(0.2, abs=slack)
    assert window.share["urgent"] == pytest.approx(0.25, abs=POINT)
    assert last.demotions - first.demotions == pytest.approx(window.seconds * 1e6 / period_us, abs=2)
    reasons = {(run.tenant == "urgent", run.reason) for run in trace.runs}
    assert (True, "budget") in reasons
    assert (False, "latency") in reasons
    assert (False, "budget") not in reasons


def test_nobody_waits_longer_for_many_reservations_than_was_admitted(gpu: Gpu, figures: Record) -> None:
    """Three reservations at once with different deadlines, beside a neighbour that saturates."""
    gpu.set_max_chunk_us(CHUNK_US)
    period_us = {"a": 5000, "b": 8000, "c": 13_000}
    load: Load = {}
    for name, period in period_us.items():
        gpu.tenant(
            name, weight=100, timeslice_us=4000, band="latency", reserve_us=300, reserve_period_us=period,
        )  # fmt: skip
        load[gpu.slice(name)] = {"op": "delay", "delay_us": 200, "nap_us": period - 200}
    load |= neighbours(gpu, count=1, weight=300)
    with gpu.loaded(load), traced() as trace:
        window = gpu.measured_over(3)

    for name, period in period_us.items():
        starts = [run.start_ns for run in trace.runs if run.tenant == name]
        apart_us = max(later - earlier for earlier, later in itertools.pairwise(starts)) / 1000
        figures(f"three reservations, {name}: worst time between two items", apart_us, against=period, unit="us asked")
        # it asks again one period after its item: the others' reservations and one chunk may run first
        assert apart_us <= period + 3 * CHUNK_US + 2 * 300
        assert window.last.tenants[name].demotions == 0
    assert window.share_of_wall["neighbour-0"] > 0.5
