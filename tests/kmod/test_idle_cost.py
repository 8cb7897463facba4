# SPDX-License-Identifier: Apache-2.0
"""The cost of the module when nobody works, and the number of doorbells that a guest needs when it works."""

import time

import pytest

from tests.rig.client import Client, client
from tests.rig.gpu import ADDRESS, Gpu, poll
from tests.rig.traps import trapped
from tests.rig.wakeups import wakeups
from vgpumgr.control.events import Watch
from vgpumgr.control.model import Event, Snapshot

pytestmark = pytest.mark.emulated


def test_nothing_of_ours_wakes_up_without_work(gpu: Gpu) -> None:
    """Slices that are open and enabled, and tenants with and without a cap, cause no wakeup, no decision, no timer, and
    no work for other threads.
    """
    gpu.tenant("free", weight=100, timeslice_us=1000)
    gpu.tenant("capped", weight=100, timeslice_us=1000, cap_us=2000, cap_period_us=10000)
    slices = [gpu.slice(tenant) for tenant in ("free", "capped", "free")]
    holders = [Client([uuid, "hold"]) for uuid in slices]
    for uuid in slices:
        poll(lambda uuid=uuid: gpu.slice_stats(uuid).open)  # type: ignore[misc]
    busy = gpu.slice("capped")
    with wakeups() as working:
        client(busy, "saturate", "--op", "delay", "--delay-us", "500", "--items", "50", "--queued-min", "0")
    with Watch(gpu.control) as watch, wakeups() as telling:
        assert isinstance(watch.wait(), Snapshot)
        gpu.slice("free")
        assert isinstance(watch.wait(), Event)
    time.sleep(0.5)
    with wakeups() as idling:
        picks = gpu.control.gpu(ADDRESS).picks
        time.sleep(2)
        picks_later = gpu.control.gpu(ADDRESS).picks

    for holder in holders:
        holder.kill()
    assert len(working) > 10, "the wakeups of work are not seen either"
    assert any("workqueue_execute_start" in line for line in telling), "nor the work of telling what happens"
    assert idling == []
    assert picks_later == picks


def test_a_batch_takes_one_doorbell_and_one_interrupt(gpu: Gpu) -> None:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    outcome = client(
        uuid, "saturate", "--op", "delay", "--delay-us", "20", "--items", "1600", "--depth", "100", "--batch", "100",
        "--queued-min", "0",
    )  # fmt: skip
    report = outcome.report("record", "saturate")
    stats = gpu.slice_stats(uuid)
    assert report["submitted"] == stats.items
    assert stats.doorbells * 100 == stats.items
    assert report["interrupts"] * 100 <= stats.items


def test_nothing_but_the_doorbell_traps_however_much_is_done(gpu: Gpu) -> None:
    """The wakeups beyond those of opening, enabling and closing a slice, which are the same for one item and for
    many."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    found = []
    for batches in (1, 40):
        doorbells = gpu.slice_stats(uuid).doorbells
        with trapped() as traps:
            client(
                uuid, "saturate", "--op", "delay", "--delay-us", "20", "--items", str(50 * batches), "--depth", "50",
                "--batch", "50", "--queued-min", "0",
            )  # fmt: skip
        doorbells = gpu.slice_stats(uuid).doorbells - doorbells
        assert doorbells == batches
        found.append((traps.reads, traps.writes - doorbells))
    assert min(found[0]) > 0, "the traps of opening are not seen either"
    assert found[1] == found[0]
