# SPDX-License-Identifier: Apache-2.0
"""Properties of every scheduler, engine and mix of programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.engines import MS, US, check_sums, params
from vgpumgr.sched.core import Band
from vgpumgr.sim.engine import Backlog, EngineModel, GroupParams, Program, SimSlice, Simulation, schedulers

DURATION_NS = 60 * MS
RESERVED = GroupParams(
    weight=100,
    timeslice_ns=MS,
    band=Band.LATENCY,
    reserve_ns=8 * MS,
    reserve_period_ns=30 * MS,
    hold_max_ns=MS,
    inversion_permille=20,
)


@dataclass(frozen=True)
class Mix:
    scheduler: str
    model: EngineModel
    tenants: tuple[tuple[int, int, int, tuple[Any, ...]], ...]
    seed: int

    def simulate(self, *stops: int, record_items: bool = False) -> tuple[Simulation, list[SimSlice]]:
        with_band = self.scheduler == "vgpumgr" and self.seed % 2
        sim = Simulation(
            self.model,
            self.scheduler,
            parameters={"reserve_limit_permille": 750} if with_band else {},
            seed=self.seed,
            record_items=record_items,
        )
        slices = []
        for weight, priority, cap_permille, sources in self.tenants:
            of_group = params(weight, cap_permille=cap_permille)
            if with_band and not slices:
                of_group = RESERVED
            group = sim.add_group("t", of_group, priority=priority)
            slices += [sim.add_slice(group, source) for source in sources]
        for stop in (*sorted(stops), DURATION_NS):
            sim.run_until(stop)
        return sim, slices


@st.composite
def models(draw: st.DrawFn) -> EngineModel:
    kind = draw(st.sampled_from(["non_preemptible", "splittable", "preemptible"]))
    return EngineModel(
        kind=kind,
        max_chunk_ns=draw(st.sampled_from([400 * US, 5 * MS])),
        switch_cost_ns=draw(st.sampled_from([0, 7 * US])),
        split_cost_ns=draw(st.sampled_from([0, 2 * US])) if kind == "splittable" else 0,
        preempt_latency_ns=draw(st.sampled_from([0, 3 * US])) if kind == "preemptible" else 0,
    )


TIMES = st.integers(0, 300 * US)


@st.composite
def sources(draw: st.DrawFn) -> Any:
    works = draw(st.lists(st.integers(5 * US, 400 * US), min_size=1, max_size=6))
    jitter = draw(st.sampled_from([0, 50, 250]))
    start_ns = draw(st.sampled_from([0, 1, 10 * MS]))
    if draw(st.booleans()):
        nap_every = draw(st.sampled_from([0, 3]))
        return Backlog(
            work_ns=works,
            nap_every=nap_every,
            nap_ns=nap_every and draw(TIMES),
            start_ns=start_ns,
            depth=draw(st.integers(1, 9)),
            work_jitter_permille=jitter,
        )
    arrivals = draw(st.none() | st.lists(st.integers(0, DURATION_NS), max_size=20).map(sorted))
    return Program(
        work_ns=works,
        launch_ns=draw(TIMES),
        sync=draw(st.lists(st.booleans(), min_size=len(works), max_size=len(works))),
        sync_ns=draw(TIMES),
        claims=draw(st.none() | st.lists(st.integers(0, 3), min_size=len(works), max_size=len(works))),
        hint_ns=draw(st.integers(0, 400 * US)),
        requests=[0] if len(works) == 1 or draw(st.booleans()) else [0, 1],
        arrivals_ns=arrivals,
        think_ns=draw(TIMES),
        count=None if arrivals is not None else draw(st.none() | st.integers(0, 20)),
        start_ns=start_ns,
        queue_depth=draw(st.integers(1, 9)),
        work_jitter_permille=jitter,
        host_jitter_permille=jitter,
    )


@st.composite
def mixes(draw: st.DrawFn) -> Mix:
    some = st.lists(sources(), min_size=1, max_size=3).map(tuple)
    one = st.tuples(st.integers(1, 10), st.integers(0, 2), st.sampled_from([0, 0, 200, 1000]), some)
    return Mix(
        scheduler=draw(st.sampled_from([*schedulers(), "vgpumgr", "vgpumgr"])),
        model=draw(models()),
        tenants=tuple(draw(st.lists(one, min_size=1, max_size=4))),
        seed=draw(st.integers(0, 3)),
    )


@settings(max_examples=300)
@given(mixes())
def test_every_nanosecond_has_one_payer_and_every_kernel_one_place(mix: Mix) -> None:
    sim, slices = mix.simulate(record_items=True)
    check_sums(sim, slices)
    runs, items = sim.runs(), sim.items()
    ends = runs["start_ns"] + runs["length_ns"]
    assert np.all(runs["start_ns"][1:] >= ends[:-1]), "one run at a time"
    for one in slices:
        counters = sim.slice_counters(one)
        own = items[items["slice"] == one.index]
        assert runs["length_ns"][runs["slice"] == one.index].sum() == counters.run_ns
        assert counters.items == len(own)
        assert own["work_ns"].sum() <= counters.work_ns <= own["work_ns"].sum() + 2 * mix.model.max_chunk_ns
        assert np.all(own["submitted_ns"] <= own["ready_ns"])
        assert np.all(own["ready_ns"] <= own["start_ns"])
        assert np.all(own["end_ns"] - own["start_ns"] >= own["work_ns"])
        assert np.all(own["start_ns"][1:] >= own["end_ns"][:-1]), "in order, one at a time"
        requests = sim.requests(one)
        assert len(requests) == counters.requests_done <= counters.requests_arrived
        assert np.all(requests["end_ns"] - requests["start_ns"] >= requests["work_ns"])
        assert np.all(requests["arrival_ns"] <= requests["start_ns"])


@settings(max_examples=150)
@given(mixes(), st.lists(st.integers(0, DURATION_NS), max_size=5))
def test_the_same_simulation_is_the_same_in_however_many_pieces(mix: Mix, stops: list[int]) -> None:
    whole, slices = mix.simulate()
    pieces, again = mix.simulate(*stops)
    assert whole.schedule_hash == pieces.schedule_hash
    assert whole.counters() == pieces.counters()
    for one, other in zip(slices, again, strict=True):
        assert whole.slice_counters(one) == pieces.slice_counters(other)
        assert np.array_equal(whole.requests(one), pieces.requests(other))


WORK_CONSERVING = ("vgpumgr", "fifo", "timeslice", "kernel_rr", "strict_priority", "drr", "stride")


@settings(max_examples=100)
@given(mixes(), st.sampled_from(WORK_CONSERVING))
def test_no_engine_idles_while_a_kernel_waits(mix: Mix, scheduler: str) -> None:
    tenants = tuple((weight, priority, 0, some) for weight, priority, _, some in mix.tenants)
    # with an even seed no tenant has a band, so none holds the idle engine
    sim, slices = Mix(scheduler, mix.model, tenants, 2 * mix.seed).simulate(record_items=True)
    busy = sim.runs()
    items = sim.items()
    gaps = zip(busy["start_ns"][:-1] + busy["length_ns"][:-1], busy["start_ns"][1:], strict=True)
    for begin, end in gaps:
        if begin < end:
            waiting = (items["ready_ns"] < end) & (items["start_ns"] >= end)
            assert not waiting.any(), f"{scheduler} idles from {begin} to {end}"
    assert slices
