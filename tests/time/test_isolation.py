# SPDX-License-Identifier: Apache-2.0
"""What one tenant's memory may do to another: nothing."""

import os

from tests.rig.client import Client, client
from tests.rig.figures import Record
from tests.rig.gpu import Gpu, poll

CHUNK_US = 400
SHARE_SLACK = 0.02


def p99_ns(uuid: str) -> int:
    outcome = client(uuid, "latency", "--delay-us", "50", "--period-us", "1000", "--seconds", "2")
    return int(outcome.reports[-1]["p99_ns"])


def test_memory_that_stops_answering_does_not_change_the_neighbours_p99(gpu: Gpu, figures: Record) -> None:
    """Operands under userfaultfd whose faults nobody answers: only that slice's own worker waits."""
    for tenant in ("frozen", "neighbour"):
        gpu.tenant(tenant, weight=100, timeslice_us=1000)
    frozen, neighbour = gpu.slice("frozen"), gpu.slice("neighbour")

    alone = p99_ns(neighbour)
    freezer = Client(["--json", frozen, "freeze", "--seconds", "6"])
    freezer.line()  # its worker is stuck now
    beside = p99_ns(neighbour)
    outcome = freezer.wait()

    figures("p99 of a 50 us item beside frozen memory", beside / 1000, against=alone / 1000, unit="us alone")
    assert beside <= alone * 1.1 + 10_000
    # Exit status 0 says that nothing of the frozen slice completed meanwhile, and all of it afterwards, correctly.
    assert outcome.reports[-1]["ok"]


def test_a_client_gone_mad_does_not_hold_its_neighbour_up(gpu: Gpu, figures: Record) -> None:
    """Whatever `vgpu-client fuzz` does to its device: a run of the other tenant and a chunk are the longest wait.

    The mad client has the processor when nobody else wants it: processors are for others to share.
    """
    for tenant in ("mad", "neighbour"):
        gpu.tenant(tenant, weight=100, timeslice_us=1000)
    mad, neighbour = gpu.slice("mad"), gpu.slice("neighbour")

    alone = p99_ns(neighbour)
    fuzz = Client(["--json", mad, "fuzz", "--seconds", "60"])
    try:
        os.sched_setscheduler(fuzz.process.pid, os.SCHED_IDLE, os.sched_param(0))
        poll(lambda: gpu.slice_stats(mad).items > 0)
        window = gpu.window()
        beside = p99_ns(neighbour)
        window.close()
    finally:
        fuzz.kill()

    figures("p99 of a 50 us item beside a client gone mad", beside / 1000, against=alone / 1000, unit="us alone")
    figures("share of the client gone mad", window.share["mad"], against=1.0, unit="of the used engine")
    assert window.run_ns["mad"] > 0
    assert beside <= alone + (1000 + CHUNK_US + 100) * 1000


def test_malformed_work_takes_nothing_from_a_neighbour(gpu: Gpu, figures: Record) -> None:
    """All hostile cases, over and over, against one that always has work: it is never without, and has its share."""
    for tenant in ("bad", "good"):
        gpu.tenant(tenant, weight=100, timeslice_us=1000)
    bad, good = gpu.slice("bad"), gpu.slice("good")
    with gpu.loaded({good: {"op": "delay", "delay_us": 200}}) as outcomes:
        window = gpu.window()
        rounds = 0
        while window.close().seconds < 6:
            client(bad, "hostile", "all")
            rounds += 1
    report = outcomes[0].report("name", good)

    figures("share of a neighbour of hostile work", window.share["good"], against=0.5, unit="of the used engine")
    assert rounds > 0
    assert (report["error"], report["mismatches"]) == (0, 0)
    assert report["saturated"]
    assert window.share["good"] >= 0.5 - SHARE_SLACK
