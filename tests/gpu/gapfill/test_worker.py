# SPDX-License-Identifier: Apache-2.0
"""A worker's loop: it asks for every step and reports it at its launch, and requests keep their rhythm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.gpu.gapfill import models
from tests.gpu.gapfill.worker import Loop

if TYPE_CHECKING:
    from vgpumgr.sched.core import ItemInfo

STEP_NS = 1_000_000


class Machine:
    """A clock that only steps and sleeps advance, and a gate with fixed answers."""

    def __init__(self, *, known: bool = True) -> None:
        self.now_ns = 0
        self.asked: list[int] = []
        self.stored: list[int] = []
        self.waited_ns = 7
        self.unnoticed = 3
        self._known = known

    def step(self) -> None:
        self.now_ns += STEP_NS

    def ask(self, item: ItemInfo) -> bool:
        assert item.more
        self.asked.append(item.kernel_id)
        return self._known

    def loop(self, *, gated: bool = True) -> Loop:
        client: Any = self if gated else None

        def sleep(seconds: float) -> None:
            self.now_ns += round(seconds * 1e9)

        return Loop([self.step] * 3, lambda: None, client, self.stored.append, clock=lambda: self.now_ns, sleep=sleep)


def test_each_step_is_asked_for_and_counted_after_its_launch() -> None:
    machine = Machine()
    loop = machine.loop()
    loop.request(0)
    loop.request(0)
    assert machine.asked == [0, 1, 2, 0, 1, 2]
    assert machine.stored == [1, 2, 3, 4, 5, 6]


def test_what_the_gate_does_not_know_of_is_launched_and_not_counted() -> None:
    machine = Machine(known=False)
    machine.loop().request(0)
    assert (machine.now_ns, machine.stored) == (3 * STEP_NS, [])


def test_without_a_gate_nobody_is_asked() -> None:
    machine = Machine()
    machine.loop(gated=False).request(0)
    assert (machine.now_ns, machine.asked) == (3 * STEP_NS, [])


def test_requests_come_at_their_period_and_late_ones_count_from_when_they_were_due() -> None:
    machine = Machine()
    loop = machine.loop()
    loop.run(0.02, 5 * STEP_NS)
    assert loop.latencies_ns == [(due * 5 * STEP_NS, 3 * STEP_NS) for due in range(4)]
    late = Machine()
    loop = late.loop()
    loop.run(0.008, 2 * STEP_NS)
    assert [length // STEP_NS for _, length in loop.latencies_ns] == [3, 4, 5, 6]


def test_the_first_tenth_is_left_out_of_the_report() -> None:
    machine = Machine()
    loop = machine.loop()
    loop.run(0.1, 0)
    report = loop.report(0.1)
    assert report["done"] == len(report["latency_ns"]) == len(loop.latencies_ns) - 4
    assert report["seconds"] == pytest.approx(0.09)
    assert (report["waited_ns"], report["unnoticed"]) == (7, 3)


# ---- models, if PyTorch is installed; any device works


SMALL = {
    "residual": models.Size(blocks=2, width=4, batch=(2, 3, 16, 16)),
    "separable": models.Size(blocks=2, width=4, batch=(2, 3, 16, 16)),
    "transformer": models.Size(blocks=2, width=64, batch=(2, 4, 64)),
    "wide-transformer": models.Size(blocks=2, width=128, batch=(2, 4, 128)),
}


@pytest.mark.parametrize("name", models.MODELS)
def test_a_model_trains_and_answers_step_by_step(name: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    for made in (models.inference, models.training):
        steps = made(name, "cpu", size=SMALL[name])
        for _ in range(2):
            for step in steps:
                step()
