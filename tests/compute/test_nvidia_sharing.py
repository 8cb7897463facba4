# SPDX-License-Identifier: Apache-2.0
"""A broker with real supervisors, gates and relays on the fake GPU. Its tenants never give a turn back."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compute.broker_rig import WELCOME, Broker, Program, make_broker, tenant
from tests.compute.driver_rig import DriverChild, Gpu
from tests.compute.executor_rig import BUILT, LIMIT_S, SERVING, WINDOW_BYTES, Window, wait_for

SAMPLE_NS = 1_000_000
SAMPLES = 300


class GpuBroker(Broker):
    """A broker whose accelerator is the fake GPU. Its supervisors start with the fake driver."""

    library = ""

    def settings(self) -> dict[str, Any]:
        found = super().settings()
        found["programs"] |= {"library": self.library}
        return found


def supervisor(folder: Path, gpu: Gpu) -> Path:
    """Write the supervisor program for the broker."""
    script = folder / "supervisor"
    loaded = " ".join(f"{name}={value}" for name, value in gpu.environment.items())
    lock = folder / "gate.lock"
    script.write_text(
        f'#!/bin/sh\nexec env {loaded} {BUILT / "vgpu-supervisor"} "$@" --backend driver --gate-lock {lock}\n'
    )
    script.chmod(0o755)
    return script


@pytest.fixture
def broker(gpu: Gpu, driver_child: Path) -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        path = Path(folder)
        found = GpuBroker(
            path,
            make_broker(),
            supervisor(path, gpu),
            tenants=[tenant("blue", weight=300), tenant("red", weight=100)],
            child=driver_child,
            nvidia=0,
        )
        found.library = str(gpu.library)
        with found:
            yield found


def join(broker: Broker, name: str) -> tuple[DriverChild, Program]:
    """Connect a tenant's program and return its child. The program has the device while it is connected."""
    program = broker.connect(name).hello()
    answer = program.answer()
    assert answer.op == WELCOME, answer.reason
    window = Window(WINDOW_BYTES, descriptor=answer.fds[0])
    window.wait_for_state(SERVING)
    return DriverChild(window), program


def gates(broker: Broker, name: str) -> int:
    return int(broker.shown(name)["stats"]["gates"])


def test_tenants_that_give_no_turn_back_never_run_together(broker: Broker, gpu: Gpu) -> None:
    with gpu.observer() as observer:
        joined = [join(broker, name) for name in ("blue", "red")]
        for child, _ in joined:
            child.hog()
        # Each tenant was stopped at the end of a turn. From then on, its gate is closed outside its turns.
        wait_for(lambda: gates(broker, "blue") > 0 and gates(broker, "red") > 0, "a gate that closes")
        ran = [0, 0]
        samples, end = 0, time.monotonic() + LIMIT_S
        while samples < SAMPLES or not min(ran):
            assert time.monotonic() < end, f"of {samples} looks {ran} found somebody at work"
            samples += 1
            before = [observer.progress_ns(group) for group in range(2)]
            observer.pass_time(SAMPLE_NS)
            after = [observer.progress_ns(group) for group in range(2)]
            moved = [later > earlier for earlier, later in zip(before, after, strict=True)]
            assert not all(moved)
            ran = [count + moves for count, moves in zip(ran, moved, strict=True)]
        shown = broker.shown("blue")
        assert shown["supervisor"]["enforced_by"] == "broker+gate"
        assert shown["supervisor"]["gate_p99_ns"] > 0
        assert [each["state"] for each in shown["processes"]] == ["running"]
