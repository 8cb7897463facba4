# SPDX-License-Identifier: Apache-2.0
"""What a slice gets done while others do their worst: in each interval, so that none makes up for another."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from vgpumgr.control.netlink import Control


def _watch(uuid: str, interval_s: float, over: threading.Event, found: list[int]) -> None:
    with Control() as control:
        last = control.slice(uuid).items
        while not over.wait(interval_s):
            now = control.slice(uuid).items
            found.append(now - last)
            last = now


@contextmanager
def throughout(uuid: str, *, interval_s: float = 1) -> Iterator[list[int]]:
    """How many items were answered in each interval of the body's time; complete afterwards, but for its last bit.

    Raises AssertionError if there was none.
    """
    over = threading.Event()
    found: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(_watch, uuid, interval_s, over, found)
        try:
            yield found
        finally:
            over.set()
        watching.result()
    assert found, "the body was shorter than an interval, or nobody could look"
