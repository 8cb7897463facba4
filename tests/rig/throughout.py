# SPDX-License-Identifier: Apache-2.0
"""What a slice has while others do their worst: in each interval, so that none makes up for another."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from vgpumgr.control.netlink import Control


@dataclass(frozen=True, kw_only=True)
class Interval:
    """`share_of_wall`: engine time that the slice was charged, of all time; `items`: answered."""

    share_of_wall: float
    items: int


def _watch(uuid: str, interval_s: float, over: threading.Event, found: list[Interval]) -> None:
    """The clock is read between the counters: who is late to look finds no share too small."""
    with Control() as control:
        last, last_s = control.slice(uuid), time.monotonic()
        while not over.wait(interval_s):
            now_s = time.monotonic()
            now = control.slice(uuid)
            share = (now.run_ns - last.run_ns) / 1e9 / (now_s - last_s)
            found.append(Interval(share_of_wall=share, items=now.items - last.items))
            last, last_s = now, time.monotonic()


@contextmanager
def throughout(uuid: str, *, interval_s: float = 1) -> Iterator[list[Interval]]:
    """All of the body's time but what is left of it in the end, in intervals; the list is complete afterwards.

    Raises AssertionError if there was none.
    """
    over = threading.Event()
    found: list[Interval] = []
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(_watch, uuid, interval_s, over, found)
        try:
            yield found
        finally:
            over.set()
        watching.result()
    assert found, "the body was shorter than an interval, or nobody could look"
