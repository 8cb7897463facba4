# SPDX-License-Identifier: Apache-2.0
"""The agent counts for each group what the kernel charged, whichever processes end and start in the meantime."""

import sqlite3
from collections import defaultdict
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vgpumgr_agent.backends import Observed, ObservedGpu, ObservedGroup
from vgpumgr_agent.meter import HOUR_NS, Moment, Sample, Used, assured, grown, sampled, split
from vgpumgr_agent.meter_store import KEPT_HOURS, Meter, MeterClock

from tests.agent.fakeapi import claim, group
from tests.agent.fakekernel import GPU
from tests.agent.host import VM, A, B, Host
from vgpumgr.wire.usage import READINGS_MAX, Metered, Readings

BLUE = (GPU, "blue")
S = 10**9
BOOT = uuid4()


def host_at(run_ns: int = 0, *, age_s: int = 1000, lag_ns: int = 0, weights: int = 100, **members: int) -> Observed:
    gpu = ObservedGpu(
        address=GPU, engine="soft", backend="kmod", attach="permit", mem_bytes=0, timeslice_min_us=0, max_chunk_us=0,
        wall_ns=age_s * S, idle_ns=0, types={},
    )  # fmt: skip
    blue = ObservedGroup(
        gpu=GPU, tenant="blue", configured=True, slices=1, weight=100, timeslice_us=1, cap_us=0, cap_period_us=0,
        run_ns=run_ns, lag_ns=lag_ns, generation=1, id=1,
    )  # fmt: skip
    rest = replace(blue, tenant="rest", weight=weights - 100, run_ns=0, lag_ns=0)
    groups = {BLUE: replace(blue, **members)} | ({(GPU, "rest"): rest} if weights > 100 else {})
    return Observed(boot_id=BOOT, gpus={GPU: gpu}, groups=groups)


def moment(at_s: int, wall_s: int = 0) -> Moment:
    return Moment(wall_ns=(wall_s or at_s) * S, before_ns=at_s * S, after_ns=at_s * S)


def between(first: Observed, second: Observed, *, elapsed_s: int = 10, wall_s: int = 0) -> dict[int, Used]:
    """Return what blue used from 1000 s on, by hour."""
    last, now = sampled(first, moment(1000)), sampled(second, moment(1000 + elapsed_s, wall_s))
    return {hour: used for hour, key, used in grown(last, now, second) if key == BLUE}


def test_growth_is_what_is_more_than_before() -> None:
    found = between(
        host_at(50, lag_ns=-5, throttled_ns=3),
        host_at(90, age_s=1010, lag_ns=7, throttled_ns=4, latency_ns=9),
    )
    assert found == {0: Used(run_ns=40, due_ns=52, assured_ns=10 * S, throttled_ns=1, reserved_ns=9)}


@pytest.mark.parametrize(
    "second",
    [
        host_at(90, age_s=9),  # the module was loaded again
        host_at(90, age_s=1005),  # reloaded; the new engine is older than the old one was at the last look
        host_at(40, age_s=1010),
        host_at(90, age_s=1010, generation=0),
        host_at(90, age_s=1010, generation=2, id=2),  # the group was deleted and made again; it ran for longer since
        replace(host_at(90, age_s=1010), boot_id=uuid4()),
    ],
)
def test_a_counter_that_began_anew_counts_from_zero(second: Observed) -> None:
    (used,) = between(host_at(50), second).values()
    assert (used.run_ns, used.assured_ns) == (second.groups[BLUE].run_ns, 0)


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0), (0, 0)])
def test_without_names_of_lives_a_counter_that_grew_is_the_same(first: int, second: int) -> None:
    assert between(host_at(50, id=first), host_at(90, age_s=1010, id=second))[0].run_ns == 40


def test_a_group_that_was_seen_to_be_gone_counts_from_zero() -> None:
    gone = replace(host_at(age_s=1010), groups={})
    assert between(gone, host_at(90, age_s=1020))[0].run_ns == 90
    nothing = sampled(gone, moment(1010))
    assert list(grown(sampled(host_at(50), moment(1000)), nothing, gone)) == []


def test_what_is_assured_is_by_weight_and_at_most_the_cap() -> None:
    shared = host_at(weights=400)
    assert assured(shared, shared.groups[BLUE], 1001) == 250
    capped = host_at(weights=400, cap_us=1, cap_period_us=10)
    assert assured(capped, capped.groups[BLUE], 1001) == 100
    assert assured(capped, replace(capped.groups[BLUE], weight=0), 1001) == 0


def test_time_is_told_by_the_clock_that_nobody_sets() -> None:
    """The count grew for ten seconds that end nine seconds after an hour began; the wall clock jumped by a year."""
    later = 8760 * 3600 + 9
    found = between(host_at(0), host_at(100, age_s=1010), wall_s=later)
    assert [(hour, used.run_ns) for hour, used in found.items()] == [(8759, 10), (8760, 90)]
    assert list(between(host_at(0), host_at(100, age_s=1010), wall_s=1)) == [0]


counts = st.integers(0, 10**14)


@given(used=st.builds(Used, run_ns=counts, due_ns=st.integers(-(10**14), 10**14)), end=counts, span=counts)
def test_hours_add_up_to_the_whole_and_each_gets_its_part(used: Used, end: int, span: int) -> None:
    end, span = end * 3, span % (50 * HOUR_NS)
    parts = dict(split(used, end, span))
    assert sum(part.run_ns for part in parts.values()) == used.run_ns
    assert sum(part.due_ns for part in parts.values()) == used.due_ns
    start = max(0, end - span)
    assert all(start // HOUR_NS <= hour <= end // HOUR_NS for hour in parts)
    for hour, part in parts.items():
        inside = min(end, (hour + 1) * HOUR_NS) - max(start, hour * HOUR_NS)
        if end > start:
            assert abs(part.run_ns * (end - start) - used.run_ns * inside) <= 2 * (end - start)


# ---- the agent


def run(host: Host, run_ns: int, key: tuple[str, str] = BLUE) -> None:
    """The kernel charges a group."""
    with host.kernel.lock:
        found = host.kernel.tenants[key]
        host.kernel.tenants[key] = replace(found, run_ns=found.run_ns + run_ns, runs=found.runs + 1)


def counted(host: Host) -> dict[str, int]:
    """Return the counted run time of each tenant that ran, as the API will receive it."""
    assert host.meter is not None
    sums: dict[str, int] = defaultdict(int)
    for reading in host.meter.pending().readings:
        sums[reading.tenant] += reading.run_ns
    return {tenant: run_ns for tenant, run_ns in sums.items() if run_ns}


def test_an_agent_that_starts_again_counts_on(claimed: Host) -> None:
    run(claimed, 10)
    claimed.reconcile()
    run(claimed, 20)
    claimed.restart()
    assert counted(claimed) == {"blue": 10}
    claimed.reconcile()
    assert counted(claimed) == {"blue": 30}


def test_a_boot_ends_counters_and_nothing_is_lost_that_was_seen(claimed: Host) -> None:
    run(claimed, 10)
    claimed.reconcile()
    claimed.kernel.reboot()
    claimed.restart()
    claimed.reconcile()
    run(claimed, 25)  # more than before: this is not counted as growth of 15
    claimed.reconcile()
    assert counted(claimed) == {"blue": 35}


def test_a_group_is_counted_before_it_is_forgotten(claimed: Host) -> None:
    claimed.start(A)
    claimed.reconcile()
    run(claimed, 10)
    claimed.release(A)
    for uuid in (A, B):
        claimed.api.delete(uuid, groups=[group("green", 300)])
    claimed.learn()
    assert BLUE not in claimed.kernel.tenants
    claimed.api.set(groups=[group("blue", 300), group("green", 300)], slices=[claim(B, vm=VM)], tombstones=[])
    claimed.learn()
    run(claimed, 15)
    claimed.reconcile()
    assert counted(claimed) == {"blue": 25}


def test_what_runs_until_the_very_end_of_a_group_is_counted(claimed: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group is charged once more between the look that found it unused and its removal."""
    watch, charged = claimed.agent._meter.watch, []

    def late(observe: object) -> Observed:
        if BLUE in claimed.kernel.tenants and not claimed.api.document.groups:
            run(claimed, 7)
            charged.append(7)
        return watch(observe)  # type: ignore[arg-type]

    monkeypatch.setattr(claimed.agent._meter, "watch", late)
    for uuid in (A, B):
        claimed.api.delete(uuid, groups=[])
    claimed.learn()
    assert BLUE not in claimed.kernel.tenants
    assert len(charged) >= 2
    assert counted(claimed) == {"blue": sum(charged)}


def test_a_group_that_somebody_else_made_anew_counts_from_zero(claimed: Host) -> None:
    run(claimed, 10)
    claimed.reconcile()
    with claimed.kernel.lock:
        weight = claimed.kernel.tenants.pop(BLUE).weight
    claimed.kernel.do_set_tenant(*BLUE, {"weight": weight, "timeslice_us": 1000})
    run(claimed, 25)
    claimed.reconcile()
    assert counted(claimed) == {"blue": 35}


def test_a_file_of_the_first_layout_counts_on(claimed: Host) -> None:
    run(claimed, 10)
    claimed.reconcile()
    claimed.stop()
    with closing(sqlite3.connect(claimed.directory / "state/meter.db")) as database:
        database.executescript("ALTER TABLE groups DROP COLUMN id; PRAGMA user_version = 1")
    run(claimed, 20)
    claimed.restart()
    claimed.reconcile()
    assert counted(claimed) == {"blue": 30}
    assert not (claimed.directory / "state/meter.db.damaged").exists()


def test_nothing_is_counted_that_a_meter_before_this_one_may_have_counted(claimed: Host) -> None:
    run(claimed, 10)
    claimed.reconcile()
    claimed.stop()
    (claimed.directory / "state/meter.db").write_bytes(b"not a database" * 100)
    claimed.restart()
    claimed.reconcile()
    assert counted(claimed) == {}
    run(claimed, 5)
    claimed.reconcile()
    assert counted(claimed) == {"blue": 5}
    assert (claimed.directory / "state/meter.db.damaged").exists()


def test_a_full_disk_delays_counting(claimed: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    run(claimed, 10)
    with monkeypatch.context() as patch:
        patch.setattr(claimed.meter, "_remember", full)
        claimed.reconcile()
        claimed.reconcile()
    assert counted(claimed) == {}
    run(claimed, 5)
    claimed.reconcile()
    assert counted(claimed) == {"blue": 15}


# ---- reporting to the API


def test_what_the_api_has_is_told_no_more_and_what_it_lost_is_told_again(claimed: Host) -> None:
    told: list[Readings] = []
    known = [0]

    def meter(_: object, readings: Readings) -> Metered:
        told.append(readings)
        if readings.after <= known[0]:
            known[0] = max(known[0], readings.through)
        return Metered(revision=known[0])

    claimed.api.meter = meter  # type: ignore[method-assign]
    run(claimed, 10)
    claimed.reconcile()
    claimed.agent.control_plane.deliver_usage()
    assert sum(reading.run_ns for reading in told[-1].readings) == 10
    claimed.agent.control_plane.deliver_usage()
    assert told[-1].readings == []
    known[0] = 0  # a backup was restored
    told.clear()
    claimed.agent.control_plane.deliver_usage()
    assert [sum(reading.run_ns for reading in each.readings) for each in told] == [0, 10]
    assert told[-1].after == 0


@pytest.fixture
def meter(tmp_path: Path) -> Meter:
    return Meter(tmp_path / "meter.db", MeterClock(wall_ns=lambda: 1000 * HOUR_NS, monotonic_ns=lambda: 0))


def fill(meter: Meter, hours: int) -> None:
    meter._add((hour, BLUE, Used(run_ns=hour)) for hour in range(hours))


def test_much_is_told_in_parts(meter: Meter) -> None:
    fill(meter, READINGS_MAX + 5)
    first = meter.pending()
    assert (len(first.readings), first.through) == (READINGS_MAX, READINGS_MAX)
    meter.acknowledged(first, Metered(revision=first.through))
    second = meter.pending()
    assert ([each.hour for each in second.readings], second.through) == (
        list(range(READINGS_MAX, READINGS_MAX + 5)),
        second.newest,
    )


def test_what_the_api_has_goes_after_ten_days_and_what_it_lacks_stays(meter: Meter) -> None:
    fill(meter, 900)
    sent = meter.pending()
    meter.acknowledged(sent, Metered(revision=800))
    meter.acknowledged(sent, Metered(revision=0))
    left = [each.hour for each in meter.pending().readings]
    assert left == [*range(1000 - KEPT_HOURS, 800), *range(800, 900)]


def test_what_a_dead_clock_counted_is_gone_when_the_api_hears_of_the_right_hour(meter: Meter) -> None:
    """The agent forgets those hours at that moment; readings that continued from them would be booked twice."""
    meter._add([(10, BLUE, Used(run_ns=1)), (11, BLUE, Used(run_ns=1))])
    meter._database.execute("UPDATE meter SET acknowledged = 1")  # as if acknowledged before 1970 was an old hour
    meter._add([(1000, BLUE, Used(run_ns=1))])
    assert [row[0] for row in meter._database.execute("SELECT hour FROM hours ORDER BY hour")] == [11, 1000]
    meter._add([(10, BLUE, Used(run_ns=7))])
    assert [(each.hour, each.run_ns) for each in meter.pending().readings] == [(11, 1), (1000, 1), (10, 7)]


def test_a_meter_that_the_api_does_not_take_begins_anew(meter: Meter) -> None:
    fill(meter, 3)
    sent = meter.pending()
    meter.acknowledged(sent, Metered(revision=0, restart=True))
    again = meter.pending()
    assert (again.newest, again.readings) == (0, [])
    assert again.meter_id != sent.meter_id
    meter.acknowledged(sent, Metered(revision=3))
    assert meter.pending().after == 0


def test_a_look_is_remembered_whole(meter: Meter) -> None:
    seen = host_at(50, lag_ns=-5, throttled_ns=3, latency_ns=1, runs=2, switches=4)
    assert meter.count(seen, moment(1000))
    expected: Sample = sampled(seen, moment(1000))
    assert meter._last() == expected
