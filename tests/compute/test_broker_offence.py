# SPDX-License-Identifier: Apache-2.0
"""A child of a real supervisor computes without a lease. The broker detects this and freezes it.

The test plays the other tenant's supervisor and child.
"""

from __future__ import annotations

import mmap
import time
from pathlib import Path

import pytest

from tests.compute.broker_rig import (
    LENT,
    READY,
    WELCOME,
    Broker,
    build_fake_supervisor,
    joined,
    make_broker,
    tenant,
    until,
)
from tests.compute.executor_rig import (
    BUILT,
    SERVING,
    SPIN,
    Window,
    Words,
    make_hostile_child,
    make_product,
    tell,
)

MS = 1_000_000
PROCESSORS = 2
ENGINE = {
    "processors": PROCESSORS,
    "allowance_permille": 0,
    "allowance_burst_ns": 20 * MS,
    "watch_every_ns": 20 * MS,
    "penalty_ns": 600_000 * MS,
}
COUNTER_AT = 4096 + 2 * (1 << 20)  # the first word of the bulk area


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    make_product()
    fake = build_fake_supervisor(tmp_path)
    either = tmp_path / "supervisor"
    real = f'{BUILT / "vgpu-supervisor"} "$@" --backend hostile --sandbox none'
    either.write_text(f'#!/bin/sh\nif [ "$2" = red ]; then exec {fake} "$@"; fi\nexec {real}\n')
    either.chmod(0o755)
    running = Broker(tmp_path, make_broker(), either, tenants=[tenant("blue"), tenant("red")], engine=ENGINE)
    running.child = make_hostile_child(tmp_path)
    return running


def adopt(descriptor: int) -> Window:
    """Return the client's side of a window that the broker made."""
    window = Window.__new__(Window)
    window.descriptor = descriptor
    window.memory = mmap.mmap(descriptor, 0)
    window.size = len(window.memory)
    window.words = Words(window.memory)
    window.tail = window.head = window.call = 0
    return window


def test_a_child_that_computes_without_a_lease_is_frozen(broker: Broker) -> None:
    with broker:
        red = broker.any_supervisor()
        program = broker.connect("blue").hello()
        answer = program.answer()
        assert answer.op == WELCOME, answer
        window = adopt(answer.fds[0])
        window.wait_for_state(SERVING)
        with joined(broker, red) as (_, child):
            child.request(READY)
            until(lambda: child.lease[0] == LENT)
            child.say(busy=True, number=1)
            tell(window, SPIN)
            until(lambda: broker.shown("blue")["confined"])
            assert broker.shown("blue")["stats"]["offences"] == 1

            def has_stopped() -> bool:
                before = window.words.wholes[COUNTER_AT // 8]
                broker.control.show()
                time.sleep(0.05)
                return bool(window.words.wholes[COUNTER_AT // 8] == before)

            until(has_stopped)
            # The honest tenant keeps its lease. The broker sometimes recalls it to see whether the frozen tenant has
            # work.
            assert broker.shown("red")["stats"]["offences"] == 0
        program.close()
