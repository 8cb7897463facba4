# SPDX-License-Identifier: Apache-2.0
"""Whatever a guest asks for, the engine's thread keeps no processor from other tasks of the host.

The thread sleeps at a high real-time priority, and keeps it only for work during which it sleeps most of the time. It
is in real time at all only for such work and for work that ends at once, after which it rests
(kmod/kunit/processor_test.c). test_edu.py tests the same of the engine edu.
"""

from itertools import pairwise

import pytest

from tests.rig.gpu import Gpu
from tests.rig.priority import changes_during, executed
from tests.rig.ring import AREA_IOVA, DELAY, FACT, GEMM_I32, NOP, NOSPLIT, REG_FACT_PS, descriptor
from tests.rig.vfio import Device

pytestmark = pytest.mark.emulated


def delay_ns(ns: int) -> bytes:
    return descriptor(DELAY, flags=NOSPLIT, args=[ns])


def gemm(steps: int) -> bytes:
    """The prediction is that it takes as long as the checksum of this many pages. It takes far longer: 4096 divisions
    each."""
    return descriptor(
        GEMM_I32, src=AREA_IOVA, src2=AREA_IOVA + 0x8000, dst=AREA_IOVA + 0x10000, args=[64 * steps, 64, 1]
    )


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


def test_who_turns_out_to_compute_for_long_leaves_real_time(gpu: Gpu) -> None:
    """This holds even if it loses the processor in a step, which does not count."""
    nop = descriptor(NOP)
    paces = executed(gpu, lambda _: [nop, *[gemm(4), nop] * 12], whole=False)
    assert paces == ["brief", *["computes", "brief"] * 12]


def test_who_is_done_when_that_shows_stays_in_real_time(gpu: Gpu) -> None:
    """The work after it serves all slices: the account and the next decision."""
    count, events = changes_during(gpu, lambda _: [gemm(1)] * 12)
    assert events.count("executed") == count
    if "brief" not in events:
        pytest.skip("on this kernel even a page takes too long to be brief")
    assert ("brief", "computes") not in pairwise(events)
