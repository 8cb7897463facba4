# SPDX-License-Identifier: Apache-2.0
"""Whatever a guest asks for, the engine's thread keeps no processor from other tasks of the host.

It has the real-time priority with which it sleeps only for what leaves it asleep for most of the time, and is in real
time at all only for that and for what is over at once, after which it rests (kmod/kunit/processor_test.c). That engines
edu and exec keep to this, too, is in test_edu.py, executor/test_grants.py and tests/kfuzz/lend.c.
"""

from tests.rig.gpu import Gpu
from tests.rig.priority import executed
from tests.rig.ring import DELAY, FACT, NOP, NOSPLIT, REG_FACT_PS, descriptor
from tests.rig.vfio import Device


def delay_ns(ns: int) -> bytes:
    return descriptor(DELAY, flags=NOSPLIT, args=[ns])


def test_delays_that_are_over_at_once_are_brief(gpu: Gpu) -> None:
    assert executed(gpu, lambda _: [delay_ns(1), delay_ns(19_999)] * 24) == ["brief"] * 48


def test_the_thread_sleeps_through_a_delay_above_all_that_works(gpu: Gpu) -> None:
    assert executed(gpu, lambda _: [delay_ns(20_000), delay_ns(200_000)] * 24) == ["waits"] * 48


def test_what_takes_no_time_between_delays_is_brief(gpu: Gpu) -> None:
    items = [descriptor(NOP), delay_ns(200_000), delay_ns(1), delay_ns(200_000)]
    assert executed(gpu, lambda _: items * 12) == ["brief", "waits"] * 24


def test_who_computes_for_long_is_not_in_real_time(gpu: Gpu) -> None:
    def items(device: Device) -> list[bytes]:
        n = 100_000 * 1000 // device.register(REG_FACT_PS)
        long, short = (descriptor(FACT, args=[length]) for length in (n, 1))
        return [long, short] * 12

    assert executed(gpu, items, whole=False) == ["computes", "brief"] * 12
