# SPDX-License-Identifier: Apache-2.0
"""Whatever a guest asks for, the engine's thread keeps no processor from other tasks of the host.

It has the real-time priority with which it sleeps only for what leaves it asleep for most of the time. That engines edu
and exec keep to this, too, is in test_edu.py, executor/test_grants.py and tests/kfuzz/lend.c.
"""

from tests.rig.gpu import Gpu
from tests.rig.priority import executed
from tests.rig.ring import DELAY, NOP, NOSPLIT, descriptor


def delay_ns(ns: int) -> bytes:
    return descriptor(DELAY, flags=NOSPLIT, args=[ns])


def test_delays_that_are_over_at_once_are_no_reason_for_realtime(gpu: Gpu) -> None:
    assert executed(gpu, lambda _: [delay_ns(1), delay_ns(19_999)] * 24) == ["normal"] * 48


def test_the_thread_sleeps_through_a_delay_in_realtime(gpu: Gpu) -> None:
    assert executed(gpu, lambda _: [delay_ns(20_000), delay_ns(200_000)] * 24) == ["realtime"] * 48


def test_what_takes_no_time_between_delays_is_done_without_realtime(gpu: Gpu) -> None:
    items = [descriptor(NOP), delay_ns(200_000), delay_ns(1), delay_ns(200_000)]
    assert executed(gpu, lambda _: items * 12) == ["normal", "realtime"] * 24
