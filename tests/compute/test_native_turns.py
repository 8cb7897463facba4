# SPDX-License-Identifier: Apache-2.0
"""Turns of native programs: weights by the firmware's timeslices; caps and exclusive turns by the gate."""

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.compute.driver_rig import Gpu
from tests.compute.executor_rig import LIMIT_S, wait_for
from tests.compute.native_rig import NativeBroker, native_tenant, run_native_broker, start

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a fence looks into a program, which takes root")

MS = 1_000_000
SET_TIMESLICE = 0xA06C0103


@contextmanager
def broker_of(gpu: Gpu, *tenants: dict[str, Any], **options: Any) -> Iterator[NativeBroker]:
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
        run_native_broker(Path(folder), gpu, *tenants, **options) as broker,
    ):
        yield broker


def timeslices(gpu: Gpu) -> list[int]:
    """Return the timeslices that the driver received, in us. Ends the fake."""
    return [
        int.from_bytes(bytes.fromhex(str(entry["params"])), "little")
        for entry in gpu.fake.log()
        if entry["call"] == "control" and entry["cmd"] == SET_TIMESLICE
    ]


def works(broker: NativeBroker, *names: str) -> None:
    wait_for(lambda: all(broker.native(name)["working"] for name in names), f"{names} to be known to work")


def test_weights_are_timeslices_and_several_groups_divide_one(gpu: Gpu) -> None:
    with (
        broker_of(gpu, native_tenant("blue", weight=300), native_tenant("red", weight=100)) as broker,
        start(broker, "blue", gpu) as blue,
        start(broker, "red", gpu) as red,
    ):
        blue.work()
        red.work()
        works(broker, "blue", "red")
        wait_for(lambda: broker.native("blue")["timeslice_us"] == 15000, "its timeslice")
        assert broker.native("red")["timeslice_us"] == 5000
        assert blue.do("work").startswith("ok ")
        with gpu.observer() as observer:
            observer.pass_time(4000 * MS)
            ran = [observer.progress_ns(number) for number in range(3)]
        blue_share = (ran[0] + ran[2]) / sum(ran)
        assert blue_share == pytest.approx(0.75, abs=0.015)


def test_timeslices_that_another_supervisor_delayed_are_set_later(gpu: Gpu) -> None:
    with (
        broker_of(gpu, native_tenant("blue", weight=300), native_tenant("red", weight=100)) as broker,
        start(broker, "blue", gpu) as blue,
        start(broker, "red", gpu) as red,
    ):
        blue.work()
        red.work()
        works(broker, "blue", "red")
        with (broker.directory / "gate.lock").open("rb+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            broker.set_tenants([native_tenant("blue", weight=100), native_tenant("red", weight=100)])
            wait_for(
                lambda: broker.native("blue")["timeslice_us"] == broker.native("red")["timeslice_us"], "the weights"
            )
            time.sleep(0.5)  # longer than a supervisor waits for the lock
        with gpu.observer() as observer:
            wait_for(lambda: _share(observer) == pytest.approx(0.5, abs=0.015), "equal shares")
    assert timeslices(gpu)[-1] == 5000, "blue had 15000"


def _share(observer: Any) -> float:
    """What the first group gets of two, in the next four seconds."""
    before = [observer.progress_ns(number) for number in range(2)]
    observer.pass_time(4000 * MS)
    ran = [observer.progress_ns(number) - start_ns for number, start_ns in enumerate(before)]
    return float(ran[0] / sum(ran))


def test_a_cap_closes_the_gate_on_an_idle_gpu(gpu: Gpu) -> None:
    capped = native_tenant("blue", cap_ns=30 * MS, cap_period_ns=100 * MS)
    with broker_of(gpu, capped) as broker, start(broker, "blue", gpu) as blue, gpu.observer() as observer:
        blue.work()
        works(broker, "blue")
        wait_for(lambda: broker.native("blue")["gates"] >= 3, "its gate to close")
        seen: set[bool] = set()
        end = time.monotonic() + LIMIT_S
        while seen != {True, False}:
            assert time.monotonic() < end, seen
            before = observer.progress_ns(0)
            observer.pass_time(MS)
            seen.add(observer.progress_ns(0) > before)
        first = broker.control.show(), broker.native("blue")
        wait_for(lambda: broker.native("blue")["gates"] >= first[1]["gates"] + 20, "twenty periods")
        last = broker.control.show(), broker.native("blue")
        elapsed = last[0]["now_ns"] - first[0]["now_ns"]
        # Measured by the counters that the broker enforces. Up to two periods may be saved up or owed.
        assert last[1]["obtained_ns"] - first[1]["obtained_ns"] <= 0.3 * elapsed + 3 * broker.period_ns
        assert broker.shown("blue")["supervisor"]["enforced_by"] == "firmware+gate"


def test_who_keeps_a_cap_is_known_before_the_first_program(gpu: Gpu) -> None:
    capped = native_tenant("blue", cap_ns=30 * MS, cap_period_ns=100 * MS)
    with broker_of(gpu, capped, native_tenant("red")) as broker:
        assert broker.shown("blue")["supervisor"]["enforced_by"] == "firmware+gate"
        assert broker.shown("red")["supervisor"]["enforced_by"] == "firmware"


def test_a_cap_that_is_cut_live_closes_the_gate(gpu: Gpu) -> None:
    with broker_of(gpu, native_tenant("blue")) as broker, start(broker, "blue", gpu) as blue:
        blue.work()
        works(broker, "blue")
        assert broker.native("blue")["gates"] == 0
        broker.set_tenants([native_tenant("blue", cap_ns=10 * MS, cap_period_ns=100 * MS)])
        wait_for(lambda: broker.native("blue")["gates"] >= 2, "its gate to close")
        broker.set_tenants([native_tenant("blue")])
        wait_for(lambda: broker.native("blue")["open"], "its gate to open")


def test_in_exclusive_turns_programs_never_run_together(gpu: Gpu) -> None:
    tenants = native_tenant("blue", weight=300), native_tenant("red", weight=100)
    with (
        broker_of(gpu, *tenants, turns="gate") as broker,
        start(broker, "blue", gpu) as blue,
        start(broker, "red", gpu) as red,
        gpu.observer() as observer,
    ):
        blue.work()
        red.work()
        wait_for(lambda: all(broker.shown(name)["stats"]["gates"] > 2 for name in ("blue", "red")), "gates")
        ran = [0, 0]
        samples, end = 0, time.monotonic() + LIMIT_S
        while samples < 200 or not min(ran):
            assert time.monotonic() < end, ran
            samples += 1
            before = [observer.progress_ns(group) for group in range(2)]
            observer.pass_time(MS)
            moved = [observer.progress_ns(group) > was for group, was in enumerate(before)]
            assert not all(moved)
            ran = [count + moves for count, moves in zip(ran, moved, strict=True)]
        stats = {name: broker.shown(name)["stats"]["leased_ns"] for name in ("blue", "red")}
        assert stats["blue"] > stats["red"]
        assert broker.shown("blue")["supervisor"]["enforced_by"] == "broker+gate"


def test_work_that_begins_while_the_gate_is_closed_waits_for_it(gpu: Gpu) -> None:
    capped = native_tenant("blue", cap_ns=MS, cap_period_ns=100 * MS)
    with broker_of(gpu, capped) as broker, start(broker, "blue", gpu) as blue, start(broker, "blue", gpu) as second:
        blue.work()
        works(broker, "blue")
        wait_for(lambda: not broker.native("blue")["open"], "the gate to close")
        # Questions are answered while the gate is closed. Calls that make channels wait until it is open.
        assert second.do("begin") == "ok None"
        assert second.do("work").startswith("ok ")
