# SPDX-License-Identifier: Apache-2.0
"""Storms of others beside a tenant at work: it keeps its share, and waits for a run and a chunk at most.

The program that makes the storm gets the only processor when nobody else wants it: sharing the processor among programs
is not the module's task. The kernel threads that work for the storm have no such limit.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rig.client import Client, Outcome, slice_option
from tests.rig.figures import Record
from tests.rig.gpu import Gpu, poll
from tests.rig.ring import NOP, delay, descriptor
from tests.rig.storm import OF_GUESTS, bursts, guest, operators
from tests.rig.trace import traced

pytestmark = pytest.mark.emulated

TIMESLICE_US = 1000
CHUNK_US = 400
RUN_US = TIMESLICE_US + CHUNK_US
SLACK_US = 100
SHARE_SLACK = 0.02
MEASURED_S = float(os.environ.get("STORM_MEASURED_S", "1.5"))
"""Twice that in `make test-long`; there a neighbour has 600 items beside each storm, here 300."""
BURSTS = {"bursts-of-nops": descriptor(NOP), "bursts-of-9-us": delay(9)}
OF_TINY_ITEMS = ["tiny-items", *BURSTS]
TOKENS_AT_ONCE, TOKENS_PER_S = 1000, 1000  # kmod/engine/ring.c


@contextmanager
def idle(storm: Client, works: Callable[[], bool]) -> Iterator[None]:
    """Run it with the processor only when nobody else wants it, once `works` is true; it ends with the body."""
    try:
        poll(works)
        for task in Path(f"/proc/{storm.process.pid}/task").iterdir():
            os.sched_setscheduler(int(task.name), os.SCHED_IDLE, os.sched_param(0))
        yield
    finally:
        storm.kill()


def timed(uuid: str) -> Client:
    """Sends an item of 50 us every 5 ms."""
    return Client(
        ["--json", uuid, "latency", "--delay-us", "50", "--period-us", "5000", "--seconds", f"{MEASURED_S:g}"]
    )


def p99_us(outcome: Outcome) -> float:
    """The time from an item's doorbell to its completion."""
    return int(outcome.reports[-1]["p99_ns"]) / 1000


@contextmanager
def storming(gpu: Gpu, kind: str) -> Iterator[None]:
    """A storm by the tenant `bad` with one client, or by operators in two processes."""
    if kind == "operators":
        with operators(gpu, 2, seconds=3 * MEASURED_S, idle=True) as seen:
            yield
        assert min(seen["created"], seen["removed"]) > 10, seen
        return
    bad = gpu.slice("bad")
    if kind == "tiny-items":
        tiny = Client(["--json", "--seconds", "600", "--slice", slice_option(bad, op="delay", delay_us=1)])
        with idle(tiny, lambda: gpu.slice_stats(bad).items > 0):
            before = gpu.slice_stats(bad)
            yield
            after = gpu.slice_stats(bad)
        assert (after.items - before.items > 1000, after.error) == (True, 0), "no storm"
        return
    if kind in BURSTS:
        with bursts(bad, BURSTS[kind]) as done:
            poll(lambda: done() > 0)
            before = done()
            yield
            assert (done() - before > 10000, gpu.slice_stats(bad).error) == (True, 0), "no storm"
        return
    if kind in OF_GUESTS:
        with guest(bad, kind) as done:
            poll(lambda: done() > 0)
            begun_s, did = time.monotonic(), done()
            yield
            times, most = done() - did, TOKENS_AT_ONCE + (time.monotonic() - begun_s) * TOKENS_PER_S
        tokens = OF_GUESTS[kind].tokens
        if tokens:
            assert TOKENS_AT_ONCE < times * tokens <= most, "no storm, or one that costs nothing"
        else:  # no limit applies, because it uses nothing that others need
            assert times > TOKENS_AT_ONCE, "no storm"
        return
    with idle(Client(["--json", bad, kind, "--seconds", "600"]), lambda: gpu.slice_stats(bad).items > 0):
        before = gpu.slice_stats(bad)
        yield
        after = gpu.slice_stats(bad)
    assert after.items > before.items
    assert after.errors > before.errors, "no storm: nothing went wrong for who unmaps what is in use"


@pytest.fixture(scope="module")
def alone_us(module: Gpu) -> float:
    """The p99 of the item when nobody else has work."""
    module.clear()
    module.tenant("quick", weight=100, timeslice_us=TIMESLICE_US)
    found = p99_us(timed(module.slice("quick")).wait())
    module.clear()
    return found


@pytest.mark.parametrize("kind", ["unmap-race", *OF_TINY_ITEMS, "operators", *OF_GUESTS])
def test_beside_a_storm_a_neighbour_has_its_share_and_waits_for_one_run(
    gpu: Gpu, alone_us: float, figures: Record, kind: str
) -> None:
    for tenant in ("bad", "good", "quick"):
        gpu.tenant(tenant, weight=100, timeslice_us=TIMESLICE_US)
    good, quick = gpu.slice("good"), gpu.slice("quick")

    with storming(gpu, kind):
        beside_us = p99_us(timed(quick).wait())
        if kind in OF_TINY_ITEMS:
            with traced(tenant="quick") as trace:
                timed(quick).wait()
            longest_us = max(trace.waits_ns("quick")) / 1000
            figures(f"beside {kind}, longest wait for the engine", longest_us, against=RUN_US, unit="us, run and chunk")
            assert longest_us <= RUN_US
        with gpu.loaded({good: {"op": "delay", "delay_us": 200}}) as outcomes:
            window = gpu.measured_over(MEASURED_S)
    report = outcomes[0].report("name", good)

    figures(f"p99 of a 50 us item beside {kind}", beside_us, against=alone_us, unit="us alone")
    figures(f"share beside {kind}", window.share["good"], against=0.5, unit="of the used engine")
    run_us = RUN_US if kind in ("unmap-race", *OF_TINY_ITEMS) else 0
    assert beside_us <= alone_us + run_us + SLACK_US
    assert (report["error"], report["mismatches"], report["saturated"]) == (0, 0, True)
    assert window.share["good"] >= 0.5 - SHARE_SLACK
