# SPDX-License-Identifier: Apache-2.0
"""What a slice completes in each interval while others do their worst. A good interval cannot make up for a bad one."""

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
    """The number of items completed in each whole interval of the body's time; filled at the body's end.

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
