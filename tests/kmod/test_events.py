# SPDX-License-Identifier: Apache-2.0
"""The kernel's events for its listeners: which events, in which order, and that no loss goes unnoticed."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.rig.client import Client, client
from tests.rig.gpu import ADDRESS, Gpu, poll
from tests.rig.vfio import opened
from vgpumgr.control.events import Watch
from vgpumgr.control.model import Event, EventKind, Snapshot
from vgpumgr.errors import ControlUnavailableError, OutOfRangeError

QUIET_S = 3.0  # six times the interval in which the kernel collects events
TIMEOUT_S = 30
VGPU_ERROR_SIZE = 7  # kmod/uapi/vgpu_device.h
FETCHED_AT_ONCE = 32  # kmod/engine/ring.h


@pytest.fixture
def watch(gpu: Gpu) -> Iterator[Watch]:
    """Subscribed, the first snapshot taken."""
    with Watch(gpu.control) as watch:
        assert isinstance(watch.wait(), Snapshot)
        yield watch


def told(watch: Watch, *, quiet_s: float = QUIET_S) -> list[Event | Snapshot]:
    """Return all events until there are no more."""
    seen: list[Event | Snapshot] = []
    while (found := watch.wait(quiet_s)) is not None:
        seen.append(found)
    return seen


def events(watch: Watch, *, quiet_s: float = QUIET_S) -> list[Event]:
    """The same, and no event may get lost."""
    seen = told(watch, quiet_s=quiet_s)
    found = [event for event in seen if isinstance(event, Event)]
    assert found == seen, "events were lost"
    return found


def until(watch: Watch, what: Callable[[Event], bool]) -> Event:
    while found := watch.wait(TIMEOUT_S):
        if isinstance(found, Event) and what(found):
            return found
    raise TimeoutError


@contextmanager
def undisturbed() -> Iterator[None]:
    """Use one processor only, with this thread before all others: a thread that it wakes runs when it sleeps or is
    done."""
    others = list(Path("/sys/devices/system/cpu").glob("cpu[1-9]*/online"))
    for processor in others:
        processor.write_text("0")
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        for processor in others:
            processor.write_text("1")


def in_turn(found: list[Event], first: int) -> None:
    assert [event.sequence for event in found] == list(range(first, first + len(found)))
    assert [event.time_ns for event in found] == sorted(event.time_ns for event in found)


def test_what_comes_and_goes_is_told_in_order(gpu: Gpu, watch: Watch) -> None:
    before = gpu.control.gpu(ADDRESS).event_seq
    uuid = gpu.slice()
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    gpu.control.set_slice(uuid, tenant="blue")
    gpu.sysfs.remove(uuid)
    gpu.control.delete_tenant(ADDRESS, "blue")
    found = events(watch)

    assert [(event.kind, event.slice, event.tenant) for event in found] == [
        (EventKind.CREATED, uuid, ""),
        (EventKind.CREATED, "", "blue"),
        (EventKind.REMOVED, uuid, "blue"),
        (EventKind.REMOVED, "", "blue"),
    ]
    assert {(event.gpu, event.count, event.pid) for event in found} == {(ADDRESS, 1, 0)}
    in_turn(found, before + 1)
    assert gpu.control.gpu(ADDRESS).event_seq == found[-1].sequence


def test_a_gpu_that_goes_and_comes_is_told(gpu: Gpu, watch: Watch) -> None:
    gpu.sysfs.unbind(ADDRESS)
    gpu.sysfs.bind(ADDRESS)
    found = [(event.kind, event.gpu, event.tenant, event.slice) for event in events(watch)]
    assert found == [(EventKind.REMOVED, ADDRESS, "", ""), (EventKind.CREATED, ADDRESS, "", "")]


def test_nothing_is_counted_while_nobody_listens(gpu: Gpu) -> None:
    before = gpu.control.gpu(ADDRESS).event_seq
    gpu.sysfs.remove(gpu.slice())
    assert gpu.control.gpu(ADDRESS).event_seq == before
    with Watch(gpu.control):
        gpu.sysfs.remove(gpu.slice())
        poll(lambda: gpu.control.gpu(ADDRESS).event_seq == before + 2)


def test_a_revoked_slice_names_who_had_it_open(gpu: Gpu, watch: Watch) -> None:
    uuid = gpu.slice()
    holder = Client([uuid, "hold"])
    poll(lambda: gpu.slice_stats(uuid).open)
    remover = threading.Thread(target=gpu.sysfs.remove, args=(uuid,))
    remover.start()
    revoked = until(watch, lambda event: event.kind == EventKind.REVOKED)
    holder.kill()
    remover.join(timeout=30)

    assert (revoked.slice, revoked.pid, revoked.comm) == (uuid, holder.process.pid, "vgpu-client")
    after = [event.kind for event in events(watch)]
    assert after[-1] == EventKind.REMOVED
    assert EventKind.REVOKED not in after


def test_a_slice_that_nobody_has_open_is_removed_without_being_revoked(gpu: Gpu, watch: Watch) -> None:
    uuid = gpu.slice()
    client(uuid, "info")
    gpu.sysfs.remove(uuid)
    assert {event.kind for event in events(watch)} == {EventKind.CREATED, EventKind.RESET, EventKind.REMOVED}


def test_what_was_collected_of_a_slice_is_told_before_it_is_gone(gpu: Gpu, watch: Watch) -> None:
    """Its last resets wait to be reported together when it is removed."""
    uuid = gpu.slice()
    with opened(uuid) as device:
        for _ in range(20):
            device.reset()
        resets = gpu.slice_stats(uuid).resets
    gpu.sysfs.remove(uuid)
    *before, last = events(watch)
    assert last.kind == EventKind.REMOVED
    closed = 1
    assert sum(event.count for event in before if event.kind == EventKind.RESET) == resets + closed


def test_a_tenant_that_is_refused_was_never_there(gpu: Gpu, watch: Watch) -> None:
    """The refusal may come from its own parameters or from the slice that names it: no event is sent, and no id is used
    up."""
    uuid = gpu.slice()
    gpu.tenant("before", weight=100, timeslice_us=1000)
    events(watch)
    with pytest.raises(OutOfRangeError):
        gpu.tenant("blue", weight=100, timeslice_us=1)
    with pytest.raises(OutOfRangeError):
        gpu.control.set_slice(uuid, tenant="blue", cap_us=100, cap_period_us=1)
    assert not events(watch)
    gpu.tenant("after", weight=100, timeslice_us=1000)
    assert [(event.kind, event.tenant) for event in events(watch)] == [(EventKind.CREATED, "after")]
    assert gpu.stats("after").id == gpu.stats("before").id + 1


def test_a_storm_of_faults_and_resets_is_told_in_few_events_that_count_them_all(gpu: Gpu, watch: Watch) -> None:
    gpu.tenant("bad", weight=100, timeslice_us=1000)
    uuid = gpu.slice("bad")
    for _ in range(3):
        client(uuid, "hostile", "all")
    found = [event for event in events(watch) if event.slice == uuid and event.kind != EventKind.CREATED]
    stats = gpu.slice_stats(uuid)

    counted = {kind: sum(event.count for event in found if event.kind == kind) for kind in EventKind}
    assert counted[EventKind.FAULT] == stats.errors > 90
    assert counted[EventKind.RESET] == stats.resets > 90
    assert len(found) < stats.errors
    assert all(event.tenant == "bad" for event in found)
    faults = [event for event in found if event.kind == EventKind.FAULT]
    assert all(event.error for event in faults)
    assert {event.count for event in faults} != {1}


def test_a_fault_names_error_and_item(gpu: Gpu, watch: Watch) -> None:
    gpu.tenant("bad", weight=100, timeslice_us=1000)
    uuid = gpu.slice("bad")
    client(uuid, "hostile", "size-zero")
    fault = until(watch, lambda event: event.kind == EventKind.FAULT)
    assert (fault.slice, fault.tenant, fault.count) == (uuid, "bad", 1)
    assert (fault.error, fault.error_index) == (VGPU_ERROR_SIZE, 1)


@pytest.mark.parametrize("whose", ["tenant", "slice"])
def test_a_cap_that_runs_out_and_comes_back_is_told_at_a_bounded_rate(gpu: Gpu, watch: Watch, whose: str) -> None:
    """The counts add up to the scheduler's, and the last event says that the throttling is over."""
    cap: dict[str, Any] = {"cap_us": 1000, "cap_period_us": 20000}
    gpu.tenant("blue", weight=100, timeslice_us=1000, **(cap if whose == "tenant" else {}))
    uuid = gpu.slice("blue")
    if whose == "slice":
        gpu.control.set_slice(uuid, **cap)
    with gpu.loaded({uuid: {"op": "delay", "delay_us": 200}}, seconds=2):
        pass
    found = [event for event in events(watch) if event.kind in (EventKind.THROTTLED, EventKind.UNTHROTTLED)]
    throttles = sum(event.count for event in found if event.kind == EventKind.THROTTLED)

    assert {(event.tenant, event.slice) for event in found} == {("blue", uuid if whose == "slice" else "")}
    assert found[0].kind == EventKind.THROTTLED
    assert found[-1].kind == EventKind.UNTHROTTLED
    assert throttles > len(found)
    if whose == "tenant":
        assert throttles == gpu.stats("blue").throttles
    assert not gpu.stats("blue").throttled
    assert not gpu.slice_stats(uuid).throttled


def test_who_asks_sees_that_a_tenant_is_throttled(gpu: Gpu) -> None:
    gpu.tenant("blue", weight=100, timeslice_us=1000, cap_us=2000, cap_period_us=100_000)
    with gpu.loaded({gpu.slice("blue"): {"op": "delay", "delay_us": 200}}):
        poll(lambda: gpu.stats("blue").throttled)
    poll(lambda: not gpu.stats("blue").throttled)


def test_a_run_that_was_too_long_is_told(gpu: Gpu, watch: Watch) -> None:
    """Pieces of 200 ms are queued when the longest piece is set to 10 us.

    A worker fetches that many at once. An item that it fetched later would be refused, and its slice stopped.
    """
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    gpu.set_max_chunk_us(400_000)
    count = str(FETCHED_AT_ONCE)
    work = ["--op", "delay", "--delay-us", "200000", "--nosplit", "--items", count, "--depth", count, "--batch", count]
    user = Client([uuid, "saturate", *work, "--queued-min", "0"])
    poll(lambda: gpu.slice_stats(uuid).items > 0)
    gpu.set_max_chunk_us(10)
    overrun = until(watch, lambda event: event.kind == EventKind.OVERRUN)
    user.kill()
    assert (overrun.tenant, overrun.slice, overrun.limit_ns) == ("blue", "", 1_060_000)
    assert overrun.length_ns > overrun.limit_ns


def test_a_listener_that_is_too_slow_gets_a_snapshot_and_goes_on(gpu: Gpu) -> None:
    with Watch(gpu.control, buffer_bytes=4096) as watch, Watch(gpu.control) as other:
        watch.wait()
        other.wait()
        for number in range(100):
            gpu.tenant(f"t{number}", weight=100, timeslice_us=1000)
        # The kernel sends each event to the two listeners at once, so all have been sent before this test reads.
        while not (isinstance(found := other.wait(), Event) and found.tenant == "t99"):
            pass
        seen = told(watch)
        snapshots = [found for found in seen if isinstance(found, Snapshot)]
        assert snapshots, "100 events fitted into 4 KiB"
        assert {tenant.name for tenant in snapshots[-1].tenants} == {f"t{number}" for number in range(100)}
        assert max(found.sequence for found in seen) == gpu.control.gpu(ADDRESS).event_seq
        gpu.tenant("late", weight=100, timeslice_us=1000)
        (after,) = events(watch)
        assert (after.kind, after.tenant) == (EventKind.CREATED, "late")


def test_events_that_found_no_place_in_the_kernel_are_a_hole_in_the_numbers(gpu: Gpu) -> None:
    """More tenants are removed, before any removal is reported, than can be queued; reported and lost events add up."""
    tenants = 500
    for number in range(tenants):
        gpu.tenant(f"t{number}", weight=100, timeslice_us=1000)
    with Watch(gpu.control, buffer_bytes=8 << 20) as watch:
        watch.wait()
        first = gpu.control.gpu(ADDRESS).event_seq
        with undisturbed():
            gpu.sysfs.unbind(ADDRESS)
        gpu.sysfs.bind(ADDRESS)
        seen = told(watch)
    found = [event for event in seen if isinstance(event, Event)]
    lost = [event for event in found if event.kind == EventKind.LOST]

    removed = sum(event.kind == EventKind.REMOVED for event in found)
    missing = sum(event.count for event in lost)
    assert missing > 0, "the queue held them all"
    assert removed + missing == tenants + 1
    assert any(isinstance(snapshot, Snapshot) for snapshot in seen)
    assert gpu.control.gpu(ADDRESS).event_seq == first + removed + missing + len(lost) + 1


def test_unloading_the_module_ends_a_subscription(gpu: Gpu) -> None:
    with Watch(gpu.control) as watch:
        watch.wait()
        with gpu.unloaded(), pytest.raises(ControlUnavailableError):
            told(watch)
    assert gpu.control.gpu(ADDRESS).event_seq == 0


def test_a_subscription_takes_no_privilege_and_keeps_no_reference_to_the_module(gpu: Gpu) -> None:
    with Watch(gpu.control):
        assert int(Path("/sys/module/vgpumgr/refcnt").read_text()) == 0
